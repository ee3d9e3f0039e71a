#include "lgpu/memory.h"

#include <algorithm>
#include <utility>

#include "client/runtime/device_choice.h"
#include "client/runtime/memory_state.h"
#include "client/runtime/open_lease.h"
#include "client/session/fork_guard.h"
#include "kernels/text.h"
#include "lgpu/context.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

constexpr std::chrono::hours kLongestWait{24};

absl::Status MovedFrom() {
  return absl::FailedPreconditionError("this LogicalMemory was moved from; use the one that it was moved to");
}

absl::StatusOr<ContextOptions> LeaseOptions(const MemoryOptions& options) {
  if (options.allocation_timeout < std::chrono::milliseconds(0)) {
    return absl::InvalidArgumentError(
        Cat("allocation_timeout is ", options.allocation_timeout.count(), " ms; it must be 0 or more"));
  }
  ContextOptions context;
  context.lease = options.lease;
  context.lease_name = options.lease_name;
  context.endpoint = options.endpoint;
  context.log_sink = options.log_sink;
  const bool asks = options.memory_limit.has_value() || !options.guarantee.is_zero() ||
                    options.mode != MemoryMode::kGrowth || !options.physical_device.empty();
  if (asks) {
    context.logical_devices.push_back({.memory_limit = options.memory_limit,
                                       .guarantee = options.guarantee,
                                       .mode = options.mode,
                                       .physical_device = options.physical_device});
  }
  return context;
}

