#include "tools/gpu_probe/obey.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "allocator/device/cuda/cuda_image.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/kernel_parameters.h"
#include "tools/gpu_probe/agent.h"
#include "tools/gpu_probe/checkpoint_calls.h"
#include "tools/gpu_probe/green_context.h"

namespace lgpu::gpu_probe {
namespace {

using Clock = std::chrono::steady_clock;

CUmemAllocationProp Properties() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return properties;
}

int CountDescriptors(const std::string& prefix) {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(it->path(), gone).string().rfind(prefix, 0) == 0) ++count;
  }
  return count;
}

double ResidentKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") {
      double kib = 0;
      status >> kib;
      return kib;
    }
  }
  return 0;
}

// The median duration of some calls, in microseconds.
double Median(std::vector<double>& times) {
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <typename Call>
bool Time(std::vector<double>& times, Call call) {
  const Clock::time_point start = Clock::now();
  const bool ok = call() == CUDA_SUCCESS;
  times.push_back(MillisecondsSince(start) * 1000);
  return ok;
}

bool UsesMemory(std::string_view verb) {
  for (const std::string_view known :
       {"release", "export", "reexport", "map", "unmap", "fill", "verify", "find", "work"}) {
    if (verb == known) return true;
  }
  return false;
}

}  // namespace

std::string Obedience::Check(const char* call, CUresult result) const {
  return result == CUDA_SUCCESS ? "ok" : absl::StrCat("error ", call, " gave ", cu_.Name(result));
}

std::string Obedience::Do(const std::string& line, UniqueFd fd, UniqueFd& reply) {
  std::istringstream words(line);
  std::string verb, first, second;
  words >> verb >> first >> second;
  const std::size_t number = std::strtoull(first.c_str(), nullptr, 10);
  const int other = std::atoi(second.c_str());
  if (verb == "start") return Start();
  if (verb == "create") return Create(number);
  if (verb == "alloc") return Alloc(number);
  if (verb == "process") return CheckpointCall(first, other);
  if (UsesMemory(verb) && memory_.empty()) return "error no memory";
  if (verb == "release") {
    const Memory memory = memory_.back();
    memory_.pop_back();
    return Check("cuMemRelease", cu_.MemRelease(memory.handle));
  }
  if (verb == "export") return Export(reply);
  if (verb == "import") return Import(std::move(fd), number);
  if (verb == "reexport") return Reexport(reply);
  if (verb == "keep") {
    kept_.push_back(std::move(fd));
    return "ok";
  }
  if (verb == "give") {
    if (kept_.empty()) return "error nothing is kept";
    reply = UniqueFd(::dup(kept_.back().get()));
    return "ok";
  }
  if (verb == "drop") {
    kept_.clear();
    return "ok";
  }
  if (verb == "context") return Context();
  if (verb == "green") return Green(static_cast<unsigned>(number));
  if (verb == "module") return Module();
  if (verb == "map") return Map(first == "read-only");
  if (verb == "unmap") return Unmap();
  if (verb == "fill") return Fill(static_cast<int>(number), std::max(other, 1));
  if (verb == "wait") return Check("cuStreamSynchronize", cu_.StreamSynchronize(stream_));
  if (verb == "verify") return Verify(static_cast<int>(number));
  if (verb == "find") return Find(static_cast<int>(number));
  if (verb == "cost") return Cost(number, std::max(other, 1));
  if (verb == "limit") return Limit(first, std::strtoull(second.c_str(), nullptr, 10));
  if (verb == "work") return Work(static_cast<int>(number));
  if (verb == "library") return Library(first, second);
  if (verb == "self") {
    return absl::StrCat("ok rss_kib=", ResidentKiB(), " nvidia_fds=", CountDescriptors("/dev/nvidia"),
                        " fds=", CountDescriptors(""));
  }
  if (verb == "mps") {
    constexpr int kMpsEnabled = 133;  // CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which old headers do not have
    int enabled = 0;
    const CUresult result = cu_.DeviceGetAttribute(&enabled, static_cast<CUdevice_attribute>(kMpsEnabled), 0);
    return result == CUDA_SUCCESS ? absl::StrCat("ok enabled=", enabled)
                                  : Check("cuDeviceGetAttribute", result);
  }
  return "error no such command: " + verb;
}

