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
  /// False: lgpu's own, until the process may start the threads of the machine's.
  bool is_lasting = true;

  /// This process's. The first lasting choice is kept. Errors as Choose. Thread-safe.
  static absl::StatusOr<const Blas*> Open();
  /// The choice that Open has kept, else lgpu's own. It opens nothing. Thread-safe.
  static const Blas& Current();
  /// The first of these files that Load can use, else lgpu's own. UNAVAILABLE as Load.
  static absl::StatusOr<Blas> Choose(std::span<const char* const> files);
  /// A file by its name, as dlopen finds it. NOT_FOUND: there is no such file, or it has no such functions.
  /// RESOURCE_EXHAUSTED: the process may not start its threads. UNAVAILABLE: it cannot be opened now, and a
  /// later call may succeed. FAILED_PRECONDITION: it cannot be opened at all.
  static absl::StatusOr<Blas> Load(const std::string& file);
};

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_BLAS_H_
