#ifndef LGPU_KERNELS_CUDA_CUBLAS_LT_MATMUL_H_
#define LGPU_KERNELS_CUDA_CUBLAS_LT_MATMUL_H_

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/matmul_library.h"

namespace lgpu {

/// A product as cuBLASLt chooses its algorithm for it.
struct MatMulKey {
  DType dtype = DType::kInvalid;
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::uint32_t align_a = 0, align_b = 0, align_output = 0;
  std::uint64_t workspace_bytes = 0;

  friend bool operator==(const MatMulKey&, const MatMulKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const MatMulKey& key) {
    return H::combine(std::move(h), key.dtype, key.m, key.n, key.k, key.transpose_a, key.transpose_b,
                      key.align_a, key.align_b, key.align_output, key.workspace_bytes);
  }
};

/// A CublasLtMatMul is the MatMulLibrary of NVIDIA's GPUs. It keeps its choices for products, up to
/// kMostPlans.
class CublasLtMatMul final : public MatMulLibrary {
 public:
  static constexpr std::size_t kMostPlans = 1024;

  explicit CublasLtMatMul(const Options& options) : options_(options) {}
  ~CublasLtMatMul() override;

  absl::Status Open(const LibraryCall& call, std::span<std::byte> scratch) override;
  absl::Status MatMul(const MatMulProblem& problem, const LibraryCall& call) override;
  void Abandon() override;

 private:
  /// The library and its handle; constant once it is open.
  struct Opened {
    explicit Opened(CublasLt library) : lt(std::move(library)) {}
    ~Opened();
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    /// Whether the library may still be called to destroy its objects.
    bool IsCallable() const { return !abandoned && !CublasLt::IsProcessEnding(); }
    const CublasLt lt;
    cublasLtHandle_t handle = nullptr;
    mutable std::atomic<bool> abandoned{false};
  };
  template <typename T>
  struct Owned;
  struct Plan;

  /// Opens the library at the first call that succeeds.
  absl::StatusOr<const Opened*> Library(const LibraryCall& call, std::span<std::byte> scratch);
  absl::StatusOr<std::unique_ptr<const Opened>> OpenAny(const LibraryCall& call,
                                                        std::span<std::byte> scratch) const;
  absl::StatusOr<std::unique_ptr<const Opened>> OpenFile(const std::string& file, const LibraryCall& call,
                                                         std::span<std::byte> scratch) const;
  /// Queues a product whose result is not used, where there is memory for it.
  absl::Status Try(const Opened& opened, const LibraryCall& call, std::span<std::byte> scratch) const;
  absl::StatusOr<std::shared_ptr<const Plan>> FindPlan(const Opened& opened, const MatMulKey& key);
  absl::StatusOr<std::shared_ptr<const Plan>> MakePlan(const Opened& opened, const MatMulKey& key) const;
  static absl::Status Queue(const Opened& opened, const Plan& plan, const MatMulProblem& problem,
                            std::span<std::byte> workspace, void* stream);

  const Options options_;
  // Held over the loading: of several threads one loads, and the other threads wait for the library.
  Mutex opening_;
  std::unique_ptr<const Opened> opened_owner_ ABSL_GUARDED_BY(opening_);  // set once
  absl::Status missing_ ABSL_GUARDED_BY(opening_);
  std::atomic<const Opened*> opened_{nullptr};
  Mutex mutex_;
  absl::flat_hash_map<MatMulKey, std::shared_ptr<const Plan>> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_CUDA_CUBLAS_LT_MATMUL_H_
