#include "allocator/device/cuda/cuda_timer.h"

#include <algorithm>
#include <utility>

#include "lgpu/status.h"

namespace lgpu {
namespace {

class CudaTimer final : public StreamTimer {
 public:
  CudaTimer(const CudaDriver& driver, std::shared_ptr<CudaStream> stream, CudaEventPool::Event start,
            CudaEventPool::Event end)
      : driver_(driver), stream_(std::move(stream)), start_(std::move(start)), end_(std::move(end)) {}

  absl::Status Stop() override {
    const CudaContextScope scope(driver_, stream_->context());
    LGPU_RETURN_IF_ERROR(scope.status());
    LGPU_RETURN_IF_ERROR(driver_.Check("cuEventRecord", driver_.EventRecord(*end_, stream_->get())));
    stream_->CountWork();  // a fence from here on is behind it
    stopped_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<std::chrono::nanoseconds>> Elapsed() override {
    if (!stopped_) return std::nullopt;
    const CudaContextScope scope(driver_, stream_->context());
    LGPU_RETURN_IF_ERROR(scope.status());
    float milliseconds = 0;
    const CUresult result = driver_.EventElapsedTime(&milliseconds, *start_, *end_);
    if (result == CUDA_ERROR_NOT_READY) return std::nullopt;
    LGPU_RETURN_IF_ERROR(driver_.Check("cuEventElapsedTime", result));
    constexpr float kNanosecondsPerMillisecond = 1e6F;
    return std::chrono::nanoseconds(
        static_cast<std::int64_t>(std::max(milliseconds, 0.0F) * kNanosecondsPerMillisecond));
  }

 private:
  const CudaDriver& driver_;
  const std::shared_ptr<CudaStream> stream_;
  const CudaEventPool::Event start_;
  const CudaEventPool::Event end_;
  bool stopped_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StreamTimer>> StartCudaTimer(const CudaDriver& driver, CudaEventPool& events,
                                                            std::shared_ptr<CudaStream> stream) {
  const CudaContextScope scope(driver, stream->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  LGPU_ASSIGN_OR_RETURN(CudaEventPool::Event start, events.Take());
  LGPU_ASSIGN_OR_RETURN(CudaEventPool::Event end, events.Take());
  LGPU_RETURN_IF_ERROR(driver.Check("cuEventRecord", driver.EventRecord(*start, stream->get())));
  return std::make_unique<CudaTimer>(driver, std::move(stream), std::move(start), std::move(end));
}

}  // namespace lgpu
