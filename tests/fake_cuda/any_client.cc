// A program without any code of lgpu: any_client CASE uses the driver in one of the ways that programs do,
// and prints each difference from the fake driver's state. --list names the cases.

#include "tests/fake_cuda/any_client.h"

#include <cuda.h>
#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include "allocator/device/cuda/nvml_abi.h"

extern char** environ;

int any_client::wrong = 0;

std::size_t any_client::Free() {
  std::size_t free = 0, total = 0;
  OK(cuMemGetInfo_v2(&free, nullptr));
  OK(cuMemGetInfo_v2(nullptr, &total));
  EXPECT(free <= total);
  return free;
}

// By how much `free` fell since `before`.
std::size_t any_client::Taken(std::size_t before) { return before - Free(); }

CUcontext any_client::Start() {
  CUcontext context = nullptr;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  return context;
}

CUmemGenericAllocationHandle any_client::Create(std::size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemCreate(&handle, bytes, &properties, 0));
  return handle;
}

namespace {

using namespace any_client;

void Lookup() {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  const auto is = [&](const char* name, int version, std::uint64_t flags, const char* symbol) {
    OK(cuGetProcAddress_v2(name, &found, version, flags, &status));
    return found != nullptr && found == ::dlsym(RTLD_DEFAULT, symbol);
  };
  EXPECT(is("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"));
  EXPECT(is("cuMemAlloc", 2000, 0, "cuMemAlloc"));
  EXPECT(is("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"));
  EXPECT(is("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"));
  EXPECT(is("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"));
  EXPECT(is("cuDevicePrimaryCtxReset", 7000, 0, "cuDevicePrimaryCtxReset"));
  EXPECT(is("cuGetProcAddress", 11030, 0, "cuGetProcAddress"));
  EXPECT(is("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"));
  EXPECT(is("cuMemAllocAsync", 11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, "cuMemAllocAsync_ptsz"));
  EXPECT(is("cuMemcpyHtoD", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, "cuMemcpyHtoD_v2_ptds"));
  OK(cuGetProcAddress_v2("cuMemAllocAsync", &found, 11010, 0, &status));
  EXPECT(found == nullptr && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  OK(cuGetProcAddress_v2("cuNoSuchCall", &found, 13000, 0, &status));
  EXPECT(found == nullptr && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  const void* table = nullptr;
  const CUuuid uuid{};
  EXPECT(cuGetExportTable(&table, &uuid) == CUDA_ERROR_NOT_FOUND);
  const char* text = nullptr;
  OK(cuGetErrorName(CUDA_ERROR_SYSTEM_NOT_READY, &text));
  EXPECT(std::strcmp(text, "CUDA_ERROR_SYSTEM_NOT_READY") == 0);
  EXPECT(cuGetErrorString(static_cast<CUresult>(-1), &text) == CUDA_ERROR_INVALID_VALUE);
}

// Every name of the list is found, and calls that the fake does not have answer 801.
void Names() {
  std::ifstream names(LGPU_DRIVER_NAMES);
  int count = 0;
  for (std::string line; std::getline(names, line); ++count) {
    std::istringstream fields(line);
    std::string name, version, symbol, twin;
    fields >> name >> version >> symbol >> twin;
    EXPECT(::dlsym(RTLD_DEFAULT, symbol.c_str()) != nullptr);
    EXPECT(twin.empty() || ::dlsym(RTLD_DEFAULT, (symbol + twin).c_str()) != nullptr);
  }
  EXPECT(count > 500);
  auto* const missing = reinterpret_cast<CUresult (*)(void*)>(::dlsym(RTLD_DEFAULT, "cuMulticastCreate"));
  EXPECT(missing(nullptr) == CUDA_ERROR_NOT_SUPPORTED);
}

void Plain() {
  Start();
  const std::size_t before = Free();
  CUdeviceptr small = 0, other = 0, large = 0, none = 0;
  OK(cuMemAlloc_v2(&small, 4));
  OK(cuMemAlloc_v2(&other, 1 * kMiB));
  EXPECT(Taken(before) == 2 * kMiB);  // both are cut from one block
  OK(cuMemAlloc_v2(&large, 5 * kMiB));
  EXPECT(Taken(before) == 8 * kMiB);
  EXPECT(cuMemAlloc_v2(&none, before) == CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(cuMemAlloc_v2(&none, 0) == CUDA_ERROR_INVALID_VALUE);
  std::size_t pitch = 0;
  OK(cuMemAllocPitch_v2(&none, &pitch, 100, 10000, 4));
  EXPECT(pitch == 512 && Taken(before) == 14 * kMiB);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  OK(cuMemGetAddressRange_v2(&base, &size, large + 17));
  EXPECT(base == large && size == 5 * kMiB);
  OK(cuMemsetD32_v2(large, 0x01020304, 16));
  OK(cuMemcpyDtoD_v2(small, large, 4));
  std::uint32_t value = 0;
  OK(cuMemcpyDtoH_v2(&value, small, 4));
  EXPECT(value == 0x01020304);
  for (const CUdeviceptr address : {small, other, large, none, CUdeviceptr{0}}) OK(cuMemFree_v2(address));
  EXPECT(cuMemFree_v2(large) == CUDA_ERROR_INVALID_VALUE);
  EXPECT(Taken(before) == 0);
}

void ManagedAndHost() {
  Start();
  const std::size_t before = Free();
  CUdeviceptr managed = 0, huge = 0;
  void* host = nullptr;
  OK(cuMemAllocManaged(&managed, 4 * kMiB, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemHostAlloc(&host, 8 * kMiB, CU_MEMHOSTALLOC_DEVICEMAP));
  EXPECT(Taken(before) == 4 * kMiB);
  OK(cuMemAllocManaged(&huge, 2 * before, CU_MEM_ATTACH_GLOBAL));  // it may exceed the card
  EXPECT(Taken(before) == 4 * kMiB);
  std::memset(reinterpret_cast<void*>(managed), 9, kMiB);
  OK(cuMemcpyDtoH_v2(host, managed, kMiB));
  EXPECT(static_cast<char*>(host)[17] == 9);
  OK(cuMemFree_v2(managed));
  OK(cuMemFree_v2(huge));
  OK(cuMemFreeHost(host));
  EXPECT(Taken(before) == 0);
}

std::uint64_t Reserved(CUmemoryPool pool) {
  cuuint64_t bytes = 0;
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
  return bytes;
}

void Pools() {
  Start();
  const std::size_t before = Free();
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  CUdeviceptr one = 0, two = 0;
  OK(cuMemAllocAsync(&one, 3 * kMiB, nullptr));
  OK(cuMemAllocAsync(&two, 3 * kMiB, nullptr));
  EXPECT(Reserved(pool) == 32 * kMiB && Taken(before) == 32 * kMiB);
  cuuint64_t keep = ~cuuint64_t{0};
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  OK(cuMemFreeAsync(one, nullptr));
  OK(cuMemFree_v2(two));
  OK(cuCtxSynchronize());
  EXPECT(Reserved(pool) == 32 * kMiB);
  OK(cuMemPoolTrimTo(pool, 0));
  EXPECT(Reserved(pool) == 0 && Taken(before) == 0);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  OK(cuMemPoolCreate(&pool, &properties));
  OK(cuMemAllocFromPoolAsync(&one, kMiB, pool, nullptr));
  OK(cuMemPoolDestroy(pool));
  EXPECT(Taken(before) == 32 * kMiB);  // until its last allocation is freed
  OK(cuMemFreeAsync(one, nullptr));
  OK(cuCtxSynchronize());
  EXPECT(Taken(before) == 0);
}

void Contexts() {
  CUcontext primary = Start();
  const std::size_t before = Free();
  CUcontext made = nullptr, popped = nullptr;
  OK(cuCtxCreate_v2(&made, 0, 0));
  EXPECT(Taken(before) == 16 * kMiB);
  CUdeviceptr plain = 0, pooled = 0;
  OK(cuMemAlloc_v2(&plain, 4 * kMiB));
  OK(cuMemAllocAsync(&pooled, 4 * kMiB, nullptr));
  const CUmemGenericAllocationHandle handle = Create(2 * kMiB);
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 10 * kMiB));
  EXPECT(Taken(before) == (16 + 4 + 32 + 2 + 2) * kMiB);
  OK(cuCtxPopCurrent_v2(&popped));
  EXPECT(popped == made);
  OK(cuCtxSetCurrent(primary));
  OK(cuCtxDestroy_v2(made));
  EXPECT(Taken(before) == (32 + 2) * kMiB);  // pools and handles belong to no context
  OK(cuMemRelease(handle));
  OK(cuMemFreeAsync(pooled, nullptr));
  OK(cuCtxSynchronize());
  OK(cuMemAlloc_v2(&plain, 4 * kMiB));
  OK(cuDevicePrimaryCtxReset_v2(0));
  EXPECT(cuMemFree_v2(plain) != CUDA_SUCCESS);
  Start();
  EXPECT(Taken(before) == 0);
}

void Handles() {
  Start();
  const std::size_t before = Free();
  CUdeviceptr address = 0;
  OK(cuMemAddressReserve(&address, 64 * kMiB, 0, 0, 0));
  const CUmemGenericAllocationHandle handle = Create(20 * kMiB);
  OK(cuMemMap(address, 20 * kMiB, 0, handle, 0));
  OK(cuMemRelease(handle));
  EXPECT(Taken(before) == 20 * kMiB);  // the mapping keeps it
  OK(cuMemUnmap(address, 20 * kMiB));
  EXPECT(Taken(before) == 0);
  OK(cuMemAddressFree(address, 64 * kMiB));
  CUmemAllocationProp host{};
  host.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  host.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle on_host = 0;
  OK(cuMemCreate(&on_host, 4 * kMiB, &host, 0));
  EXPECT(Taken(before) == 0);
  OK(cuMemRelease(on_host));
}

void ArraysAndModules() {
  Start();
  const std::size_t before = Free();
  CUDA_ARRAY3D_DESCRIPTOR about{};
  about.Width = about.Height = 1024;
  about.Format = CU_AD_FORMAT_FLOAT;
  about.NumChannels = 1;
  CUarray array = nullptr, sparse = nullptr;
  CUmipmappedArray mipmaps = nullptr;
  OK(cuArray3DCreate_v2(&array, &about));
  OK(cuMipmappedArrayCreate(&mipmaps, &about, 3));
  EXPECT(Taken(before) == (4 + 6) * kMiB);
  about.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
  OK(cuArray3DCreate_v2(&sparse, &about));
  EXPECT(Taken(before) == 10 * kMiB);
  for (const CUarray each : {array, sparse}) OK(cuArrayDestroy(each));
  OK(cuMipmappedArrayDestroy(mipmaps));
  EXPECT(Taken(before) == 0);

  const char* const kCode =
      ".version 6.3\n.target sm_75\n.address_size 64\n.global .align 4 .b8 table[4194304];\n"
      ".visible .entry work() { ret; }\n";
  CUmodule module = nullptr;
  CUfunction work = nullptr;
  CUdeviceptr table = 0;
  std::size_t bytes = 0;
  OK(cuModuleLoadData(&module, kCode));
  EXPECT(Taken(before) == 4 * kMiB);
  OK(cuModuleGetGlobal_v2(&table, &bytes, module, "table"));
  EXPECT(bytes == 4 * kMiB);
  OK(cuModuleGetFunction(&work, module, "work"));
  OK(cuLaunchKernel(work, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
  OK(cuCtxSynchronize());
  OK(cuModuleUnload(module));
  EXPECT(Taken(before) == 0);
}

std::uint64_t GraphMemory(CUgraphMem_attribute attribute) {
  cuuint64_t bytes = 0;
  OK(cuDeviceGetGraphMemAttribute(0, attribute, &bytes));
  return bytes;
}

void Graphs() {
  Start();
  const std::size_t before = Free();
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphNode node = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
  wanted.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.bytesize = 8 * kMiB;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &wanted));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT(Taken(before) == 0);  // nothing before the launch
  OK(cuGraphLaunch(exec, nullptr));
  EXPECT(Taken(before) == 8 * kMiB && GraphMemory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 8 * kMiB);
  EXPECT(cuGraphLaunch(exec, nullptr) == CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree_v2(wanted.dptr));
  EXPECT(GraphMemory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0 &&
         Taken(before) == 8 * kMiB);  // the device keeps it
  OK(cuDeviceGraphMemTrim(0));
  EXPECT(Taken(before) == 0);

  // A captured allocation becomes a node of a graph, and allocates when the graph is launched.
  CUstream stream = nullptr;
  CUdeviceptr captured = 0;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemAllocAsync(&captured, 4 * kMiB, stream));
  OK(cuMemsetD8Async(captured, 5, 16, stream));
  OK(cuMemFreeAsync(captured, stream));
  OK(cuStreamEndCapture(stream, &graph));
  EXPECT(Taken(before) == 0);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  EXPECT(Taken(before) == 4 * kMiB);
  OK(cuDeviceGraphMemTrim(0));
  EXPECT(Taken(before) == 0);
}

std::string Hex(const void* data, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    char pair[3];
    std::snprintf(pair, sizeof(pair), "%02x", static_cast<const unsigned char*>(data)[i]);
    text += pair;
  }
  return text;
}

pid_t Spawn(std::string name, std::string argument) {
  std::string self = "/proc/self/exe";
  char* const words[] = {self.data(), name.data(), argument.data(), nullptr};
  pid_t child = 0;
  EXPECT(::posix_spawn(&child, self.c_str(), nullptr, nullptr, words, environ) == 0);
  return child;
}

bool Succeeds(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void Ipc() {
  Start();
  CUdeviceptr padding = 0, shared = 0;
  OK(cuMemAlloc_v2(&padding, 4096));
  OK(cuMemAlloc_v2(&shared, 4096));
  OK(cuMemsetD8_v2(shared, 42, 4096));
  CUipcMemHandle handle{};
  OK(cuIpcGetMemHandle(&handle, shared));
  EXPECT(Succeeds(Spawn("ipc-reader", Hex(&handle, sizeof(handle)))));
}

void ReadIpc(const std::string& hex) {
  Start();
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof(handle); ++i) {
    reinterpret_cast<unsigned char*>(&handle)[i] =
        static_cast<unsigned char>(std::strtoul(hex.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  CUdeviceptr shared = 0;
  char value = 0;
  const std::size_t before = Free();
  OK(cuIpcOpenMemHandle_v2(&shared, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuMemcpyDtoH_v2(&value, shared + 4095, 1));
  EXPECT(value == 42 && Taken(before) == 0);
  OK(cuIpcCloseMemHandle(shared));
}

// Memory of the card, and NVML's figures of each process, are one for all processes.
void TwoProcesses() {
  Start();
  const std::size_t before = Free();
  const pid_t child = Spawn("hold", "");
  for (int i = 0; Taken(before) != (16 + 30) * kMiB && i < 30'000; ++i) ::usleep(1000);
  EXPECT(Taken(before) == (16 + 30) * kMiB);
  CUdeviceptr rest = 0;
  EXPECT(cuMemAlloc_v2(&rest, before - 32 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);

  void* const nvml = ::dlopen("libnvidia-ml.so.1", RTLD_NOW);
  EXPECT(nvml != nullptr);
  lgpu::nvml::DeviceHandle device = nullptr;
  lgpu::nvml::ProcessInfoV2 processes[8];
  unsigned count = 8;
  reinterpret_cast<int (*)()>(::dlsym(nvml, "nvmlInit_v2"))();
  reinterpret_cast<int (*)(unsigned, void*)>(::dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
  reinterpret_cast<int (*)(lgpu::nvml::DeviceHandle, unsigned*, void*)>(
      ::dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3"))(device, &count, processes);
  EXPECT(count == 2);
  for (unsigned i = 0; i < count; ++i) {
    const bool is_child = processes[i].pid == static_cast<unsigned>(child);
    EXPECT(processes[i].used_gpu_memory == (is_child ? 46 : 16) * kMiB);
  }
  ::kill(child, SIGKILL);
  EXPECT(!Succeeds(child));
  for (int i = 0; Taken(before) != 0 && i < 30'000; ++i) ::usleep(1000);
  EXPECT(Taken(before) == 0);
}

void Hold() {
  Start();
  CUdeviceptr address = 0;
  OK(cuMemAlloc_v2(&address, 20 * kMiB));
  Create(10 * kMiB);
  while (true) ::pause();
}

const std::map<std::string, std::function<void()>> kCases = {
    {"lookup", Lookup},
    {"names", Names},
    {"plain", Plain},
    {"managed-and-host", ManagedAndHost},
    {"pools", Pools},
    {"contexts", Contexts},
    {"handles", Handles},
    {"arrays-and-modules", ArraysAndModules},
    {"graphs", Graphs},
    {"ipc", Ipc},
    {"two-processes", TwoProcesses},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "--list";
  if (name == "--list") {
    for (const auto& [key, run] : kCases) std::puts(key.c_str());
    for (const auto& [key, run] : WideCases()) std::puts(key.c_str());
    return 0;
  }
  if (name == "ipc-reader") {
    ReadIpc(argv[2]);
  } else if (name == "hold") {
    Hold();
  } else if (const auto found = kCases.find(name); found != kCases.end()) {
    found->second();
  } else if (const auto wide = WideCases().find(name); wide != WideCases().end()) {
    wide->second();
  } else {
    return 2;
  }
  return wrong == 0 ? 0 : 1;
}
