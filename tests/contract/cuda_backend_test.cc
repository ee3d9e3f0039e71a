// The CUDA backend under the contract of all backends, and its own promises. Runs on the libcuda.so.1 that
// the loader finds: a fake driver in the tests (fake_cuda_run), a real one on a machine with a GPU, where the
// tests that make the driver misbehave are skipped. One file past the usual length: its cases share the
// faults of the fake driver and the instance of the contract.

#include "allocator/device/cuda/cuda_backend.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "allocator/device/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/kernel_parameters.h"
#include "lgpu/refusal.h"
#include "tests/contract/device_backend_contract.h"
#include "tests/fake_cuda/fake_state.h"
#include "tests/support/child_program.h"
#include "tests/support/open_files_limit.h"

namespace lgpu {
namespace {

static_assert(sizeof(FillArguments) == sizeof(FillParameters) &&
              offsetof(FillArguments, value) == offsetof(FillParameters, value));

std::unique_ptr<DeviceBackend> Open(std::shared_ptr<Nvml> nvml = nullptr) {
  absl::StatusOr<std::unique_ptr<DeviceBackend>> backend = OpenCudaBackend(std::move(nvml));
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

std::unique_ptr<DeviceMemory> OpenMemory(std::shared_ptr<Nvml> nvml = nullptr) {
  absl::StatusOr<CudaMemory> cuda = OpenCudaMemory(std::move(nvml));
  EXPECT_TRUE(cuda.ok()) << cuda.status();
  return cuda.ok() ? std::move(cuda->memory) : nullptr;
}

std::vector<DeviceBackendFactory> Backends() {
  DeviceBackendFactory factory;
  factory.name = "Cuda";
  factory.make = [] { return Open(Nvml::Open().value_or(nullptr)); };
  factory.fill.device_kernel = &kFillKernel;
  SpreadOver(std::uint64_t{1} << 20, factory.fill);
  factory.reclaim_is_immediate = false;
  factory.import_checks_size = false;
  return {factory};
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceBackendContract, ::testing::ValuesIn(Backends()), DeviceBackendName);

std::size_t CountOpenFiles() {
  DIR* const directory = ::opendir("/proc/self/fd");
  std::size_t count = 0;
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

TEST(CudaBackendTest, ElevenHundredChunksNeedNoDescriptors) {
  const auto daemon = OpenMemory();
  const auto client = Open();
  const Bytes unit = client->devices()[0].granularity;
  const std::size_t kChunks = 1100;
  if (client->devices()[0].total < unit * (kChunks + 64)) GTEST_SKIP() << "the card is too small";
  const OpenFilesLimit limit(1024);
  const std::size_t before = CountOpenFiles();
  const absl::StatusOr<std::byte*> base = client->Reserve(0, unit * kChunks);
  ASSERT_TRUE(base.ok()) << base.status();
  const std::size_t with_context = CountOpenFiles();
  std::vector<MemoryHandle> granted;
  for (std::size_t i = 0; i < kChunks; ++i) {
    const absl::StatusOr<MemoryHandle> memory = daemon->Create(0, unit);
    ASSERT_TRUE(memory.ok()) << i << ": " << memory.status();
    const absl::StatusOr<ExportedFd> fd = daemon->Export(*memory);
    ASSERT_TRUE(fd.ok()) << i << ": " << fd.status();
    const absl::StatusOr<MemoryHandle> imported =
        client->Import(0, UniqueFd(::fcntl((*fd)->get(), F_DUPFD_CLOEXEC, 0)), unit);
    ASSERT_TRUE(imported.ok()) << i << ": " << imported.status();
    ASSERT_TRUE(client->Map(*base + i * unit.count(), *imported).ok());
    granted.push_back(*memory);
  }
  ASSERT_TRUE(client->SetAccess(*base, unit * kChunks).ok()) << "one call for the whole grant";
  EXPECT_LE(CountOpenFiles(), with_context + 8) << "before the context there were " << before;
  for (const MemoryHandle memory : granted) EXPECT_TRUE(daemon->Release(memory).ok());
}

TEST(CudaBackendTest, OutOfDescriptorsIsNeverOutOfMemory) {
  const auto backend = Open();
  const Bytes unit = backend->devices()[0].granularity;
  const absl::StatusOr<MemoryHandle> memory = backend->Create(0, unit);
  ASSERT_TRUE(memory.ok());
  const OpenFilesLimit limit(3);
  const absl::Status exported = backend->Export(*memory).status();
  ASSERT_TRUE(absl::IsResourceExhausted(exported)) << exported;
  EXPECT_EQ(GetRefusal(exported)->reason, RefusalReason::kDescriptors);
}

TEST(CudaBackendTest, MemoryOfADaemonHasNoAddressSpace) {
  const auto backend = OpenMemory();
  const Bytes unit = backend->devices()[0].granularity;
  const absl::StatusOr<MemoryHandle> memory = backend->Create(0, unit);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_TRUE(backend->Export(*memory).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(backend->Reserve(0, unit).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(backend->Map(nullptr, *memory)));
  EXPECT_TRUE(backend->Reclaim(*memory).ok());
}

TEST(CudaBackendTest, MemoryIsMadeWithoutAContextAsOftenAsWanted) {
  const auto daemon = OpenMemory();
  const Bytes unit = daemon->devices()[0].granularity;
  const auto create = [&] {
    const absl::StatusOr<MemoryHandle> memory = daemon->Create(0, unit);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.value_or(MemoryHandle());
  };
  const MemoryHandle first = create(), second = create();
  EXPECT_TRUE(daemon->Release(first).ok());
  const MemoryHandle third = create();
  {
    const auto client = Open();
    EXPECT_TRUE(client->Reserve(0, unit).ok()) << "a context comes";
    EXPECT_TRUE(daemon->Release(second).ok());
    EXPECT_TRUE(daemon->Export(create()).ok());
  }
  EXPECT_TRUE(daemon->Export(create()).ok()) << "and goes";
  EXPECT_TRUE(daemon->Release(third).ok());
}

TEST(CudaBackendTest, FreeMemoryFallsByAChunkAndRisesAgain) {
  const absl::StatusOr<std::shared_ptr<Nvml>> nvml = Nvml::Open();
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  const auto backend = OpenMemory(*nvml);
  const Bytes unit = backend->devices()[0].granularity;
  const Bytes before = backend->FreeMemory(0).value_or(Bytes());
  const absl::StatusOr<MemoryHandle> memory = backend->Create(0, unit * 16);
  ASSERT_TRUE(memory.ok());
  EXPECT_LE(backend->FreeMemory(0).value_or(Bytes()) + unit * 16, before);
  ASSERT_TRUE(backend->Release(*memory).ok());
  // The driver gives it back when it comes to it, and other programs use the card too.
  EXPECT_TRUE(
      testing::Eventually([&] { return backend->FreeMemory(0).value_or(Bytes()) + unit * 8 >= before; }));
}

/// One call of the fake driver that fails while this lives; none on a real one.
class Fault {
 public:
  Fault(std::string_view call, int result, int skip = 0) {
    fake_cuda::StateFile* const machine = fake_cuda::StateFile::OfThisProcess();
    if (machine == nullptr) return;
    const fake_cuda::StateFile::Lock lock(*machine);
    fault_ = &machine->state().faults[0];
    *fault_ = {};
    call.copy(fault_->call, sizeof(fault_->call) - 1);
    fault_->times = -1;
    fault_->skip = skip;
    fault_->result = result;
    machine->state().has_faults = true;
  }
  ~Fault() {
    if (fault_ == nullptr) return;
    const fake_cuda::StateFile::Lock lock(*fake_cuda::StateFile::OfThisProcess());
    *fault_ = {};
  }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
  bool is_there() const { return fault_ != nullptr; }

 private:
  fake_cuda::Fault* fault_ = nullptr;
};

TEST(CudaBackendTest, LostContextIsAStateThatEveryCallNames) {
  const auto backend = Open();
  const Bytes unit = backend->devices()[0].granularity;
  const absl::StatusOr<std::byte*> base = backend->Reserve(0, unit);
  const absl::StatusOr<MemoryHandle> memory = backend->Create(0, unit);
  const absl::StatusOr<StreamHandle> stream = backend->CreateStream(0, 0);
  ASSERT_TRUE(base.ok() && memory.ok() && stream.ok());
  ASSERT_TRUE(backend->Map(*base, *memory).ok() && backend->SetAccess(*base, unit).ok());
  {
    const Fault fault("cuStreamSynchronize", 719);
    if (!fault.is_there()) GTEST_SKIP() << "a real GPU is not to be broken";
    EXPECT_FALSE(backend->Drain(*stream).ok());
  }
  const std::string expected =
      "the GPU context of this process is lost: cuStreamSynchronize gave CUDA_ERROR_LAUNCH_FAILED (719); "
      "restart "
      "the program";
  for (const absl::Status& status :
       {backend->Drain(*stream), backend->Record(*stream).status(), backend->Create(0, unit).status(),
        backend->Unmap(*base), backend->Release(*memory), backend->Reclaim(*memory)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(expected)) << "nothing is given back";
  }
}

// By several threads, where the machine has them.
TEST(CudaBackendTest, LargeUploadArrivesWholeAndFailsWhole) {
  const auto backend = Open();
  const Bytes bytes = 70_MiB;  // with a last piece that is not whole
  const Bytes odd = bytes - 3_B;
  const absl::StatusOr<std::byte*> base = backend->Reserve(0, bytes);
  const absl::StatusOr<MemoryHandle> memory = backend->Create(0, bytes);
  const absl::StatusOr<StreamHandle> stream = backend->CreateStream(0, 0);
  ASSERT_TRUE(base.ok() && memory.ok() && stream.ok());
  ASSERT_TRUE(backend->Map(*base, *memory).ok() && backend->SetAccess(*base, bytes).ok());
  std::vector<std::uint32_t> sent(bytes.count() / 4), seen(bytes.count() / 4);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::uint32_t>(i * 2654435761u);
  ASSERT_TRUE(backend->CopyToDevice(*stream, *base, sent.data(), odd).ok());
  ASSERT_TRUE(backend->CopyToHost(*stream, seen.data(), *base, odd).ok());
  EXPECT_EQ(std::memcmp(sent.data(), seen.data(), odd.count()), 0);
  {
    const Fault fault("cuMemcpyHtoDAsync", 1, 10);
    if (fault.is_there()) {
      const absl::Status failed = backend->CopyToDevice(*stream, *base, sent.data(), odd);
      EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("cuMemcpyHtoDAsync gave"));
    }
  }
  EXPECT_TRUE(backend->CopyToDevice(*stream, *base, sent.data(), odd).ok());
  EXPECT_TRUE(backend->Drain(*stream).ok());
  EXPECT_TRUE(backend->Unmap(*base).ok() && backend->Release(*memory).ok() &&
              backend->Unreserve(*base, bytes).ok() && backend->DestroyStream(*stream).ok());
}

TEST(CudaBackendTest, ForeignDescriptorIsTheSameErrorForEveryCodeOfTheDriver) {
  const auto backend = Open();
  const Bytes unit = backend->devices()[0].granularity;
  for (const int result : {1, 101, 304, 400, 801}) {
    fake_cuda::StateFile* const machine = fake_cuda::StateFile::OfThisProcess();
    if (machine != nullptr) machine->state().foreign_descriptor = result;
    const auto imported = backend->Import(0, UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), unit);
    EXPECT_EQ(imported.status().code(), absl::StatusCode::kInvalidArgument) << result;
    EXPECT_THAT(std::string(imported.status().message()),
                ::testing::HasSubstr("is no memory of the driver's"));
  }
}

TEST(CudaBackendTest, ExclusiveComputeModeIsNamed) {
  const auto backend = Open();
  const Fault fault("cuDevicePrimaryCtxRetain", 46);
  if (!fault.is_there()) GTEST_SKIP() << "this GPU is shared";
  const auto base = backend->Reserve(0, backend->devices()[0].granularity);
  EXPECT_EQ(base.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(base.status().message()), ::testing::HasSubstr("nvidia-smi -c DEFAULT"));
}

// A device that reads pageable memory by itself may do so after the call.
TEST(CudaBackendTest, SmallUploadsAreTakenBeforeTheCallReturns) {
  fake_cuda::StateFile* const machine = fake_cuda::StateFile::OfThisProcess();
  for (const bool reads_pageable : {false, true}) {
    if (machine != nullptr) machine->state().reads_pageable = reads_pageable;
    const auto backend = Open();
    const Bytes unit = backend->devices()[0].granularity;
    const auto base = backend->Reserve(0, unit);
    const auto memory = backend->Create(0, unit);
    const auto stream = backend->CreateStream(0, 0);
    ASSERT_TRUE(base.ok() && memory.ok() && stream.ok());
    ASSERT_TRUE(backend->Map(*base, *memory).ok() && backend->SetAccess(*base, unit).ok());
    if (machine != nullptr) machine->state().hold_kernels = true;
    FillParameters parameters{reinterpret_cast<std::uint8_t*>(*base), 4096, 7};
    KernelLaunch launch;
    launch.device_kernel = &kFillKernel;
    launch.arguments = &parameters;
    launch.argument_bytes = sizeof(parameters);
    ASSERT_TRUE(backend->Launch(*stream, launch).ok());
    std::thread later([machine] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (machine != nullptr) machine->state().hold_kernels = false;
    });
    std::vector<char> data(4096, 1);
    EXPECT_TRUE(backend->CopyToDevice(*stream, *base, data.data(), Bytes(data.size())).ok());
    data.assign(data.size(), 2);
    later.join();
    EXPECT_TRUE(backend->CopyToHost(*stream, data.data(), *base, Bytes(data.size())).ok());
    EXPECT_EQ(data, std::vector<char>(data.size(), 1)) << reads_pageable;
  }
  if (machine != nullptr) machine->state().reads_pageable = false;
}

// Whether or not a device reads pageable memory by itself.
TEST(CudaBackendTest, SmallUploadsDoNotWaitForKernels) {
  fake_cuda::StateFile* const machine = fake_cuda::StateFile::OfThisProcess();
  if (machine == nullptr) GTEST_SKIP() << "kernels of a real GPU cannot be held";
  for (const bool reads_pageable : {false, true}) {
    machine->state().reads_pageable = reads_pageable;
    const auto backend = Open();
    const Bytes unit = backend->devices()[0].granularity;
    const auto base = backend->Reserve(0, unit);
    const auto memory = backend->Create(0, unit);
    const auto stream = backend->CreateStream(0, 0);
    ASSERT_TRUE(base.ok() && memory.ok() && stream.ok());
    ASSERT_TRUE(backend->Map(*base, *memory).ok() && backend->SetAccess(*base, unit).ok());
    machine->state().hold_kernels = true;
    FillParameters parameters{reinterpret_cast<std::uint8_t*>(*base), 4096, 7};
    KernelLaunch launch;
    launch.device_kernel = &kFillKernel;
    launch.arguments = &parameters;
    launch.argument_bytes = sizeof(parameters);
    ASSERT_TRUE(backend->Launch(*stream, launch).ok());
    std::promise<void> uploaded;
    constexpr char kUploads = 20;
    std::thread uploads([&] {
      for (char value = 1; value <= kUploads; ++value) {
        std::vector<char> data(4096, value);
        EXPECT_TRUE(backend->CopyToDevice(*stream, *base + 4096 * value, data.data(), 4_KiB).ok());
      }
      uploaded.set_value();
    });
    EXPECT_EQ(uploaded.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready)
        << "an upload waits for a kernel; reads_pageable: " << reads_pageable;
    machine->state().hold_kernels = false;
    uploads.join();
    for (char value = 1; value <= kUploads; ++value) {
      std::vector<char> data(4096);
      EXPECT_TRUE(backend->CopyToHost(*stream, data.data(), *base + 4096 * value, 4_KiB).ok());
      EXPECT_EQ(data, std::vector<char>(data.size(), value));
    }
  }
  machine->state().reads_pageable = false;
}

/// The driver's handle of a stream.
void* NativeOf(DeviceBackend& backend, StreamHandle stream) {
  void* native = nullptr;
  const absl::Status called = backend.CallLibrary(stream, [&](void* found) {
    native = found;
    return absl::OkStatus();
  });
  EXPECT_TRUE(called.ok()) << called;
  return native;
}

TEST(CudaBackendTest, FenceOfAnAdoptedStreamWaitsForTheProgramsWork) {
  fake_cuda::StateFile* const machine = fake_cuda::StateFile::OfThisProcess();
  const auto program = Open();  // another backend: the tested one does not see work on its stream
  const auto backend = Open();
  const Bytes unit = backend->devices()[0].granularity;
  const auto base = program->Reserve(0, unit);
  const auto memory = program->Create(0, unit);
  const auto theirs = program->CreateStream(0, 0);
  ASSERT_TRUE(base.ok() && memory.ok() && theirs.ok());
  ASSERT_TRUE(program->Map(*base, *memory).ok() && program->SetAccess(*base, unit).ok());
  const auto adopted = backend->AdoptStream(0, NativeOf(*program, *theirs));
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  const auto own = backend->CreateStream(0, 0);
  ASSERT_TRUE(own.ok());
  FillParameters parameters{reinterpret_cast<std::uint8_t*>(*base), 4096, 7};
  KernelLaunch launch;
  launch.device_kernel = &kFillKernel;
  launch.arguments = &parameters;
  launch.argument_bytes = sizeof(parameters);
  for (int round = 0; round < 3; ++round) {
    if (machine != nullptr) machine->state().hold_kernels = true;
    ASSERT_TRUE(program->Launch(*theirs, launch).ok());
    const absl::StatusOr<Fence> fence = backend->Record(*adopted);
    ASSERT_TRUE(fence.ok()) << fence.status();
    EXPECT_TRUE(machine == nullptr || !backend->HasPassed(*fence).value_or(true)) << round;
    ASSERT_TRUE(backend->WaitOnStream(*own, *fence).ok());
    const absl::StatusOr<Fence> behind = backend->Record(*own);
    ASSERT_TRUE(behind.ok());
    if (machine != nullptr) machine->state().hold_kernels = false;
    ASSERT_TRUE(backend->Wait(*fence).ok());
    EXPECT_TRUE(backend->HasPassed(*fence).value_or(false));
    ASSERT_TRUE(backend->Drain(*own).ok());
  }
  EXPECT_TRUE(backend->DestroyStream(*adopted).ok());
  EXPECT_TRUE(program->Launch(*theirs, launch).ok()) << "the stream is the program's";
  EXPECT_TRUE(program->DestroyStream(*theirs).ok());
}

TEST(CudaBackendTest, DefaultStreamsCanBeAdopted) {
  const auto backend = Open();
  for (const std::uintptr_t native : {0, 1, 2}) {
    const auto adopted = backend->AdoptStream(0, reinterpret_cast<void*>(native));
    ASSERT_TRUE(adopted.ok()) << native << ": " << adopted.status();
    const absl::StatusOr<Fence> fence = backend->Record(*adopted);
    ASSERT_TRUE(fence.ok()) << fence.status();
    EXPECT_TRUE(backend->Wait(*fence).ok());
    EXPECT_TRUE(backend->Drain(*adopted).ok());
    EXPECT_TRUE(backend->DestroyStream(*adopted).ok());
  }
}

TEST(CudaBackendTest, StreamOfAnotherDeviceIsNotAdopted) {
  const auto backend = Open();
  if (backend->devices().size() < 2) GTEST_SKIP() << "the machine has one GPU";
  const auto other = backend->CreateStream(1, 0);
  ASSERT_TRUE(other.ok());
  const absl::Status refused = backend->AdoptStream(0, NativeOf(*backend, *other)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("belongs to another context"));
}

TEST(CudaBackendTest, NvmlAndTheDriverKnowTheSameGpus) {
  const absl::StatusOr<std::shared_ptr<Nvml>> nvml = Nvml::Open();
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  const absl::StatusOr<std::vector<Nvml::Device>> known = (*nvml)->Devices();
  ASSERT_TRUE(known.ok()) << known.status();
  const auto backend = Open();
  for (const PhysicalDevice& device : backend->devices()) {
    const auto same = std::find_if(known->begin(), known->end(),
                                   [&](const Nvml::Device& other) { return other.uuid == device.uuid; });
    ASSERT_NE(same, known->end()) << device.uuid;
    EXPECT_EQ(same->name, device.name);
    EXPECT_EQ(same->pci_bus_id, device.pci_bus_id);
    EXPECT_EQ(same->compute_major, device.compute_major);
    EXPECT_GT(device.multiprocessors, 0);
    EXPECT_GE(same->total, device.total);
    EXPECT_GE(same->minor, 0);
  }
}

TEST(CudaBackendTest, ManyFencesOfManyThreadsPass) {
  const auto backend = Open();
  const Bytes unit = backend->devices()[0].granularity;
  const absl::StatusOr<std::byte*> base = backend->Reserve(0, unit);
  const absl::StatusOr<MemoryHandle> memory = backend->Create(0, unit);
  ASSERT_TRUE(base.ok() && memory.ok());
  ASSERT_TRUE(backend->Map(*base, *memory).ok() && backend->SetAccess(*base, unit).ok());
  const absl::StatusOr<StreamHandle> stream = backend->CreateStream(0, 0);
  ASSERT_TRUE(stream.ok());
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::byte* const mine = *base + t * 4096;
      std::vector<Fence> fences;
      for (int i = 0; i < 200; ++i) {
        EXPECT_TRUE(backend->CopyOnDevice(*stream, mine + 2048, mine, Bytes(1024)).ok());
        const absl::StatusOr<Fence> fence = backend->Record(*stream);
        ASSERT_TRUE(fence.ok()) << fence.status();
        fences.push_back(*fence);
      }
      EXPECT_TRUE(backend->Wait(fences.back()).ok());
      for (const Fence& fence : fences) EXPECT_TRUE(backend->HasPassed(fence).value_or(false));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Two devices with mapped memory; only the fake driver can tell the way that copies take.
class CudaCopiesTest : public ::testing::Test {
 protected:
  using State = fake_cuda::State;
  static constexpr std::size_t kBytes = std::size_t{11} << 20;

  void SetUp() override {
    machine_ = fake_cuda::StateFile::OfThisProcess();
    if (machine_ == nullptr) GTEST_SKIP() << "a real driver does not say what it was asked for";
    if (machine_->state().card_count < 2) GTEST_SKIP() << "there is one card";
  }
  void TearDown() override {
    if (machine_ == nullptr) return;
    machine_->state().peers = false;
    machine_->state().faults[0] = {};
  }
  void OpenBoth() {
    backend_ = Open();
    for (int device : {0, 1}) {
      const absl::StatusOr<std::byte*> base = backend_->Reserve(device, Bytes(kReserved));
      const absl::StatusOr<MemoryHandle> memory = backend_->Create(device, Bytes(kReserved));
      const absl::StatusOr<StreamHandle> stream = backend_->CreateStream(device, 0);
      ASSERT_TRUE(base.ok() && memory.ok() && stream.ok());
      ASSERT_TRUE(backend_->Map(*base, *memory).ok() && backend_->SetAccess(*base, Bytes(kReserved)).ok());
      bases_.push_back(*base);
      streams_.push_back(*stream);
    }
  }
  std::uint64_t CallsOf(std::string_view call) {
    const fake_cuda::StateFile::Lock lock(*machine_);
    std::uint64_t count = 0;
    for (const fake_cuda::CallCount& counted : machine_->state().calls) {
      if (counted.call == call) count = counted.count;
    }
    return count;
  }
  void FailAll(const char* call, int result) {
    fake_cuda::Fault fault{.call = {}, .skip = 0, .times = -1, .pid = 0, .result = result};
    std::strncpy(fault.call, call, sizeof(fault.call) - 1);
    machine_->state().faults[0] = fault;
  }
  // From device 1 to device 0, and back to the host.
  void ExpectCopied(unsigned seed) {
    std::vector<unsigned char> data(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) {
      data[i] = static_cast<unsigned char>((i + seed) * 2654435761u >> 24);
    }
    EXPECT_TRUE(backend_->CopyToDevice(streams_[1], bases_[1], data.data(), Bytes(kBytes)).ok());
    EXPECT_TRUE(backend_->WaitOnStream(streams_[0], *backend_->Record(streams_[1])).ok());
    before_ = CallsOf("cuMemcpyDtoHAsync");
    EXPECT_TRUE(backend_->CopyOnDevice(streams_[0], bases_[0], bases_[1], Bytes(kBytes)).ok());
    through_host_ = CallsOf("cuMemcpyDtoHAsync") - before_;
    std::vector<unsigned char> got(kBytes);
    EXPECT_TRUE(backend_->CopyToHost(streams_[0], got.data(), bases_[0], Bytes(kBytes)).ok());
    EXPECT_EQ(got, data);
  }

  static constexpr std::size_t kReserved = std::size_t{12} << 20;
  fake_cuda::StateFile* machine_ = nullptr;
  std::unique_ptr<DeviceBackend> backend_;
  std::vector<std::byte*> bases_;
  std::vector<StreamHandle> streams_;
  std::uint64_t before_ = 0;
  std::uint64_t through_host_ = 0;
};

TEST_F(CudaCopiesTest, PeersReadEachOtherAndGetAccessOnce) {
  machine_->state().peers = true;
  OpenBoth();
  ExpectCopied(1);
  EXPECT_EQ(through_host_, 0u);
  const std::uint64_t accesses = CallsOf("cuMemSetAccess");
  ExpectCopied(2);
  EXPECT_EQ(through_host_, 0u);
  EXPECT_EQ(CallsOf("cuMemSetAccess"), accesses);
}

TEST_F(CudaCopiesTest, CopiesWithoutPeerAccessGoThroughPageLockedMemory) {
  OpenBoth();
  ExpectCopied(1);
  EXPECT_EQ(through_host_, 6u) << "pieces of 2 MiB";
}

TEST_F(CudaCopiesTest, PeersThatGetNoAccessGoTheOtherWay) {
  machine_->state().peers = true;
  OpenBoth();
  FailAll("cuMemSetAccess", 801);  // CUDA_ERROR_NOT_SUPPORTED
  ExpectCopied(1);
  EXPECT_GT(through_host_, 0u);
  machine_->state().faults[0] = {};
  ExpectCopied(2);
  EXPECT_GT(through_host_, 0u) << "it is not asked again";
}

TEST_F(CudaCopiesTest, PageLockedMemoryIsBounded) {
  OpenBoth();
  const std::uint64_t before = CallsOf("cuMemHostAlloc");
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 12; ++t) {
    threads.emplace_back([this, t] {
      constexpr std::size_t kPart = std::size_t{900} << 10;
      const std::size_t device = t % 2;
      std::byte* const mine = bases_[device] + t / 2 * kPart;
      std::vector<unsigned char> data(kPart, static_cast<unsigned char>(t + 1));
      for (int i = 0; i < 5; ++i) {
        EXPECT_TRUE(backend_->CopyToDevice(streams_[device], mine, data.data(), Bytes(kPart)).ok());
        std::vector<unsigned char> got(kPart);
        EXPECT_TRUE(backend_->CopyToHost(streams_[device], got.data(), mine, Bytes(kPart)).ok());
        EXPECT_EQ(got, data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(CallsOf("cuMemHostAlloc"), before + 8);
  backend_.reset();
  EXPECT_EQ(CallsOf("cuMemFreeHost"), CallsOf("cuMemHostAlloc"));
}

TEST_F(CudaCopiesTest, WithoutPageLockedMemoryCopiesAreRightAllTheSame) {
  FailAll("cuMemHostAlloc", 2);  // CUDA_ERROR_OUT_OF_MEMORY
  OpenBoth();
  ExpectCopied(1);
}

// The queued parts of a copy no longer use the memory when the caller gets the error.
TEST_F(CudaCopiesTest, AFailedCopyLeavesNothingUnderway) {
  OpenBoth();
  std::vector<unsigned char> data(kBytes, 1);
  {
    const fake_cuda::StateFile::Lock lock(*machine_);
    machine_->state().faults[0] = {
        .call = "cuMemcpyHtoDAsync", .skip = 3, .times = 1, .pid = 0, .result = 999};
  }
  EXPECT_TRUE(absl::IsInternal(backend_->CopyToDevice(streams_[0], bases_[0], data.data(), Bytes(kBytes))));
  EXPECT_TRUE(backend_->Unmap(bases_[0]).ok()) << "the fake driver says so if it is still written";
}

TEST(CudaBackendTest, ForkedChildIsRefusedAndTakesNothingAway) {
  auto backend = Open();
  const Bytes unit = backend->devices()[0].granularity;
  const absl::StatusOr<std::byte*> base = backend->Reserve(0, unit);
  const absl::StatusOr<MemoryHandle> memory = backend->Create(0, unit);
  const absl::StatusOr<StreamHandle> stream = backend->CreateStream(0, 0);
  ASSERT_TRUE(base.ok() && memory.ok() && stream.ok());
  ASSERT_TRUE(backend->Map(*base, *memory).ok() && backend->SetAccess(*base, unit).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(backend->Create(0, unit).status()) &&
                         absl::IsFailedPrecondition(backend->Unmap(*base)) &&
                         absl::IsFailedPrecondition(backend->Record(*stream).status());
    backend.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  char byte = 1;
  EXPECT_TRUE(backend->CopyToDevice(*stream, *base, &byte, Bytes(1)).ok()) << "the parent keeps it";
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) { return lgpu::RunDeviceBackendTests(argc, argv, lgpu::Backends()); }
