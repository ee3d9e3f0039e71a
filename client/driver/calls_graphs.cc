// Graphs with memory nodes. The graph owns that memory, and the driver reserves it at the first launch or
// upload. The driver keeps memory that graphs freed until the device's graph memory is trimmed.

#include "client/driver/shim.h"
#include "client/driver/use_notes.h"

namespace lgpu::shim {
namespace {

constexpr int kDeepest = 16;  // of graphs within graphs

void AddPart(std::vector<GraphBook::Part>& parts, const GraphBook::Part& part) {
  for (GraphBook::Part& known : parts) {
    if (known.device != part.device) continue;
    known.bytes = part.bytes > ~known.bytes ? ~std::uint64_t{0} : known.bytes + part.bytes;
    return;
  }
  parts.push_back(part);
}

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
      AddPart(parts, {.device = params.pool.location.id, .bytes = RoundUp(params.bytes, kBlock)});
    }
  }
}

std::shared_ptr<PoolBook> BookOf(Shim& shim, Device device) {
  return shim.graph_pools.Of(static_cast<std::uint64_t>(device), device, shim.CardOf(device));
}

void GiveBack(Shim& shim, const std::vector<GraphBook::Part>& parts, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    shim.graph_pools.GiveBack(*BookOf(shim, parts[i].device), parts[i].bytes);
  }
}

/// The driver may make the graph's memory anew although it keeps some of other graphs: both are charged.
/// Where that is refused, the kept memory is trimmed first.
bool TakePart(Shim& shim, const GraphBook::Part& part, const char* call) {
  // Shared: another thread may put a new book in its place, once the card is known.
  const std::shared_ptr<PoolBook> book = BookOf(shim, part.device);
  PoolBook& pool = *book;
  const auto take = [&] {
    const std::uint64_t reserved = GraphReserved(pool.pool).value_or(0);
    const std::uint64_t floor = reserved > ~part.bytes ? ~std::uint64_t{0} : reserved + part.bytes;
    return shim.graph_pools.Take(pool, part.bytes, call, floor);
  };
  shim.MakeRoom(pool.card, part.bytes);
  if (take()) return true;
  if (CallReal(RealDriver::Get().cuDeviceGraphMemTrim, part.device) != kSuccess) return false;
  shim.graph_pools.Settle(pool);
  return take();
}

/// All parts or none. False: refused.
bool Take(Shim& shim, const std::vector<GraphBook::Part>& parts, const char* call) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (TakePart(shim, parts[i], call)) continue;
    GiveBack(shim, parts, i);
    return false;
  }
  return true;
}

/// All parts or none, as far as their cards have the memory.
bool TakeAgain(Shim& shim, const std::vector<GraphBook::Part>& parts, const char* call) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (shim.graph_pools.TakeAgain(*BookOf(shim, parts[i].device), parts[i].bytes, call)) continue;
    GiveBack(shim, parts, i);
    return false;
  }
  return true;
}

void TellRefused(Shim& shim, const std::vector<GraphBook::Part>& parts, const char* call) {
  shim.graph_pools.SettleAll();
  for (const GraphBook::Part& part : parts) {
    shim.graph_pools.TellRefused(*BookOf(shim, part.device), part.bytes, call);
  }
}

/// The flags of CUDA_GRAPH_INSTANTIATE_PARAMS, which begins with them.
Flags64 FlagsOf(const void* params) { return params == nullptr ? 0 : *static_cast<const Flags64*>(params); }

/// An instantiation that uploads the graph (`flags`) is charged, too.
template <typename MakeExecutable>
Result Instantiate(GraphExec* executable, Graph graph, Flags64 flags, const char* call, MakeExecutable make) {
  Shim* const shim = Shim::Get();
  GraphBook book;
  if (shim != nullptr && executable != nullptr) AddMemoryNodes(graph, kDeepest, book.parts);
  if (book.parts.empty()) return make();
  book.is_charged = (flags & kGraphUpload) != 0;
  if (book.is_charged && !Take(*shim, book.parts, call)) return kOutOfMemory;
  const Result result = make();
  if (result == kSuccess) {
    const std::lock_guard lock(shim->graphs_mutex);
    shim->graphs.insert_or_assign(*executable, std::move(book));
    shim->has_graphs.store(true);
  } else if (book.is_charged) {
    GiveBack(*shim, book.parts, book.parts.size());
  }
  return result;
}

