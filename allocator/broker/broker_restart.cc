// A broker takes over what an earlier one granted: from the journal, and from
// sessions that come back.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_impl.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

absl::Status NotInJournal(const Chunk& chunk, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.id.value, " of ", FormatBytes(chunk.bytes),
                                                 " is not this session's: ", std::string(why)));
}

}  // namespace

absl::Status BrokerImpl::RestoreDevice(LogicalId id, const DeviceSpec& spec) {
  BrokerLock lock(core_);
  const Bytes guarantee = spec.preallocate ? spec.limit : spec.guarantee;
  LGPU_RETURN_IF_ERROR(
      core_.tables.ledger.RestoreLogical(id, spec.card, {.limit = spec.limit, .guarantee = guarantee}));
  core_.tables.devices[id].spec = spec;
  return absl::OkStatus();
}

absl::Status BrokerImpl::RestoreSession(SessionId session, std::int64_t pid, std::shared_ptr<Waker> waker,
                                        LeaseKey lease, std::span<const RestoredChunk> chunks,
                                        std::span<const RestoredCharge> charges) {
  BrokerLock lock(core_);
  for (const RestoredChunk& chunk : chunks) {
    const auto device = core_.tables.devices.find(chunk.device);
    const bool fits =
        device != core_.tables.devices.end() && !chunk.bytes.is_zero() &&
        !core_.tables.chunks.contains(chunk.id) &&
        RoundDown(chunk.bytes, core_.tables.cards.at(device->second.spec.card).device.granularity) ==
            chunk.bytes;
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.id.value, " cannot be restored"));
    }
  }
  for (const RestoredCharge& charge : charges) {
    const auto device = core_.tables.devices.find(charge.device);
    if (device == core_.tables.devices.end() ||
        RoundDown(charge.bytes, core_.tables.cards.at(device->second.spec.card).device.granularity) !=
            charge.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("charges of device ", charge.device.value, " cannot be restored"));
    }
  }
  SessionEntry& entry = core_.tables.sessions[session];
  entry.pid = pid;
  entry.waker = std::move(waker);
  entry.lease = lease;
  for (const RestoredChunk& restored : chunks) {
    ChunkEntry& chunk = core_.tables.chunks[restored.id];
    chunk.device = restored.device;
    chunk.session = session;
    chunk.bytes = restored.bytes;
    chunk.identity = restored.identity;
    chunk.lost = true;
    entry.chunks.insert(restored.id);
    entry.held += restored.bytes;
    core_.tables.devices.at(restored.device).held_by[session] += restored.bytes;
    core_.tables.ledger.Adopt(restored.device, restored.bytes);
    core_.tables.last_chunk = std::max(core_.tables.last_chunk, restored.id.value);
  }
  for (const RestoredCharge& restored : charges) {
    if (restored.bytes.is_zero()) continue;
    DeviceEntry& device = core_.tables.devices.at(restored.device);
    CardCharge& charge = entry.charges[device.spec.card];
    charge.index = IndexOf(lease, device.spec.card);
    charge.lent += restored.bytes;
    charge.held[restored.device] = restored.bytes;
    charge.logged[restored.device] = restored.bytes;
    core_.tables.charging.emplace(device.spec.card, session);
    entry.held += restored.bytes;
    device.lent += restored.bytes;
    device.held_by[session] += restored.bytes;
    core_.tables.ledger.Adopt(restored.device, restored.bytes);
  }
  return absl::OkStatus();
}

void BrokerImpl::SkipIds(LogicalId device, ChunkId chunk) {
  BrokerLock lock(core_);
  core_.tables.ledger.SkipIds(device);
  core_.tables.last_chunk = std::max(core_.tables.last_chunk, chunk.value);
}

absl::Status BrokerImpl::MakeMissing(LogicalId logical) {
  Bytes charged;
  {
    BrokerLock lock(core_);
    const auto device = core_.tables.devices.find(logical);
    if (device == core_.tables.devices.end() || !device->second.spec.preallocate || device->second.removed ||
        core_.now() < device->second.last_charge + kBallastRest) {
      return absl::OkStatus();
    }
    charged = ChargeRoom(logical, device->second);
  }
  return charged.is_zero() ? absl::OkStatus() : MakeSpare(logical, charged, core_.now());
}

void BrokerImpl::StartAttesting(SessionId session, SessionSpec spec) {
  BrokerLock lock(core_);
  SessionEntry& entry = core_.tables.sessions.at(session);
  entry.waker = std::move(spec.waker);
  entry.trims = false;
  entry.trims_when_back = spec.trims;
  entry.allowances.reset();
  for (auto& [card, charge] : entry.charges) charge.attested = Bytes();
  for (const ChunkId id : entry.chunks) {
    core_.tables.chunks.at(id).attested = false;
  }
}

