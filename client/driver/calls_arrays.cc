// Arrays and mipmapped arrays. The driver pads them by rules of its own. It tells the padded size of an array
// that has no memory yet, so such a twin of a large array is made and asked; small arrays are padded as two
// such twins are. Where the driver makes none, the charge is an estimate.

#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>

#include "client/driver/shim.h"

namespace lgpu::shim {
namespace {

/// The bytes of one channel of one element. Formats of several channels, of planes and of compressed blocks
/// count as 4 bytes an element, which is at least their size.
std::uint64_t BytesOfFormat(int format) {
  switch (format) {
    case 0x01:  // UNSIGNED_INT8
    case 0x08:  // SIGNED_INT8
      return 1;
    case 0x02:  // UNSIGNED_INT16
    case 0x09:  // SIGNED_INT16
    case 0x10:  // HALF
      return 2;
    default:
      return 4;
  }
}

/// How the driver pads arrays: rows to multiples of `row` bytes, the height to multiples of `rows`.
struct Padding {
  std::uint64_t row = 0, rows = 0;
};
// Where the driver does not say: as a layout in tiles may pad.
constexpr std::uint64_t kRow = 512;
constexpr std::uint64_t kFewestRows = 8, kMostRows = 128;

std::uint64_t BytesOf(const Array3dDescriptor& array, const std::optional<Padding>& told) {
  const std::uint64_t row = Product(std::max<std::uint64_t>(array.width, 1),
                                    std::max(array.channels, 1U) * BytesOfFormat(array.format));
  const std::uint64_t height = std::max<std::uint64_t>(array.height, 1);
  const std::uint64_t tile = std::clamp(std::bit_ceil(std::min(height, kMostRows)), kFewestRows, kMostRows);
  const std::uint64_t rows = array.height == 0 ? 1 : RoundUp(height, told ? told->rows : tile);
  return Product(Product(RoundUp(row, told ? told->row : kRow), rows),
                 std::max<std::uint64_t>(array.depth, 1));
}

/// `levels`: 0 for an array that is not mipmapped.
std::uint64_t BytesOf(Array3dDescriptor array, unsigned levels, const std::optional<Padding>& told) {
  std::uint64_t bytes = BytesOf(array, told);
  for (unsigned level = 1; level < std::min(levels, 64U); ++level) {
    array.width /= 2;
    array.height = array.height == 0 ? 0 : std::max<std::size_t>(array.height / 2, 1);
    if ((array.flags & kArrayOfLayers) == 0) array.depth /= 2;
    const std::uint64_t level_bytes = BytesOf(array, told);
    if (level_bytes > ~bytes) return ~std::uint64_t{0};
    bytes += level_bytes;
  }
  return bytes;
}

template <typename Descriptor>
bool HasMemory(const Descriptor* array) {
  if (array == nullptr) return false;
  if constexpr (requires { array->flags; }) return (array->flags & kArrayWithoutMemory) == 0;
  return true;
}

Array3dDescriptor As3d(const ArrayDescriptorV1& array) {
  return {array.width, array.height, 0, array.format, array.channels, 0};
}
Array3dDescriptor As3d(const ArrayDescriptor& array) {
  return {array.width, array.height, 0, array.format, array.channels, 0};
}
Array3dDescriptor As3d(const Array3dDescriptorV1& array) {
  return {array.width, array.height, array.depth, array.format, array.channels, array.flags};
}
Array3dDescriptor As3d(const Array3dDescriptor& array) { return array; }

/// What the driver says that such an array takes; 0: it does not say.
std::uint64_t BytesOfTwin(Array3dDescriptor descriptor, unsigned levels) {
  const RealDriver& real = RealDriver::Get();
  descriptor.flags |= kArrayMappedLater;
  ArrayMemoryRequirements needed{};
  Device device = 0;
  void* twin = nullptr;
  if (CallReal(real.cuCtxGetDevice, &device) != kSuccess) return 0;
  const Result made = levels == 0 ? CallReal(real.cuArray3DCreate_v2, &twin, &descriptor)
                                  : CallReal(real.cuMipmappedArrayCreate, &twin, &descriptor, levels);
  if (made != kSuccess) return 0;
  const Result told =
      CallReal(levels == 0 ? real.cuArrayGetMemoryRequirements : real.cuMipmappedArrayGetMemoryRequirements,
               &needed, twin, device);
  (void)CallReal(levels == 0 ? real.cuArrayDestroy : real.cuMipmappedArrayDestroy, twin);
  return told == kSuccess ? needed.size : 0;
}

/// The padding of small arrays, which the driver tells by two twins that are large in one direction. Nothing:
/// it does not tell.
std::optional<Padding> ToldPadding() {
  static std::atomic<std::uint64_t> row{0}, rows{0};
  if (const std::uint64_t known = rows.load(); known != 0) return Padding{row.load(), known};
  constexpr int kFloat = 0x20;
  constexpr std::size_t kHigh = 65536, kWide = 131072, kWideBytes = 4 * kWide;
  const std::uint64_t high = BytesOfTwin({1, kHigh, 0, kFloat, 1, 0}, 0);
  const std::uint64_t wide = BytesOfTwin({kWide, 1, 0, kFloat, 1, 0}, 0);
  if (high == 0 || wide == 0) return std::nullopt;
  row.store((high + kHigh - 1) / kHigh);
  rows.store((wide + kWideBytes - 1) / kWideBytes);
  return Padding{row.load(), rows.load()};
}

/// `levels`: 0 for an array that is not mipmapped.
std::uint64_t ChargedBytesOf(const Array3dDescriptor& descriptor, unsigned levels) {
  const std::uint64_t guess = BytesOf(descriptor, levels, std::nullopt);
  if (Shim::Get() == nullptr) return guess;
  if (guess < kSmall) {
    const std::uint64_t told = BytesOf(descriptor, levels, ToldPadding());
    if (told < kSmall) return told;
  }
  const std::uint64_t told = BytesOfTwin(descriptor, levels);
  return told != 0 ? told : guess;
}

template <typename Allocate>
Result Create(void** array, std::uint64_t bytes, const char* call, Allocate allocate) {
  Shim* const shim = Shim::Get();
  const std::optional<Shim::Place> place = shim == nullptr ? std::nullopt : shim->Current();
  if (!place || array == nullptr || bytes == 0) return allocate();
  return shim->ChargeAround(*place, bytes, ChargeKind::kArray, call, allocate,
                            [&] { return reinterpret_cast<std::uint64_t>(*array); });
}

template <typename Descriptor>
Result CreateArray(Result (*real)(Array*, const Descriptor*), Array* array, const Descriptor* descriptor,
                   const char* call) {
  return Create(array, HasMemory(descriptor) ? ChargedBytesOf(As3d(*descriptor), 0) : 0, call,
                [&] { return CallReal(real, array, descriptor); });
}

Result Destroy(Result (*real)(void*), void* array) {
  Shim* const shim = Shim::Get();
  if (shim == nullptr) return CallReal(real, array);
  const auto key = reinterpret_cast<std::uint64_t>(array);
  // The mappings of a sparse array end with it.
  const Handles::References mapped = shim->handles.TakeBindings(key);
  const Result result = shim->UnchargeAround(key, [&] { return CallReal(real, array); });
  if (result == kSuccess) {
    shim->Drop(mapped);
  } else {
    shim->handles.PutBindingsBack(mapped);
  }
  return result;
}

}  // namespace

LGPU_SHIM_EXPORT Result cuArrayCreate(Array* array, const ArrayDescriptorV1* descriptor) {
  return CreateArray(RealDriver::Get().cuArrayCreate, array, descriptor, "cuArrayCreate");
}
LGPU_SHIM_EXPORT Result cuArrayCreate_v2(Array* array, const ArrayDescriptor* descriptor) {
  return CreateArray(RealDriver::Get().cuArrayCreate_v2, array, descriptor, "cuArrayCreate_v2");
}
LGPU_SHIM_EXPORT Result cuArray3DCreate(Array* array, const Array3dDescriptorV1* descriptor) {
  return CreateArray(RealDriver::Get().cuArray3DCreate, array, descriptor, "cuArray3DCreate");
}
LGPU_SHIM_EXPORT Result cuArray3DCreate_v2(Array* array, const Array3dDescriptor* descriptor) {
  return CreateArray(RealDriver::Get().cuArray3DCreate_v2, array, descriptor, "cuArray3DCreate_v2");
}
LGPU_SHIM_EXPORT Result cuMipmappedArrayCreate(MipmappedArray* array, const Array3dDescriptor* descriptor,
                                               unsigned levels) {
  return Create(
      array, HasMemory(descriptor) ? ChargedBytesOf(*descriptor, levels) : 0, "cuMipmappedArrayCreate",
      [&] { return CallReal(RealDriver::Get().cuMipmappedArrayCreate, array, descriptor, levels); });
}
LGPU_SHIM_EXPORT Result cuArrayDestroy(Array array) {
  return Destroy(RealDriver::Get().cuArrayDestroy, array);
}
LGPU_SHIM_EXPORT Result cuMipmappedArrayDestroy(MipmappedArray array) {
  return Destroy(RealDriver::Get().cuMipmappedArrayDestroy, array);
}

}  // namespace lgpu::shim
