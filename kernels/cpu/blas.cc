#include "kernels/cpu/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/thread_room.h"
#include "kernels/cpu/gemm.h"
#include "lgpu/status.h"

namespace lgpu::cpu {
namespace {

// Debian's names. The second is whichever BLAS the machine's owner has chosen.
constexpr std::array<const char*, 2> kFiles = {"libopenblas.so.0", "libblas.so.3"};

}  // namespace

absl::StatusOr<Blas> Blas::Load(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) {
    const auto threads = static_cast<int>(std::thread::hardware_concurrency());
    LGPU_RETURN_IF_ERROR(CheckThreadRoom("OpenBLAS, for MatMul on the CPU,", std::max(1, threads)));
    library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }
  if (library == nullptr) {
    const char* const error = ::dlerror();
    return absl::NotFoundError(
        absl::StrCat(file, " cannot be opened (", error == nullptr ? "without a reason" : error, ")"));
  }
  Blas blas;
  blas.sgemm = reinterpret_cast<decltype(blas.sgemm)>(::dlsym(library, "cblas_sgemm"));
  blas.dgemm = reinterpret_cast<decltype(blas.dgemm)>(::dlsym(library, "cblas_dgemm"));
  ::dlclose(library);  // it stays: RTLD_NODELETE, or another library that opened it
  if (blas.sgemm == nullptr || blas.dgemm == nullptr) {
    return absl::NotFoundError(absl::StrCat(file, " has no cblas_sgemm or cblas_dgemm"));
  }
  return blas;
}

absl::StatusOr<Blas> Blas::Choose(std::span<const char* const> files) {
  for (const char* const file : files) {
    absl::StatusOr<Blas> loaded = Load(file);
    if (!absl::IsNotFound(loaded.status())) return loaded;
  }
  return Blas{.sgemm = OwnSgemm, .dgemm = OwnDgemm};
}

absl::StatusOr<const Blas*> Blas::Open() {
  // Of the process, as the library is. Two threads that come first together find the same functions.
  static std::atomic<const Blas*> opened{nullptr};
  if (const Blas* const blas = opened.load(std::memory_order_acquire)) return blas;
  LGPU_ASSIGN_OR_RETURN(const Blas chosen, Choose(kFiles));
  auto fresh = std::make_unique<const Blas>(chosen);
  const Blas* expected = nullptr;
  if (opened.compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel))
    return fresh.release();
  return expected;
}

}  // namespace lgpu::cpu
