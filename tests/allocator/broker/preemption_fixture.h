#ifndef LGPU_TESTS_ALLOCATOR_BROKER_PREEMPTION_FIXTURE_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_PREEMPTION_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/broker/lease_suspensions.h"
#include "allocator/broker/reservations.h"
#include "allocator/broker/session_releases.h"
#include "tests/allocator/broker/charges_fixture.h"

namespace lgpu {

inline constexpr LeaseKey kAnn{1};
inline constexpr LeaseKey kBob{2};
inline constexpr LeaseKey kCyd{3};

/// Leases that give way, on cards of 1 GiB; the test moves their programs.
class PreemptionFixture : public BrokerChargesTest {
 protected:
  PreemptionFixture() : BrokerChargesTest(1_GiB) {}

  LogicalId Add(LeaseKey lease, Broker::Preemptible preemptible = Broker::Preemptible::kIdle) {
    const auto id = broker_->AddDevice({.card = Card(0),
                                        .limit = 1_GiB,
                                        .lease = lease,
                                        .device_name = "/device:GPU:0",
                                        .lease_name = "lease-" + std::to_string(lease.value),
                                        .owner = "user-" + std::to_string(lease.value),
                                        .preemptible = preemptible});
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }
  void Charged(SessionId session, Bytes bytes) { ASSERT_TRUE(Charges(session, bytes)); }
  void UsedBefore(LogicalId device, Broker::TimePoint::duration time) {
    broker_->NoteLastUses({{.device = device, .at = now_ - time}});
  }
  std::vector<ReleaseOrder> TakeOrders() { return broker_->releases().TakeOrders(SessionId()); }
  void Answer(const ReleaseOrder& order, ReleaseOutcome outcome) {
    EXPECT_EQ(broker_->releases().Answer(SessionId(), order.id, outcome), absl::OkStatus());
    Check();
  }
  /// As lgpud does.
  void Suspend(const ReleaseOrder& order) {
    ASSERT_EQ(broker_->suspensions().Begin(order.lease), absl::OkStatus());
    broker_->suspensions().Park(order.lease, /*keeps_room=*/true);
    Answer(order, ReleaseOutcome::kDone);
  }
  bool IsServed(const Broker::Answer& waiting) {
    const std::optional<Broker::Answer> answer = broker_->TakeAnswer(*waiting.wait);
    return answer && answer->status.ok();
  }
  void Pass(Broker::TimePoint::duration time) {
    now_ += time;
    broker_->Tick();
    Check();
  }
};

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_PREEMPTION_FIXTURE_H_
