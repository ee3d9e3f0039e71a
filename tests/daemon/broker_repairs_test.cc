// What the random sequences of broker_property_test found once, as small cases.
#include <gtest/gtest.h>

#include "daemon/broker.h"
#include "tests/support/counting_backend.h"

namespace lgpu::daemon {
namespace {

using testing::CountingBackend;
using Clock = std::chrono::steady_clock;

std::unique_ptr<Broker> MakeBroker(CountingBackend& backend) {
  return *Broker::Create(backend, {{.index = 0, .backend_device = 0, .device = backend.devices()[0]}},
                         Bytes());
}

LogicalId AddDevice(Broker& broker, std::uint64_t lease, Bytes limit, bool preallocate) {
  return *broker.AddDevice({.card = broker.Cards().front().id,
                            .limit = limit,
                            .guarantee = {},
                            .preallocate = preallocate,
                            .index = 0,
                            .lease = LeaseKey{lease},
                            .lease_name = "lease",
                            .owner = "owner"},
                           Clock::now());
}

TEST(BrokerRepairsTest, AGrantThatWasNotFetchedYetHidesNoPinnedMemory) {
  CountingBackend backend({8_MiB}, 2_MiB);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  std::vector<LogicalId> devices;
  for (std::uint64_t i = 1; i <= 2; ++i) {
    broker->AddSession(SessionId{i}, 1, nullptr);
    broker->AttachSession(SessionId{i}, LeaseKey{i});
    devices.push_back(AddDevice(*broker, i, 8_MiB, false));
  }
  const auto grow = [&](std::uint64_t session, Bytes bytes, Clock::time_point deadline) {
    return broker->Grow({.session = SessionId{session},
                         .device = devices[session - 1],
                         .at_least = bytes,
                         .wanted = bytes,
                         .asked_at = Clock::now(),
                         .deadline = deadline});
  };
  const Broker::GrowAnswer first = grow(1, 4_MiB, Clock::now());
  ASSERT_TRUE(first.status.ok() && grow(1, 4_MiB, Clock::now()).status.ok());
  ASSERT_TRUE(grow(2, 2_MiB, Clock::now() + std::chrono::hours(1)).wait.has_value());
  backend.SetReclaiming(0, CountingBackend::Reclaiming::kPinned);
  ASSERT_TRUE(broker->Return(SessionId{1}, devices[0], std::vector<ChunkId>{first.chunks[0].id}).ok());
  backend.SetReclaiming(0,
                        CountingBackend::Reclaiming::kAtOnce);  // the first is back, and given to the waiter
  backend.SetReclaiming(0, CountingBackend::Reclaiming::kPinned);
  ASSERT_TRUE(broker->Return(SessionId{1}, devices[0], std::vector<ChunkId>{first.chunks[1].id}).ok());
  EXPECT_FALSE(broker->RetryUnconfirmed());
  EXPECT_EQ(broker->Find(devices[0])->leaving, 2_MiB);
}

TEST(BrokerRepairsTest, AFailedResizeGoesBackToALimitOfNoWholeGranule) {
  CountingBackend backend({64_MiB}, 2_MiB);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device = AddDevice(*broker, 1, 5_MiB, true);
  backend.FailCreateAfter(0);
  EXPECT_FALSE(broker->ResizeDevice(device, 9_MiB, Bytes(), Clock::now()).ok());
  EXPECT_EQ(broker->Find(device)->limit, 5_MiB);
  EXPECT_EQ(broker->Find(device)->guarantee, 6_MiB);
}

}  // namespace
}  // namespace lgpu::daemon
