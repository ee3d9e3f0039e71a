#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker.h"
#include "base/check.h"

namespace lgpu {
namespace {

// Chunks that are freed between two looks at the requests that wait.
constexpr std::size_t kReclaimBatch = 64;
// How often the machine's processes are looked through for memory of an earlier daemon's.
constexpr std::chrono::milliseconds kLostRetry{250};

}  // namespace

absl::Status Broker::Return(SessionId session, LogicalId logical, std::span<const ChunkId> chunks) {
  std::vector<ChunkId> leaving;
  {
    MutexLock lock(mutex_);
    std::set<ChunkId> seen;
    for (const ChunkId id : chunks) {
      const auto chunk = chunks_.find(id);
      if (chunk == chunks_.end() || chunk->second.session != session || chunk->second.device != logical ||
          chunk->second.state != ChunkState::kGranted || !seen.insert(id).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("chunk ", id.value, " is not granted to this session on device ", logical.value,
                         "; none of the ", chunks.size(), " chunks was taken back"));
      }
    }
    for (const ChunkId id : chunks) {
      ChunkEntry& chunk = chunks_.at(id);
      GiveBack(chunk, ChunkState::kReturning);
      if (!chunk.made_again) sessions_.at(session).returned += chunk.bytes;
      leaving.push_back(id);
    }
    ++counters_.returns;
  }
  Reclaim(leaving);
  return absl::OkStatus();
}

// In the order of their ids, so that what happens to them is the same every time.
std::vector<ChunkId> Broker::ChunksOf(const Session& session) {
  std::vector<ChunkId> chunks(session.chunks.begin(), session.chunks.end());
  std::sort(chunks.begin(), chunks.end());
  return chunks;
}

void Broker::ReturnAll(SessionId session) {
  Wakes wakes;
  std::vector<ChunkId> leaving;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
      return;
    }
    DropWaiters(session, wakes);
    StopTrimming(session);
    for (const ChunkId id : ChunksOf(found->second)) {
      ChunkEntry& chunk = chunks_.at(id);
      if (chunk.state == ChunkState::kGranted) {
        GiveBack(chunk, ChunkState::kReturning);
        leaving.push_back(id);
      }
    }
    for (auto& [card, charge] : found->second.charges) {
      charge.lent = charge.leaving ? charge.lent : Bytes();
      if (FitCharge(session, found->second, card)) Serve(card, wakes);
    }
  }
  WakeAll(wakes);
  Reclaim(leaving);
}

void Broker::GiveBack(ChunkEntry& chunk, ChunkState state) {
  StartLeaving(chunk, state);
  Device& device = devices_.at(chunk.device);
  chunk.made_again = device.spec.preallocate;
  device.coming_again += chunk.made_again ? chunk.bytes : Bytes();
}

void Broker::StartDraining(SessionId session) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
      return;
    }
    DropWaiters(session, wakes);
    StopTrimming(session);
    std::set<CardId> touched;
    StartLeavingCharges(found->second, touched);
    for (const ChunkId id : found->second.chunks) {
      ChunkEntry& chunk = chunks_.at(id);
      if (chunk.state != ChunkState::kGranted) {
        continue;
      }
      touched.insert(devices_.at(chunk.device).spec.card);
      GiveBack(chunk, ChunkState::kDraining);
    }
    // Requests may wait for what is on its way back now.
    for (const CardId card : touched) {
      Serve(card, wakes);
    }
  }
  WakeAll(wakes);
}

void Broker::EndDraining(const Session& session, Ended& ended) {
  for (const ChunkId id : ChunksOf(session)) {
    ChunkEntry& chunk = chunks_.at(id);
    if (chunk.state != ChunkState::kDraining) {
      continue;
    }
    ended.cards.insert(devices_.at(chunk.device).spec.card);
    // From here on the chunk is RetryUnconfirmed's, should the backend not confirm it.
    chunk.state = ChunkState::kReturning;
    ended.leaving.push_back(id);
  }
}

std::vector<SessionId> Broker::FinishDraining(const std::vector<SessionId>& sessions) {
  Wakes wakes;
  Ended ended;
  {
    MutexLock lock(mutex_);
    for (const SessionId session : sessions) {
      if (const auto found = sessions_.find(session); found != sessions_.end()) {
        EndDraining(found->second, ended);
      }
    }
    for (const CardId card : ended.cards) {
      Serve(card, wakes);
    }
  }
  WakeAll(wakes);
  Reclaim(ended.leaving);
  std::vector<SessionId> empty;
  for (const SessionId session : sessions) {
    if (Held(session).is_zero()) {
      empty.push_back(session);
    }
  }
  return empty;
}

void Broker::Reclaim(const std::vector<ChunkId>& chunks) {
  const std::map<ChunkId, absl::Status> lost = ReclaimLost(chunks);
  for (std::size_t start = 0; start < chunks.size(); start += kReclaimBatch) {
    const std::size_t count = std::min(kReclaimBatch, chunks.size() - start);
    std::vector<MemoryHandle> memories;
    {
      MutexLock lock(mutex_);
      for (std::size_t i = 0; i < count; ++i) {
        memories.push_back(chunks_.at(chunks[start + i]).memory);
      }
    }
    const std::vector<ChunkId> batch(chunks.begin() + static_cast<std::ptrdiff_t>(start),
                                     chunks.begin() + static_cast<std::ptrdiff_t>(start + count));
    const std::map<CardId, CardReport> before = BeforeRelease(batch);
    std::vector<absl::Status> results;
    results.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto found = lost.find(chunks[start + i]);
      results.push_back(found == lost.end() ? backend_.Reclaim(memories[i]) : found->second);
    }
    DoubtReleased(before, batch, results);
    Wakes wakes;
    MissingChunks missing;
    {
      MutexLock lock(mutex_);
      std::set<CardId> touched;
      for (std::size_t i = 0; i < count; ++i) {
        touched.insert(devices_.at(chunks_.at(chunks[start + i]).device).spec.card);
        Settle(chunks[start + i], results[i], wakes, missing);
      }
      for (const CardId card : touched) {
        Serve(card, wakes);
      }
    }
    WakeAll(wakes);
    MakeAgain(missing);
  }
}

