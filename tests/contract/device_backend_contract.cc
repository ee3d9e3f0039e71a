// The contract of all backends. One file past the usual length: one suite, which every backend instantiates
// whole.

#include "tests/contract/device_backend_contract.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>

#include "lgpu/refusal.h"

namespace lgpu {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceBackendContract);

#define EXPECT_OK(expression)              \
  do {                                     \
    const absl::Status got = (expression); \
    EXPECT_TRUE(got.ok()) << got;          \
  } while (false)

void DeviceBackendContract::SetUp() {
  backend_ = GetParam().make();
  ASSERT_NE(backend_, nullptr);
  unit_ = backend_->devices().at(0).granularity;
  const absl::StatusOr<StreamHandle> stream = backend_->CreateStream(0, 0);
  ASSERT_TRUE(stream.ok()) << stream.status();
  stream_ = *stream;
  const absl::StatusOr<std::byte*> region = backend_->Reserve(0, unit_ * 16);
  ASSERT_TRUE(region.ok()) << region.status();
  region_ = *region;
}

MemoryHandle DeviceBackendContract::MustCreate(Bytes bytes) {
  const absl::StatusOr<MemoryHandle> memory = backend_->Create(0, bytes);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory.value_or(MemoryHandle());
}

MemoryHandle DeviceBackendContract::MustMap(std::byte* address, Bytes bytes) {
  const MemoryHandle memory = MustCreate(bytes);
  EXPECT_OK(backend_->Map(address, memory));
  EXPECT_OK(backend_->SetAccess(address, bytes));
  return memory;
}

void DeviceBackendContract::Fill(StreamHandle stream, std::byte* to, Bytes bytes, int value) {
  const FillArguments arguments{to, bytes.count(), static_cast<std::byte>(value)};
  KernelLaunch launch = GetParam().fill;
  launch.arguments = &arguments;
  launch.argument_bytes = sizeof(arguments);
  EXPECT_OK(backend_->Launch(stream, launch));
}

int DeviceBackendContract::ValueOf(StreamHandle stream, const std::byte* from, Bytes bytes) {
  std::vector<unsigned char> data(bytes.count());
  const absl::Status status = backend_->CopyToHost(stream, data.data(), from, bytes);
  EXPECT_TRUE(status.ok()) << status;
  const bool uniform = std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0;
  return uniform ? data[0] : -1;
}

void DeviceBackendContract::MustWait(StreamHandle stream) {
  const absl::StatusOr<Fence> fence = backend_->Record(stream);
  ASSERT_TRUE(fence.ok()) << fence.status();
  EXPECT_OK(backend_->Wait(*fence));
}

// ---- devices

TEST_P(DeviceBackendContract, DevicesAreCompleteAndInOrder) {
  const std::vector<PhysicalDevice>& devices = backend_->devices();
  std::set<std::string> uuids;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    EXPECT_EQ(devices[i].uuid.rfind("GPU-", 0), 0u) << devices[i].uuid;
    EXPECT_TRUE(uuids.insert(devices[i].uuid).second);
    EXPECT_FALSE(devices[i].name.empty());
    EXPECT_GE(devices[i].total, devices[i].granularity);
    EXPECT_EQ(devices[i].granularity.count() & (devices[i].granularity.count() - 1), 0u);
    EXPECT_TRUE(i == 0 || devices[i - 1].pci_bus_id < devices[i].pci_bus_id);
  }
  EXPECT_LE(backend_->FreeMemory(0).value_or(Bytes()), devices[0].total);
}

