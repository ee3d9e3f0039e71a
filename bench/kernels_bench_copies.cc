// Copies between a GPU and the host, beside the driver's own of the same memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device/cuda/cuda_driver.h"
#include "bench/kernels_bench.h"
#include "client/runtime/tensor_buffer.h"
#include "lgpu/lgpu.h"
#include "lgpu/status.h"

namespace lgpu::bench {

namespace {

absl::Status Must(const char* call, CUresult result) {
  return result == CUDA_SUCCESS ? absl::OkStatus()
                                : absl::InternalError(std::string(call) + " gave " + std::to_string(result));
}

void WaitFor(const Tensor& tensor) { (void)internal::TensorBuffer::Of(tensor)->device().Synchronize(); }

/// The driver's calls on a stream of their own, with pageable memory, as a program has it.
class BareCopies {
 public:
  static absl::StatusOr<BareCopies> Open() {
    BareCopies bare;
    LGPU_ASSIGN_OR_RETURN(bare.cu_, CudaDriver::Open());
    LGPU_RETURN_IF_ERROR(
        Must("cuStreamCreate", bare.cu_.StreamCreateWithPriority(&bare.stream_, CU_STREAM_NON_BLOCKING, 0)));
    return bare;
  }
  BareCopies(BareCopies&& other) noexcept : cu_(other.cu_), stream_(std::exchange(other.stream_, nullptr)) {}
  ~BareCopies() {
    if (stream_ != nullptr) cu_.StreamDestroy(stream_);
  }
  void Up(std::byte* to, const std::vector<float>& from) {
    cu_.MemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(to), from.data(), from.size() * sizeof(float), stream_);
    cu_.StreamSynchronize(stream_);
  }
  void Down(std::vector<float>& to, const std::byte* from) {
    cu_.MemcpyDtoHAsync(to.data(), reinterpret_cast<CUdeviceptr>(from), to.size() * sizeof(float), stream_);
    cu_.StreamSynchronize(stream_);
  }

 private:
  BareCopies() = default;
  CudaDriver cu_{};
  CUstream stream_ = nullptr;
};

}  // namespace

absl::Status MeasureCopies(const Options& options, const Context& gpu) {
  LGPU_ASSIGN_OR_RETURN(BareCopies bare, BareCopies::Open());
  const std::int64_t elements = options.quick ? std::int64_t{1} << 18 : std::int64_t{64} << 20;
  std::vector<float> host(static_cast<std::size_t>(elements), 1.0F);
  const double gigabytes = static_cast<double>(elements) * sizeof(float) / 1e9;
  Heading("Copies of " + std::to_string(elements) + " floats beside the driver's, pageable memory", "GB/s");
  LGPU_ASSIGN_OR_RETURN(Tensor tensor, gpu.Constant<float>(Shape{elements}, host));
  WaitFor(tensor);
  std::byte* const data = internal::TensorBuffer::Of(tensor)->data();
  const auto upload = [&] { tensor = *gpu.Constant<float>(Shape{elements}, host); };
  const auto row = [&](const std::string& name, const Pair& seconds) {
    Row(name, gigabytes / seconds.ours, gigabytes / seconds.bare, seconds.bare / seconds.ours);
  };
  const Tensor kept = tensor;  // what the driver's copies write and read
  row("to the GPU", Compare(
                        options,
                        [&] {
                          upload();
                          WaitFor(tensor);
                        },
                        [&] { bare.Up(data, host); }));
  std::vector<float> back(host.size());
  row("from the GPU",
      Compare(
          options, [&] { kept.CopyToHost(back.data(), back.size() * sizeof(float)).IgnoreError(); },
          [&] { bare.Down(back, data); }));

  // A product and an upload: one after the other, and as a program queues them.
  const std::int64_t n = options.quick ? 64 : 8192;
  const float value = 1;
  LGPU_ASSIGN_OR_RETURN(const Tensor one, gpu.Constant<float>(Shape{}, std::span(&value, 1)));
  LGPU_ASSIGN_OR_RETURN(const Tensor factor, Fill(Shape{n, n}, one));
  absl::StatusOr<Tensor> product = MatMul(factor, factor);
  if (!product.ok()) return absl::OkStatus();  // no cuBLASLt: said elsewhere
  Heading("A product of " + std::to_string(n) + " floats and that upload", "ms");
  const Pair seconds = Compare(
      options,
      [&] {
        product = MatMul(factor, factor);
        upload();
        WaitFor(tensor);
      },
      [&] {
        product = MatMul(factor, factor);
        WaitFor(*product);
        upload();
        WaitFor(tensor);
      });
  Row("both at once, and one after the other", seconds.ours * 1e3, seconds.bare * 1e3,
      seconds.bare / seconds.ours);
  return absl::OkStatus();
}

}  // namespace lgpu::bench
