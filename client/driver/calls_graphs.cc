// Graphs with memory nodes. The graph owns that memory, and the driver reserves it at the first launch or
// upload; it keeps what graphs freed until the device's graph memory is trimmed.

#include "client/driver/shim.h"

namespace lgpu::shim {
namespace {

constexpr int kDeepest = 16;  // of graphs within graphs

/// Adds the memory nodes of `graph`, and of the graphs within it, to `parts`.
void AddMemoryNodes(Graph graph, int depth, std::vector<GraphBook::Part>& parts) {
  const RealDriver& real = RealDriver::Get();
  std::size_t count = 0;
  if (depth == 0 ||
      CallReal(real.cuGraphGetNodes, graph, static_cast<GraphNode*>(nullptr), &count) != kSuccess)
    return;
  std::vector<GraphNode> nodes(count);
  if (count == 0 || CallReal(real.cuGraphGetNodes, graph, nodes.data(), &count) != kSuccess) return;
  for (const GraphNode node : nodes) {
    int type = 0;
    if (CallReal(real.cuGraphNodeGetType, node, &type) != kSuccess) continue;
    Graph child = nullptr;
    if (type == kGraphNodeChild && CallReal(real.cuGraphChildGraphNodeGetGraph, node, &child) == kSuccess) {
      AddMemoryNodes(child, depth - 1, parts);
    }
    MemAllocNodeParams params{};
    if (type == kGraphNodeMemAlloc &&
        CallReal(real.cuGraphMemAllocNodeGetParams, node, &params) == kSuccess &&
        params.pool.location.type == kLocationDevice) {
      parts.push_back({.device = params.pool.location.id, .bytes = RoundUp(params.bytes, kBlock)});
    }
  }
}

template <typename Instantiate>
Result AfterInstantiate(GraphExec* executable, Graph graph, Instantiate instantiate) {
  const Result result = instantiate();
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess) return result;
  GraphBook book;
  AddMemoryNodes(graph, kDeepest, book.parts);
  if (book.parts.empty()) return result;
  const std::lock_guard lock(shim->graphs_mutex);
  shim->graphs.insert_or_assign(*executable, std::move(book));
  shim->has_graphs.store(true);
  return result;
}

void GiveBack(Shim& shim, const std::vector<GraphBook::Part>& parts, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const GraphBook::Part& part = parts[i];
    const auto pool = shim.graph_pools.Of(static_cast<std::uint64_t>(part.device), shim.CardOf(part.device));
    shim.graph_pools.GiveBack(*pool, part.bytes);
  }
}

/// Charges the memory of a graph before its first launch. False: refused.
bool ChargeGraph(GraphExec executable, const char* call) {
  Shim* const shim = Shim::Get();
  if (shim == nullptr || !shim->has_graphs.load(std::memory_order_acquire)) return true;
  std::vector<GraphBook::Part> parts;
  {
    const std::lock_guard lock(shim->graphs_mutex);
    const auto known = shim->graphs.find(executable);
    if (known == shim->graphs.end() || known->second.is_charged) return true;
    known->second.is_charged = true;
    parts = known->second.parts;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const int card = shim->CardOf(parts[i].device);
    const auto pool = shim->graph_pools.Of(static_cast<std::uint64_t>(parts[i].device), card);
    if (!shim->session.IsInAllowance(card, parts[i].bytes)) shim->SettlePools();
    if (shim->graph_pools.Take(*pool, parts[i].bytes, call)) continue;
    GiveBack(*shim, parts, i);
    const std::lock_guard lock(shim->graphs_mutex);
    if (const auto known = shim->graphs.find(executable); known != shim->graphs.end()) {
      known->second.is_charged = false;
    }
    return false;
  }
  return true;
}

Result Launch(Result (*real)(GraphExec, Stream), GraphExec executable, Stream stream, const char* call) {
  return ChargeGraph(executable, call) ? CallReal(real, executable, stream) : kOutOfMemory;
}

}  // namespace

LGPU_SHIM_EXPORT Result cuGraphInstantiate(GraphExec* executable, Graph graph, GraphNode* node, char* log,
                                           std::size_t size) {
  return AfterInstantiate(executable, graph, [&] {
    return CallReal(RealDriver::Get().cuGraphInstantiate, executable, graph, node, log, size);
  });
}
LGPU_SHIM_EXPORT Result cuGraphInstantiate_v2(GraphExec* executable, Graph graph, GraphNode* node, char* log,
                                              std::size_t size) {
  return AfterInstantiate(executable, graph, [&] {
    return CallReal(RealDriver::Get().cuGraphInstantiate_v2, executable, graph, node, log, size);
  });
}
LGPU_SHIM_EXPORT Result cuGraphInstantiateWithFlags(GraphExec* executable, Graph graph, Flags64 flags) {
  return AfterInstantiate(executable, graph, [&] {
    return CallReal(RealDriver::Get().cuGraphInstantiateWithFlags, executable, graph, flags);
  });
}
LGPU_SHIM_EXPORT Result cuGraphInstantiateWithParams(GraphExec* executable, Graph graph, void* params) {
  return AfterInstantiate(executable, graph, [&] {
    return CallReal(RealDriver::Get().cuGraphInstantiateWithParams, executable, graph, params);
  });
}
LGPU_SHIM_EXPORT Result cuGraphInstantiateWithParams_ptsz(GraphExec* executable, Graph graph, void* params) {
  return AfterInstantiate(executable, graph, [&] {
    return CallReal(RealDriver::Get().cuGraphInstantiateWithParams_ptsz, executable, graph, params);
  });
}

LGPU_SHIM_EXPORT Result cuGraphUpload(GraphExec executable, Stream stream) {
  return Launch(RealDriver::Get().cuGraphUpload, executable, stream, "cuGraphUpload");
}
LGPU_SHIM_EXPORT Result cuGraphUpload_ptsz(GraphExec executable, Stream stream) {
  return Launch(RealDriver::Get().cuGraphUpload_ptsz, executable, stream, "cuGraphUpload");
}
LGPU_SHIM_EXPORT Result cuGraphLaunch(GraphExec executable, Stream stream) {
  return Launch(RealDriver::Get().cuGraphLaunch, executable, stream, "cuGraphLaunch");
}
LGPU_SHIM_EXPORT Result cuGraphLaunch_ptsz(GraphExec executable, Stream stream) {
  return Launch(RealDriver::Get().cuGraphLaunch_ptsz, executable, stream, "cuGraphLaunch");
}

LGPU_SHIM_EXPORT Result cuGraphExecDestroy(GraphExec executable) {
  Shim* const shim = Shim::Get();
  GraphBook book;
  if (shim != nullptr && shim->has_graphs.load()) {
    const std::lock_guard lock(shim->graphs_mutex);
    if (auto known = shim->graphs.extract(executable)) book = std::move(known.mapped());
  }
  const Result result = CallReal(RealDriver::Get().cuGraphExecDestroy, executable);
  if (book.parts.empty()) return result;
  if (result == kSuccess) {
    if (book.is_charged) GiveBack(*shim, book.parts, book.parts.size());
  } else {
    const std::lock_guard lock(shim->graphs_mutex);
    shim->graphs.insert_or_assign(executable, std::move(book));
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuDeviceGraphMemTrim(Device device) {
  const Result result = CallReal(RealDriver::Get().cuDeviceGraphMemTrim, device);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess) shim->graph_pools.SettleAll();
  return result;
}

}  // namespace lgpu::shim
