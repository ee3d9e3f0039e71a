// The allocations of driver_client: one function for each kind of memory that the driver has.

#include "tests/driver/driver_allocations.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/driver/driver_calls.h"

namespace lgpu::driver_client {

using namespace lgpu::shim;  // the types of the driver's interface

Stream StreamOfDeviceOne() {
  static Stream stream = nullptr;
  if (stream != nullptr) return stream;
  Context context = nullptr;
  Call("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, &context, Device{1});
  Call("cuCtxPushCurrent_v2", "cuCtxPushCurrent", 4000, context);
  Call("cuStreamCreate", "cuStreamCreate", 2000, &stream, 1U);
  Call("cuCtxPopCurrent_v2", "cuCtxPopCurrent", 4000, &context);
  return stream;
}

namespace {

Result AllocateVirtual(Held& made) {
  AllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {.type = kLocationDevice, .id = 0};
  Handle handle = 0;
  if (const Result created =
          Call("cuMemCreate", "cuMemCreate", 10020, &handle, static_cast<std::size_t>(made.bytes),
               static_cast<const AllocationProp*>(&prop), Flags64{0});
      created != kSuccess) {
    return created;
  }
  Call("cuMemAddressReserve", "cuMemAddressReserve", 10020, &made.number,
       static_cast<std::size_t>(made.bytes), std::size_t{0}, DevicePtr{0}, Flags64{0});
  const Result mapped = Call("cuMemMap", "cuMemMap", 10020, made.number, static_cast<std::size_t>(made.bytes),
                             std::size_t{0}, handle, Flags64{0});
  // The mapping keeps the memory.
  Call("cuMemRelease", "cuMemRelease", 10020, handle);
  return mapped;
}

Result AllocateArray(Held& made) {
  ArrayDescriptor descriptor{.width = made.bytes / 4096, .height = 1024, .format = 0x20, .channels = 1};
  Array array = nullptr;
  const Result result = Call("cuArrayCreate_v2", "cuArrayCreate", 3020, &array,
                             static_cast<const ArrayDescriptor*>(&descriptor));
  made.number = reinterpret_cast<std::uint64_t>(array);
  return result;
}

Result AllocateMipmapped(Held& made) {  // two levels: four fifths and one fifth
  Array3dDescriptor descriptor{};
  const bool has_layers = made.kind == "layered";
  descriptor.width = 1024;
  descriptor.height = made.bytes / 5 / 1024 / (has_layers ? 8 : 1);
  descriptor.depth = has_layers ? 8 : 0;
  descriptor.flags = has_layers ? 1 : 0;  // CUDA_ARRAY3D_LAYERED
  descriptor.format = 0x20;
  descriptor.channels = 1;
  MipmappedArray array = nullptr;
  const Result result = Call("cuMipmappedArrayCreate", "cuMipmappedArrayCreate", 5000, &array,
                             static_cast<const Array3dDescriptor*>(&descriptor), 2U);
  made.number = reinterpret_cast<std::uint64_t>(array);
  return result;
}

void DestroyGraph(Held& old) {
  Call("cuGraphExecDestroy", "cuGraphExecDestroy", 10000, old.executable);
  Call("cuGraphDestroy", "cuGraphDestroy", 10000, old.graph);
}

Result Launch(Held& made, Stream stream) {
  Result launched = Call("cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags", 11040,
                         &made.executable, made.graph, Flags64{made.kind == "uploaded" ? kGraphUpload : 0});
  if (launched == kSuccess) launched = Call("cuGraphLaunch", "cuGraphLaunch", 10000, made.executable, stream);
  if (launched != kSuccess || made.kind == "gone_graph") DestroyGraph(made);
  return launched;
}

Result AllocateInGraph(Held& made) {
  Call("cuGraphCreate", "cuGraphCreate", 10000, &made.graph, 0U);
  MemAllocNodeParams params{};
  params.pool.alloc_type = 1;
  params.pool.location = {.type = kLocationDevice, .id = 0};
  params.bytes = made.bytes;
  GraphNode node = nullptr;
  const Result added = Call("cuGraphAddMemAllocNode", "cuGraphAddMemAllocNode", 11040, &node, made.graph,
                            static_cast<const GraphNode*>(nullptr), std::size_t{0}, &params);
  made.number = params.address;
  return added == kSuccess ? Launch(made, nullptr) : added;
}

Result AllocateCaptured(Held& made) {
  Stream stream = nullptr;
  Call("cuStreamCreate", "cuStreamCreate", 2000, &stream, 1U);
  Result result = Call("cuStreamBeginCapture_v2", "cuStreamBeginCapture", 10010, stream, 1);
  if (result == kSuccess) {
    result = Call("cuMemAllocAsync", "cuMemAllocAsync", 11020, &made.number,
                  static_cast<std::size_t>(made.bytes), stream);
    const Result ended = Call("cuStreamEndCapture", "cuStreamEndCapture", 10000, stream, &made.graph);
    if (result == kSuccess) result = ended;
  }
  if (result == kSuccess) result = Launch(made, stream);
  Call("cuStreamDestroy_v2", "cuStreamDestroy", 4000, stream);
  return result;
}

Result AllocateOnDeviceOne(Held& made) {
  if (made.kind == "stream_of_one") {
    return Call("cuMemAllocAsync", "cuMemAllocAsync", 11020, &made.number,
                static_cast<std::size_t>(made.bytes), StreamOfDeviceOne());
  }
  MemPool pool = nullptr;
  Call("cuDeviceGetDefaultMemPool", "cuDeviceGetDefaultMemPool", 11020, &pool, Device{1});
  return Call("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 11020, &made.number,
              static_cast<std::size_t>(made.bytes), pool, Stream{nullptr});
}

MemPool made_pool = nullptr;  // by MakePool

Result AllocateFromPool(Held& made) {  // of a pool that gives nothing back by itself
  MemPoolProps props{};
  const bool is_managed = made.kind == "managed_pool";
  props.alloc_type = is_managed ? kAllocationManaged : 1;
  props.location = {.type = is_managed ? CU_MEM_LOCATION_TYPE_NONE : kLocationDevice, .id = 0};
  const Result result = Call("cuMemPoolCreate", "cuMemPoolCreate", 11020, &made.graph,
                             static_cast<const MemPoolProps*>(&props));
  if (result != kSuccess) return result;
  std::uint64_t all = ~std::uint64_t{0};
  Call("cuMemPoolSetAttribute", "cuMemPoolSetAttribute", 11020, made.graph, 4, static_cast<void*>(&all));
  const Result taken = Call("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 11020, &made.number,
                            static_cast<std::size_t>(made.bytes), made.graph, Stream{nullptr});
  if (taken != kSuccess) Call("cuMemPoolDestroy", "cuMemPoolDestroy", 11020, made.graph);
  return taken;
}

}  // namespace

Result Allocate(Held& made) {
  const auto bytes = static_cast<std::size_t>(made.bytes);
  if (made.kind == "plain") return Call("cuMemAlloc_v2", "cuMemAlloc", 3020, &made.number, bytes);
  if (made.kind == "managed") {
    return Call("cuMemAllocManaged", "cuMemAllocManaged", 6000, &made.number, bytes, unsigned{1});
  }
  if (made.kind == "pitched") {
    std::size_t pitch = 0;
    return Call("cuMemAllocPitch_v2", "cuMemAllocPitch", 3020, &made.number, &pitch, bytes / 1024,
                std::size_t{1024}, unsigned{4});
  }
  if (made.kind == "async") {
    return Call("cuMemAllocAsync", "cuMemAllocAsync", 11020, &made.number, bytes, Stream{nullptr});
  }
  if (made.kind == "virtual") return AllocateVirtual(made);
  if (made.kind == "array") return AllocateArray(made);
  if (made.kind == "mipmapped" || made.kind == "layered") return AllocateMipmapped(made);
  if (made.kind == "stream_of_one" || made.kind == "pool_of_one") return AllocateOnDeviceOne(made);
  if (made.kind == "graph" || made.kind == "gone_graph" || made.kind == "uploaded") {
    return AllocateInGraph(made);
  }
  if (made.kind == "captured") return AllocateCaptured(made);
  if (made.kind == "pool" || made.kind == "managed_pool") return AllocateFromPool(made);
  if (made.kind == "of_made_pool") {
    return Call("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 11020, &made.number, bytes, made_pool,
                Stream{nullptr});
  }
  return -1;
}

Result Free(Held old) {
  if (old.kind == "stream_of_one") {
    const Result freed = Call("cuMemFreeAsync", "cuMemFreeAsync", 11020, old.number, StreamOfDeviceOne());
    Call("cuStreamSynchronize", "cuStreamSynchronize", 2000, StreamOfDeviceOne());
    return freed;
  }
  if (old.kind == "async" || old.kind == "pool_of_one" || old.kind == "of_made_pool" ||
      old.kind == "gone_graph" || old.graph != nullptr) {
    const Result freed = Call("cuMemFreeAsync", "cuMemFreeAsync", 11020, old.number, Stream{nullptr});
    Call("cuCtxSynchronize", "cuCtxSynchronize", 2000);
    if (old.kind == "pool" || old.kind == "managed_pool") {
      Call("cuMemPoolDestroy", "cuMemPoolDestroy", 11020, old.graph);
    }
    if (old.kind == "graph" || old.kind == "captured" || old.kind == "uploaded") DestroyGraph(old);
    return freed;
  }
  if (old.kind == "opened") return Call("cuIpcCloseMemHandle", "cuIpcCloseMemHandle", 4010, old.number);
  if (old.kind == "mipmapped" || old.kind == "layered") {
    return Call("cuMipmappedArrayDestroy", "cuMipmappedArrayDestroy", 5000,
                reinterpret_cast<MipmappedArray>(old.number));
  }
  if (old.kind == "virtual") {
    const Result unmapped =
        Call("cuMemUnmap", "cuMemUnmap", 10020, old.number, static_cast<std::size_t>(old.bytes));
    Call("cuMemAddressFree", "cuMemAddressFree", 10020, old.number, static_cast<std::size_t>(old.bytes));
    return unmapped;
  }
  if (old.kind == "array") {
    return Call("cuArrayDestroy", "cuArrayDestroy", 2000, reinterpret_cast<Array>(old.number));
  }
  return Call("cuMemFree_v2", "cuMemFree", 3020, old.number);
}

Result MakePool() {
  MemPoolProps props{};
  props.alloc_type = 1;
  props.location = {.type = kLocationDevice, .id = 0};
  return Call("cuMemPoolCreate", "cuMemPoolCreate", 11020, &made_pool,
              static_cast<const MemPoolProps*>(&props));
}

}  // namespace lgpu::driver_client
