#include "daemon/recovery/journal_format.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr std::string_view kMagic = "LGPUJRNL";
// As the ledger keeps its sums in range.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;

constexpr std::array<std::uint32_t, 256> MakeCrcTable() {
  constexpr std::uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = MakeCrcTable();

void AppendNumber(std::uint32_t number, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(number >> shift));
}

std::uint32_t ReadNumber(std::string_view bytes) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    number |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return number;
}

absl::Status Impossible(std::string_view what, std::uint64_t id) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), " ", id));
}

void CountDown(std::map<std::uint64_t, std::size_t>& counts, std::uint64_t key) {
  const auto found = counts.find(key);
  if (--found->second == 0) counts.erase(found);
}

}  // namespace

std::uint32_t Crc32c(std::string_view bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  for (const char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

absl::Status JournalState::ApplyLease(const v1::JournalLease& lease) {
  const auto known = leases_.find(lease.key());
  std::set<std::uint64_t> ids;
  for (const v1::JournalDevice& device : lease.devices()) {
    const auto owner = device_leases_.find(device.id());
    const bool taken = owner != device_leases_.end() && owner->second != lease.key();
    if (device.id() == 0 || taken || !ids.insert(device.id()).second) {
      return Impossible("a lease with another one's device", device.id());
    }
    if (device.limit_bytes() > kMostBytes || device.guarantee_bytes() > device.limit_bytes()) {
      return Impossible("a device with impossible sizes", device.id());
    }
  }
  if (lease.key() == 0) return Impossible("a lease with key", 0);
  if (known != leases_.end()) {
    // Memory may be granted on its devices: a new record of the lease must have the same ones.
    const v1::JournalLease& before = known->second;
    if (before.devices_size() != lease.devices_size()) {
      return Impossible("other devices of lease", lease.key());
    }
    for (int i = 0; i < lease.devices_size(); ++i) {
      if (before.devices(i).id() != lease.devices(i).id()) {
        return Impossible("other devices of lease", lease.key());
      }
    }
  }
  for (const std::uint64_t id : ids) {
    device_leases_[id] = lease.key();
    ids_.set_device_id(std::max(ids_.device_id(), id));
  }
  ids_.set_lease_key(std::max(ids_.lease_key(), lease.key()));
  leases_[lease.key()] = lease;
  return absl::OkStatus();
}

absl::Status JournalState::DropLease(std::uint64_t key) {
  const auto found = leases_.find(key);
  if (found == leases_.end()) return absl::OkStatus();
  if (sessions_of_leases_.contains(key)) return Impossible("sessions are left of the ended lease", key);
  for (const v1::JournalDevice& device : found->second.devices()) device_leases_.erase(device.id());
  leases_.erase(found);
  return absl::OkStatus();
}

absl::Status JournalState::ApplySession(const v1::JournalSession& session) {
  const auto known = sessions_.find(session.id());
  if (session.id() == 0 || !leases_.contains(session.lease_key()) ||
      (known != sessions_.end() && known->second.lease_key() != session.lease_key())) {
    return Impossible("a session of no lease:", session.id());
  }
  if (known == sessions_.end()) ++sessions_of_leases_[session.lease_key()];
  ids_.set_session_id(std::max(ids_.session_id(), session.id()));
  sessions_[session.id()] = session;
  return absl::OkStatus();
}

absl::Status JournalState::DropSession(std::uint64_t id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return absl::OkStatus();
  if (chunks_of_sessions_.contains(id)) return Impossible("chunks are left of the ended session", id);
  CountDown(sessions_of_leases_, found->second.lease_key());
  charges_.erase(charges_.lower_bound({id, 0}), charges_.upper_bound({id, ~std::uint64_t{0}}));
  sessions_.erase(found);
  return absl::OkStatus();
}

absl::Status JournalState::ApplyGranted(const v1::JournalGranted& granted) {
  const auto session = sessions_.find(granted.session_id());
  const auto device = device_leases_.find(granted.device_id());
  if (session == sessions_.end() || device == device_leases_.end() ||
      device->second != session->second.lease_key() || granted.chunk_id() == 0 || granted.bytes() == 0 ||
      granted.bytes() > kMostBytes) {
    return Impossible("an impossible grant of chunk", granted.chunk_id());
  }
  if (!chunks_.try_emplace(granted.chunk_id(), granted).second) {
    return Impossible("granted twice: chunk", granted.chunk_id());
  }
  ids_.set_chunk_id(std::max(ids_.chunk_id(), granted.chunk_id()));
  ++chunks_of_sessions_[granted.session_id()];
  return absl::OkStatus();
}

absl::Status JournalState::ApplyCharged(const v1::JournalCharged& charged) {
  const auto session = sessions_.find(charged.session_id());
  const auto device = device_leases_.find(charged.device_id());
  if (session == sessions_.end() || device == device_leases_.end() ||
      device->second != session->second.lease_key() || charged.bytes() > kMostBytes) {
    return Impossible("an impossible charge of session", charged.session_id());
  }
  charges_[{charged.session_id(), charged.device_id()}] = charged.bytes();
  return absl::OkStatus();
}

void JournalState::ApplyFreed(std::uint64_t chunk) {
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end()) return;
  CountDown(chunks_of_sessions_, found->second.session_id());
  chunks_.erase(found);
}

absl::Status JournalState::Apply(const v1::JournalRecord& record) {
  switch (record.body_case()) {
    case v1::JournalRecord::kLease:
      return ApplyLease(record.lease());
    case v1::JournalRecord::kLeaseGone:
      return DropLease(record.lease_gone().key());
    case v1::JournalRecord::kSession:
      return ApplySession(record.session());
    case v1::JournalRecord::kSessionGone:
      return DropSession(record.session_gone().id());
    case v1::JournalRecord::kGranted:
      return ApplyGranted(record.granted());
    case v1::JournalRecord::kFreed:
      ApplyFreed(record.freed().chunk_id());
      return absl::OkStatus();
    case v1::JournalRecord::kCharged:
      return ApplyCharged(record.charged());
    case v1::JournalRecord::kIds: {
      const v1::JournalIds& ids = record.ids();
      ids_.set_lease_key(std::max(ids_.lease_key(), ids.lease_key()));
      ids_.set_session_id(std::max(ids_.session_id(), ids.session_id()));
      ids_.set_device_id(std::max(ids_.device_id(), ids.device_id()));
      ids_.set_chunk_id(std::max(ids_.chunk_id(), ids.chunk_id()));
      return absl::OkStatus();
    }
    case v1::JournalRecord::kUnexplained:
      if (record.unexplained().explained()) {
        unexplained_.erase(record.unexplained().card_uuid());
      } else {
        unexplained_.insert(record.unexplained().card_uuid());
      }
      return absl::OkStatus();
    case v1::JournalRecord::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a record of a kind that this lgpud does not know");
}

void JournalState::Encode(std::string& out) const {
  v1::JournalRecord record;
  *record.mutable_ids() = ids_;
  AppendJournalRecord(record, out);
  for (const std::string& uuid : unexplained_) {
    record.mutable_unexplained()->set_card_uuid(uuid);
    AppendJournalRecord(record, out);
  }
  for (const auto& [key, lease] : leases_) {
    *record.mutable_lease() = lease;
    AppendJournalRecord(record, out);
  }
  for (const auto& [id, session] : sessions_) {
    *record.mutable_session() = session;
    AppendJournalRecord(record, out);
  }
  for (const auto& [id, chunk] : chunks_) {
    *record.mutable_granted() = chunk;
    AppendJournalRecord(record, out);
  }
  for (const auto& [of, bytes] : charges_) {
    record.mutable_charged()->set_session_id(of.first);
    record.mutable_charged()->set_device_id(of.second);
    record.mutable_charged()->set_bytes(bytes);
    AppendJournalRecord(record, out);
  }
}

std::size_t JournalState::encoded_bytes() const {
  constexpr std::size_t kLease = 256, kSession = 160, kChunk = 40, kCharge = 32;
  return kJournalHeaderBytes + leases_.size() * kLease + sessions_.size() * kSession +
         chunks_.size() * kChunk + charges_.size() * kCharge;
}

std::string EncodeJournalHeader(std::string_view boot_id) {
  LGPU_CHECK(boot_id.empty() || boot_id.size() == kBootIdBytes);
  std::string header(kMagic);
  AppendNumber(kJournalVersion, header);
  header += boot_id;
  header.resize(kJournalLengthAt - 4, '\0');
  AppendNumber(Crc32c(header), header);
  header += EncodeJournalLength(kJournalHeaderBytes);
  return header;
}

std::string EncodeJournalLength(std::uint64_t length) {
  std::string bytes;
  AppendNumber(static_cast<std::uint32_t>(length), bytes);
  AppendNumber(static_cast<std::uint32_t>(length >> 32), bytes);
  AppendNumber(Crc32c(bytes), bytes);
  return bytes;
}

void SetJournalLength(std::string& journal) {
  const std::string length = EncodeJournalLength(journal.size());
  std::copy(length.begin(), length.end(), journal.begin() + static_cast<std::ptrdiff_t>(kJournalLengthAt));
}

void AppendJournalRecord(const v1::JournalRecord& record, std::string& out) {
  const std::size_t start = out.size();
  out.resize(start + RawRecord::kHeaderBytes);
  LGPU_CHECK(record.AppendToString(&out));
  const std::size_t length = out.size() - start - RawRecord::kHeaderBytes;
  LGPU_CHECK_OP(length, <=, kMaxJournalRecord);
  std::string header;
  AppendNumber(static_cast<std::uint32_t>(length), header);
  AppendNumber(Crc32c(header), header);
  AppendNumber(Crc32c(std::string_view(out).substr(start + RawRecord::kHeaderBytes)), header);
  std::copy(header.begin(), header.end(), out.begin() + static_cast<std::ptrdiff_t>(start));
}

JournalHeader ReadJournalHeader(std::string_view bytes) {
  constexpr std::uint32_t kFirstVersionWithLength = 4;
  if (bytes.size() < kJournalLengthAt) return {.wrong = "it is shorter than its header"};
  const std::string_view start = bytes.substr(0, kJournalLengthAt);
  if (start.substr(0, kMagic.size()) != kMagic) return {.wrong = "it is no journal of lgpud"};
  if (Crc32c(start.substr(0, kJournalLengthAt - 4)) != ReadNumber(start.substr(kJournalLengthAt - 4))) {
    return {.wrong = "the checksum of its header is wrong"};
  }
  const std::uint32_t version = ReadNumber(start.substr(kMagic.size()));
  if (version < kOldestJournalVersion || version > kJournalVersion) {
    return {.wrong = absl::StrCat("it has version ", version, ", this lgpud reads ", kOldestJournalVersion,
                                  " to ", kJournalVersion),
            .is_other_version = true};
  }
  // Files of older versions do not tell their length.
  if (version < kFirstVersionWithLength) return {.bytes = kJournalLengthAt, .length = kJournalLengthAt};
  if (bytes.size() < kJournalHeaderBytes) return {.wrong = "it is shorter than its header"};
  const std::string_view length = bytes.substr(kJournalLengthAt);
  JournalHeader header{.bytes = kJournalHeaderBytes};
  if (Crc32c(length.substr(0, 8)) == ReadNumber(length.substr(8))) {
    header.length = ReadNumber(length) | std::uint64_t{ReadNumber(length.substr(4))} << 32;
  }
  return header;
}

RawRecord ReadRawRecord(std::string_view bytes) {
  RawRecord record;
  if (bytes.size() < RawRecord::kHeaderBytes) return record;
  const std::uint32_t length = ReadNumber(bytes);
  record.checksum = ReadNumber(bytes.substr(8));
  if (Crc32c(bytes.substr(0, 4)) != ReadNumber(bytes.substr(4)) || length > kMaxJournalRecord) {
    record.condition = RawRecord::Condition::kLengthWrong;
    return record;
  }
  record.payload = bytes.substr(RawRecord::kHeaderBytes, length);
  if (record.payload.size() < length) return record;
  record.condition = Crc32c(record.payload) == record.checksum ? RawRecord::Condition::kWhole
                                                               : RawRecord::Condition::kPayloadWrong;
  return record;
}

ParsedJournal ParseJournal(std::string_view bytes, std::string_view boot_id) {
  using Condition = ParsedJournal::Condition;
  ParsedJournal parsed;
  JournalHeader header = ReadJournalHeader(bytes);
  if (!header.wrong.empty()) {
    parsed.condition = Condition::kDamaged;
    parsed.detail = std::move(header.wrong);
    return parsed;
  }
  if (!boot_id.empty() && bytes.substr(kMagic.size() + 4, kBootIdBytes) != boot_id) {
    parsed.condition = Condition::kForeignBoot;
    return parsed;
  }
  const auto damaged = [&](std::size_t at, const std::string& what) {
    parsed.condition = Condition::kDamaged;
    parsed.detail = absl::StrCat(what, " at byte ", at, " of ", bytes.size());
  };
  v1::JournalRecord record;
  std::size_t at = header.bytes;
  while (at < bytes.size()) {
    const RawRecord raw = ReadRawRecord(bytes.substr(at));
    if (raw.condition == RawRecord::Condition::kUnfinished) {
      parsed.condition = Condition::kTorn;
      break;
    }
    if (raw.condition == RawRecord::Condition::kLengthWrong) {
      damaged(at, "the length of a record is wrong");
      break;
    }
    if (raw.condition == RawRecord::Condition::kPayloadWrong) {
      damaged(at, "the checksum of a record is wrong");
      break;
    }
    if (!record.ParseFromArray(raw.payload.data(), static_cast<int>(raw.payload.size()))) {
      damaged(at, "a record cannot be read");
      break;
    }
    if (const absl::Status applied = parsed.state.Apply(record); !applied.ok()) {
      damaged(at, std::string(applied.message()));
      break;
    }
    at += raw.bytes();
  }
  if (parsed.condition == Condition::kDamaged) return parsed;
  if (!header.length) {
    damaged(kJournalLengthAt, "the checksum of the file's length is wrong");
  } else if (at < *header.length) {
    damaged(at, absl::StrCat("the file was cut short: ", *header.length - at, " bytes are missing"));
  }
  return parsed;
}

}  // namespace lgpu::daemon
