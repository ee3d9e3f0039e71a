#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_impl.h"
#include "base/check.h"

namespace lgpu {
namespace {

// Chunks that are freed between two looks at the requests that wait.
constexpr std::size_t kReclaimBatch = 64;
// How often the machine's processes are looked through for memory of an earlier
// daemon's.
constexpr std::chrono::milliseconds kLostRetry{250};

}  // namespace

absl::Status BrokerImpl::Return(SessionId session, LogicalId logical, std::span<const ChunkId> chunks) {
  std::vector<ChunkId> leaving;
  {
    BrokerLock lock(core_);
    std::set<ChunkId> seen;
    for (const ChunkId id : chunks) {
      const auto chunk = core_.tables.chunks.find(id);
      if (chunk == core_.tables.chunks.end() || chunk->second.session != session ||
          chunk->second.device != logical || chunk->second.state != ChunkEntry::State::kGranted ||
          !seen.insert(id).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("chunk ", id.value, " is not granted to this session on device ", logical.value,
                         "; none of the ", chunks.size(), " chunks was taken back"));
      }
    }
    for (const ChunkId id : chunks) {
      ChunkEntry& chunk = core_.tables.chunks.at(id);
      GiveBack(chunk, ChunkEntry::State::kReturning);
      if (!chunk.made_again) core_.tables.sessions.at(session).returned += chunk.bytes;
      leaving.push_back(id);
    }
    ++core_.tables.counters.returns;
  }
  Reclaim(leaving);
  return absl::OkStatus();
}

// In the order of their ids, so that what happens to them is the same every
// time.
std::vector<ChunkId> BrokerImpl::ChunksOf(const SessionEntry& session) {
  std::vector<ChunkId> chunks(session.chunks.begin(), session.chunks.end());
  std::sort(chunks.begin(), chunks.end());
  return chunks;
}

void BrokerImpl::ReturnAll(SessionId session) {
  std::vector<ChunkId> leaving;
  {
    BrokerLock lock(core_);
    const auto found = core_.tables.sessions.find(session);
    if (found == core_.tables.sessions.end()) {
      return;
    }
    DropWaiters(session);
    StopTrimming(session);
    for (const ChunkId id : ChunksOf(found->second)) {
      ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (chunk.state == ChunkEntry::State::kGranted) {
        GiveBack(chunk, ChunkEntry::State::kReturning);
        leaving.push_back(id);
      }
    }
    for (auto& [card, charge] : found->second.charges) {
      charge.lent = charge.leaving ? charge.lent : Bytes();
      if (FitCharge(session, found->second, card)) Serve(card);
    }
  }
  Reclaim(leaving);
}

void BrokerImpl::GiveBack(ChunkEntry& chunk, ChunkEntry::State state) {
  StartLeaving(chunk, state);
  DeviceEntry& device = core_.tables.devices.at(chunk.device);
  chunk.made_again = device.spec.preallocate;
  device.coming_again += chunk.made_again ? chunk.bytes : Bytes();
}

void BrokerImpl::StartDraining(SessionId session) {
  {
    BrokerLock lock(core_);
    const auto found = core_.tables.sessions.find(session);
    if (found == core_.tables.sessions.end()) {
      return;
    }
    DropWaiters(session);
    StopTrimming(session);
    std::set<CardId> touched;
    StartLeavingCharges(found->second, touched);
    for (const ChunkId id : found->second.chunks) {
      ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (chunk.state != ChunkEntry::State::kGranted) {
        continue;
      }
      touched.insert(core_.tables.devices.at(chunk.device).spec.card);
      GiveBack(chunk, ChunkEntry::State::kDraining);
    }
    // Requests may wait for what is on its way back now.
    for (const CardId card : touched) {
      Serve(card);
    }
  }
}

void BrokerImpl::EndDraining(const SessionEntry& session, Ended& ended) {
  for (const ChunkId id : ChunksOf(session)) {
    ChunkEntry& chunk = core_.tables.chunks.at(id);
    if (chunk.state != ChunkEntry::State::kDraining) {
      continue;
    }
    ended.cards.insert(core_.tables.devices.at(chunk.device).spec.card);
    // From here on the chunk is RetryUnconfirmed's, should the backend not
    // confirm it.
    chunk.state = ChunkEntry::State::kReturning;
    ended.leaving.push_back(id);
  }
}

