// driver_client WAY [LIBRARY [VISIBLE]]: a program without any code of lgpu. It comes to the CUDA driver by
// WAY (linked, dlopen, deepbind, dlmopen, lookup, lookup_per_thread), sets CUDA_VISIBLE_DEVICES to VISIBLE
// itself, makes a context of device 0 and runs the
// commands on its stdin, one answer each: "ok ..." or "error CODE". One file past the usual length: its many
// short commands share one context, and it has no other code than its own.

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/driver/cuda_abi.h"
#include "tests/driver/driver_calls.h"

using namespace lgpu::shim;  // the types of the driver's interface
using lgpu::driver_client::Call;
using lgpu::driver_client::ObeyMore;

extern "C" {
Result cuMemAlloc_v2(DevicePtr*, std::size_t) __attribute__((weak));
Result cuMemFree_v2(DevicePtr) __attribute__((weak));
}

namespace {

std::string way, opened;
void* library = nullptr;
Result (*get_proc_address)(const char*, void**, int, Flags64) = nullptr;

bool OpenDriver(const char* path) {
  if (way == "linked") return true;
  if (way == "dlmopen") {
    library = ::dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
  } else {
    library = ::dlopen(path, RTLD_NOW | (way == "deepbind" ? RTLD_DEEPBIND : 0));
  }
  if (library == nullptr) std::cerr << ::dlerror() << "\n";
  if (library == nullptr || way.rfind("lookup", 0) != 0) return library != nullptr;
  get_proc_address = reinterpret_cast<decltype(get_proc_address)>(::dlsym(library, "cuGetProcAddress"));
  void* again = nullptr;
  if (get_proc_address == nullptr || get_proc_address("cuGetProcAddress", &again, 11030, 0) != kSuccess) {
    return false;
  }
  get_proc_address = reinterpret_cast<decltype(get_proc_address)>(again);
  return true;
}

}  // namespace

void* lgpu::driver_client::Find(const char* symbol, const char* name, int version) {
  if (way == "linked") {
    if (std::strcmp(symbol, "cuMemAlloc_v2") == 0) return reinterpret_cast<void*>(&cuMemAlloc_v2);
    if (std::strcmp(symbol, "cuMemFree_v2") == 0) return reinterpret_cast<void*>(&cuMemFree_v2);
    return ::dlsym(RTLD_DEFAULT, symbol);
  }
  if (get_proc_address != nullptr) {
    void* found = nullptr;
    const Flags64 flags = way == "lookup_per_thread" ? kPerThreadStream : 0;
    // As a CUDA runtime does: the look-up itself is looked up first.
    return get_proc_address(name, &found, version, flags) == kSuccess ? found : nullptr;
  }
  return ::dlsym(library, symbol);
}

