#include "client/session/workspace.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lgpu {

namespace {

constexpr Bytes kMostWorkspace = 32_MiB;
constexpr Bytes kLeast = 128_KiB;    // no library does much with less
constexpr std::uint64_t kShare = 8;  // of the limit

}  // namespace

Workspace::Held::~Held() {
  const absl::Status freed = self.pool_.Free(block);
  LGPU_CHECK(freed.ok());
  const MutexLock lock(self.mutex_);
  --self.blocks_;
  self.freed_.NotifyAll();
}

Bytes Workspace::Size() const {
  const Bytes share = RoundDown(pool_.limit() / kShare, 4_KiB);
  return share < kLeast ? Bytes() : std::min(share, kMostWorkspace);
}

std::shared_ptr<const Block> Workspace::Take(Bytes at_least) {
  const Bytes size = Size();
  {
    const MutexLock lock(mutex_);
    if (shortages_ > 0) return nullptr;
    if (current_ != nullptr && current_->block.bytes >= at_least) {
      ++uses_;
      return Lend(current_);
    }
    if (pause_ > 0) {
      --pause_;
      return nullptr;
    }
    if (size < at_least || size.is_zero()) return nullptr;
    ++blocks_;
  }
  const absl::StatusOr<Block> block =
      pool_.Allocate(size, {.op = kOwner, .spare_only = true, .scratch = true});
  std::shared_ptr<Held> taken = block.ok() ? std::make_shared<Held>(*this, *block) : nullptr;
  std::shared_ptr<Held> last;  // too small since the limit rose, or another thread's
  const MutexLock lock(mutex_);
  if (taken == nullptr) {
    --blocks_;
    freed_.NotifyAll();
    StartPause();
    return nullptr;
  }
  if (shortages_ == 0) {
    last = std::exchange(current_, taken);
    uses_ = 1;
  }
  return Lend(taken);
}

// A workspace that is taken and freed often is of little use to its program and costs other programs memory.
void Workspace::StartPause() {
  const bool paid = uses_ >= 4 * static_cast<std::uint64_t>(next_pause_);
  pause_ = paid ? kPause : next_pause_;
  next_pause_ = std::min(pause_ * 2, kLongestPause);
  uses_ = 0;
}

Bytes Workspace::GiveUp() {
  std::shared_ptr<Held> last;
  {
    const MutexLock lock(mutex_);
    last = std::exchange(current_, nullptr);
    if (last != nullptr) StartPause();
  }
  return last == nullptr ? Bytes() : last->block.bytes;
}

Workspace::Shortage::Shortage(Workspace& of) : of_(of) {
  {
    const MutexLock lock(of_.mutex_);
    ++of_.shortages_;
  }
  of_.GiveUp();
  const MutexLock lock(of_.mutex_);
  while (of_.blocks_ > 0) of_.freed_.Wait(of_.mutex_);
}

Workspace::Shortage::~Shortage() {
  const MutexLock lock(of_.mutex_);
  --of_.shortages_;
}

}  // namespace lgpu