std::string Obedience::Start() {
  const absl::StatusOr<CudaDriver> driver = CudaDriver::Open();
  if (!driver.ok()) return "error " + std::string(driver.status().message());
  cu_ = *driver;
  int count = 0;
  cu_.DeviceGetCount(&count);
  std::size_t total = 0;
  cu_.DeviceTotalMem(&total, 0);
  CUuuid uuid{};
  cu_.DeviceGetUuid(&uuid, 0);
  return absl::StrCat("ok devices=", count, " total=", total, " version=", cu_.version,
                      " uuid=", CudaUuidText(uuid, IsMig(cu_, 0)));
}

std::string Obedience::Create(std::size_t bytes) {
  const CUmemAllocationProp properties = Properties();
  Memory memory;
  memory.bytes = bytes;
  const CUresult result = cu_.MemCreate(&memory.handle, bytes, &properties, 0);
  if (result == CUDA_SUCCESS) memory_.push_back(memory);
  return Check("cuMemCreate", result);
}

// Memory of cuMemAlloc, which has no handle.
std::string Obedience::Alloc(std::size_t bytes) {
  const auto alloc = reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t)>(
      ::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2"));
  if (alloc == nullptr) return "error this driver has no cuMemAlloc_v2";
  Memory memory;
  memory.bytes = bytes;
  const CUresult result = alloc(&memory.address, bytes);
  if (result == CUDA_SUCCESS) memory_.push_back(memory);
  return Check("cuMemAlloc", result);
}

std::string Obedience::Export(UniqueFd& reply) {
  int fd = -1;
  const CUresult result =
      cu_.MemExportToShareableHandle(&fd, memory_.back().handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_SUCCESS) reply = UniqueFd(fd);
  return Check("cuMemExportToShareableHandle", result);
}

std::string Obedience::Import(UniqueFd fd, std::size_t bytes) {
  Memory memory;
  memory.bytes = bytes;
  const CUresult result = cu_.MemImportFromShareableHandle(
      &memory.handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) return Check("cuMemImportFromShareableHandle", result);
  memory_.push_back(memory);
  // The driver's answer for the location of imported memory is not documented.
  CUmemAllocationProp properties{};
  const CUresult asked = cu_.MemGetAllocationPropertiesFromHandle(&properties, memory.handle);
  return asked == CUDA_SUCCESS ? absl::StrCat("ok location=", properties.location.id)
                               : absl::StrCat("ok location=unknown:", cu_.Name(asked));
}

std::string Obedience::Reexport(UniqueFd& reply) {
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = cu_.MemRetainAllocationHandle(&handle, reinterpret_cast<void*>(memory_.back().address));
  if (result != CUDA_SUCCESS) return Check("cuMemRetainAllocationHandle", result);
  int fd = -1;
  result = cu_.MemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_SUCCESS) reply = UniqueFd(fd);
  cu_.MemRelease(handle);
  return Check("cuMemExportToShareableHandle of an imported handle", result);
}

std::string Obedience::Context() {
  CUresult result = cu_.DevicePrimaryCtxRetain(&context_, 0);
  if (result != CUDA_SUCCESS) return Check("cuDevicePrimaryCtxRetain", result);
  result = cu_.CtxPushCurrent(context_);
  if (result != CUDA_SUCCESS) return Check("cuCtxPushCurrent", result);
  return Check("cuStreamCreate", cu_.StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0));
}

// Gives all work from here on so many multiprocessors.
std::string Obedience::Green(unsigned multiprocessors) {
  GreenContext green;
  if (const std::string error = MakeGreenContext(multiprocessors, green); !error.empty()) {
    return "error " + error;
  }
  if (const CUresult result = cu_.CtxPushCurrent(green.context); result != CUDA_SUCCESS) {
    return Check("cuCtxPushCurrent of a green context", result);
  }
  context_ = green.context;
  stream_ = green.stream;
  fill_ = nullptr;
  return absl::StrCat("ok multiprocessors=", green.multiprocessors);
}

std::string Obedience::Module() {
  if (fill_ != nullptr) return "ok";
  const CUresult result = LoadImage(cu_, *kFillKernel.image, &module_);
  if (result != CUDA_SUCCESS) return Check("cuModuleLoadData", result);
  return Check("cuModuleGetFunction", cu_.ModuleGetFunction(&fill_, module_, kFillKernel.name));
}

