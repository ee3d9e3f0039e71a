#include "cli/selftest/driver_attempts.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/driver/cuda_abi.h"

namespace lgpu::selftest {
namespace {

using namespace lgpu::shim;  // the types of the driver's interface

constexpr std::uint64_t kUnit = std::uint64_t{2} << 20;  // the driver's unit of device memory
constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;
constexpr std::uint64_t kMostOdd = std::uint64_t{256} << 20;
constexpr int kThreads = 4;
constexpr CUmemAllocationType kPinned = CU_MEM_ALLOCATION_TYPE_PINNED;
constexpr int kReleaseThreshold = 4;      // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
constexpr int kFloat = 0x20;              // CU_AD_FORMAT_FLOAT
constexpr unsigned kAttachGlobal = 1;     // CU_MEM_ATTACH_GLOBAL
constexpr unsigned kNonBlocking = 1;      // CU_STREAM_NON_BLOCKING
constexpr int kCaptureThreadLocal = 1;    // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr std::size_t kRow = 256 * 1024;  // bytes of a row of pitched memory and arrays

/// The driver's calls by their symbols, as a linked program has them: lgpu's where the shim works.
class Driver {
 public:
  static absl::StatusOr<Driver> Open() {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return absl::NotFoundError(absl::StrCat("dlopen: ", ::dlerror()));
    return Driver(library);
  }
  template <typename... Parameters>
  Result operator()(const char* symbol, Parameters... parameters) const {
    const auto call = reinterpret_cast<Result (*)(Parameters...)>(::dlsym(library_, symbol));
    return call == nullptr ? kNotSupported : call(parameters...);
  }
  /// The free memory of the current device as the driver itself counts it, past the shim; 0: it does not say.
  std::uint64_t FreeByDriver() const {
    std::size_t free = 0, total = 0;
    const auto ask = reinterpret_cast<Result (*)(std::size_t*, std::size_t*)>(
        real_ == nullptr ? nullptr : ::dlsym(real_, "cuMemGetInfo_v2"));
    return ask != nullptr && ask(&free, &total) == kSuccess ? free : 0;
  }