std::vector<SessionId> BrokerImpl::FinishDraining(const std::vector<SessionId>& sessions) {
  Ended ended;
  {
    BrokerLock lock(core_);
    for (const SessionId session : sessions) {
      if (const auto found = core_.tables.sessions.find(session); found != core_.tables.sessions.end()) {
        EndDraining(found->second, ended);
      }
    }
    for (const CardId card : ended.cards) {
      Serve(card);
    }
  }
  Reclaim(ended.leaving);
  std::vector<SessionId> empty;
  for (const SessionId session : sessions) {
    if (Held(session).is_zero()) {
      empty.push_back(session);
    }
  }
  return empty;
}

void BrokerImpl::Reclaim(const std::vector<ChunkId>& chunks) {
  const std::map<ChunkId, absl::Status> lost = ReclaimLost(chunks);
  for (std::size_t start = 0; start < chunks.size(); start += kReclaimBatch) {
    const std::size_t count = std::min(kReclaimBatch, chunks.size() - start);
    std::vector<MemoryHandle> memories;
    {
      BrokerLock lock(core_);
      for (std::size_t i = 0; i < count; ++i) {
        memories.push_back(core_.tables.chunks.at(chunks[start + i]).memory);
      }
    }
    const std::vector<ChunkId> batch(chunks.begin() + static_cast<std::ptrdiff_t>(start),
                                     chunks.begin() + static_cast<std::ptrdiff_t>(start + count));
    const std::map<CardId, CardReport> before = BeforeRelease(batch);
    std::vector<absl::Status> results;
    results.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto found = lost.find(chunks[start + i]);
      results.push_back(found == lost.end() ? core_.backend.Reclaim(memories[i]) : found->second);
    }
    DoubtReleased(before, batch, results);
    MissingChunks missing;
    {
      BrokerLock lock(core_);
      std::set<CardId> touched;
      for (std::size_t i = 0; i < count; ++i) {
        touched.insert(core_.tables.devices.at(core_.tables.chunks.at(chunks[start + i]).device).spec.card);
        Settle(chunks[start + i], results[i], missing);
      }
      for (const CardId card : touched) {
        Serve(card);
      }
    }
    MakeAgain(missing);
  }
}

// A device that cannot have its chunks now lacks them, and the next request
// that needs them tries again.
void BrokerImpl::MakeAgain(const MissingChunks& missing) {
  for (const auto& [device, sizes] : missing) {
    Bytes bytes;
    for (const Bytes size : sizes) {
      bytes += size;
    }
    MakeSpare(device, bytes, core_.now(), sizes).IgnoreError();
  }
}

void BrokerImpl::Settle(ChunkId id, const absl::Status& result, MissingChunks& missing) {
  ChunkEntry& chunk = core_.tables.chunks.at(id);
  releasing_.erase(id);
  // NOT_FOUND: an earlier call, which said something else, did free it.
  if (!result.ok() && !absl::IsNotFound(result)) {
    chunk.reference_gone = chunk.reference_gone || absl::IsUnavailable(result);
    if (core_.tables.unconfirmed.insert(id).second) {
      core_.tables.wakes.push_back(core_.tables.unconfirmed_waker);
    }
    return;
  }
  const LogicalId device = chunk.device;
  if (const auto session = core_.tables.sessions.find(chunk.session);
      chunk.unreturned && session != core_.tables.sessions.end()) {
    session->second.unreturned -= chunk.bytes;
  }
  TakeFromSession(id, chunk);
  const Bytes bytes = chunk.bytes;
  core_.tables.ledger.ConfirmFree(device, bytes);
  if (chunk.made_again) ChargeAgain(device, bytes, missing);
  core_.tables.unconfirmed.erase(id);
  core_.tables.chunks.erase(id);
  ForgetIfEmpty(device);
}

