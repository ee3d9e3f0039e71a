// The calls of the fake driver on graphs and captures. A graph's memory is taken at upload or launch, as
// cuda.h has it, and stays the device's until that is trimmed.

#include "tests/fake_cuda/fake_graphs.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "tests/fake_cuda/fake_blocks.h"
#include "tests/fake_cuda/fake_calls.h"

namespace lgpu::fake_cuda {
namespace {

std::shared_ptr<Graph> FindGraph(Process& process, CUgraph handle) {
  const auto graph = process.graphs.find(reinterpret_cast<Graph*>(handle));
  return graph == process.graphs.end() ? nullptr : graph->second;
}

CUgraph AddGraph(Process& process, std::shared_ptr<Graph> graph) {
  const auto handle = reinterpret_cast<CUgraph>(graph.get());
  process.graphs.emplace(graph.get(), std::move(graph));
  return handle;
}

CUresult AddNode(Graph& graph, GraphNode node, CUgraphNode* handle) {
  graph.nodes.push_back(std::make_shared<GraphNode>(std::move(node)));
  if (handle != nullptr) *handle = reinterpret_cast<CUgraphNode>(graph.nodes.back().get());
  return CUDA_SUCCESS;
}

// One that does nothing here.
CUresult AddPlain(CUgraphNode* handle, CUgraph graph_handle, CUgraphNodeType type) {
  FAKE_ENTER("cuGraphAddNode");
  const std::shared_ptr<Graph> graph = FindGraph(process, graph_handle);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : AddNode(*graph, {.type = type}, handle);
}

void NoteGraphMemory(Process& process, int card) {
  std::uint64_t used = 0, reserved = 0;
  for (const auto& [address, memory] : process.graph_memory) {
    if (memory.card != card || !memory.is_backed) continue;
    reserved += memory.bytes;
    used += memory.is_used ? memory.bytes : 0;
  }
  auto& figures = process.graph_figures[card];
  figures[CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT] = used;
  figures[CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT] = reserved;
  for (const auto& [high, current] : {std::pair(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, used),
                                      std::pair(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, reserved)}) {
    figures[high] = std::max(figures[high], current);
  }
}

// Gives every allocation of a graph its memory.
CUresult Back(Process& process, const GraphExec& exec) {
  for (const std::shared_ptr<GraphNode>& node : exec.nodes) {
    if (node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) continue;
    GraphMemory& memory = process.graph_memory[node->address];
    if (memory.is_backed) continue;
    std::shared_ptr<Allocation> made;
    if (const CUresult result =
            NewAllocation(process, memory.card, memory.bytes, StateFile::Kind::kMemory, &made);
        result != CUDA_SUCCESS) {
      return result;
    }
    MapMemory(process, std::move(made), SeenBy::kDevice, node->address);
    memory.is_backed = true;
    NoteGraphMemory(process, memory.card);
  }
  return CUDA_SUCCESS;
}

CUresult Instantiate(CUgraphExec* handle, CUgraph graph_handle, unsigned long long flags) {
  FAKE_ENTER_CONTEXT("cuGraphInstantiate");
  const std::shared_ptr<Graph> graph = FindGraph(process, graph_handle);
  if (graph == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<GraphExec>(GraphExec{graph->nodes, flags});
  *handle = reinterpret_cast<CUgraphExec>(made.get());
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
    if (const CUresult backed = Back(process, *made); backed != CUDA_SUCCESS) return backed;
  }
  process.execs.emplace(made.get(), std::move(made));
  return CUDA_SUCCESS;
}

std::shared_ptr<GraphExec> FindExec(Process& process, CUgraphExec handle) {
  const auto exec = process.execs.find(reinterpret_cast<GraphExec*>(handle));
  return exec == process.execs.end() ? nullptr : exec->second;
}

CUresult BeginCapture(CUstream handle, std::shared_ptr<Graph> graph) {
  FAKE_ENTER("cuStreamBeginCapture");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuStreamBeginCapture", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  if (stream == stream->context->default_stream) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = graph == nullptr ? std::make_shared<Graph>() : std::move(graph);
  return CUDA_SUCCESS;
}

CUresult CaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph) {
  FAKE_ENTER("cuStreamGetCaptureInfo");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuStreamGetCaptureInfo", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  const bool captures = stream->capture != nullptr;
  *status = captures ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (id != nullptr) *id = reinterpret_cast<std::uintptr_t>(stream->capture.get());
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream->capture.get());
  return CUDA_SUCCESS;
}

}  // namespace

