// The calls of the fake driver on arrays.

#include "tests/fake_cuda/fake_arrays.h"

#include <algorithm>
#include <utility>

#include "tests/fake_cuda/fake_calls.h"

namespace lgpu::fake_cuda {
namespace {

std::uint64_t ElementBytes(const CUDA_ARRAY3D_DESCRIPTOR& about) {
  switch (static_cast<int>(about.Format)) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return about.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2 * about.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4 * about.NumChannels;
    default:
      return 0;
  }
}

// The shape of a level, without memory; null for one that cuda.h does not allow.
std::unique_ptr<Array> Shape(const CUDA_ARRAY3D_DESCRIPTOR& about) {
  const State& state = Process::This().file->state();
  const auto pad = [](std::uint64_t number, std::uint64_t unit) { return (number + unit - 1) / unit * unit; };
  const std::uint64_t row_unit = state.array_row_unit, rows_unit = state.array_rows_unit;
  auto made = std::make_unique<Array>();
  made->about = about;
  const std::uint64_t element = ElementBytes(about);
  const bool has_channels = about.NumChannels == 1 || about.NumChannels == 2 || about.NumChannels == 4;
  if (element == 0 || about.Width == 0 || !has_channels) return nullptr;
  made->row_bytes = pad(about.Width * element, row_unit == 0 ? 128 : row_unit);
  made->rows = about.Height == 0 ? 1 : pad(about.Height, std::max<std::uint64_t>(rows_unit, 1));
  made->planes = std::max<std::uint64_t>(about.Depth, 1);
  return made;
}

std::uint64_t BytesOf(const Array& array) { return array.row_bytes * array.rows * array.planes; }

constexpr unsigned kWithoutMemory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;

// Takes the memory of an array with all its levels.
CUresult TakeMemory(Array& array) {
  std::uint64_t bytes = array.levels.empty() ? BytesOf(array) : 0;
  for (const auto& level : array.levels) bytes += BytesOf(*level);
  if ((array.about.Flags & kWithoutMemory) != 0) return CUDA_SUCCESS;
  if (const CUresult made = cuMemAlloc_v2(&array.address, bytes); made != CUDA_SUCCESS) return made;
  CUdeviceptr next = array.address;
  for (const auto& level : array.levels) {
    level->address = next;
    next += BytesOf(*level);
  }
  return CUDA_SUCCESS;
}

CUresult Destroy(Array* array) {
  const std::unique_ptr<Array> owned(array);
  return owned->address == 0 ? CUDA_SUCCESS : cuMemFree_v2(owned->address);
}

CUresult Requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* needed, const Array& array) {
  std::uint64_t bytes = array.levels.empty() ? BytesOf(array) : 0;
  for (const auto& level : array.levels) bytes += BytesOf(*level);
  *needed = {};
  needed->size = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  needed->alignment = kGranularity;
  return (array.about.Flags & kWithoutMemory) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* about) {
  std::unique_ptr<Array> made = handle == nullptr || about == nullptr ? nullptr : Shape(*about);
  if (made == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult taken = TakeMemory(*made); taken != CUDA_SUCCESS) return taken;
  *handle = reinterpret_cast<CUarray>(made.release());
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* flat) {
  if (flat == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR about{};
  about.Width = flat->Width;
  about.Height = flat->Height;
  about.Format = flat->Format;
  about.NumChannels = flat->NumChannels;
  return cuArray3DCreate_v2(handle, &about);
}
FAKE_EXPORT CUresult cuArrayDestroy(CUarray handle) { return Destroy(reinterpret_cast<Array*>(handle)); }

FAKE_EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* about, CUarray handle) {
  *about = reinterpret_cast<const Array*>(handle)->about;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* about, CUarray handle) {
  const CUDA_ARRAY3D_DESCRIPTOR& all = reinterpret_cast<const Array*>(handle)->about;
  *about = {.Width = all.Width, .Height = all.Height, .Format = all.Format, .NumChannels = all.NumChannels};
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* needed, CUarray handle,
                                                  CUdevice) {
  if (needed == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Requirements(needed, *reinterpret_cast<const Array*>(handle));
}

FAKE_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray* handle, const CUDA_ARRAY3D_DESCRIPTOR* about,
                                            unsigned levels) {
  std::unique_ptr<Array> made = handle == nullptr || about == nullptr ? nullptr : Shape(*about);
  if (made == nullptr || levels == 0) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR level = *about;
  for (unsigned i = 0; i < levels; ++i) {
    made->levels.push_back(Shape(level));
    level.Width = std::max<std::size_t>(level.Width / 2, 1);
    level.Height /= level.Height > 1 ? 2 : 1;
    const bool has_layers = (level.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    level.Depth /= level.Depth > 1 && !has_layers ? 2 : 1;
  }
  if (const CUresult taken = TakeMemory(*made); taken != CUDA_SUCCESS) return taken;
  *handle = reinterpret_cast<CUmipmappedArray>(made.release());
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  return Destroy(reinterpret_cast<Array*>(handle));
}
FAKE_EXPORT CUresult cuMipmappedArrayGetLevel(CUarray* level, CUmipmappedArray handle, unsigned index) {
  const Array& array = *reinterpret_cast<const Array*>(handle);
  if (index >= array.levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *level = reinterpret_cast<CUarray>(array.levels[index].get());
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* needed,
                                                           CUmipmappedArray handle, CUdevice) {
  if (needed == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Requirements(needed, *reinterpret_cast<const Array*>(handle));
}
