#ifndef LGPU_CLI_DRIVER_FILES_H_
#define LGPU_CLI_DRIVER_FILES_H_

#include <optional>
#include <string>
#include <vector>

#include "cli/isolation.h"

namespace lgpu::cli {

/// A library that lgpu stands before, and the name under which lgpu's own finds the real one.
struct ShimmedLibrary {
  const char* name;
  const char* real;
  const char* unversioned;
};
inline constexpr ShimmedLibrary kCuda = {"libcuda.so.1", "liblgpu_real_cuda.so.1", "libcuda.so"};
inline constexpr ShimmedLibrary kNvml = {"libnvidia-ml.so.1", "liblgpu_real_nvidia-ml.so.1",
                                         "libnvidia-ml.so"};
inline constexpr char kRedirectName[] = "liblgpu_redirect.so";

/// The file that a dlopen of `library` finds in an environment with this LD_LIBRARY_PATH, behind lgpu's own
/// where the environment is that of an `lgpu run`. Nothing: there is none.
std::optional<std::string> FindReal(const ShimmedLibrary& library, const std::string& search_path);

/// The files that the names of both libraries lead to, by this LD_LIBRARY_PATH, by the loader's own
/// configuration and in the folders that drivers are installed in.
std::vector<Isolation::Covered> FilesToCover(const std::string& search_path);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_DRIVER_FILES_H_