TEST_P(DeviceBackendContract, WrongDevicesAndSizesAreInvalid) {
  const int none = static_cast<int>(backend_->devices().size());
  for (const int device : {-1, none}) {
    EXPECT_TRUE(absl::IsInvalidArgument(backend_->Create(device, unit_).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(backend_->Reserve(device, unit_).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(backend_->CreateStream(device, 0).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(backend_->Import(device, UniqueFd(), unit_).status()));
  }
  for (const Bytes bytes : {Bytes(), Bytes(1), unit_ + Bytes(1), unit_ / 2}) {
    EXPECT_TRUE(absl::IsInvalidArgument(backend_->Create(0, bytes).status())) << bytes;
    EXPECT_TRUE(absl::IsInvalidArgument(backend_->Reserve(0, bytes).status())) << bytes;
  }
}

TEST_P(DeviceBackendContract, MoreThanTheCardIsRefused) {
  const absl::Status status = backend_->Create(0, backend_->devices()[0].total + unit_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_P(DeviceBackendContract, UnknownHandlesAreNotFound) {
  const MemoryHandle unknown{123456};
  EXPECT_TRUE(absl::IsNotFound(backend_->Export(unknown).status()));
  EXPECT_TRUE(absl::IsNotFound(backend_->Release(unknown)));
  EXPECT_TRUE(absl::IsNotFound(backend_->Reclaim(unknown)));
  EXPECT_TRUE(absl::IsNotFound(backend_->Map(region_, unknown)));
  for (const StreamHandle stream : {StreamHandle{}, StreamHandle{987654321}}) {
    EXPECT_TRUE(absl::IsNotFound(backend_->DestroyStream(stream)));
    EXPECT_TRUE(absl::IsNotFound(backend_->Drain(stream)));
    EXPECT_TRUE(absl::IsNotFound(backend_->Record(stream).status()));
    EXPECT_TRUE(absl::IsNotFound(backend_->Wait({stream, 0})));
    EXPECT_TRUE(absl::IsNotFound(backend_->HasPassed({stream, 0}).status()));
    EXPECT_TRUE(absl::IsNotFound(backend_->WaitOnStream(stream, {stream_, 0})));
    EXPECT_TRUE(absl::IsNotFound(backend_->Launch(stream, GetParam().fill)));
    int value = 0;
    EXPECT_TRUE(absl::IsNotFound(backend_->CopyToHost(stream, &value, region_, Bytes(4))));
  }
}

// ---- address space

TEST_P(DeviceBackendContract, ReservedRangesAreAlignedAndGivenBackWhole) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region_) % unit_.count(), 0u);
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Unreserve(region_, unit_)));
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Unreserve(region_ + unit_.count(), unit_ * 16)));
  const MemoryHandle memory = MustMap(region_ + (unit_ * 3).count(), unit_);
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->Unreserve(region_, unit_ * 16)));
  EXPECT_OK(backend_->Unmap(region_ + (unit_ * 3).count()));
  EXPECT_OK(backend_->Release(memory));
  EXPECT_OK(backend_->Unreserve(region_, unit_ * 16));
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Unreserve(region_, unit_ * 16))) << "it was given back";
}

TEST_P(DeviceBackendContract, MapNeedsAReservedAlignedFreePlace) {
  const MemoryHandle memory = MustCreate(unit_ * 2);
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Map(region_ + 4096, memory)));
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Map(region_ + (unit_ * 15).count(), memory)));
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Map(nullptr, memory)));
  MustMap(region_ + (unit_ * 4).count(), unit_ * 2);
  for (const std::uint64_t at : {3u, 4u, 5u}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(backend_->Map(region_ + (unit_ * at).count(), memory))) << at;
  }
  EXPECT_OK(backend_->Map(region_ + (unit_ * 2).count(), memory));
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->Map(region_ + (unit_ * 8).count(), memory))) << "twice";
}

TEST_P(DeviceBackendContract, NoAccessBeforeSetAccess) {
  const MemoryHandle memory = MustCreate(unit_);
  ASSERT_TRUE(backend_->Map(region_, memory).ok());
  int probe[2] = {-1, -1};
  ASSERT_EQ(pipe2(probe, O_CLOEXEC), 0);
  const UniqueFd reader(probe[0]);
  const UniqueFd writer(probe[1]);
  // The kernel reads for us, and says so where a load would fault.
  EXPECT_EQ(write(writer.get(), region_, 1), -1);
  EXPECT_EQ(errno, EFAULT);
  char byte = 0;
  EXPECT_FALSE(backend_->CopyToHost(stream_, &byte, region_, Bytes(1)).ok());
  EXPECT_FALSE(backend_->CopyToDevice(stream_, region_, &byte, Bytes(1)).ok());
  ASSERT_TRUE(backend_->SetAccess(region_, unit_).ok());
  EXPECT_OK(backend_->CopyToHost(stream_, &byte, region_, Bytes(1)));
}

