#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_TIMER_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_TIMER_H_

#include <memory>

#include "allocator/device/cuda/cuda_stream.h"
#include "allocator/device/stream_timer.h"

namespace lgpu {

/// Starts a timer on `stream` with two events of `events`, which must keep time. Each call makes the stream's
/// context current.
absl::StatusOr<std::unique_ptr<StreamTimer>> StartCudaTimer(const CudaDriver& driver, CudaEventPool& events,
                                                            std::shared_ptr<CudaStream> stream);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_TIMER_H_
