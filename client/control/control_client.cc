#include "client/control/control_client.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <optional>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/blocked_signals.h"
#include "base/check.h"
#include "base/interrupt.h"
#include "base/thread_room.h"
#include "lgpu/status.h"
#include "proto/refusal_codec.h"

namespace lgpu {
namespace {

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string FromBuffer(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

std::string FullName(const char* method) { return std::string("/lgpu.v1.Control/") + method; }

/// Waits until the one operation of a call that is under way is done; false: it failed.
bool Done(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  LGPU_CHECK(queue.Next(&tag, &ok));
  return ok;
}

/// As Done, and cancels the call when the thread is interrupted.
bool DoneOrInterrupted(grpc::CompletionQueue& queue, grpc::ClientContext& context) {
  using TimePoint = Interrupt::TimePoint;
  for (TimePoint ask; (ask = Interrupt::NextQuestion(TimePoint::max())) != TimePoint::max();) {
    void* tag = nullptr;
    bool ok = false;
    const auto until = std::chrono::system_clock::now() + (ask - TimePoint::clock::now());
    if (queue.AsyncNext(&tag, &ok, until) == grpc::CompletionQueue::GOT_EVENT) return ok;
    if (Interrupt::Happened()) {
      context.TryCancel();
      break;
    }
  }
  return Done(queue);
}

}  // namespace

class ControlClient::Impl {
 public:
  Impl(UniqueFd socket, std::string directory)
      : directory_(std::move(directory)),
        stub_(grpc::CreateCustomInsecureChannelFromFd("lgpud", socket.Release(), Arguments())) {}

  // The statistics of many users' leases are longer than gRPC's 4 MiB; lgpud bounds the leases of each user.
  static grpc::ChannelArguments Arguments() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    return arguments;
  }

  void UseToken(std::string token) { token_ = std::move(token); }

  absl::StatusOr<std::string> Call(const char* method, const std::string& request,
                                   std::chrono::milliseconds timeout) {
    std::string answer;
    LGPU_RETURN_IF_ERROR(UntilAdmitted(timeout, [&](grpc::ClientContext& context) {
      answer.clear();
      return CallOnce(context, method, request, answer);
    }));
    return answer;
  }

  absl::Status Stream(const char* method, const std::string& request, std::chrono::milliseconds timeout,
                      const std::function<absl::Status(const std::string&)>& each,
                      const std::function<absl::Status()>& between) {
    absl::Status stopped;
    const absl::Status status = UntilAdmitted(timeout, [&](grpc::ClientContext& context) {
      return StreamOnce(context, method, request, each, between, stopped);
    });
    return stopped.ok() ? status : stopped;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Makes one call, and repeats it while the daemon asks to try again, until `timeout` is over. A call that
  /// the daemon did not admit had no effect.
  template <typename Once>
  absl::Status UntilAdmitted(std::chrono::milliseconds timeout, const Once& once) const {
    const bool ends = timeout != kNoTimeout;
    const Clock::time_point deadline = Clock::now() + (ends ? timeout : kCallTimeout);
    for (int tries = 1;; ++tries) {
      grpc::ClientContext context;
      if (!token_.empty()) context.AddMetadata("lgpu-session-token-bin", token_);
      if (ends) context.set_deadline(DeadlineOf(deadline));
      const grpc::Status status = once(context);
      if (!status.ok() && Interrupt::HasHappened()) return Interrupt::Error();
      const std::optional<std::chrono::milliseconds> delay = RetryAfter(context, status, tries);
      if (!delay) return ToStatus(status, timeout);
      if (Clock::now() + *delay >= deadline) {
        return absl::UnavailableError(absl::StrFormat(
            "lgpud at %s takes no more calls of this user now: %s\n  try: end some of your programs, or wait",
            directory_, status.error_message()));
      }
      if (!Interrupt::SleepUntil(Clock::now() + *delay)) return Interrupt::Error();
    }
  }

  static gpr_timespec DeadlineOf(Clock::time_point deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(left.count(), GPR_TIMESPAN));
  }

  /// How long to wait before the call is made again; nothing: it is not to be made again. The time doubles
  /// with every try, and differs between programs, so that many of them do not come back together.
  static std::optional<std::chrono::milliseconds> RetryAfter(const grpc::ClientContext& context,
                                                             const grpc::Status& status, int tries) {
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return std::nullopt;
    const auto& metadata = context.GetServerTrailingMetadata();
    const auto asked = metadata.find("lgpu-retry-after-ms");
    int least = 0;
    if (asked == metadata.end() ||
        !absl::SimpleAtoi(absl::string_view(asked->second.data(), asked->second.size()), &least)) {
      return std::nullopt;
    }
    constexpr int kMostMs = 1000;
    const int most = std::min(kMostMs, std::clamp(least, 1, kMostMs) << std::min(tries - 1, 10));
    std::minstd_rand random(std::random_device{}());
    return std::chrono::milliseconds(std::uniform_int_distribution<int>((most + 1) / 2, most)(random));
  }