TEST_P(DeviceBackendContract, OneSetAccessSpansManyChunksAndOnlyWholeOnes) {
  for (const std::uint64_t at : {0u, 1u, 2u}) {
    ASSERT_TRUE(backend_->Map(region_ + (unit_ * at).count(), MustCreate(unit_)).ok());
  }
  ASSERT_TRUE(backend_->Map(region_ + (unit_ * 4).count(), MustCreate(unit_ * 2)).ok());
  EXPECT_FALSE(backend_->SetAccess(region_, unit_ * 4).ok()) << "a hole";
  EXPECT_FALSE(backend_->SetAccess(region_ + (unit_ * 4).count(), unit_).ok()) << "half a chunk";
  EXPECT_FALSE(backend_->SetAccess(region_ + (unit_ * 5).count(), unit_).ok()) << "the other half";
  EXPECT_FALSE(backend_->SetAccess(region_, Bytes()).ok());
  ASSERT_TRUE(backend_->SetAccess(region_, unit_ * 3).ok());
  Fill(stream_, region_ + 100, unit_ * 3 - Bytes(200), 9);
  EXPECT_EQ(ValueOf(stream_, region_ + 100, unit_ * 3 - Bytes(200)), 9);
}

TEST_P(DeviceBackendContract, MappingsAreTakenAwayWhole) {
  const MemoryHandle memory = MustMap(region_, unit_ * 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->Unmap(region_ + unit_.count())));
  EXPECT_OK(backend_->Unmap(region_));
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->Unmap(region_)));
  char byte = 0;
  EXPECT_FALSE(backend_->CopyToHost(stream_, &byte, region_, Bytes(1)).ok());
  EXPECT_OK(backend_->Release(memory));
}

TEST_P(DeviceBackendContract, MemoryKeepsItsContentsAtAnotherAddress) {
  const MemoryHandle memory = MustMap(region_, unit_);
  Fill(stream_, region_, unit_, 77);
  MustWait(stream_);
  ASSERT_TRUE(backend_->Unmap(region_).ok());
  std::byte* const elsewhere = region_ + (unit_ * 9).count();
  ASSERT_TRUE(backend_->Map(elsewhere, memory).ok());
  ASSERT_TRUE(backend_->SetAccess(elsewhere, unit_).ok());
  EXPECT_EQ(ValueOf(stream_, elsewhere, unit_), 77);
}

// ---- physical memory

TEST_P(DeviceBackendContract, MappedMemoryIsNotReleased) {
  const MemoryHandle memory = MustMap(region_, unit_);
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->Release(memory)));
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->Reclaim(memory)));
  ASSERT_TRUE(backend_->Unmap(region_).ok());
  EXPECT_OK(backend_->Release(memory));
  EXPECT_TRUE(absl::IsNotFound(backend_->Release(memory)));
  const MemoryHandle other = MustCreate(unit_);
  EXPECT_OK(backend_->Reclaim(other));
  EXPECT_TRUE(absl::IsNotFound(backend_->Reclaim(other)));
}

