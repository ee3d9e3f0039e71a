#include "daemon/recovery/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/daemon_parts.h"
#include "tests/daemon/temporary_directory.h"
#include "tests/support/child_program.h"
#include "tests/support/open_files_limit.h"

namespace lgpu::daemon {
namespace {

using testing::Eventually;

constexpr std::uint32_t kUid = 61301;
const Caller kUser{.uid = kUid, .session = nullptr};

/// A daemon that dies, and the next one.
class RecoveryTest : public ::testing::Test {
 protected:
  /// The first daemon: a session of the child with a lease, which holds 8 MiB. It ends as if it was killed:
  /// the journal is written, and the session does not end.
  void LiveAndDie() {
    DaemonParts first(directory_.path());
    const std::shared_ptr<SessionState> session = first.AddSession(kUid, child_.Hold());
    const absl::StatusOr<v1::Lease> lease = first.CreateLease({.uid = kUid, .session = session}, "train");
    ASSERT_EQ(lease.status(), absl::OkStatus());
    ASSERT_EQ(first.Grow(*session, *lease, 8_MiB), absl::OkStatus());
    lease_id_ = lease->id();
    ASSERT_EQ(first.opened().journal->Commit(), absl::OkStatus());
  }

  void StartNext() { StartNextIn(directory_); }
  void StartNextIn(const TemporaryDirectory& directory) {
    PrepareNextIn(directory);
    const absl::StatusOr<LeaseStore::Found> lasting = LeaseStore(directory.path()).Read();
    ASSERT_EQ(lasting.status(), absl::OkStatus());
    ASSERT_EQ(recovery_->Run(next_->opened(), *lasting, {}), absl::OkStatus());
  }
  /// All but Recovery::Run.
  void PrepareNext() { PrepareNextIn(directory_); }
  void PrepareNextIn(const TemporaryDirectory& directory) {
    next_.emplace(directory.path());
    reclaimer_ = *Reclaimer::Start(next_->broker(), next_->leases(), next_->sessions(),
                                   {.waker = *PollWaker::Create()});
    const RecoveryParts parts{.backend = next_->backend(),
                              .broker = next_->broker(),
                              .leases = next_->leases(),
                              .sessions = next_->sessions(),
                              .reclaimer = *reclaimer_,
                              .events = next_->events(),
                              .journal = *next_->opened().journal};
    recovery_.emplace(parts);
  }
  void EndNext() {
    recovery_.reset();
    reclaimer_.reset();
    next_.reset();
  }

  bool IsFree() {
    return next_->sessions().size() == 0 && next_->leases().size() == 0 &&
           next_->FreeOfCard() == DaemonParts::kCard;
  }

  const TemporaryDirectory directory_;
  IdleChild child_;
  std::string lease_id_;
  std::optional<DaemonParts> next_;
  std::unique_ptr<Reclaimer> reclaimer_;  // before the parts that it works on
  std::optional<Recovery> recovery_;
};

TEST_F(RecoveryTest, ALivingSessionIsAbsentAndChargedInFull) {
  LiveAndDie();
  StartNext();
  const std::shared_ptr<SessionState> session = next_->sessions().FindToken("token 1");
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->phase(), SessionState::Phase::kAbsent);
  EXPECT_EQ(next_->broker().Held(session->id()), 8_MiB);
  EXPECT_EQ(next_->FreeOfCard(), DaemonParts::kCard - 8_MiB);
  const absl::StatusOr<v1::Lease> lease = next_->leases().Get(kUser, "train");
  ASSERT_EQ(lease.status(), absl::OkStatus());
  EXPECT_EQ(lease->id(), lease_id_);
}

TEST_F(RecoveryTest, ADaemonThatMayOpenTooFewFilesGrantsNothingTwice) {
  LiveAndDie();
  PrepareNext();
  absl::Status status;
  {
    const OpenFilesLimit none(OpenFilesLimit::ForMore(0));
    status = recovery_->Run(next_->opened(), {}, {});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("LimitNOFILE"));
  EndNext();
  StartNext();
  const std::shared_ptr<SessionState> session = next_->sessions().FindToken("token 1");
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(next_->broker().Held(session->id()), 8_MiB);
}

TEST_F(RecoveryTest, ASessionThatDiedMeanwhileEndsWithItsLease) {
  LiveAndDie();
  child_.Kill();
  StartNext();
  EXPECT_TRUE(Eventually([&] { return IsFree(); }));
}

TEST_F(RecoveryTest, AnAbsentSessionThatDiesLaterEndsWithItsLease) {
  LiveAndDie();
  StartNext();
  child_.Kill();
  EXPECT_TRUE(Eventually([&] { return IsFree(); }));
}

TEST_F(RecoveryTest, ALastingLeaseIsThereWithoutASession) {
  {
    DaemonParts first(directory_.path());
    ASSERT_TRUE(first.CreateLease(kUser, "keep").ok());
  }
  StartNext();
  EXPECT_TRUE(next_->leases().Get(kUser, "keep").ok());
  EXPECT_EQ(next_->sessions().size(), 0u);
}

TEST_F(RecoveryTest, IdsOfTheEarlierDaemonAreNotGivenOutAgain) {
  LiveAndDie();
  StartNext();
  const absl::StatusOr<v1::Lease> old = next_->leases().Get(kUser, "train");
  const absl::StatusOr<v1::Lease> made = next_->CreateLease(kUser, "new");
  ASSERT_TRUE(old.ok() && made.ok());
  EXPECT_NE(made->id(), old->id());
  EXPECT_GT(made->devices(0).id(), old->devices(0).id());
}

TEST_F(RecoveryTest, AThirdDaemonFindsTheSameAccounts) {
  LiveAndDie();
  StartNext();
  EndNext();
  StartNext();
  const std::shared_ptr<SessionState> session = next_->sessions().FindToken("token 1");
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(next_->broker().Held(session->id()), 8_MiB);
}

// Cuts of a journal: in its header, and at the beginning, in the header and in the payload of each record.
std::vector<std::size_t> CutsOf(const std::string& journal) {
  constexpr std::size_t kRecordHeader = 12;
  std::vector<std::size_t> cuts = {0, kJournalHeaderBytes - 1};
  for (std::size_t at = kJournalHeaderBytes; at < journal.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      length |= std::size_t{static_cast<unsigned char>(journal[at + i])} << (8 * i);
    }
    cuts.insert(cuts.end(), {at, at + kRecordHeader / 2, at + kRecordHeader + length / 2});
    at += kRecordHeader + length;
  }
  return cuts;
}

