#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_GRAPHS_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_GRAPHS_H_

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace lgpu::fake_cuda {

struct Process;

struct GraphNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
  std::function<void()> run = {};  // null: nothing to do
  CUdeviceptr address = 0;         // of memory nodes
  std::uint64_t bytes = 0;
  int card = 0;
};

/// A Graph runs its nodes in the order in which they came.
struct Graph {
  std::vector<std::shared_ptr<GraphNode>> nodes;
};

struct GraphExec {
  std::vector<std::shared_ptr<GraphNode>> nodes;
  unsigned long long flags = 0;
};

/// Memory of a graph: it has its address from the node on, and memory from the first launch until the
/// device's graph memory is trimmed.
struct GraphMemory {
  std::uint64_t bytes = 0;
  int card = 0;
  bool is_backed = false, is_used = false;
};

// Callers hold Process::mutex. `node` may be null.
/// A node that allocates.
CUresult AddAllocation(Process& process, Graph& graph, int card, std::uint64_t bytes, CUdeviceptr* address,
                       CUgraphNode* node);
/// A node that frees.
CUresult AddFree(Graph& graph, CUdeviceptr address, CUgraphNode* node);
void FreeGraphMemory(Process& process, CUdeviceptr address);

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_GRAPHS_H_