UniqueFd Duplicate(const UniqueFd& fd) { return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

TEST_P(DeviceBackendContract, AnotherProcessSharesExportedMemory) {
  const MemoryHandle memory = MustMap(region_, unit_);
  Fill(stream_, region_, unit_, 5);
  MustWait(stream_);
  absl::StatusOr<ExportedFd> fd = backend_->Export(memory);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_NE(fcntl((*fd)->get(), F_GETFD) & FD_CLOEXEC, 0);
  DevicePeer peer(GetParam().name);
  ASSERT_EQ(peer.Import(**fd, unit_), "ok");
  EXPECT_EQ(peer.Ask("check 5"), "same");
  EXPECT_EQ(peer.Ask("fill 6"), "ok");
  EXPECT_EQ(ValueOf(stream_, region_, unit_), 6);
  EXPECT_EQ(peer.Ask("release"), "ok");
  EXPECT_EQ(ValueOf(stream_, region_, unit_), 6);
  EXPECT_EQ(peer.WaitForEnd(), 0);
}

TEST_P(DeviceBackendContract, DescriptorAloneKeepsMemoryAlive) {
  const MemoryHandle memory = MustMap(region_, unit_);
  Fill(stream_, region_, unit_, 8);
  MustWait(stream_);
  absl::StatusOr<ExportedFd> fd = backend_->Export(memory);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(backend_->Unmap(region_).ok());
  ASSERT_TRUE(backend_->Release(memory).ok());
  const absl::StatusOr<MemoryHandle> again = backend_->Import(0, Duplicate(**fd), unit_);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE(backend_->Map(region_, *again).ok());
  ASSERT_TRUE(backend_->SetAccess(region_, unit_).ok());
  EXPECT_EQ(ValueOf(stream_, region_, unit_), 8);
}

TEST_P(DeviceBackendContract, ImportTakesNothingButAChunkOfThatSize) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const auto memfd = [this](unsigned flags) {
    UniqueFd fd(memfd_create("impostor", MFD_CLOEXEC | flags));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(unit_.count())), 0);
    return fd;
  };
  UniqueFd half_sealed = memfd(MFD_ALLOW_SEALING);
  ASSERT_EQ(fcntl(half_sealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  std::vector<UniqueFd> impostors;
  impostors.emplace_back(ends[0]);
  impostors.emplace_back(ends[1]);
  impostors.emplace_back(open("/dev/null", O_RDWR | O_CLOEXEC));
  impostors.emplace_back(open("/dev/zero", O_RDWR | O_CLOEXEC));
  impostors.emplace_back(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  impostors.emplace_back(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  impostors.emplace_back(memfd(0));
  impostors.emplace_back(memfd(MFD_ALLOW_SEALING));
  impostors.push_back(std::move(half_sealed));
  impostors.emplace_back();
  for (UniqueFd& fd : impostors) {
    const absl::Status status = backend_->Import(0, std::move(fd), unit_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  const MemoryHandle memory = MustCreate(unit_ * 2);
  for (const std::uint64_t units : {1u, 3u}) {
    absl::StatusOr<ExportedFd> fd = backend_->Export(memory);
    ASSERT_TRUE(fd.ok());
    const absl::StatusOr<MemoryHandle> imported = backend_->Import(0, Duplicate(**fd), unit_ * units);
    if (GetParam().import_checks_size) {
      EXPECT_TRUE(absl::IsInvalidArgument(imported.status()));
    } else if (imported.ok() && units > 2) {
      EXPECT_TRUE(absl::IsInvalidArgument(backend_->Map(region_, *imported)));
    }
  }
}

TEST_P(DeviceBackendContract, ReclaimedMemoryIsGoneForAProcessThatKeptAMapping) {
  if (!GetParam().reclaim_is_immediate) {
    GTEST_SKIP() << "this backend cannot take memory from a process that maps it";
  }
  const MemoryHandle memory = MustCreate(unit_);
  absl::StatusOr<ExportedFd> fd = backend_->Export(memory);
  ASSERT_TRUE(fd.ok());
  DevicePeer peer(GetParam().name);
  ASSERT_EQ(peer.Import(**fd, unit_), "ok");
  ASSERT_EQ(peer.Ask("fill 3"), "ok");
  EXPECT_EQ(peer.Ask("grow"), "got ftruncate fallocate write reopened") << "it may write, but not add a seal";
  EXPECT_OK(backend_->Reclaim(memory));
  EXPECT_EQ(peer.Ask("grow"), "nothing") << "what was reclaimed cannot come back";
  EXPECT_EQ(peer.Ask("check 3"), "(died)");
  EXPECT_EQ(peer.WaitForEnd(), 128 + SIGBUS);
}

// ---- streams

TEST_P(DeviceBackendContract, WorkOfAStreamIsDoneInOrder) {
  MustMap(region_, unit_ * 2);
  std::byte* const second = region_ + unit_.count();
  for (int i = 1; i <= 20; ++i) {
    Fill(stream_, region_, unit_, i);
    EXPECT_OK(backend_->CopyOnDevice(stream_, second, region_, unit_));
    Fill(stream_, region_, unit_, 99);
    EXPECT_EQ(ValueOf(stream_, second, unit_), i);
  }
  EXPECT_EQ(ValueOf(stream_, region_, unit_), 99);
}

TEST_P(DeviceBackendContract, FencesPassWhenTheWorkBeforeThemIsDone) {
  MustMap(region_, unit_);
  Fill(stream_, region_, unit_, 1);
  const absl::StatusOr<Fence> fence = backend_->Record(stream_);
  ASSERT_TRUE(fence.ok());
  EXPECT_OK(backend_->Drain(stream_));
  const absl::StatusOr<bool> passed = backend_->HasPassed(*fence);
  ASSERT_TRUE(passed.ok());
  EXPECT_TRUE(*passed);
  EXPECT_OK(backend_->Wait(*fence));
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Wait({stream_, fence->sequence + 1000})));
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->HasPassed({stream_, fence->sequence + 1000}).status()));
}

TEST_P(DeviceBackendContract, TimersMeasureTheWorkBetweenTheirPoints) {
  MustMap(region_, unit_);
  absl::StatusOr<std::unique_ptr<StreamTimer>> outer = backend_->StartTimer(stream_);
  ASSERT_TRUE(outer.ok()) << outer.status();
  Fill(stream_, region_, unit_, 1);
  absl::StatusOr<std::unique_ptr<StreamTimer>> inner = backend_->StartTimer(stream_);
  ASSERT_TRUE(inner.ok()) << inner.status();
  Fill(stream_, region_, unit_, 2);
  EXPECT_FALSE(inner->get()->Elapsed()->has_value()) << "it is not stopped";
  EXPECT_OK((*inner)->Stop());
  EXPECT_OK((*outer)->Stop());
  EXPECT_EQ(ValueOf(stream_, region_, unit_), 2);
  EXPECT_OK(backend_->Wait(*backend_->Record(stream_)));
  const auto inside = (*inner)->Elapsed();
  const auto around = (*outer)->Elapsed();
  ASSERT_TRUE(inside.ok() && around.ok());
  ASSERT_TRUE(inside->has_value() && around->has_value());
  EXPECT_GE(**inside, std::chrono::nanoseconds(0));
  EXPECT_GE(**around, **inside);
  // One that is left alone.
  ASSERT_TRUE(backend_->StartTimer(stream_).ok());
  const absl::StatusOr<StreamHandle> other = backend_->CreateStream(0, 0);
  ASSERT_TRUE(other.ok());
  EXPECT_OK(backend_->DestroyStream(*other));
  EXPECT_TRUE(absl::IsNotFound(backend_->StartTimer(*other).status()));
}

TEST_P(DeviceBackendContract, StreamsWaitForFencesOfOtherStreams) {
  MustMap(region_, unit_ * 2);
  const absl::StatusOr<StreamHandle> other = backend_->CreateStream(0, 0);
  ASSERT_TRUE(other.ok());
  for (int i = 1; i <= 20; ++i) {
    Fill(stream_, region_, unit_, i);
    const absl::StatusOr<Fence> filled = backend_->Record(stream_);
    ASSERT_TRUE(filled.ok());
    EXPECT_OK(backend_->WaitOnStream(*other, *filled));
    EXPECT_OK(backend_->CopyOnDevice(*other, region_ + unit_.count(), region_, unit_));
    const absl::StatusOr<Fence> copied = backend_->Record(*other);
    ASSERT_TRUE(copied.ok());
    EXPECT_OK(backend_->WaitOnStream(stream_, *copied));
    Fill(stream_, region_, unit_, 0);
    EXPECT_EQ(ValueOf(*other, region_ + unit_.count(), unit_), i);
  }
  EXPECT_OK(backend_->WaitOnStream(stream_, *backend_->Record(stream_)));
  EXPECT_OK(backend_->DestroyStream(*other));
  EXPECT_TRUE(absl::IsNotFound(backend_->Record(*other).status()));
}

TEST_P(DeviceBackendContract, HostMemoryMayBeReusedAfterACopyToTheDevice) {
  MustMap(region_, unit_);
  std::vector<char> data(unit_.count(), 1);
  EXPECT_OK(backend_->CopyToDevice(stream_, region_, data.data(), unit_));
  std::fill(data.begin(), data.end(), char{2});
  EXPECT_EQ(ValueOf(stream_, region_, unit_), 1);
}

// Large enough for several pieces wherever copies go in pieces.
TEST_P(DeviceBackendContract, LargeCopiesToAndFromTheHostAreWhole) {
  const Bytes bytes = unit_ * 5;
  MustMap(region_, bytes);
  for (const Bytes part : {bytes, bytes - Bytes(3), Bytes(65'537), Bytes(65'536)}) {
    std::vector<unsigned char> data(part.count());
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i * 2654435761u >> 24);
    const std::vector<unsigned char> written = data;
    EXPECT_OK(backend_->CopyToDevice(stream_, region_ + 1, data.data(), part - Bytes(1)));
    std::fill(data.begin(), data.end(), 0);
    EXPECT_OK(backend_->CopyToHost(stream_, data.data(), region_ + 1, part - Bytes(1)));
    EXPECT_EQ(std::memcmp(data.data(), written.data(), part.count() - 1), 0) << part;
  }
}

