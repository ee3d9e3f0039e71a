// The commands of driver_client on pools, arrays, green contexts, memory that no call asks for by size, and
// the program's own descriptors.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "tests/driver/driver_calls.h"

namespace lgpu::driver_client {
namespace {

using namespace lgpu::shim;  // the types of the driver's interface

std::map<std::string, MemPool> pools;
std::map<std::string, DevicePtr> pieces;
std::vector<Array> arrays;
std::vector<int> own_files;
std::atomic<bool> is_blocked{false};

std::string Answer(Result result) { return result == kSuccess ? "ok" : "error " + std::to_string(result); }
std::string Counted(int count, Result last) {
  return "ok " + std::to_string(count) + " " + std::to_string(last);
}

/// "default": of the device.
Result Take(const std::string& pool, std::uint64_t bytes, DevicePtr* address) {
  if (pool == "default") return Call("cuMemAllocAsync", 11020, address, std::size_t{bytes}, Stream{nullptr});
  return Call("cuMemAllocFromPoolAsync", 11020, address, std::size_t{bytes}, pools[pool], Stream{nullptr});
}

Result NewPool(const std::string& name) {
  MemPoolProps props{};
  props.alloc_type = 1;
  props.location = {.type = kLocationDevice, .id = 0};
  const Result made = Call("cuMemPoolCreate", 11020, &pools[name], static_cast<const MemPoolProps*>(&props));
  std::uint64_t all = ~std::uint64_t{0};  // nothing goes back by itself
  Call("cuMemPoolSetAttribute", 11020, pools[name], 4, static_cast<void*>(&all));
  return made;
}

void WaitForRelease(void*) {
  while (is_blocked) std::this_thread::yield();
}

Result NewArray(std::uint64_t width, std::uint64_t height) {
  const ArrayDescriptor descriptor{.width = width, .height = height, .format = 0x20, .channels = 1};
  Array array = nullptr;
  const Result made = Call("cuArrayCreate_v2", "cuArrayCreate", 3020, &array, &descriptor);
  if (made == kSuccess) arrays.push_back(array);
  return made;
}

/// llama.cpp's pool of virtual memory, in the order of its calls.
struct LlamaPool {
  static constexpr std::size_t kAddresses = std::size_t{32} << 30;
  DevicePtr address = 0;
  std::size_t size = 0;

