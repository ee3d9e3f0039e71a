#ifndef LGPU_KERNELS_MATMUL_LIBRARY_H_
#define LGPU_KERNELS_MATMUL_LIBRARY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "lgpu/dtype.h"

namespace lgpu {

struct LibraryCall;

/// [m,k] x [k,n], after transposition; all sizes above zero, all tensors on the device.
struct MatMulProblem {
  DType dtype = DType::kInvalid;
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::byte* output = nullptr;
};

/// A MatMulLibrary is the GPU vendor's library for products of matrices, on one physical device. It is opened
/// at its first use and shared by the logical devices there. All calls, and the destructor unless it was
/// abandoned, come inside of DeviceWork::CallLibrary of that device, from any thread.
class MatMulLibrary {
 public:
  struct Options {
    /// float: factors are rounded to 10 bits, and tensor cores compute.
    bool tensor_float_32 = false;
  };
  static constexpr std::size_t kScratchBytes = std::size_t{48} << 10;
  /// Null in a build without CUDA.
  static std::unique_ptr<MatMulLibrary> Make(const Options& options);
  virtual ~MatMulLibrary() = default;

  /// The first call loads and starts the library, and queues a small product in the call's workspace, if it
  /// has one. FAILED_PRECONDITION, for good, where no library works on this machine, with what was tried and
  /// what to do. Other errors may pass: the next call tries again.
  virtual absl::Status Open(const LibraryCall& call, std::span<std::byte> scratch) = 0;
  /// Queues the product on the call's stream. Errors of Open, if it was not called; UNIMPLEMENTED, and
  /// nothing is queued, where the library has no algorithm for it; INTERNAL with the library's result.
  virtual absl::Status MatMul(const MatMulProblem& problem, const LibraryCall& call) = 0;
  /// The destructor makes no call of the library: there is no context for it any more.
  virtual void Abandon() = 0;
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_MATMUL_LIBRARY_H_
