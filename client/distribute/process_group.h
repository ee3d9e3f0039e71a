#ifndef LGPU_CLIENT_DISTRIBUTE_PROCESS_GROUP_H_
#define LGPU_CLIENT_DISTRIBUTE_PROCESS_GROUP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "client/distribute/shared_sums.h"
#include "lgpu/context.h"
#include "lgpu/mirrored_strategy.h"
#include "lgpu/tensor.h"
#include "proto/wire/channel.h"

namespace lgpu::internal {

/// A ProcessGroup is where the processes of one strategy meet. They go through the same rounds: in each,
/// process 0 hears one message of every process, compares them, and answers all with the same. So an error of
/// one process ends the step of all with one text. A process that dies, or that does not come in time, breaks
/// the group for good.
///
/// One thread at a time.
class ProcessGroup {
 public:
  /// The values that must be equal in all processes.
  struct Member {
    int replicas = 0;
    std::string lease;
  };
  /// Waits until all processes have joined. INVALID_ARGUMENT: the options cannot be, or this process differs
  /// from process 0. ALREADY_EXISTS: the rank is taken. PERMISSION_DENIED: another user's process is there.
  /// DEADLINE_EXCEEDED names the ranks that did not come.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Join(const MirroredProcesses& options,
                                                            const Member& member);
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return options_.rank; }
  int count() const { return options_.count; }

  /// A new step begins. The error that broke the group, if one did.
  absl::Status StartStep();
  /// Within a step: each tensor becomes the sum over all processes, in the order of their ranks, so that all
  /// have the same bits. The new tensors are on the device of this thread's scope.
  absl::Status Sum(const Context& context, std::vector<Tensor>& tensors);
  /// Each tensor becomes that of process 0.
  absl::Status CopyFirst(const Context& context, std::vector<Tensor>& tensors);
  /// Ends the step of this process, which came to `own`, and waits for the others: the error of any.
  absl::Status EndStep(const absl::Status& own);
  /// The error of another process, or of the meeting itself, that ended this step.
  const std::optional<absl::Status>& failure() const { return failure_; }

 private:
  enum class Kind : std::uint8_t { kHello, kOffer, kCopied, kSummed, kEnd, kFail, kProceed, kBroken };
  struct Message {
    Kind kind = Kind::kFail;
    std::uint64_t value = 0;
    absl::StatusCode code = absl::StatusCode::kOk;
    std::string text = {};
  };
  struct Peer {
    int rank = 0;
    std::int64_t pid = 0;
    wire::Channel channel;
  };
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit ProcessGroup(const MirroredProcesses& options) : options_(options) {}
  static std::string Encode(const Message& message);
  static absl::StatusOr<Message> Decode(std::string_view bytes);
  /// A message that fails a round: `status` is an error.
  static Message Failure(const absl::Status& status);
  /// CANCELLED: the program interrupted the wait.
  static absl::StatusOr<Message> Receive(Peer& peer, TimePoint deadline, UniqueFd* fd = nullptr);
  static absl::Status Send(Peer& peer, const Message& message, int fd = -1);

  absl::Status Gather(const Member& member);
  absl::Status Admit(UniqueFd socket, const Member& member);
  absl::Status Connect(const Member& member);

  absl::Status Exchange(const Context& context, std::vector<Tensor>& tensors, bool add);
  /// One message of every process. OK: all sent the same.
  absl::Status Round(const Message& own);
  absl::Status LeadRound(const Message& own);
  absl::Status FollowRound(const Message& own);
  static absl::Status Compare(const Message& first, const Message& other, const std::string& name);
  absl::Status MakeRoom(std::uint64_t bytes);
  /// The group is of no use from here on; process 0 tells all.
  absl::Status Break(absl::Status why);
  absl::Status BreakInterrupted();
  static std::string Name(const Peer& peer);

  const MirroredProcesses options_;
  std::vector<Peer> peers_;  // of process 0: all others, by rank; else process 0 alone
  std::optional<absl::Status> broken_;
  std::optional<absl::Status> failure_;  // of this step
  SharedSums sums_;
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_DISTRIBUTE_PROCESS_GROUP_H_
