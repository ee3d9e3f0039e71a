// The journal's record of a lease while the lease is resized.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "allocator/broker/broker.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/journal.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/session_state.h"
#include "tests/daemon/temporary_directory.h"
#include "tests/support/broker_testing.h"
#include "tests/support/failing_backend.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kBoot[] = "01234567-89ab-cdef-0123-456789abcdef";

// The state that the next daemon would read; this daemon still writes the file itself.
JournalState Read(const TemporaryDirectory& directory) {
  const TemporaryDirectory copy;
  std::filesystem::copy(directory.path(), copy.path());
  return Journal::Open(copy.path(), kBoot)->state;
}

v1::JournalLease Find(const JournalState& state, const std::string& name) {
  for (const auto& [key, lease] : state.leases()) {
    if (lease.name() == name) return lease;
  }
  ADD_FAILURE() << "no lease " << name;
  return {};
}

// The daemon dies when another lease has the freed memory: the next daemon must not promise it again.
TEST(LeaseResizeTest, FreedMemoryIsNotedBeforeItIsGrantedAgain) {
  const TemporaryDirectory directory;
  std::function<void()> meanwhile;
  FailingBackend backend(
      MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_MiB, "resize")}, .sparse = true}),
      {.before_create = [&meanwhile] {
        if (const auto call = std::exchange(meanwhile, nullptr)) call();
      }});
  const std::unique_ptr<Journal> journal = std::move(Journal::Open(directory.path(), kBoot)->journal);
  const std::unique_ptr<Broker> broker = *Broker::Create(backend, *journal, AllCardsOf(backend));
  SessionDirectory sessions(16);
  EventLog events{64};
  Config config;
  config.state_dir = directory.path();
  LeaseTable leases(config,
                    {.broker = *broker, .sessions = sessions, .events = events, .journal = journal.get()});

  const Caller root{.uid = 0, .session = nullptr};
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  v1::CreateLeaseRequest request;
  request.set_lasting(true);
  request.set_name("two");
  for (const Bytes limit : {40_MiB, 8_MiB}) {
    request.add_devices()->set_memory_limit_bytes(limit.count());
    request.mutable_devices(request.devices_size() - 1)->set_mode(v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  }
  ASSERT_TRUE(leases.Create(root, request, deadline).ok());
  request.set_name("other");
  request.mutable_devices()->RemoveLast();
  request.mutable_devices(0)->set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  const absl::StatusOr<v1::Lease> other = leases.Create(root, request, deadline);
  ASSERT_TRUE(other.ok()) << other.status();
  const LeaseKey key{Find(Read(directory), "other").key()};
  broker->AddSession(SessionId{1}, {.pid = 1});
  broker->AttachSession(SessionId{1}, key);
  v1::JournalRecord session;
  session.mutable_session()->set_id(1);
  session.mutable_session()->set_lease_key(key.value);
  journal->Note(session);

  // The first device is smaller by now, and chunks are made for the second one.
  Broker::GrowAnswer granted;
  std::optional<JournalState> seen;
  meanwhile = [&] {
    granted = broker->Grow({.session = SessionId{1},
                            .device = LogicalId{other->devices(0).id()},
                            .at_least = 24_MiB,
                            .wanted = 24_MiB,
                            .asked_at = Clock::now(),
                            .deadline = Clock::now()});
    seen = Read(directory);
  };
  v1::ResizeLeaseRequest resize;
  resize.set_lease("two");
  for (std::uint32_t i = 0; i < 2; ++i) {
    v1::ResizeLeaseRequest::Device& device = *resize.add_devices();
    device.set_index(i);
    device.set_memory_limit_bytes((i == 0 ? 8_MiB : 16_MiB).count());
  }
  const absl::StatusOr<v1::Lease> resized = leases.Resize(root, resize, deadline);
  EXPECT_TRUE(resized.ok()) << resized.status();
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  ASSERT_TRUE(seen.has_value());
  EXPECT_FALSE(seen->chunks().empty());
  const v1::JournalLease noted = Find(*seen, "two");
  EXPECT_EQ(Bytes(noted.devices(0).limit_bytes()), 8_MiB);
  EXPECT_EQ(Bytes(noted.devices(1).limit_bytes()), 8_MiB);  // a raised limit is noted when it is in force
  broker->ReturnAll(SessionId{1});
}

}  // namespace
}  // namespace lgpu::daemon