// An Entered is a call behind the state's gate: ok() if there is a state, of this process, with an open gate.
class Entered {
 public:
  enum class For { kNewBlock, kAnythingElse };
  explicit Entered(internal::MemoryState* state, For what = For::kAnythingElse) {
    if (state == nullptr) {
      status_ = MovedFrom();
    } else if (state->IsForked()) {
      status_ = ForkedError();
    } else if (internal::Gate& gate = what == For::kNewBlock ? state->allocation_gate() : state->gate();
               gate.Enter() || (what == For::kNewBlock && state->EnterWhenBack())) {
      gate_ = &gate;
    } else {
      status_ = state->ShutError();
    }
  }
  ~Entered() {
    if (gate_ != nullptr) gate_->Leave();
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  bool ok() const { return gate_ != nullptr; }
  const absl::Status& status() const { return status_; }

 private:
  internal::Gate* gate_ = nullptr;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<LogicalMemory> LogicalMemory::Open(const MemoryOptions& options) {
  LGPU_ASSIGN_OR_RETURN(const ContextOptions context, LeaseOptions(options));
  LGPU_RETURN_IF_ERROR(CheckDevices(context.logical_devices));
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease, OpenLease(context, Contents::kBlocksOfCaller));
  LGPU_ASSIGN_OR_RETURN(
      std::shared_ptr<internal::MemoryState> state,
      internal::OpenMemory(std::move(lease), options.device_of_lease,
                           std::min<std::chrono::milliseconds>(options.allocation_timeout, kLongestWait)));
  return LogicalMemory(std::move(state));
}

LogicalMemory::LogicalMemory(std::shared_ptr<internal::MemoryState> state) : state_(std::move(state)) {
  state_->HandleMade();
}
LogicalMemory::LogicalMemory(LogicalMemory&& other) noexcept = default;
LogicalMemory& LogicalMemory::operator=(LogicalMemory&& other) noexcept {
  if (this == &other) return *this;
  if (state_ != nullptr) state_->HandleGone();
  state_ = std::move(other.state_);
  return *this;
}
LogicalMemory::~LogicalMemory() {
  if (state_ != nullptr) state_->HandleGone();
}

absl::StatusOr<Block> LogicalMemory::Allocate(Bytes bytes, const BlockOptions& options) const {
  const Entered entered(state_.get(), Entered::For::kNewBlock);
  if (!entered.ok()) return entered.status();
  std::chrono::nanoseconds timeout = state_->timeout();
  if (options.timeout) timeout = std::clamp<std::chrono::milliseconds>(*options.timeout, {}, kLongestWait);
  return state_->memory().Allocate(bytes, {.stream = options.stream,
                                           .alignment = options.alignment,
                                           .tag = options.tag,
                                           .timeout = timeout,
                                           .only_if_ready = options.only_if_ready});
}

absl::Status LogicalMemory::Free(const Block& block, void* stream) const {
  {
    const Entered entered(state_.get());
    if (!entered.ok()) return entered.status();
    LGPU_RETURN_IF_ERROR(state_->memory().Free(block, stream));
  }
  state_->BlockGone();
  return absl::OkStatus();
}

absl::Status LogicalMemory::Free(void* address, void* stream) const {
  if (address == nullptr) return Free(Block(), stream);
  LGPU_ASSIGN_OR_RETURN(const Block block, Find(address));
  return Free(block, stream);
}

absl::StatusOr<Block> LogicalMemory::Find(const void* address) const {
  const Entered entered(state_.get());
  if (!entered.ok()) return entered.status();
  return state_->memory().Find(address);
}

absl::Status LogicalMemory::UseOn(const Block& block, void* stream) const {
  const Entered entered(state_.get());
  return entered.ok() ? state_->memory().UseOn(block, stream) : entered.status();
}

absl::Status LogicalMemory::UseOn(const void* address, void* stream) const {
  if (address == nullptr) return UseOn(Block(), stream);
  LGPU_ASSIGN_OR_RETURN(const Block block, Find(address));
  return UseOn(block, stream);
}

absl::Status LogicalMemory::ForgetStream(void* stream) const {
  const Entered entered(state_.get());
  return entered.ok() ? state_->memory().ForgetStream(stream) : entered.status();
}

// The owner's end needs no gate: while it is there, nothing closes the memory but a fork.
absl::StatusOr<std::shared_ptr<void>> LogicalMemory::Export(const Block& block, void* stream) const {
  const Entered entered(state_.get());
  if (!entered.ok()) return entered.status();
  if (block.address == nullptr) return std::shared_ptr<void>();
  LGPU_RETURN_IF_ERROR(state_->memory().Export(block, stream));
  return std::shared_ptr<void>(block.address, [state = state_, block](void*) {
    if (state->IsForked()) return;
    state->memory().FreeExported(block);
    state->BlockGone();
  });
}

const LogicalDeviceInfo& LogicalMemory::device() const {
  static const LogicalDeviceInfo kNone;
  return state_ == nullptr ? kNone : state_->info();
}

int LogicalMemory::cuda_device() const { return state_ == nullptr ? -1 : state_->cuda_device(); }

const std::string& LogicalMemory::lease() const {
  static const std::string kNone;
  return state_ == nullptr ? kNone : state_->lease_id();
}

const std::string& LogicalMemory::lease_name() const {
  static const std::string kNone;
  return state_ == nullptr ? kNone : state_->lease_name();
}

absl::StatusOr<MemoryStats> LogicalMemory::GetStats() const {
  const Entered entered(state_.get());
  if (!entered.ok()) return entered.status();
  return state_->pool().stats();
}

absl::StatusOr<LogicalMemorySnapshot> LogicalMemory::Snapshot() const {
  const Entered entered(state_.get());
  if (!entered.ok()) return entered.status();
  LogicalMemorySnapshot snapshot;
  static_cast<MemorySnapshot&>(snapshot) = state_->pool().Snapshot();
  snapshot.streams = state_->memory().Streams();
  snapshot.streams.resize(kMaxStreams);
  return snapshot;
}

absl::StatusOr<Bytes> LogicalMemory::Trim() const {
  const Entered entered(state_.get());
  if (!entered.ok()) return entered.status();
  return state_->pool().Trim();
}

absl::Status LogicalMemory::Resize(const ResizeOptions& options) const {
  const Entered entered(state_.get());
  if (!entered.ok()) return entered.status();
  LGPU_RETURN_IF_ERROR(internal::CheckResize(options));
  return state_->Resize(options.memory_limit, options.guarantee);
}

LogicalMemory::LiveBlocks LogicalMemory::live_blocks() const {
  const Entered entered(state_.get());
  if (!entered.ok()) return {};
  const CallerMemory::Live live = state_->memory().live();
  return {.blocks = live.blocks, .bytes = live.bytes, .exported = live.exported};
}

absl::Status LogicalMemory::Close() const {
  if (state_ == nullptr) return absl::OkStatus();
  return state_->IsForked() ? ForkedError() : state_->Close();
}

}  // namespace lgpu
