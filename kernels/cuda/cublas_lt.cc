#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/load_error.h"

namespace lgpu {

namespace {

const char* Name(cublasStatus_t result) {
  switch (result) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "an unknown result";
  }
}

// Global: the end of the process belongs to no object.
std::atomic<bool> process_ends{false};

}  // namespace

bool CublasLt::IsProcessEnding() { return process_ends.load(std::memory_order_relaxed); }

// The names that the loader looks up, then the folders of the toolkit and of PyPI's packages.
std::vector<std::string> CublasLt::Files() {
  std::vector<std::string> folders = {""};
  if (const char* const home = std::getenv("CUDA_HOME"); home != nullptr && *home == '/') {
    folders.push_back(absl::StrCat(home, "/lib64/"));
  }
  folders.emplace_back("/usr/local/cuda/lib64/");
  if (const char* const python = std::getenv("VIRTUAL_ENV"); python != nullptr && *python == '/') {
    std::error_code error;
    const auto lib = std::filesystem::path(python) / "lib";
    for (std::filesystem::directory_iterator it(lib, error), end; !error && it != end; it.increment(error)) {
      for (const char* const package : {"cu13", "cublas"}) {
        folders.push_back(it->path() / "site-packages/nvidia" / package / "lib/");
      }
    }
  }
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    for (const int version : {13, 12, 11}) {
      std::string file = absl::StrCat(folder, "libcublasLt.so.", version);
      std::error_code error;
      if (folder.empty() || std::filesystem::exists(file, error)) files.push_back(std::move(file));
    }
  }
  return files;
}

absl::StatusOr<CublasLt> CublasLt::Load(const std::string& file) {
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const said = ::dlerror();
    const std::string error = said == nullptr ? file : said;
    return IsPassingLoadError(error) ? absl::ResourceExhaustedError(absl::StrCat("loading ", error))
                                     : absl::FailedPreconditionError(error);
  }
  // Runs before the destructors of static objects that are older than the library.
  std::atexit([] { process_ends.store(true, std::memory_order_relaxed); });
  CublasLt lt;
  lt.file = file;
  std::string missing;
  const auto find = [&](const char* symbol) {
    void* const address = ::dlsym(library, symbol);
    if (address == nullptr) missing = symbol;
    return address;
  };
#define LGPU_CUBLAS_LT_FIND(name) lt.name = reinterpret_cast<decltype(lt.name)>(find("cublasLt" #name));
  LGPU_CUBLAS_LT_SYMBOLS(LGPU_CUBLAS_LT_FIND)
#undef LGPU_CUBLAS_LT_FIND
  ::dlclose(library);  // RTLD_NODELETE keeps it
  if (!missing.empty()) return absl::FailedPreconditionError(absl::StrCat(file, ": it has no ", missing));
  return lt;
}

absl::Status CublasLt::Check(const char* call, cublasStatus_t result) const {
  if (result == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text =
      absl::StrCat(call, " of ", file, " gave ", Name(result), " (", static_cast<int>(result), ")");
  switch (result) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(text);
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::UnimplementedError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace lgpu