// A device that cannot have its chunks now lacks them, and the next request that needs them tries again.
void Broker::MakeAgain(const MissingChunks& missing) {
  for (const auto& [device, sizes] : missing) {
    Bytes bytes;
    for (const Bytes size : sizes) {
      bytes += size;
    }
    MakeSpare(device, bytes, now_(), {}, sizes).IgnoreError();
  }
}

void Broker::Settle(ChunkId id, const absl::Status& result, Wakes& wakes, MissingChunks& missing) {
  ChunkEntry& chunk = chunks_.at(id);
  releasing_.erase(id);
  // NOT_FOUND: an earlier call, which said something else, did free it.
  if (!result.ok() && !absl::IsNotFound(result)) {
    chunk.reference_gone = chunk.reference_gone || absl::IsUnavailable(result);
    if (unconfirmed_.insert(id).second) {
      wakes.push_back(unconfirmed_waker_);
    }
    return;
  }
  const LogicalId device = chunk.device;
  if (const auto session = sessions_.find(chunk.session); chunk.unreturned && session != sessions_.end()) {
    session->second.unreturned -= chunk.bytes;
  }
  TakeFromSession(id, chunk);
  const Bytes bytes = chunk.bytes;
  ledger_.ConfirmFree(device, bytes);
  if (chunk.made_again) {
    Device& owner = devices_.at(device);
    owner.coming_again -= bytes;
    // Not beyond a limit that was lowered. Inside the limit the memory is guaranteed.
    if (!owner.removed && ledger_.Request(device, bytes).shortage == Ledger::Shortage::kNone) {
      owner.charged += bytes;
      missing[device].push_back(bytes);
    }
  }
  unconfirmed_.erase(id);
  chunks_.erase(id);
  ForgetIfEmpty(device);
}

bool Broker::LooksFree(const ChunkEntry& chunk) {
  int backend_device = 0;
  Bytes expected;
  {
    MutexLock lock(mutex_);
    const CardId card = devices_.at(chunk.device).spec.card;
    if (watches_.count(card) != 0) {
      return false;  // a watch knows better
    }
    const Ledger::CardView view = ledger_.View(card);
    backend_device = cards_.at(card).backend_device;
    Bytes exists = view.held + view.overhead + view.foreign;
    for (const auto& [id, device] : devices_) {
      if (device.spec.card == card) {
        exists -= device.charged;  // no chunk was made for it yet
      }
    }
    expected = SaturatingSub(view.total, exists) + chunk.bytes;
  }
  const std::optional<Bytes> free = backend_.FreeMemory(backend_device);
  return free && *free >= expected;
}

bool Broker::RetryUnconfirmed() {
  std::vector<std::pair<ChunkId, ChunkEntry>> pending;
  std::vector<ChunkId> lost;
  {
    MutexLock lock(mutex_);
    if (retrying_) {
      return false;
    }
    if (unconfirmed_.empty() && watches_.empty()) {
      return true;
    }
    retrying_ = true;
    const TimePoint now = now_();
    const bool ask_for_lost = now >= lost_retry_at_;
    for (const ChunkId id : unconfirmed_) {
      const ChunkEntry& chunk = chunks_.at(id);
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
  Wakes wakes;
  MissingChunks missing;
  for (const auto& [id, chunk] : pending) {
    absl::Status result;
    if (const auto answer = answers.find(id); answer != answers.end()) {
      result = answer->second;
    } else if (chunk.lost) {
      // A real card's, of an earlier daemon: only its program had it, which gave it back or is gone.
      result = absl::OkStatus();
    } else if (!chunk.reference_gone) {
      result = backend_.Reclaim(chunk.memory);
    } else if (back.count(id) == 0 && !LooksFree(chunk)) {
      result = absl::UnavailableError("another process pins it");
    }
    MutexLock lock(mutex_);
    const CardId card = devices_.at(chunk.device).spec.card;
    if (const auto session = sessions_.find(chunk.session); session != sessions_.end()) {
      wakes.push_back(session->second.waker);  // it may wait for this to close
    }
    Settle(id, result, wakes, missing);
    Serve(card, wakes);
  }
  WakeAll(wakes);
  MakeAgain(missing);
  MutexLock lock(mutex_);
  retrying_ = false;
  return unconfirmed_.empty();
}

void Broker::ForgetIfEmpty(LogicalId logical) {
  const Device& device = devices_.at(logical);
  if (device.removed && device.charged.is_zero() && ledger_.View(logical).held().is_zero()) {
    const absl::Status removed = ledger_.RemoveLogical(logical);
    LGPU_CHECK(removed.ok());
    devices_.erase(logical);
  }
}

}  // namespace lgpu
