// The calls of the fake driver that run kernels and ask about them. The host runs lgpu's own kernels; kernels
// of other programs do nothing.

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tests/fake_cuda/fake_calls.h"
#include "tests/fake_cuda/fake_kernels.h"

namespace lgpu::fake_cuda {
namespace {

void RunKernel(const Emulation& emulation, const std::vector<char>& parameters, const Grid& grid,
               const std::vector<Touch>& touches, int card) {
  Process& process = Process::This();
  while (process.file->state().hold_kernels) ::usleep(500);
  std::vector<std::pair<std::uint64_t, char*>> places;
  for (const Touch& touch : touches) {
    char* const data = ReachLater(touch, card, "kernel");
    if (data == nullptr) return;
    places.emplace_back(touch.address, data);
  }
  const bool met = emulation.run(parameters.data(), grid, [&](const void* pointer) {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    const auto place = std::find_if(places.begin(), places.end(),
                                    [&](const auto& candidate) { return candidate.first == address; });
    return place->second;
  });
  if (!met) {
    process.Break("barrier", std::string(emulation.name) + " has a barrier that not all threads reach");
  }
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                                    CUstream stream_handle, void**, void** extra) {
  FAKE_ENTER("cuLaunchKernel");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(stream_handle, "cuLaunchKernel", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  const std::uint64_t grid = std::uint64_t{grid_x} * grid_y * grid_z;
  const std::uint64_t block = std::uint64_t{block_x} * block_y * block_z;
  if (grid == 0 || block == 0 || block > 1024 || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<Function*>(handle)->emulation == nullptr) {
    stream->Queue({});
    return CUDA_SUCCESS;
  }
  if (extra == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const char* buffer = nullptr;
  std::size_t size = 0;
  for (void** at = extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (at[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char*>(at[1]);
    if (at[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<std::size_t*>(at[1]);
  }
  const Emulation& emulation = *reinterpret_cast<Function*>(handle)->emulation;
  if (buffer == nullptr || size != emulation.parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
  std::vector<char> parameters(buffer, buffer + size);
  std::vector<Touch> touches = emulation.touches(parameters.data());
  Stream::Work work;
  work.touches = touches;
  work.run = [&emulation, parameters = std::move(parameters), sizes = Grid{grid, block},
              touches = std::move(touches),
              card = stream->context->card] { RunKernel(emulation, parameters, sizes, touches, card); };
  stream->Queue(std::move(work));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                                      void** extra) {
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                        config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream,
                        parameters, extra);
}
FAKE_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                               unsigned grid_z, unsigned block_x, unsigned block_y,
                                               unsigned block_z, unsigned shared, CUstream stream,
                                               void** parameters) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                        parameters, nullptr);
}

FAKE_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  FAKE_ENTER("cuFuncGetAttribute");
  if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  const auto& set = reinterpret_cast<Function*>(handle)->attributes;
  constexpr std::pair<int, int> kDefaults[] = {{CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
                                               {CU_FUNC_ATTRIBUTE_NUM_REGS, 32},
                                               {CU_FUNC_ATTRIBUTE_PTX_VERSION, 90},
                                               {CU_FUNC_ATTRIBUTE_BINARY_VERSION, 90},
                                               {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 49152}};
  *value = 0;
  for (const auto& [known, fallback] : kDefaults) {
    if (known == attribute) *value = fallback;
  }
  if (const auto own = set.find(attribute); own != set.end()) *value = own->second;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  FAKE_ENTER("cuFuncSetAttribute");
  if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  reinterpret_cast<Function*>(handle)->attributes[attribute] = value;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
FAKE_EXPORT CUresult cuFuncGetModule(CUmodule* module, CUfunction handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *module = reinterpret_cast<CUmodule>(reinterpret_cast<Function*>(handle)->module);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuFuncGetName(const char** name, CUfunction handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = reinterpret_cast<Function*>(handle)->name.c_str();
  return CUDA_SUCCESS;
}

// A kernel of a library and a function of a module are the same here.
FAKE_EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                          CUdevice) {
  return cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(kernel));
}
FAKE_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                          CUdevice) {
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attribute, value);
}
FAKE_EXPORT CUresult cuKernelSetCacheConfig(CUkernel, CUfunc_cache, CUdevice) { return CUDA_SUCCESS; }
FAKE_EXPORT CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return cuFuncGetName(name, reinterpret_cast<CUfunction>(kernel));
}
FAKE_EXPORT CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  return cuFuncGetModule(reinterpret_cast<CUmodule*>(library), reinterpret_cast<CUfunction>(kernel));
}

FAKE_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int size,
                                                                 std::size_t) {
  *blocks = size <= 0 ? 0 : std::min(32, 2048 / size);
  return size <= 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function,
                                                                          int size, std::size_t shared,
                                                                          unsigned) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, size, shared);
}
FAKE_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction, CUoccupancyB2DSize,
                                                      std::size_t, int limit) {
  *block = limit <= 0 ? 1024 : std::min(limit, 1024);
  *grid = 132 * 2;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction function,
                                                               CUoccupancyB2DSize shared_of,
                                                               std::size_t shared, int limit, unsigned) {
  return cuOccupancyMaxPotentialBlockSize(grid, block, function, shared_of, shared, limit);
}
FAKE_EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = 16;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction, const CUlaunchConfig*) {
  *size = 8;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, CUfunction, int, int) {
  *bytes = 49152;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuProfilerStart() { return CUDA_SUCCESS; }
FAKE_EXPORT CUresult cuProfilerStop() { return CUDA_SUCCESS; }
