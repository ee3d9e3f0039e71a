// The part of kernels_bench that needs a GPU. One file past the usual length: one list of cases
// serves all kernels.

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/device/cuda/cuda_driver.h"
#include "allocator/device/cuda/cuda_image.h"
#include "bench/kernels_bench.h"
#include "client/runtime/tensor_buffer.h"
#include "kernels/bodies/add_n.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/packing.h"
#include "lgpu/lgpu.h"
#include "lgpu/status.h"

namespace lgpu::bench {

namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;

absl::Status Must(const char* call, CUresult result) {
  return result == CUDA_SUCCESS ? absl::OkStatus()
                                : absl::InternalError(std::string(call) + " gave " + std::to_string(result));
}

/// The driver and cuBLASLt as a program without lgpu uses them: memory of cuMemAlloc, one stream.
class Bare {
 public:
  static absl::StatusOr<std::unique_ptr<Bare>> Open() {
    auto bare = std::make_unique<Bare>();
    LGPU_ASSIGN_OR_RETURN(bare->cu_, CudaDriver::Open());
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
    bare->allocate_ = reinterpret_cast<PFN_cuMemAlloc_v3020>(::dlsym(library, "cuMemAlloc_v2"));
    bare->free_ = reinterpret_cast<PFN_cuMemFree_v3020>(::dlsym(library, "cuMemFree_v2"));
    LGPU_RETURN_IF_ERROR(
        Must("cuDevicePrimaryCtxRetain", bare->cu_.DevicePrimaryCtxRetain(&bare->context_, 0)));
    LGPU_RETURN_IF_ERROR(Must("cuCtxPushCurrent", bare->cu_.CtxPushCurrent(bare->context_)));
    LGPU_RETURN_IF_ERROR(Must("cuStreamCreate",
                              bare->cu_.StreamCreateWithPriority(&bare->stream_, CU_STREAM_NON_BLOCKING, 0)));
    bare->OpenCublasLt();
    return bare;
  }
  Bare() = default;
  ~Bare() {
    for (const CUdeviceptr memory : taken_) free_(memory);
    if (lt_) lt_->Destroy(handle_);
    if (module_ != nullptr) cu_.ModuleUnload(module_);
    if (stream_ != nullptr) cu_.StreamDestroy(stream_);
    CUcontext popped = nullptr;
    if (context_ != nullptr) {
      cu_.CtxPopCurrent(&popped);
      cu_.DevicePrimaryCtxRelease(0);
    }
  }
  Bare(const Bare&) = delete;
  Bare& operator=(const Bare&) = delete;

  /// Null where the driver has no such call (the fake one).
  std::byte* Take(std::size_t bytes) {
    CUdeviceptr memory = 0;
    if (allocate_ == nullptr || allocate_(&memory, bytes) != CUDA_SUCCESS) return nullptr;
    taken_.push_back(memory);
    return reinterpret_cast<std::byte*>(memory);
  }
  void FreeAll() {
    for (const CUdeviceptr memory : taken_) free_(memory);
    taken_.clear();
  }
  void Wait() const { cu_.StreamSynchronize(stream_); }
  const std::optional<CublasLt>& lt() const { return lt_; }
  cublasLtHandle_t handle() const { return handle_; }
  CUstream stream() const { return stream_; }
  const CudaDriver& cu() const { return cu_; }
  void Copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    cu_.MemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                        stream_);
  }
  absl::StatusOr<CUfunction> Function(const DeviceKernel& kernel) {
    if (module_ == nullptr) {
      LGPU_RETURN_IF_ERROR(Must("cuModuleLoadData", LoadImage(cu_, *kernel.image, &module_)));
    }
    CUfunction function = nullptr;
    LGPU_RETURN_IF_ERROR(Must("cuModuleGetFunction", cu_.ModuleGetFunction(&function, module_, kernel.name)));
    return function;
  }

 private:
  void OpenCublasLt() {
    for (const std::string& file : CublasLt::Files()) {
      absl::StatusOr<CublasLt> lt = CublasLt::Load(file);
      if (!lt.ok() || lt->Create(&handle_) != CUBLAS_STATUS_SUCCESS) continue;
      lt_ = *std::move(lt);
      return;
    }
  }

  CudaDriver cu_;
  std::optional<CublasLt> lt_;
  cublasLtHandle_t handle_ = nullptr;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUmodule module_ = nullptr;
  PFN_cuMemAlloc_v3020 allocate_ = nullptr;
  PFN_cuMemFree_v3020 free_ = nullptr;
  std::vector<CUdeviceptr> taken_;
};

