// Arrays and mipmapped arrays. The driver pads them, and tells the padding of few of them, so the charge is
// the sum of their elements.

#include <algorithm>

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

template <typename Descriptor>
std::uint64_t BytesOf(const Descriptor& array) {
  std::uint64_t bytes =
      Product(std::max<std::uint64_t>(array.width, 1), std::max<std::uint64_t>(array.height, 1));
  if constexpr (requires { array.depth; }) bytes = Product(bytes, std::max<std::uint64_t>(array.depth, 1));
  return Product(bytes, std::max(array.channels, 1U) * BytesOfFormat(array.format));
}

std::uint64_t BytesOf(Array3dDescriptor array, unsigned levels) {
  std::uint64_t bytes = 0;
  for (unsigned level = 0; level < std::min(levels, 64U); ++level) {
    const std::uint64_t level_bytes = BytesOf(array);
    if (level_bytes > ~bytes) return ~std::uint64_t{0};
    bytes += level_bytes;
    array.width /= 2;
    array.height /= 2;
    if ((array.flags & kArrayOfLayers) == 0) array.depth /= 2;
  }
  return bytes;
}

template <typename Descriptor>
bool HasMemory(const Descriptor* array) {
  if (array == nullptr) return false;
  if constexpr (requires { array->flags; }) return (array->flags & kArrayWithoutMemory) == 0;
  return true;
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
  return Create(array, HasMemory(descriptor) ? BytesOf(*descriptor) : 0, call,
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
      array, HasMemory(descriptor) ? BytesOf(*descriptor, levels) : 0, "cuMipmappedArrayCreate",
      [&] { return CallReal(RealDriver::Get().cuMipmappedArrayCreate, array, descriptor, levels); });
}
LGPU_SHIM_EXPORT Result cuArrayDestroy(Array array) {
  return Destroy(RealDriver::Get().cuArrayDestroy, array);
}
LGPU_SHIM_EXPORT Result cuMipmappedArrayDestroy(MipmappedArray array) {
  return Destroy(RealDriver::Get().cuMipmappedArrayDestroy, array);
}

}  // namespace lgpu::shim