 private:
  explicit Driver(void* library)
      : library_(library), real_(::dlopen("liblgpu_real_cuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {}
  void* library_;
  void* real_;  // behind the shim
};

/// One allocation by the driver, of any kind.
struct Piece {
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  void* first = nullptr;  // an array, a pool, a graph
  void* second = nullptr;
};

/// A way to get memory. `take` makes `piece.bytes` of the device in the current context, and may set that
/// number to the size it finally asked for.
struct Way {
  const char* name;
  Result (*take)(const Driver& driver, Device device, Piece& piece);
  void (*free)(const Driver& driver, const Piece& piece);
};

void Synchronize(const Driver& driver) { (void)driver("cuCtxSynchronize"); }
void FreePlain(const Driver& driver, const Piece& piece) { (void)driver("cuMemFree_v2", piece.address); }
void FreeOrdered(const Driver& driver, const Piece& piece) {
  (void)driver("cuMemFreeAsync", piece.address, Stream{nullptr});
  Synchronize(driver);
}

Result TakePlain(const Driver& driver, Device, Piece& piece) {
  return driver("cuMemAlloc_v2", &piece.address, std::size_t{piece.bytes});
}
Result TakePitched(const Driver& driver, Device, Piece& piece) {
  std::size_t pitch = 0;
  return driver("cuMemAllocPitch_v2", &piece.address, &pitch, kRow, std::size_t{piece.bytes / kRow}, 4U);
}
Result TakeManaged(const Driver& driver, Device, Piece& piece) {
  return driver("cuMemAllocManaged", &piece.address, std::size_t{piece.bytes}, kAttachGlobal);
}
Result TakeOrdered(const Driver& driver, Device, Piece& piece) {
  return driver("cuMemAllocAsync", &piece.address, std::size_t{piece.bytes}, Stream{nullptr});
}

/// A pool of its own that gives nothing back by itself.
Result TakePooled(const Driver& driver, Device device, Piece& piece) {
  MemPoolProps props{};
  props.alloc_type = kPinned;
  props.location = {.type = kLocationDevice, .id = device};
  const Result made = driver("cuMemPoolCreate", &piece.first, static_cast<const MemPoolProps*>(&props));
  if (made != kSuccess) return made;
  std::uint64_t threshold = ~std::uint64_t{0};
  (void)driver("cuMemPoolSetAttribute", piece.first, kReleaseThreshold, static_cast<void*>(&threshold));
  const Result taken = driver("cuMemAllocFromPoolAsync", &piece.address, std::size_t{piece.bytes},
                              piece.first, Stream{nullptr});
  if (taken != kSuccess) (void)driver("cuMemPoolDestroy", piece.first);
  return taken;
}
void FreePooled(const Driver& driver, const Piece& piece) {
  FreeOrdered(driver, piece);
  (void)driver("cuMemPoolDestroy", piece.first);
}

/// The handle is released at once: the mapping keeps the memory.
Result TakeMapped(const Driver& driver, Device device, Piece& piece) {
  AllocationProp prop{};
  prop.type = kPinned;
  prop.location = {.type = kLocationDevice, .id = device};
  const std::size_t bytes = piece.bytes;
  Handle handle = 0;
  const Result made =
      driver("cuMemCreate", &handle, bytes, static_cast<const AllocationProp*>(&prop), Flags64{0});
  if (made != kSuccess) return made;
  Result mapped =
      driver("cuMemAddressReserve", &piece.address, bytes, std::size_t{0}, DevicePtr{0}, Flags64{0});
  if (mapped == kSuccess) {
    mapped = driver("cuMemMap", piece.address, bytes, std::size_t{0}, handle, Flags64{0});
    if (mapped != kSuccess) (void)driver("cuMemAddressFree", piece.address, bytes);
  }
  (void)driver("cuMemRelease", handle);
  return mapped;
}
void FreeMapped(const Driver& driver, const Piece& piece) {
  (void)driver("cuMemUnmap", piece.address, std::size_t{piece.bytes});
  (void)driver("cuMemAddressFree", piece.address, std::size_t{piece.bytes});
}

/// Four floats an element.
constexpr std::size_t kRowElements = kRow / 16;
Result TakeArray(const Driver& driver, Device, Piece& piece) {
  const ArrayDescriptor array{
      .width = kRowElements, .height = piece.bytes / kRow, .format = kFloat, .channels = 4};
  return driver("cuArrayCreate_v2", &piece.first, &array);
}
void FreeArray(const Driver& driver, const Piece& piece) { (void)driver("cuArrayDestroy", piece.first); }

/// A part of a block, of a row and of a group of rows.
constexpr std::uint64_t kOddSmall = 700'001, kOddPooled = std::uint64_t{5} << 20, kOddOwnPool = 1'000'003;
Result TakeOddArray(const Driver& driver, Device, Piece& piece) {
  constexpr ArrayDescriptor kArray{.width = 1001, .height = 1030, .format = kFloat, .channels = 1};
  piece.bytes = kArray.width * kArray.height * 4;
  return driver("cuArrayCreate_v2", &piece.first, &kArray);
}

/// Three levels: the size asked for, a quarter and a sixteenth of it.
Result TakeMipmapped(const Driver& driver, Device, Piece& piece) {
  Array3dDescriptor array{};
  array.width = kRowElements;
  array.height = piece.bytes / kRow;
  array.format = kFloat;
  array.channels = 4;
  piece.bytes += piece.bytes / 4 + piece.bytes / 16;
  return driver("cuMipmappedArrayCreate", &piece.first, static_cast<const Array3dDescriptor*>(&array), 3U);
}
void FreeMipmapped(const Driver& driver, const Piece& piece) {
  (void)driver("cuMipmappedArrayDestroy", piece.first);
}

void DestroyGraph(const Driver& driver, const Piece& piece) {
  if (piece.second != nullptr) (void)driver("cuGraphExecDestroy", piece.second);
  (void)driver("cuGraphDestroy", piece.first);
}

Result Launch(const Driver& driver, Piece& piece, Stream stream) {
  Result launched = driver("cuGraphInstantiateWithFlags", &piece.second, piece.first, Flags64{0});
  if (launched == kSuccess) launched = driver("cuGraphLaunch", piece.second, stream);
  if (launched == kSuccess) {
    (void)driver("cuStreamSynchronize", stream);
  } else {
    DestroyGraph(driver, piece);
  }
  return launched;
}

Result TakeInGraph(const Driver& driver, Device device, Piece& piece) {
  if (const Result made = driver("cuGraphCreate", &piece.first, 0U); made != kSuccess) return made;
  MemAllocNodeParams node{};
  node.pool.alloc_type = kPinned;
  node.pool.location = {.type = kLocationDevice, .id = device};
  node.bytes = piece.bytes;
  GraphNode added = nullptr;
  const Result result = driver("cuGraphAddMemAllocNode", &added, piece.first,
                               static_cast<const GraphNode*>(nullptr), std::size_t{0}, &node);
  if (result != kSuccess) {
    DestroyGraph(driver, piece);
    return result;
  }
  piece.address = node.address;
  return Launch(driver, piece, nullptr);
}
void FreeInGraph(const Driver& driver, const Piece& piece) {
  FreeOrdered(driver, piece);
  DestroyGraph(driver, piece);
}

/// The graph goes while its memory stays in use.
Result TakeFromGoneGraph(const Driver& driver, Device device, Piece& piece) {
  const Result taken = TakeInGraph(driver, device, piece);
  if (taken == kSuccess) DestroyGraph(driver, piece);
  return taken;
}

Result TakeCaptured(const Driver& driver, Device, Piece& piece) {
  Stream stream = nullptr;
  if (const Result made = driver("cuStreamCreate", &stream, kNonBlocking); made != kSuccess) return made;
  Result taken = driver("cuStreamBeginCapture_v2", stream, kCaptureThreadLocal);
  if (taken == kSuccess) {
    const Result recorded = driver("cuMemAllocAsync", &piece.address, std::size_t{piece.bytes}, stream);
    taken = driver("cuStreamEndCapture", stream, &piece.first);
    if (recorded != kSuccess) taken = recorded;
  }
  if (taken == kSuccess) taken = Launch(driver, piece, stream);
  (void)driver("cuStreamDestroy_v2", stream);
  return taken;
}

const Way kWays[] = {
    {"cuMemAlloc", TakePlain, FreePlain},
    {"cuMemAllocPitch", TakePitched, FreePlain},
    {"cuMemAllocManaged", TakeManaged, FreePlain},
    {"cuMemAllocAsync", TakeOrdered, FreeOrdered},
    {"cuMemAllocFromPoolAsync", TakePooled, FreePooled},
    {"cuMemCreate, mapped", TakeMapped, FreeMapped},
    {"cuArrayCreate", TakeArray, FreeArray},
    {"cuMipmappedArrayCreate", TakeMipmapped, FreeMipmapped},
    {"cuGraphAddMemAllocNode", TakeInGraph, FreeInGraph},
    {"graphs destroyed while in use", TakeFromGoneGraph, FreeOrdered},
    {"captured cuMemAllocAsync", TakeCaptured, FreeInGraph},
};

/// Sizes that fill no unit of the driver's: what it takes is more than what is asked for.
struct OddWay {
  Way way;
  std::uint64_t bytes;
};
const OddWay kOddWays[] = {
    {{"cuMemAlloc, parts of blocks", TakePlain, FreePlain}, kOddSmall},
    {{"cuMemAllocAsync, 5 MiB each", TakeOrdered, FreeOrdered}, kOddPooled},
    {{"small pools, one for each piece", TakePooled, FreePooled}, kOddOwnPool},
    {{"cuArrayCreate, odd sizes", TakeOddArray, FreeArray}, kOddSmall},
};

/// The memory that is held of one device, up to the first byte beyond its limit. Thread-safe.
class Holding {
 public:
  Holding(const Driver& driver, Device device, std::uint64_t limit)
      : driver_(driver), device_(device), limit_(limit), free_before_(driver.FreeByDriver()) {}
  ~Holding() { FreeAll(); }
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;

  Result Take(const Way& way, std::uint64_t bytes) {
    Piece piece{.bytes = bytes};
    const Result result = way.take(driver_, device_, piece);
    const std::lock_guard lock(mutex_);
    if (result == kSuccess) {
      pieces_.emplace_back(&way, piece);
      bytes_ += piece.bytes;
    } else if (refused_ == kSuccess || refused_ == kOutOfMemory) {
      refused_ = result;
    }
    return result;
  }
  /// Half as large after every refusal.
  void Fill(const Way& way, std::uint64_t bytes) {
    while (bytes >= kUnit && !IsBroken()) {
      const Result result = Take(way, bytes);
      if (result == kSuccess) continue;
      if (result != kOutOfMemory) return;
      bytes = bytes / 2 / kUnit * kUnit;
    }
  }
  /// All but a part of the limit in large pieces, and the rest in pieces of `bytes`.
  void FillOddly(const Way& way, std::uint64_t bytes) {
    const std::uint64_t rest = std::min(limit_ / 2, kMostOdd);
    while (held() + kUnit <= limit_ - rest) {
      const std::uint64_t next =
          std::min(StartSize(), std::max((limit_ - rest - held()) / kUnit * kUnit, kUnit));
      if (Take(kWays[0], next) != kSuccess) break;
    }
    FillWith(way, bytes);
  }
  void FillWith(const Way& way, std::uint64_t bytes) {
    while (!IsBroken() && Take(way, bytes) == kSuccess) {
    }
  }
  bool IsBroken() {
    const std::lock_guard lock(mutex_);
    return bytes_ > limit_;
  }
  std::uint64_t StartSize() const { return std::clamp(limit_ / 4 / kUnit * kUnit, kUnit, kLargest); }
  nlohmann::json About(std::string_view name) const {
    return {{"card", device_},
            {"way", name},
            {"bytes", bytes_},
            {"driver_bytes", free_before_ - std::min(free_before_, driver_.FreeByDriver())},
            {"allocations", pieces_.size()},
            {"refused", refused_}};
  }

 private:
  std::uint64_t held() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  void FreeAll() {
    for (const auto& [way, piece] : pieces_) way->free(driver_, piece);
    (void)driver_("cuDeviceGraphMemTrim", device_);
  }

  const Driver& driver_;
  const Device device_;
  const std::uint64_t limit_;
  const std::uint64_t free_before_;  // as the driver counts it
  std::mutex mutex_;
  std::vector<std::pair<const Way*, Piece>> pieces_;
  std::uint64_t bytes_ = 0;
  Result refused_ = kSuccess;  // a result other than out of memory stays
};

void ByThreads(const Driver& driver, Context context, const std::function<void()>& fill) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      (void)driver("cuCtxSetCurrent", context);
      fill();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// False: `say` asked to stop.
bool TryDevice(const Driver& driver, Device device, std::uint64_t limit, Context context,
               const std::function<bool(const nlohmann::json&)>& say) {
  for (const Way& way : kWays) {
    Holding holding(driver, device, limit);
    holding.Fill(way, holding.StartSize());
    if (!say(holding.About(way.name))) return false;
  }
  {
    Holding holding(driver, device, limit);
    ByThreads(driver, context, [&] { holding.Fill(kWays[0], holding.StartSize()); });
    if (!say(holding.About("cuMemAlloc by 4 threads"))) return false;
  }
  for (const OddWay& odd : kOddWays) {
    Holding holding(driver, device, limit);
    holding.FillOddly(odd.way, odd.bytes);
    if (!say(holding.About(odd.way.name))) return false;
  }
  {
    Holding holding(driver, device, limit);
    holding.FillOddly(kOddWays[0].way, kLargest);  // the large pieces alone
    ByThreads(driver, context, [&] {
      for (const OddWay& odd : kOddWays) holding.FillWith(odd.way, odd.bytes);
    });
    if (!say(holding.About("odd sizes by 4 threads"))) return false;
  }
  Holding holding(driver, device, limit);
  for (const Way& way : kWays) {
    if (!holding.IsBroken()) (void)holding.Take(way, std::max(limit / 32 / kUnit * kUnit, kUnit));
  }
  holding.Fill(kWays[0], holding.StartSize());
  return say(holding.About("all of these together"));
}

absl::Status Failed(const char* call, Result result) {
  return absl::InternalError(absl::StrCat(call, " answered ", result));
}

}  // namespace

absl::Status TryDriver(const std::vector<std::uint64_t>& limits,
                       const std::function<bool(const nlohmann::json&)>& say) {
  const absl::StatusOr<Driver> driver = Driver::Open();
  if (!driver.ok()) return driver.status();
  if (const Result result = (*driver)("cuInit", 0U); result != kSuccess) return Failed("cuInit", result);
  int count = 0;
  (void)(*driver)("cuDeviceGetCount", &count);
  if (count != static_cast<int>(limits.size())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the driver shows ", count, " GPUs, the lease has ", limits.size()));
  }
  for (Device device = 0; device < count; ++device) {
    Context context = nullptr;
    Result result = (*driver)("cuDevicePrimaryCtxRetain", &context, device);
    if (result != kSuccess) return Failed("cuDevicePrimaryCtxRetain", result);
    result = (*driver)("cuCtxSetCurrent", context);
    if (result != kSuccess) return Failed("cuCtxSetCurrent", result);
    const bool goes_on = TryDevice(*driver, device, limits[static_cast<std::size_t>(device)], context, say);
    (void)(*driver)("cuDevicePrimaryCtxRelease_v2", device);
    if (!goes_on) break;
  }
  return absl::OkStatus();
}

}  // namespace lgpu::selftest
