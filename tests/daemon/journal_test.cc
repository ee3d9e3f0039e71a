#include "daemon/recovery/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

using ::testing::HasSubstr;

constexpr char kBoot[] = "01234567-89ab-cdef-0123-456789abcdef";

v1::JournalRecord LeaseRecord() {
  v1::JournalRecord record;
  record.mutable_lease()->set_key(1);
  record.mutable_lease()->add_devices()->set_id(1);
  record.mutable_lease()->mutable_devices(0)->set_limit_bytes(std::uint64_t{1} << 40);
  return record;
}
v1::JournalRecord SessionRecord() {
  v1::JournalRecord record;
  record.mutable_session()->set_id(1);
  record.mutable_session()->set_lease_key(1);
  return record;
}
v1::JournalRecord GrantedRecord(std::uint64_t chunk) {
  v1::JournalRecord record;
  record.mutable_granted()->set_chunk_id(chunk);
  record.mutable_granted()->set_session_id(1);
  record.mutable_granted()->set_device_id(1);
  record.mutable_granted()->set_bytes(2 << 20);
  return record;
}
v1::JournalRecord FreedRecord(std::uint64_t chunk) {
  v1::JournalRecord record;
  record.mutable_freed()->set_chunk_id(chunk);
  return record;
}

class JournalTest : public ::testing::Test {
 protected:
  Journal::Opened Open(const std::string& boot = kBoot) {
    absl::StatusOr<Journal::Opened> opened = Journal::Open(directory_.path(), boot);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : Journal::Opened();
  }
  std::string path() const { return directory_.path() + "/journal"; }
  std::string Read() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }
  /// Makes a journal with a grant of chunk 7.
  void WriteGrant() {
    Journal::Opened opened = Open();
    opened.journal->Settled();
    opened.journal->Note(LeaseRecord());
    opened.journal->Note(SessionRecord());
    ASSERT_TRUE(opened.journal->Commit().ok());
    opened.journal->Note(GrantedRecord(7));
    ASSERT_TRUE(opened.journal->Commit().ok());
  }

  TemporaryDirectory directory_;
};

TEST_F(JournalTest, CommittedRecordsSurviveAKilledDaemon) {
  {
    Journal::Opened opened = Open();
    EXPECT_EQ(opened.found, Journal::Found::kNone);
    opened.journal->Settled();
    opened.journal->Note(LeaseRecord());
    opened.journal->Note(SessionRecord());
    opened.journal->Note(GrantedRecord(7));
    ASSERT_TRUE(opened.journal->Commit().ok());
    opened.journal->Note(FreedRecord(7));  // never committed: it counts as granted
  }
  const Journal::Opened opened = Open();
  EXPECT_EQ(opened.found, Journal::Found::kWhole);
  EXPECT_TRUE(opened.state.chunks().contains(7));
  struct stat info = {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u) << "it holds the sessions' secrets";
}

TEST_F(JournalTest, ALeaseWhoseSessionIsLeftStaysInTheFile) {
  ASSERT_NO_FATAL_FAILURE(WriteGrant());
  {
    const Journal::Opened opened = Open();
    // A session that could not be restored does not end in the account, and its lease does.
    v1::JournalRecord gone;
    gone.mutable_lease_gone()->set_key(1);
    opened.journal->Note(gone);
    ASSERT_TRUE(opened.journal->Commit().ok());
  }
  const Journal::Opened opened = Open();
  EXPECT_EQ(opened.found, Journal::Found::kWhole);
  EXPECT_EQ(opened.state.leases().size(), 1u);
  EXPECT_TRUE(opened.state.chunks().contains(7)) << "its memory is not granted twice";
}

