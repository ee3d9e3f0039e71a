#include "tests/support/failing_backend.h"

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu {

absl::Status FailingBackend::Fault(const char* call) {
  if (faults_.Next()) {
    return absl::Status(options_.code, absl::StrCat("injected: ", call, " is call ", faults_.calls()));
  }
  return absl::OkStatus();
}

absl::Status FailingBackend::CleanupFault(const char* call) {
  const absl::Status fault = Fault(call);
  return options_.cleanup_fails ? fault : absl::OkStatus();
}

absl::StatusOr<MemoryHandle> FailingBackend::Create(int device, Bytes bytes) {
  if (options_.before_create) options_.before_create();
  LGPU_RETURN_IF_ERROR(Fault("Create"));
  return backend_->Create(device, bytes);
}

absl::StatusOr<ExportedFd> FailingBackend::Export(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(Fault("Export"));
  return backend_->Export(memory);
}

absl::StatusOr<MemoryHandle> FailingBackend::Import(int device, UniqueFd fd, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(Fault("Import"));
  return backend_->Import(device, std::move(fd), bytes);
}

absl::Status FailingBackend::Release(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CleanupFault("Release"));
  return backend_->Release(memory);
}

absl::Status FailingBackend::Reclaim(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CleanupFault("Reclaim"));
  return backend_->Reclaim(memory);
}

absl::StatusOr<std::byte*> FailingBackend::Reserve(int device, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(Fault("Reserve"));
  return backend_->Reserve(device, bytes);
}

absl::Status FailingBackend::Unreserve(std::byte* base, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CleanupFault("Unreserve"));
  return backend_->Unreserve(base, bytes);
}

absl::Status FailingBackend::Map(std::byte* address, MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(Fault("Map"));
  return backend_->Map(address, memory);
}

absl::Status FailingBackend::SetAccess(std::byte* address, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(Fault("SetAccess"));
  return backend_->SetAccess(address, bytes);
}

absl::Status FailingBackend::Unmap(std::byte* address) {
  LGPU_RETURN_IF_ERROR(CleanupFault("Unmap"));
  return backend_->Unmap(address);
}

absl::StatusOr<StreamHandle> FailingBackend::CreateStream(int device, int priority) {
  LGPU_RETURN_IF_ERROR(Fault("CreateStream"));
  return backend_->CreateStream(device, priority);
}

absl::Status FailingBackend::DestroyStream(StreamHandle stream) {
  LGPU_RETURN_IF_ERROR(CleanupFault("DestroyStream"));
  return backend_->DestroyStream(stream);
}

absl::StatusOr<Fence> FailingBackend::Record(StreamHandle stream) {
  LGPU_RETURN_IF_ERROR(Fault("Record"));
  return backend_->Record(stream);
}

absl::StatusOr<bool> FailingBackend::HasPassed(const Fence& fence) {
  LGPU_RETURN_IF_ERROR(Fault("HasPassed"));
  return backend_->HasPassed(fence);
}

absl::Status FailingBackend::Wait(const Fence& fence) {
  LGPU_RETURN_IF_ERROR(Fault("Wait"));
  return backend_->Wait(fence);
}

absl::Status FailingBackend::WaitOnStream(StreamHandle stream, const Fence& fence) {
  LGPU_RETURN_IF_ERROR(Fault("WaitOnStream"));
  return backend_->WaitOnStream(stream, fence);
}

absl::Status FailingBackend::CopyToDevice(StreamHandle stream, std::byte* to, const void* from, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(Fault("CopyToDevice"));
  return backend_->CopyToDevice(stream, to, from, bytes);
}

absl::Status FailingBackend::CopyToHost(StreamHandle stream, void* to, const std::byte* from, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(Fault("CopyToHost"));
  return backend_->CopyToHost(stream, to, from, bytes);
}

absl::Status FailingBackend::CopyOnDevice(StreamHandle stream, std::byte* to, const std::byte* from,
                                          Bytes bytes) {
  LGPU_RETURN_IF_ERROR(Fault("CopyOnDevice"));
  return backend_->CopyOnDevice(stream, to, from, bytes);
}

absl::Status FailingBackend::Launch(StreamHandle stream, const KernelLaunch& launch) {
  LGPU_RETURN_IF_ERROR(Fault("Launch"));
  return backend_->Launch(stream, launch);
}

absl::StatusOr<std::unique_ptr<StreamTimer>> FailingBackend::StartTimer(StreamHandle stream) {
  LGPU_RETURN_IF_ERROR(Fault("StartTimer"));
  return backend_->StartTimer(stream);
}

absl::Status FailingBackend::CallLibrary(StreamHandle stream,
                                         absl::FunctionRef<absl::Status(void* stream)> call) {
  LGPU_RETURN_IF_ERROR(Fault("CallLibrary"));
  if (!options_.before_library_counts) return backend_->CallLibrary(stream, call);
  const absl::Status status = call(nullptr);
  options_.before_library_counts();
  return status;
}

}  // namespace lgpu
