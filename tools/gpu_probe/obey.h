#ifndef LGPU_TOOLS_GPU_PROBE_OBEY_H_
#define LGPU_TOOLS_GPU_PROBE_OBEY_H_

#include <cstddef>
#include <string>
#include <vector>

#include "allocator/device/cuda/cuda_driver.h"
#include "base/unique_fd.h"

namespace lgpu::gpu_probe {

/// Obedience is an agent's commands to the driver: calls as they are, without lgpu's backend between. Memory
/// and descriptors are stacks; a command works on the last one. Nothing is given back at the end: that is the
/// experiment.
class Obedience {
 public:
  /// "ok NAME=NUMBER ..." or "error CALL gave ..."; `reply` gets a descriptor where there is one to send.
  std::string Do(const std::string& line, UniqueFd fd, UniqueFd& reply);

 private:
  struct Memory {
    CUmemGenericAllocationHandle handle = 0;
    std::size_t bytes = 0;
    CUdeviceptr address = 0;
  };

  std::string Check(const char* call, CUresult result) const;
  std::string Start();
  std::string Create(std::size_t bytes);
  std::string Alloc(std::size_t bytes);
  std::string Map(bool read_only);
  std::string Unmap();
  std::string Export(UniqueFd& reply);
  std::string Import(UniqueFd fd, std::size_t bytes);
  std::string Reexport(UniqueFd& reply);
  std::string Context();
  std::string Green(unsigned multiprocessors);
  std::string Module();
  std::string Fill(int value, int times);
  std::string Verify(int value);
  std::string Find(int value);
  std::string Cost(std::size_t bytes, int count);
  std::string Limit(const std::string& what, std::size_t most);
  std::string Work(int milliseconds);
  std::string Library(const std::string& file, const std::string& function);

  CudaDriver cu_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction fill_ = nullptr;
  std::vector<Memory> memory_;
  std::vector<UniqueFd> kept_;
};

}  // namespace lgpu::gpu_probe

#endif  // LGPU_TOOLS_GPU_PROBE_OBEY_H_
