#include "daemon/leases/lease_file.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/leases/lease_store.h"
#include "daemon/recovery/journal_format.h"
#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The lease with this key, and two devices.
v1::JournalLease NumberedLease(std::uint64_t key) {
  v1::JournalLease lease;
  lease.set_key(key);
  lease.set_id(absl::StrCat("l-0000000", key));
  lease.set_name(absl::StrCat("train-", key));
  lease.set_owner_uid(static_cast<std::uint32_t>(1000 + key));
  lease.set_lasting(true);
  lease.set_request_id("request");
  for (std::uint64_t i = 0; i < 2; ++i) {
    v1::JournalDevice& device = *lease.add_devices();
    device.set_id(2 * key + i);
    device.set_card_uuid("GPU-aaaaaaaa-0000-4000-8000-000000000001");
    device.set_limit_bytes(std::uint64_t{64} << 20);
  }
  return lease;
}

std::string RecordOfLease(const v1::JournalLease& lease) {
  v1::JournalRecord record;
  *record.mutable_lease() = lease;
  std::string bytes;
  AppendJournalRecord(record, bytes);
  return bytes;
}

/// A file of leases 1, 2 and 3.
struct LeaseFile {
  std::string bytes;
  std::vector<std::size_t> ends;  // of the header and of each record

  std::size_t begin(std::uint64_t key) const { return ends[key - 1]; }
  std::size_t end(std::uint64_t key) const { return ends[key]; }
};
constexpr std::uint64_t kLeases = 3;

LeaseFile FileWith(std::string header) {
  LeaseFile file{.bytes = std::move(header), .ends = {}};
  file.ends.push_back(file.bytes.size());
  for (std::uint64_t key = 1; key <= kLeases; ++key) {
    file.bytes += RecordOfLease(NumberedLease(key));
    file.ends.push_back(file.bytes.size());
  }
  return file;
}
LeaseFile PresentFile() {
  LeaseFile file = FileWith(EncodeJournalHeader(""));
  SetJournalLength(file.bytes);
  return file;
}

std::string HeaderOfVersion(char version) {
  std::string header = EncodeJournalHeader("").substr(0, kJournalLengthAt);
  constexpr std::size_t kVersionAt = 8, kChecksumAt = kJournalLengthAt - 4;
  header[kVersionAt] = version;
  const std::uint32_t checksum = Crc32c(std::string_view(header).substr(0, kChecksumAt));
  for (std::size_t i = 0; i < 4; ++i) header[kChecksumAt + i] = static_cast<char>(checksum >> (8 * i));
  return header;
}
// As lgpud wrote it before the file had its length.
LeaseFile PreviousFile() { return FileWith(HeaderOfVersion(3)); }

// Keys of the leases, each of which is as it was written.
std::vector<std::uint64_t> KeysOf(const std::vector<v1::JournalLease>& leases) {
  std::vector<std::uint64_t> keys;
  for (const v1::JournalLease& lease : leases) {
    keys.push_back(lease.key());
    EXPECT_EQ(lease.SerializeAsString(), NumberedLease(lease.key()).SerializeAsString());
  }
  return keys;
}

// `damaged` differs from the file in bytes [first, last): the damage is told, and all other leases are kept.
void ExpectOthersAreKept(const LeaseFile& file, const std::string& damaged, std::size_t first,
                         std::size_t last) {
  const ParsedLeaseFile parsed = ParseLeaseFile(damaged);
  EXPECT_EQ(parsed.damages.empty(), damaged == file.bytes);
  const std::vector<std::uint64_t> keys = KeysOf(parsed.leases);
  for (std::uint64_t key = 1; key <= kLeases; ++key) {
    const bool is_hit = first < file.end(key) && last > file.begin(key);
    EXPECT_TRUE(is_hit || std::count(keys.begin(), keys.end(), key) == 1) << "lease " << key;
  }
}

