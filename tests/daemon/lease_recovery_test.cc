#include "daemon/recovery/lease_recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/broker/lease_suspensions.h"
#include "daemon/recovery/recovery.h"
#include "tests/daemon/daemon_parts.h"
#include "tests/daemon/temporary_directory.h"
#include "tests/support/child_program.h"

namespace lgpu::daemon {
namespace {

using ::testing::Contains;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kUid = 61301;
constexpr char kNoCard[] = "GPU-that-is-gone";
const Caller kUser{.uid = kUid, .session = nullptr};

/// The records of an earlier lgpud, one by one, and the lgpud that reads them. Each lease has one device, of
/// ten times its number; each session is of the child, which lives.
class LeaseRecoveryTest : public ::testing::Test {
 protected:
  LeaseRecoveryTest() { earlier_->opened().journal->Settled(); }

  v1::JournalLease Lease(std::uint64_t key, const std::string& name, Bytes limit, Bytes guarantee = {}) {
    v1::JournalLease lease;
    lease.set_key(key);
    lease.set_id(absl::StrCat("l-", key));
    lease.set_name(name);
    lease.set_owner_uid(kUid);
    v1::JournalDevice& device = *lease.add_devices();
    device.set_id(10 * key);
    device.set_card_uuid(earlier_->broker().Cards()[0].card.device.uuid);
    device.set_limit_bytes(limit.count());
    device.set_guarantee_bytes(guarantee.count());
    return lease;
  }
  static v1::JournalLease Lasting(v1::JournalLease lease) {
    lease.set_lasting(true);
    return lease;
  }
  static v1::JournalLease Waiting(v1::JournalLease lease) {
    lease.set_waiting(true);
    return lease;
  }
  static v1::JournalLease Removed(v1::JournalLease lease) {
    lease.set_removed(true);
    return lease;
  }
  static v1::JournalLease OnNoCard(v1::JournalLease lease) {
    lease.mutable_devices(0)->set_card_uuid(kNoCard);
    return lease;
  }
  void Note(const v1::JournalLease& lease) {
    v1::JournalRecord record;
    *record.mutable_lease() = lease;
    earlier_->opened().journal->Note(record);
  }
  v1::JournalSession SessionRecord(std::uint64_t id, std::uint64_t lease) {
    const Process process = child_.Hold();
    v1::JournalSession session;
    session.set_id(id);
    session.set_lease_key(lease);
    session.set_token(absl::StrCat("token ", id));
    session.set_uid(kUid);
    session.set_pid(process.pid);
    session.set_start_time(process.start_time);
    return session;
  }
  void NoteSession(std::uint64_t id, std::uint64_t lease) {
    v1::JournalRecord record;
    *record.mutable_session() = SessionRecord(id, lease);
    earlier_->opened().journal->Note(record);
  }
  /// Its process is to map one of these files as long as its Context lives.
  void NoteSessionWithPage(std::uint64_t id, std::uint64_t lease, std::uint64_t page) {
    v1::JournalRecord record;
    *record.mutable_session() = SessionRecord(id, lease);
    record.mutable_session()->add_page_inodes(page);
    earlier_->opened().journal->Note(record);
  }
  void NoteCharged(std::uint64_t session, std::uint64_t lease, Bytes bytes) {
    earlier_->opened().journal->NoteCharged(
        {.session = SessionId{session}, .device = LogicalId{10 * lease}, .bytes = bytes});
  }
  void NoteGranted(std::uint64_t chunk, std::uint64_t session, std::uint64_t lease, Bytes bytes) {
    earlier_->opened().journal->NoteGranted({.chunk = ChunkId{chunk},
                                             .session = SessionId{session},
                                             .device = LogicalId{10 * lease},
                                             .bytes = bytes,
                                             .identity = 0});
  }
  void EndEarlier() {
    if (!earlier_) return;
    EXPECT_EQ(earlier_->opened().journal->Commit(), absl::OkStatus());
    earlier_.reset();
  }
  void DamageJournal() {
    EndEarlier();
    std::ofstream(directory_.path() + "/journal", std::ios::app) << "this is no record at all";
  }
  /// `wanted`: names of kUid's leases in the configuration.
  void StartNext(const std::vector<std::string>& wanted = {}) {
    EndEarlier();
    recovery_.reset();
    reclaimer_.reset();
    next_.emplace(directory_.path());
    reclaimer_ = *Reclaimer::Start(next_->broker(), next_->leases(), next_->sessions(),
                                   {.waker = *PollWaker::Create(), .grace = {}});
    const RecoveryParts parts{.backend = next_->backend(),
                              .broker = next_->broker(),
                              .leases = next_->leases(),
                              .sessions = next_->sessions(),
                              .reclaimer = *reclaimer_,
                              .events = next_->events(),
                              .journal = *next_->opened().journal};
    LeaseRecovery::Names names;
    for (const std::string& name : wanted) names.emplace(kUid, name);
    recovery_.emplace(parts);
    const absl::StatusOr<LeaseStore::Found> lasting = LeaseStore(directory_.path()).Read();
    ASSERT_EQ(lasting.status(), absl::OkStatus());
    ASSERT_EQ(recovery_->Run(next_->opened(), *lasting, names), absl::OkStatus());
    EXPECT_EQ(next_->broker().CheckInvariants(), absl::OkStatus());
  }

