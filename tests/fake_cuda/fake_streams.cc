// The calls of the fake driver on streams and events, and of the three copies that lgpu makes. Work really
// runs later, on a thread per stream: a program that does not wait reads memory before its work has written
// it.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "tests/fake_cuda/fake_calls.h"
#include "tests/fake_cuda/fake_libraries.h"

namespace lgpu::fake_cuda {
namespace {

CUresult FindEvent(Process& process, CUevent handle, const char* call, Event** found) {
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, call); current != CUDA_SUCCESS) {
    return current;
  }
  const auto event = process.events.find(reinterpret_cast<Event*>(handle));
  if (event == process.events.end()) {
    process.Break("use-after-destroy", std::string(call) + " of an event that is not there");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *found = event->second.get();
  return CUDA_SUCCESS;
}

// Copies check their ranges at once.
CUresult CheckTouches(Process& process, const std::vector<Touch>& touches, int card, const char* call) {
  for (const Touch& touch : touches) {
    if (process.Reach(touch, card, call) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

char* ReachLater(const Touch& touch, int card, const char* call) {
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  if (process.sticky != CUDA_SUCCESS) return nullptr;
  char* const data = process.Reach(touch, card, call);
  if (data == nullptr) process.sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
  return data;
}

CUresult QueueLibraryWork(CUstream handle, LibraryWork work, const char* call) {
  const Inside inside;
  if (inside.result() != CUDA_SUCCESS) return inside.result();
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, call, &stream); found != CUDA_SUCCESS) return found;
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
  FAKE_ENTER_CONTEXT("cuStreamCreateWithPriority");
  if ((flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<Stream>(context, flags);
  *stream = reinterpret_cast<CUstream>(made.get());
  process.streams.emplace(made.get(), std::move(made));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

FAKE_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  std::vector<std::shared_ptr<Stream>> done;
  FAKE_ENTER("cuStreamDestroy");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuStreamDestroy", &stream); found != CUDA_SUCCESS) {
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
  if (const CUresult found = process.FindStream(handle, "cuStreamSynchronize", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  lock.unlock();
  stream->Drain();
  lock.lock();
  process.TrimPools();
  return process.sticky;
}

FAKE_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
  FAKE_ENTER("cuStreamWaitEvent");
  std::shared_ptr<Stream> stream;
  Event* event = nullptr;
  if (const CUresult found = process.FindStream(handle, "cuStreamWaitEvent", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  if (const CUresult found = FindEvent(process, event_handle, "cuStreamWaitEvent", &event);
      found != CUDA_SUCCESS) {
    return found;
  }
  if (event->capture != nullptr) {
    if (stream->capture == nullptr) stream->capture = event->capture;
  } else if (event->completion != nullptr) {
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
  if (const CUresult found = process.FindStream(stream_handle, "cuEventRecord", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  event->capture = stream->capture;
  if (stream->capture != nullptr) return CUDA_SUCCESS;
  event->completion = std::make_shared<Completion>();
  stream->Queue({{}, [completion = event->completion] { completion->Set(); }});
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
  return cuEventRecord(event, stream);
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
  process.TrimPools();
  return process.sticky;
}

// cuda.h: "If either event was created with CU_EVENT_DISABLE_TIMING ... CUDA_ERROR_INVALID_HANDLE", "If ...
// has been called on both events but the device has not yet completed that work, CUDA_ERROR_NOT_READY is
// returned".
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

FAKE_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
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
  if (const CUresult found = process.FindStream(handle, "cuMemcpyHtoDAsync", &stream);
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
  if (const CUresult found = process.FindStream(handle, "cuMemcpyDtoHAsync", &stream);
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
  if (const CUresult found = process.FindStream(handle, "cuMemcpyDtoDAsync", &stream);
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

FAKE_EXPORT CUresult cuStreamQuery(CUstream handle) {
  FAKE_ENTER("cuStreamQuery");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuStreamQuery", &stream); found != CUDA_SUCCESS) {
    return found;
  }
  if (process.sticky != CUDA_SUCCESS) return process.sticky;
  return stream->IsIdle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FAKE_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  FAKE_ENTER("cuStreamGetFlags");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuStreamGetFlags", &stream); found != CUDA_SUCCESS) {
    return found;
  }
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  unsigned flags = 0;
  *priority = 0;
  return cuStreamGetFlags(handle, &flags);
}
FAKE_EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  unsigned flags = 0;
  *id = reinterpret_cast<std::uintptr_t>(handle);
  return cuStreamGetFlags(handle, &flags);
}
FAKE_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  FAKE_ENTER("cuStreamGetCtx");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuStreamGetCtx", &stream); found != CUDA_SUCCESS) {
    return found;
  }
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = reinterpret_cast<CUcontext>(stream->context);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  if (green != nullptr) (void)cuStreamGetGreenCtx(stream, green);
  return cuStreamGetCtx(stream, context);
}
FAKE_EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  CUcontext context = nullptr;
  const CUresult found = cuStreamGetCtx(stream, &context);
  return found == CUDA_SUCCESS ? cuCtxGetDevice_v2(device, context) : found;
}

FAKE_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  FAKE_ENTER("cuLaunchHostFunc");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuLaunchHostFunc", &stream); found != CUDA_SUCCESS) {
    return found;
  }
  stream->Queue({{}, [function, data] { function(data); }});
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data, unsigned) {
  FAKE_ENTER("cuStreamAddCallback");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuStreamAddCallback", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  stream->Queue({{}, [callback, handle, data] { callback(handle, CUDA_SUCCESS, data); }});
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr, std::size_t, unsigned) {
  unsigned flags = 0;
  return cuStreamGetFlags(handle, &flags);
}
FAKE_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr, std::size_t, CUdevice, CUstream handle) {
  unsigned flags = 0;
  return cuStreamGetFlags(handle, &flags);
}
FAKE_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr, std::size_t, CUmemLocation, unsigned,
                                           CUstream handle) {
  unsigned flags = 0;
  return cuStreamGetFlags(handle, &flags);
}
FAKE_EXPORT CUresult cuMemAdvise(CUdeviceptr, std::size_t, CUmem_advise, CUdevice) { return CUDA_SUCCESS; }
FAKE_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr, std::size_t, CUmem_advise, CUmemLocation) {
  return CUDA_SUCCESS;
}