TEST_F(RecoveryTest, HeldMemoryIsNotFreeWhereverTheJournalWasCut) {
  std::optional<IdleChild> holder;
  {
    DaemonParts first(directory_.path(), {.sparse = false});
    first.opened().journal->Settled();
    const std::shared_ptr<SessionState> session = first.AddSession(kUid, child_.Hold());
    const absl::StatusOr<v1::Lease> lease = first.CreateLease({.uid = kUid, .session = session}, "train");
    ASSERT_EQ(lease.status(), absl::OkStatus());
    ASSERT_EQ(first.Grow(*session, *lease, 8_MiB), absl::OkStatus());
    ASSERT_EQ(first.opened().journal->Commit(), absl::OkStatus());
    holder.emplace();  // has the memory open, as the session's client would
  }
  std::ifstream file(directory_.path() + "/journal", std::ios::binary);
  const std::string journal{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::vector<std::size_t> cuts = CutsOf(journal);
  ASSERT_GT(cuts.size(), 10u);
  for (const std::size_t cut : cuts) {
    SCOPED_TRACE(absl::StrCat("cut at byte ", cut, " of ", journal.size()));
    const TemporaryDirectory directory;
    std::ofstream(directory.path() + "/journal", std::ios::binary) << journal.substr(0, cut);
    ASSERT_NO_FATAL_FAILURE(StartNextIn(directory));
    EXPECT_LE(next_->FreeOfCard(), DaemonParts::kCard - 8_MiB);
    EndNext();
  }
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(next_->opened().found, Journal::Found::kWhole);
  EXPECT_EQ(next_->FreeOfCard(), DaemonParts::kCard - 8_MiB);
}

TEST_F(RecoveryTest, MemoryThatNoRecordNamesIsFreeWhenItsHoldersEnd) {
  std::optional<IdleChild> holder;
  {
    DaemonParts first(directory_.path(), {.sparse = false});
    const std::shared_ptr<SessionState> session = first.AddSession(kUid, child_.Hold());
    const absl::StatusOr<v1::Lease> lease = first.CreateLease({.uid = kUid, .session = session}, "train");
    ASSERT_EQ(lease.status(), absl::OkStatus());
    ASSERT_EQ(first.Grow(*session, *lease, 8_MiB), absl::OkStatus());
    holder.emplace();  // has the memory open, as the session's client would
  }
  std::ofstream(directory_.path() + "/journal", std::ios::binary | std::ios::trunc) << "no journal";
  ASSERT_NO_FATAL_FAILURE(StartNext());
  EXPECT_EQ(next_->opened().found, Journal::Found::kDamaged);
  EXPECT_LE(next_->FreeOfCard(), DaemonParts::kCard - 8_MiB);
  holder->Kill();
  EXPECT_TRUE(Eventually([&] {
    recovery_->Tend();
    return next_->FreeOfCard() == DaemonParts::kCard;
  }));
}

}  // namespace
}  // namespace lgpu::daemon
