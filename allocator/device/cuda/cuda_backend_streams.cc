// The CUDA backend's contexts, streams and kernels.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/device/backend_checks.h"
#include "allocator/device/cuda/cuda_backend_impl.h"
#include "allocator/device/cuda/cuda_image.h"
#include "allocator/device/cuda/cuda_timer.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<CUcontext> CudaBackend::ContextOf(int device) {
  DeviceState& gpu = state(device);
  if (const CUcontext known = gpu.context.load(std::memory_order_acquire); known != nullptr) return known;
  CUcontext context = nullptr;
  const CUresult made = driver_.DevicePrimaryCtxRetain(&context, gpu.device);
  if (made == CUDA_ERROR_DEVICE_UNAVAILABLE) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this process gets no context on GPU ", device, ": cuDevicePrimaryCtxRetain gave ",
        driver_.Name(made),
        "; the GPU is in exclusive or prohibited compute mode, and lgpu shares it: nvidia-smi -c DEFAULT"));
  }
  LGPU_RETURN_IF_ERROR(
      Explain({"cuDevicePrimaryCtxRetain", "CUDA context of this process", device, Bytes()}, made));
  CUcontext expected = nullptr;
  if (!gpu.context.compare_exchange_strong(expected, context, std::memory_order_acq_rel)) {
    // Another thread was first; it is the same context, retained twice.
    driver_.DevicePrimaryCtxRelease(gpu.device);
    return expected;
  }
  return context;
}

void CudaBackend::GiveEverythingBack() {
  for (const auto& [handle, stream] : streams_.All()) DestroyStream(handle).IgnoreError();
  GiveStagingBack();
  const MappedRanges::Everything all = ranges_.TakeAll();
  for (const MappedRanges::MappedRange& range : all.mappings) {
    driver_.MemUnmap(Address(range.address), range.mapping.bytes.count());
  }
  for (const auto& [base, bytes] : all.reservations) driver_.MemAddressFree(Address(base), bytes.count());
  memory_.Clear();
  for (std::unique_ptr<DeviceState>& gpu : states_) {
    const CUcontext context = gpu->context.load(std::memory_order_acquire);
    if (context == nullptr) continue;
    const CUdevice device = gpu->device;
    {
      const CudaContextScope scope(driver_, context);
      {
        MutexLock lock(gpu->mutex);
        for (const auto& [image, module] : gpu->modules) driver_.ModuleUnload(module);
      }
      gpu.reset();  // and its events
    }
    driver_.DevicePrimaryCtxRelease(device);
  }
}

// No copy uses the staging memory any more: streams that wait for the readers have been drained.
void CudaBackend::GiveStagingBack() {
  for (const std::unique_ptr<DeviceState>& gpu : states_) {
    const CUcontext context = gpu->context.load(std::memory_order_acquire);
    if (context == nullptr) continue;
    const CudaContextScope scope(driver_, context);
    std::shared_ptr<CudaStream> reader;
    {
      MutexLock lock(gpu->mutex);
      reader = std::move(gpu->reader);
    }
    if (reader != nullptr) reader->Drain().IgnoreError();
  }
  for (const std::unique_ptr<DeviceState>& gpu : states_) {
    const CUcontext context = gpu->context.load(std::memory_order_acquire);
    if (context == nullptr) continue;
    const CudaContextScope scope(driver_, context);
    staging_.reset();
    small_staging_.reset();
  }
}

// In a forked child the driver does not work, and the handles still belong to the parent.
void CudaBackend::ForgetEverything() {
  ranges_.Forget();
  [[maybe_unused]] const CudaStaging* const staging = staging_.release();
  [[maybe_unused]] const CudaStaging* const small_staging = small_staging_.release();
  memory_.Forget();
  streams_.Forget();
  for (std::unique_ptr<DeviceState>& gpu : states_) {
    gpu->events.Forget();
    gpu->timing_events.Forget();
    [[maybe_unused]] const DeviceState* const state = gpu.release();
  }
}