std::string Obedience::Map(bool read_only) {
  Memory& memory = memory_.back();
  CUresult result = cu_.MemAddressReserve(&memory.address, memory.bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) return Check("cuMemAddressReserve", result);
  result = cu_.MemMap(memory.address, memory.bytes, 0, memory.handle, 0);
  if (result != CUDA_SUCCESS) return Check("cuMemMap", result);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return Check("cuMemSetAccess", cu_.MemSetAccess(memory.address, memory.bytes, &access, 1));
}

std::string Obedience::Unmap() {
  const Memory& memory = memory_.back();
  return Check("cuMemUnmap", cu_.MemUnmap(memory.address, memory.bytes));
}

std::string Obedience::Fill(int value, int times) {
  if (const std::string loaded = Module(); loaded != "ok") return loaded;
  const Memory& memory = memory_.back();
  FillParameters parameters{reinterpret_cast<std::uint8_t*>(memory.address), memory.bytes,
                            static_cast<std::uint8_t>(value)};
  std::size_t size = sizeof(parameters);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  for (int i = 0; i < times; ++i) {
    const CUresult result = cu_.LaunchKernel(fill_, 1024, 1, 1, 256, 1, 1, 0, stream_, nullptr, extra);
    if (result != CUDA_SUCCESS) return Check("cuLaunchKernel", result);
  }
  return "ok";
}

std::string Obedience::Verify(int value) {
  const Memory& memory = memory_.back();
  std::array<unsigned char, 4096> first{};
  std::array<unsigned char, 4096> last{};
  CUresult result = cu_.MemcpyDtoHAsync(first.data(), memory.address, first.size(), stream_);
  if (result == CUDA_SUCCESS) {
    result =
        cu_.MemcpyDtoHAsync(last.data(), memory.address + memory.bytes - last.size(), last.size(), stream_);
  }
  if (result == CUDA_SUCCESS) result = cu_.StreamSynchronize(stream_);
  if (result != CUDA_SUCCESS) return Check("cuMemcpyDtoHAsync", result);
  const auto same = [&](const auto& data) {
    return std::all_of(data.begin(), data.end(), [&](unsigned char byte) { return byte == value; });
  };
  return absl::StrCat("ok same=", same(first) && same(last) ? 1 : 0);
}

// How many bytes of the memory lie in pages of 4 KiB that have the value throughout.
std::string Obedience::Find(int value) {
  constexpr std::size_t kPage = 4096;
  const Memory& memory = memory_.back();
  std::vector<unsigned char> data(std::size_t{2} << 20);
  const std::vector<unsigned char> wanted(kPage, static_cast<unsigned char>(value));
  std::size_t found = 0;
  for (std::size_t at = 0; at < memory.bytes; at += data.size()) {
    const std::size_t bytes = std::min(data.size(), memory.bytes - at);
    CUresult result = cu_.MemcpyDtoHAsync(data.data(), memory.address + at, bytes, stream_);
    if (result == CUDA_SUCCESS) result = cu_.StreamSynchronize(stream_);
    if (result != CUDA_SUCCESS) return Check("cuMemcpyDtoHAsync", result);
    for (std::size_t page = 0; page + kPage <= bytes; page += kPage) {
      if (std::memcmp(data.data() + page, wanted.data(), kPage) == 0) found += kPage;
    }
  }
  return absl::StrCat("ok found=", found);
}

