// The calls of driver_client with null parameters.

#include <cstddef>
#include <cstdint>
#include <string>

#include "client/driver/cuda_abi.h"
#include "tests/driver/driver_calls.h"

namespace lgpu::driver_client {

using namespace lgpu::shim;  // the types of the driver's interface

Result CallWithNull(const std::string& name) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  DevicePtr* const no_address = nullptr;
  std::size_t* const no_size = nullptr;
  if (name == "cuDeviceTotalMem") return Call("cuDeviceTotalMem_v2", name.c_str(), 3020, no_size, Device{0});
  if (name == "cuMemAlloc") return Call("cuMemAlloc_v2", name.c_str(), 3020, no_address, kBytes);
  if (name == "cuMemAllocPitch") {
    DevicePtr address = 0;
    return Call("cuMemAllocPitch_v2", name.c_str(), 3020, &address, no_size, kBytes / 1024, std::size_t{1024},
                unsigned{4});
  }
  if (name == "cuMemAllocManaged") {
    return Call(name.c_str(), name.c_str(), 6000, no_address, kBytes, unsigned{1});
  }
  if (name == "cuMemAllocAsync") {
    return Call(name.c_str(), name.c_str(), 11020, no_address, kBytes, Stream{nullptr});
  }
  if (name == "cuMemPoolCreate") {
    MemPoolProps props{};
    props.alloc_type = 1;
    props.location = {.type = kLocationDevice, .id = 0};
    return Call(name.c_str(), name.c_str(), 11020, static_cast<MemPool*>(nullptr),
                static_cast<const MemPoolProps*>(&props));
  }
  if (name == "cuMemCreate") {
    AllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {.type = kLocationDevice, .id = 0};
    return Call(name.c_str(), name.c_str(), 10020, static_cast<Handle*>(nullptr), kBytes,
                static_cast<const AllocationProp*>(&prop), Flags64{0});
  }
  if (name == "cuMemRetainAllocationHandle") {
    return Call(name.c_str(), name.c_str(), 11000, static_cast<Handle*>(nullptr),
                static_cast<void*>(nullptr));
  }
  if (name == "cuMemImportFromShareableHandle") {
    return Call(name.c_str(), name.c_str(), 10020, static_cast<Handle*>(nullptr), static_cast<void*>(nullptr),
                1);
  }
  if (name == "cuIpcOpenMemHandle") {
    return Call("cuIpcOpenMemHandle_v2", name.c_str(), 11000, no_address, IpcMemHandle{}, 1U);
  }
  if (name == "cuArrayCreate") {
    const ArrayDescriptor descriptor{.width = 1024, .height = 1024, .format = 0x20, .channels = 1};
    return Call("cuArrayCreate_v2", name.c_str(), 3020, static_cast<Array*>(nullptr), &descriptor);
  }
  if (name == "cuMipmappedArrayCreate") {
    Array3dDescriptor descriptor{};
    descriptor.width = descriptor.height = 1024;
    descriptor.format = 0x20;
    descriptor.channels = 1;
    return Call(name.c_str(), name.c_str(), 5000, static_cast<MipmappedArray*>(nullptr),
                static_cast<const Array3dDescriptor*>(&descriptor), 2U);
  }
  if (name == "cuGraphInstantiateWithFlags") {
    Graph graph = nullptr;
    Call("cuGraphCreate", "cuGraphCreate", 10000, &graph, 0U);
    MemAllocNodeParams params{};
    params.pool.alloc_type = 1;
    params.pool.location = {.type = kLocationDevice, .id = 0};
    params.bytes = kBytes;
    GraphNode node = nullptr;
    Call("cuGraphAddMemAllocNode", "cuGraphAddMemAllocNode", 11040, &node, graph,
         static_cast<const GraphNode*>(nullptr), std::size_t{0}, &params);
    const Result made = Call(name.c_str(), name.c_str(), 11040, static_cast<GraphExec*>(nullptr), graph,
                             Flags64{kGraphUpload});
    Call("cuGraphDestroy", "cuGraphDestroy", 10000, graph);
    return made;
  }
  if (name == "cuCtxAttach") {
    return Call(name.c_str(), name.c_str(), 2000, static_cast<Context*>(nullptr), 0U);
  }
  if (name == "cuGetProcAddress") {
    return Call(name.c_str(), name.c_str(), 11030, "cuMemAlloc", static_cast<void**>(nullptr), 3020,
                Flags64{0});
  }
  return -1;
}

}  // namespace lgpu::driver_client