TEST_F(JournalTest, IsWrittenAnewWhenMostOfItIsPast) {
  Journal::Opened opened = Open();
  opened.journal->Note(LeaseRecord());
  opened.journal->Note(SessionRecord());
  for (std::uint64_t chunk = 1; chunk <= 40'000; ++chunk) {
    opened.journal->Note(GrantedRecord(chunk));
    opened.journal->Note(FreedRecord(chunk));
  }
  ASSERT_TRUE(opened.journal->Commit().ok());
  const auto before = std::filesystem::file_size(path());
  opened.journal->Tend();
  EXPECT_LT(std::filesystem::file_size(path()), before / 1000);
  opened.journal->Note(GrantedRecord(50'000));
  ASSERT_TRUE(opened.journal->Commit().ok());
  const Journal::Opened again = Open();
  EXPECT_EQ(again.state.chunks().size(), 1u);
  EXPECT_EQ(again.state.ids().chunk_id(), 50'000u);
}

TEST_F(JournalTest, AnotherBootIsDiscarded) {
  {
    Journal::Opened opened = Open();
    opened.journal->Note(LeaseRecord());
    ASSERT_TRUE(opened.journal->Commit().ok());
  }
  const Journal::Opened opened = Open("11234567-89ab-cdef-0123-456789abcdef");
  EXPECT_EQ(opened.found, Journal::Found::kForeignBoot);
  EXPECT_TRUE(opened.state.leases().empty());
}

TEST_F(JournalTest, ADamagedJournalIsKeptAsideAndItsReadableRecordsAreTold) {
  {
    Journal::Opened opened = Open();
    opened.journal->Settled();
    opened.journal->Note(LeaseRecord());
    ASSERT_TRUE(opened.journal->Commit().ok());
  }
  std::ofstream(path(), std::ios::app) << "this is no record at all";
  const Journal::Opened opened = Open();
  EXPECT_EQ(opened.found, Journal::Found::kDamaged);
  EXPECT_EQ(opened.state.leases().size(), 1u);
  EXPECT_THAT(opened.detail, HasSubstr("at byte"));
  EXPECT_TRUE(std::filesystem::exists(path() + ".damaged"));
  opened.journal->Settled();
  ASSERT_TRUE(opened.journal->Commit().ok());
  EXPECT_EQ(Open().found, Journal::Found::kWhole);
}

TEST_F(JournalTest, EveryCutOfTheFileIsFound) {
  ASSERT_NO_FATAL_FAILURE(WriteGrant());
  const std::string whole = Read();
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    Write(whole.substr(0, cut));
    ASSERT_EQ(Open().found, Journal::Found::kDamaged) << "cut at " << cut << " of " << whole.size();
  }
  Write(whole);
  const Journal::Opened opened = Open();
  EXPECT_EQ(opened.found, Journal::Found::kWhole);
  EXPECT_TRUE(opened.state.chunks().contains(7));
}

// The daemon writes the records first, and then the length of the file.
TEST_F(JournalTest, AnUnfinishedAppendOfAKilledDaemonIsNoDamage) {
  ASSERT_NO_FATAL_FAILURE(WriteGrant());
  std::string before, after;
  {
    const Journal::Opened opened = Open();
    before = Read();
    opened.journal->Note(GrantedRecord(8));
    ASSERT_TRUE(opened.journal->Commit().ok());
    after = Read();
  }
  for (std::size_t size = before.size(); size <= after.size(); ++size) {
    std::string died = before;  // with the length that the file had before
    died.append(after, before.size(), size - before.size());
    Write(died);
    const Journal::Opened opened = Open();
    ASSERT_EQ(opened.found, Journal::Found::kWhole) << opened.detail;
    ASSERT_TRUE(opened.state.chunks().contains(7));
    ASSERT_EQ(opened.state.chunks().contains(8), size == after.size()) << "death at " << size;
  }
}

TEST_F(JournalTest, AJournalOfTheVersionBeforeTheLengthIsReadAndWrittenAnew) {
  ASSERT_NO_FATAL_FAILURE(WriteGrant());
  std::string old = Read();
  old.erase(kJournalLengthAt, kJournalHeaderBytes - kJournalLengthAt);
  constexpr std::size_t kVersionAt = 8, kChecksumAt = kJournalLengthAt - 4;
  old[kVersionAt] = 3;
  const std::uint32_t checksum = Crc32c(old.substr(0, kChecksumAt));
  for (std::size_t i = 0; i < 4; ++i) old[kChecksumAt + i] = static_cast<char>(checksum >> (8 * i));
  Write(old);
  for (int start = 0; start < 2; ++start) {  // from the old file, then from the new one
    const Journal::Opened opened = Open();
    EXPECT_EQ(opened.found, Journal::Found::kWhole) << opened.detail;
    EXPECT_TRUE(opened.state.chunks().contains(7));
  }
  const std::string written = Read();
  Write(written.substr(0, written.size() - 1));
  EXPECT_EQ(Open().found, Journal::Found::kDamaged);
}

TEST_F(JournalTest, AnUnreadableJournalIsNotAMissingOne) {
  std::filesystem::create_directory(path());
  const absl::Status status = Journal::Open(directory_.path(), kBoot).status();
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path()), HasSubstr("Is a directory")));
}

