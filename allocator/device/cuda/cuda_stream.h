#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_STREAM_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_STREAM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/cuda/cuda_driver.h"
#include "base/mutex.h"

namespace lgpu {

/// A CudaContextScope makes a context current on the calling thread for its own lifetime. The program's own
/// context is current again afterwards.
class CudaContextScope {
 public:
  CudaContextScope(const CudaDriver& driver, CUcontext context);
  ~CudaContextScope();
  CudaContextScope(const CudaContextScope&) = delete;
  CudaContextScope& operator=(const CudaContextScope&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  bool pushed_ = false;
  absl::Status status_;
};

/// A CudaEventPool lends the events of one context. Thread-safe; it outlives what it lends. A scope of the
/// context is open during Take and the destructor.
class CudaEventPool {
 public:
  enum class Timing { kOff, kOn };
  CudaEventPool(const CudaDriver& driver, Timing timing) : driver_(driver), timing_(timing) {}
  ~CudaEventPool();
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  /// Goes back to the pool with its last owner.
  using Event = std::shared_ptr<const CUevent>;
  absl::StatusOr<Event> Take();
  /// Forgets all events without a call: for a forked child.
  void Forget();

 private:
  const CudaDriver& driver_;
  const Timing timing_;
  Mutex mutex_;
  std::vector<CUevent> idle_ ABSL_GUARDED_BY(mutex_);
};

/// A CudaStream is a stream of the driver with the sequence numbers of its fences. Every call but those of
/// fences needs a scope of its context. Thread-safe. The destructor does not wait for queued work.
///
/// A stream of the program's (Owner::kProgram) is not destroyed. Each of its fences is a new event, because
/// its work is not counted. Fences of CU_STREAM_PER_THREAD, whose meaning depends on the calling thread, are
/// recorded on the legacy stream, which waits for the default streams of all threads.
class CudaStream {
 public:
  enum class Owner { kLgpu, kProgram };
  CudaStream(const CudaDriver& driver, CudaEventPool& events, int device, CUcontext context, CUstream stream,
             Owner owner = Owner::kLgpu)
      : driver_(driver),
        events_(events),
        device_(device),
        context_(context),
        stream_(stream),
        owner_(owner) {}
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  int device() const { return device_; }
  CUcontext context() const { return context_; }
  CUstream get() const { return stream_; }

  /// Work was queued, so the next fence is a new one.
  void CountWork();
  /// A sequence number that passes when all work queued before is done.
  absl::StatusOr<std::uint64_t> Record();
  absl::StatusOr<bool> HasPassed(std::uint64_t sequence);
  absl::Status Wait(std::uint64_t sequence);
  /// Work queued on `waiter` after this waits for the fence of this stream.
  absl::Status MakeWait(CudaStream& waiter, std::uint64_t sequence);
  absl::Status Drain();

 private:
  struct Marker {
    std::uint64_t sequence = 0;
    CudaEventPool::Event event;  // null: it has passed
  };
  /// The first known event that does not pass before the fence.
  absl::StatusOr<Marker> Find(std::uint64_t sequence) const;
  void SetPassed(std::uint64_t sequence);

  const CudaDriver& driver_;
  CudaEventPool& events_;
  const int device_;
  const CUcontext context_;
  const CUstream stream_;
  const Owner owner_;
  mutable Mutex mutex_;
  std::uint64_t work_ ABSL_GUARDED_BY(mutex_) = 1;
  std::uint64_t recorded_work_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;  // sequence number given to a fence
  std::uint64_t passed_ ABSL_GUARDED_BY(mutex_) = 0;
  // By sequence number, which is taken before the event is recorded: a passed event is behind all work before
  // every fence with a smaller number.
  std::map<std::uint64_t, CudaEventPool::Event> pending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_STREAM_H_
