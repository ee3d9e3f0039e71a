#include "tests/simulation/tensor_program.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/daemon_connection.h"
#include "client/session/daemon_lease.h"
#include "client/session/endpoint.h"
#include "lgpu/interrupt.h"
#include "lgpu/status.h"

namespace lgpu::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPatience = std::chrono::minutes(5);  // of a request for memory

void Sleep(milliseconds time) { std::this_thread::sleep_for(time); }

}  // namespace

void TensorProgram::Run() {
  while (!is_finishing_) {
    if (!Open()) {
      Sleep(milliseconds(1 + Below(50)));
      continue;
    }
    is_over_ = false;
    std::thread orders([this] {
      while (!is_over_) {
        FollowOrders();
        Sleep(milliseconds(5));
      }
    });
    Work();
    is_over_ = true;
    orders.join();
    Close();
  }
}

absl::StatusOr<std::unique_ptr<Lease>> TensorProgram::Attach() const {
  Endpoint endpoint;
  endpoint.directories = {options_.directory};
  LGPU_ASSIGN_OR_RETURN(const DaemonSocket daemon, FindDaemon(endpoint));
  const std::string path = SessionSocketPath(daemon.directory);
  LGPU_ASSIGN_OR_RETURN(
      std::unique_ptr<DaemonConnection> connection,
      DaemonConnection::Connect(
          {.directory = daemon.directory, .reconnect_path = path, .suspends_itself = true}));
  LGPU_ASSIGN_OR_RETURN(const wire::Lease granted, connection->Attach(options_.lease));
  return DaemonLease::Open(std::move(connection), granted, {});
}

bool TensorProgram::Open() {
  absl::StatusOr<std::unique_ptr<Lease>> lease = Attach();
  if (!lease.ok() && !absl::IsUnavailable(lease.status())) {
    options_.fail(absl::StrCat("a program of tensors cannot attach: ", lease.status().ToString()));
  }
  if (!lease.ok()) return false;
  lease_ = *std::move(lease);
  source_ = lease_->TakeSource(0);
  lease_->StartMaintenance([this](steady_clock::time_point) -> std::optional<steady_clock::time_point> {
    for (const TrimOrder& order : lease_->TakeTrims()) lease_->AnswerTrim(order, false);
    return std::nullopt;
  });
  return true;
}

void TensorProgram::Work() {
  const std::uint64_t deeds = 5 + Below(40);
  for (std::uint64_t i = 0; i < deeds && !is_finishing_; ++i) {
    const Bytes free = SaturatingSub(options_.need, held());
    if (!free.is_zero()) {
      Take(Below(3) == 0 ? free : std::min<Bytes>(free, 2_MiB * (1 + Below(8))));
    } else if (Below(6) == 0) {
      Call([&] { GiveBack(Below(2) == 0 ? chunks_.size() : 1); });
    }
    const auto until = steady_clock::now() + milliseconds(Below(Below(3) == 0 ? 20'000 : 1000));
    while (!is_finishing_ && steady_clock::now() < until) {
      Call([] {});
      Sleep(milliseconds(100));
    }
    if (Below(2) == 0) Sleep(milliseconds(Below(8000)));
  }
}

template <typename Op>
void TensorProgram::Call(const Op& op) {
  while (!is_finishing_) {
    lease_->NoteUse();
    {
      MutexLock lock(gate_);
      if (!gives_way_) {
        op();
        return;
      }
    }
    if (!waits_since_) waits_since_ = steady_clock::now();
    Sleep(milliseconds(50));
    if (!gives_way_) waits_since_.reset();
  }
}

void TensorProgram::Take(Bytes bytes) {
  absl::Status status = absl::CancelledError();
  while (absl::IsCancelled(status) && !is_finishing_) {
    Call([&] {
      const InterruptScope steps_aside([this] { return gives_way_ || is_finishing_; });
      if (!waits_since_) waits_since_ = steady_clock::now();
      status = Grow(bytes);
    });
  }
  waits_since_.reset();
  if (absl::IsResourceExhausted(status)) ++refusals_;
  const bool may_be = status.ok() || absl::IsCancelled(status) || absl::IsResourceExhausted(status) ||
                      absl::IsUnavailable(status);
  if (!may_be) options_.fail(absl::StrCat("a program of tensors gets no memory: ", status.ToString()));
}

absl::Status TensorProgram::Grow(Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const std::vector<Chunk> granted,
                        source_->Grow({.at_least = bytes, .wanted = bytes, .timeout = kPatience}));
  chunks_.insert(chunks_.end(), granted.begin(), granted.end());
  return absl::OkStatus();
}

void TensorProgram::GiveBack(std::size_t chunks) {
  std::vector<ChunkId> ids;
  for (; chunks > 0 && !chunks_.empty(); --chunks) {
    ids.push_back(chunks_.back().id);
    chunks_.pop_back();
  }
  if (!ids.empty()) source_->Return(ids).IgnoreError();  // lgpud may be away, and has them back
}

Bytes TensorProgram::held() const {
  Bytes sum = on_host_;
  for (const Chunk& chunk : chunks_) sum += chunk.bytes;
  return sum;
}

void TensorProgram::FollowOrders() {
  for (const Lease::SuspensionOrder& order : lease_->TakeSuspensionOrders()) {
    if (options_.fails && OrderBelow(30) == 0) {
      Sleep(milliseconds(std::min<std::int64_t>(order.limit.count(), 20'000)));
    }
    absl::Status status = order.resume ? TakeBack() : GiveWay();
    while (order.resume && absl::IsResourceExhausted(status) && !is_over_) {
      Sleep(milliseconds(100));
      status = TakeBack();
    }
    std::map<LogicalId, Bytes> needs;
    if (!order.resume) needs[lease_->devices().front().id] = on_host_;
    lease_->AnswerSuspension(order, status, needs).IgnoreError();
  }
}

absl::Status TensorProgram::GiveWay() {
  if (gives_way_) return absl::OkStatus();
  gives_way_ = true;
  MutexLock lock(gate_);  // a request for memory ends as soon as it asks its scope
  if (options_.fails && OrderBelow(10) == 0) {
    gives_way_ = false;
    return absl::DeadlineExceededError("an op does not end");
  }
  lease_->NoteSuspended(true);
  Bytes bytes;
  for (const Chunk& chunk : chunks_) bytes += chunk.bytes;
  Move(bytes);
  on_host_ = bytes;
  GiveBack(chunks_.size());
  ++suspensions_;
  return absl::OkStatus();
}

absl::Status TensorProgram::TakeBack() {
  if (!gives_way_) return absl::OkStatus();
  MutexLock lock(gate_);
  if (!on_host_.is_zero()) LGPU_RETURN_IF_ERROR(Grow(on_host_));
  Move(on_host_);
  on_host_ = Bytes();
  lease_->NoteSuspended(false);
  gives_way_ = false;
  return absl::OkStatus();
}

void TensorProgram::Move(Bytes bytes) {
  // As long as the bytes take, and now and then longer.
  const auto mebibytes = static_cast<std::int64_t>(bytes.count() >> 20);
  Sleep(milliseconds(1 + mebibytes + static_cast<std::int64_t>(OrderBelow(8) == 0 ? 500 : 5)));
}

void TensorProgram::Close() {
  lease_->StopMaintenance();
  chunks_.clear();
  on_host_ = Bytes();
  gives_way_ = false;
  waits_since_.reset();
  source_.reset();
  lease_->Close().IgnoreError();
  lease_.reset();
}

}  // namespace lgpu::simulation