/// A square row-major product with the algorithm that is fastest of those that cuBLASLt proposes.
class BareMatMul {
 public:
  BareMatMul(Bare& bare, DType dtype, std::int64_t n, std::byte* workspace)
      : bare_(bare), lt_(*bare.lt()), workspace_(workspace) {
    const cudaDataType_t type = dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
    const auto size = static_cast<std::uint64_t>(n);
    lt_.MatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    lt_.MatrixLayoutCreate(&layout_, type, size, size, n);
  }
  ~BareMatMul() {
    lt_.MatrixLayoutDestroy(layout_);
    lt_.MatmulDescDestroy(operation_);
  }
  BareMatMul(const BareMatMul&) = delete;
  BareMatMul& operator=(const BareMatMul&) = delete;

  absl::Status Choose(const std::byte* a, const std::byte* b, std::byte* c) {
    constexpr int kAsked = 8;
    cublasLtMatmulPreference_t preference = nullptr;
    lt_.MatmulPreferenceCreate(&preference);
    const std::uint64_t most = workspace_ == nullptr ? 0 : kWorkspace;
    lt_.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                     sizeof(most));
    cublasLtMatmulHeuristicResult_t proposed[kAsked] = {};
    int found = 0;
    lt_.MatmulAlgoGetHeuristic(bare_.handle(), operation_, layout_, layout_, layout_, layout_, preference,
                               kAsked, proposed, &found);
    lt_.MatmulPreferenceDestroy(preference);
    double best = 0;
    for (int i = 0; i < found; ++i) {
      chosen_ = proposed[i];
      Queue(a, b, c);
      bare_.Wait();
      const double seconds = Seconds([&] {
        for (int k = 0; k < 3; ++k) Queue(a, b, c);
        bare_.Wait();
      });
      if (i == 0 || seconds < best) {
        best = seconds;
        fastest_ = proposed[i];
      }
    }
    chosen_ = fastest_;
    return found > 0 ? absl::OkStatus() : absl::InternalError("cuBLASLt proposes nothing");
  }
  void Queue(const std::byte* a, const std::byte* b, std::byte* c) {
    const float one = 1;
    const float zero = 0;
    lt_.Matmul(bare_.handle(), operation_, &one, b, layout_, a, layout_, &zero, c, layout_, c, layout_,
               &chosen_.algo, workspace_, chosen_.workspaceSize, bare_.stream());
  }

 private:
  Bare& bare_;
  const CublasLt& lt_;
  std::byte* const workspace_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{}, fastest_{};
};

class GpuBench {
 public:
  GpuBench(const Options& options, const Context& gpu, Bare& bare)
      : options_(options), gpu_(gpu), bare_(bare) {}

  absl::Status Run() {
    // At the top, because readers of a report start there.
    std::printf("cuBLASLt: %s\n",
                bare_.lt() ? bare_.lt()->file.c_str() : "NONE THAT WORKS, SO THERE IS NO ROW OF MATMUL");
    LGPU_RETURN_IF_ERROR(AddNBandwidth());
    LGPU_RETURN_IF_ERROR(MovesBandwidth());
    LGPU_RETURN_IF_ERROR(ReductionsBandwidth());
    LGPU_RETURN_IF_ERROR(SmallAddN());
    if (!bare_.lt()) return absl::OkStatus();
    LGPU_RETURN_IF_ERROR(SmallMatMul());
    return LargeMatMul();
  }

 private:
  absl::StatusOr<Tensor> Zeros(DType dtype, const Shape& shape) const {
    const std::uint64_t zero = 0;
    LGPU_ASSIGN_OR_RETURN(
        const Tensor value,
        gpu_.ConstantBytes(dtype, Shape{}, {reinterpret_cast<const std::byte*>(&zero), ElementBytes(dtype)}));
    return Fill(shape, value);
  }
  static std::byte* DataOf(const Tensor& tensor) { return internal::TensorBuffer::Of(tensor)->data(); }
  static void WaitFor(const Tensor& tensor) {
    (void)internal::TensorBuffer::Of(tensor)->device().Synchronize();
  }

