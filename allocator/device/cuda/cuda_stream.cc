#include "allocator/device/cuda/cuda_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// With this many pending fences the stream itself checks which have passed.
constexpr std::size_t kManyPending = 64;

}  // namespace

CudaContextScope::CudaContextScope(const CudaDriver& driver, CUcontext context) : driver_(driver) {
  CUcontext current = nullptr;
  if (driver_.CtxGetCurrent(&current) == CUDA_SUCCESS && current == context) return;
  status_ = driver_.Check("cuCtxPushCurrent", driver_.CtxPushCurrent(context));
  pushed_ = status_.ok();
}

CudaContextScope::~CudaContextScope() {
  CUcontext context = nullptr;
  if (pushed_) driver_.CtxPopCurrent(&context);
}

CudaEventPool::~CudaEventPool() {
  MutexLock lock(mutex_);
  for (const CUevent event : idle_) driver_.EventDestroy(event);
}

absl::StatusOr<CudaEventPool::Event> CudaEventPool::Take() {
  CUevent event = nullptr;
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      event = idle_.back();
      idle_.pop_back();
    }
  }
  if (event == nullptr) {
    const unsigned flags = timing_ == Timing::kOn ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
    LGPU_RETURN_IF_ERROR(driver_.Check("cuEventCreate", driver_.EventCreate(&event, flags)));
  }
  return Event(new CUevent(event), [this](const CUevent* lent) {
    {
      MutexLock lock(mutex_);
      idle_.push_back(*lent);
    }
    delete lent;
  });
}

void CudaEventPool::Forget() {
  // The lock may have been held by a thread that does not exist in this process.
  mutex_.AssertHeld();
  idle_.clear();
}

CudaStream::~CudaStream() {
  if (owner_ == Owner::kProgram) return;
  const CudaContextScope scope(driver_, context_);
  driver_.StreamDestroy(stream_);
}

void CudaStream::CountWork() {
  MutexLock lock(mutex_);
  ++work_;
}

absl::StatusOr<std::uint64_t> CudaStream::Record() {
  std::uint64_t sequence = 0;
  std::uint64_t oldest = 0;
  {
    MutexLock lock(mutex_);
    const bool same =
        owner_ == Owner::kLgpu && recorded_work_ == work_ && (last_ == passed_ || pending_.count(last_) != 0);
    if (same) return last_;
    sequence = ++last_;
    recorded_work_ = work_;
    if (pending_.size() >= kManyPending) oldest = pending_.begin()->first;
  }
  LGPU_ASSIGN_OR_RETURN(CudaEventPool::Event event, events_.Take());
  const CUstream recorded_on = stream_ == CU_STREAM_PER_THREAD ? CU_STREAM_LEGACY : stream_;
  LGPU_RETURN_IF_ERROR(driver_.Check("cuEventRecord", driver_.EventRecord(*event, recorded_on)));
  {
    MutexLock lock(mutex_);
    pending_.emplace(sequence, std::move(event));
  }
  if (oldest != 0) LGPU_RETURN_IF_ERROR(HasPassed(oldest).status());
  return sequence;
}

absl::StatusOr<CudaStream::Marker> CudaStream::Find(std::uint64_t sequence) const {
  MutexLock lock(mutex_);
  if (sequence <= passed_) return Marker{sequence, nullptr};
  const auto found = pending_.lower_bound(sequence);
  if (sequence > last_ || found == pending_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fence ", sequence, " was never recorded on its stream, which is at ", last_));
  }
  return Marker{found->first, found->second};
}

void CudaStream::SetPassed(std::uint64_t sequence) {
  std::vector<CudaEventPool::Event> done;  // goes back to the pool without this lock
  MutexLock lock(mutex_);
  passed_ = std::max(passed_, sequence);
  while (!pending_.empty() && pending_.begin()->first <= passed_) {
    done.push_back(std::move(pending_.begin()->second));
    pending_.erase(pending_.begin());
  }
}

absl::StatusOr<bool> CudaStream::HasPassed(std::uint64_t sequence) {
  LGPU_ASSIGN_OR_RETURN(const Marker marker, Find(sequence));
  if (marker.event == nullptr) return true;
  const CUresult result = driver_.EventQuery(*marker.event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  LGPU_RETURN_IF_ERROR(driver_.Check("cuEventQuery", result));
  SetPassed(marker.sequence);
  return true;
}

absl::Status CudaStream::Wait(std::uint64_t sequence) {
  LGPU_ASSIGN_OR_RETURN(const Marker marker, Find(sequence));
  if (marker.event == nullptr) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(driver_.Check("cuEventSynchronize", driver_.EventSynchronize(*marker.event)));
  SetPassed(marker.sequence);
  return absl::OkStatus();
}

absl::Status CudaStream::MakeWait(CudaStream& waiter, std::uint64_t sequence) {
  LGPU_ASSIGN_OR_RETURN(const Marker marker, Find(sequence));
  if (marker.event == nullptr || &waiter == this) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(
      driver_.Check("cuStreamWaitEvent", driver_.StreamWaitEvent(waiter.get(), *marker.event, 0)));
  waiter.CountWork();
  return absl::OkStatus();
}

absl::Status CudaStream::Drain() {
  if (stream_ == CU_STREAM_PER_THREAD) {
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t sequence, Record());
    return Wait(sequence);
  }
  return driver_.Check("cuStreamSynchronize", driver_.StreamSynchronize(stream_));
}

}  // namespace lgpu
