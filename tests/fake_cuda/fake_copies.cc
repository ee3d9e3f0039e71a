// The calls of the fake driver that copy and fill memory, other than the three that lgpu makes: at once after
// all work of the context, or in a stream's order. All are one box, of rows and planes.

#include <cstring>
#include <type_traits>
#include <utility>

#include "tests/fake_cuda/fake_arrays.h"
#include "tests/fake_cuda/fake_calls.h"

namespace lgpu::fake_cuda {
namespace {

struct Place {
  std::uint64_t address = 0;
  std::uint64_t pitch = 0, plane = 0;  // bytes from row to row, from plane to plane
};

struct Box {
  Place to = {}, from = {};
  std::uint64_t width = 0, height = 1, depth = 1;  // of a row in bytes
  std::uint32_t value = 0;                         // with which a box without a `from` is filled
  int value_bytes = 0;                             // 0: a copy
};

std::uint64_t Extent(const Box& box, const Place& place) {
  return box.width == 0 || box.height == 0 || box.depth == 0
             ? 0
             : (box.depth - 1) * place.plane + (box.height - 1) * place.pitch + box.width;
}

// The host's address of a place, which may be host memory. Callers hold Process::mutex.
char* Reach(Process& process, const Box& box, const Place& place, bool writes, int card, const char* call) {
  if (!process.IsReserved(place.address)) return reinterpret_cast<char*>(place.address);
  return process.Reach({place.address, Extent(box, place), writes}, card, call);
}

CUresult Run(Process& process, const Box& box, int card, const char* call) {
  if (Extent(box, box.to) == 0) return CUDA_SUCCESS;
  char* const to = Reach(process, box, box.to, true, card, call);
  const bool is_copy = box.value_bytes == 0;
  const char* const from = is_copy ? Reach(process, box, box.from, false, card, call) : nullptr;
  if (to == nullptr || (is_copy && from == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (std::uint64_t z = 0; z < box.depth; ++z) {
    for (std::uint64_t y = 0; y < box.height; ++y) {
      char* const row = to + z * box.to.plane + y * box.to.pitch;
      if (is_copy) std::memmove(row, from + z * box.from.plane + y * box.from.pitch, box.width);
      for (std::uint64_t x = 0; !is_copy && x < box.width; x += static_cast<unsigned>(box.value_bytes)) {
        std::memcpy(row + x, &box.value, static_cast<std::size_t>(box.value_bytes));
      }
    }
  }
  return CUDA_SUCCESS;
}

CUresult Now(const Box& box) {
  FAKE_ENTER_CONTEXT("cuMemcpy");
  process.WaitForContext(lock, context);
  if (process.sticky != CUDA_SUCCESS) return process.sticky;
  return Run(process, box, context->card, "cuMemcpy");
}

/// Pageable memory of the host: a copy to or from it is done when the call returns.
bool IsPageable(Process& process, const Place& place) {
  return place.address != 0 && !process.IsReserved(place.address) &&
         !process.IsPageLocked(reinterpret_cast<const void*>(place.address));
}

CUresult Later(const Box& box, CUstream handle) {
  FAKE_ENTER("cuMemcpyAsync");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuMemcpyAsync", &stream); found != CUDA_SUCCESS) {
    return found;
  }
  std::vector<Touch> touches = {{box.to.address, Extent(box, box.to), true}};
  if (box.value_bytes == 0) touches.push_back({box.from.address, Extent(box, box.from), false});
  const bool is_done_at_once = stream->capture == nullptr && !process.file->state().reads_pageable &&
                               (IsPageable(process, box.to) || IsPageable(process, box.from));
  stream->Queue({std::move(touches), [box, card = stream->context->card] {
                   Process& here = Process::This();
                   const std::lock_guard hold(here.mutex);
                   if (Run(here, box, card, "cuMemcpyAsync") != CUDA_SUCCESS) {
                     here.sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
                   }
                 }});
  if (!is_done_at_once) return CUDA_SUCCESS;
  lock.unlock();
  stream->Drain();
  return CUDA_SUCCESS;
}

template <typename To, typename From>
Box Straight(To to, From from, std::size_t bytes) {
  const auto number = [](auto at) {
    if constexpr (std::is_pointer_v<decltype(at)>) {
      return reinterpret_cast<std::uint64_t>(at);
    } else {
      return std::uint64_t{at};
    }
  };
  return {.to = {number(to)}, .from = {number(from)}, .width = bytes};
}

Box Fill(CUdeviceptr to, std::uint32_t value, int bytes, std::size_t width, std::size_t height = 1,
         std::size_t pitch = 0) {
  return {.to = {to, pitch},
          .width = width * static_cast<std::size_t>(bytes),
          .height = height,
          .value = value,
          .value_bytes = bytes};
}

// One end of a copy that cuda.h describes by a structure.
Place End(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, std::size_t x,
          std::size_t y, std::size_t z, std::size_t pitch, std::size_t height) {
  Place place{.pitch = pitch, .plane = pitch * height};
  if (type == CU_MEMORYTYPE_ARRAY) {
    const Array& of = *reinterpret_cast<const Array*>(array);
    place = {of.address, of.row_bytes, of.row_bytes * of.rows};
  } else {
    place.address = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uint64_t>(host) : device;
  }
  place.address += x + y * place.pitch + z * place.plane;
  return place;
}

Box BoxOf(const CUDA_MEMCPY2D& copy) {
  return {.to = End(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray, copy.dstXInBytes,
                    copy.dstY, 0, copy.dstPitch, 0),
          .from = End(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcXInBytes,
                      copy.srcY, 0, copy.srcPitch, 0),
          .width = copy.WidthInBytes,
          .height = copy.Height};
}

Box BoxOf(const CUDA_MEMCPY3D& copy) {
  return {.to = End(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray, copy.dstXInBytes,
                    copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight),
          .from = End(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcXInBytes,
                      copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight),
          .width = copy.WidthInBytes,
          .height = copy.Height,
          .depth = copy.Depth};
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return Now(Straight(to, from, bytes));
}
FAKE_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return Later(Straight(to, from, bytes), stream);
}
FAKE_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  return Now(Straight(to, from, bytes));
}
FAKE_EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  return Now(Straight(to, from, bytes));
}
FAKE_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return Now(Straight(to, from, bytes));
}
FAKE_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, std::size_t bytes) {
  return Now(Straight(to, from, bytes));
}
FAKE_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                       std::size_t bytes, CUstream stream) {
  return Later(Straight(to, from, bytes), stream);
}
FAKE_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : Now(BoxOf(*copy));
}
FAKE_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : Now(BoxOf(*copy));
}
FAKE_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : Later(BoxOf(*copy), stream);
}
FAKE_EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : Now(BoxOf(*copy));
}
FAKE_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : Later(BoxOf(*copy), stream);
}

FAKE_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t count) {
  return Now(Fill(to, value, 1, count));
}
FAKE_EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, std::size_t count) {
  return Now(Fill(to, value, 2, count));
}
FAKE_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, std::size_t count) {
  return Now(Fill(to, value, 4, count));
}
FAKE_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count,
                                     CUstream stream) {
  return Later(Fill(to, value, 1, count), stream);
}
FAKE_EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count,
                                      CUstream stream) {
  return Later(Fill(to, value, 2, count), stream);
}
FAKE_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
  return Later(Fill(to, value, 4, count), stream);
}
FAKE_EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr to, std::size_t pitch, unsigned char value,
                                     std::size_t width, std::size_t height) {
  return Now(Fill(to, value, 1, width, height, pitch));
}
FAKE_EXPORT CUresult cuMemsetD2D16_v2(CUdeviceptr to, std::size_t pitch, unsigned short value,
                                      std::size_t width, std::size_t height) {
  return Now(Fill(to, value, 2, width, height, pitch));
}
FAKE_EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr to, std::size_t pitch, unsigned value, std::size_t width,
                                      std::size_t height) {
  return Now(Fill(to, value, 4, width, height, pitch));
}