CUresult AddAllocation(Process& process, Graph& graph, int card, std::uint64_t bytes, CUdeviceptr* address,
                       CUgraphNode* node) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t size = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  *address = ReserveAddresses(process, size);
  if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  process.graph_memory[*address] = {.bytes = size, .card = card};
  return AddNode(graph,
                 {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                  .run = nullptr,
                  .address = *address,
                  .bytes = bytes,
                  .card = card},
                 node);
}

CUresult AddFree(Graph& graph, CUdeviceptr address, CUgraphNode* node) {
  return AddNode(graph,
                 {.type = CU_GRAPH_NODE_TYPE_MEM_FREE,
                  .run =
                      [address] {
                        Process& process = Process::This();
                        const std::lock_guard lock(process.mutex);
                        process.pieces.erase(address);
                        FreeGraphMemory(process, address);
                      },
                  .address = address},
                 node);
}

void FreeGraphMemory(Process& process, CUdeviceptr address) {
  const auto memory = process.graph_memory.find(address);
  if (memory == process.graph_memory.end()) return;
  memory->second.is_used = false;
  NoteGraphMemory(process, memory->second.card);
}

}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuGraphCreate(CUgraph* handle, unsigned) {
  FAKE_ENTER("cuGraphCreate");
  *handle = AddGraph(process, std::make_shared<Graph>());
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuGraphClone(CUgraph* handle, CUgraph original) {
  FAKE_ENTER("cuGraphClone");
  const std::shared_ptr<Graph> graph = FindGraph(process, original);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = AddGraph(process, std::make_shared<Graph>(*graph));
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuGraphDestroy(CUgraph handle) {
  FAKE_ENTER("cuGraphDestroy");
  return process.graphs.erase(reinterpret_cast<Graph*>(handle)) == 1 ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_INVALID_VALUE;
}

FAKE_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph handle, const CUgraphNode*,
                                            std::size_t, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  FAKE_ENTER("cuGraphAddMemAllocNode");
  const std::shared_ptr<Graph> graph = FindGraph(process, handle);
  const int card = CardOf(parameters->poolProps.location.id);
  if (graph == nullptr || card < 0) return CUDA_ERROR_INVALID_VALUE;
  return AddAllocation(process, *graph, card, parameters->bytesize, &parameters->dptr, node);
}
FAKE_EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph handle, const CUgraphNode*, std::size_t,
                                           CUdeviceptr address) {
  FAKE_ENTER("cuGraphAddMemFreeNode");
  const std::shared_ptr<Graph> graph = FindGraph(process, handle);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : AddFree(*graph, address, node);
}
FAKE_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                       const CUgraphEdgeData*, std::size_t count,
                                       CUgraphNodeParams* parameters) {
  if (parameters->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return cuGraphAddMemFreeNode(node, graph, dependencies, count, parameters->free.dptr);
  }
  if (parameters->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return AddPlain(node, graph, parameters->type);
  CUDA_MEM_ALLOC_NODE_PARAMS plain{};
  plain.poolProps = parameters->alloc.poolProps;
  plain.bytesize = parameters->alloc.bytesize;
  const CUresult added = cuGraphAddMemAllocNode(node, graph, dependencies, count, &plain);
  parameters->alloc.dptr = plain.dptr;
  return added;
}
FAKE_EXPORT CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                    std::size_t count, CUgraphNodeParams* parameters) {
  return cuGraphAddNode_v2(node, graph, dependencies, nullptr, count, parameters);
}
FAKE_EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t) {
  return AddPlain(node, graph, CU_GRAPH_NODE_TYPE_EMPTY);
}
FAKE_EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode*,
                                             std::size_t, const CUDA_KERNEL_NODE_PARAMS*) {
  return AddPlain(node, graph, CU_GRAPH_NODE_TYPE_KERNEL);
}
FAKE_EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t,
                                          const CUDA_MEMCPY3D*, CUcontext) {
  return AddPlain(node, graph, CU_GRAPH_NODE_TYPE_MEMCPY);
}
FAKE_EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t,
                                          const CUDA_MEMSET_NODE_PARAMS*, CUcontext) {
  return AddPlain(node, graph, CU_GRAPH_NODE_TYPE_MEMSET);
}
FAKE_EXPORT CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode*, const CUgraphNode*, std::size_t) {
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuGraphAddDependencies_v2(CUgraph, const CUgraphNode*, const CUgraphNode*,
                                               const CUgraphEdgeData*, std::size_t) {
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  FAKE_ENTER("cuGraphGetNodes");
  const std::shared_ptr<Graph> graph = FindGraph(process, handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t all = graph->nodes.size();
  for (std::size_t i = 0; nodes != nullptr && i < std::min(all, *count); ++i) {
    nodes[i] = reinterpret_cast<CUgraphNode>(graph->nodes[i].get());
  }
  *count = all;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  *type = reinterpret_cast<GraphNode*>(node)->type;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle,
                                                  CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  FAKE_ENTER("cuGraphMemAllocNodeGetParams");
  const auto* const node = reinterpret_cast<const GraphNode*>(handle);
  if (node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return CUDA_ERROR_INVALID_VALUE;
  *parameters = {};
  parameters->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters->poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = process.OrdinalOf(node->card)};
  parameters->bytesize = node->bytes;
  parameters->dptr = node->address;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr* address) {
  const auto* const node = reinterpret_cast<const GraphNode*>(handle);
  *address = node->address;
  return node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return Instantiate(exec, graph, flags);
}
FAKE_EXPORT CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*, std::size_t) {
  return Instantiate(exec, graph, 0);
}
FAKE_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*,
                                           std::size_t) {
  return Instantiate(exec, graph, 0);
}
FAKE_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult made = Instantiate(exec, graph, parameters->flags);
  parameters->result_out =
      made == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return made;
}
FAKE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
  FAKE_ENTER("cuGraphExecDestroy");
  return process.execs.erase(reinterpret_cast<GraphExec*>(handle)) == 1 ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_INVALID_VALUE;
}
FAKE_EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream) {
  FAKE_ENTER_CONTEXT("cuGraphUpload");
  const std::shared_ptr<GraphExec> exec = FindExec(process, handle);
  return exec == nullptr ? CUDA_ERROR_INVALID_VALUE : Back(process, *exec);
}

