#ifndef LGPU_DAEMON_RECOVERY_JOURNAL_FORMAT_H_
#define LGPU_DAEMON_RECOVERY_JOURNAL_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "lgpu/v1/journal.pb.h"

// The journal as bytes: pure, no file and no clock.
//
//   header   8 bytes "LGPUJRNL", version (4), boot id (36 characters, or zeros), CRC-32C of these (4);
//            from version 4 on: length of the file (8), CRC-32C of the length (4)
//   record   length of the payload (4), CRC-32C of the length (4), CRC-32C of the payload (4), payload
//
// Numbers are little-endian. The payload is a JournalRecord. lgpud writes the length of the file after each
// append, and before the appended records take effect. So a file that is shorter than its length was cut
// short. Bytes behind the length are of an append that the daemon's death interrupted. The length of a record
// has a checksum of its own, which tells an unfinished record from a damaged one.

namespace lgpu::daemon {

/// CRC-32C (Castagnoli) of `bytes`.
/// `before`: the checksum of the bytes in front of these.
std::uint32_t Crc32c(std::string_view bytes, std::uint32_t before = 0);

/// A JournalState is the state that all records of a journal add up to.
class JournalState {
 public:
  /// A record that cannot follow the earlier ones is INVALID_ARGUMENT and changes nothing: a grant to a
  /// session, or of a device, that is not there; a charge as a grant; a session of a lease that is not there;
  /// a lease or session that is gone while something is left of it; an id that is taken. The end of something
  /// that has ended already is fine.
  absl::Status Apply(const v1::JournalRecord& record);
  /// The shortest records that come to this state.
  void Encode(std::string& out) const;

  const std::map<std::uint64_t, v1::JournalLease>& leases() const { return leases_; }
  const std::map<std::uint64_t, v1::JournalSession>& sessions() const { return sessions_; }
  const std::map<std::uint64_t, v1::JournalGranted>& chunks() const { return chunks_; }
  /// The most that a session has charged, by session and device.
  const std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>& charges() const { return charges_; }
  const v1::JournalIds& ids() const { return ids_; }
  /// The uuids of cards of which a process may hold memory that no record names.
  const std::set<std::string>& unexplained() const { return unexplained_; }
  /// About as many bytes as Encode makes.
  std::size_t encoded_bytes() const;

 private:
  absl::Status ApplyLease(const v1::JournalLease& lease);
  absl::Status ApplySession(const v1::JournalSession& session);
  absl::Status ApplyGranted(const v1::JournalGranted& granted);
  absl::Status DropLease(std::uint64_t key);
  absl::Status DropSession(std::uint64_t id);
  absl::Status ApplyCharged(const v1::JournalCharged& charged);
  void ApplyFreed(std::uint64_t chunk);

  std::map<std::uint64_t, v1::JournalLease> leases_;
  std::map<std::uint64_t, v1::JournalSession> sessions_;
  std::map<std::uint64_t, v1::JournalGranted> chunks_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> charges_;
  std::map<std::uint64_t, std::uint64_t> device_leases_;     // which lease a device is of
  std::map<std::uint64_t, std::size_t> chunks_of_sessions_;  // how many; none is zero
  std::map<std::uint64_t, std::size_t> sessions_of_leases_;  // how many; none is zero
  std::set<std::string> unexplained_;
  v1::JournalIds ids_;
};

/// Version 2 added JournalCharged. Version 3 added managed leases: an older daemon would let their owners
/// resize them. Version 4 added the length of the file. Version 5 added JournalSuspended: an older daemon
/// would not know what it is to charge when the programs come back.
constexpr std::uint32_t kJournalVersion = 5;
constexpr std::uint32_t kOldestJournalVersion = 1;
constexpr std::size_t kBootIdBytes = 36;
/// Where the length of the file is; the header of an older version ends here.
constexpr std::size_t kJournalLengthAt = 8 + 4 + kBootIdBytes + 4;
constexpr std::size_t kJournalHeaderBytes = kJournalLengthAt + 8 + 4;
/// No payload is longer.
constexpr std::size_t kMaxJournalRecord = std::size_t{1} << 20;

/// The header of a journal without records. `boot_id`: 36 characters, or none.
std::string EncodeJournalHeader(std::string_view boot_id);
void AppendJournalRecord(const v1::JournalRecord& record, std::string& out);
/// The bytes at kJournalLengthAt of a journal of this length.
std::string EncodeJournalLength(std::uint64_t length);
/// Sets the length in the header of `journal` to its size.
void SetJournalLength(std::string& journal);

struct JournalHeader {
  std::string wrong = {};  // empty: the header is fine
  /// The header is whole, and of a version that this lgpud does not read.
  bool is_other_version = false;
  std::size_t bytes = 0;                     // of the header
  std::optional<std::uint64_t> length = {};  // of the file; none: its checksum is wrong
};
JournalHeader ReadJournalHeader(std::string_view bytes);

/// A record as bytes.
struct RawRecord {
  static constexpr std::size_t kHeaderBytes = 12;

  enum class Condition {
    kWhole,
    kUnfinished,    // the bytes end before the record does
    kLengthWrong,   // the end of the record is not known
    kPayloadWrong,  // the checksum of the payload is wrong
  };
  Condition condition = Condition::kUnfinished;
  std::uint32_t checksum = 0;  // of the payload, by the record's header
  std::string_view payload;    // what is there of it
  std::size_t bytes() const { return kHeaderBytes + payload.size(); }
};
/// The record at the beginning of `bytes`.
RawRecord ReadRawRecord(std::string_view bytes);

struct ParsedJournal {
  enum class Condition {
    kWhole,
    kTorn,         // the last append was not written to its end: it never took effect
    kForeignBoot,  // of an earlier boot of the machine: its processes are gone
    kDamaged,      // or cut short; `state` is that of the records before the damage
  };
  Condition condition = Condition::kWhole;
  std::string detail;  // of the damage, with its offset
  JournalState state;
};
/// Any bytes are fine. `boot_id` as in the header; an empty one fits every journal.
ParsedJournal ParseJournal(std::string_view bytes, std::string_view boot_id);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_RECOVERY_JOURNAL_FORMAT_H_
