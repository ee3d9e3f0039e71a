// The calls of the fake driver on streams, events, copies and kernels. Work really runs later, on a thread
// per stream: a program that does not wait sees what is not there yet.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "tests/fake_cuda/fake_calls.h"
#include "tests/fake_cuda/fake_kernels.h"
#include "tests/fake_cuda/fake_libraries.h"

namespace lgpu::fake_cuda {
namespace {

CUresult FindStream(Process& process, CUstream handle, const char* call, std::shared_ptr<Stream>* found) {
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, call); current != CUDA_SUCCESS)
    return current;
  const auto stream = process.streams.find(reinterpret_cast<Stream*>(handle));
  if (stream == process.streams.end()) {
    process.Break("use-after-destroy", std::string(call) + " of a stream that is not there");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *found = stream->second;
  return CUDA_SUCCESS;
}

CUresult FindEvent(Process& process, CUevent handle, const char* call, Event** found) {
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, call); current != CUDA_SUCCESS)
    return current;
  const auto event = process.events.find(reinterpret_cast<Event*>(handle));
  if (event == process.events.end()) {
    process.Break("use-after-destroy", std::string(call) + " of an event that is not there");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *found = event->second.get();
  return CUDA_SUCCESS;
}

// Where the host sees the memory when the work runs; null kills the contexts.
char* ReachLater(const Touch& touch, int card, const char* call) {
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  if (process.sticky != CUDA_SUCCESS) return nullptr;
  char* const data = process.Reach(touch, card, call);
  if (data == nullptr) process.sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
  return data;
}

