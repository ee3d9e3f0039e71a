#include "allocator/broker/session_restore.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_core.h"
#include "allocator/broker/chunk_reclaimer.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

absl::Status NotInJournal(const Chunk& chunk, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.id.value, " of ", FormatBytes(chunk.bytes),
                                                 " is not this session's: ", std::string(why)));
}

absl::Status CheckAmounts(const BrokerTables& tables, std::span<const SessionRestore::RestoredChunk> chunks,
                          std::span<const SessionRestore::RestoredCharge> charges) {
  const auto is_amount_of = [&tables](LogicalId id, Bytes bytes) {
    const auto device = tables.devices.find(id);
    return device != tables.devices.end() &&
           RoundDown(bytes, tables.GranuleOf(device->second.spec.card)) == bytes;
  };
  for (const SessionRestore::RestoredChunk& chunk : chunks) {
    if (chunk.bytes.is_zero() || tables.chunks.contains(chunk.id) ||
        !is_amount_of(chunk.device, chunk.bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.id.value, " cannot be restored"));
    }
  }
  for (const SessionRestore::RestoredCharge& charge : charges) {
    if (!is_amount_of(charge.device, charge.bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("charges of device ", charge.device.value, " cannot be restored"));
    }
  }
  return absl::OkStatus();
}

// The granted chunk that the session claims. INVALID_ARGUMENT if the log does not say the same.
absl::StatusOr<ChunkEntry*> FindClaimed(BrokerTables& tables, SessionId session, LogicalId device,
                                        const Chunk& claimed) {
  const auto found = tables.chunks.find(claimed.id);
  if (found == tables.chunks.end() || found->second.session != session) {
    return NotInJournal(claimed, "it was not granted to it");
  }
  ChunkEntry& chunk = found->second;
  if (chunk.device != device || chunk.bytes != claimed.bytes || chunk.state != ChunkEntry::State::kGranted) {
    return NotInJournal(claimed, "it was granted otherwise, or given back");
  }
  if (chunk.attested) return NotInJournal(claimed, "it was named twice");
  return &chunk;
}

}  // namespace

absl::Status SessionRestore::AddDevice(LogicalId id, const Broker::DeviceSpec& spec) {
  BrokerLock lock(core_);
  const Bytes guarantee = spec.preallocate ? spec.limit : spec.guarantee;
  LGPU_RETURN_IF_ERROR(
      core_.tables.ledger.RestoreLogical(id, spec.card, {.limit = spec.limit, .guarantee = guarantee}));
  DeviceEntry& device = core_.tables.devices[id];
  device.spec = spec;
  device.preempted.runs_since = core_.now();
  return absl::OkStatus();
}

absl::Status SessionRestore::AddSession(SessionId session, std::int64_t pid, std::shared_ptr<Waker> waker,
                                        LeaseKey lease, std::span<const SessionRestore::RestoredChunk> chunks,
                                        std::span<const SessionRestore::RestoredCharge> charges) {
  BrokerLock lock(core_);
  LGPU_RETURN_IF_ERROR(CheckAmounts(core_.tables, chunks, charges));
  SessionEntry& entry = core_.tables.sessions[session];
  entry.pid = pid;
  entry.waker = std::move(waker);
  entry.lease = lease;
  for (const SessionRestore::RestoredChunk& chunk : chunks) core_.chunks.Restore(session, chunk);
  for (const SessionRestore::RestoredCharge& charge : charges) {
    core_.charges.Restore(session, charge.device, charge.bytes);
  }
  return absl::OkStatus();
}

void SessionRestore::ChargeOverhead() {
  BrokerLock lock(core_);
  for (auto& [id, session] : core_.tables.sessions) {
    const auto suspension = core_.tables.suspensions.find(session.lease);
    const bool has_left = suspension != core_.tables.suspensions.end() && !suspension->second.is_own &&
                          suspension->second.sessions.contains(id);
    if (!has_left) core_.overheads.Charge(session);
  }
}

void SessionRestore::SkipIds(LogicalId device, ChunkId chunk) {
  BrokerLock lock(core_);
  core_.tables.ledger.SkipIds(device);
  core_.tables.last_chunk = std::max(core_.tables.last_chunk, chunk.value);
}

