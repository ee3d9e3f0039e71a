#include "daemon/recovery/journal_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lgpu::daemon {
namespace {

using Condition = ParsedJournal::Condition;
using ::testing::HasSubstr;

constexpr char kThisBoot[] = "01234567-89ab-cdef-0123-456789abcdef";
constexpr char kOtherBoot[] = "11234567-89ab-cdef-0123-456789abcdef";

v1::JournalRecord LeaseRecord(std::uint64_t key, std::uint64_t device) {
  v1::JournalRecord record;
  v1::JournalLease& lease = *record.mutable_lease();
  lease.set_key(key);
  lease.set_id("l-1");
  lease.add_devices()->set_id(device);
  lease.mutable_devices(0)->set_limit_bytes(1 << 30);
  return record;
}

v1::JournalRecord SessionRecord(std::uint64_t id, std::uint64_t lease) {
  v1::JournalRecord record;
  record.mutable_session()->set_id(id);
  record.mutable_session()->set_lease_key(lease);
  record.mutable_session()->set_token("secret");
  return record;
}

v1::JournalRecord GrantedRecord(std::uint64_t chunk, std::uint64_t session, std::uint64_t device) {
  v1::JournalRecord record;
  record.mutable_granted()->set_chunk_id(chunk);
  record.mutable_granted()->set_session_id(session);
  record.mutable_granted()->set_device_id(device);
  record.mutable_granted()->set_bytes(2 << 20);
  return record;
}

v1::JournalRecord Freed(std::uint64_t chunk) {
  v1::JournalRecord record;
  record.mutable_freed()->set_chunk_id(chunk);
  return record;
}

v1::JournalRecord SessionGoneRecord(std::uint64_t id) {
  v1::JournalRecord record;
  record.mutable_session_gone()->set_id(id);
  return record;
}

v1::JournalRecord LeaseGoneRecord(std::uint64_t key) {
  v1::JournalRecord record;
  record.mutable_lease_gone()->set_key(key);
  return record;
}

v1::JournalRecord ChargedRecord(std::uint64_t session, std::uint64_t device, std::uint64_t bytes) {
  v1::JournalRecord record;
  record.mutable_charged()->set_session_id(session);
  record.mutable_charged()->set_device_id(device);
  record.mutable_charged()->set_bytes(bytes);
  return record;
}

// The header of a journal of this version. Before version 4 it has no length of the file.
std::string Header(std::uint8_t version) {
  std::string header = EncodeJournalHeader(kThisBoot);
  // Behind the magic; the checksum is little endian as all numbers.
  constexpr std::size_t kVersionAt = 8;
  constexpr std::size_t kChecksumAt = kJournalLengthAt - 4;
  header[kVersionAt] = static_cast<char>(version);
  const std::uint32_t checksum = Crc32c(std::string_view(header).substr(0, kChecksumAt));
  for (std::size_t i = 0; i < 4; ++i) header[kChecksumAt + i] = static_cast<char>(checksum >> (8 * i));
  if (version < 4) header.resize(kJournalLengthAt);
  return header;
}

std::vector<v1::JournalRecord> Story() {
  return {LeaseRecord(1, 5),       SessionRecord(3, 1), GrantedRecord(10, 3, 5),
          GrantedRecord(11, 3, 5), Freed(10),           GrantedRecord(12, 3, 5)};
}

std::string Encode(const std::vector<v1::JournalRecord>& records) {
  std::string bytes = EncodeJournalHeader(kThisBoot);
  for (const v1::JournalRecord& record : records) AppendJournalRecord(record, bytes);
  SetJournalLength(bytes);
  return bytes;
}

// The sizes of a journal after its header and after each of these records.
std::vector<std::size_t> SizesOf(std::string header, const std::vector<v1::JournalRecord>& records) {
  std::vector<std::size_t> sizes = {header.size()};
  for (const v1::JournalRecord& record : records) {
    AppendJournalRecord(record, header);
    sizes.push_back(header.size());
  }
  return sizes;
}

// The state that the first `count` of these records add up to, as bytes.
std::string StateAfter(const std::vector<v1::JournalRecord>& records, std::size_t count) {
  JournalState state;
  for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(state.Apply(records[i]).ok());
  std::string bytes;
  state.Encode(bytes);
  return bytes;
}
std::string BytesOf(const JournalState& state) {
  std::string bytes;
  state.Encode(bytes);
  return bytes;
}

// How many whole records a journal has that is cut to `size` bytes.
std::size_t WholeRecords(const std::vector<std::size_t>& sizes, std::size_t size) {
  return static_cast<std::size_t>(std::upper_bound(sizes.begin(), sizes.end(), size) - sizes.begin()) - 1;
}

TEST(JournalFormatTest, WrittenDataReadsAsTheSame) {
  const ParsedJournal parsed = ParseJournal(Encode(Story()), kThisBoot);
  ASSERT_EQ(parsed.condition, Condition::kWhole) << parsed.detail;
  EXPECT_EQ(parsed.state.leases().size(), 1u);
  EXPECT_EQ(parsed.state.sessions().at(3).token(), "secret");
  ASSERT_EQ(parsed.state.chunks().size(), 2u);
  EXPECT_TRUE(parsed.state.chunks().contains(11) && parsed.state.chunks().contains(12));
  EXPECT_EQ(parsed.state.ids().chunk_id(), 12u);
}

TEST(JournalFormatTest, TheShortFormSaysTheSame) {
  const ParsedJournal parsed = ParseJournal(Encode(Story()), kThisBoot);
  std::string bytes = EncodeJournalHeader(kThisBoot);
  parsed.state.Encode(bytes);
  const ParsedJournal again = ParseJournal(bytes, kThisBoot);
  ASSERT_EQ(again.condition, Condition::kWhole) << again.detail;
  std::string twice = EncodeJournalHeader(kThisBoot);
  again.state.Encode(twice);
  EXPECT_EQ(bytes, twice);
  EXPECT_EQ(again.state.chunks().size(), 2u);
}

TEST(JournalFormatTest, TheLastChargeOfASessionAndDeviceCountsAndGoesWithTheSession) {
  std::vector<v1::JournalRecord> story = Story();
  story.push_back(ChargedRecord(3, 5, 64));
  story.push_back(ChargedRecord(3, 5, 128));
  const ParsedJournal parsed = ParseJournal(Encode(story), kThisBoot);
  ASSERT_EQ(parsed.condition, Condition::kWhole) << parsed.detail;
  ASSERT_EQ(parsed.state.charges().size(), 1u);
  EXPECT_EQ(parsed.state.charges().at({3, 5}), 128u);
  std::string bytes = EncodeJournalHeader(kThisBoot);
  parsed.state.Encode(bytes);
  EXPECT_EQ(ParseJournal(bytes, kThisBoot).state.charges(), parsed.state.charges());
  JournalState state = parsed.state;
  EXPECT_TRUE(absl::IsInvalidArgument(state.Apply(ChargedRecord(4, 5, 1)))) << "no such session";
  EXPECT_TRUE(absl::IsInvalidArgument(state.Apply(ChargedRecord(3, 6, 1)))) << "no such device";
  for (const v1::JournalRecord& record : {Freed(11), Freed(12), SessionGoneRecord(3)}) {
    EXPECT_TRUE(state.Apply(record).ok()) << record.ShortDebugString();
  }
  EXPECT_TRUE(state.charges().empty());
}

TEST(JournalFormatTest, TheVersionBeforeChargesIsRead) {
  std::string bytes = Header(1);
  for (const v1::JournalRecord& record : Story()) AppendJournalRecord(record, bytes);
  const ParsedJournal parsed = ParseJournal(bytes, kThisBoot);
  ASSERT_EQ(parsed.condition, Condition::kWhole) << parsed.detail;
  EXPECT_EQ(parsed.state.chunks().size(), 2u);
}

TEST(JournalFormatTest, EveryCutIsNoticedAndLeavesTheRecordsBefore) {
  const std::string bytes = Encode(Story());
  const std::vector<std::size_t> sizes = SizesOf(EncodeJournalHeader(kThisBoot), Story());
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    const ParsedJournal parsed = ParseJournal(std::string_view(bytes).substr(0, cut), kThisBoot);
    ASSERT_EQ(parsed.condition, Condition::kDamaged) << "cut at " << cut;
    if (cut < kJournalHeaderBytes) continue;
    ASSERT_EQ(BytesOf(parsed.state), StateAfter(Story(), WholeRecords(sizes, cut))) << "cut at " << cut;
    ASSERT_THAT(parsed.detail, HasSubstr("cut short"));
  }
}

