#ifndef LGPU_TESTS_SIMULATION_HOOK_PROGRAM_H_
#define LGPU_TESTS_SIMULATION_HOOK_PROGRAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/session/daemon_connection.h"
#include "lgpu/bytes.h"

namespace lgpu::simulation {

/// `lgpu run --release` without its command's process: a session that keeps a lease and runs its release hook
/// when lgpud asks. The seed chooses how the hook of a run behaves.
class HookProgram {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::string directory;  // lgpud's
    std::string lease;
    /// Has programs of the lease give back so many of 100 of their chunks soon.
    std::function<void(std::uint64_t percent)> let_go;
    std::function<void()> kill_programs;  // of the lease
    std::function<Bytes()> held;          // by them
    std::function<void(const std::string& what)> fail;
  };
  explicit HookProgram(const Options& options) : options_(options), random_(options.seed) {}

  /// The body of the process: until Finish.
  void Run();
  void Finish() { is_finishing_ = true; }
  const std::string& lease() const { return options_.lease; }
  std::uint64_t runs() const { return runs_; }

 private:
  enum class Way { kGivesAll, kGivesSome, kGivesNothing, kFails, kTakesTooLong, kKills };

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  std::unique_ptr<DaemonConnection> Open();
  void Serve(DaemonConnection& session);
  absl::Status RunHook(const wire::Release& order);
  absl::Status AwaitLess(Bytes bytes, std::chrono::steady_clock::time_point deadline);

  const Options options_;
  std::mt19937_64 random_;
  std::atomic<bool> is_finishing_ = false;
  Mutex mutex_;
  CondVar changed_;
  std::atomic<std::uint64_t> runs_ = 0;
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_HOOK_PROGRAM_H_
