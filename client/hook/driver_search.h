#ifndef LGPU_CLIENT_HOOK_DRIVER_SEARCH_H_
#define LGPU_CLIENT_HOOK_DRIVER_SEARCH_H_

#include <string>
#include <vector>

#include "client/hook/container.h"

namespace lgpu::hook {

/// A library that lgpu stands before, and the name under which lgpu's own finds the real one.
struct Library {
  const char* name;  // "libcuda.so.1"
  const char* stem;  // "libcuda.so", with which the names of its files begin
  const char* real;
};
inline constexpr Library kCuda = {"libcuda.so.1", "libcuda.so", "liblgpu_real_cuda.so.1"};
inline constexpr Library kNvml = {"libnvidia-ml.so.1", "libnvidia-ml.so", "liblgpu_real_nvidia-ml.so.1"};

/// The folders of the container in which programs find libraries: those that drivers are installed in, of
/// CUDA's compatibility packages, of the loader's configuration and of LD_LIBRARY_PATH.
std::vector<std::string> LibraryFolders(const Container& container);

/// The paths in the container that may be files of the library: by name in `folders`, and where the runtime
/// has mounted one.
std::vector<std::string> FilesNamed(const Container& container, const std::vector<std::string>& folders,
                                    const Library& library);

}  // namespace lgpu::hook

#endif  // LGPU_CLIENT_HOOK_DRIVER_SEARCH_H_