// The daemon died in an append, or between the append and the length.
TEST(JournalFormatTest, EveryUnfinishedAppendIsATornTailOfTheRecordsBefore) {
  const std::vector<v1::JournalRecord> story = Story();
  const std::vector<std::size_t> sizes = SizesOf(EncodeJournalHeader(kThisBoot), story);
  for (std::size_t written = 0; written <= story.size(); ++written) {
    std::string bytes = EncodeJournalHeader(kThisBoot);
    for (std::size_t i = 0; i < story.size(); ++i) {
      AppendJournalRecord(story[i], bytes);
      if (i + 1 == written) SetJournalLength(bytes);
    }
    for (std::size_t end = sizes[written]; end <= bytes.size(); ++end) {
      const ParsedJournal parsed = ParseJournal(std::string_view(bytes).substr(0, end), kThisBoot);
      const std::size_t whole = WholeRecords(sizes, end);
      ASSERT_EQ(parsed.condition, sizes[whole] == end ? Condition::kWhole : Condition::kTorn)
          << "length " << sizes[written] << ", death at " << end;
      ASSERT_EQ(BytesOf(parsed.state), StateAfter(story, whole));
    }
  }
}

// Without a length a cut looks like an unfinished append.
TEST(JournalFormatTest, TheVersionBeforeTheLengthIsReadAlsoWithATornTail) {
  std::string bytes = Header(3);
  for (const v1::JournalRecord& record : Story()) AppendJournalRecord(record, bytes);
  const std::vector<std::size_t> sizes = SizesOf(Header(3), Story());
  for (std::size_t cut = sizes.front(); cut <= bytes.size(); ++cut) {
    const ParsedJournal parsed = ParseJournal(std::string_view(bytes).substr(0, cut), kThisBoot);
    const std::size_t whole = WholeRecords(sizes, cut);
    ASSERT_EQ(parsed.condition, sizes[whole] == cut ? Condition::kWhole : Condition::kTorn)
        << "cut at " << cut;
    ASSERT_EQ(BytesOf(parsed.state), StateAfter(Story(), whole));
  }
}

