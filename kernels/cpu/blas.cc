#include "kernels/cpu/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/load_error.h"
#include "base/thread_room.h"
#include "kernels/cpu/gemm.h"
#include "lgpu/status.h"

namespace lgpu::cpu {
namespace {

// Debian's names. The second is the BLAS that the machine's owner has chosen.
constexpr std::array<const char*, 2> kFiles = {"libopenblas.so.0", "libblas.so.3"};
constexpr Blas kOwn = {.sgemm = OwnSgemm, .dgemm = OwnDgemm};

// One for the process, as the library is. Two threads that open it at once find the same functions.
std::atomic<const Blas*> opened{nullptr};

}  // namespace

absl::StatusOr<Blas> Blas::Load(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) {
    const auto threads = static_cast<int>(std::thread::hardware_concurrency());
    LGPU_RETURN_IF_ERROR(CheckThreadRoom("OpenBLAS, for MatMul on the CPU,", std::max(1, threads)));
    library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }
  if (library == nullptr) {
    const char* const said = ::dlerror();
    const std::string error = said == nullptr ? "without a reason" : said;
    const std::string text = absl::StrCat(file, " cannot be opened (", error, ")");
    if (IsPassingLoadError(error)) {
      return absl::UnavailableError(
          absl::StrCat(text, "\n  try: again, with a higher ulimit -n or -v, or more memory"));
    }
    if (error.find(std::strerror(ENOENT)) != std::string::npos) return absl::NotFoundError(text);
    return absl::FailedPreconditionError(text);
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
    if (loaded.ok() || absl::IsUnavailable(loaded.status())) return loaded;
    if (absl::IsResourceExhausted(loaded.status())) {
      Blas own = kOwn;
      own.is_lasting = false;
      return own;
    }
  }
  return kOwn;
}

absl::StatusOr<const Blas*> Blas::Open() {
  if (const Blas* const blas = opened.load(std::memory_order_acquire)) return blas;
  LGPU_ASSIGN_OR_RETURN(const Blas chosen, Choose(kFiles));
  if (!chosen.is_lasting) return &kOwn;
  auto fresh = std::make_unique<const Blas>(chosen);
  const Blas* expected = nullptr;
  if (opened.compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel)) {
    return fresh.release();
  }
  return expected;
}

const Blas& Blas::Current() {
  const Blas* const blas = opened.load(std::memory_order_acquire);
  return blas == nullptr ? kOwn : *blas;
}

}  // namespace lgpu::cpu
