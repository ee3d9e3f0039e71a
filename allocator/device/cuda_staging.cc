#include "allocator/device/cuda_staging.h"

#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

constexpr std::align_val_t kPage{4096};

}  // namespace

CudaStaging::~CudaStaging() {
  MutexLock lock(mutex_);
  for (const std::unique_ptr<Buffer>& buffer : idle_) {
    if (buffer->page_locked) {
      driver_.MemFreeHost(buffer->data);
    } else {
      ::operator delete(buffer->data, kPage);
    }
  }
}

absl::StatusOr<CudaStaging::Lent> CudaStaging::Take() { return Take(WhenNone::kWait); }
absl::StatusOr<CudaStaging::Lent> CudaStaging::TryTake() { return Take(WhenNone::kGiveUp); }

// The one that came back first, unless the device still works with it and there may be another one.
absl::StatusOr<CudaStaging::Lent> CudaStaging::Take(WhenNone when_none) {
  std::unique_ptr<Buffer> oldest;
  bool may_make = false;
  {
    MutexLock lock(mutex_);
    while (idle_.empty() && made_ == kMost) {
      if (when_none == WhenNone::kGiveUp) return Lent();
      given_back_.Wait(mutex_);
    }
    if (!idle_.empty()) {
      oldest = std::move(idle_.front());
      idle_.pop_front();
    }
    may_make = made_ < kMost;
    made_ += may_make ? 1 : 0;
  }
  if (!may_make) return Lend(std::move(oldest));
  absl::StatusOr<std::unique_ptr<Buffer>> made = nullptr;
  if (oldest == nullptr || !IsDone(*oldest)) made = Make();
  const bool is_new = made.ok() && *made != nullptr;
  if (!is_new || oldest != nullptr) {
    MutexLock lock(mutex_);
    if (!is_new) --made_;
    if (is_new) idle_.push_front(std::move(oldest));
  }
  given_back_.NotifyAll();
  if (is_new) return Lend(*std::move(made));
  if (oldest == nullptr) return made.status();
  return Lend(std::move(oldest));
}

absl::StatusOr<std::unique_ptr<CudaStaging::Buffer>> CudaStaging::Make() {
  auto buffer = std::make_unique<Buffer>();
  void* data = nullptr;
  if (driver_.MemHostAlloc(&data, kPiece.count(), CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS) {
    buffer->page_locked = true;
  } else {
    data = ::operator new(kPiece.count(), kPage, std::nothrow);
  }
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the machine has no ", FormatBytes(kPiece),
                                                     " of memory for a copy between devices and the host"));
  }
  buffer->data = static_cast<std::byte*>(data);
  return buffer;
}

bool CudaStaging::IsDone(const Buffer& buffer) const {
  return buffer.last == nullptr || driver_.EventQuery(*buffer.last) == CUDA_SUCCESS;
}

CudaStaging::Lent CudaStaging::Lend(std::unique_ptr<Buffer> buffer) {
  return Lent(buffer.release(), [this](Buffer* back) {
    {
      MutexLock lock(mutex_);
      idle_.emplace_back(back);
    }
    given_back_.NotifyAll();
  });
}

}  // namespace lgpu
