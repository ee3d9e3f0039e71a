#ifndef LGPU_TOOLS_GPU_PROBE_GREEN_CONTEXT_H_
#define LGPU_TOOLS_GPU_PROBE_GREEN_CONTEXT_H_

#include <cuda.h>

#include <string>

namespace lgpu::gpu_probe {

/// A context of device 0 that has some of its multiprocessors only, and a stream in it.
struct GreenContext {
  unsigned multiprocessors = 0;  // a multiple of the driver's unit
  CUcontext context = nullptr;
  CUstream stream = nullptr;
};

/// Makes one of at least so many multiprocessors, which lives as long as the process. "" or the error: a
/// driver before CUDA 12.4 has no such calls, nor has a build with such a toolkit.
std::string MakeGreenContext(unsigned multiprocessors, GreenContext& made);

}  // namespace lgpu::gpu_probe

#endif  // LGPU_TOOLS_GPU_PROBE_GREEN_CONTEXT_H_
