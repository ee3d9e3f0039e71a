// Any bytes as a journal, and as a file of lasting leases: they are read to some end, and the state read can
// be written and read again.
//
// Input: the bytes behind the header, with the checksums of byte 0's choice made right so that the fuzzer
// comes further than them.

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "daemon/leases/lease_file.h"
#include "daemon/recovery/journal_format.h"

namespace lgpu::daemon {
namespace {

constexpr char kBoot[] = "01234567-89ab-cdef-0123-456789abcdef";

// protobuf writes a line for every string that is not UTF-8.
[[maybe_unused]] google::protobuf::LogHandler* const kQuiet = google::protobuf::SetLogHandler(nullptr);

void CheckRoundTrip(const ParsedJournal& parsed) {
  std::string bytes = EncodeJournalHeader(kBoot);
  parsed.state.Encode(bytes);
  const ParsedJournal again = ParseJournal(bytes, kBoot);
  LGPU_CHECK(again.condition == ParsedJournal::Condition::kWhole);
  std::string twice = EncodeJournalHeader(kBoot);
  again.state.Encode(twice);
  LGPU_CHECK(bytes == twice);
}

void CheckLeases(std::string_view input) {
  const ParsedLeaseFile parsed = ParseLeaseFile(input);
  std::string bytes = EncodeJournalHeader("");
  v1::JournalRecord record;
  for (const v1::JournalLease& lease : parsed.leases) {
    *record.mutable_lease() = lease;
    AppendJournalRecord(record, bytes);
  }
  SetJournalLength(bytes);
  const ParsedLeaseFile again = ParseLeaseFile(bytes);
  LGPU_CHECK(again.damages.empty());
  LGPU_CHECK(again.leases.size() == parsed.leases.size());
}

// Pieces of the input, each behind a byte with its length, as payloads with right checksums.
std::string WithChecksums(const std::uint8_t* data, std::size_t size) {
  std::string bytes = EncodeJournalHeader(kBoot);
  for (std::size_t at = 0; at < size;) {
    const std::size_t length = std::min<std::size_t>(data[at], size - at - 1);
    v1::JournalRecord record;
    if (record.ParseFromArray(data + at + 1, static_cast<int>(length))) AppendJournalRecord(record, bytes);
    at += length + 1;
  }
  return bytes;
}

}  // namespace
}  // namespace lgpu::daemon

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lgpu::daemon;
  if (size == 0) return 0;
  const bool raw = data[0] % 2 == 0;
  const std::string bytes = raw ? EncodeJournalHeader(kBoot) + std::string(data + 1, data + size)
                                : WithChecksums(data + 1, size - 1);
  CheckRoundTrip(ParseJournal(bytes, kBoot));
  CheckLeases(bytes);
  if (!raw) return 0;
  const std::string_view whole(reinterpret_cast<const char*>(data), size);
  (void)ParseJournal(whole, kBoot);
  CheckLeases(whole);
  return 0;
}
