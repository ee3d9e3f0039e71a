#include "allocator/device/cuda/cuda_backend.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "allocator/device/backend_checks.h"
#include "allocator/device/cuda/cuda_backend_impl.h"
#include "allocator/device/cuda/cuda_image.h"
#include "allocator/device/cuda/cuda_memory.h"
#include "allocator/device/simulated/memfd.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

absl::string_view View(std::string_view text) { return absl::string_view(text.data(), text.size()); }

// Tries to get a descriptor, because no documented result of the driver says that they are used up.
bool DescriptorsAreUsedUp() {
  const UniqueFd probe(::eventfd(0, EFD_CLOEXEC));
  return !probe && (errno == EMFILE || errno == ENFILE);
}

CUmemAllocationProp Properties(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

absl::StatusOr<int> Attribute(const CudaDriver& driver, CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  LGPU_RETURN_IF_ERROR(
      driver.Check("cuDeviceGetAttribute", driver.DeviceGetAttribute(&value, attribute, device)));
  return value;
}

/// Name, UUID and compute capability, which every GPU has.
absl::StatusOr<PhysicalDevice> Identify(const CudaDriver& driver, CUdevice device) {
  PhysicalDevice about;
  char text[256] = {};
  LGPU_RETURN_IF_ERROR(driver.Check("cuDeviceGetName", driver.DeviceGetName(text, sizeof(text) - 1, device)));
  about.name = text;
  CUuuid uuid{};
  LGPU_RETURN_IF_ERROR(driver.Check("cuDeviceGetUuid", driver.DeviceGetUuid(&uuid, device)));
  about.uuid = CudaUuidText(uuid, IsMig(driver, device));
  LGPU_ASSIGN_OR_RETURN(about.compute_major,
                        Attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  LGPU_ASSIGN_OR_RETURN(about.compute_minor,
                        Attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  return about;
}

/// Why the backend cannot serve a GPU; empty: it can.
absl::StatusOr<std::string> WhyRefused(const CudaDriver& driver, CUdevice device,
                                       const PhysicalDevice& about) {
  constexpr int kOldest = kOldestComputeCapability;
  if (about.compute_major * 10 + about.compute_minor < kOldest) {
    return absl::StrCat("its compute capability ", about.compute_major, ".", about.compute_minor,
                        " is below ", kOldest / 10, ".", kOldest % 10,
                        ", the lowest that lgpu's kernels are built for");
  }
  for (const CUdevice_attribute attribute :
       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    LGPU_ASSIGN_OR_RETURN(const int supported, Attribute(driver, device, attribute));
    if (supported == 0) return "it cannot share mapped memory between processes (a WSL or vGPU machine, say)";
  }
  return "";
}

absl::Status Describe(const CudaDriver& driver, CUdevice device, PhysicalDevice& about) {
  char text[256] = {};
  LGPU_RETURN_IF_ERROR(
      driver.Check("cuDeviceGetPCIBusId", driver.DeviceGetPCIBusId(text, sizeof(text) - 1, device)));
  about.pci_bus_id = NormalisePciBusId(text);
  std::size_t total = 0;
  LGPU_RETURN_IF_ERROR(driver.Check("cuDeviceTotalMem", driver.DeviceTotalMem(&total, device)));
  about.total = Bytes(total);
  const CUmemAllocationProp properties = Properties(device);
  std::size_t granularity = 0;
  LGPU_RETURN_IF_ERROR(driver.Check(
      "cuMemGetAllocationGranularity",
      driver.MemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)));
  about.granularity = Bytes(granularity);
  LGPU_ASSIGN_OR_RETURN(about.multiprocessors,
                        Attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  return absl::OkStatus();
}

struct Enumerated {
  std::vector<CudaBackend::Gpu> gpus;  // the GPUs that can be served, in the driver's order
  std::vector<RefusedGpu> refused;
};

absl::StatusOr<Enumerated> Enumerate(const CudaDriver& driver) {
  int count = 0;
  LGPU_RETURN_IF_ERROR(driver.Check("cuDeviceGetCount", driver.DeviceGetCount(&count)));
  Enumerated found;
  std::string reasons;
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    LGPU_RETURN_IF_ERROR(driver.Check("cuDeviceGet", driver.DeviceGet(&device, i)));
    LGPU_ASSIGN_OR_RETURN(PhysicalDevice about, Identify(driver, device));
    LGPU_ASSIGN_OR_RETURN(std::string reason, WhyRefused(driver, device, about));
    if (!reason.empty()) {
      absl::StrAppend(&reasons, "\n  ", about.uuid, " (", about.name, "): ", reason);
      found.refused.push_back({std::move(about), std::move(reason)});
      continue;
    }
    LGPU_RETURN_IF_ERROR(Describe(driver, device, about));
    LGPU_ASSIGN_OR_RETURN(const int pageable,
                          Attribute(driver, device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS));
    found.gpus.push_back({std::move(about), device, pageable != 0});
  }
  if (found.gpus.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("no CUDA devices: lgpu can serve none of the ", count,
                                                      " that the driver shows", reasons));
  }
  return found;
}

}  // namespace