// Copies check their ranges at once.
CUresult CheckTouches(Process& process, const std::vector<Touch>& touches, int card, const char* call) {
  for (const Touch& touch : touches) {
    if (process.Reach(touch, card, call) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void RunKernel(const Emulation& emulation, const std::vector<char>& parameters, const Grid& grid,
               const std::vector<Touch>& touches, int card) {
  Process& process = Process::This();
  while (process.file->state().hold_kernels) ::usleep(500);
  std::vector<std::pair<std::uint64_t, char*>> places;
  for (const Touch& touch : touches) {
    char* const data = ReachLater(touch, card, "kernel");
    if (data == nullptr) return;
    places.emplace_back(touch.address, data);
  }
  const bool met = emulation.run(parameters.data(), grid, [&](const void* pointer) {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    const auto place = std::find_if(places.begin(), places.end(),
                                    [&](const auto& candidate) { return candidate.first == address; });
    return place->second;
  });
  if (!met)
    process.Break("barrier", std::string(emulation.name) + " has a barrier that not all threads reach");
}

}  // namespace

CUresult QueueLibraryWork(CUstream handle, LibraryWork work, const char* call) {
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult found = FindStream(process, handle, call, &stream); found != CUDA_SUCCESS) return found;
  Stream::Work queued;
  queued.touches = work.touches;
  queued.run = [work = std::move(work), card = stream->context->card, call] {
    while (Process::This().file->state().hold_kernels) ::usleep(500);
    std::vector<char*> places;
    for (const Touch& touch : work.touches) {
      places.push_back(touch.bytes == 0 ? nullptr : ReachLater(touch, card, call));
      if (touch.bytes != 0 && places.back() == nullptr) return;
    }
    work.run(places);
  };
  stream->Queue(std::move(queued));
  return CUDA_SUCCESS;
}

}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  FAKE_ENTER("cuStreamCreateWithPriority");
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, "cuStreamCreateWithPriority");
      current != CUDA_SUCCESS) {
    return current;
  }
  if ((flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<Stream>(context);
  *stream = reinterpret_cast<CUstream>(made.get());
  process.streams.emplace(made.get(), std::move(made));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  std::vector<std::shared_ptr<Stream>> done;
  FAKE_ENTER("cuStreamDestroy");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = FindStream(process, handle, "cuStreamDestroy", &stream); found != CUDA_SUCCESS) {
    return found;
  }
  process.streams.erase(stream.get());
  // cuStreamDestroy: "the function will return immediately and the resources associated with hStream will be
  // released automatically once the device has completed all work".
  process.zombies.push_back(std::move(stream));
  const auto idle = std::partition(process.zombies.begin(), process.zombies.end(),
                                   [](const std::shared_ptr<Stream>& zombie) { return !zombie->IsIdle(); });
  done.assign(std::make_move_iterator(idle), std::make_move_iterator(process.zombies.end()));
  process.zombies.erase(idle, process.zombies.end());
  lock.unlock();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  FAKE_ENTER("cuStreamSynchronize");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = FindStream(process, handle, "cuStreamSynchronize", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  lock.unlock();
  stream->Drain();
  lock.lock();
  return process.sticky;
}

FAKE_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
  FAKE_ENTER("cuStreamWaitEvent");
  std::shared_ptr<Stream> stream;
  Event* event = nullptr;
  if (const CUresult found = FindStream(process, handle, "cuStreamWaitEvent", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  if (const CUresult found = FindEvent(process, event_handle, "cuStreamWaitEvent", &event);
      found != CUDA_SUCCESS) {
    return found;
  }
  if (event->completion != nullptr) {
    stream->Queue({{}, [completion = event->completion] { completion->Wait(); }});
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
  FAKE_ENTER("cuEventCreate");
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, "cuEventCreate"); current != CUDA_SUCCESS) {
    return current;
  }
  auto made = std::make_unique<Event>();
  made->keeps_time = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = reinterpret_cast<CUevent>(made.get());
  process.events.emplace(made.get(), std::move(made));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  FAKE_ENTER("cuEventRecord");
  std::shared_ptr<Stream> stream;
  Event* event = nullptr;
  if (const CUresult found = FindEvent(process, handle, "cuEventRecord", &event); found != CUDA_SUCCESS) {
    return found;
  }
  if (const CUresult found = FindStream(process, stream_handle, "cuEventRecord", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  event->completion = std::make_shared<Completion>();
  stream->Queue({{}, [completion = event->completion] { completion->Set(); }});
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventQuery(CUevent handle) {
  FAKE_ENTER("cuEventQuery");
  Event* event = nullptr;
  if (const CUresult found = FindEvent(process, handle, "cuEventQuery", &event); found != CUDA_SUCCESS) {
    return found;
  }
  return event->completion == nullptr || event->completion->IsDone() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FAKE_EXPORT CUresult cuEventSynchronize(CUevent handle) {
  FAKE_ENTER("cuEventSynchronize");
  Event* event = nullptr;
  if (const CUresult found = FindEvent(process, handle, "cuEventSynchronize", &event);
      found != CUDA_SUCCESS) {
    return found;
  }
  const std::shared_ptr<Completion> completion = event->completion;
  lock.unlock();
  if (completion != nullptr) completion->Wait();
  lock.lock();
  return process.sticky;
}

// cuda.h: "If either event was created with CU_EVENT_DISABLE_TIMING ... CUDA_ERROR_INVALID_HANDLE", "If ...
// has been called on both events but the device has not yet completed that work, CUDA_ERROR_NOT_READY is
// returned".
#undef cuEventElapsedTime  // the header of CUDA 13 means a later one by it
FAKE_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  FAKE_ENTER("cuEventElapsedTime");
  Event* start = nullptr;
  Event* end = nullptr;
  for (const auto& [handle, event] : {std::pair(start_handle, &start), std::pair(end_handle, &end)}) {
    if (const CUresult found = FindEvent(process, handle, "cuEventElapsedTime", event);
        found != CUDA_SUCCESS) {
      return found;
    }
    if (!(*event)->keeps_time || (*event)->completion == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!start->completion->IsDone() || !end->completion->IsDone()) return CUDA_ERROR_NOT_READY;
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->completion->at - start->completion->at).count();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  FAKE_ENTER("cuEventDestroy");
  Event* event = nullptr;
  if (const CUresult found = FindEvent(process, handle, "cuEventDestroy", &event); found != CUDA_SUCCESS) {
    return found;
  }
  process.events.erase(event);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                                          CUstream handle) {
  FAKE_ENTER("cuMemcpyHtoDAsync");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = FindStream(process, handle, "cuMemcpyHtoDAsync", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  const Touch touch{to, bytes, true};
  if (const CUresult checked = CheckTouches(process, {touch}, stream->context->card, "cuMemcpyHtoDAsync");
      checked != CUDA_SUCCESS) {
    return checked;
  }
  const int card = stream->context->card;
  if (process.IsPageLocked(from) || process.file->state().reads_pageable) {
    const Touch host{reinterpret_cast<std::uint64_t>(from), bytes, false};
    stream->Queue({{touch, host}, [touch, card, from] {
                     if (char* const place = ReachLater(touch, card, "cuMemcpyHtoDAsync"); place != nullptr) {
                       std::memcpy(place, from, touch.bytes);
                     }
                   }});
    return CUDA_SUCCESS;
  }
  // Pageable memory is staged before the call returns.
  const auto* const first = static_cast<const char*>(from);
  stream->Queue({{touch}, [touch, card, data = std::vector<char>(first, first + bytes)] {
                   if (char* const place = ReachLater(touch, card, "cuMemcpyHtoDAsync"); place != nullptr) {
                     std::memcpy(place, data.data(), data.size());
                   }
                 }});
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream handle) {
  FAKE_ENTER("cuMemcpyDtoHAsync");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = FindStream(process, handle, "cuMemcpyDtoHAsync", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  const Touch touch{from, bytes, false};
  if (const CUresult checked = CheckTouches(process, {touch}, stream->context->card, "cuMemcpyDtoHAsync");
      checked != CUDA_SUCCESS) {
    return checked;
  }
  const Touch host{reinterpret_cast<std::uint64_t>(to), bytes, true};
  stream->Queue({{touch, host}, [touch, to, card = stream->context->card] {
                   if (const char* const place = ReachLater(touch, card, "cuMemcpyDtoHAsync");
                       place != nullptr) {
                     std::memcpy(to, place, touch.bytes);
                   }
                 }});
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                          CUstream handle) {
  FAKE_ENTER("cuMemcpyDtoDAsync");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = FindStream(process, handle, "cuMemcpyDtoDAsync", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  const Touch written{to, bytes, true};
  const Touch read{from, bytes, false};
  if (const CUresult checked =
          CheckTouches(process, {written, read}, stream->context->card, "cuMemcpyDtoDAsync");
      checked != CUDA_SUCCESS) {
    return checked;
  }
  stream->Queue({{written, read}, [written, read, card = stream->context->card] {
                   char* const place = ReachLater(written, card, "cuMemcpyDtoDAsync");
                   const char* const source =
                       place == nullptr ? nullptr : ReachLater(read, card, "cuMemcpyDtoDAsync");
                   if (source != nullptr) std::memmove(place, source, read.bytes);
                 }});
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  FAKE_ENTER("cuPointerGetAttribute");
  const bool page_locked = process.IsPageLocked(reinterpret_cast<const void*>(pointer));
  if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || (!page_locked && !process.IsReserved(pointer))) {
    return CUDA_ERROR_INVALID_VALUE;  // as for host memory that the driver does not know
  }
  *static_cast<unsigned*>(data) = page_locked ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                                    CUstream stream_handle, void**, void** extra) {
  FAKE_ENTER("cuLaunchKernel");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = FindStream(process, stream_handle, "cuLaunchKernel", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  const std::uint64_t grid = std::uint64_t{grid_x} * grid_y * grid_z;
  const std::uint64_t block = std::uint64_t{block_x} * block_y * block_z;
  if (grid == 0 || block == 0 || block > 1024 || extra == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const char* buffer = nullptr;
  std::size_t size = 0;
  for (void** at = extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (at[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char*>(at[1]);
    if (at[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<std::size_t*>(at[1]);
  }
  const Emulation& emulation = *reinterpret_cast<Function*>(handle)->emulation;
  if (buffer == nullptr || size != emulation.parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
  std::vector<char> parameters(buffer, buffer + size);
  std::vector<Touch> touches = emulation.touches(parameters.data());
  Stream::Work work;
  work.touches = touches;
  work.run = [&emulation, parameters = std::move(parameters), sizes = Grid{grid, block},
              touches = std::move(touches),
              card = stream->context->card] { RunKernel(emulation, parameters, sizes, touches, card); };
  stream->Queue(std::move(work));
  return CUDA_SUCCESS;
}
