// A broker takes over what an earlier one granted: from the journal, and from sessions that come back.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

absl::Status NotInJournal(const Chunk& chunk, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.id.value, " of ", FormatBytes(chunk.bytes),
                                                 " is not this session's: ", std::string(why)));
}

}  // namespace

absl::Status Broker::RestoreDevice(LogicalId id, const DeviceSpec& spec) {
  MutexLock lock(mutex_);
  const Bytes guarantee = spec.preallocate ? spec.limit : spec.guarantee;
  LGPU_RETURN_IF_ERROR(ledger_.RestoreLogical(id, spec.card, {.limit = spec.limit, .guarantee = guarantee}));
  devices_[id].spec = spec;
  return absl::OkStatus();
}

absl::Status Broker::RestoreSession(SessionId session, std::int64_t pid, std::shared_ptr<Waker> waker,
                                    LeaseKey lease, std::span<const RestoredChunk> chunks,
                                    std::span<const RestoredCharge> charges) {
  MutexLock lock(mutex_);
  for (const RestoredChunk& chunk : chunks) {
    const auto device = devices_.find(chunk.device);
    const bool fits =
        device != devices_.end() && !chunk.bytes.is_zero() && !chunks_.contains(chunk.id) &&
        RoundDown(chunk.bytes, cards_.at(device->second.spec.card).device.granularity) == chunk.bytes;
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.id.value, " cannot be restored"));
    }
  }
  for (const RestoredCharge& charge : charges) {
    const auto device = devices_.find(charge.device);
    if (device == devices_.end() ||
        RoundDown(charge.bytes, cards_.at(device->second.spec.card).device.granularity) != charge.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("charges of device ", charge.device.value, " cannot be restored"));
    }
  }
  Session& entry = sessions_[session];
  entry.pid = pid;
  entry.waker = std::move(waker);
  entry.lease = lease;
  for (const RestoredChunk& restored : chunks) {
    ChunkEntry& chunk = chunks_[restored.id];
    chunk.device = restored.device;
    chunk.session = session;
    chunk.bytes = restored.bytes;
    chunk.identity = restored.identity;
    chunk.lost = true;
    entry.chunks.insert(restored.id);
    entry.held += restored.bytes;
    devices_.at(restored.device).held_by[session] += restored.bytes;
    ledger_.Adopt(restored.device, restored.bytes);
    last_chunk_ = std::max(last_chunk_, restored.id.value);
  }
  for (const RestoredCharge& restored : charges) {
    if (restored.bytes.is_zero()) continue;
    Device& device = devices_.at(restored.device);
    CardCharge& charge = entry.charges[device.spec.card];
    charge.index = IndexOf(lease, device.spec.card);
    charge.lent += restored.bytes;
    charge.held[restored.device] = restored.bytes;
    charge.logged[restored.device] = restored.bytes;
    charging_.emplace(device.spec.card, session);
    entry.held += restored.bytes;
    device.lent += restored.bytes;
    device.held_by[session] += restored.bytes;
    ledger_.Adopt(restored.device, restored.bytes);
  }
  return absl::OkStatus();
}

void Broker::SkipIds(LogicalId device, ChunkId chunk) {
  MutexLock lock(mutex_);
  ledger_.SkipIds(device);
  last_chunk_ = std::max(last_chunk_, chunk.value);
}

absl::Status Broker::MakeMissing(LogicalId logical) {
  Bytes charged;
  {
    MutexLock lock(mutex_);
    const auto device = devices_.find(logical);
    if (device == devices_.end() || !device->second.spec.preallocate || device->second.removed ||
        now_() < device->second.last_charge + kBallastRest) {
      return absl::OkStatus();
    }
    charged = ChargeRoom(logical, device->second);
  }
  return charged.is_zero() ? absl::OkStatus() : MakeSpare(logical, charged, now_());
}

void Broker::StartAttesting(SessionId session, SessionSpec spec) {
  MutexLock lock(mutex_);
  Session& entry = sessions_.at(session);
  entry.waker = std::move(spec.waker);
  entry.trims = false;
  entry.trims_when_back = spec.trims;
  entry.allowances.reset();
  for (auto& [card, charge] : entry.charges) charge.attested = Bytes();
  for (const ChunkId id : entry.chunks) {
    chunks_.at(id).attested = false;
  }
}

