#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_STAGING_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_STAGING_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "allocator/device/cuda/cuda_driver.h"
#include "allocator/device/cuda/cuda_stream.h"
#include "base/mutex.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// CudaStaging lends pieces of host memory that copies go through: page-locked, so that the device reads and
/// writes them while the host goes on, and portable, so that all devices can. A few pieces are made, each
/// when it is first needed. Without page-locked memory they are ordinary memory, and copies are slower.
///
/// Thread-safe. Take and the destructor need a current context. The destructor runs when all pieces are back
/// and no device uses them.
class CudaStaging {
 public:
  static constexpr Bytes kPiece = Bytes(std::uint64_t{2} << 20);
  static constexpr int kMost = 8;

  struct Buffer {
    std::byte* data = nullptr;
    bool page_locked = false;
    CudaEventPool::Event last;  // of the device's last work with it; null: there is none
  };
  /// Goes back with its owner, which leaves in `last` the event that the next owner has to wait for.
  using Lent = std::unique_ptr<Buffer, std::function<void(Buffer*)>>;

  explicit CudaStaging(const CudaDriver& driver, Bytes piece = kPiece, int most = kMost)
      : driver_(driver), piece_(piece), most_(most) {}
  ~CudaStaging();
  CudaStaging(const CudaStaging&) = delete;
  CudaStaging& operator=(const CudaStaging&) = delete;

  /// Waits while all pieces are lent: a thread that holds one must not call it. RESOURCE_EXHAUSTED if the
  /// machine has no memory for a piece.
  absl::StatusOr<Lent> Take();
  /// Null where Take would wait or fail.
  Lent TryTake();

 private:
  enum class WhenNone { kWait, kGiveUp };
  absl::StatusOr<Lent> Take(WhenNone when_none);
  std::unique_ptr<Buffer> TakeDone(std::deque<std::unique_ptr<Buffer>>& idle) const;
  absl::StatusOr<std::unique_ptr<Buffer>> Make();
  Lent Lend(std::unique_ptr<Buffer> buffer);

  const CudaDriver& driver_;
  const Bytes piece_;
  const int most_;
  Mutex mutex_;
  CondVar given_back_;
  std::deque<std::unique_ptr<Buffer>> idle_ ABSL_GUARDED_BY(mutex_);  // by the time they came back
  int made_ ABSL_GUARDED_BY(mutex_) = 0;
  // One thread at a time holds the idle pieces, without the lock, and soon puts them back.
  bool looking_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_STAGING_H_
