#ifndef LGPU_TESTS_ALLOCATOR_BROKER_TABLES_FIXTURE_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_TABLES_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/waiting_requests.h"
#include "lgpu/bytes.h"
#include "tests/allocator/broker/recording_log.h"

namespace lgpu {

/// A TablesFixture has the tables of a broker with one card of 256 MiB, and a session of pid 100 of the only
/// lease. The clock stands still until a test moves it.
class TablesFixture : public ::testing::Test {
 protected:
  TablesFixture() {
    EXPECT_TRUE(tables_.AddCards(options_).ok());
    card_ = tables_.cards.begin()->first;
    waiting_.AddQueues();
    AddSession(kSession, 100);
  }

  void AddSession(SessionId id, std::int64_t pid) {
    tables_.sessions[id].pid = pid;
    tables_.sessions[id].lease = kLease;
  }
  LogicalId AddDevice(Bytes limit, bool preallocate = false) {
    const Bytes guarantee = preallocate ? limit : Bytes();
    const LogicalId device = *tables_.ledger.AddLogical(card_, {.limit = limit, .guarantee = guarantee});
    tables_.devices[device].spec = {
        .card = card_, .limit = limit, .preallocate = preallocate, .lease = kLease};
    return device;
  }
  Ledger::CardView View() const { return tables_.ledger.View(card_); }
  void ExpectInStep() const {
    EXPECT_EQ(tables_.CheckInvariants(), absl::OkStatus());
    EXPECT_EQ(waiting_.CheckInvariants(), absl::OkStatus());
  }

  static constexpr SessionId kSession{1};
  static constexpr LeaseKey kLease{1};
  Broker::TimePoint now_ = Broker::TimePoint() + std::chrono::hours(1);
  RecordingLog log_;

 private:
  Broker::Options OneCard() const {
    PhysicalDevice device;
    device.total = 256_MiB;
    device.granularity = 2_MiB;
    return {.cards = {{.device = device, .overhead_allowance = 16_MiB, .watched_overhead = 16_MiB}},
            .clock = [this] { return now_; }};
  }
  const Broker::Options options_ = OneCard();

 protected:
  BrokerTables tables_{log_, options_};
  WaitingRequests waiting_{tables_, options_.max_drain, options_.give_way_wait, options_.min_run};
  CardId card_;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_TABLES_FIXTURE_H_