void FlipEachBit(const LeaseFile& file) {
  for (std::size_t at = 0; at < file.bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      SCOPED_TRACE(absl::StrCat("bit ", bit, " of byte ", at));
      std::string damaged = file.bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      ExpectOthersAreKept(file, damaged, at, at + 1);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LeaseFileTest, WrittenLeasesReadAsTheSame) {
  const ParsedLeaseFile parsed = ParseLeaseFile(PresentFile().bytes);
  EXPECT_THAT(KeysOf(parsed.leases), ElementsAre(1, 2, 3));
  EXPECT_THAT(parsed.damages, ElementsAre());
}

TEST(LeaseFileTest, TheVersionBeforeTheLengthIsRead) {
  const ParsedLeaseFile parsed = ParseLeaseFile(PreviousFile().bytes);
  EXPECT_THAT(KeysOf(parsed.leases), ElementsAre(1, 2, 3));
  EXPECT_THAT(parsed.damages, ElementsAre());
}

TEST(LeaseFileTest, EachFlippedBitCostsNoLeaseOfAnotherRecord) { FlipEachBit(PresentFile()); }

TEST(LeaseFileTest, EachFlippedBitOfThePreviousVersionCostsNoLeaseOfAnotherRecord) {
  FlipEachBit(PreviousFile());
}

// The payload's own checksum tells where the record ends.
TEST(LeaseFileTest, ADamagedLengthCostsNoLease) {
  const LeaseFile file = PresentFile();
  for (std::uint64_t key = 1; key <= kLeases; ++key) {
    for (std::size_t at = file.begin(key); at < file.begin(key) + 8; ++at) {
      std::string damaged = file.bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      const ParsedLeaseFile parsed = ParseLeaseFile(damaged);
      EXPECT_THAT(KeysOf(parsed.leases), ElementsAre(1, 2, 3)) << "byte " << at;
      ASSERT_EQ(parsed.damages.size(), 1u);
      EXPECT_THAT(parsed.damages[0], HasSubstr(absl::StrCat("train-", key)));
    }
  }
}

TEST(LeaseFileTest, OverwrittenBytesCostNoLeaseOfAnotherRecord) {
  for (const LeaseFile& file : {PresentFile(), PreviousFile()}) {
    for (const std::size_t length : std::vector<std::size_t>{2, 12, 40, 200}) {
      for (const char fill : {'\0', '\xff'}) {
        for (std::size_t at = 0; at + length <= file.bytes.size(); ++at) {
          SCOPED_TRACE(absl::StrCat(length, " bytes at ", at));
          std::string damaged = file.bytes;
          std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(at), length, fill);
          ExpectOthersAreKept(file, damaged, at, at + length);
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(LeaseFileTest, EveryCutIsNoticedAndKeepsTheLeasesBefore) {
  const LeaseFile file = PresentFile();
  for (std::size_t cut = 0; cut < file.bytes.size(); ++cut) {
    const ParsedLeaseFile parsed = ParseLeaseFile(std::string_view(file.bytes).substr(0, cut));
    EXPECT_FALSE(parsed.damages.empty()) << "cut at " << cut;
    std::vector<std::uint64_t> before;
    for (std::uint64_t key = 1; key <= kLeases && file.end(key) <= cut; ++key) before.push_back(key);
    ASSERT_EQ(KeysOf(parsed.leases), before) << "cut at " << cut;
  }
}

TEST(LeaseFileTest, ADamagedRecordIsToldWithItsPlaceAndItsLease) {
  const LeaseFile file = PresentFile();
  std::string damaged = file.bytes;
  damaged[file.end(2) - 1] = static_cast<char>(damaged[file.end(2) - 1] ^ 1);
  const ParsedLeaseFile parsed = ParseLeaseFile(damaged);
  EXPECT_THAT(KeysOf(parsed.leases), ElementsAre(1, 3));
  EXPECT_THAT(parsed.damages, ElementsAre(AllOf(HasSubstr(absl::StrCat("at byte ", file.begin(2))),
                                                HasSubstr("\"train-2\" (l-00000002) of user 1002"))));
}

// A user cannot add a lease by a request id that looks like its record.
TEST(LeaseFileTest, ARecordInsideARequestIdIsNotRead) {
  const google::protobuf::LogSilencer quiet;  // the checksums are no UTF-8
  v1::JournalLease outer = NumberedLease(1);
  outer.set_request_id(RecordOfLease(NumberedLease(9)));
  std::string bytes = EncodeJournalHeader("");
  const std::size_t begin = bytes.size();
  bytes += RecordOfLease(outer);
  bytes += RecordOfLease(NumberedLease(2));
  SetJournalLength(bytes);
  for (std::size_t at = begin; at < begin + 8; ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_THAT(KeysOf(ParseLeaseFile(damaged).leases), ElementsAre(2)) << "byte " << at;
  }
}

TEST(LeaseFileTest, ALaterVersionIsNotGuessedAt) {
  const ParsedLeaseFile parsed = ParseLeaseFile(FileWith(HeaderOfVersion(7)).bytes);
  EXPECT_TRUE(parsed.leases.empty());
  EXPECT_THAT(parsed.damages, ElementsAre(HasSubstr("version 7")));
}

TEST(LeaseFileTest, ADamagedFileStaysAndGetsASecondName) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/leases";
  const LeaseFile file = PresentFile();
  std::string damaged = file.bytes;
  damaged[file.end(1) - 1] = static_cast<char>(damaged[file.end(1) - 1] ^ 1);
  std::ofstream(path, std::ios::binary) << damaged;
  for (int start = 0; start < 2; ++start) {
    const absl::StatusOr<LeaseStore::Found> lasting = LeaseStore(directory.path()).Read();
    ASSERT_TRUE(lasting.ok()) << lasting.status();
    EXPECT_FALSE(lasting->is_whole);
    EXPECT_THAT(KeysOf(lasting->leases), ElementsAre(2, 3));
  }
  for (const std::string& name : {path, path + ".damaged"}) {
    std::ifstream there(name, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(there), std::istreambuf_iterator<char>()};
    EXPECT_EQ(bytes, damaged) << name;
  }
}

}  // namespace
}  // namespace lgpu::daemon