absl::Status BrokerImpl::Attest(SessionId session, LogicalId device, const Chunk& claimed, UniqueFd fd) {
  std::uint64_t identity = 0;
  int backend_device = 0;
  {
    BrokerLock lock(core_);
    const auto found = core_.tables.chunks.find(claimed.id);
    if (found == core_.tables.chunks.end() || found->second.session != session) {
      return NotInJournal(claimed, "it was not granted to it");
    }
    ChunkEntry& chunk = found->second;
    if (chunk.device != device || chunk.bytes != claimed.bytes ||
        chunk.state != ChunkEntry::State::kGranted) {
      return NotInJournal(claimed, "it was granted otherwise, or given back");
    }
    if (chunk.attested) {
      return NotInJournal(claimed, "it was named twice");
    }
    identity = chunk.identity;
    if (!chunk.lost || identity == 0) {
      chunk.attested = true;
      return absl::OkStatus();
    }
    backend_device = core_.tables.cards.at(core_.tables.devices.at(device).spec.card).backend_device;
  }
  if (!fd) {
    return NotInJournal(claimed, "its descriptor is missing");
  }
  LGPU_ASSIGN_OR_RETURN(const MemoryHandle memory,
                        core_.backend.Import(backend_device, std::move(fd), claimed.bytes));
  if (core_.backend.Identity(memory) != identity) {
    core_.backend.Release(memory).IgnoreError();
    return NotInJournal(claimed, "its descriptor is of other memory");
  }
  BrokerLock lock(core_);
  // Only this session's thread comes here.
  ChunkEntry& chunk = core_.tables.chunks.at(claimed.id);
  chunk.memory = memory;
  chunk.lost = false;
  chunk.attested = true;
  return absl::OkStatus();
}

absl::Status BrokerImpl::AttestCharge(SessionId session, const std::string& card_uuid, Bytes bytes) {
  BrokerLock lock(core_);
  SessionEntry& entry = core_.tables.sessions.at(session);
  const std::optional<CardId> card = FindCard(card_uuid);
  const auto charge = card ? entry.charges.find(*card) : entry.charges.end();
  const Bytes known = charge == entry.charges.end() ? Bytes() : charge->second.lent;
  if (bytes > known) {
    return absl::InvalidArgumentError(absl::StrCat("the session says that it has charged ",
                                                   FormatBytes(bytes), " of card \"", card_uuid,
                                                   "\", and was lent ", FormatBytes(known)));
  }
  if (!bytes.is_zero()) charge->second.attested = bytes;
  return absl::OkStatus();
}

void BrokerImpl::FinishAttesting(SessionId session) {
  std::vector<ChunkId> leaving;
  {
    BrokerLock lock(core_);
    SessionEntry& entry = core_.tables.sessions.at(session);
    for (auto& [card, charge] : entry.charges) {
      charge.lent = charge.attested;
      if (FitCharge(session, entry, card)) Serve(card);
    }
    entry.trims = entry.trims_when_back && entry.charges.empty();  // a program that charges is not asked
    for (const ChunkId id : ChunksOf(entry)) {
      ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (chunk.state == ChunkEntry::State::kGranted && !chunk.attested) {
        StartLeaving(chunk, ChunkEntry::State::kReturning);
        leaving.push_back(id);
      }
    }
  }
  Reclaim(leaving);
}

void BrokerImpl::GoAbsent(SessionId session) {
  {
    BrokerLock lock(core_);
    DropWaiters(session);
    StopTrimming(session);
    core_.tables.sessions.at(session).allowances.reset();
  }
}

std::map<ChunkId, absl::Status> BrokerImpl::ReclaimLost(const std::vector<ChunkId>& chunks) {
  std::vector<ChunkId> lost;
  std::vector<std::uint64_t> identities;
  std::map<ChunkId, absl::Status> answers;
  {
    BrokerLock lock(core_);
    for (const ChunkId id : chunks) {
      const ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (chunk.lost && chunk.identity != 0) {
        lost.push_back(id);
        identities.push_back(chunk.identity);
      } else if (chunk.lost) {
        answers.emplace(id, absl::UnavailableError("an earlier lgpud granted it"));
      }
    }
  }
  if (lost.empty()) {
    return answers;
  }
  const std::vector<absl::Status> said = core_.backend.ReclaimLost(identities);
  LGPU_CHECK_OP(said.size(), ==, lost.size());
  for (std::size_t i = 0; i < lost.size(); ++i) {
    answers.emplace(lost[i], said[i]);
  }
  return answers;
}

void BrokerImpl::SetForeign(CardId card, Bytes bytes) {
  {
    BrokerLock lock(core_);
    if (core_.tables.ledger.View(card).foreign == bytes) {
      return;
    }
    core_.tables.ledger.SetForeign(card, bytes);
    Serve(card);
  }
}

std::vector<std::uint64_t> BrokerImpl::Identities(CardId card) const {
  std::vector<std::uint64_t> identities;
  MutexLock lock(core_.mutex);
  for (const auto& [id, chunk] : core_.tables.chunks) {
    if (core_.tables.devices.at(chunk.device).spec.card == card) {
      identities.push_back(chunk.identity);
    }
  }
  return identities;
}

}  // namespace lgpu