// ---- streams

bool CudaBackend::HasLostContext() const { return !driver_.Lost().ok(); }

absl::StatusOr<StreamHandle> CudaBackend::CreateStream(int device, int priority) {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  LGPU_ASSIGN_OR_RETURN(const CUcontext context, ContextOf(device));
  const CudaContextScope scope(driver_, context);
  LGPU_RETURN_IF_ERROR(scope.status());
  int least = 0;
  int greatest = 0;
  LGPU_RETURN_IF_ERROR(
      driver_.Check("cuCtxGetStreamPriorityRange", driver_.CtxGetStreamPriorityRange(&least, &greatest)));
  CUstream stream = nullptr;
  LGPU_RETURN_IF_ERROR(Explain({"cuStreamCreateWithPriority", "stream", device, Bytes()},
                               driver_.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING,
                                                                std::clamp(priority, greatest, least))));
  return streams_.Insert(
      std::make_shared<CudaStream>(driver_, state(device).events, device, context, stream));
}

absl::StatusOr<StreamHandle> CudaBackend::AdoptStream(int device, void* native) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<CudaStream> adopted, ProgramStream(device, native));
  return streams_.Insert(std::move(adopted));
}

absl::StatusOr<std::shared_ptr<CudaStream>> CudaBackend::ProgramStream(int device, void* native) {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  LGPU_ASSIGN_OR_RETURN(const CUcontext context, ContextOf(device));
  const CudaContextScope scope(driver_, context);
  LGPU_RETURN_IF_ERROR(scope.status());
  const auto stream = static_cast<CUstream>(native);
  CUcontext of_stream = nullptr;
  const CUresult found = driver_.StreamGetCtx(stream, &of_stream);
  if (found != CUDA_SUCCESS || of_stream != context) {
    const std::string reason = found == CUDA_SUCCESS
                                   ? std::string("it belongs to another context")
                                   : absl::StrCat("cuStreamGetCtx gave ", driver_.Name(found));
    return absl::InvalidArgumentError(
        absl::StrCat("stream 0x", absl::Hex(reinterpret_cast<std::uintptr_t>(native)),
                     " is no stream of GPU ", device, "'s primary context: ", reason,
                     "\n  try: make streams where cuDevicePrimaryCtxRetain's context is current, as the CUDA "
                     "runtime does"));
  }
  return std::make_shared<CudaStream>(driver_, state(device).events, device, context, stream,
                                      CudaStream::Owner::kProgram);
}

absl::StatusOr<std::shared_ptr<CudaStream>> CudaBackend::FindStream(StreamHandle stream) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  return streams_.Find(stream);
}

absl::Status CudaBackend::DestroyStream(StreamHandle stream) {
  if (epoch_.IsForked()) return ForkedBackendError();  // a stream of a lost context is still given up
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, streams_.Remove(stream));
  const CudaContextScope scope(driver_, found->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  return found->Drain();
}

absl::Status CudaBackend::Drain(StreamHandle stream) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(stream));
  const CudaContextScope scope(driver_, found->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  return found->Drain();
}

absl::StatusOr<Fence> CudaBackend::Record(StreamHandle stream) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(stream));
  const CudaContextScope scope(driver_, found->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t sequence, found->Record());
  return Fence{stream, sequence};
}

absl::StatusOr<bool> CudaBackend::HasPassed(const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(fence.stream));
  const CudaContextScope scope(driver_, found->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  return found->HasPassed(fence.sequence);
}

absl::Status CudaBackend::Wait(const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(fence.stream));
  const CudaContextScope scope(driver_, found->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  return found->Wait(fence.sequence);
}

absl::Status CudaBackend::WaitOnStream(StreamHandle stream, const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> waiter, FindStream(stream));
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> other, FindStream(fence.stream));
  const CudaContextScope scope(driver_, waiter->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  return other->MakeWait(*waiter, fence.sequence);
}