TEST(JournalFormatTest, RecordsBehindADamagedLengthAreRead) {
  std::string bytes = Encode(Story());
  bytes[kJournalLengthAt] = static_cast<char>(bytes[kJournalLengthAt] ^ 1);
  const ParsedJournal parsed = ParseJournal(bytes, kThisBoot);
  EXPECT_EQ(parsed.condition, Condition::kDamaged);
  EXPECT_EQ(BytesOf(parsed.state), StateAfter(Story(), Story().size()));
}

TEST(JournalFormatTest, EveryFlippedBitIsNoticed) {
  const std::string bytes = Encode(Story());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      ASSERT_EQ(ParseJournal(damaged, kThisBoot).condition, Condition::kDamaged)
          << "bit " << bit << " of byte " << at;
    }
  }
}

TEST(JournalFormatTest, AnotherBootHasNothing) {
  const ParsedJournal parsed = ParseJournal(Encode(Story()), kOtherBoot);
  EXPECT_EQ(parsed.condition, Condition::kForeignBoot);
  EXPECT_TRUE(parsed.state.chunks().empty());
}

TEST(JournalFormatTest, NoJournalIsDamage) {
  EXPECT_EQ(ParseJournal("", kThisBoot).condition, Condition::kDamaged);
  EXPECT_EQ(ParseJournal(std::string(200, 'x'), kThisBoot).condition, Condition::kDamaged);
}

TEST(JournalFormatTest, AnUnknownKindOfRecordIsDamage) {
  std::string bytes = Encode(Story());
  AppendJournalRecord(v1::JournalRecord(), bytes);
  const ParsedJournal parsed = ParseJournal(bytes, kThisBoot);
  EXPECT_EQ(parsed.condition, Condition::kDamaged);
  EXPECT_THAT(parsed.detail, HasSubstr("does not know"));
  EXPECT_EQ(parsed.state.chunks().size(), 2u);
}