  Result Grow(std::size_t bytes) {
    AllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {.type = kLocationDevice, .id = 0};
    std::size_t unit = 0;
    Call("cuMemGetAllocationGranularity", 10020, &unit, static_cast<const AllocationProp*>(&prop), 1);
    bytes = (bytes + unit - 1) / unit * unit;
    Handle handle = 0;
    const Result made =
        Call("cuMemCreate", 10020, &handle, bytes, static_cast<const AllocationProp*>(&prop), Flags64{0});
    if (made != kSuccess) return made;
    if (address == 0) {
      Call("cuMemAddressReserve", 10020, &address, kAddresses, std::size_t{0}, DevicePtr{0}, Flags64{0});
    }
    const DevicePtr start = address + size;
    const Result mapped = Call("cuMemMap", 10020, start, bytes, std::size_t{0}, handle, Flags64{0});
    Call("cuMemRelease", 10020, handle);  // "no longer needed after mapping"
    struct {
      MemLocation location;
      int flags;
    } access{{.type = kLocationDevice, .id = 0}, 3};
    const Result readable =
        Call("cuMemSetAccess", 10020, start, bytes, static_cast<const void*>(&access), std::size_t{1});
    size += bytes;
    return mapped != kSuccess ? mapped : readable;
  }
  Result End() {
    const Result unmapped = Call("cuMemUnmap", 10020, address, size);  // all mappings at once
    const Result freed = Call("cuMemAddressFree", 10020, address, kAddresses);
    address = size = 0;
    return unmapped != kSuccess ? unmapped : freed;
  }
} llama;

GreenContext green = nullptr;

Result MakeGreen() {
  struct {
    int words[64];
  } resource{}, part{}, rest{};
  constexpr int kMultiprocessors = 1;
  unsigned count = 1;
  void* description = nullptr;
  Call("cuDeviceGetDevResource", 12040, Device{0}, static_cast<void*>(&resource), kMultiprocessors);
  Call("cuDevSmResourceSplitByCount", 12040, static_cast<void*>(&part), &count,
       static_cast<const void*>(&resource), static_cast<void*>(&rest), 0U, 8U);
  Call("cuDevResourceGenerateDesc", 12040, &description, static_cast<void*>(&part), 1U);
  return Call("cuGreenCtxCreate", 12040, &green, description, Device{0}, 1U);
}

Result EnterGreen() {
  Context context = nullptr;
  const Result seen = Call("cuCtxFromGreenCtx", 12040, &context, green);
  return seen == kSuccess ? Call("cuCtxPushCurrent_v2", "cuCtxPushCurrent", 4000, context) : seen;
}

constexpr char kOwnText[] = "of the program";

/// Closes all sockets, as a program does that keeps what it knows alone, and opens files of its own under
/// their numbers. The fake driver's own descriptors stay.
std::string CloseAndOpen() {
  for (int file = 3; file < 256; ++file) {
    struct stat about {};
    if (::fstat(file, &about) == 0 && S_ISSOCK(about.st_mode)) ::close(file);
  }
  for (int i = 0; i < 64; ++i) {
    const int file = ::memfd_create("own", 0);
    if (file < 0 || ::write(file, kOwnText, sizeof(kOwnText)) != sizeof(kOwnText)) return "error no file";
    own_files.push_back(file);
  }
  return "ok";
}

std::string CheckOwn() {
  for (const int file : own_files) {
    struct stat about {};
    if (::fstat(file, &about) != 0) return "error closed";
    if (about.st_size != sizeof(kOwnText)) return "error written to";
  }
  return "ok";
}

pid_t child = -1;
int child_ends = -1;  // closed: the child is to end

/// By fork, or by the bare system call, which runs no handler of pthread_atfork.
std::string StartChild(const std::string& way, const std::string& name) {
  const auto call = reinterpret_cast<Result (*)(const void*)>(Find(name.c_str(), name.c_str(), 2000));
  int ends[2] = {};
  if (call == nullptr || ::pipe2(ends, O_CLOEXEC) != 0) return "error";
  child = way == "fork" ? ::fork() : static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    ::close(ends[1]);
    pollfd end{.fd = ends[0], .events = 0, .revents = 0};
    while (::poll(&end, 1, 10) == 0) (void)call(nullptr);
    ::_exit(0);
  }
  ::close(ends[0]);
  child_ends = ends[1];
  return child > 0 ? "ok" : "error";
}

std::string EndChild() {
  ::close(child_ends);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return "error";
  return "ok " + std::to_string(status);
}

const std::map<std::string, std::function<std::string(std::istringstream&)>> kVerbs = {
    {"new_pool",
     [](std::istringstream& words) {
       std::string name;
       words >> name;
       return Answer(NewPool(name));
     }},
    {"destroy_pool",
     [](std::istringstream& words) {
       std::string name;
       words >> name;
       return Answer(Call("cuMemPoolDestroy", 11020, pools[name]));
     }},
    {"host_pool",
     [](std::istringstream& words) {  // the host's own
       std::string name;
       words >> name;
       MemLocation location{};
       location.type = static_cast<CUmemLocationType>(2);  // CU_MEM_LOCATION_TYPE_HOST
       return Answer(Call("cuMemGetDefaultMemPool", 13000, &pools[name], &location, 1));
     }},
    {"take",
     [](std::istringstream& words) {
       std::string name, pool;
       std::uint64_t bytes = 0;
       words >> name >> pool >> bytes;
       return Answer(Take(pool, bytes, &pieces[name]));
     }},
    {"drop",
     [](std::istringstream& words) {  // in the stream's order, and does not wait
       std::string name;
       words >> name;
       return Answer(Call("cuMemFreeAsync", 11020, pieces[name], Stream{nullptr}));
     }},
    {"take_many",
     [](std::istringstream& words) {  // until one is refused
       std::string pool;
       int most = 0, count = 0;
       std::uint64_t bytes = 0;
       words >> pool >> most >> bytes;
       Result result = kSuccess;
       for (; count < most && result == kSuccess; count += result == kSuccess ? 1 : 0) {
         DevicePtr address = 0;
         result = Take(pool, bytes, &address);
         if (result == kSuccess) pieces["many" + std::to_string(pieces.size())] = address;
       }
       return Counted(count, result);
     }},
    {"take_and_drop",
     [](std::istringstream& words) {  // again and again, without waiting
       int most = 0, count = 0;
       std::uint64_t bytes = 0;
       words >> most >> bytes;
       Result result = kSuccess;
       for (; count < most && result == kSuccess; count += result == kSuccess ? 1 : 0) {
         DevicePtr address = 0;
         result = Take("default", bytes, &address);
         if (result == kSuccess) Call("cuMemFreeAsync", 11020, address, Stream{nullptr});
       }
       return Counted(count, result);
     }},
    {"drop_every_second",
     [](std::istringstream&) {
       bool is_second = false;
       for (auto at = pieces.begin(); at != pieces.end(); is_second = !is_second) {
         if (is_second) Call("cuMemFree_v2", "cuMemFree", 3020, at->second);
         at = is_second ? pieces.erase(at) : std::next(at);
       }
       return std::string("ok");
     }},
    {"plain_many",
     [](std::istringstream& words) {
       int most = 0, count = 0;
       std::uint64_t bytes = 0;
       words >> most >> bytes;
       Result result = kSuccess;
       for (; count < most && result == kSuccess; count += result == kSuccess ? 1 : 0) {
         DevicePtr address = 0;
         result = Call("cuMemAlloc_v2", "cuMemAlloc", 3020, &address, std::size_t{bytes});
         if (result == kSuccess) pieces["plain" + std::to_string(1000000 + pieces.size())] = address;
       }
       return Counted(count, result);
     }},
    {"child",
     [](std::istringstream& words) {  // that makes a call again and again, until end_child
       std::string way, name;
       words >> way >> name;
       return StartChild(way, name);
     }},
    {"end_child", [](std::istringstream&) { return EndChild(); }},
    {"drop_all",
     [](std::istringstream&) {
       for (const auto& [name, address] : pieces) Call("cuMemFree_v2", "cuMemFree", 3020, address);
       pieces.clear();
       return std::string("ok");
     }},
    {"block_stream",
     [](std::istringstream&) {
       is_blocked = true;
       return Answer(
           Call("cuLaunchHostFunc", 10000, Stream{nullptr}, &WaitForRelease, static_cast<void*>(nullptr)));
     }},
    {"release_stream",
     [](std::istringstream&) {
       is_blocked = false;
       return Answer(Call("cuCtxSynchronize", 2000));
     }},
    {"arrays",
     [](std::istringstream& words) {  // of floats, until one is refused
       int most = 0, count = 0;
       std::uint64_t width = 0, height = 0;
       words >> most >> width >> height;
       Result result = kSuccess;
       for (; count < most && result == kSuccess; count += result == kSuccess ? 1 : 0) {
         result = NewArray(width, height);
       }
       return Counted(count, result);
     }},
    {"drop_arrays",
     [](std::istringstream&) {
       for (const Array array : arrays) Call("cuArrayDestroy", 2000, array);
       arrays.clear();
       return std::string("ok");
     }},
    {"llama_grow",
     [](std::istringstream& words) {
       std::size_t bytes = 0;
       words >> bytes;
       return Answer(llama.Grow(bytes));
     }},
    {"llama_end", [](std::istringstream&) { return Answer(llama.End()); }},
    {"green_make", [](std::istringstream&) { return Answer(MakeGreen()); }},
    {"green_enter", [](std::istringstream&) { return Answer(EnterGreen()); }},
    {"green_destroy", [](std::istringstream&) { return Answer(Call("cuGreenCtxDestroy", 12040, green)); }},
    {"leave_context",
     [](std::istringstream&) {
       Context context = nullptr;
       return Answer(Call("cuCtxPopCurrent_v2", "cuCtxPopCurrent", 4000, &context));
     }},
    {"release_primary",
     [](std::istringstream&) {
       return Answer(Call("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", 11000, Device{0}));
     }},
    {"retain_primary",
     [](std::istringstream&) {
       Context context = nullptr;
       Call("cuDevicePrimaryCtxRetain", 7000, &context, Device{0});
       return Answer(Call("cuCtxPushCurrent_v2", "cuCtxPushCurrent", 4000, context));
     }},
    {"heap",
     [](std::istringstream& words) {  // of malloc in kernels
       std::size_t bytes = 0;
       words >> bytes;
       return Answer(Call("cuCtxSetLimit", 3010, 2, bytes));
     }},
    {"globals",
     [](std::istringstream& words) {  // a module with variables of so many bytes
       std::string bytes;
       words >> bytes;
       const std::string image =
           ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 "
           "big[" +
           bytes + "];\n";
       void* module = nullptr;
       return Answer(Call("cuModuleLoadData", 2000, &module, static_cast<const void*>(image.c_str())));
     }},
    {"lookup_v2",
     [](std::istringstream& words) {  // of a name: the result, what was found, and whether it is the symbol
       std::string name, symbol;
       words >> name >> symbol;
       void* address = &words;
       int found = -1;
       const Result result = Call("cuGetProcAddress_v2", "cuGetProcAddress", 12000, name.c_str(), &address,
                                  12000, Flags64{0}, &found);
       const bool is_same = address == Find(symbol.c_str(), name.c_str(), 12000);
       return "ok " + std::to_string(result) + " " + std::to_string(found) + (is_same ? " same" : " other");
     }},
    {"close_and_open", [](std::istringstream&) { return CloseAndOpen(); }},
    {"check_own", [](std::istringstream&) { return CheckOwn(); }},
};

}  // namespace

std::optional<std::string> ObeyMore(const std::string& verb, std::istringstream& words) {
  const auto known = kVerbs.find(verb);
  return known == kVerbs.end() ? std::nullopt : std::optional(known->second(words));
}

}  // namespace lgpu::driver_client
