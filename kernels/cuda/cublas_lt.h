#ifndef LGPU_KERNELS_CUDA_CUBLAS_LT_H_
#define LGPU_KERNELS_CUDA_CUBLAS_LT_H_

// Includes cublasLt.h: only where LGPU_CUDA is on. cuBLASLt and not cuBLAS, which would allocate memory
// outside the limit.

#include <cublasLt.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lgpu {

// Every call of the library that lgpu makes. Their types are the same from CUDA 11.4 on.
#define LGPU_CUBLAS_LT_SYMBOLS(X) \
  X(Create)                       \
  X(Destroy)                      \
  X(GetVersion)                   \
  X(MatrixLayoutCreate)           \
  X(MatrixLayoutDestroy)          \
  X(MatmulDescCreate)             \
  X(MatmulDescDestroy)            \
  X(MatmulDescSetAttribute)       \
  X(MatmulPreferenceCreate)       \
  X(MatmulPreferenceDestroy)      \
  X(MatmulPreferenceSetAttribute) \
  X(MatmulAlgoGetHeuristic)       \
  X(Matmul)

/// cuBLASLt's calls. A value; it stays valid, because the library is never closed.
struct CublasLt {
#define LGPU_CUBLAS_LT_FIELD(name) decltype(&cublasLt##name) name = nullptr;
  LGPU_CUBLAS_LT_SYMBOLS(LGPU_CUBLAS_LT_FIELD)
#undef LGPU_CUBLAS_LT_FIELD
  std::string file;  // "libcublasLt.so.13"

  /// The possible files, the newest first.
  static std::vector<std::string> Files();
  /// Loads one of them. FAILED_PRECONDITION: it is not there, or lacks a call; RESOURCE_EXHAUSTED: the
  /// process has no memory or descriptors for it now.
  static absl::StatusOr<CublasLt> Load(const std::string& file);
  /// True while the process ends, when a library's state may be gone: libraries opened at run time are torn
  /// down before older static objects, which may own objects that use them.
  static bool IsProcessEnding();
  /// OK, RESOURCE_EXHAUSTED, UNIMPLEMENTED (the library has no algorithm for the request), or INTERNAL, with
  /// the call and its result.
  absl::Status Check(const char* call, cublasStatus_t result) const;
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_CUDA_CUBLAS_LT_H_
