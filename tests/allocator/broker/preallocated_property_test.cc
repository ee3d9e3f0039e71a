// Random requests and returns of one preallocated device.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "allocator/broker/broker.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"

namespace lgpu {
namespace {

using testing::CountingBackend;
using Clock = std::chrono::steady_clock;

constexpr Bytes kUnit = 2_MiB;

// Preallocated memory of any size, in small and large chunks: a session of the
// lease can have all of it that no other session holds, in chunks of any size.
TEST(PreallocatedPropertyTest, PreallocatedMemoryIsThereDownToTheLastGranule) {
  constexpr std::uint32_t kSeeds = 10;
  constexpr int kSteps = 1000;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    std::mt19937_64 random(seed);
    CountingBackend backend({1_GiB}, kUnit);
    const std::unique_ptr<Broker> broker = MakeBroker(backend);
    const LeaseKey lease{1};
    for (std::uint64_t i = 1; i <= 3; ++i) {
      broker->AddSession(SessionId{i}, {.pid = 1});
      broker->AttachSession(SessionId{i}, lease);
    }
    const Bytes limit(1 + random() % (400_MiB).count());
    const LogicalId device = *broker->AddDevice({.card = broker->Cards().front().id,
                                                 .limit = limit,
                                                 .guarantee = {},
                                                 .preallocate = true,
                                                 .lease = lease,
                                                 .lease_name = "lease",
                                                 .owner = "kim"});
    const Bytes all = RoundUp(limit, kUnit);
    std::map<SessionId, std::vector<Chunk>> held;
    Bytes out;
    for (int step = 0; step < kSteps; ++step) {
      const SessionId session{1 + random() % 3};
      std::vector<Chunk>& mine = held[session];
      if (random() % 2 == 0) {
        const Bytes bytes = kUnit * (1 + random() % (random() % 2 == 0 ? 4 : 60));
        const Broker::Answer answer = broker->Grow({.session = session,
                                                    .device = device,
                                                    .at_least = bytes,
                                                    .wanted = bytes + kUnit * (random() % 8),
                                                    .asked_at = Clock::now(),
                                                    .deadline = Clock::now()});
        ASSERT_EQ(answer.status.ok(), out + bytes <= all) << "seed " << seed << ": " << answer.status;
        Bytes sum;
        for (const Chunk& chunk : answer.chunks) sum += chunk.bytes;
        ASSERT_TRUE(sum >= bytes || !answer.status.ok());
        out += sum;
        mine.insert(mine.end(), answer.chunks.begin(), answer.chunks.end());
      } else {
        std::shuffle(mine.begin(), mine.end(), random);
        std::vector<ChunkId> back;
        for (std::size_t count = std::min<std::size_t>(mine.size(), random() % 12); count > 0; --count) {
          back.push_back(mine.back().id);
          out -= mine.back().bytes;
          mine.pop_back();
        }
        ASSERT_TRUE(broker->Return(session, device, back).ok());
      }
      ASSERT_EQ(broker->Find(device)->held, all);
      ASSERT_EQ(backend.InUse(0), all);
      ASSERT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
    }
    for (std::uint64_t i = 1; i <= 3; ++i) broker->ReturnAll(SessionId{i});
    broker->RemoveDevice(device);
    EXPECT_EQ(backend.Handles(), 0u);
    EXPECT_TRUE(broker->Cards().front().view.held.is_zero());
  }
}

}  // namespace
}  // namespace lgpu