// Not beyond a limit that was lowered. Inside the limit the memory is
// guaranteed.
void BrokerImpl::ChargeAgain(LogicalId logical, Bytes bytes, MissingChunks& missing) {
  DeviceEntry& device = core_.tables.devices.at(logical);
  device.coming_again -= bytes;
  const Bytes room = std::min(bytes, core_.tables.LackOf(logical));
  if (device.removed || room.is_zero() ||
      core_.tables.ledger.Request(logical, room).shortage != Ledger::Shortage::kNone) {
    return;
  }
  device.charged += room;
  std::vector<Bytes>& sizes = missing[logical];
  if (room == bytes) {
    sizes.push_back(bytes);
  } else {
    const Bytes granule = core_.tables.GranuleOf(device.spec.card);
    sizes.insert(sizes.end(), room / granule, granule);
  }
}

bool BrokerImpl::LooksFree(const ChunkEntry& chunk) {
  int backend_device = 0;
  Bytes expected;
  {
    BrokerLock lock(core_);
    const CardId card = core_.tables.devices.at(chunk.device).spec.card;
    if (watches_.count(card) != 0) {
      return false;  // a watch knows better
    }
    const Ledger::CardView view = core_.tables.ledger.View(card);
    backend_device = core_.tables.cards.at(card).backend_device;
    Bytes exists = view.held + view.overhead + view.foreign;
    for (const auto& [id, device] : core_.tables.devices) {
      if (device.spec.card == card) {
        exists -= device.charged;  // no chunk was made for it yet
      }
    }
    expected = SaturatingSub(view.total, exists) + chunk.bytes;
  }
  const std::optional<Bytes> free = core_.backend.FreeMemory(backend_device);
  return free && *free >= expected;
}

bool BrokerImpl::RetryUnconfirmed() {
  std::vector<std::pair<ChunkId, ChunkEntry>> pending;
  std::vector<ChunkId> lost;
  {
    BrokerLock lock(core_);
    if (retrying_) {
      return false;
    }
    if (core_.tables.unconfirmed.empty() && watches_.empty()) {
      return true;
    }
    retrying_ = true;
    const TimePoint now = core_.now();
    const bool ask_for_lost = now >= lost_retry_at_;
    for (const ChunkId id : core_.tables.unconfirmed) {
      const ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (chunk.lost && chunk.identity != 0) {
        if (!ask_for_lost) {
          continue;
        }
        lost.push_back(id);
        lost_retry_at_ = now + kLostRetry;
      }
      pending.emplace_back(id, chunk);
    }
  }
  const std::map<ChunkId, absl::Status> answers = ReclaimLost(lost);
  const std::set<ChunkId> back = LookAtCards();
  MissingChunks missing;
  for (const auto& [id, chunk] : pending) {
    absl::Status result;
    if (const auto answer = answers.find(id); answer != answers.end()) {
      result = answer->second;
    } else if (chunk.lost) {
      // A real card's, of an earlier daemon: only its program had it, which
      // gave it back or is gone.
      result = absl::OkStatus();
    } else if (!chunk.reference_gone) {
      result = core_.backend.Reclaim(chunk.memory);
    } else if (back.count(id) == 0 && !LooksFree(chunk)) {
      result = absl::UnavailableError("another process pins it");
    }
    BrokerLock lock(core_);
    const CardId card = core_.tables.devices.at(chunk.device).spec.card;
    if (const auto session = core_.tables.sessions.find(chunk.session);
        session != core_.tables.sessions.end()) {
      core_.tables.wakes.push_back(session->second.waker);  // it may wait for this to close
    }
    Settle(id, result, missing);
    Serve(card);
  }
  MakeAgain(missing);
  BrokerLock lock(core_);
  retrying_ = false;
  return core_.tables.unconfirmed.empty();
}

void BrokerImpl::ForgetIfEmpty(LogicalId logical) {
  const DeviceEntry& device = core_.tables.devices.at(logical);
  if (device.removed && device.charged.is_zero() && core_.tables.ledger.View(logical).held().is_zero()) {
    const absl::Status removed = core_.tables.ledger.RemoveLogical(logical);
    LGPU_CHECK(removed.ok());
    core_.tables.devices.erase(logical);
  }
}

}  // namespace lgpu