TEST(JournalFormatTest, APayloadThatIsNoRecordIsDamageThoughItsChecksumIsRight) {
  std::string bytes = Encode(Story());
  const std::string payload = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff";
  const std::string length{static_cast<char>(payload.size()), 0, 0, 0};
  bytes += length;
  for (const std::string_view part : {std::string_view(length), std::string_view(payload)}) {
    const std::uint32_t checksum = Crc32c(part);
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(checksum >> shift));
  }
  bytes += payload;
  const ParsedJournal parsed = ParseJournal(bytes, kThisBoot);
  EXPECT_EQ(parsed.condition, Condition::kDamaged);
  EXPECT_THAT(parsed.detail, HasSubstr("a record cannot be read at byte"));
  EXPECT_EQ(parsed.state.chunks().size(), 2u) << "the records before it are told";
}

v1::JournalRecord LeaseRecordWithSizes(std::uint64_t limit, std::uint64_t guarantee) {
  v1::JournalRecord record = LeaseRecord(2, 6);
  record.mutable_lease()->mutable_devices(0)->set_limit_bytes(limit);
  record.mutable_lease()->mutable_devices(0)->set_guarantee_bytes(guarantee);
  return record;
}

v1::JournalRecord LeaseRecordWithTwoDevices() {
  v1::JournalRecord record = LeaseRecord(1, 5);
  *record.mutable_lease()->add_devices() = record.lease().devices(0);
  record.mutable_lease()->mutable_devices(1)->set_id(6);
  return record;
}

TEST(JournalFormatTest, ImpossibleRecordsAreRefusedAndChangeNothing) {
  JournalState state;
  for (const v1::JournalRecord& record : Story()) ASSERT_TRUE(state.Apply(record).ok());
  std::string before;
  state.Encode(before);
  const std::vector<v1::JournalRecord> impossible = {
      GrantedRecord(11, 3, 5),                                   // granted already
      GrantedRecord(20, 4, 5),                                   // no such session
      GrantedRecord(20, 3, 6),                                   // no such device
      GrantedRecord(0, 3, 5),                                    // no id
      SessionRecord(9, 2),                                       // no such lease
      LeaseRecord(2, 5),                                         // another one's device
      LeaseRecord(1, 6),                                         // other devices than before
      SessionGoneRecord(3),                                      // it holds memory
      LeaseGoneRecord(1),                                        // it has a session
      LeaseRecordWithTwoDevices(),                               // more devices than before
      LeaseRecordWithSizes(std::uint64_t{1} << 51, 0),           // more than any card has
      LeaseRecordWithSizes(std::uint64_t{1} << 30, 2ull << 30),  // a guarantee above the limit
      ChargedRecord(3, 5, std::uint64_t{1} << 51),               // more than any card has
  };
  for (const v1::JournalRecord& record : impossible) {
    EXPECT_TRUE(absl::IsInvalidArgument(state.Apply(record))) << record.ShortDebugString();
  }
  std::string after;
  state.Encode(after);
  EXPECT_EQ(before, after);
  for (const v1::JournalRecord& record :
       {Freed(11), Freed(12), SessionGoneRecord(3), LeaseGoneRecord(1), LeaseGoneRecord(1)}) {
    EXPECT_TRUE(state.Apply(record).ok()) << record.ShortDebugString();
  }
  EXPECT_TRUE(state.leases().empty() && state.sessions().empty() && state.chunks().empty());
}

TEST(JournalFormatTest, Crc32cOfTheStandardsExample) { EXPECT_EQ(Crc32c("123456789"), 0xe3069283u); }

// The journal of a later lgpud, which an earlier one has replaced.
TEST(JournalFormatTest, AnotherVersionIsNotGuessedAt) {
  std::string bytes = Header(7);
  AppendJournalRecord(LeaseRecord(1, 1), bytes);
  const ParsedJournal parsed = ParseJournal(bytes, kThisBoot);
  EXPECT_EQ(parsed.condition, Condition::kDamaged);
  EXPECT_THAT(parsed.detail, HasSubstr("version 7"));
  EXPECT_TRUE(parsed.state.leases().empty());
}

}  // namespace
}  // namespace lgpu::daemon
