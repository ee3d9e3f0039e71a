#include "daemon/leases/lease_file.h"

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/recovery/journal_format.h"

namespace lgpu::daemon {
namespace {

// What the payload of a damaged record still says of its lease.
std::string DescribeRecord(std::string_view payload) {
  const google::protobuf::LogSilencer quiet;  // it may have strings that are not UTF-8
  const std::string_view start = payload.substr(0, kMaxJournalRecord);
  v1::JournalRecord record;
  // An error leaves the fields before it.
  (void)record.ParsePartialFromArray(start.data(), static_cast<int>(start.size()));
  const v1::JournalLease& lease = record.lease();
  if (lease.id().empty() && lease.name().empty()) return "its lease is unknown";
  return absl::StrCat("it seems to be lease \"", absl::CHexEscape(lease.name()), "\" (",
                      absl::CHexEscape(lease.id()), ") of user ", lease.owner_uid());
}

absl::Status ApplyLeaseRecord(std::string_view payload, JournalState& state) {
  v1::JournalRecord record;
  if (!record.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return absl::InvalidArgumentError("it cannot be read");
  }
  if (!record.has_lease()) return absl::InvalidArgumentError("it is no lease");
  return state.Apply(record);
}

// Where the first whole record begins, from byte `from` on; the end of `bytes` if there is none.
std::size_t FindWholeRecord(std::string_view bytes, std::size_t from) {
  for (std::size_t at = from; at < bytes.size(); ++at) {
    if (ReadRawRecord(bytes.substr(at)).condition == RawRecord::Condition::kWhole) return at;
  }
  return bytes.size();
}

struct FoundEnd {
  std::size_t at = 0;
  bool is_payload_whole = false;
};
// Where the record at the beginning of `bytes` ends, whose length is wrong. The checksum of the payload tells
// the end. Where the payload is damaged too, this is the beginning of the next whole record: no text of a
// user has the zeros of a short record's length.
FoundEnd FindEndOfRecord(std::string_view bytes) {
  const std::uint32_t checksum = ReadRawRecord(bytes).checksum;
  const std::size_t last = std::min(bytes.size(), RawRecord::kHeaderBytes + kMaxJournalRecord);
  std::size_t summed = RawRecord::kHeaderBytes;
  std::uint32_t sum = 0;
  for (std::size_t at = summed; at <= last; ++at) {
    const bool may_be_end =
        at == bytes.size() || ReadRawRecord(bytes.substr(at)).condition != RawRecord::Condition::kLengthWrong;
    if (!may_be_end) continue;
    sum = Crc32c(bytes.substr(summed, at - summed), sum);
    summed = at;
    if (sum == checksum) return {.at = at, .is_payload_whole = true};
  }
  return {.at = FindWholeRecord(bytes, 1)};
}

// Reads the record at byte `at`, and returns where the next one begins.
std::size_t ReadLeaseRecord(std::string_view bytes, std::size_t at, JournalState& state,
                            std::vector<std::string>& damages) {
  const std::string_view rest = bytes.substr(at);
  const RawRecord record = ReadRawRecord(rest);
  switch (record.condition) {
    case RawRecord::Condition::kWhole:
      if (const absl::Status applied = ApplyLeaseRecord(record.payload, state); !applied.ok()) {
        damages.push_back(absl::StrCat("the record at byte ", at, " is skipped: ",
                                       std::string(applied.message()), "; ", DescribeRecord(record.payload)));
      }
      return at + record.bytes();
    case RawRecord::Condition::kPayloadWrong:
      damages.push_back(absl::StrCat("the record at byte ", at, " is skipped: its checksum is wrong; ",
                                     DescribeRecord(record.payload)));
      return at + record.bytes();
    case RawRecord::Condition::kUnfinished:
      damages.push_back(absl::StrCat("the record at byte ", at, " is skipped: the file ends within it; ",
                                     DescribeRecord(record.payload)));
      return bytes.size();
    case RawRecord::Condition::kLengthWrong:
      break;
  }
  const FoundEnd end = FindEndOfRecord(rest);
  const std::string_view there = rest.substr(0, end.at);
  const std::string_view payload = there.substr(std::min(there.size(), RawRecord::kHeaderBytes));
  if (end.is_payload_whole && ApplyLeaseRecord(payload, state).ok()) {
    damages.push_back(absl::StrCat("the length of the record at byte ", at,
                                   " is wrong; its lease is kept: ", DescribeRecord(payload)));
  } else {
    damages.push_back(absl::StrCat("bytes ", at, " to ", at + end.at,
                                   " are skipped: the length of a record is wrong; ",
                                   DescribeRecord(payload)));
  }
  return at + end.at;
}

}  // namespace

ParsedLeaseFile ParseLeaseFile(std::string_view bytes) {
  ParsedLeaseFile parsed;
  const JournalHeader header = ReadJournalHeader(bytes);
  const bool is_header_fine = header.wrong.empty();
  if (!is_header_fine) parsed.damages.push_back(header.wrong);
  if (header.is_other_version) return parsed;
  JournalState state;
  // A damaged header does not tell its version, and so not its size.
  std::size_t at = is_header_fine ? header.bytes : FindWholeRecord(bytes, kJournalLengthAt);
  while (at < bytes.size()) at = ReadLeaseRecord(bytes, at, state, parsed.damages);
  if (is_header_fine && !header.length) {
    parsed.damages.push_back("the checksum of the file's length is wrong");
  } else if (is_header_fine && bytes.size() < *header.length) {
    parsed.damages.push_back(
        absl::StrCat("the file was cut short: ", *header.length - bytes.size(), " bytes are missing"));
  }
  for (const auto& [key, lease] : state.leases()) parsed.leases.push_back(lease);
  return parsed;
}

}  // namespace lgpu::daemon
