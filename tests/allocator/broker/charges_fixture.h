#ifndef LGPU_TESTS_ALLOCATOR_BROKER_CHARGES_FIXTURE_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_CHARGES_FIXTURE_H_

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "allocator/broker/broker.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "tests/allocator/broker/recording_log.h"
#include "tests/support/broker_testing.h"

namespace lgpu {

/// The words of one program.
class Words final : public Allowances {
 public:
  std::atomic<std::uint64_t>& Free(std::size_t card) override { return free_.at(card); }
  std::atomic<std::uint64_t>& Keep(std::size_t card) override { return keep_.at(card); }
  Bytes free(std::size_t card = 0) const { return Bytes(free_.at(card)); }
  Bytes keep(std::size_t card = 0) const { return Bytes(keep_.at(card)); }

 private:
  std::array<std::atomic<std::uint64_t>, 4> free_{};
  std::array<std::atomic<std::uint64_t>, 4> keep_{};
};

/// A broker over two simulated cards with a clock of its own. A program has `overhead` of a card beside its
/// charges.
class BrokerChargesTest : public ::testing::Test {
 protected:
  explicit BrokerChargesTest(Bytes card = 4_GiB, Bytes overhead = {}) {
    SimulatedBackendOptions simulated;
    simulated.devices = {SimulatedDevice(0, card, "charges_test"), SimulatedDevice(1, card, "charges_test")};
    simulated.sparse = true;
    backend_ = MakeSimulatedBackend(std::move(simulated));
    Broker::Options options = AllCardsOf(*backend_);
    options.clock = [this] { return now_; };
    for (BrokerCard& card_options : options.cards) card_options.overhead_allowance = overhead;
    broker_ = *Broker::Create(*backend_, log_, options);
  }
  ~BrokerChargesTest() override { Check(); }

  void Check() const {
    const absl::Status status = broker_->CheckInvariants();
    EXPECT_TRUE(status.ok()) << status;
  }
  std::string Uuid(int card) const { return backend_->devices()[static_cast<std::size_t>(card)].uuid; }
  CardId Card(int card) const { return broker_->Cards()[static_cast<std::size_t>(card)].id; }
  Bytes CardFree(int card = 0) const { return broker_->Cards()[static_cast<std::size_t>(card)].view.free(); }
  LogicalId Device(Bytes limit, LeaseKey lease = LeaseKey{1}, int card = 0, bool preallocate = false) {
    const auto id = broker_->AddDevice({.card = Card(card),
                                        .limit = limit,
                                        .preallocate = preallocate,
                                        .lease = lease,
                                        .device_name = "/device:GPU:0",
                                        .lease_name = "lease-" + std::to_string(lease.value),
                                        .owner = "user-" + std::to_string(lease.value)});
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(LogicalId());
  }
  SessionId Session(std::uint64_t id, LeaseKey lease = LeaseKey{1}) {
    const SessionId session{id};
    broker_->AddSession(session, {.pid = static_cast<std::int64_t>(1000 + id), .waker = wakers_[id]});
    broker_->AttachSession(session, lease);
    words_[id] = std::make_shared<Words>();
    broker_->ShareAllowances(session, words_[id]);
    return session;
  }
  /// One that waits longer while leases give way for it.
  SessionId Program(std::uint64_t id, LeaseKey lease) {
    const SessionId session{id};
    broker_->AddSession(
        session, {.pid = static_cast<std::int64_t>(1000 + id), .waker = wakers_[id], .waits_longer = true});
    broker_->AttachSession(session, lease);
    words_[id] = std::make_shared<Words>();
    broker_->ShareAllowances(session, words_[id]);
    return session;
  }
  Broker::Answer Charge(SessionId session, Bytes bytes, std::chrono::milliseconds timeout = {},
                        int card = 0) {
    Broker::Answer answer = broker_->ChargeCard({.session = session,
                                                 .card_uuid = Uuid(card),
                                                 .bytes = bytes,
                                                 .what = "cuMemAlloc_v2",
                                                 .asked_at = now_,
                                                 .deadline = now_ + timeout});
    Check();
    return answer;
  }
  bool Charges(SessionId session, Bytes bytes, int card = 0) {
    const Broker::Answer answer = Charge(session, bytes, {}, card);
    return answer.status.ok() && !answer.wait;
  }
  absl::Status Refused(Broker::Answer answer) {
    EXPECT_FALSE(answer.wait.has_value());
    EXPECT_FALSE(answer.status.ok());
    return answer.status;
  }
  void Uncharge(SessionId session, Bytes bytes, int card = 0) {
    const absl::Status status = broker_->Uncharge(session, Uuid(card), bytes);
    EXPECT_TRUE(status.ok()) << status;
    Check();
  }
  Bytes Held(LogicalId device) const { return broker_->Find(device)->held; }
  Broker::Answer Grow(SessionId session, LogicalId device, Bytes bytes,
                      std::chrono::milliseconds timeout = {}) {
    return broker_->Grow({.session = session,
                          .device = device,
                          .at_least = bytes,
                          .wanted = bytes,
                          .asked_at = now_,
                          .deadline = now_ + timeout});
  }

  std::chrono::steady_clock::time_point now_ =
      std::chrono::steady_clock::time_point() + std::chrono::hours(1);
  RecordingLog log_;
  std::unique_ptr<DeviceMemory> backend_;
  std::unique_ptr<Broker> broker_;
  std::map<std::uint64_t, std::shared_ptr<FlagWaker>> wakers_;
  std::map<std::uint64_t, std::shared_ptr<Words>> words_;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_CHARGES_FIXTURE_H_
