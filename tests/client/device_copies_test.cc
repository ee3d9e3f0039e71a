// Large copies between a device and the host run beside the device's kernels.

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "client/runtime/device.h"
#include "tests/support/child_program.h"
#include "tests/support/fake_region_source.h"

namespace lgpu::internal {
namespace {

using testing::Eventually;

// A door that kernels wait at.
class Door {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    while (!open_) changed_.wait(lock);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class DeviceCopiesTest : public ::testing::Test {
 protected:
  DeviceCopiesTest() {
    auto source =
        FakeRegionSource::Make(*backend_, {.limit = 64_MiB, .upstream = std::make_shared<FakeUpstream>()});
    EXPECT_TRUE(source.ok()) << source.status();
    Device::GpuParts parts;
    parts.backend = backend_.get();
    memory_ = std::make_unique<DevicePool>(*std::move(source), *backend_, DevicePool::Options{});
    parts.memory = memory_.get();
    device_ = *Device::Open(std::move(parts));
  }
  ~DeviceCopiesTest() override { door_.Open(); }

  Block Allocate(Bytes bytes, Device::FilledBy filled_by) {
    const absl::StatusOr<Block> block = device_->Allocate(bytes, "Test", {}, filled_by);
    EXPECT_TRUE(block.ok()) << block.status();
    return block.value_or(Block());
  }
  // A kernel that waits at the door and then writes into the block.
  void HoldHome(const Block& block, int value) {
    struct Arguments {
      Door* door;
      std::byte* to;
      std::size_t bytes;
      int value;
    };
    const Arguments arguments{&door_, block.address, block.bytes.count(), value};
    KernelLaunch launch;
    launch.host_function = [](const void* data) {
      const auto& held = *static_cast<const Arguments*>(data);
      held.door->Pass();
      std::memset(held.to, held.value, held.bytes);
    };
    launch.arguments = &arguments;
    launch.argument_bytes = sizeof(arguments);
    EXPECT_TRUE(device_->Launch(launch).ok());
  }
  bool IsDone(Device::Streams stream) {
    const absl::StatusOr<Fence> fence = backend_->Record(device_->stream(stream));
    return Eventually([&] { return backend_->HasPassed(*fence).value_or(false); });
  }
  std::vector<std::byte> Read(const Block& block) {
    std::vector<std::byte> data(block.bytes.count());
    EXPECT_TRUE(device_->CopyToHost(data, block.address).ok());
    return data;
  }

