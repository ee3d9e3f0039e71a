#ifndef LGPU_TESTS_ALLOCATOR_BROKER_REQUESTS_FIXTURE_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_REQUESTS_FIXTURE_H_

#include <chrono>
#include <optional>

#include "allocator/broker/admission.h"
#include "allocator/broker/charge_table.h"
#include "allocator/broker/chunk_table.h"
#include "allocator/broker/giving_way.h"
#include "allocator/broker/guarantees.h"
#include "allocator/broker/kept_room.h"
#include "allocator/broker/pending_requests.h"
#include "allocator/broker/queue_scheduler.h"
#include "allocator/broker/refusal_builder.h"
#include "allocator/broker/request_clock.h"
#include "allocator/broker/trim_requests.h"
#include "tests/allocator/broker/tables_fixture.h"

namespace lgpu {

/// A RequestsFixture has all classes that decide about requests, over the tables of a TablesFixture. Chunks
/// are made without a backend.
class RequestsFixture : public TablesFixture {
 protected:
  struct Asked {
    WaiterId id;
    Waiter request = {};  // as long as it is not parked
    std::optional<Making> making = {};
    Broker::Answer answer = {};
  };

  Waiter Request(SessionId session, LogicalId device, Bytes bytes,
                 std::chrono::milliseconds timeout = std::chrono::hours(1)) const {
    Waiter waiter;
    waiter.spec = {.session = session,
                   .device = device,
                   .at_least = bytes,
                   .wanted = bytes,
                   .asked_at = now_,
                   .deadline = now_ + timeout};
    waiter.card = card_;
    waiter.user = tables_.devices.at(device).spec.owner;
    return waiter;
  }
  Asked Place(SessionId session, LogicalId device, Bytes bytes,
              std::chrono::milliseconds timeout = std::chrono::hours(1)) {
    Asked asked{.id = waiting_.NewWaiter(), .request = Request(session, device, bytes, timeout)};
    asked.making = requests_.Place(asked.id, asked.request, asked.answer);
    return asked;
  }
  /// Its answer after all that is due, or that it waits still.
  Asked Continue(WaiterId id) {
    clock_.Tick();
    Asked asked{.id = id};
    asked.making = requests_.Continue(id, asked.request, asked.answer);
    return asked;
  }
  /// Grants a chunk of a growing device.
  ChunkId Hold(SessionId session, LogicalId device, Bytes bytes) {
    EXPECT_EQ(tables_.ledger.Request(device, bytes).shortage, Ledger::Shortage::kNone);
    tables_.devices.at(device).booked += bytes;
    return chunks_.Register(device, session, {.bytes = bytes, .memory = {}});
  }
  void StartReturning(ChunkId chunk) {
    chunks_.GiveBack(tables_.chunks.at(chunk), ChunkEntry::State::kReturning);
  }
  void Confirm(ChunkId chunk) {
    ChunkTable::Missing missing;
    chunks_.Settle(chunk, absl::OkStatus(), missing);
  }

  ChunkTable chunks_{tables_};
  ChargeTable charges_{tables_};
  RefusalBuilder refusals_{tables_, waiting_};
  TrimRequests trims_{tables_};
  OverheadTable overheads_{tables_};
  PreemptibleLeases preemptible_{tables_, overheads_};
  Guarantees guarantees_{tables_, waiting_, preemptible_};
  KeptRoom kept_{tables_, waiting_, preemptible_};
  Admission admission_{tables_,     waiting_,     chunks_, charges_, trims_,
                       guarantees_, preemptible_, kept_,   refusals_};
  GivingWay giving_way_{tables_, waiting_, guarantees_, trims_, admission_, preemptible_};
  QueueScheduler scheduler_{tables_, waiting_, charges_, trims_, admission_, giving_way_};
  PendingRequests requests_{tables_, waiting_, charges_, admission_, scheduler_};
  RequestClock clock_{tables_, waiting_, admission_, scheduler_};
};

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_REQUESTS_FIXTURE_H_
