// The fake driver's answers about an address.

#include <algorithm>

#include "tests/fake_cuda/fake_calls.h"

namespace lgpu::fake_cuda {
namespace {

struct About {
  std::uint64_t start = 0, bytes = 0;
  bool is_host = false, is_managed = false;
  int card = 0;
  Context* context = nullptr;
};

// False for memory that the driver does not know.
bool Find(Process& process, std::uint64_t address, About* about) {
  if (const auto piece = process.FindPiece(address); piece != process.pieces.end()) {
    const Piece& of = piece->second;
    *about = {piece->first, of.bytes, false, of.kind == Piece::Kind::kManaged, of.card, of.context};
    return true;
  }
  auto reservation = process.reservations.upper_bound(address);
  if (reservation != process.reservations.begin() &&
      (--reservation, address - reservation->first < reservation->second.bytes)) {
    *about = {reservation->first, reservation->second.bytes};
    return true;
  }
  for (const auto* const ranges : {&process.host_memory, &process.registered}) {
    auto range = ranges->upper_bound(address);
    if (range != ranges->begin() && (--range, address - range->first < range->second)) {
      *about = {range->first, range->second, true};
      return true;
    }
  }
  return false;
}

CUresult Tell(const Process& process, const About& about, std::uint64_t address,
              CUpointer_attribute attribute, void* data) {
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = reinterpret_cast<CUcontext>(about.context);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = about.is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!about.is_host && !about.is_managed) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<void**>(data) = reinterpret_cast<void*>(address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = about.start;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(data) = about.bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<bool*>(data) = about.is_managed;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<bool*>(data) = true;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<bool*>(data) = about.context != nullptr && !about.is_managed;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = process.OrdinalOf(about.card);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = about.start;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(data) = nullptr;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned*>(data) = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  FAKE_ENTER("cuPointerGetAttribute");
  About about;
  return Find(process, address, &about) ? Tell(process, about, address, attribute, data)
                                        : CUDA_ERROR_INVALID_VALUE;
}

// Unknown attributes, and those of memory that is not the driver's, are 0; such a device ordinal is -2.
FAKE_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                            CUdeviceptr address) {
  FAKE_ENTER("cuPointerGetAttributes");
  About about;
  const bool is_known = Find(process, address, &about);
  for (unsigned i = 0; i < count; ++i) {
    if (is_known && Tell(process, about, address, attributes[i], data[i]) == CUDA_SUCCESS) continue;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      *static_cast<int*>(data[i]) = -2;
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
               attributes[i] == CU_POINTER_ATTRIBUTE_MAPPED) {
      *static_cast<bool*>(data[i]) = false;
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *static_cast<unsigned*>(data[i]) = 0;
    } else {
      *static_cast<void**>(data[i]) = nullptr;
    }
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuPointerSetAttribute(const void*, CUpointer_attribute, CUdeviceptr address) {
  FAKE_ENTER("cuPointerSetAttribute");
  About about;
  return Find(process, address, &about) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
