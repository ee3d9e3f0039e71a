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
/// writes them while the host goes on, and portable, so that all devices can. There are a few of them in all,
/// made as they are needed; they are ordinary memory where the machine has no page-locked one, and copies are
/// slower then.
///
/// Thread-safe. A context is current on the thread that takes one. The destructor, which needs a context too,
/// runs when all are back and the devices are done with them.
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

  explicit CudaStaging(const CudaDriver& driver) : driver_(driver) {}
  ~CudaStaging();
  CudaStaging(const CudaStaging&) = delete;
  CudaStaging& operator=(const CudaStaging&) = delete;

  /// Waits while all are lent, which no borrower may do that holds one. RESOURCE_EXHAUSTED if the machine has
  /// no memory for any.
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
  Mutex mutex_;
  CondVar given_back_;
  std::deque<std::unique_ptr<Buffer>> idle_ ABSL_GUARDED_BY(mutex_);  // by the time they came back
  int made_ ABSL_GUARDED_BY(mutex_) = 0;
  // A thread has the idle ones in hand, and gives them back soon.
  bool looking_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_STAGING_H_