CudaBackend::CudaBackend(const CudaDriver& driver, const std::vector<Gpu>& gpus, Context context,
                         std::shared_ptr<Nvml> nvml)
    : driver_(driver), context_(context), nvml_(std::move(nvml)) {
  for (const Gpu& gpu : gpus) {
    devices_.push_back(gpu.about);
    states_.push_back(std::make_unique<DeviceState>(driver_));
    states_.back()->device = gpu.device;
    states_.back()->reads_pageable = gpu.reads_pageable;
  }
}

CudaBackend::~CudaBackend() {
  if (epoch_.IsForked()) {
    ForgetEverything();
  } else {
    GiveEverythingBack();
  }
}

absl::Status CudaBackend::CheckAlive() const {
  return epoch_.IsForked() ? ForkedBackendError() : driver_.Lost();
}

absl::Status CudaBackend::CheckDevice(int device) const {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  return CheckDeviceIndex(device, devices_.size());
}

absl::Status CudaBackend::CheckAddressSpace(int device) const {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  if (context_ == Context::kOnDemand) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "address space needs a CUDA context, and this backend was opened for physical memory only");
}

absl::Status CudaBackend::CheckChunkSize(int device, Bytes bytes) const {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  return CheckWholeUnits("a chunk", bytes, devices_[static_cast<std::size_t>(device)].granularity);
}

absl::Status CudaBackend::Explain(const Purpose& purpose, CUresult result) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  if (DescriptorsAreUsedUp()) return MachineRefusal(RefusalReason::kDescriptors, purpose.what, purpose.asked);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return driver_.Check(purpose.call, result);
  const PhysicalDevice& about = devices_[static_cast<std::size_t>(purpose.device)];
  Refusal refusal;
  refusal.reason = RefusalReason::kBackend;
  refusal.what = absl::StrCat(View(purpose.what), " (", View(purpose.call), ")");
  refusal.asked = purpose.asked;
  refusal.card = absl::StrCat("GPU ", purpose.device, " (", about.name, ")");
  refusal.card_total = about.total;
  refusal.card_free = FreeMemory(purpose.device);
  refusal.advice = {"`nvidia-smi` lists what else uses the card"};
  return RefusalStatus(refusal);
}

std::optional<Bytes> CudaBackend::FreeMemory(int device) {
  if (nvml_ == nullptr || !CheckDevice(device).ok()) return std::nullopt;
  const absl::StatusOr<Nvml::Memory> memory =
      nvml_->MemoryOf(devices_[static_cast<std::size_t>(device)].uuid);
  return memory.ok() ? std::optional<Bytes>(memory->free) : std::nullopt;
}

std::vector<DeviceMemory::ProcessMemory> CudaBackend::ProcessesOn(int device) {
  std::vector<ProcessMemory> processes;
  if (nvml_ == nullptr || !CheckDevice(device).ok()) return processes;
  const absl::StatusOr<std::vector<Nvml::Process>> known =
      nvml_->ProcessesOf(devices_[static_cast<std::size_t>(device)].uuid);
  if (!known.ok()) return processes;
  for (const Nvml::Process& process : *known) {
    if (process.used) processes.push_back({process.pid, *process.used});
  }
  return processes;
}

