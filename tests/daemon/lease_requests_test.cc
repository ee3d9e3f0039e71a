// Repeated and interrupted requests for leases: each request makes one lease, and ends no other one's.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "daemon/leases/lease.h"
#include "daemon/leases/lease_table.h"
#include "daemon/leases/waiting_lease.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/session_state.h"
#include "tests/daemon/temporary_directory.h"
#include "tests/support/broker_testing.h"
#include "tests/support/failing_backend.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

class LeaseRequestsTest : public ::testing::Test {
 protected:
  static v1::CreateLeaseRequest Request(const std::string& id) {
    v1::CreateLeaseRequest request;
    request.set_lasting(true);
    request.set_request_id(id);
    v1::LogicalDeviceSpec& device = *request.add_devices();
    device.set_memory_limit_bytes((8_MiB).count());
    device.set_mode(v1::LogicalDeviceSpec::MODE_PREALLOCATE);
    return request;
  }
  WaitingLease Wait(const v1::CreateLeaseRequest& request) {
    return WaitingLease(leases_, *broker_, caller_, request, Soon(), nullptr);
  }
  static v1::Lease Made(WaitingLease& waiting) {
    const std::optional<absl::StatusOr<v1::Lease>> lease = waiting.Try();
    EXPECT_TRUE(lease && lease->ok());
    return lease && lease->ok() ? **lease : v1::Lease();
  }
  bool IsThere(const v1::Lease& lease) const { return leases_.Get(caller_, lease.id()).ok(); }
  static Clock::time_point Soon() { return Clock::now() + std::chrono::seconds(10); }

  const Caller caller_{.uid = 61301, .session = nullptr};
  std::function<void()> while_made_;
  FailingBackend backend_{
      MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_MiB, "requests")}, .sparse = true}),
      {.before_create = [this] {
        if (const auto call = std::exchange(while_made_, nullptr)) call();
      }}};
  NoGrantLog log_;
  const TickedBroker broker_{backend_, log_};
  SessionDirectory sessions_{16};
  EventLog events_{64};
  const Config config_{};
  LeaseTable leases_{config_, {.broker = *broker_, .sessions = sessions_, .events = events_}};
};

TEST_F(LeaseRequestsTest, AnInterruptedRequestTakesItsLeaseBack) {
  WaitingLease waiting = Wait(Request("r"));
  const v1::Lease lease = Made(waiting);
  waiting.TakeBack(lease);
  EXPECT_FALSE(IsThere(lease));
}

TEST_F(LeaseRequestsTest, AnInterruptedRepetitionLeavesTheFirstLease) {
  const absl::StatusOr<v1::Lease> first = leases_.Create(caller_, Request("r"), Soon());
  ASSERT_TRUE(first.ok()) << first.status();
  WaitingLease again = Wait(Request("r"));
  const v1::Lease repeated = Made(again);
  EXPECT_EQ(repeated.id(), first->id());
  again.TakeBack(repeated);
  EXPECT_TRUE(IsThere(*first));
}

TEST_F(LeaseRequestsTest, ALeaseThatARepetitionWasGivenIsNotTakenBack) {
  WaitingLease interrupted = Wait(Request("r"));
  const v1::Lease first = Made(interrupted);
  const absl::StatusOr<v1::Lease> repeated = leases_.Create(caller_, Request("r"), Soon());
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  interrupted.TakeBack(first);
  EXPECT_TRUE(IsThere(*repeated));
}

TEST_F(LeaseRequestsTest, ALeaseThatIsBeingMadeIsRemovedWhenItIsThere) {
  absl::StatusOr<std::string> removed = absl::UnknownError("not called");
  std::thread remove;
  while_made_ = [&] {
    EXPECT_EQ(leases_.RemoveRequested(caller_, "r", Clock::now()).status().code(),
              absl::StatusCode::kUnavailable)
        << "without patience it says that it is not there yet";
    remove = std::thread([&] { removed = leases_.RemoveRequested(caller_, "r", Soon()); });
  };
  const absl::StatusOr<v1::Lease> made = leases_.Create(caller_, Request("r"), Soon());
  remove.join();
  ASSERT_TRUE(removed.ok()) << removed.status();
  if (made.ok()) {
    EXPECT_EQ(made->id(), *removed);
    EXPECT_FALSE(IsThere(*made));
  }
  EXPECT_EQ(leases_.RemoveRequested(caller_, "r", Soon()).status().code(), absl::StatusCode::kNotFound);
}

TEST(PlanDevicesTest, CardsWithTheSameRoomAreTakenInTheOrderOfTheRequest) {
  SimulatedBackendOptions four{.devices = {}, .sparse = true};
  for (int i = 0; i < 4; ++i) four.devices.push_back(SimulatedDevice(i, i == 2 ? 96_MiB : 64_MiB, "order"));
  const std::unique_ptr<DeviceBackend> backend = MakeSimulatedBackend(std::move(four));
  const std::unique_ptr<Broker> broker = MakeBroker(*backend);
  const std::vector<Broker::CardInfo> cards = broker->Cards();
  const auto indices_of = [&cards](const std::vector<int>& candidates, int devices) {
    v1::CreateLeaseRequest request;
    for (int i = 0; i < devices; ++i) {
      v1::LogicalDeviceSpec& device = *request.add_devices();
      device.set_memory_limit_bytes((8_MiB).count());
      for (const int index : candidates) {
        device.add_candidate_uuids(cards[static_cast<std::size_t>(index)].card.device.uuid);
      }
    }
    std::vector<int> indices;
    const absl::StatusOr<std::vector<PlannedDevice>> plan = PlanDevices(request, cards);
    EXPECT_EQ(plan.status(), absl::OkStatus());
    if (plan.ok()) {
      for (const PlannedDevice& device : *plan) indices.push_back(device.card.index);
    }
    return indices;
  };
  EXPECT_EQ(indices_of({3, 1}, 2), (std::vector<int>{3, 1}));
  EXPECT_EQ(indices_of({1, 3}, 2), (std::vector<int>{1, 3}));
  EXPECT_EQ(indices_of({3, 1, 2}, 1), std::vector<int>{2}) << "a card with more room comes first";
  EXPECT_EQ(indices_of({}, 1), std::vector<int>{2});
}

}  // namespace
}  // namespace lgpu::daemon
