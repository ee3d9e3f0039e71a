#include "kernels/cuda/cublas_lt_matmul.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/op.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu {

namespace {

constexpr std::uint64_t kMostAlignment = 256;

std::uint32_t AlignmentOf(const std::byte* pointer) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(pointer) | kMostAlignment;
  return static_cast<std::uint32_t>(address & -address);
}

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

/// The type in which products are summed: half and bfloat16 in float.
cublasComputeType_t ComputeOf(DType dtype, bool tensor_float_32) {
  if (dtype == DType::kFloat64) return CUBLAS_COMPUTE_64F;
  return dtype == DType::kFloat32 && tensor_float_32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

}  // namespace

/// Gives a descriptor of the library back.
template <typename T>
struct CublasLtMatMul::Owned {
  Owned(const Opened& of, cublasStatus_t (*destroy_with)(T)) : opened(of), destroy(destroy_with) {}
  ~Owned() {
    if (value != nullptr && opened.IsCallable()) destroy(value);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T value = nullptr;
  const Opened& opened;
  cublasStatus_t (*destroy)(T);
};

/// The library's objects for a product, with the chosen algorithm.
struct CublasLtMatMul::Plan {
  explicit Plan(const Opened& opened)
      : operation(opened, opened.lt.MatmulDescDestroy),
        first(opened, opened.lt.MatrixLayoutDestroy),
        second(opened, opened.lt.MatrixLayoutDestroy),
        output(opened, opened.lt.MatrixLayoutDestroy) {}
  Owned<cublasLtMatmulDesc_t> operation;
  Owned<cublasLtMatrixLayout_t> first, second, output;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
};

std::unique_ptr<MatMulLibrary> MatMulLibrary::Make(const Options& options) {
  return std::make_unique<CublasLtMatMul>(options);
}

CublasLtMatMul::~CublasLtMatMul() {
  const MutexLock lock(mutex_);
  plans_.clear();  // before the handle
}

void CublasLtMatMul::Abandon() {
  const MutexLock lock(opening_);
  if (opened_owner_ != nullptr) opened_owner_->abandoned = true;
}

CublasLtMatMul::Opened::~Opened() {
  if (handle != nullptr && IsCallable()) lt.Destroy(handle);
}

absl::Status CublasLtMatMul::Open(const LibraryCall& call, std::span<std::byte> scratch) {
  return Library(call, scratch).status();
}

absl::StatusOr<const CublasLtMatMul::Opened*> CublasLtMatMul::Library(const LibraryCall& call,
                                                                      std::span<std::byte> scratch) {
  if (const Opened* const known = opened_.load(std::memory_order_acquire); known != nullptr) return known;
  const MutexLock lock(opening_);
  if (opened_owner_ != nullptr) return opened_owner_.get();
  LGPU_RETURN_IF_ERROR(missing_);
  absl::StatusOr<std::unique_ptr<const Opened>> opened = OpenAny(call, scratch);
  if (absl::IsFailedPrecondition(opened.status())) missing_ = opened.status();
  LGPU_RETURN_IF_ERROR(opened.status());
  opened_owner_ = *std::move(opened);
  opened_.store(opened_owner_.get(), std::memory_order_release);
  return opened_owner_.get();
}

// FAILED_PRECONDITION: the file is missing, or does not work on this machine; another one may.
absl::StatusOr<std::unique_ptr<const CublasLtMatMul::Opened>> CublasLtMatMul::OpenFile(
    const std::string& file, const LibraryCall& call, std::span<std::byte> scratch) const {
  LGPU_ASSIGN_OR_RETURN(CublasLt lt, CublasLt::Load(file));
  auto opened = std::make_unique<Opened>(std::move(lt));
  const cublasStatus_t created = opened->lt.Create(&opened->handle);
  absl::Status status = opened->lt.Check("cublasLtCreate", created);
  // A library too new for the driver does not start. A library too old for the GPU may start, and have no
  // code for it, or code that the driver does not take.
  if (status.ok()) status = Try(*opened, call, scratch);
  if (created == CUBLAS_STATUS_NOT_INITIALIZED || absl::IsUnimplemented(status)) {
    return absl::FailedPreconditionError(status.message());
  }
  LGPU_RETURN_IF_ERROR(status);
  return std::unique_ptr<const Opened>(std::move(opened));
}

absl::Status CublasLtMatMul::Try(const Opened& opened, const LibraryCall& call,
                                 std::span<std::byte> scratch) const {
  constexpr std::int64_t kSize = 64;
  constexpr std::size_t kBytes = kSize * kSize * sizeof(float);
  static_assert(3 * kBytes == kScratchBytes);
  const MatMulKey any = {.dtype = DType::kFloat32,
                         .m = kSize,
                         .n = kSize,
                         .k = kSize,
                         .align_a = kMostAlignment,
                         .align_b = kMostAlignment,
                         .align_output = kMostAlignment};
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<const Plan> plan, MakePlan(opened, any));
  if (scratch.empty()) return absl::OkStatus();
  const MatMulProblem problem = {.dtype = DType::kFloat32,
                                 .m = kSize,
                                 .n = kSize,
                                 .k = kSize,
                                 .a = scratch.data(),
                                 .b = scratch.data() + kBytes,
                                 .output = scratch.data() + 2 * kBytes};
  const absl::Status status = Queue(opened, *plan, problem, {}, call.stream);
  // FAILED_PRECONDITION for every reason: another file may work; if none does, the error lists all reasons.
  return status.ok() ? status : absl::FailedPreconditionError(status.message());
}