namespace {

struct Held {
  std::string kind;
  std::uint64_t number = 0, bytes = 0;
  void* graph = nullptr;
  void* executable = nullptr;
};
std::map<std::string, Held> held;

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

/// A stream of device 1, made while device 0 is current before and after.
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

MemPool made_pool = nullptr;  // by "make_pool"

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

std::string Answer(Result result) { return result == kSuccess ? "ok" : "error " + std::to_string(result); }

/// A call with null where it writes its result, and valid parameters else.
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

/// NVML's figures of device 0 into `memory`: total, free, used.
Result NvmlMemory(unsigned long long* memory) {
  void* const nvml = ::dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (nvml == nullptr) return -1;
  void* device = nullptr;
  reinterpret_cast<int (*)()>(::dlsym(nvml, "nvmlInit_v2"))();
  reinterpret_cast<int (*)(unsigned, void**)>(::dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
  return reinterpret_cast<Result (*)(void*, unsigned long long*)>(::dlsym(nvml, "nvmlDeviceGetMemoryInfo"))(
      device, memory);
}

/// As many allocations of `bytes` as there is room for: how many there were.
std::string Fill(const std::string& kind, std::uint64_t bytes) {
  int count = 0;
  Result result = kSuccess;
  for (; count < 100000; ++count) {
    Held made{.kind = kind, .number = 0, .bytes = bytes};
    result = Allocate(made);
    if (result != kSuccess) break;
    held["fill" + std::to_string(held.size())] = made;
  }
  return "ok " + std::to_string(count) + " " + std::to_string(result);
}

/// Threads that allocate and free as fast as they can.
std::string Churn(int threads, int rounds, std::uint64_t bytes) {
  std::vector<std::thread> workers;
  Context context = nullptr;
  Call("cuCtxGetCurrent", "cuCtxGetCurrent", 4000, &context);
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([=] {
      Call("cuCtxPushCurrent_v2", "cuCtxPushCurrent", 4000, context);
      for (int round = 0; round < rounds; ++round) {
        Held made{.kind = "plain", .number = 0, .bytes = bytes};
        if (Allocate(made) == kSuccess) Free(made);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return "ok";
}

/// The UUIDs of the devices that the driver shows, in its order.
std::string Devices() {
  int count = 0;
  const Result counted = Call("cuDeviceGetCount", "cuDeviceGetCount", 2000, &count);
  std::string uuids;
  for (Device device = 0; device < count; ++device) {
    unsigned char uuid[16] = {};
    Call("cuDeviceGetUuid", "cuDeviceGetUuid", 9020, &uuid, device);
    uuids += " GPU-";
    for (int i = 0; i < 16; ++i) {
      constexpr char kDigits[] = "0123456789abcdef";
      if (i == 4 || i == 6 || i == 8 || i == 10) uuids += '-';
      uuids += kDigits[uuid[i] >> 4];
      uuids += kDigits[uuid[i] & 15];
    }
  }
  return counted == kSuccess ? "ok" + uuids : Answer(counted);
}

std::string Obey(std::istringstream& words) {
  std::string verb, name;
  words >> verb;
  if (verb == "alloc") {
    Held made;
    words >> name >> made.kind >> made.bytes;
    const Result result = Allocate(made);
    if (result == kSuccess) held[name] = made;
    return Answer(result);
  }
  if (verb == "free") {
    words >> name;
    const Held old = held[name];
    held.erase(name);
    return Answer(Free(old));
  }
  if (verb == "fill") {
    std::uint64_t bytes = 0;
    words >> name >> bytes;
    return Fill(name, bytes);
  }
  if (verb == "free_all") {
    for (const auto& [key, old] : held) Free(old);
    held.clear();
    return "ok";
  }
  if (verb == "churn") {
    int threads = 0, rounds = 0;
    std::uint64_t bytes = 0;
    words >> threads >> rounds >> bytes;
    return Churn(threads, rounds, bytes);
  }
  if (verb == "call") {  // one without parameters
    words >> name;
    return Answer(Call(name.c_str(), name.c_str(), 99000));
  }
  if (verb == "later") {  // forms of calls that a program of tomorrow asks for
    words >> name;
    if (name == "cuMemAlloc") {
      DevicePtr address = 0;
      return Answer(Call("cuMemAlloc_v3", "cuMemAlloc", 14000, &address, std::size_t{1} << 20, Flags64{0}));
    }
    return Answer(Call("cuMemFreeAsync_v2", "cuMemFreeAsync", 14000, DevicePtr{1}, Stream{nullptr}));
  }
  if (verb == "trim_graphs") {
    return Answer(Call("cuDeviceGraphMemTrim", "cuDeviceGraphMemTrim", 11040, Device{0}));
  }
  if (verb == "past" || verb == "past_free") {  // the real driver, behind the shim
    std::uint64_t bytes = 0;
    words >> name >> bytes;
    void* const real = ::dlopen("liblgpu_real_cuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (real == nullptr) return "error no shim";
    if (verb == "past_free") {
      const Held old = held[name];
      held.erase(name);
      return Answer(reinterpret_cast<Result (*)(DevicePtr)>(::dlsym(real, "cuMemFree_v2"))(old.number));
    }
    Held made{.kind = "plain", .bytes = bytes};
    const auto allocate =
        reinterpret_cast<Result (*)(DevicePtr*, std::size_t)>(::dlsym(real, "cuMemAlloc_v2"));
    const Result result = allocate(&made.number, bytes);
    if (result == kSuccess) held[name] = made;
    return Answer(result);
  }
  if (verb == "fork_and_stay") {  // until the parent's stdin and its own end
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(STDOUT_FILENO);
      ::close(STDERR_FILENO);
      ::alarm(60);
      char byte = 0;
      while (::read(STDIN_FILENO, &byte, 1) > 0) {
      }
      std::_Exit(0);
    }
    return child > 0 ? "ok" : "error";
  }
  if (verb == "keep_default_pool") {
    MemPool pool = nullptr;
    Call("cuDeviceGetDefaultMemPool", "cuDeviceGetDefaultMemPool", 11020, &pool, Device{0});
    std::uint64_t all = ~std::uint64_t{0};
    return Answer(
        Call("cuMemPoolSetAttribute", "cuMemPoolSetAttribute", 11020, pool, 4, static_cast<void*>(&all)));
  }
  if (verb == "make_pool") {
    MemPoolProps props{};
    props.alloc_type = 1;
    props.location = {.type = kLocationDevice, .id = 0};
    return Answer(Call("cuMemPoolCreate", "cuMemPoolCreate", 11020, &made_pool,
                       static_cast<const MemPoolProps*>(&props)));
  }
  if (verb == "make_context") {  // current from here on
    Context context = nullptr;
    return Answer(Call("cuCtxCreate_v2", "cuCtxCreate", 3020, &context, 0U, Device{0}));
  }
  if (verb == "attach") {
    Context context = nullptr;
    return Answer(Call("cuCtxAttach", "cuCtxAttach", 2000, &context, 0U));
  }
  if (verb == "detach") {
    Context context = nullptr;
    Call("cuCtxGetCurrent", "cuCtxGetCurrent", 4000, &context);
    return Answer(Call("cuCtxDetach", "cuCtxDetach", 2000, context));
  }
  if (verb == "forget") {  // without the driver's knowledge
    words >> name;
    held.erase(name);
    return "ok";
  }
  if (verb == "ipc_get") {  // the handle in letters
    words >> name;
    IpcMemHandle handle{};
    const Result result = Call("cuIpcGetMemHandle", "cuIpcGetMemHandle", 4010, &handle,
                               static_cast<DevicePtr>(held[name].number));
    std::string text = result == kSuccess ? "ok " : Answer(result);
    for (const char byte : handle.reserved) {
      text += static_cast<char>('a' + (static_cast<unsigned char>(byte) >> 4));
      text += static_cast<char>('a' + (static_cast<unsigned char>(byte) & 15));
    }
    return text;
  }
  if (verb == "ipc_open") {
    std::string text;
    words >> name >> text;
    IpcMemHandle handle{};
    for (std::size_t i = 0; i < sizeof(handle.reserved) && 2 * i + 1 < text.size(); ++i) {
      handle.reserved[i] = static_cast<char>((text[2 * i] - 'a') << 4 | (text[2 * i + 1] - 'a'));
    }
    Held shared{.kind = "opened"};
    const Result result =
        Call("cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle", 11000, &shared.number, handle, 1U);
    if (result == kSuccess) held[name] = shared;
    return Answer(result);
  }
  if (verb == "become") {  // the same program anew, in this process
    const char* const words_of_it[] = {"/proc/self/exe", way.c_str(), opened.c_str(), nullptr};
    ::execv(words_of_it[0], const_cast<char* const*>(words_of_it));
    return "error";
  }
  if (verb == "ignore_term") return ::signal(SIGTERM, SIG_IGN) == SIG_ERR ? "error" : "ok";
  if (verb == "info_of_one") {  // of device 1
    Context context = nullptr;
    (void)StreamOfDeviceOne();
    Call("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, &context, Device{1});
    Call("cuCtxPushCurrent_v2", "cuCtxPushCurrent", 4000, context);
    std::size_t free = 0, total = 0;
    const Result result = Call("cuMemGetInfo_v2", "cuMemGetInfo", 3020, &free, &total);
    Call("cuCtxPopCurrent_v2", "cuCtxPopCurrent", 4000, &context);
    return result == kSuccess ? "ok " + std::to_string(free) + " " + std::to_string(total) : Answer(result);
  }
  if (verb == "info") {
    std::size_t free = 0, total = 0;
    const Result result = Call("cuMemGetInfo_v2", "cuMemGetInfo", 3020, &free, &total);
    return result == kSuccess ? "ok " + std::to_string(free) + " " + std::to_string(total) : Answer(result);
  }
  if (verb == "info_with_null") {  // free alone, total alone, neither
    std::size_t free = 0, total = 0;
    std::size_t* const none = nullptr;
    const Result results[] = {Call("cuMemGetInfo_v2", "cuMemGetInfo", 3020, &free, none),
                              Call("cuMemGetInfo_v2", "cuMemGetInfo", 3020, none, &total),
                              Call("cuMemGetInfo_v2", "cuMemGetInfo", 3020, none, none)};
    for (const Result result : results) {
      if (result != kSuccess) return Answer(result);
    }
    return "ok " + std::to_string(free) + " " + std::to_string(total);
  }
  if (verb == "null") {
    words >> name;
    return Answer(name == "nvmlDeviceGetMemoryInfo" ? NvmlMemory(nullptr) : CallWithNull(name));
  }
  if (verb == "nvml_info") {
    unsigned long long memory[3] = {};
    const Result result = NvmlMemory(memory);
    return result == kSuccess ? "ok " + std::to_string(memory[1]) + " " + std::to_string(memory[0])
                              : Answer(result);
  }
  if (verb == "total") {
    std::size_t total = 0;
    const Result result = Call("cuDeviceTotalMem_v2", "cuDeviceTotalMem", 3020, &total, Device{0});
    return result == kSuccess ? "ok " + std::to_string(total) : Answer(result);
  }
  if (verb == "devices") return Devices();
  if (verb == "variable") {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return visible == nullptr ? "unset" : std::string("ok ") + visible;
  }
  if (verb == "init") {  // once more
    words >> name;
    if (!name.empty()) ::setenv("CUDA_VISIBLE_DEVICES", name.c_str(), 1);
    return Answer(Call("cuInit", "cuInit", 2000, unsigned{0}));
  }
  if (verb == "forget_context") {
    const Result result = Call("cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset", 11000, Device{0});
    held.clear();
    return Answer(result);
  }
  if (verb == "fork") {  // a child that exits: it must not take the parent's session with it
    const pid_t child = ::fork();
    if (child == 0) std::_Exit(0);
    int status = 0;
    ::waitpid(child, &status, 0);
    return "ok";
  }
  return ObeyMore(verb, words).value_or("error no such command");
}

}  // namespace

int main(int argc, char** argv) {
  way = argc > 1 ? argv[1] : "";
  opened = argc > 2 ? argv[2] : "libcuda.so.1";
  if (!OpenDriver(opened.c_str())) return 3;
  if (argc > 3) ::setenv("CUDA_VISIBLE_DEVICES", argv[3], 1);
  Result started = Call("cuInit", "cuInit", 2000, unsigned{0});
  Context context = nullptr;
  if (started == kSuccess) {
    started = Call("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, &context, Device{0});
  }
  if (started == kSuccess) started = Call("cuCtxPushCurrent_v2", "cuCtxPushCurrent", 4000, context);
  std::cout << Answer(started) << std::endl;
  std::string line;
  while (std::getline(std::cin, line) && line != "exit") {
    std::istringstream words(line);
    std::cout << Obey(words) << std::endl;
  }
  for (const auto& [name, old] : held) Free(old);
  Call("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", 11000, Device{0});
  return 0;
}
