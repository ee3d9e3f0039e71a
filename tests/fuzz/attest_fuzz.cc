// A client's claims about chunks that it held under an earlier daemon: the broker never counts more than the
// journal has, never takes other memory for a chunk, and its tables agree after every step.
//
// Input: two bytes a step: what to do, and with which chunk and descriptor.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/broker/session_restore.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "base/check.h"
#include "tests/support/broker_testing.h"

namespace lgpu {
namespace {

constexpr std::uint64_t kChunks = 4;
constexpr Bytes kGranule(std::uint64_t{2} << 20);
constexpr SessionId kSession{1};
constexpr SessionId kOther{2};
constexpr LogicalId kDevice{5};

// Memory as an earlier daemon made it: sparse, so that an input costs next to nothing.
struct World {
  std::unique_ptr<DeviceBackend> before = MakeSimulatedBackend(
      {.devices = {SimulatedDevice(0, Bytes(std::uint64_t{64} << 20), "fuzz")}, .sparse = true});
  std::unique_ptr<DeviceBackend> backend = MakeSimulatedBackend(
      {.devices = {SimulatedDevice(0, Bytes(std::uint64_t{64} << 20), "fuzz")}, .sparse = true});
  std::vector<MemoryHandle> memory;
  std::unique_ptr<Broker> broker;

  World() {
    broker = MakeBroker(*backend);
    const CardId card = broker->Cards().front().id;
    LGPU_CHECK(broker->restore()
                   .AddDevice(kDevice, {.card = card,
                                        .limit = kGranule * kChunks,
                                        .guarantee = Bytes(),
                                        .lease = LeaseKey{1},
                                        .lease_name = "fuzz",
                                        .owner = "fuzz"})
                   .ok());
    std::vector<SessionRestore::RestoredChunk> mine, others;
    for (std::uint64_t i = 0; i < 2 * kChunks; ++i) {
      memory.push_back(*before->Create(0, kGranule));
      // The last one of each is memory that is known without a descriptor.
      const bool known = i % kChunks != kChunks - 1;
      (i < kChunks ? mine : others)
          .push_back({.id = ChunkId{i + 1},
                      .device = kDevice,
                      .bytes = kGranule,
                      .identity = known ? before->Identity(memory.back()) : 0});
    }
    LGPU_CHECK(broker->restore().AddSession(kSession, 1, nullptr, LeaseKey{1}, mine).ok());
    LGPU_CHECK(broker->restore().AddSession(kOther, 2, nullptr, LeaseKey{1}, others).ok());
  }

  UniqueFd Descriptor(std::uint8_t which) {
    if (which % 16 < memory.size()) {
      const auto fd = before->Export(memory[which % 16]);
      return fd.ok() ? UniqueFd(::fcntl((*fd)->get(), F_DUPFD_CLOEXEC, 0)) : UniqueFd();
    }
    if (which % 16 == 8) return UniqueFd(::memfd_create("no-chunk", MFD_CLOEXEC));
    if (which % 16 == 9) return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    return UniqueFd();
  }
};

}  // namespace
}  // namespace lgpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lgpu;
  if (size > 64) return 0;
  World world;
  const lgpu::Bytes all = kGranule * kChunks;
  world.broker->restore().StartAttesting(kSession, {.pid = 1});
  for (std::size_t i = 0; i + 1 < size; i += 2) {
    const std::uint8_t what = data[i];
    const std::uint8_t which = data[i + 1];
    const lgpu::ChunkId chunk{which / 16u};
    switch (what % 8) {
      case 0:
        world.broker->restore().StartAttesting(kSession, {.pid = 1});
        break;
      case 1:
        world.broker->restore().FinishAttesting(kSession);
        break;
      case 2:
        (void)world.broker->Return(kSession, kDevice, std::array{chunk});
        break;
      default: {
        const lgpu::Bytes bytes = what % 8 == 3 ? kGranule * 2 : kGranule;
        const lgpu::LogicalId device = what % 8 == 4 ? lgpu::LogicalId{6} : kDevice;
        const bool attested =
            world.broker->restore()
                .Attest(kSession, device, {.id = chunk, .bytes = bytes}, world.Descriptor(which))
                .ok();
        LGPU_CHECK(!attested ||
                   (chunk.value >= 1 && chunk.value <= kChunks && bytes == kGranule && device == kDevice));
        break;
      }
    }
    LGPU_CHECK(world.broker->CheckInvariants().ok());
    LGPU_CHECK(world.broker->Held(kSession) <= all);
    LGPU_CHECK(world.broker->Held(kOther) == all);
  }
  // The other session's memory was never touched.
  for (std::size_t i = kChunks; i < world.memory.size(); ++i) {
    struct stat info = {};
    const auto fd = world.before->Export(world.memory[i]);
    LGPU_CHECK(fd.ok() && ::fstat((*fd)->get(), &info) == 0);
    LGPU_CHECK(info.st_size == static_cast<off_t>(kGranule.count()));
  }
  return 0;
}