  std::vector<std::string> Events() {
    std::vector<std::string> texts;
    for (const v1::Event& event : next_->events().Read(0, 0, 100).events) texts.push_back(event.text());
    return texts;
  }
  std::vector<std::string> NamesOfLeases() {
    std::vector<std::string> names;
    for (const v1::Lease& lease : next_->leases().List(kUser)) names.push_back(lease.name());
    return names;
  }
  std::vector<v1::JournalLease> InFile() { return LeaseStore(directory_.path()).Read()->leases; }
  bool HasNothing() {
    return next_->sessions().size() == 0 && next_->leases().size() == 0 &&
           next_->FreeOfCard() == DaemonParts::kCard;
  }
  /// While the recovery looks after what is absent still.
  bool HasNothingInTheEnd() {
    return Eventually([&] {
      recovery_->Tend();
      return HasNothing();
    });
  }
  Bytes Held(std::uint64_t session) { return next_->broker().Held(SessionId{session}); }
  Bytes GuaranteeOf(std::uint64_t lease) { return next_->broker().Find(LogicalId{10 * lease})->guarantee; }

  const TemporaryDirectory directory_;
  IdleChild child_;
  std::optional<DaemonParts> earlier_{std::in_place, directory_.path()};
  std::optional<DaemonParts> next_;
  std::unique_ptr<Reclaimer> reclaimer_;  // before the parts that it works on
  std::optional<Recovery> recovery_;
};

TEST_F(LeaseRecoveryTest, ALastingLeaseOfACardThatIsGoneWaitsInTheFileOverTwoStarts) {
  Note(OnNoCard(Lasting(Lease(1, "train", 32_MiB))));
  for (int start = 0; start < 2; ++start) {
    SCOPED_TRACE(start);
    ASSERT_NO_FATAL_FAILURE(StartNext());
    EXPECT_THAT(NamesOfLeases(), IsEmpty());
    ASSERT_THAT(InFile(), SizeIs(1));
    EXPECT_EQ(InFile()[0].id(), "l-1");
    EXPECT_TRUE(InFile()[0].waiting());
    EXPECT_THAT(Events(),
                Contains(HasSubstr("lease train waits for a later start of lgpud: it cannot be restored "
                                   "now: GPU GPU-that-is-gone is not served here now; `lgpu rm l-1`")));
    next_->opened().journal->Commit().IgnoreError();
  }
}

TEST_F(LeaseRecoveryTest, ProgramsOfALeaseThatWaitsAreKnownWhenTheyComeBack) {
  Note(OnNoCard(Lease(1, "train", 32_MiB)));
  NoteSession(1, 1);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(next_->sessions().Find(SessionId{1}), nullptr);
  const std::optional<SessionDirectory::Waiting> waiting = next_->sessions().FindWaiting("token 1");
  ASSERT_TRUE(waiting);
  EXPECT_EQ(waiting->lease_id, "l-1");
  EXPECT_THAT(Events(), Contains(HasSubstr("lease train waits for a later start")));
}

TEST_F(LeaseRecoveryTest, AWaitingLeaseOfLivingProgramsGetsItsIdAsNameWhereItsNameIsTaken) {
  Note(Lasting(Lease(1, "train", 16_MiB)));
  Note(Waiting(Lease(2, "train", 16_MiB)));
  NoteSession(1, 2);
  NoteCharged(1, 2, 8_MiB);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_THAT(NamesOfLeases(), ::testing::UnorderedElementsAre("train", "l-2"));
  EXPECT_EQ(Held(1), 8_MiB);
  EXPECT_THAT(Events(), Contains(HasSubstr("lease train is called l-2 now: another lease has its name")));
}

TEST_F(LeaseRecoveryTest, AWaitingLeaseOfLivingProgramsLosesAGuaranteeThatOthersHave) {
  Note(Lasting(Lease(1, "served", 40_MiB, 40_MiB)));
  Note(Waiting(Lease(2, "train", 32_MiB, 32_MiB)));
  NoteSession(1, 2);
  NoteCharged(1, 2, 8_MiB);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(GuaranteeOf(1), 40_MiB);
  EXPECT_EQ(GuaranteeOf(2), Bytes());
  EXPECT_EQ(Held(1), 8_MiB) << "its programs keep what they hold";
  EXPECT_THAT(Events(), Contains(HasSubstr("lease train keeps the memory that its programs hold, and has no "
                                           "guarantee any more")));
}

TEST_F(LeaseRecoveryTest, MemoryThatOthersHoldBeyondTheirGuaranteesCountsAgainstAWaitingLease) {
  Note(Lease(1, "charged", 48_MiB, 8_MiB));
  NoteSession(1, 1);
  NoteCharged(1, 1, 24_MiB);
  Note(Lease(2, "grown", 48_MiB));
  NoteSession(2, 2);
  NoteGranted(1, 2, 2, 16_MiB);
  Note(Waiting(Lease(3, "fits not", 32_MiB, 32_MiB)));
  NoteSession(3, 3);
  Note(Waiting(Lease(4, "fits", 32_MiB, 16_MiB)));
  NoteSession(4, 4);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(GuaranteeOf(3), Bytes()) << "of 64 MiB, 8 are promised and 32 more are held";
  EXPECT_EQ(GuaranteeOf(4), 16_MiB);
}

TEST_F(LeaseRecoveryTest, AWaitingLeaseOfLivingProgramsWaitsOnWhileItsCardIsGone) {
  Note(OnNoCard(Waiting(Lease(1, "train", 32_MiB))));
  NoteSession(1, 1);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_THAT(NamesOfLeases(), IsEmpty());
  EXPECT_TRUE(next_->sessions().FindWaiting("token 1"));
}

TEST_F(LeaseRecoveryTest, ARemovedLeaseEndsWithItsLastProgram) {
  Note(Removed(Lasting(Lease(1, "train", 32_MiB))));
  NoteSession(1, 1);
  NoteCharged(1, 1, 8_MiB);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(Held(1), 8_MiB);
  ASSERT_NE(next_->sessions().Find(SessionId{1}), nullptr);
  EXPECT_FALSE(next_->sessions().Find(SessionId{1})->end_request().ok());
  EXPECT_THAT(InFile(), IsEmpty());
  child_.Kill();
  EXPECT_TRUE(Eventually([&] { return HasNothing(); }));
}

TEST_F(LeaseRecoveryTest, ARemovedLeaseThatTheConfigurationHasStays) {
  Note(Removed(Lasting(Lease(1, "train", 32_MiB))));
  NoteSession(1, 1);
  ASSERT_NO_FATAL_FAILURE(StartNext({"train"}));
  EXPECT_THAT(NamesOfLeases(), ::testing::ElementsAre("train"));
  EXPECT_TRUE(next_->sessions().Find(SessionId{1})->end_request().ok());
  EXPECT_THAT(InFile(), SizeIs(1));
}

TEST_F(LeaseRecoveryTest, ARemovedLeaseIsNotTakenBackWhereTheFileHasAnotherOfItsName) {
  Note(Removed(Lasting(Lease(1, "train", 16_MiB))));
  NoteSession(1, 1);
  v1::JournalLease newer = Lasting(Lease(2, "train", 16_MiB));
  ASSERT_EQ(LeaseStore(directory_.path()).Write({newer}), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(StartNext({"train"}));
  EXPECT_FALSE(next_->sessions().Find(SessionId{1})->end_request().ok());
  ASSERT_THAT(InFile(), SizeIs(1));
  EXPECT_EQ(InFile()[0].id(), "l-2");
  EXPECT_EQ(next_->leases().Get(kUser, "train")->id(), "l-2");
}

TEST_F(LeaseRecoveryTest, ARemovedLeaseThatCannotBeRestoredIsTold) {
  Note(OnNoCard(Removed(Lease(1, "train", 32_MiB))));
  NoteSession(1, 1);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(next_->leases().size(), 0u);
  EXPECT_FALSE(next_->sessions().FindWaiting("token 1")) << "no later lgpud will serve it";
  EXPECT_THAT(Events(), Contains(HasSubstr("lease train cannot be restored now: GPU GPU-that-is-gone")));
}

TEST_F(LeaseRecoveryTest, ALeaseOfTwoCardsIsRestoredWholeOrNotAtAll) {
  v1::JournalLease lease = Lasting(Lease(1, "train", 32_MiB, 32_MiB));
  *lease.add_devices() = lease.devices(0);
  lease.mutable_devices(1)->set_id(11);
  lease.mutable_devices(1)->set_card_uuid(kNoCard);
  Note(lease);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_THAT(NamesOfLeases(), IsEmpty());
  EXPECT_EQ(next_->FreeOfCard(), DaemonParts::kCard) << "the device on the served card is gone again";
}

TEST_F(LeaseRecoveryTest, ALastingLeaseThatADamagedJournalAloneHasIsForgotten) {
  Note(Lasting(Lease(1, "removed", 16_MiB)));  // its removal may be what the journal lacks
  Note(Lasting(Lease(2, "used", 16_MiB)));
  NoteSession(1, 2);
  const v1::JournalLease kept = Lasting(Lease(3, "kept", 16_MiB));
  Note(kept);
  ASSERT_EQ(LeaseStore(directory_.path()).Write({kept}), absl::OkStatus());
  DamageJournal();
  ASSERT_NO_FATAL_FAILURE(StartNext());
  ASSERT_EQ(next_->opened().found, Journal::Found::kDamaged);
  EXPECT_THAT(NamesOfLeases(), ::testing::UnorderedElementsAre("used", "kept"));
  EXPECT_FALSE(next_->leases().Get(kUser, "used")->lasting()) << "it ends with its programs";
  ASSERT_THAT(InFile(), SizeIs(1));
  EXPECT_EQ(InFile()[0].name(), "kept");
}

TEST_F(LeaseRecoveryTest, LeasesOfTheFileGetKeysThatTheJournalHasNot) {
  Note(Lasting(Lease(1, "journaled", 16_MiB)));
  v1::JournalLease lease = Lasting(Lease(1, "filed", 16_MiB));
  lease.set_id("l-99");
  ASSERT_EQ(LeaseStore(directory_.path()).Write({lease}), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_THAT(NamesOfLeases(), ::testing::UnorderedElementsAre("journaled", "filed"));
  const absl::StatusOr<v1::Lease> filed = next_->leases().Get(kUser, "filed");
  const absl::StatusOr<v1::Lease> journaled = next_->leases().Get(kUser, "journaled");
  ASSERT_TRUE(filed.ok() && journaled.ok());
  EXPECT_EQ(journaled->devices(0).id(), 10u);
  EXPECT_GT(filed->devices(0).id(), 10u);
}

TEST_F(LeaseRecoveryTest, ALeaseOfTheFileWaitsWhereAnotherHasItsName) {
  Note(Lasting(Lease(1, "train", 16_MiB)));
  v1::JournalLease lease = Lasting(Lease(2, "train", 16_MiB));
  ASSERT_EQ(LeaseStore(directory_.path()).Write({lease}), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(next_->leases().Get(kUser, "train")->id(), "l-1");
  EXPECT_THAT(InFile(), SizeIs(2));
  EXPECT_THAT(Events(), Contains(HasSubstr("another lease has its name, train")));
}

TEST_F(LeaseRecoveryTest, ALeaseOfTheFileWaitsWhileOthersHaveItsMemory) {
  Note(Lease(1, "holder", 48_MiB));
  NoteSession(1, 1);
  NoteCharged(1, 1, 48_MiB);
  v1::JournalLease lease = Waiting(Lasting(Lease(2, "train", 32_MiB, 32_MiB)));
  ASSERT_EQ(LeaseStore(directory_.path()).Write({lease}), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_THAT(NamesOfLeases(), ::testing::ElementsAre("holder"));
  EXPECT_THAT(Events(), Contains(HasSubstr("other leases hold, or may hold, the memory of its guarantee")));
  child_.Kill();
  ASSERT_TRUE(Eventually([&] { return HasNothing(); }));
  ASSERT_EQ(next_->opened().journal->Commit(), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_THAT(NamesOfLeases(), ::testing::ElementsAre("train"));
}

TEST_F(LeaseRecoveryTest, ALastingLeaseThatWaitedAndIsInNoFileWaitsOn) {
  Note(OnNoCard(Waiting(Lasting(Lease(1, "train", 32_MiB)))));
  ASSERT_NO_FATAL_FAILURE(StartNext());
  ASSERT_THAT(InFile(), SizeIs(1));
  EXPECT_EQ(InFile()[0].id(), "l-1");
}

TEST_F(LeaseRecoveryTest, MemoryOfASuspendedLeaseIsInNoAccountButItsOwn) {
  v1::JournalLease lease = Lasting(Lease(1, "train", 32_MiB, 16_MiB));
  v1::JournalCharged& charge = *lease.mutable_suspended()->add_charges();
  charge.set_session_id(1);
  charge.set_device_id(10);
  charge.set_bytes((8_MiB).count());
  Note(lease);
  NoteSession(1, 1);
  NoteCharged(1, 1, 8_MiB);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(Held(1), Bytes());
  EXPECT_EQ(next_->FreeOfCard(), DaemonParts::kCard) << "its guarantee is free, too";
  const auto suspension = next_->broker().suspensions().Find(LeaseKey{1});
  ASSERT_TRUE(suspension);
  EXPECT_TRUE(suspension->is_parked);
  EXPECT_EQ(suspension->parked, 8_MiB);
}

TEST_F(LeaseRecoveryTest, ASessionWithAnAmountThatNoLgpudGrantsIsNotRestored) {
  Note(Lasting(Lease(1, "train", 32_MiB)));
  NoteSession(1, 1);
  NoteCharged(1, 1, Bytes(4097));
  NoteSession(2, 1);
  NoteCharged(2, 1, 8_MiB);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(next_->sessions().Find(SessionId{1}), nullptr);
  EXPECT_EQ(Held(2), 8_MiB);
  EXPECT_THAT(NamesOfLeases(), ::testing::ElementsAre("train"));
}

TEST_F(LeaseRecoveryTest, AnAbsentSessionOfARemovedLeaseEndsThoughItsProcessLives) {
  Note(Removed(Lease(1, "train", 32_MiB)));
  NoteSession(1, 1);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_TRUE(HasNothingInTheEnd());
}

TEST_F(LeaseRecoveryTest, AnAbsentSessionWhoseProcessLivesWithoutItsContextEnds) {
  Note(Lease(1, "train", 32_MiB));
  NoteSessionWithPage(1, 1, /*page=*/1);
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_TRUE(HasNothingInTheEnd());
}

}  // namespace
}  // namespace lgpu::daemon