FAKE_EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  FAKE_ENTER("cuGraphLaunch");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(stream_handle, "cuGraphLaunch", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  const std::shared_ptr<GraphExec> exec = FindExec(process, handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool frees_itself = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (const std::shared_ptr<GraphNode>& node : exec->nodes) {
    // "attempting to launch the graph while the allocation is not freed" is an error without that flag.
    const bool is_allocation = node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    if (is_allocation && process.graph_memory[node->address].is_used && !frees_itself) {
      const bool frees = std::any_of(exec->nodes.begin(), exec->nodes.end(), [&](const auto& other) {
        return other->type == CU_GRAPH_NODE_TYPE_MEM_FREE && other->address == node->address;
      });
      if (!frees) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (const CUresult backed = Back(process, *exec); backed != CUDA_SUCCESS) return backed;
  for (const std::shared_ptr<GraphNode>& node : exec->nodes) {
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      process.graph_memory[node->address].is_used = true;
      process.pieces[node->address] = {.kind = Piece::Kind::kGraph, .bytes = node->bytes, .card = node->card};
      NoteGraphMemory(process, node->card);
    }
    if (node->run != nullptr) stream->Queue({{}, node->run});
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
  FAKE_ENTER("cuDeviceGraphMemTrim");
  const int card = CardOf(device);
  if (card < 0) return CUDA_ERROR_INVALID_DEVICE;
  for (auto& [address, memory] : process.graph_memory) {
    if (memory.card != card || !memory.is_backed || memory.is_used) continue;
    process.mappings.erase(address);
    ::mmap(process.reservations[address].shadow, memory.bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    memory.is_backed = false;
  }
  NoteGraphMemory(process, card);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                                  void* value) {
  FAKE_ENTER("cuDeviceGetGraphMemAttribute");
  if (CardOf(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *static_cast<cuuint64_t*>(value) = process.graph_figures[CardOf(device)][attribute];
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void*) {
  FAKE_ENTER("cuDeviceSetGraphMemAttribute");
  if (CardOf(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  process.graph_figures[CardOf(device)][attribute] = 0;
  NoteGraphMemory(process, CardOf(device));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamBeginCapture(CUstream stream) { return BeginCapture(stream, nullptr); }
FAKE_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  return BeginCapture(stream, nullptr);
}
FAKE_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  FAKE_ENTER("cuStreamEndCapture");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuStreamEndCapture", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  const std::shared_ptr<Graph> captured = stream->capture;
  for (const auto& [key, other] : process.streams) {
    if (other->capture == captured) other->capture.reset();
  }
  *graph = AddGraph(process, captured);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return CaptureInfo(stream, status, nullptr, nullptr);
}
FAKE_EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return CaptureInfo(stream, status, id, nullptr);
}
FAKE_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                               CUgraph* graph, const CUgraphNode**, std::size_t* count) {
  if (count != nullptr) *count = 0;
  return CaptureInfo(stream, status, id, graph);
}
FAKE_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                               CUgraph* graph, const CUgraphNode**, const CUgraphEdgeData**,
                                               std::size_t* count) {
  if (count != nullptr) *count = 0;
  return CaptureInfo(stream, status, id, graph);
}
FAKE_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(current, *mode);
  return CUDA_SUCCESS;
}