TEST_P(DeviceBackendContract, CopiesBetweenDevicesAreOrderedByTheirFences) {
  if (backend_->devices().size() < 2) GTEST_SKIP() << "there is one device only";
  const Bytes bytes = unit_ * 3;
  MustMap(region_, bytes);
  const absl::StatusOr<std::byte*> there = backend_->Reserve(1, bytes);
  const absl::StatusOr<MemoryHandle> memory = backend_->Create(1, bytes);
  const absl::StatusOr<StreamHandle> other = backend_->CreateStream(1, 0);
  ASSERT_TRUE(there.ok() && memory.ok() && other.ok());
  EXPECT_OK(backend_->Map(*there, *memory));
  EXPECT_OK(backend_->SetAccess(*there, bytes));
  for (int i = 1; i <= 10; ++i) {
    Fill(*other, *there, bytes, i);
    EXPECT_OK(backend_->WaitOnStream(stream_, *backend_->Record(*other)));
    EXPECT_OK(backend_->CopyOnDevice(stream_, region_, *there, bytes));
    EXPECT_OK(backend_->WaitOnStream(*other, *backend_->Record(stream_)));
    Fill(*other, *there, bytes, 99);
    EXPECT_EQ(ValueOf(stream_, region_, bytes), i);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->CopyOnDevice(*other, region_, *there, unit_)))
      << "the stream is the other device's";
  EXPECT_EQ(ValueOf(*other, *there, bytes), 99);
  EXPECT_OK(backend_->Unmap(*there));
  EXPECT_OK(backend_->Release(*memory));
}