absl::Status Broker::Attest(SessionId session, LogicalId device, const Chunk& claimed, UniqueFd fd) {
  std::uint64_t identity = 0;
  int backend_device = 0;
  {
    MutexLock lock(mutex_);
    const auto found = chunks_.find(claimed.id);
    if (found == chunks_.end() || found->second.session != session) {
      return NotInJournal(claimed, "it was not granted to it");
    }
    ChunkEntry& chunk = found->second;
    if (chunk.device != device || chunk.bytes != claimed.bytes || chunk.state != ChunkState::kGranted) {
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
    backend_device = cards_.at(devices_.at(device).spec.card).backend_device;
  }
  if (!fd) {
    return NotInJournal(claimed, "its descriptor is missing");
  }
  LGPU_ASSIGN_OR_RETURN(const MemoryHandle memory,
                        backend_.Import(backend_device, std::move(fd), claimed.bytes));
  if (backend_.Identity(memory) != identity) {
    backend_.Release(memory).IgnoreError();
    return NotInJournal(claimed, "its descriptor is of other memory");
  }
  MutexLock lock(mutex_);
  // Only this session's thread comes here.
  ChunkEntry& chunk = chunks_.at(claimed.id);
  chunk.memory = memory;
  chunk.lost = false;
  chunk.attested = true;
  return absl::OkStatus();
}

absl::Status Broker::AttestCharge(SessionId session, const std::string& card_uuid, Bytes bytes) {
  MutexLock lock(mutex_);
  Session& entry = sessions_.at(session);
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

void Broker::FinishAttesting(SessionId session) {
  std::vector<ChunkId> leaving;
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    Session& entry = sessions_.at(session);
    for (auto& [card, charge] : entry.charges) {
      charge.lent = charge.attested;
      if (FitCharge(session, entry, card)) Serve(card, wakes);
    }
    entry.trims = entry.trims_when_back && entry.charges.empty();  // a program that charges is not asked
    for (const ChunkId id : ChunksOf(entry)) {
      ChunkEntry& chunk = chunks_.at(id);
      if (chunk.state == ChunkState::kGranted && !chunk.attested) {
        StartLeaving(chunk, ChunkState::kReturning);
        leaving.push_back(id);
      }
    }
  }
  WakeAll(wakes);
  Reclaim(leaving);
}

void Broker::GoAbsent(SessionId session) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    DropWaiters(session, wakes);
    StopTrimming(session);
    sessions_.at(session).allowances.reset();
  }
  WakeAll(wakes);
}

std::map<ChunkId, absl::Status> Broker::ReclaimLost(const std::vector<ChunkId>& chunks) {
  std::vector<ChunkId> lost;
  std::vector<std::uint64_t> identities;
  std::map<ChunkId, absl::Status> answers;
  {
    MutexLock lock(mutex_);
    for (const ChunkId id : chunks) {
      const ChunkEntry& chunk = chunks_.at(id);
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
  const std::vector<absl::Status> said = backend_.ReclaimLost(identities);
  LGPU_CHECK_OP(said.size(), ==, lost.size());
  for (std::size_t i = 0; i < lost.size(); ++i) {
    answers.emplace(lost[i], said[i]);
  }
  return answers;
}

void Broker::SetForeign(CardId card, Bytes bytes) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    if (ledger_.View(card).foreign == bytes) {
      return;
    }
    ledger_.SetForeign(card, bytes);
    Serve(card, wakes);
  }
  WakeAll(wakes);
}

std::vector<std::uint64_t> Broker::Identities(CardId card) const {
  std::vector<std::uint64_t> identities;
  MutexLock lock(mutex_);
  for (const auto& [id, chunk] : chunks_) {
    if (devices_.at(chunk.device).spec.card == card) {
      identities.push_back(chunk.identity);
    }
  }
  return identities;
}

}  // namespace lgpu
