#ifndef LGPU_KERNELS_CPU_GEMM_H_
#define LGPU_KERNELS_CPU_GEMM_H_

#include <cblas.h>

namespace lgpu::cpu {

/// lgpu's own product of matrices, C = alpha A B + beta C, for machines without a BLAS: in blocks that stay
/// in the caches, on one thread. The parameters are those of cblas_sgemm and cblas_dgemm; matrices are
/// row-major: `order` is ignored. Where beta is 0, C is not read. Thread-safe; aborts if there is no memory
/// for its workspace of about 1 MiB.
void OwnSgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b, blasint m,
              blasint n, blasint k, float alpha, const float* a, blasint lda, const float* b, blasint ldb,
              float beta, float* c, blasint ldc);
void OwnDgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b, blasint m,
              blasint n, blasint k, double alpha, const double* a, blasint lda, const double* b, blasint ldb,
              double beta, double* c, blasint ldc);

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_GEMM_H_
