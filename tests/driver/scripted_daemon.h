#ifndef LGPU_TESTS_DRIVER_SCRIPTED_DAEMON_H_
#define LGPU_TESTS_DRIVER_SCRIPTED_DAEMON_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "proto/wire/channel.h"
#include "proto/wire/pages.h"
#include "proto/wire/session_messages.h"

namespace lgpu::testing {

/// A ScriptedDaemon plays lgpud for one client, with one card and one lease: it grants charges up to a limit,
/// and makes rare events of a real daemon at a test's command. Its owner kills and starts it again.
class ScriptedDaemon {
 public:
  static constexpr char kUuid[] = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";

  ScriptedDaemon(std::string directory, std::uint64_t bytes, std::string uuid = kUuid);
  ~ScriptedDaemon() { Kill(); }

  /// As SIGKILL: the connection ends without a word.
  void Kill();
  void Start();

  std::atomic<std::uint64_t> limit;           // read at a connection and a charge
  std::atomic<std::uint64_t> charged{0};      // as the daemon counts it, lent bytes included
  std::atomic<std::uint64_t> lends{0};        // put into `free` at the next granted charge
  std::atomic<int> charges{0}, uncharges{0};  // frames that came
  std::atomic<int> answer_after{0};           // so many further charges are answered late: with the next one
  std::atomic<int> refusal_reason{0};         // of refused charges, which say they waited as long as they may
  std::atomic<std::uint64_t> timeout_ms{0};   // of the last charge
  std::atomic<int> says_still_waiting{0};     // and answers charges so many milliseconds later
  std::atomic<bool> ends_with_late{false};    // after late answers, reading no more before them
  std::atomic<bool> half_writes_stats{false};              // the stats page's epoch stays odd
  std::atomic<int> attach_code{0};                         // why it refuses Attach; 0: it does not
  std::atomic<bool> attests{true};                         // false: it never answers an attestation
  std::atomic<std::function<void()>*> meanwhile{nullptr};  // run once, before a charge is decided on
  std::atomic<std::uint64_t> imports{0};  // the client's, as its page said at the last charge
  std::atomic<bool> knows_session{true};
  std::atomic<std::uint64_t> attested{0};

 private:
  void Serve();
  void Talk(wire::Channel channel);
  bool Answer(wire::Channel& channel, const wire::Frame& frame);
  void Welcome(wire::Channel& channel, const wire::Hello& hello);
  void Decide(wire::Channel& channel, const wire::Charge& charge);
  void Send(wire::Channel& channel, const wire::Frame& frame);

  const std::string directory_;
  const std::string uuid_;
  UniqueFd listener_;
  std::atomic<int> connection_{-1};
  std::thread thread_;
  SharedPage<StatsPage> stats_;
  SharedPage<const ClientPage> client_;
  SharedPage<SharedCharges> words_;
  std::vector<wire::Charge> late_;
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_DRIVER_SCRIPTED_DAEMON_H_