// The duration of every call, in microseconds, for `count` chunks of a size side by side.
std::string Obedience::Cost(std::size_t bytes, int count) {
  const auto chunks = static_cast<std::size_t>(count);
  std::vector<double> create, exports, import, map, access, unmap, release, access_all;
  CUdeviceptr base = 0;
  if (cu_.MemAddressReserve(&base, bytes * chunks, 0, 0, 0) != CUDA_SUCCESS) return "error no addresses";
  const CUmemAllocationProp properties = Properties();
  std::vector<CUmemGenericAllocationHandle> handles;
  CUmemAccessDesc desc{};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (std::size_t i = 0; i < chunks; ++i) {
    CUmemGenericAllocationHandle made = 0;
    CUmemGenericAllocationHandle taken = 0;
    int fd = -1;
    const CUdeviceptr address = base + i * bytes;
    if (!Time(create, [&] { return cu_.MemCreate(&made, bytes, &properties, 0); })) {
      return "error cuMemCreate";
    }
    Time(exports, [&] {
      return cu_.MemExportToShareableHandle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    });
    const UniqueFd owned(fd);
    Time(import, [&] {
      return cu_.MemImportFromShareableHandle(&taken, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    });
    cu_.MemRelease(taken);
    Time(map, [&] { return cu_.MemMap(address, bytes, 0, made, 0); });
    Time(access, [&] { return cu_.MemSetAccess(address, bytes, &desc, 1); });
    handles.push_back(made);
  }
  Time(access_all, [&] { return cu_.MemSetAccess(base, bytes * chunks, &desc, 1); });
  for (std::size_t i = 0; i < chunks; ++i) {
    Time(unmap, [&] { return cu_.MemUnmap(base + i * bytes, bytes); });
    Time(release, [&] { return cu_.MemRelease(handles[i]); });
  }
  cu_.MemAddressFree(base, bytes * chunks);
  return absl::StrCat("ok create_us=", Median(create), " export_us=", Median(exports),
                      " import_us=", Median(import), " map_us=", Median(map), " access_us=", Median(access),
                      " access_all_us=", Median(access_all), " unmap_us=", Median(unmap),
                      " release_us=", Median(release));
}

// How many there may be of something, up to `most`.
std::string Obedience::Limit(const std::string& what, std::size_t most) {
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  const CUmemAllocationProp properties = Properties();
  std::vector<CUmemGenericAllocationHandle> handles;
  std::vector<UniqueFd> fds;
  CUdeviceptr base = 0;
  CUresult result = CUDA_SUCCESS;
  if (what == "mappings") result = cu_.MemAddressReserve(&base, kBytes * most, 0, 0, 0);
  std::size_t count = 0;
  for (; count < most && result == CUDA_SUCCESS; ++count) {
    if (what == "handles" || handles.empty()) {
      CUmemGenericAllocationHandle handle = 0;
      result = cu_.MemCreate(&handle, kBytes, &properties, 0);
      if (result == CUDA_SUCCESS) handles.push_back(handle);
    }
    if (result == CUDA_SUCCESS && what == "descriptors") {
      int fd = -1;
      result =
          cu_.MemExportToShareableHandle(&fd, handles.back(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      if (result == CUDA_SUCCESS) fds.emplace_back(fd);
    }
    if (result == CUDA_SUCCESS && what == "mappings") {
      result = cu_.MemMap(base + count * kBytes, kBytes, 0, handles.back(), 0);
    }
    if (result != CUDA_SUCCESS) break;
  }
  if (what == "mappings") {
    for (std::size_t i = 0; i < count; ++i) cu_.MemUnmap(base + i * kBytes, kBytes);
    if (base != 0) cu_.MemAddressFree(base, kBytes * most);
  }
  for (const CUmemGenericAllocationHandle handle : handles) cu_.MemRelease(handle);
  return absl::StrCat("ok count=", count, " result=", static_cast<int>(result));
}

// Fills the memory again and again for a while: how often a millisecond.
std::string Obedience::Work(int milliseconds) {
  const Clock::time_point start = Clock::now();
  int fills = 0;
  double longest = 0;
  while (MillisecondsSince(start) < milliseconds) {
    const Clock::time_point began = Clock::now();
    if (const std::string filled = Fill(fills & 0xff, 1); filled != "ok") return filled;
    if (const CUresult result = cu_.StreamSynchronize(stream_); result != CUDA_SUCCESS) {
      return Check("cuStreamSynchronize", result);
    }
    longest = std::max(longest, MillisecondsSince(began));
    ++fills;
  }
  return absl::StrCat("ok fills_per_ms=", fills / MillisecondsSince(start), " longest_ms=", longest);
}

// Opens a library of CUDA's and makes its first object.
std::string Obedience::Library(const std::string& file, const std::string& function) {
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "error there is no " + file;
  const auto create = reinterpret_cast<int (*)(void**)>(::dlsym(library, function.c_str()));
  if (create == nullptr) return "error " + file + " has no " + function;
  void* object = nullptr;
  const int result = create(&object);
  return result == 0 ? "ok" : absl::StrCat("error ", function, " gave ", result);
}

}  // namespace lgpu::gpu_probe