  absl::Status AddNBandwidth() {
    const std::int64_t elements = options_.quick ? 4096 : std::int64_t{64} << 20;
    Heading("AddN of " + std::to_string(elements) + " floats beside a copy", "GB/s");
    for (const std::size_t count : {2, 8}) {
      std::vector<Tensor> inputs;
      for (std::size_t i = 0; i < count; ++i) {
        LGPU_ASSIGN_OR_RETURN(const Tensor input, Zeros(DType::kFloat32, {elements}));
        inputs.push_back(input);
      }
      const std::size_t each = static_cast<std::size_t>(elements) * sizeof(float);
      LGPU_ASSIGN_OR_RETURN(Tensor sum, AddN(inputs));
      WaitFor(sum);
      const auto ours = [&] {
        sum = *AddN(inputs);
        WaitFor(sum);
      };
      // As many bytes as all inputs and the output, half of them read.
      const auto bare = [&] {
        for (std::size_t i = 0; i + 1 < count + 1; i += 2) bare_.Copy(DataOf(sum), DataOf(inputs[i]), each);
        if (count % 2 == 0) bare_.Copy(DataOf(sum), DataOf(inputs[0]), each / 2);
        bare_.Wait();
      };
      const Pair seconds = Compare(options_, ours, bare);
      const double gigabytes = static_cast<double>((count + 1) * each) / 1e9;
      Row("AddN of " + std::to_string(count) + " (goal 0.92)", gigabytes / seconds.ours,
          gigabytes / seconds.bare, seconds.bare / seconds.ours);
    }
    return absl::OkStatus();
  }

  /// Transpose and Cast, beside a copy on the device of as many bytes.
  absl::Status MovesBandwidth() {
    Heading("Transpose and Cast beside a copy", "GB/s");
    const std::int64_t size = options_.quick ? 64 : 8192;
    for (const DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
      const std::string name(DTypeName(dtype));
      LGPU_ASSIGN_OR_RETURN(const Tensor square, Zeros(dtype, {size, size}));
      LGPU_RETURN_IF_ERROR(
          OneMove("Transpose of a matrix of " + name, square, [&] { return Transpose(square); }));
      LGPU_ASSIGN_OR_RETURN(const Tensor batch, Zeros(dtype, {16, size / 16, size}));
      LGPU_RETURN_IF_ERROR(OneMove("Transpose of a batch of " + name, batch, [&] {
        return Transpose(batch, std::vector<int>{0, 2, 1});
      }));
    }
    const std::pair<DType, DType> casts[] = {{DType::kFloat32, DType::kFloat16},
                                             {DType::kBFloat16, DType::kFloat32},
                                             {DType::kFloat32, DType::kInt32}};
    for (const auto& [from, to] : casts) {
      LGPU_ASSIGN_OR_RETURN(const Tensor input, Zeros(from, {size, size}));
      LGPU_RETURN_IF_ERROR(
          OneMove("Cast " + std::string(DTypeName(from)) + " to " + std::string(DTypeName(to)), input,
                  [&, to = to] { return Cast(input, to); }));
    }
    return absl::OkStatus();
  }

  /// Sums read what a copy of half as much reads and writes; the softmax reads and writes as much as a copy.
  absl::Status ReductionsBandwidth() {
    Heading("Sum, Mean and softmax beside a copy", "GB/s");
    const std::int64_t size = options_.quick ? 64 : 8192;
    for (const DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
      const std::string name(DTypeName(dtype));
      LGPU_ASSIGN_OR_RETURN(const Tensor square, Zeros(dtype, {size, size}));
      LGPU_RETURN_IF_ERROR(OneMove("Sum of all " + name, square, [&] { return ReduceSum(square); }));
      for (const int axis : {0, 1}) {
        LGPU_RETURN_IF_ERROR(OneMove(std::string("Mean of each ") + (axis == 0 ? "column, " : "row, ") + name,
                                     square, [&] { return ReduceMean(square, {.axes = {{axis}}}); }));
      }
    }
    for (const std::int64_t classes : {std::int64_t{10}, std::int64_t{1000}, size}) {
      const std::int64_t rows = size * size / classes;
      LGPU_ASSIGN_OR_RETURN(const Tensor logits, Zeros(DType::kFloat32, {rows, classes}));
      LGPU_ASSIGN_OR_RETURN(const Tensor labels, Zeros(DType::kInt32, {rows}));
      LGPU_RETURN_IF_ERROR(OneMove("softmax of " + std::to_string(classes) + " classes, float32", logits,
                                   [&]() -> absl::StatusOr<Tensor> {
                                     LGPU_ASSIGN_OR_RETURN(
                                         const CrossEntropy result,
                                         SparseSoftmaxCrossEntropyWithLogits(logits, labels));
                                     return result.backprop;
                                   }));
    }
    return absl::OkStatus();
  }