  grpc::Status CallOnce(grpc::ClientContext& context, const char* method, const std::string& request,
                        std::string& answer) {
    grpc::CompletionQueue queue;
    const auto call = stub_.PrepareUnaryCall(&context, FullName(method), ToBuffer(request), &queue);
    grpc::ByteBuffer response;
    grpc::Status status;
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    (void)DoneOrInterrupted(queue, context);
    if (status.ok()) answer = FromBuffer(response);
    return status;
  }

  /// As Done, and calls `between` every 50 ms: an error of it ends the stream.
  static bool AwaitNext(grpc::CompletionQueue& queue, grpc::ClientContext& context,
                        const std::function<absl::Status()>& between, absl::Status& stopped) {
    constexpr std::chrono::milliseconds kBetween{50};
    void* tag = nullptr;
    bool ok = false;
    while (between && stopped.ok()) {
      const auto until = std::chrono::system_clock::now() + kBetween;
      if (queue.AsyncNext(&tag, &ok, until) == grpc::CompletionQueue::GOT_EVENT) return ok;
      stopped = between();
      if (!stopped.ok()) context.TryCancel();
    }
    return Done(queue) && stopped.ok();
  }

  grpc::Status StreamOnce(grpc::ClientContext& context, const char* method, const std::string& request,
                          const std::function<absl::Status(const std::string&)>& each,
                          const std::function<absl::Status()>& between, absl::Status& stopped) {
    grpc::CompletionQueue queue;
    const auto call = stub_.PrepareCall(&context, FullName(method), &queue);
    call->StartCall(nullptr);
    bool ok = Done(queue);
    if (ok) {
      call->WriteLast(ToBuffer(request), grpc::WriteOptions(), nullptr);
      ok = Done(queue);
    }
    grpc::ByteBuffer message;
    while (ok) {
      call->Read(&message, nullptr);
      ok = AwaitNext(queue, context, between, stopped);
      if (ok) stopped = each(FromBuffer(message));
      if (ok && !stopped.ok()) {
        context.TryCancel();
        ok = false;
      }
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    (void)Done(queue);
    return status;
  }

  absl::Status ToStatus(const grpc::Status& status, std::chrono::milliseconds timeout) const {
    if (status.ok()) return absl::OkStatus();
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    if (code == absl::StatusCode::kUnavailable) {
      return absl::UnavailableError(
          "lgpud at " + directory_ + " is gone (" + status.error_message() +
          ")\n  try: is it still running? its log says why it stopped, or closed the connection");
    }
    if (code == absl::StatusCode::kDeadlineExceeded) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "lgpud at %s did not answer within %.1fs", directory_, static_cast<double>(timeout.count()) / 1e3));
    }
    return DecodeStatusDetails(absl::Status(code, status.error_message()), status.error_details());
  }

  const std::string directory_;
  std::string token_;
  grpc::GenericStub stub_;
};

ControlClient::ControlClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::shared_ptr<ControlClient>> ControlClient::Create(UniqueFd socket, std::string directory) {
  LGPU_RETURN_IF_ERROR(CheckThreadRoom("gRPC", kGrpcThreads));
  return std::shared_ptr<ControlClient>(
      new ControlClient(std::make_unique<Impl>(std::move(socket), std::move(directory))));
}

ControlClient::Starting ControlClient::Start(UniqueFd socket, std::string directory) {
  Starting starting;
  starting.client_ = std::make_shared<absl::StatusOr<std::shared_ptr<ControlClient>>>();
  // Shared, so that it is still there after a thread that could not be had.
  auto make = [connected = std::make_shared<UniqueFd>(std::move(socket)), directory = std::move(directory),
               client = starting.client_] { *client = Create(std::move(*connected), directory); };
  const BlockedSignals blocked;  // gRPC's threads inherit it
  try {
    starting.made_ = std::async(std::launch::async, make);
  } catch (const std::system_error&) {
    starting.made_ = std::async(std::launch::deferred, make);
  }
  return starting;
}

absl::StatusOr<std::shared_ptr<ControlClient>> ControlClient::Starting::Wait() {
  made_.get();
  return std::move(*client_);
}

void ControlClient::UseToken(std::string token) { impl_->UseToken(std::move(token)); }

ControlClient::~ControlClient() = default;

absl::StatusOr<std::string> ControlClient::Call(const char* method, const std::string& request,
                                                std::chrono::milliseconds timeout) {
  return impl_->Call(method, request, timeout);
}

absl::Status ControlClient::Stream(const char* method, const std::string& request,
                                   std::chrono::milliseconds timeout,
                                   const std::function<absl::Status(const std::string&)>& each,
                                   const std::function<absl::Status()>& between) {
  return impl_->Stream(method, request, timeout, each, between);
}

}  // namespace lgpu
