// driver_client WAY [LIBRARY [VISIBLE]]: a program without any code of lgpu. It comes to the CUDA driver by
// WAY (linked, dlopen, deepbind, dlmopen, lookup, lookup_per_thread), sets CUDA_VISIBLE_DEVICES to VISIBLE
// itself, makes a context of device 0 and runs the commands on its stdin, one answer each: "ok ..." or
// "error CODE".

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
#include "tests/driver/driver_allocations.h"
#include "tests/driver/driver_calls.h"

using namespace lgpu::shim;  // the types of the driver's interface
using namespace lgpu::driver_client;

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

std::map<std::string, Held> held;

std::string Answer(Result result) { return result == kSuccess ? "ok" : "error " + std::to_string(result); }

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
  if (verb == "make_pool") return Answer(MakePool());
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
