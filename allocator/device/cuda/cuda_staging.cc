#include "allocator/device/cuda/cuda_staging.h"

#include <algorithm>
#include <iterator>
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
CudaStaging::Lent CudaStaging::TryTake() { return Take(WhenNone::kGiveUp).value_or(Lent()); }

// Takes an idle buffer that the device has finished with; else makes one, up to the limit; else takes the one
// that came back first. Asks the driver without the lock, with all idle buffers in hand.
absl::StatusOr<CudaStaging::Lent> CudaStaging::Take(WhenNone when_none) {
  std::deque<std::unique_ptr<Buffer>> idle;
  bool may_make = false;
  {
    MutexLock lock(mutex_);
    while (looking_ || (idle_.empty() && made_ == most_)) {
      if (!looking_ && when_none == WhenNone::kGiveUp) return Lent();
      given_back_.Wait(mutex_);
    }
    looking_ = true;
    idle.swap(idle_);
    may_make = made_ < most_;
    made_ += may_make ? 1 : 0;
  }
  std::unique_ptr<Buffer> taken = TakeDone(idle);
  absl::Status status;
  bool is_new = false;
  if (taken == nullptr && may_make) {
    absl::StatusOr<std::unique_ptr<Buffer>> made = Make();
    is_new = made.ok();
    status = made.status();
    if (is_new) taken = *std::move(made);
  }
  if (taken == nullptr && !idle.empty()) {
    taken = std::move(idle.front());
    idle.pop_front();
  }
  {
    MutexLock lock(mutex_);
    looking_ = false;
    made_ -= may_make && !is_new ? 1 : 0;
    idle_.insert(idle_.begin(), std::make_move_iterator(idle.begin()), std::make_move_iterator(idle.end()));
  }
  given_back_.NotifyAll();
  if (taken == nullptr) return status;
  return Lend(std::move(taken));
}

std::unique_ptr<CudaStaging::Buffer> CudaStaging::TakeDone(std::deque<std::unique_ptr<Buffer>>& idle) const {
  const auto done = std::find_if(idle.begin(), idle.end(), [this](const std::unique_ptr<Buffer>& buffer) {
    return buffer->last == nullptr || driver_.EventQuery(*buffer->last) == CUDA_SUCCESS;
  });
  if (done == idle.end()) return nullptr;
  std::unique_ptr<Buffer> taken = std::move(*done);
  idle.erase(done);
  return taken;
}

absl::StatusOr<std::unique_ptr<CudaStaging::Buffer>> CudaStaging::Make() {
  auto buffer = std::make_unique<Buffer>();
  void* data = nullptr;
  if (driver_.MemHostAlloc(&data, piece_.count(), CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS) {
    buffer->page_locked = true;
  } else {
    data = ::operator new(piece_.count(), kPage, std::nothrow);
  }
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the machine has no ", FormatBytes(piece_),
                                                     " of memory for a copy between devices and the host"));
  }
  buffer->data = static_cast<std::byte*>(data);
  return buffer;
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