  Door door_;
  std::unique_ptr<DeviceBackend> backend_ = MakeSimulatedBackend(
      {.devices = {SimulatedDevice(0, 1_GiB, "test")}, .sparse = true, .asynchronous = true});
  std::unique_ptr<DevicePool> memory_;
  std::unique_ptr<Device> device_;
};

TEST_F(DeviceCopiesTest, AnUploadDoesNotWaitForKernelsThatWereQueuedBefore) {
  const Block busy = Allocate(1_MiB, Device::FilledBy::kKernel);
  HoldHome(busy, 1);
  const Block filled = Allocate(1_MiB, Device::FilledBy::kHost);
  const std::vector<std::byte> data((1_MiB).count(), std::byte{7});
  ASSERT_TRUE(device_->CopyFromHost(filled.address, data).ok());
  EXPECT_TRUE(IsDone(Device::kUpload)) << "while home is held";
  door_.Open();
  EXPECT_EQ(Read(filled), data);
  EXPECT_EQ(Read(busy)[0], std::byte{1});
}

// By each way that the pool has to find a place.
class DeviceUploadOrderTest : public DeviceCopiesTest, public ::testing::WithParamInterface<Bytes> {};
INSTANTIATE_TEST_SUITE_P(Sizes, DeviceUploadOrderTest,
                         ::testing::Values(Bytes(65 << 10), 512_KiB, 1_MiB, 3_MiB, 60_MiB),
                         [](const auto& param) { return std::to_string(param.param.count()); });

TEST_P(DeviceUploadOrderTest, AnUploadIntoMemoryThatAKernelStillWritesWaitsForIt) {
  const Block busy = Allocate(GetParam(), Device::FilledBy::kKernel);
  HoldHome(busy, 1);
  device_->Free(busy, GetParam());
  const Block filled = Allocate(GetParam(), Device::FilledBy::kHost);
  ASSERT_EQ(filled.address, busy.address);
  const std::vector<std::byte> data(filled.bytes.count(), std::byte{7});
  ASSERT_TRUE(device_->CopyFromHost(filled.address, data).ok());
  EXPECT_FALSE(backend_->HasPassed(*backend_->Record(device_->stream(Device::kUpload))).value_or(true));
  door_.Open();
  EXPECT_EQ(Read(filled), data) << "the kernel wrote last";
}

// The place begins where home still writes, and goes on in a new chunk.
TEST_F(DeviceCopiesTest, AnUploadIntoPartlyUsedMemoryWaits) {
  const Block busy = Allocate(3_MiB, Device::FilledBy::kKernel);
  HoldHome(busy, 1);
  device_->Free(busy, busy.bytes);
  const Block filled = Allocate(7_MiB, Device::FilledBy::kHost);
  ASSERT_EQ(filled.address, busy.address);
  const std::vector<std::byte> data(filled.bytes.count(), std::byte{7});
  ASSERT_TRUE(device_->CopyFromHost(filled.address, data).ok());
  door_.Open();
  EXPECT_EQ(Read(filled), data) << "the kernel wrote last";
}

TEST_F(DeviceCopiesTest, AKernelReadsUploadedData) {
  for (int round = 0; round < 20; ++round) {
    const Block filled = Allocate(1_MiB, Device::FilledBy::kHost);
    const Block copy = Allocate(1_MiB, Device::FilledBy::kKernel);
    const std::vector<std::byte> data((1_MiB).count(), static_cast<std::byte>(round));
    ASSERT_TRUE(device_->CopyFromHost(filled.address, data).ok());
    ASSERT_TRUE(backend_->CopyOnDevice(device_->stream(), copy.address, filled.address, 1_MiB).ok());
    device_->Free(filled, filled.bytes);
    ASSERT_EQ(Read(copy), data);
    device_->Free(copy, copy.bytes);
  }
}

TEST_F(DeviceCopiesTest, KernelsThatAreQueuedDuringADownloadDoNotWaitForIt) {
  const Block first = Allocate(1_MiB, Device::FilledBy::kHost);
  const std::vector<std::byte> data((1_MiB).count(), std::byte{3});
  ASSERT_TRUE(device_->CopyFromHost(first.address, data).ok());
  // Another program's copy keeps the download stream busy.
  Door slow;
  Door* const at = &slow;
  KernelLaunch launch;
  launch.host_function = [](const void* door) { (*static_cast<Door* const*>(door))->Pass(); };
  launch.arguments = &at;
  launch.argument_bytes = sizeof(at);
  ASSERT_TRUE(backend_->Launch(device_->stream(Device::kDownload), launch).ok());
  std::vector<std::byte> got;
  std::atomic<bool> is_read{false};
  std::thread reader([&] {
    got = Read(first);
    is_read = true;
  });
  EXPECT_TRUE(Eventually([&] { return backend_->Record(device_->stream(Device::kDownload))->sequence >= 2; }))
      << "the download is queued";
  const Block second = Allocate(1_MiB, Device::FilledBy::kKernel);
  door_.Open();
  HoldHome(second, 9);
  EXPECT_TRUE(IsDone(Device::kHome)) << "while the download is under way";
  EXPECT_FALSE(is_read);
  slow.Open();
  reader.join();
  EXPECT_EQ(got, data);
}

}  // namespace
}  // namespace lgpu::internal
