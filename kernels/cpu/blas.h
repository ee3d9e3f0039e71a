#ifndef LGPU_KERNELS_CPU_BLAS_H_
#define LGPU_KERNELS_CPU_BLAS_H_

#include <cblas.h>

#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace lgpu::cpu {

/// The two functions of a BLAS that kernels call: those of the machine's, else lgpu's own (gemm.h). The
/// machine's library is opened when the first MatMul of floating numbers runs on the CPU: OpenBLAS starts
/// threads as it is loaded, and most programs never multiply there. It stays until the process ends, and its
/// names are not visible to the rest of the program.
struct Blas {
  decltype(&::cblas_sgemm) sgemm = nullptr;
  decltype(&::cblas_dgemm) dgemm = nullptr;

  /// This process's, chosen by the first call that succeeds. Errors as Choose. Thread-safe.
  static absl::StatusOr<const Blas*> Open();
  /// The first of these files that Load finds, else lgpu's own. Errors of Load other than NOT_FOUND.
  static absl::StatusOr<Blas> Choose(std::span<const char* const> files);
  /// A file by its name, as dlopen finds it. NOT_FOUND: it cannot be opened, or has no such functions.
  /// RESOURCE_EXHAUSTED: the process may not start its threads.
  static absl::StatusOr<Blas> Load(const std::string& file);
};

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_BLAS_H_
