// A cuBLASLt for the fake driver: the calls that lgpu makes, computed in double on the fake's device memory,
// in stream order. A program's mistake is recorded, and fails the test. One file past the usual length: all
// its calls check the same few descriptors.

#include <cublasLt.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kernels/bodies/numbers.h"
#include "tests/fake_cuda/fake_libraries.h"

namespace lgpu::fake_cuda {
namespace {

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

struct Layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t leading;
};
struct Operation {
  cublasComputeType_t compute;
  cudaDataType scale;
  bool transpose_a = false, transpose_b = false;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

/// The live objects of the library: a global, as in a real one.
struct Known {
  std::mutex mutex;
  std::set<const void*> handles, descriptors;
  bool is_torn_down = false;
};
Known& All() {
  static auto* const known = new Known;
  return *known;
}

template <typename T>
T* Create(std::set<const void*> Known::*where, T* made) {
  const std::lock_guard lock(All().mutex);
  (All().*where).insert(made);
  return made;
}
/// The object behind a descriptor; null, and a broken rule, if it is not there.
template <typename T>
T* Find(const void* descriptor, std::set<const void*> Known::*where, const char* call) {
  const std::lock_guard lock(All().mutex);
  if (All().is_torn_down) {
    BreakRule("lt-after-exit", std::string(call) + " after the library's own destructors");
    return nullptr;
  }
  if ((All().*where).count(descriptor) == 1) {
    return const_cast<T*>(static_cast<const T*>(descriptor));  // NOLINT
  }
  BreakRule("lt-unknown-handle", std::string(call) + " of something that is null or destroyed");
  return nullptr;
}
template <typename T>
cublasStatus_t Destroy(const void* descriptor, std::set<const void*> Known::*where, const char* call) {
  T* const found = Find<T>(descriptor, where, call);
  if (found == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  {
    const std::lock_guard lock(All().mutex);
    (All().*where).erase(descriptor);
  }
  delete found;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Enter(const char* call) { return static_cast<cublasStatus_t>(EnterLibrary(call)); }
#define LT_ENTER(call) \
  if (const cublasStatus_t entered = Enter(call); entered != CUBLAS_STATUS_SUCCESS) return entered

std::size_t ElementBytesOf(cudaDataType type) {
  switch (type) {
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_32F:
      return 4;
    case CUDA_R_64F:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
T As(const char* place) {
  T value;
  std::memcpy(&value, place, sizeof(value));
  return value;
}
double Read(cudaDataType type, const char* place) {
  switch (type) {
    case CUDA_R_16F:
      return cpu::Widen(Half{As<std::uint16_t>(place)});
    case CUDA_R_16BF:
      return cpu::Widen(BFloat16{As<std::uint16_t>(place)});
    case CUDA_R_64F:
      return As<double>(place);
    default:
      return As<float>(place);
  }
}
void Write(cudaDataType type, char* place, double value) {
  const auto put = [place](auto element) { std::memcpy(place, &element, sizeof(element)); };
  switch (type) {
    case CUDA_R_16F:
      return put(code::NarrowFromDouble<code::HalfBits>(value).bits);
    case CUDA_R_16BF:
      return put(code::NarrowFromDouble<code::BFloat16Bits>(value).bits);
    case CUDA_R_64F:
      return put(value);
    default:
      return put(static_cast<float>(value));
  }
}
double ToTensorFloat32(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::isfinite(value) ? std::bit_cast<float>((bits + 0x1000U) & ~0x1fffU) : value;
}

/// A checked product: m x n, k products each.
struct Product {
  Operation operation;
  Layout a, b, d;
  std::uint64_t m, n, k;
};

/// rows x columns, after transposition, row by row.
std::vector<double> Operand(const Product& p, const Layout& layout, const char* data, bool transpose,
                            std::uint64_t rows, std::uint64_t columns) {
  std::vector<double> values;
  values.reserve(rows * columns);
  const auto leading = static_cast<std::uint64_t>(layout.leading);
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (std::uint64_t column = 0; column < columns; ++column) {
      const std::uint64_t at = transpose ? column + row * leading : row + column * leading;
      const double value = Read(layout.type, data + at * ElementBytesOf(layout.type));
      values.push_back(p.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? ToTensorFloat32(value) : value);
    }
  }
  return values;
}

/// A split product puts the sums of this first half of each row into the workspace, in the type of its
/// algorithm's partial sums.
std::uint64_t FirstHalf(const Product& p) { return p.k / 2; }

/// The sums of products `begin` to `end`, row by row.
std::vector<double> Sums(const Product& p, const char* a, const char* b, std::uint64_t begin,
                         std::uint64_t end) {
  const std::vector<double> first = Operand(p, p.a, a, p.operation.transpose_a, p.m, p.k);
  const std::vector<double> second = Operand(p, p.b, b, p.operation.transpose_b, p.k, p.n);
  std::vector<double> sums(p.m * p.n);
  for (std::uint64_t row = 0; row < p.m; ++row) {
    for (std::uint64_t i = begin; i < end; ++i) {
      const double factor = first[row * p.k + i];
      for (std::uint64_t column = 0; column < p.n; ++column) {
        sums[row * p.n + column] += factor * second[i * p.n + column];
      }
    }
  }
  return sums;
}

void Store(const Product& p, const std::vector<double>& sums, char* d) {
  for (std::uint64_t row = 0; row < p.m; ++row) {
    for (std::uint64_t column = 0; column < p.n; ++column) {
      const std::uint64_t at = row + column * static_cast<std::uint64_t>(p.d.leading);
      Write(p.d.type, d + at * ElementBytesOf(p.d.type), sums[row * p.n + column]);
    }
  }
}

/// The fake's contents of an algorithm: the bytes of its workspace, the type of its partial sums, and the
/// alignments that the caller promised.
struct Algorithm {
  std::uint64_t workspace;
  std::uint32_t in_output_type;
  std::uint32_t align_a, align_b, align_c, align_d;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

/// The product, or a broken rule.
bool Check(const Operation& operation, const Layout& a, const Layout& b, const Layout& d, Product* product) {
  *product = {operation, a, b, d, d.rows, d.columns, operation.transpose_a ? a.rows : a.columns};
  const auto shape = [](const Layout& layout, bool transpose, std::uint64_t rows, std::uint64_t columns) {
    return layout.rows == (transpose ? columns : rows) && layout.columns == (transpose ? rows : columns);
  };
  if (!shape(a, operation.transpose_a, product->m, product->k) ||
      !shape(b, operation.transpose_b, product->k, product->n) || product->m * product->n * product->k == 0) {
    BreakRule("lt-shapes", "the matrices do not fit together, or are empty");
    return false;
  }
  for (const Layout* layout : {&a, &b, &d}) {
    if (layout->leading < static_cast<std::int64_t>(layout->rows)) {
      BreakRule("lt-leading-dimension", "a leading dimension is smaller than the rows");
      return false;
    }
  }
  const bool wide = d.type == CUDA_R_64F;
  if (a.type != d.type || b.type != d.type || ElementBytesOf(d.type) == 0 ||
      (operation.compute == CUBLAS_COMPUTE_64F) != wide || (operation.scale == CUDA_R_64F) != wide) {
    BreakRule("lt-types", "no such combination of types");
    return false;
  }
  return true;
}

std::uint64_t BytesOf(const Layout& layout) {
  return ((layout.columns - 1) * static_cast<std::uint64_t>(layout.leading) + layout.rows) *
         ElementBytesOf(layout.type);
}

// As the real library, it tears itself down where the program ends: a program that still uses the driver
// then, from the destructors of its static objects, cannot have closed it before, and must not after. Any
// other one has left nothing behind.
struct TearDown {
  ~TearDown();
} tear_down;

TearDown::~TearDown() {
  const std::lock_guard lock(All().mutex);
  All().is_torn_down = true;
  if (HasContext()) return;
  if (!All().handles.empty() || !All().descriptors.empty()) {
    BreakRule("lt-leaked", std::to_string(All().handles.size()) + " handles, " +
                               std::to_string(All().descriptors.size()) + " descriptors at exit");
  }
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT size_t cublasLtGetVersion() { return 130000; }

FAKE_EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  LT_ENTER("cublasLtCreate");
  *handle = reinterpret_cast<cublasLtHandle_t>(Create(&Known::handles, new int(0)));
  return CUBLAS_STATUS_SUCCESS;
}
FAKE_EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  LT_ENTER("cublasLtDestroy");
  return Destroy<int>(handle, &Known::handles, "cublasLtDestroy");
}

FAKE_EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                                      uint64_t rows, uint64_t columns, int64_t leading) {
  LT_ENTER("cublasLtMatrixLayoutCreate");
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      Create(&Known::descriptors, new Layout{type, rows, columns, leading}));
  return CUBLAS_STATUS_SUCCESS;
}
FAKE_EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Destroy<Layout>(layout, &Known::descriptors, "cublasLtMatrixLayoutDestroy");
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor,
                                                    cublasComputeType_t compute, cudaDataType_t scale) {
  LT_ENTER("cublasLtMatmulDescCreate");
  *descriptor =
      reinterpret_cast<cublasLtMatmulDesc_t>(Create(&Known::descriptors, new Operation{compute, scale}));
  return CUBLAS_STATUS_SUCCESS;
}
FAKE_EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) {
  return Destroy<Operation>(descriptor, &Known::descriptors, "cublasLtMatmulDescDestroy");
}
FAKE_EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor,
                                                          cublasLtMatmulDescAttributes_t attribute,
                                                          const void* value, size_t size) {
  auto* const operation = Find<Operation>(descriptor, &Known::descriptors, "cublasLtMatmulDescSetAttribute");
  if (operation == nullptr || size != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
  const bool transpose = *static_cast<const cublasOperation_t*>(value) != CUBLAS_OP_N;
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) {
    operation->transpose_a = transpose;
  } else if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) {
    operation->transpose_b = transpose;
  } else {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(Create(&Known::descriptors, new Preference));
  return CUBLAS_STATUS_SUCCESS;
}
FAKE_EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Destroy<Preference>(preference, &Known::descriptors, "cublasLtMatmulPreferenceDestroy");
}
FAKE_EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t descriptor, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
    size_t size) {
  auto* const preference =
      Find<Preference>(descriptor, &Known::descriptors, "cublasLtMatmulPreferenceSetAttribute");
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const auto set = [&](auto& field) {
    if (size != sizeof(field)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, size);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference->workspace);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(preference->align_a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(preference->align_b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(preference->align_c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference->align_d);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference->reductions);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                                          cublasLtMatmulDesc_t descriptor,
                                                          cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                          cublasLtMatmulPreference_t preferred, int requested,
                                                          cublasLtMatmulHeuristicResult_t results[],
                                                          int* found) {
  constexpr const char* kCall = "cublasLtMatmulAlgoGetHeuristic";
  LT_ENTER(kCall);
  *found = 0;
  const auto* const operation = Find<Operation>(descriptor, &Known::descriptors, kCall);
  const auto* const preference = Find<Preference>(preferred, &Known::descriptors, kCall);
  const Layout* layouts[4] = {};
  bool all =
      Find<int>(handle, &Known::handles, kCall) != nullptr && operation != nullptr && preference != nullptr;
  const cublasLtMatrixLayout_t given[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    layouts[i] = Find<Layout>(given[i], &Known::descriptors, kCall);
    all = all && layouts[i] != nullptr;
  }
  Product product;
  if (!all || requested < 1 || !Check(*operation, *layouts[0], *layouts[1], *layouts[3], &product)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // Long sums are split, which takes a workspace, as the real one does now and then; in the type of the
  // output, which is the fastest, where that is allowed.
  std::uint64_t wanted =
      product.k >= 256 ? std::max(std::uint64_t{64} << 10, product.m * product.n * sizeof(double)) : 0;
  if (wanted > preference->workspace) wanted = 0;
  const std::uint32_t in_output_type =
      preference->reductions & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
  const Algorithm algorithm{wanted,
                            in_output_type,
                            preference->align_a,
                            preference->align_b,
                            preference->align_c,
                            preference->align_d};
  std::memset(&results[0], 0, sizeof(results[0]));
  std::memcpy(&results[0].algo, &algorithm, sizeof(algorithm));
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor,
                                          const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                                          const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                                          const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                                          cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* chosen,
                                          void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  constexpr const char* kCall = "cublasLtMatmul";
  LT_ENTER(kCall);
  const auto* const operation = Find<Operation>(descriptor, &Known::descriptors, kCall);
  const auto* const la = Find<Layout>(a_layout, &Known::descriptors, kCall);
  const auto* const lb = Find<Layout>(b_layout, &Known::descriptors, kCall);
  const auto* const lc = Find<Layout>(c_layout, &Known::descriptors, kCall);
  const auto* const ld = Find<Layout>(d_layout, &Known::descriptors, kCall);
  Product product;
  if (Find<int>(handle, &Known::handles, kCall) == nullptr || operation == nullptr || la == nullptr ||
      lb == nullptr || lc == nullptr || ld == nullptr || chosen == nullptr ||
      !Check(*operation, *la, *lb, *ld, &product) || lc->type != ld->type || lc->rows != ld->rows ||
      lc->columns != ld->columns || lc->leading < static_cast<std::int64_t>(lc->rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const double one = operation->scale == CUDA_R_64F ? *static_cast<const double*>(alpha)
                                                    : double{*static_cast<const float*>(alpha)};
  const double zero = operation->scale == CUDA_R_64F ? *static_cast<const double*>(beta)
                                                     : double{*static_cast<const float*>(beta)};
  if (one != 1 || zero != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  Algorithm algorithm;
  std::memcpy(&algorithm, chosen, sizeof(algorithm));
  const auto misaligned = [](const void* pointer, std::uint32_t alignment) {
    return reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0;
  };
  if (misaligned(a, algorithm.align_a) || misaligned(b, algorithm.align_b) ||
      misaligned(c, algorithm.align_c) || misaligned(d, algorithm.align_d)) {
    BreakRule("lt-alignment", "a matrix lies at a worse address than the algorithm was chosen for");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (algorithm.workspace > workspace_bytes || (workspace_bytes != 0 && misaligned(workspace, 256)) ||
      (workspace_bytes != 0 && workspace == nullptr)) {
    BreakRule("lt-workspace", "the workspace is too small, not aligned to 256 bytes, or null");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto address = [](const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); };
  const Touch in_a{address(a), BytesOf(*la), false};
  const Touch in_b{address(b), BytesOf(*lb), false};
  const Touch out{address(d), BytesOf(*ld), true};
  const auto queue = [&](LibraryWork work) { return QueueLibraryWork(stream, std::move(work), kCall); };
  if (algorithm.workspace == 0) {
    const CUresult queued =
        queue({{in_a, in_b, out}, [product](const std::vector<char*>& places) {
                 Store(product, Sums(product, places[0], places[1], 0, product.k), places[2]);
               }});
    return queued == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
  }
  // Two entries of the stream; work of other calls may come between them.
  const Touch scratch{address(workspace), algorithm.workspace, true};
  CUresult queued = queue({{in_a, in_b, scratch}, [product, algorithm](const std::vector<char*>& places) {
                             std::memset(places[2], 0xa5, algorithm.workspace);
                             std::vector<double> sums =
                                 Sums(product, places[0], places[1], 0, FirstHalf(product));
                             if (algorithm.in_output_type != 0) {
                               for (double& sum : sums) {
                                 char narrow[sizeof(double)];
                                 Write(product.d.type, narrow, sum);
                                 sum = Read(product.d.type, narrow);
                               }
                             }
                             std::memcpy(places[2], sums.data(), sums.size() * sizeof(double));
                           }});
  ::usleep(300);  // a moment for other threads
  if (queued == CUDA_SUCCESS) {
    queued = queue({{in_a, in_b, scratch, out}, [product](const std::vector<char*>& places) {
                      std::vector<double> sums =
                          Sums(product, places[0], places[1], FirstHalf(product), product.k);
                      for (std::size_t i = 0; i < sums.size(); ++i) {
                        double partial = 0;
                        std::memcpy(&partial, places[2] + i * sizeof(double), sizeof(partial));
                        sums[i] += partial;
                      }
                      Store(product, sums, places[3]);
                    }});
  }
  return queued == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