std::vector<std::uint64_t> SessionRestore::Identities(CardId card) const {
  std::vector<std::uint64_t> identities;
  BrokerLock lock(core_);
  for (const auto& [id, chunk] : core_.tables.chunks) {
    if (core_.tables.CardOf(chunk) == card) identities.push_back(chunk.identity);
  }
  return identities;
}

void SessionRestore::StartAttesting(SessionId session, Broker::SessionSpec spec) {
  BrokerLock lock(core_);
  SessionEntry& entry = core_.tables.sessions.at(session);
  entry.waker = std::move(spec.waker);
  entry.trims = false;
  entry.trims_when_back = spec.trims;
  entry.waits_longer = spec.waits_longer;
  entry.suspends_itself = spec.suspends_itself;
  entry.runs_release = spec.runs_release;
  entry.allowances.reset();
  for (auto& [card, charge] : entry.charges) charge.attested = Bytes();
  for (const ChunkId id : entry.chunks) core_.tables.chunks.at(id).attested = false;
}

absl::Status SessionRestore::Attest(SessionId session, LogicalId device, const Chunk& claimed, UniqueFd fd) {
  std::uint64_t identity = 0;
  int backend_device = 0;
  {
    BrokerLock lock(core_);
    LGPU_ASSIGN_OR_RETURN(ChunkEntry* const chunk, FindClaimed(core_.tables, session, device, claimed));
    identity = chunk->identity;
    if (!chunk->lost || identity == 0) {
      chunk->attested = true;
      return absl::OkStatus();
    }
    backend_device = core_.tables.cards.at(core_.tables.CardOf(device)).backend_device;
  }
  if (!fd) return NotInJournal(claimed, "its descriptor is missing");
  LGPU_ASSIGN_OR_RETURN(const MemoryHandle memory,
                        core_.backend.Import(backend_device, std::move(fd), claimed.bytes));
  if (core_.backend.Identity(memory) != identity) {
    core_.backend.Release(memory).IgnoreError();
    return NotInJournal(claimed, "its descriptor is of other memory");
  }
  BrokerLock lock(core_);
  // Only this session's thread attests its chunks.
  ChunkEntry& chunk = core_.tables.chunks.at(claimed.id);
  chunk.memory = memory;
  chunk.lost = false;
  chunk.attested = true;
  return absl::OkStatus();
}

absl::Status SessionRestore::AttestCharge(SessionId session, const std::string& card_uuid, Bytes bytes) {
  BrokerLock lock(core_);
  SessionEntry& entry = core_.tables.sessions.at(session);
  const std::optional<CardId> card = core_.tables.FindCard(card_uuid);
  const auto charge = card ? entry.charges.find(*card) : entry.charges.end();
  const Bytes known =
      charge == entry.charges.end() ? Bytes() : charge->second.lent + charge->second.parked.lent;
  if (bytes > known) {
    return absl::InvalidArgumentError(absl::StrCat("the session says that it has charged ",
                                                   FormatBytes(bytes), " of card \"", card_uuid,
                                                   "\", and was lent ", FormatBytes(known)));
  }
  if (!bytes.is_zero()) charge->second.attested = bytes;
  return absl::OkStatus();
}

void SessionRestore::FinishAttesting(SessionId session) {
  std::vector<ChunkId> leaving;
  {
    BrokerLock lock(core_);
    SessionEntry& entry = core_.tables.sessions.at(session);
    for (auto& [card, charge] : entry.charges) {
      if (!charge.parked.lent.is_zero()) {
        charge.parked.lent = std::min(charge.parked.lent, charge.attested);
      } else if (core_.charges.Lower(session, card, charge.attested)) {
        core_.scheduler.Serve(card);
      }
    }
    entry.trims = entry.trims_when_back && entry.charges.empty();  // a program that charges is not asked
    for (const ChunkId id : entry.Chunks()) {
      ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (chunk.state != ChunkEntry::State::kGranted || chunk.attested) continue;
      core_.chunks.StartLeaving(chunk, ChunkEntry::State::kReturning);
      leaving.push_back(id);
    }
  }
  reclaimer_.Reclaim(leaving);
}

void SessionRestore::GoAbsent(SessionId session) {
  BrokerLock lock(core_);
  core_.requests.Drop(session);
  core_.trims.Stop(session);
  core_.tables.sessions.at(session).allowances.reset();
}

}  // namespace lgpu