DeviceMemory::Load CudaBackend::LoadOf(int device) {
  if (nvml_ == nullptr || !CheckDevice(device).ok()) return {};
  return nvml_->LoadOf(devices_[static_cast<std::size_t>(device)].uuid);
}

// ---- physical memory

absl::StatusOr<MemoryHandle> CudaBackend::Create(int device, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckChunkSize(device, bytes));
  const CUmemAllocationProp properties = Properties(state(device).device);
  CUmemGenericAllocationHandle handle = 0;
  LGPU_RETURN_IF_ERROR(Explain({"cuMemCreate", "chunk of device memory", device, bytes},
                               driver_.MemCreate(&handle, bytes.count(), &properties, 0)));
  return memory_.Insert(std::make_shared<CudaChunk>(driver_, handle, device, bytes));
}

absl::StatusOr<ExportedFd> CudaBackend::Export(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaChunk> chunk, memory_.Find(memory));
  int fd = -1;
  const CUresult result =
      driver_.MemExportToShareableHandle(&fd, chunk->handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  LGPU_RETURN_IF_ERROR(Explain(
      {"cuMemExportToShareableHandle", "descriptor of a chunk", chunk->device, chunk->bytes}, result));
  UniqueFd owned(fd);
  // The driver does not promise it.
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return SystemCallError("fcntl of an exported chunk", errno);
  return std::make_shared<const UniqueFd>(std::move(owned));
}

absl::StatusOr<MemoryHandle> CudaBackend::Import(int device, UniqueFd fd, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckChunkSize(device, bytes));
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver_.MemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  // The result for a foreign descriptor is not documented; it may be any of these.
  if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE ||
      result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_NOT_SUPPORTED ||
      result == CUDA_ERROR_OPERATING_SYSTEM) {
    if (DescriptorsAreUsedUp()) {
      return MachineRefusal(RefusalReason::kDescriptors, "import of a chunk", bytes);
    }
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", fd.get(), " is no memory of the driver's (",
                                                   driver_.Name(result), "): a chunk was expected"));
  }
  LGPU_RETURN_IF_ERROR(
      Explain({"cuMemImportFromShareableHandle", "import of a chunk", device, bytes}, result));
  auto chunk = std::make_shared<CudaChunk>(driver_, handle, device, bytes);  // releases it on an error
  return memory_.Insert(std::move(chunk));
}

absl::Status CudaBackend::Release(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaChunk> chunk, memory_.RemoveUnmapped(memory));
  // Another call may be exporting it; then that one frees it.
  return chunk.use_count() == 1 ? chunk->Free() : absl::OkStatus();
}

// The driver cannot take a mapping away from another process, and does not tell whether one exists.
absl::Status CudaBackend::Reclaim(MemoryHandle memory) { return Release(memory); }

// ---- address space

absl::StatusOr<std::byte*> CudaBackend::Reserve(int device, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckAddressSpace(device));
  const Bytes granularity = devices_[static_cast<std::size_t>(device)].granularity;
  LGPU_RETURN_IF_ERROR(CheckWholeUnits("an address range", bytes, granularity));
  LGPU_RETURN_IF_ERROR(ContextOf(device).status());
  CUdeviceptr address = 0;
  const CUresult result = driver_.MemAddressReserve(&address, bytes.count(), granularity.count(), 0, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return MachineRefusal(RefusalReason::kAddressRange, "reserved addresses of a region", bytes);
  }
  LGPU_RETURN_IF_ERROR(driver_.Check("cuMemAddressReserve", result));
  auto* const base = reinterpret_cast<std::byte*>(address);
  ranges_.AddReservation(base, bytes);
  return base;
}

absl::Status CudaBackend::Unreserve(std::byte* base, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_RETURN_IF_ERROR(ranges_.TakeReservation(base, bytes));
  return driver_.Check("cuMemAddressFree",
                       driver_.MemAddressFree(reinterpret_cast<CUdeviceptr>(base), bytes.count()));
}

