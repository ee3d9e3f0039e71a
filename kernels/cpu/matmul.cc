#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/convert_blocks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/kernel_arguments.h"
#include "lgpu/status.h"

namespace lgpu {

namespace {

/// A matrix as it lies in memory: element (row, column) of the operand after transposition.
template <typename T>
struct Operand {
  const T* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

template <typename T>
Operand<T> OperandA(const KernelArguments& args) {
  const T* data = reinterpret_cast<const T*>(args.inputs[0]);
  return args.transpose_a ? Operand<T>{data, 1, args.m} : Operand<T>{data, args.k, 1};
}
template <typename T>
Operand<T> OperandB(const KernelArguments& args) {
  const T* data = reinterpret_cast<const T*>(args.inputs[1]);
  return args.transpose_b ? Operand<T>{data, 1, args.k} : Operand<T>{data, args.n, 1};
}

CBLAS_TRANSPOSE Transposition(bool transpose) { return transpose ? CblasTrans : CblasNoTrans; }

template <typename T>
void BlasMatMul(const void* block) {
  const auto& args = *static_cast<const KernelArguments*>(block);
  const T* a = reinterpret_cast<const T*>(args.inputs[0]);
  const T* b = reinterpret_cast<const T*>(args.inputs[1]);
  T* c = reinterpret_cast<T*>(args.output);
  const auto m = static_cast<blasint>(args.m);
  const auto n = static_cast<blasint>(args.n);
  const auto k = static_cast<blasint>(args.k);
  const blasint lda = args.transpose_a ? m : k;
  const blasint ldb = args.transpose_b ? k : n;
  if constexpr (std::is_same_v<T, float>) {
    cpu::Blas::Current().sgemm(CblasRowMajor, Transposition(args.transpose_a),
                               Transposition(args.transpose_b), m, n, k, 1.0F, a, lda, b, ldb, 0.0F, c, n);
  } else {
    cpu::Blas::Current().dgemm(CblasRowMajor, Transposition(args.transpose_a),
                               Transposition(args.transpose_b), m, n, k, 1.0, a, lda, b, ldb, 0.0, c, n);
  }
}

constexpr std::int64_t kTile = 512;

/// Copies a tile of `rows` x `columns` from (row, column) on into `to`, row-major, widened or as it is.
template <typename To, typename T>
void PackTile(const Operand<T>& from, std::int64_t row, std::int64_t column, std::int64_t rows,
              std::int64_t columns, To* to) {
  const auto load = [](T value) {
    if constexpr (cpu::kIsSmallFloat<T>) return cpu::Widen(value);
    if constexpr (!cpu::kIsSmallFloat<T>) return value;
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* line = from.data + (row + r) * from.row_stride + column * from.column_stride;
    To* out = to + r * columns;
    if (from.column_stride == 1 && cpu::kIsSmallFloat<T>) {
      if constexpr (cpu::kIsSmallFloat<T>) cpu::WidenBlock(line, out, columns);
    } else if (from.column_stride == 1) {
      for (std::int64_t c = 0; c < columns; ++c) out[c] = load(line[c]);
    } else {
      for (std::int64_t c = 0; c < columns; ++c) out[c] = load(line[c * from.column_stride]);
    }
  }
}

/// half and bfloat16: tiles widened to float, sums in float, one rounding at the end.
template <typename T>
void WidenedMatMul(const void* block) {
  const auto& args = *static_cast<const KernelArguments*>(block);
  const Operand<T> a = OperandA<T>(args);
  const Operand<T> b = OperandB<T>(args);
  T* output = reinterpret_cast<T*>(args.output);
  const cpu::Blas& blas = cpu::Blas::Current();
  const std::int64_t tile_m = std::min(kTile, args.m);
  const std::int64_t tile_n = std::min(kTile, args.n);
  const std::int64_t tile_k = std::min(kTile, args.k);
  std::vector<float> workspace(static_cast<std::size_t>(tile_m * tile_k + tile_k * tile_n + tile_m * tile_n));
  float* wide_a = workspace.data();
  float* wide_b = wide_a + tile_m * tile_k;
  float* sums = wide_b + tile_k * tile_n;
  for (std::int64_t i = 0; i < args.m; i += kTile) {
    const std::int64_t rows = std::min(kTile, args.m - i);
    for (std::int64_t j = 0; j < args.n; j += kTile) {
      const std::int64_t columns = std::min(kTile, args.n - j);
      for (std::int64_t p = 0; p < args.k; p += kTile) {
        const std::int64_t depth = std::min(kTile, args.k - p);
        PackTile(a, i, p, rows, depth, wide_a);
        PackTile(b, p, j, depth, columns, wide_b);
        blas.sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<blasint>(rows),
                   static_cast<blasint>(columns), static_cast<blasint>(depth), 1.0F, wide_a,
                   static_cast<blasint>(depth), wide_b, static_cast<blasint>(columns), p == 0 ? 0.0F : 1.0F,
                   sums, static_cast<blasint>(columns));
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        cpu::NarrowBlock(sums + r * columns, output + (i + r) * args.n + j, columns);
      }
    }
  }
}

/// Whole numbers; T is unsigned, so that they wrap around. The inner loop runs along a row of B and C.
template <typename T>
void WholeMatMul(const void* block) {
  constexpr std::int64_t kDepth = 64;
  constexpr std::int64_t kColumns = 1024;
  const auto& args = *static_cast<const KernelArguments*>(block);
  const Operand<T> a = OperandA<T>(args);
  const Operand<T> b = OperandB<T>(args);
  T* output = reinterpret_cast<T*>(args.output);
  std::memset(output, 0, static_cast<std::size_t>(args.elements) * sizeof(T));
  std::vector<T> packed(
      static_cast<std::size_t>(args.transpose_b ? std::min(kDepth, args.k) * std::min(kColumns, args.n) : 0));
  for (std::int64_t j = 0; j < args.n; j += kColumns) {
    const std::int64_t columns = std::min(kColumns, args.n - j);
    for (std::int64_t p = 0; p < args.k; p += kDepth) {
      const std::int64_t depth = std::min(kDepth, args.k - p);
      const T* panel = b.data + p * b.row_stride + j;
      std::int64_t panel_stride = b.row_stride;
      if (args.transpose_b) {
        PackTile(b, p, j, depth, columns, packed.data());
        panel = packed.data();
        panel_stride = columns;
      }
      for (std::int64_t i = 0; i < args.m; ++i) {
        T* __restrict out = output + i * args.n + j;
        for (std::int64_t q = 0; q < depth; ++q) {
          const T factor = a.data[i * a.row_stride + (p + q) * a.column_stride];
          const T* __restrict row = panel + q * panel_stride;
          for (std::int64_t c = 0; c < columns; ++c) out[c] += factor * row[c];
        }
      }
    }
  }
}

void FillWithZeros(const void* block) {
  const auto& args = *static_cast<const KernelArguments*>(block);
  std::memset(args.output, 0, static_cast<std::size_t>(args.elements) * ElementBytes(args.to));
}

void (*MatMulFor(DType dtype))(const void*) {
  switch (dtype) {
    case DType::kFloat32:
      return BlasMatMul<float>;
    case DType::kFloat64:
      return BlasMatMul<double>;
    case DType::kInt32:
      return WholeMatMul<std::uint32_t>;
    case DType::kInt64:
      return WholeMatMul<std::uint64_t>;
    case DType::kBFloat16:
      return WidenedMatMul<BFloat16>;
    case DType::kFloat16:
      return WidenedMatMul<Half>;
    case DType::kInvalid:
      break;
  }
  return nullptr;
}

}  // namespace

absl::Status RunMatMul(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                       const OpAttributes& attributes, Launcher& launcher) {
  if (outputs[0].spec.shape.elements() == 0) return absl::OkStatus();
  KernelArguments args;
  args.output = outputs[0].data;
  args.elements = outputs[0].spec.shape.elements();
  args.m = outputs[0].spec.shape[0];
  args.n = outputs[0].spec.shape[1];
  args.k = inputs[0].spec.shape[attributes.transpose_a ? 0 : 1];
  args.transpose_a = attributes.transpose_a;
  args.transpose_b = attributes.transpose_b;
  args.to = outputs[0].spec.dtype;
  args.input_count = 2;
  args.inputs[0] = inputs[0].data;
  args.inputs[1] = inputs[1].data;
  // Opens the BLAS here, because a kernel cannot return an error.
  const bool whole_numbers = args.to == DType::kInt32 || args.to == DType::kInt64;
  if (!whole_numbers && args.k != 0) LGPU_RETURN_IF_ERROR(cpu::Blas::Open().status());
  // An empty inner dimension is an empty sum, and its operands have no address.
  return launcher.Launch(HostLaunch(args.k == 0 ? FillWithZeros : MatMulFor(args.to), args));
}

}  // namespace lgpu