// A start that does not end leaves its finding to the next start, any number of times.
TEST_F(JournalTest, UnsettledRecoveryIsLeftToTheNextStart) {
  EXPECT_EQ(Open().found, Journal::Found::kNone);
  EXPECT_EQ(Open().found, Journal::Found::kNone);
  std::ofstream(path(), std::ios::app) << "this is no record at all";
  EXPECT_EQ(Open().found, Journal::Found::kDamaged);
  EXPECT_EQ(Open().found, Journal::Found::kDamaged);
  Journal::Opened opened = Open();
  EXPECT_EQ(opened.found, Journal::Found::kDamaged);
  opened.journal->Settled();
  ASSERT_TRUE(opened.journal->Commit().ok());
  EXPECT_EQ(Open().found, Journal::Found::kWhole);
  const std::string next_boot = "00000000-89ab-cdef-0123-456789abcdef";
  EXPECT_EQ(Open(next_boot).found, Journal::Found::kForeignBoot);
  EXPECT_EQ(Open(next_boot).found, Journal::Found::kForeignBoot);
}

TEST_F(JournalTest, AFullDiskIsUnavailableAndPasses) {
  Journal::Opened opened = Open();
  opened.journal->Settled();
  opened.journal->Note(LeaseRecord());
  opened.journal->Note(SessionRecord());
  ASSERT_TRUE(opened.journal->Commit().ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = std::filesystem::file_size(path()) + 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  opened.journal->Note(GrantedRecord(7));
  const absl::Status full = opened.journal->Commit();
  opened.journal->Note(FreedRecord(7));
  opened.journal->Tend();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(absl::IsUnavailable(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr(path()));
  opened.journal->Note(GrantedRecord(8));
  EXPECT_TRUE(opened.journal->Commit().ok());
  const Journal::Opened again = Open();
  EXPECT_EQ(again.found, Journal::Found::kWhole) << again.detail;
  EXPECT_EQ(again.state.chunks().size(), 1u);
  EXPECT_TRUE(again.state.chunks().contains(8));
}

TEST_F(JournalTest, AJournalThatCannotBeCompactedGrowsOn) {
  Journal::Opened opened = Open();
  opened.journal->Settled();
  opened.journal->Note(LeaseRecord());
  opened.journal->Note(SessionRecord());
  for (std::uint64_t chunk = 1; chunk <= 40'000; ++chunk) {
    opened.journal->Note(GrantedRecord(chunk));
    opened.journal->Note(FreedRecord(chunk));
  }
  opened.journal->Note(GrantedRecord(50'000));
  ASSERT_TRUE(opened.journal->Commit().ok());
  const auto before = std::filesystem::file_size(path());
  std::filesystem::create_directory(path() + ".new");
  opened.journal->Note(GrantedRecord(50'001));
  opened.journal->Tend();
  opened.journal->Note(GrantedRecord(50'002));
  EXPECT_TRUE(opened.journal->Commit().ok());
  EXPECT_GT(std::filesystem::file_size(path()), before);
  std::filesystem::remove(path() + ".new");
  const Journal::Opened again = Open();
  EXPECT_EQ(again.found, Journal::Found::kWhole) << again.detail;
  EXPECT_EQ(again.state.chunks().size(), 3u);
}

TEST_F(JournalTest, RecordsNotedWhileCompactionFailsAreKept) {
  Journal::Opened opened = Open();
  opened.journal->Settled();
  opened.journal->Note(LeaseRecord());
  opened.journal->Note(SessionRecord());
  ASSERT_TRUE(opened.journal->Commit().ok());
  // So it fails at its last step, and there is time to note something.
  const std::string aside = path() + ".aside";
  std::filesystem::rename(path(), aside);
  std::filesystem::create_directory(path());
  constexpr std::uint64_t kChunks = 500'000;  // tens of megabytes
  constexpr std::uint64_t kStay = 50;         // one of so many, so that a new file has some size
  std::atomic<bool> over = false;
  std::thread notes([&] {
    for (std::uint64_t chunk = 1; chunk <= kChunks; ++chunk) {
      opened.journal->Note(GrantedRecord(chunk));
      if (chunk % kStay != 0) opened.journal->Note(FreedRecord(chunk));
    }
    over = true;
  });
  while (!over) opened.journal->Tend();
  notes.join();
  ASSERT_TRUE(opened.journal->Commit().ok());
  std::filesystem::remove(path());
  std::filesystem::rename(aside, path());
  const Journal::Opened again = Open();
  EXPECT_EQ(again.found, Journal::Found::kWhole) << again.detail;
  EXPECT_EQ(again.state.chunks().size(), kChunks / kStay);
}

}  // namespace
}  // namespace lgpu::daemon
