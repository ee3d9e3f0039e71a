// runtime_client LIMIT: a program on the CUDA runtime that has never heard of lgpu, for scripts/gpu-check. It takes
// memory by each of the runtime's allocators until it is refused, and fails unless what it got is at most LIMIT and
// the refusal is cudaErrorMemoryAllocation.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

__global__ void Add(float* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] += 1;
}

struct Way {
  const char* name;
  cudaError_t (*take)(void** memory, std::size_t bytes);
  cudaError_t (*free)(void* memory);
};

cudaError_t TakePlain(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t TakeManaged(void** memory, std::size_t bytes) { return cudaMallocManaged(memory, bytes); }
cudaError_t TakeOrdered(void** memory, std::size_t bytes) { return cudaMallocAsync(memory, bytes, nullptr); }
cudaError_t FreeOrdered(void* memory) { return cudaFreeAsync(memory, nullptr); }

const Way kWays[] = {{"cudaMalloc", TakePlain, cudaFree},
                     {"cudaMallocManaged", TakeManaged, cudaFree},
                     {"cudaMallocAsync", TakeOrdered, FreeOrdered}};

bool Fill(const Way& way, std::size_t limit) {
  std::vector<void*> held;
  std::size_t sum = 0;
  cudaError_t result = cudaSuccess;
  for (std::size_t bytes = limit / 4; bytes >= 2 * kMiB && sum <= limit;) {
    void* memory = nullptr;
    result = way.take(&memory, bytes);
    if (result == cudaSuccess) {
      held.push_back(memory);
      sum += bytes;
    } else {
      (void)cudaGetLastError();
      if (result != cudaErrorMemoryAllocation) break;
      bytes /= 2;
    }
  }
  bool works = false;
  if (!held.empty()) {
    Add<<<1, 32>>>(static_cast<float*>(held.front()), 32);
    works = cudaDeviceSynchronize() == cudaSuccess;
  }
  for (void* const memory : held) (void)way.free(memory);
  (void)cudaDeviceSynchronize();
  std::printf("%s: %zu MiB in %zu pieces, then %s; a kernel %s\n", way.name, sum / kMiB, held.size(),
              cudaGetErrorName(result), works ? "ran" : "FAILED");
  return works && sum <= limit && result == cudaErrorMemoryAllocation;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t limit = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  std::size_t free = 0, total = 0;
  const cudaError_t told = cudaMemGetInfo(&free, &total);
  std::printf("cudaMemGetInfo: %s, %zu MiB of %zu MiB free, limit %zu MiB\n", cudaGetErrorName(told), free / kMiB,
              total / kMiB, limit / kMiB);
  bool holds = told == cudaSuccess && total <= limit && free <= total;
  for (const Way& way : kWays) holds = Fill(way, limit) && holds;
  return holds ? 0 : 1;
}
