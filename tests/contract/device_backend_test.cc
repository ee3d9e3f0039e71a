#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/refusal.h"
#include "tests/contract/device_backend_contract.h"
#include "tests/support/sanitizers.h"

namespace lgpu {
namespace {

DeviceBackendFactory Simulated(std::string name, bool sparse, bool asynchronous) {
  DeviceBackendFactory factory;
  factory.name = std::move(name);
  factory.make = [sparse, asynchronous] {
    return MakeSimulatedBackend(
        {.devices = {SimulatedDevice(1, 128_MiB, "contract"), SimulatedDevice(0, 128_MiB, "contract")},
         .sparse = sparse,
         .asynchronous = asynchronous});
  };
  factory.fill.host_function = [](const void* arguments) {
    const auto& fill = *static_cast<const FillArguments*>(arguments);
    std::memset(fill.to, static_cast<int>(fill.value), fill.count);
  };
  return factory;
}

std::vector<DeviceBackendFactory> Backends() {
  return {Simulated("Synchronous", false, false), Simulated("Sparse", true, false),
          Simulated("Asynchronous", false, true)};
}

INSTANTIATE_TEST_SUITE_P(Simulated, DeviceBackendContract, ::testing::ValuesIn(Backends()),
                         DeviceBackendName);

// ---- promises of simulated devices alone

bool HostCanRead(const std::byte* address) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  return write(writer.get(), address, 1) == 1;
}

std::unique_ptr<DeviceBackend> Backend(bool asynchronous) {
  return MakeSimulatedBackend(
      {.devices = {SimulatedDevice(0, 64_MiB, "test")}, .asynchronous = asynchronous});
}

struct MappedChunk {
  MemoryHandle memory;
  std::byte* address = nullptr;
};
MappedChunk MustMapChunk(DeviceBackend& backend) {
  MappedChunk chunk;
  chunk.memory = backend.Create(0, 2_MiB).value_or(MemoryHandle());
  chunk.address = backend.Reserve(0, 2_MiB).value_or(nullptr);
  EXPECT_TRUE(backend.Map(chunk.address, chunk.memory).ok());
  EXPECT_TRUE(backend.SetAccess(chunk.address, 2_MiB).ok());
  return chunk;
}

std::uint64_t AllocatedBytes(int fd) {
  struct stat status {};
  EXPECT_EQ(fstat(fd, &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST(SimulatedBackendTest, ChunksAreReallyAllocatedAndReallyReclaimed) {
  const auto backend = Backend(false);
  const MemoryHandle memory = backend->Create(0, 4_MiB).value_or(MemoryHandle());
  const absl::StatusOr<ExportedFd> fd = backend->Export(memory);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(AllocatedBytes((*fd)->get()), (4_MiB).count());
  ASSERT_TRUE(backend->Reclaim(memory).ok());
  EXPECT_EQ(AllocatedBytes((*fd)->get()), 0u);
}

TEST(SimulatedBackendTest, SparseChunksTakeMemoryWhenTouched) {
  const auto backend = MakeSimulatedBackend({.devices = {SimulatedDevice(0, 1_TiB, "test")}, .sparse = true});
  const MemoryHandle memory = backend->Create(0, 512_GiB).value_or(MemoryHandle());
  const absl::StatusOr<ExportedFd> fd = backend->Export(memory);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(AllocatedBytes((*fd)->get()), 0u);
}

TEST(SimulatedBackendTest, ExhaustedMachineIsAnErrorOfCreate) {
  const auto backend = MakeSimulatedBackend({.devices = {SimulatedDevice(0, 1024_TiB, "test")}});
  const absl::Status status = backend->Create(0, 512_TiB).status();
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(GetRefusal(status)->reason, RefusalReason::kBackend);
}

TEST(SimulatedBackendTest, OutOfDescriptorsIsSaid) {
  DevicePeer peer("Synchronous");
  EXPECT_EQ(peer.Ask("descriptors"),
            "refused: " + std::string(RefusalReasonName(RefusalReason::kDescriptors)));
}

TEST(SimulatedBackendTest, OutOfMappingsIsSaid) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer's own allocator dies when there are no mappings left";
  DevicePeer peer("Synchronous");
  EXPECT_EQ(peer.Ask("mappings"), "refused: " + std::string(RefusalReasonName(RefusalReason::kMapCount)));
}

TEST(SimulatedBackendTest, DevicesAreTheSameEveryTime) {
  const PhysicalDevice device = SimulatedDevice(1, 1_GiB, "/run/lgpu");
  EXPECT_EQ(device.uuid, SimulatedDevice(1, 2_GiB, "/run/lgpu").uuid);
  EXPECT_NE(device.uuid, SimulatedDevice(0, 1_GiB, "/run/lgpu").uuid);
  EXPECT_NE(device.uuid, SimulatedDevice(1, 1_GiB, "/run/other").uuid);
  EXPECT_EQ(device.uuid.size(), std::strlen("GPU-00000000-0000-0000-0000-000000000000"));
  EXPECT_LT(SimulatedDevice(9, 1_GiB, "x").pci_bus_id, SimulatedDevice(300, 1_GiB, "x").pci_bus_id);
  EXPECT_TRUE(device.simulated);
}

TEST(SimulatedBackendTest, ForkedChildHasNoRegionAndIsRefused) {
  if (testing::kThreadSanitizer) {
    GTEST_SKIP() << "MADV_DONTFORK has no effect in a program built with ThreadSanitizer";
  }
  auto backend = Backend(false);
  const MappedChunk chunk = MustMapChunk(*backend);
  const pid_t child = fork();
  if (child == 0) {
    unsigned char vector = 0;
    const bool gone = mincore(chunk.address, 4096, &vector) != 0 && errno == ENOMEM;
    const bool refused = absl::IsFailedPrecondition(backend->Create(0, 2_MiB).status()) &&
                         absl::IsFailedPrecondition(backend->Unmap(chunk.address));
    // The region's destructor must not unmap the child's own mapping at its addresses.
    void* const own =
        mmap(chunk.address, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    backend.reset();
    const bool kept = own == chunk.address && mincore(own, 4096, &vector) == 0;
    _exit((gone ? 0 : 1) | (refused ? 0 : 2) | (kept ? 0 : 4));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(HostCanRead(chunk.address)) << "the parent keeps it";
}

// ---- the asynchronous mode

struct Gate {
  std::atomic<int> open{0};
  std::atomic<int> value{0};
};
struct GateArguments {
  Gate* gate;
  int value;
};
// Waits until the gate is open and then tells its arguments.
void PassGate(const void* arguments) {
  const auto& pass = *static_cast<const GateArguments*>(arguments);
  pass.gate->open.wait(0);
  pass.gate->value = pass.value;
}

class AsynchronousTest : public ::testing::Test {
 protected:
  void Launch(int value) {
    GateArguments arguments{&gate_, value};
    EXPECT_TRUE(backend_
                    ->Launch(stream_, {.host_function = &PassGate,
                                       .arguments = &arguments,
                                       .argument_bytes = sizeof(arguments)})
                    .ok());
    arguments = {nullptr, -1};  // the launch has its own copy
  }
  void OpenGate() {
    gate_.open = 1;
    gate_.open.notify_all();
  }

  Gate gate_;
  std::unique_ptr<DeviceBackend> backend_ = Backend(true);
  StreamHandle stream_ = backend_->CreateStream(0, 0).value_or(StreamHandle());
};

TEST_F(AsynchronousTest, LaunchReturnsBeforeTheKernelIsDone) {
  Launch(42);
  const absl::StatusOr<Fence> fence = backend_->Record(stream_);
  ASSERT_TRUE(fence.ok());
  EXPECT_FALSE(backend_->HasPassed(*fence).value_or(true));
  EXPECT_EQ(gate_.value, 0);
  OpenGate();
  ASSERT_TRUE(backend_->Wait(*fence).ok());
  EXPECT_EQ(gate_.value, 42);
}

TEST_F(AsynchronousTest, UnmapIsRefusedBeforeTheFences) {
  const MappedChunk chunk = MustMapChunk(*backend_);
  Launch(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->Unmap(chunk.address)));
  const absl::StatusOr<Fence> fence = backend_->Record(stream_);
  ASSERT_TRUE(fence.ok());
  OpenGate();
  ASSERT_TRUE(backend_->Wait(*fence).ok());
  EXPECT_TRUE(backend_->Unmap(chunk.address).ok());
}

TEST_F(AsynchronousTest, WaitingStreamWaits) {
  const absl::StatusOr<StreamHandle> other = backend_->CreateStream(0, 0);
  ASSERT_TRUE(other.ok());
  Launch(1);
  ASSERT_TRUE(backend_->WaitOnStream(*other, *backend_->Record(stream_)).ok());
  const absl::StatusOr<Fence> behind = backend_->Record(*other);
  ASSERT_TRUE(behind.ok());
  EXPECT_FALSE(backend_->HasPassed(*behind).value_or(true));
  OpenGate();
  EXPECT_TRUE(backend_->Wait(*behind).ok());
  EXPECT_EQ(gate_.value, 1);
}

TEST_F(AsynchronousTest, HostReachesDeviceMemoryOnlyInsideKernels) {
  const MappedChunk chunk = MustMapChunk(*backend_);
  EXPECT_FALSE(HostCanRead(chunk.address));
  struct Probe {
    std::byte* address;
    std::atomic<int>* seen;
  };
  std::atomic<int> seen{-1};
  const Probe probe{chunk.address, &seen};
  const auto look = [](const void* arguments) {
    const auto& inside = *static_cast<const Probe*>(arguments);
    *inside.seen = HostCanRead(inside.address) ? 1 : 0;
  };
  ASSERT_TRUE(
      backend_->Launch(stream_, {.host_function = look, .arguments = &probe, .argument_bytes = sizeof(probe)})
          .ok());
  ASSERT_TRUE(backend_->Wait(*backend_->Record(stream_)).ok());
  EXPECT_EQ(seen, 1);
  EXPECT_FALSE(HostCanRead(chunk.address));
  // Memory that comes into reach while a kernel runs joins its window, and leaves with it.
  Launch(1);
  const MappedChunk late = MustMapChunk(*backend_);
  OpenGate();
  ASSERT_TRUE(backend_->Wait(*backend_->Record(stream_)).ok());
  EXPECT_FALSE(HostCanRead(late.address));
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) { return lgpu::RunDeviceBackendTests(argc, argv, lgpu::Backends()); }