absl::Status CudaBackend::Map(std::byte* address, MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaChunk> chunk, memory_.SetMapped(memory));
  absl::Status status = CheckAddressSpace(chunk->device);
  if (status.ok()) {
    status = ranges_.BeginMap(address, {memory, chunk->device, chunk->bytes},
                              devices_[static_cast<std::size_t>(chunk->device)].granularity);
    if (status.ok()) {
      const CUresult result =
          driver_.MemMap(reinterpret_cast<CUdeviceptr>(address), chunk->bytes.count(), 0, chunk->handle(), 0);
      status = result == CUDA_ERROR_INVALID_VALUE
                   ? absl::InvalidArgumentError(
                         absl::StrCat("map: the driver takes no ", FormatBytes(chunk->bytes),
                                      " of memory handle ", memory.value, "; was it granted with that size?"))
                   : Explain({"cuMemMap", "mapping of a chunk", chunk->device, chunk->bytes}, result);
      ranges_.Settle(address, status.ok());
    }
  }
  if (!status.ok()) memory_.SetUnmapped(memory);
  return status;
}

absl::Status CudaBackend::SetAccess(std::byte* address, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  if (bytes.is_zero()) return absl::InvalidArgumentError("set access: an empty range");
  LGPU_ASSIGN_OR_RETURN(const std::vector<MappedRanges::MappedRange> mapped,
                        ranges_.BeginAccess(address, bytes));
  const int device = mapped.front().mapping.device;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = state(device).device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const absl::Status status =
      Explain({"cuMemSetAccess", "access to mapped chunks", device, bytes},
              driver_.MemSetAccess(reinterpret_cast<CUdeviceptr>(address), bytes.count(), &access, 1));
  ranges_.SettleAccess(mapped, status.ok());
  return status;
}

absl::Status CudaBackend::Unmap(std::byte* address) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(const MappedRanges::Mapping mapping, ranges_.BeginUnmap(address));
  const absl::Status status = driver_.Check(
      "cuMemUnmap", driver_.MemUnmap(reinterpret_cast<CUdeviceptr>(address), mapping.bytes.count()));
  ranges_.Settle(address, /*mapped=*/!status.ok());
  if (status.ok()) memory_.SetUnmapped(mapping.memory);
  return status;
}

namespace {

struct Opened {
  std::unique_ptr<CudaBackend> backend;
  std::vector<RefusedGpu> refused;
};

absl::StatusOr<Opened> Open(CudaBackend::Context context, std::shared_ptr<Nvml> nvml) {
  LGPU_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Open());
  LGPU_ASSIGN_OR_RETURN(Enumerated found, Enumerate(driver));
  std::sort(found.gpus.begin(), found.gpus.end(), [](const CudaBackend::Gpu& a, const CudaBackend::Gpu& b) {
    return a.about.pci_bus_id < b.about.pci_bus_id;
  });
  return Opened{std::make_unique<CudaBackend>(driver, found.gpus, context, std::move(nvml)),
                std::move(found.refused)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBackend>> OpenCudaBackend(std::shared_ptr<Nvml> nvml) {
  LGPU_ASSIGN_OR_RETURN(Opened opened, Open(CudaBackend::Context::kOnDemand, std::move(nvml)));
  return std::move(opened.backend);
}

absl::StatusOr<CudaMemory> OpenCudaMemory(std::shared_ptr<Nvml> nvml) {
  LGPU_ASSIGN_OR_RETURN(Opened opened, Open(CudaBackend::Context::kNever, std::move(nvml)));
  return CudaMemory{std::move(opened.backend), std::move(opened.refused)};
}

absl::StatusOr<std::vector<std::string>> CudaEnumeration() {
  LGPU_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Open());
  LGPU_ASSIGN_OR_RETURN(const Enumerated found, Enumerate(driver));
  std::vector<std::string> uuids;
  for (const CudaBackend::Gpu& gpu : found.gpus) uuids.push_back(gpu.about.uuid);
  return uuids;
}

}  // namespace lgpu
