// A client of the driver that breaks the one rule that its argument names, and nothing else. With "none" it
// makes the correct calls of all of them, and breaks no rule.

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "allocator/device/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/kernel_parameters.h"
#include "tests/fake_cuda/fake_state.h"
#include "tests/fake_cuda/wrong_clients.h"

namespace lgpu::fake_cuda {
namespace {

constexpr std::size_t kUnit = std::size_t{2} << 20;

#define MUST(call)                                                           \
  do {                                                                       \
    if (const CUresult result = (call); result != CUDA_SUCCESS) {            \
      std::fprintf(stderr, "%s gave %d\n", #call, static_cast<int>(result)); \
      std::exit(4);                                                          \
    }                                                                        \
  } while (false)

class Client {
 public:
  Client() {
    const absl::StatusOr<CudaDriver> driver = CudaDriver::Open();
    if (!driver.ok()) std::exit(5);
    cu_ = *driver;
    MUST(cu_.DevicePrimaryCtxRetain(&context_, 0));
    MUST(cu_.CtxPushCurrent(context_));
    MUST(cu_.StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0));
    MUST(cu_.MemAddressReserve(&base_, 4 * kUnit, 0, 0, 0));
    handle_ = Create(2 * kUnit);
  }

  void GiveBack() {
    MUST(cu_.MemRelease(handle_));
    MUST(cu_.MemAddressFree(base_, 4 * kUnit));
    MUST(cu_.StreamDestroy(stream_));
    PopAndRelease();
  }

  // A member for each rule, which breaks it and afterwards gives everything back where that is still
  // possible.
  void None() {
    MapWithAccess();
    Touch();
    Wait();
    Unmap();
    GiveBack();
  }
  void UnmapUnderWork() {
    MapWithAccess();
    Fill();  // the test holds kernels back
    cu_.MemUnmap(base_, 2 * kUnit);
  }
  void SubRangeUnmap() {
    Map();
    cu_.MemUnmap(base_, kUnit);
    Unmap();
    GiveBack();
  }
  void NonZeroMapOffset() {
    cu_.MemMap(base_, kUnit, kUnit, handle_, 0);
    GiveBack();
  }
  void AccessBeforeSetAccess() {
    Map();
    Touch();
    Unmap();
    GiveBack();
  }
  void KernelBeforeSetAccess() {
    Map();
    Fill();
    cu_.StreamSynchronize(stream_);
  }
  void UnmappedAccess() {
    Touch();
    GiveBack();
  }
  void WriteToReadOnly() {
    Map();
    Access(2 * kUnit, CU_MEM_ACCESS_FLAGS_PROT_READ);
    Touch();
    Unmap();
    GiveBack();
  }
  void AccessOfPartialRange() {
    Map();
    Access(kUnit, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    Unmap();
    GiveBack();
  }
  void UseAfterRelease() {
    const CUmemGenericAllocationHandle other = Create(kUnit);
    MUST(cu_.MemRelease(other));
    cu_.MemMap(base_, kUnit, 0, other, 0);
    GiveBack();
  }
  void DoubleRelease() {
    const CUmemGenericAllocationHandle other = Create(kUnit);
    MUST(cu_.MemRelease(other));
    cu_.MemRelease(other);
    GiveBack();
  }
  void UseAfterDestroy() {
    CUevent event = nullptr;
    MUST(cu_.EventCreate(&event, 0));
    MUST(cu_.EventDestroy(event));
    cu_.EventQuery(event);
    GiveBack();
  }
  void NoContext() {
    MUST(cu_.CtxPopCurrent(nullptr));
    cu_.StreamSynchronize(stream_);
    MUST(cu_.CtxPushCurrent(context_));
    GiveBack();
  }
  void MapWithoutContext() {
    MUST(cu_.StreamDestroy(stream_));
    PopAndRelease();
    cu_.MemMap(base_, 2 * kUnit, 0, handle_, 0);
    MUST(cu_.MemRelease(handle_));
    MUST(cu_.MemAddressFree(base_, 4 * kUnit));
  }
  void PartialAddressFree() {
    cu_.MemAddressFree(base_, kUnit);
    GiveBack();
  }
  void FreeOfMappedRange() {
    Map();
    cu_.MemAddressFree(base_, 4 * kUnit);
    Unmap();
    GiveBack();
  }
  void Granularity() {
    CUmemGenericAllocationHandle odd = 0;
    const CUmemAllocationProp properties = Properties();
    cu_.MemCreate(&odd, kUnit + 4096, &properties, 0);
    GiveBack();
  }
  void LeakedHandle() { Wait(); }
  void LeakedFd() {
    int fd = -1;
    MUST(cu_.MemExportToShareableHandle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    GiveBack();
  }
  // Mapped for card 0, read by a stream of card 1.
  void PeerWithoutAccess() {
    MapWithAccess();
    CUcontext other = nullptr;
    CUstream stream = nullptr;
    char data[64];
    MUST(cu_.DevicePrimaryCtxRetain(&other, 1));
    MUST(cu_.CtxPushCurrent(other));
    MUST(cu_.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    cu_.MemcpyDtoHAsync(data, base_, sizeof(data), stream);
    MUST(cu_.StreamDestroy(stream));
    MUST(cu_.CtxPopCurrent(nullptr));
    MUST(cu_.DevicePrimaryCtxRelease(1));
    Unmap();
    GiveBack();
  }
  void FreeUnderWork() {
    MapWithAccess();
    void* host = nullptr;
    MUST(cu_.MemHostAlloc(&host, kUnit, CU_MEMHOSTALLOC_PORTABLE));
    Fill();  // the test holds kernels back
    MUST(cu_.MemcpyDtoHAsync(host, base_, kUnit, stream_));
    cu_.MemFreeHost(host);
  }
  void CallAfterFork() {
    const pid_t child = ::fork();
    if (child == 0) {
      int count = 0;
      cu_.DeviceGetCount(&count);
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    GiveBack();
  }
  // The host has no way to device memory: that kills it, as it does with a real GPU.
  void HostTouch() {
    MapWithAccess();
    *reinterpret_cast<volatile char*>(base_) = 1;
  }

 private:
  static CUmemAllocationProp Properties() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return properties;
  }
  CUmemGenericAllocationHandle Create(std::size_t bytes) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = Properties();
    MUST(cu_.MemCreate(&handle, bytes, &properties, 0));
    return handle;
  }
  void Map() { MUST(cu_.MemMap(base_, 2 * kUnit, 0, handle_, 0)); }
  void Unmap() { MUST(cu_.MemUnmap(base_, 2 * kUnit)); }
  void Access(std::size_t bytes, CUmemAccess_flags flags) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = flags;
    cu_.MemSetAccess(base_, bytes, &access, 1);
  }
  void MapWithAccess() {
    Map();
    Access(2 * kUnit, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  void Touch() {
    const char data[64] = {};
    cu_.MemcpyHtoDAsync(base_, data, sizeof(data), stream_);
  }
  void Fill() {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    MUST(cu_.ModuleLoadData(&module, kFillKernel.image->machine_code));
    MUST(cu_.ModuleGetFunction(&function, module, kFillKernel.name));
    FillParameters parameters{reinterpret_cast<std::uint8_t*>(base_), kUnit, 7};
    std::size_t size = sizeof(parameters);
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    MUST(cu_.LaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream_, nullptr, extra));
  }
  void Wait() { MUST(cu_.StreamSynchronize(stream_)); }
  void PopAndRelease() {
    MUST(cu_.CtxPopCurrent(nullptr));
    MUST(cu_.DevicePrimaryCtxRelease(0));
  }

  CudaDriver cu_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr base_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
};

const Wrongs<Client> kWrongs = {
    {"none", &Client::None},
    {"unmap-under-work", &Client::UnmapUnderWork},
    {"sub-range-unmap", &Client::SubRangeUnmap},
    {"non-zero-map-offset", &Client::NonZeroMapOffset},
    {"access-before-set-access", &Client::AccessBeforeSetAccess},
    {"access-before-set-access/kernel", &Client::KernelBeforeSetAccess},
    {"unmapped-access", &Client::UnmappedAccess},
    {"write-to-read-only", &Client::WriteToReadOnly},
    {"access-of-partial-range", &Client::AccessOfPartialRange},
    {"use-after-release", &Client::UseAfterRelease},
    {"use-after-release/twice", &Client::DoubleRelease},
    {"use-after-destroy", &Client::UseAfterDestroy},
    {"no-context", &Client::NoContext},
    {"no-context/map", &Client::MapWithoutContext},
    {"partial-address-free", &Client::PartialAddressFree},
    {"free-of-mapped-range", &Client::FreeOfMappedRange},
    {"granularity", &Client::Granularity},
    {"leaked-handle", &Client::LeakedHandle},
    {"leaked-fd", &Client::LeakedFd},
    {"call-after-fork", &Client::CallAfterFork},
    {"peer-without-access", &Client::PeerWithoutAccess},
    {"free-under-work", &Client::FreeUnderWork},
    {"host-touch", &Client::HostTouch},
};

}  // namespace
}  // namespace lgpu::fake_cuda

int main(int argc, char** argv) {
  using namespace lgpu::fake_cuda;
  return RunWrong(kWrongs, argc, argv,
                  {"unmap-under-work", "access-before-set-access/kernel", "free-under-work"});
}