absl::Status CudaBackend::WaitOnProgramStream(void* native, const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> other, FindStream(fence.stream));
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> waiter, ProgramStream(other->device(), native));
  const CudaContextScope scope(driver_, waiter->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  return other->MakeWait(*waiter, fence.sequence);
}

absl::Status CudaBackend::DrainDevice(int device) {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  LGPU_ASSIGN_OR_RETURN(const CUcontext context, ContextOf(device));
  const CudaContextScope scope(driver_, context);
  LGPU_RETURN_IF_ERROR(scope.status());
  return driver_.Check("cuCtxSynchronize", driver_.CtxSynchronize());
}

// ---- kernels

absl::StatusOr<CUfunction> CudaBackend::FunctionOf(int device, const DeviceKernel& kernel) {
  DeviceState& gpu = state(device);
  CUmodule module = nullptr;
  {
    MutexLock lock(gpu.mutex);
    if (const auto known = gpu.functions.find(&kernel); known != gpu.functions.end()) return known->second;
    if (const auto loaded = gpu.modules.find(kernel.image); loaded != gpu.modules.end()) {
      module = loaded->second;
    }
  }
  if (module == nullptr) {
    const CUresult loaded = LoadImage(driver_, *kernel.image, &module);
    LGPU_RETURN_IF_ERROR(ExplainLoad(driver_, loaded));
    LGPU_RETURN_IF_ERROR(Explain({"cuModuleLoadData", "code of lgpu's kernels", device, Bytes()}, loaded));
    CUmodule spare = nullptr;
    {
      MutexLock lock(gpu.mutex);
      const auto [entry, is_new] = gpu.modules.emplace(kernel.image, module);
      if (!is_new) spare = std::exchange(module, entry->second);
    }
    if (spare != nullptr) driver_.ModuleUnload(spare);
  }
  CUfunction function = nullptr;
  LGPU_RETURN_IF_ERROR(driver_.Check(absl::StrCat("cuModuleGetFunction of ", kernel.name),
                                     driver_.ModuleGetFunction(&function, module, kernel.name)));
  MutexLock lock(gpu.mutex);
  gpu.functions.emplace(&kernel, function);
  return function;
}

absl::Status CudaBackend::Launch(StreamHandle stream, const KernelLaunch& launch) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(stream));
  if (launch.device_kernel == nullptr) {
    return absl::InvalidArgumentError("launch: a GPU needs a device kernel, and there is none");
  }
  if (launch.argument_bytes > KernelLaunch::kMaxArgumentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("launch: ", launch.argument_bytes,
                                                   " bytes of arguments; at most ",
                                                   KernelLaunch::kMaxArgumentBytes, " are possible"));
  }
  const CudaContextScope scope(driver_, found->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  LGPU_ASSIGN_OR_RETURN(const CUfunction function, FunctionOf(found->device(), *launch.device_kernel));
  std::size_t size = launch.argument_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<void*>(launch.arguments),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  const CUresult result = driver_.LaunchKernel(function, launch.grid[0], launch.grid[1], launch.grid[2],
                                               launch.block[0], launch.block[1], launch.block[2],
                                               launch.shared_bytes, found->get(), nullptr, extra);
  LGPU_RETURN_IF_ERROR(driver_.Check(absl::StrCat("cuLaunchKernel of ", launch.device_kernel->name), result));
  found->CountWork();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StreamTimer>> CudaBackend::StartTimer(StreamHandle stream) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<CudaStream> found, FindStream(stream));
  CudaEventPool& events = state(found->device()).timing_events;
  return StartCudaTimer(driver_, events, std::move(found));
}

absl::Status CudaBackend::CallLibrary(StreamHandle stream,
                                      absl::FunctionRef<absl::Status(void* stream)> call) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(stream));
  const CudaContextScope scope(driver_, found->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  const absl::Status status = call(found->get());
  found->CountWork();  // even a call that failed may have queued something
  return status;
}

}  // namespace lgpu