  absl::Status OneMove(const std::string& name, const Tensor& input,
                       const std::function<absl::StatusOr<Tensor>()>& move) {
    LGPU_ASSIGN_OR_RETURN(Tensor output, move());
    WaitFor(output);
    const auto bytes = [](const Tensor& tensor) {
      return static_cast<std::size_t>(tensor.shape().elements()) * ElementBytes(tensor.dtype());
    };
    const auto ours = [&] {
      output = *move();
      WaitFor(output);
    };
    // A copy reads half of its bytes; the wider one of the two tensors has them.
    const std::size_t all = bytes(input) + bytes(output);
    const bool widens = bytes(output) > bytes(input);
    LGPU_ASSIGN_OR_RETURN(const Tensor other, Zeros(widens ? output.dtype() : input.dtype(), input.shape()));
    const auto bare = [&] {
      bare_.Copy(DataOf(other), DataOf(widens ? output : input), all / 2);
      bare_.Wait();
    };
    const Pair seconds = Compare(options_, ours, bare);
    const double gigabytes = static_cast<double>(all) / 1e9;
    Row(name, gigabytes / seconds.ours, gigabytes / seconds.bare, seconds.bare / seconds.ours);
    return absl::OkStatus();
  }

  /// Microseconds of the host for each of many calls, which are waited for only at the end.
  Pair HostTime(const std::function<void()>& ours, const std::function<void()>& bare,
                const Tensor& any) const {
    const int calls = options_.quick ? 10 : 500;  // fewer than the driver queues without waiting
    const auto many = [&](const std::function<void()>& call) {
      return [&call, calls] {
        for (int i = 0; i < calls; ++i) call();
      };
    };
    std::vector<double> of_ours;
    std::vector<double> of_bare;
    for (int i = 0; i < (options_.quick ? 3 : 15); ++i) {
      of_bare.push_back(Seconds(many(bare)));
      bare_.Wait();
      of_ours.push_back(Seconds(many(ours)));
      WaitFor(any);
    }
    std::sort(of_ours.begin(), of_ours.end());
    std::sort(of_bare.begin(), of_bare.end());
    const double scale = 1e6 / calls;
    return {of_ours[of_ours.size() / 2] * scale, of_bare[of_bare.size() / 2] * scale};
  }

