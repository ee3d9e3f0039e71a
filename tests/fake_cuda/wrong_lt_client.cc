// A client of cuBLASLt that breaks the one rule that its argument names, and nothing else. With "none" it
// makes the correct calls of all of them, and breaks no rule.

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "allocator/device/cuda/cuda_driver.h"
#include "kernels/cuda/cublas_lt.h"
#include "tests/fake_cuda/wrong_clients.h"

namespace lgpu::fake_cuda {
namespace {

constexpr std::size_t kUnit = std::size_t{2} << 20;
constexpr std::uint64_t kSize = 256;  // of all matrices; such long sums take a workspace

#define MUST(call)                                                           \
  do {                                                                       \
    if (const auto result = (call); static_cast<int>(result) != 0) {         \
      std::fprintf(stderr, "%s gave %d\n", #call, static_cast<int>(result)); \
      std::exit(4);                                                          \
    }                                                                        \
  } while (false)

class Client {
 public:
  Client() {
    const absl::StatusOr<CudaDriver> driver = CudaDriver::Open();
    const absl::StatusOr<CublasLt> lt = CublasLt::Load(CublasLt::Files()[0]);
    if (!driver.ok() || !lt.ok()) std::exit(5);
    cu_ = *driver;
    lt_ = *lt;
    MUST(cu_.DevicePrimaryCtxRetain(&context_, 0));
    MUST(cu_.CtxPushCurrent(context_));
    MUST(cu_.StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    MUST(cu_.MemCreate(&memory_, kUnit, &properties, 0));
    MUST(cu_.MemAddressReserve(&base_, kUnit, 0, 0, 0));
    MUST(cu_.MemMap(base_, kUnit, 0, memory_, 0));
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    MUST(cu_.MemSetAccess(base_, kUnit, &access, 1));
    MUST(lt_.Create(&handle_));
    MUST(lt_.MatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    layout_ = Layout(CUDA_R_32F, kSize, kSize);
    MUST(lt_.MatmulPreferenceCreate(&preference_));
    const std::uint64_t workspace = kUnit / 4;
    MUST(lt_.MatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                          sizeof(workspace)));
  }

  void GiveBack(bool with_library = true) {
    MUST(cu_.StreamSynchronize(stream_));
    if (with_library) {
      MUST(lt_.MatmulPreferenceDestroy(preference_));
      MUST(lt_.MatrixLayoutDestroy(layout_));
      MUST(lt_.MatmulDescDestroy(operation_));
      MUST(lt_.Destroy(handle_));
    }
    MUST(cu_.MemUnmap(base_, kUnit));
    MUST(cu_.MemRelease(memory_));
    MUST(cu_.MemAddressFree(base_, kUnit));
    MUST(cu_.StreamDestroy(stream_));
    MUST(cu_.CtxPopCurrent(nullptr));
    MUST(cu_.DevicePrimaryCtxRelease(0));
  }

  void None() {
    MUST(Multiply({}));
    GiveBack();
  }
  void UnknownHandle() {
    Call call;
    call.second = Layout(CUDA_R_32F, kSize, kSize);
    MUST(lt_.MatrixLayoutDestroy(call.second));
    call.algorithm = Choose(layout_);
    Multiply(call);
    GiveBack();
  }
  void Shapes() { WithSecond(CUDA_R_32F, kSize - 1, kSize - 1); }
  void LeadingDimension() { WithSecond(CUDA_R_32F, kSize, kSize - 1); }
  void Types() { WithSecond(CUDA_R_16F, kSize, kSize); }
  void Alignment() {
    Call call;
    call.shift = 4;
    Multiply(call);
    GiveBack();
  }
  void Workspace() {
    Call call;
    call.workspace_bytes = 1024;
    Multiply(call);
    GiveBack();
  }
  void WorkspaceAlignment() {
    Call call;
    call.workspace_shift = 16;
    Multiply(call);
    GiveBack();
  }
  void NoContext() {
    MUST(cu_.CtxPopCurrent(nullptr));
    cublasLtHandle_t other = nullptr;
    lt_.Create(&other);
    MUST(cu_.CtxPushCurrent(context_));
    GiveBack();
  }
  void Leaked() { GiveBack(false); }

 private:
  struct Call {
    cublasLtMatrixLayout_t second = nullptr;  // null: the one of all
    const cublasLtMatmulAlgo_t* algorithm = nullptr;
    std::size_t shift = 0;
    std::size_t workspace_shift = 0;
    std::size_t workspace_bytes = kUnit / 4;
  };

  cublasLtMatrixLayout_t Layout(cudaDataType_t type, std::uint64_t rows, std::uint64_t leading) {
    cublasLtMatrixLayout_t layout = nullptr;
    MUST(lt_.MatrixLayoutCreate(&layout, type, rows, kSize, static_cast<std::int64_t>(leading)));
    return layout;
  }
  const cublasLtMatmulAlgo_t* Choose(cublasLtMatrixLayout_t second) {
    int found = 0;
    lt_.MatmulAlgoGetHeuristic(handle_, operation_, layout_, second, layout_, layout_, preference_, 1,
                               &chosen_, &found);
    return found == 1 ? &chosen_.algo : nullptr;
  }
  cublasStatus_t Multiply(const Call& call) {
    const cublasLtMatmulAlgo_t* const algorithm =
        call.algorithm != nullptr ? call.algorithm : Choose(layout_);
    const float one = 1;
    const float zero = 0;
    const auto at = [this](std::size_t offset) { return reinterpret_cast<void*>(base_ + offset); };
    void* const output = at(kUnit / 2);
    return lt_.Matmul(handle_, operation_, &one, at(call.shift), layout_, at(kUnit / 4),
                      call.second != nullptr ? call.second : layout_, &zero, output, layout_, output, layout_,
                      algorithm, at(kUnit / 4 * 3 + call.workspace_shift),
                      call.workspace_bytes - call.workspace_shift, stream_);
  }
  void WithSecond(cudaDataType_t type, std::uint64_t rows, std::uint64_t leading) {
    Call call;
    call.algorithm = Choose(layout_);
    call.second = Layout(type, rows, leading);
    Multiply(call);
    MUST(lt_.MatrixLayoutDestroy(call.second));
    GiveBack();
  }

  CudaDriver cu_;
  CublasLt lt_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUmemGenericAllocationHandle memory_ = 0;
  CUdeviceptr base_ = 0;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
};

const Wrongs<Client> kWrongs = {
    {"none", &Client::None},
    {"lt-unknown-handle", &Client::UnknownHandle},
    {"lt-shapes", &Client::Shapes},
    {"lt-leading-dimension", &Client::LeadingDimension},
    {"lt-types", &Client::Types},
    {"lt-alignment", &Client::Alignment},
    {"lt-workspace", &Client::Workspace},
    {"lt-workspace/alignment", &Client::WorkspaceAlignment},
    {"no-context/lt", &Client::NoContext},
    {"lt-leaked", &Client::Leaked},
};

}  // namespace
}  // namespace lgpu::fake_cuda

int main(int argc, char** argv) { return lgpu::fake_cuda::RunWrong(lgpu::fake_cuda::kWrongs, argc, argv); }