TEST_P(DeviceBackendContract, CopiesNeedMappedMemory) {
  MustMap(region_, unit_);
  std::vector<char> data(unit_.count() * 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->CopyToHost(stream_, data.data(), region_, unit_ * 2)));
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->CopyToDevice(stream_, region_, data.data(), unit_ * 2)));
  std::byte* const unmapped = region_ + (unit_ * 4).count();
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->CopyOnDevice(stream_, unmapped, region_, unit_)));
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->CopyOnDevice(stream_, region_, unmapped, unit_)));
  EXPECT_OK(backend_->CopyToHost(stream_, data.data(), region_, Bytes()));
  EXPECT_OK(backend_->CopyToDevice(stream_, region_, data.data(), Bytes()));
  EXPECT_OK(backend_->CopyOnDevice(stream_, region_, region_, Bytes()));
}

TEST_P(DeviceBackendContract, LaunchChecksItsArguments) {
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Launch(stream_, KernelLaunch{})));
  KernelLaunch launch = GetParam().fill;
  const std::vector<char> much(KernelLaunch::kMaxArgumentBytes + 1);
  launch.arguments = much.data();
  launch.argument_bytes = much.size();
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Launch(stream_, launch)));
}

TEST_P(DeviceBackendContract, DestroyedStreamsFinishTheirWork) {
  MustMap(region_, unit_);
  const absl::StatusOr<StreamHandle> other = backend_->CreateStream(0, 0);
  ASSERT_TRUE(other.ok());
  for (int i = 0; i < 10; ++i) Fill(*other, region_, unit_, i);
  EXPECT_OK(backend_->DestroyStream(*other));
  EXPECT_EQ(ValueOf(stream_, region_, unit_), 9);
}

TEST_P(DeviceBackendContract, ManyThreadsShareABackend) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::byte* const mine = region_ + (unit_ * (4 * t)).count();
      for (int round = 0; round < 20; ++round) {
        const MemoryHandle memory = MustCreate(unit_);
        EXPECT_OK(backend_->Map(mine, memory));
        EXPECT_OK(backend_->SetAccess(mine, unit_));
        EXPECT_TRUE(backend_->Export(memory).ok());
        EXPECT_OK(backend_->Unmap(mine));
        EXPECT_OK(backend_->Reclaim(memory));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DeviceBackendContract, BackendGoesWithEverythingInIt) {
  MustMap(region_, unit_);
  MustCreate(unit_);
  Fill(stream_, region_, unit_, 1);
  backend_.reset();
}

}  // namespace lgpu