absl::StatusOr<std::unique_ptr<const CublasLtMatMul::Opened>> CublasLtMatMul::OpenAny(
    const LibraryCall& call, std::span<std::byte> scratch) const {
  std::string tried;
  for (const std::string& file : CublasLt::Files()) {
    absl::StatusOr<std::unique_ptr<const Opened>> opened = OpenFile(file, call, scratch);
    if (!absl::IsFailedPrecondition(opened.status())) return opened;
    absl::StrAppend(&tried, tried.empty() ? "" : "; ", opened.status().message());
  }
  return absl::FailedPreconditionError(
      absl::StrCat("MatMul on a GPU needs NVIDIA's cuBLASLt, and there is none that works: ", tried,
                   ". Install it (libcublas of the CUDA toolkit, or Debian's libcublaslt11), put its folder "
                   "into LD_LIBRARY_PATH, or ask for the CPU"));
}

absl::StatusOr<std::shared_ptr<const CublasLtMatMul::Plan>> CublasLtMatMul::FindPlan(const Opened& opened,
                                                                                     const MatMulKey& key) {
  {
    const MutexLock lock(mutex_);
    if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
  }
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan, MakePlan(opened, key));
  const MutexLock lock(mutex_);
  if (plans_.size() >= kMostPlans) plans_.clear();
  plans_.emplace(key, plan);
  return plan;
}

