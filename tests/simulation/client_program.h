#ifndef LGPU_TESTS_SIMULATION_CLIENT_PROGRAM_H_
#define LGPU_TESTS_SIMULATION_CLIENT_PROGRAM_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/session/daemon_connection.h"
#include "client/session/lease.h"
#include "lgpu/bytes.h"

namespace lgpu::simulation {

/// A program that uses a lease by liblgpu's session, as a process of the simulated machine: some threads
/// grow and give back; it answers requests for idle memory, closes and opens again.
class ClientProgram {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::string directory;  // lgpud's
    std::string lease;
    Bytes card;
    std::uint64_t pause_factor = 1;  // between two deeds
    bool is_sleepy = false;          // it holds memory and does nothing for a second or more, now and then
    /// How long a request may take that was answered now and took so long.
    std::function<std::chrono::nanoseconds(std::chrono::nanoseconds took, const GrowRequest& request)>
        most_time;
    /// On the thread that is about to give chunks back.
    std::function<void()> on_return;
    /// What cannot be right. Does not return.
    std::function<void(const std::string& what)> fail;
  };
  explicit ClientProgram(const Options& options) : options_(options), random_(options.seed) {}

  /// The body of the process: random deeds until Finish, then closes.
  void Run();
  void Finish() { is_finishing_ = true; }
  /// With `on` its threads begin nothing new.
  void Pause(bool on) { is_paused_ = on; }
  /// While it does nothing it gives back so many of 100 of its chunks.
  void LetGo(std::uint64_t percent) { to_let_go_ = percent; }
  /// No thread does anything but answer requests for idle memory.
  bool is_at_rest() const { return at_work_ == 0; }
  /// The memory that it was granted and has not given back.
  Bytes held();
  const std::string& lease() const { return options_.lease; }
  std::uint64_t grants() const { return grants_; }
  /// Grants that came after more than 10 ms.
  std::uint64_t waits() const { return waits_; }
  std::uint64_t refusals() const { return refusals_; }

 private:
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  std::size_t chunks();
  void Work(std::uint64_t seed);
  void Deed(std::mt19937_64& random);
  void AwaitGo();
  /// As an inference server that is asked nothing.
  void Sleep(std::mt19937_64& random);
  void NoteUse();
  absl::StatusOr<std::unique_ptr<Lease>> Attach();
  void Open();
  void Grow(std::mt19937_64& random);
  void GiveBack(std::size_t at_most, std::mt19937_64& random);
  void Close();
  void AnswerTrims();
  /// Errors that may come in a right program: no memory, and no daemon.
  void Judge(const char* call, const absl::Status& status);
  /// Takes up to so many chunks out of `held_`.
  std::vector<ChunkId> Take(std::size_t at_most, std::mt19937_64& random);

  const Options options_;
  std::mt19937_64 random_;
  std::atomic<bool> is_finishing_ = false, is_paused_ = false;
  std::atomic<int> at_work_ = 0;  // threads
  std::atomic<std::uint64_t> to_let_go_ = 0;
  std::unique_ptr<Lease> lease_;
  DaemonConnection* connection_ = nullptr;  // of lease_
  std::unique_ptr<RegionSource> source_;
  std::mt19937_64 trim_random_{options_.seed + 1};  // of the session's thread
  Mutex mutex_;
  std::vector<Chunk> held_ ABSL_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> grants_ = 0, waits_ = 0, refusals_ = 0;
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_CLIENT_PROGRAM_H_
