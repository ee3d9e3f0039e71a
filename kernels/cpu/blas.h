#ifndef LGPU_KERNELS_CPU_BLAS_H_
#define LGPU_KERNELS_CPU_BLAS_H_

#include <cblas.h>

#include <string>

#include "absl/status/statusor.h"

namespace lgpu::cpu {

/// The two functions of OpenBLAS that kernels call. The library is opened when the first MatMul of floating
/// numbers runs on the CPU: it starts threads as it is loaded, and most programs never multiply there. It
/// stays until the process ends, and its names are not visible to the rest of the program.
struct Blas {
  decltype(&::cblas_sgemm) sgemm = nullptr;
  decltype(&::cblas_dgemm) dgemm = nullptr;

  /// This process's, opened by the first call. FAILED_PRECONDITION: the machine has none, with what to
  /// install; a later call tries again. Thread-safe.
  static absl::StatusOr<const Blas*> Open();
  /// A file by its name, as dlopen finds it.
  static absl::StatusOr<Blas> Load(const std::string& file);
};

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_BLAS_H_