// A row-major matrix is a column-major one transposed, so the operands change places: C' = B' x A'.
absl::StatusOr<std::shared_ptr<const CublasLtMatMul::Plan>> CublasLtMatMul::MakePlan(
    const Opened& opened, const MatMulKey& key) const {
  const CublasLt& lt = opened.lt;
  const cudaDataType_t type = TypeOf(key.dtype);
  auto plan = std::make_shared<Plan>(opened);
  const cudaDataType_t scale = key.dtype == DType::kFloat64 ? CUDA_R_64F : CUDA_R_32F;
  LGPU_RETURN_IF_ERROR(lt.Check(
      "cublasLtMatmulDescCreate",
      lt.MatmulDescCreate(&plan->operation.value, ComputeOf(key.dtype, options_.tensor_float_32), scale)));
  const auto transpose = [&](cublasLtMatmulDescAttributes_t which, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    return lt.Check("cublasLtMatmulDescSetAttribute",
                    lt.MatmulDescSetAttribute(plan->operation.value, which, &operation, sizeof(operation)));
  };
  LGPU_RETURN_IF_ERROR(transpose(CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b));
  LGPU_RETURN_IF_ERROR(transpose(CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a));
  const auto layout = [&](cublasLtMatrixLayout_t* made, std::int64_t rows, std::int64_t columns) {
    return lt.Check("cublasLtMatrixLayoutCreate",
                    lt.MatrixLayoutCreate(made, type, static_cast<std::uint64_t>(rows),
                                          static_cast<std::uint64_t>(columns), rows));
  };
  LGPU_RETURN_IF_ERROR(
      layout(&plan->first.value, key.transpose_b ? key.k : key.n, key.transpose_b ? key.n : key.k));
  LGPU_RETURN_IF_ERROR(
      layout(&plan->second.value, key.transpose_a ? key.m : key.k, key.transpose_a ? key.k : key.m));
  LGPU_RETURN_IF_ERROR(layout(&plan->output.value, key.n, key.m));

  Owned<cublasLtMatmulPreference_t> preference(opened, lt.MatmulPreferenceDestroy);
  LGPU_RETURN_IF_ERROR(
      lt.Check("cublasLtMatmulPreferenceCreate", lt.MatmulPreferenceCreate(&preference.value)));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    return lt.Check("cublasLtMatmulPreferenceSetAttribute",
                    lt.MatmulPreferenceSetAttribute(preference.value, which, &value, sizeof(value)));
  };
  LGPU_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, key.workspace_bytes));
  LGPU_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b));
  LGPU_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a));
  LGPU_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_output));
  LGPU_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_output));
  // Reduction in place sums in the type of the output too: partial sums in half or bfloat16 would be rounded
  // more than once, and overflow where the result does not.
  const bool narrow = ElementBytes(key.dtype) == 2;
  const std::uint32_t reductions = narrow ? std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}
                                          : std::uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK} &
                                                ~std::uint32_t{CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE};
  LGPU_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));

  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  LGPU_RETURN_IF_ERROR(lt.Check(
      "cublasLtMatmulAlgoGetHeuristic",
      lt.MatmulAlgoGetHeuristic(opened.handle, plan->operation.value, plan->first.value, plan->second.value,
                                plan->output.value, plan->output.value, preference.value, 1, &best, &found)));
  if (found == 0 || best.state != CUBLAS_STATUS_SUCCESS) {
    return absl::UnimplementedError(absl::StrCat(
        lt.file, " has no algorithm for a product of ", key.m, "x", key.k, " and ", key.k, "x", key.n,
        " matrices with a workspace of ", key.workspace_bytes, " bytes; ask for the CPU"));
  }
  plan->algorithm = best.algo;
  plan->workspace_bytes = best.workspaceSize;
  return plan;
}

absl::Status CublasLtMatMul::MatMul(const MatMulProblem& problem, const LibraryCall& call) {
  LGPU_ASSIGN_OR_RETURN(const Opened* const opened, Library(call, {}));
  MatMulKey key{.dtype = problem.dtype,
                .m = problem.m,
                .n = problem.n,
                .k = problem.k,
                .transpose_a = problem.transpose_a,
                .transpose_b = problem.transpose_b,
                .align_a = AlignmentOf(problem.a),
                .align_b = AlignmentOf(problem.b),
                .align_output = AlignmentOf(problem.output),
                .workspace_bytes = call.workspace_bytes};
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan, FindPlan(*opened, key));
  if (plan->workspace_bytes != 0) {
    const std::optional<absl::Status> queued =
        call.with_workspace(plan->workspace_bytes, [&](std::span<std::byte> workspace) {
          call.before_work();
          return Queue(*opened, *plan, problem, workspace, call.stream);
        });
    if (queued) return *queued;
    key.workspace_bytes = 0;
    LGPU_ASSIGN_OR_RETURN(plan, FindPlan(*opened, key));
  }
  call.before_work();
  return Queue(*opened, *plan, problem, {}, call.stream);
}

absl::Status CublasLtMatMul::Queue(const Opened& opened, const Plan& plan, const MatMulProblem& problem,
                                   std::span<std::byte> workspace, void* stream) {
  const double one = 1;
  const double zero = 0;
  const float one_float = 1;
  const float zero_float = 0;
  const bool wide = problem.dtype == DType::kFloat64;
  const void* const alpha = wide ? static_cast<const void*>(&one) : &one_float;
  const void* const beta = wide ? static_cast<const void*>(&zero) : &zero_float;
  return opened.lt.Check(
      "cublasLtMatmul",
      opened.lt.Matmul(opened.handle, plan.operation.value, alpha, problem.b, plan.first.value, problem.a,
                       plan.second.value, beta, problem.output, plan.output.value, problem.output,
                       plan.output.value, &plan.algorithm, workspace.data(), workspace.size(),
                       static_cast<cudaStream_t>(stream)));
}

}  // namespace lgpu