  absl::Status SmallAddN() {
    Heading("Host time of a small op beside a bare launch", "us");
    LGPU_ASSIGN_OR_RETURN(const Tensor a, Zeros(DType::kFloat32, {2, 2}));
    const std::vector<Tensor> inputs = {a, a};
    LGPU_ASSIGN_OR_RETURN(Tensor sum, AddN(inputs));
    code::AddNFew parameters{};
    parameters.output = DataOf(sum);
    parameters.count = 2;
    parameters.inputs[0] = parameters.inputs[1] = DataOf(a);
    parameters.packing = Alignment(DataOf(sum)).Split(4, sizeof(float));
    const DeviceKernel* const kernel = AddNKernel(DType::kFloat32, false);
    LGPU_ASSIGN_OR_RETURN(const CUfunction function, bare_.Function(*kernel));
    std::size_t size = sizeof(parameters);
    const auto bare = [&] {
      void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                       CU_LAUNCH_PARAM_END};
      bare_.cu().LaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, bare_.stream(), nullptr, extra);
    };
    const Pair us = HostTime([&] { sum = *AddN(inputs); }, bare, sum);
    Row("AddN of two 2x2 (goal: 2 us more)", us.ours, us.bare, us.ours / us.bare);
    return absl::OkStatus();
  }

  absl::Status SmallMatMul() {
    LGPU_ASSIGN_OR_RETURN(const Tensor a, Zeros(DType::kFloat32, {16, 16}));
    LGPU_ASSIGN_OR_RETURN(Tensor product, MatMul(a, a));
    LGPU_ASSIGN_OR_RETURN(const Tensor other, Zeros(DType::kFloat32, {16, 16}));
    BareMatMul bare(bare_, DType::kFloat32, 16, nullptr);
    LGPU_RETURN_IF_ERROR(bare.Choose(DataOf(a), DataOf(a), DataOf(other)));
    const Pair us = HostTime([&] { product = *MatMul(a, a); },
                             [&] { bare.Queue(DataOf(a), DataOf(a), DataOf(other)); }, product);
    Row("MatMul of 16x16 (goal: 2 us more)", us.ours, us.bare, us.ours / us.bare);
    return absl::OkStatus();
  }

  absl::Status LargeMatMul() {
    Heading("MatMul beside bare cuBLASLt, its fastest of 8, 32 MiB workspace", "TFLOP/s");
    std::vector<std::int64_t> sizes = {4096, 8192};
    if (options_.quick) sizes = {64};
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      for (const std::int64_t n : sizes) LGPU_RETURN_IF_ERROR(OneMatMul(dtype, n));
    }
    return absl::OkStatus();
  }

  absl::Status OneMatMul(DType dtype, std::int64_t n) {
    const std::size_t bytes = static_cast<std::size_t>(n * n) * ElementBytes(dtype);
    // Typical numbers: zeros take less power, and a card that may use more of it runs faster.
    std::vector<std::byte> numbers(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      const auto random = static_cast<unsigned>((i * 0x9e3779b97f4a7c15U) >> 40);
      const bool exponent = i % ElementBytes(dtype) + 1 == ElementBytes(dtype);
      numbers[i] = static_cast<std::byte>(exponent ? 0x3eU + (random & 0x81U) : random & 0xffU);
    }
    LGPU_ASSIGN_OR_RETURN(const Tensor a, gpu_.ConstantBytes(dtype, Shape{n, n}, numbers));
    LGPU_ASSIGN_OR_RETURN(const Tensor b, gpu_.ConstantBytes(dtype, Shape{n, n}, numbers));
    LGPU_ASSIGN_OR_RETURN(Tensor product, MatMul(a, b));
    WaitFor(product);
    std::byte* own[4] = {};
    for (int i = 0; i < 4; ++i) own[i] = bare_.Take(i == 3 ? kWorkspace : bytes);
    const std::string name = std::string(DTypeName(dtype)) + " " + std::to_string(n);
    if (own[3] == nullptr) {
      std::printf("%-44s this driver has no cuMemAlloc\n", name.c_str());
      return absl::OkStatus();
    }
    bare_.Copy(own[0], DataOf(a), bytes);
    bare_.Copy(own[1], DataOf(b), bytes);
    bare_.Wait();
    BareMatMul bare(bare_, dtype, n, own[3]);
    LGPU_RETURN_IF_ERROR(bare.Choose(own[0], own[1], own[2]));
    const auto on_own = [&] {
      bare.Queue(own[0], own[1], own[2]);
      bare_.Wait();
    };
    const auto ours = [&] {
      product = *MatMul(a, b);
      WaitFor(product);
    };
    const double flops = 2e-12 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    const Pair whole = Compare(options_, ours, on_own);
    Row(name + " (goal 0.99)", flops / whole.ours, flops / whole.bare, whole.bare / whole.ours);
    const auto on_grants = [&] {
      bare.Queue(DataOf(a), DataOf(b), DataOf(product));
      bare_.Wait();
    };
    const Pair memory = Compare(options_, on_grants, on_own);
    Row(name + ", bare on memory of grants (goal 0.99)", flops / memory.ours, flops / memory.bare,
        memory.bare / memory.ours);
    bare_.FreeAll();
    return absl::OkStatus();
  }

  const Options& options_;
  const Context& gpu_;
  Bare& bare_;
};

}  // namespace

bool MeasureGpu(const Options& options) {
  absl::StatusOr<std::unique_ptr<Bare>> bare = Bare::Open();
  if (!bare.ok()) {
    std::printf("%s\n", std::string(bare.status().message()).c_str());
    return !options.needs_gpu;
  }
  const absl::StatusOr<Context> gpu = Context::Create({.endpoint = "local", .cast_on_gpu = true});
  absl::Status status = gpu.status();
  if (status.ok()) status = GpuBench(options, *gpu, **bare).Run();
  if (status.ok()) status = MeasureCopies(options, *gpu);
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  return status.ok();
}

}  // namespace lgpu::bench