/// Sets whether the graph is charged. Its parts, if that was different before.
std::vector<GraphBook::Part> SetCharged(Shim& shim, GraphExec executable, bool is_charged) {
  const std::lock_guard lock(shim.graphs_mutex);
  const auto known = shim.graphs.find(executable);
  if (known == shim.graphs.end() || known->second.is_charged == is_charged) return {};
  known->second.is_charged = is_charged;
  return known->second.parts;
}

/// The first launch or upload is charged.
Result Launch(Result (*real)(GraphExec, Stream), GraphExec executable, Stream stream, const char* call) {
  NoteUse();
  Shim* const shim = Shim::Get();
  if (shim == nullptr || !shim->has_graphs.load(std::memory_order_acquire)) {
    return CallReal(real, executable, stream);
  }
  const std::vector<GraphBook::Part> parts = SetCharged(*shim, executable, true);
  if (!Take(*shim, parts, call)) {
    (void)SetCharged(*shim, executable, false);
    return kOutOfMemory;
  }
  Result result = CallReal(real, executable, stream);
  if (parts.empty()) return result;
  if (result == kOutOfMemory) {  // once more, when the cards have the memory
    GiveBack(*shim, parts, parts.size());
    if (!TakeAgain(*shim, parts, call)) {
      (void)SetCharged(*shim, executable, false);
      return kOutOfMemory;
    }
    result = CallReal(real, executable, stream);
  }
  if (result != kSuccess && !SetCharged(*shim, executable, false).empty()) {
    GiveBack(*shim, parts, parts.size());
    if (result == kOutOfMemory) TellRefused(*shim, parts, call);
  }
  // The driver may have used memory that it kept.
  shim->graph_pools.SettleAll();
  return result;
}

}  // namespace

LGPU_SHIM_EXPORT Result cuGraphInstantiate(GraphExec* executable, Graph graph, GraphNode* node, char* log,
                                           std::size_t size) {
  return Instantiate(executable, graph, 0, "cuGraphInstantiate", [&] {
    return CallReal(RealDriver::Get().cuGraphInstantiate, executable, graph, node, log, size);
  });
}
LGPU_SHIM_EXPORT Result cuGraphInstantiate_v2(GraphExec* executable, Graph graph, GraphNode* node, char* log,
                                              std::size_t size) {
  return Instantiate(executable, graph, 0, "cuGraphInstantiate", [&] {
    return CallReal(RealDriver::Get().cuGraphInstantiate_v2, executable, graph, node, log, size);
  });
}
LGPU_SHIM_EXPORT Result cuGraphInstantiateWithFlags(GraphExec* executable, Graph graph, Flags64 flags) {
  return Instantiate(executable, graph, flags, "cuGraphInstantiateWithFlags", [&] {
    return CallReal(RealDriver::Get().cuGraphInstantiateWithFlags, executable, graph, flags);
  });
}
LGPU_SHIM_EXPORT Result cuGraphInstantiateWithParams(GraphExec* executable, Graph graph, void* params) {
  return Instantiate(executable, graph, FlagsOf(params), "cuGraphInstantiateWithParams", [&] {
    return CallReal(RealDriver::Get().cuGraphInstantiateWithParams, executable, graph, params);
  });
}
LGPU_SHIM_EXPORT Result cuGraphInstantiateWithParams_ptsz(GraphExec* executable, Graph graph, void* params) {
  return Instantiate(executable, graph, FlagsOf(params), "cuGraphInstantiateWithParams", [&] {
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
    if (!book.is_charged) return result;
    for (const GraphBook::Part& part : book.parts) shim->graph_pools.KeepInUse(*BookOf(*shim, part.device));
    GiveBack(*shim, book.parts, book.parts.size());
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
