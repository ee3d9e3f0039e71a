#include "daemon/server/stats.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "allocator/broker/card_observer.h"
#include "allocator/broker/session_releases.h"
#include "allocator/broker/session_trims.h"
#include "base/process.h"
#include "daemon/leases/lease_idle.h"
#include "daemon/leases/lease_suspender.h"
#include "daemon/leases/users.h"
#include "daemon/saturate.h"
#include "daemon/server/charged_kinds.h"
#include "google/protobuf/util/time_util.h"

namespace lgpu::daemon {
namespace {

using google::protobuf::util::TimeUtil;

google::protobuf::Timestamp ToTimestamp(std::chrono::system_clock::time_point time) {
  return TimeUtil::NanosecondsToTimestamp(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

// A client may write any number into its page: no amount is believed beyond the limit.
void AddClientNumbers(const ClientPage::Device& page, v1::LogicalDeviceStats& out) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const std::uint64_t limit = out.limit_bytes();
  const std::uint64_t peak = std::min(page.peak_used.load(kRelaxed), limit);
  const auto add = [limit](std::uint64_t sum, std::uint64_t more) {
    return std::min(Saturate(sum, std::min(more, limit)), limit);
  };
  out.set_used_bytes(add(out.used_bytes(), page.used.load(kRelaxed)));
  out.set_peak_used_bytes(std::max(add(out.peak_used_bytes(), peak), out.used_bytes()));
  out.set_requested_bytes(add(out.requested_bytes(), page.requested.load(kRelaxed)));
  out.set_largest_free_block_bytes(
      std::max(out.largest_free_block_bytes(), std::min(page.largest_free_block.load(kRelaxed), limit)));
  out.set_live_blocks(Saturate(out.live_blocks(), page.live_blocks.load(kRelaxed)));
  out.set_allocations_total(Saturate(out.allocations_total(), page.allocations.load(kRelaxed)));
  out.set_refusals_total(Saturate(out.refusals_total(), page.refusals.load(kRelaxed)));
  out.set_ops_total(Saturate(out.ops_total(), page.ops.load(kRelaxed)));
}

// Charged memory is of a card; it is shown as used on the devices that lent it. `lent`: by each device.
void AddCharged(Bytes charged, const std::string& card_uuid, const std::vector<Bytes>& lent,
                v1::LeaseStats& lease) {
  for (int i = 0; i < lease.devices_size(); ++i) {
    v1::LogicalDeviceStats& device = *lease.mutable_devices(i);
    if (device.card_uuid() != card_uuid) continue;
    const Bytes part =
        std::min(charged, SaturatingSub(lent[static_cast<std::size_t>(i)], Bytes(device.charged_bytes())));
    device.set_charged_bytes(device.charged_bytes() + part.count());
    device.set_used_bytes(device.used_bytes() + part.count());
    device.set_peak_used_bytes(std::max(device.peak_used_bytes(), device.used_bytes()));
    charged -= part;
  }
}

}  // namespace

std::vector<v1::CardStats> StatsReporter::Cards() const {
  const std::vector<Broker::CardInfo> infos = broker_.Cards();
  std::vector<v1::CardStats> cards;
  for (const ListedCard& card : cards_) {
    v1::CardStats& out = cards.emplace_back();
    out.set_index(static_cast<std::uint32_t>(card.index));
    out.set_uuid(card.device.uuid);
    out.set_name(card.device.name);
    out.set_pci_bus_id(card.device.pci_bus_id);
    out.set_simulated(card.device.simulated);
    out.set_served(card.served);
    out.set_not_served_because(card.not_served_because);
    out.set_total_bytes(card.device.total.count());
    out.set_granularity_bytes(card.device.granularity.count());
    out.set_compute_major(static_cast<std::uint32_t>(card.device.compute_major));
    out.set_compute_minor(static_cast<std::uint32_t>(card.device.compute_minor));
    if (card.device.minor >= 0) out.set_minor(static_cast<std::uint32_t>(card.device.minor));
    if (card.device.multiprocessors > 0) {
      out.set_multiprocessors(static_cast<std::uint32_t>(card.device.multiprocessors));
    }
    const auto info = std::find_if(infos.begin(), infos.end(), [&card](const Broker::CardInfo& candidate) {
      return candidate.card.device.uuid == card.device.uuid;
    });
    if (info == infos.end()) continue;
    out.set_reserve_bytes(info->view.reserve.count());
    out.set_held_bytes(info->view.held.count());
    out.set_promised_bytes(info->view.promised.count());
    out.set_overhead_bytes(info->view.overhead.count());
    if (card.device.simulated || info->observed) out.set_foreign_bytes(info->view.foreign.count());
    out.set_free_bytes(info->view.free().count());
    out.set_overcommitted(info->view.overcommitted());
    out.set_waiting_requests(info->queue.size());
    out.set_draining_bytes(info->draining.count());
    loads_.AddTo(out);
  }
  return cards;
}

std::vector<v1::CardStats> StatsReporter::CardsFor(const Caller& caller) const {
  std::vector<v1::CardStats> cards = Cards();
  if (!caller.only) return cards;
  std::set<std::string> used;
  for (const Lease& lease : leases_.Snapshot(caller)) {
    for (const LeaseDevice& device : lease.devices) used.insert(device.card.device.uuid);
  }
  std::erase_if(cards, [&used](const v1::CardStats& card) { return !used.contains(card.uuid()); });
  return cards;
}

StatsReporter::Known StatsReporter::LookUp(std::int64_t pid) const {
  const absl::StatusOr<std::uint64_t> started = ProcessStartTime(pid);
  const std::optional<std::uint32_t> uid = ProcessOwner(pid);
  if (!started.ok() || !uid) return {};
  {
    const MutexLock lock(known_mutex_);
    const auto known = known_.find(pid);
    if (known != known_.end() && known->second.started == *started && known->second.uid == *uid) {
      return known->second;
    }
  }
  Known found{
      .started = *started, .uid = *uid, .user = user_names_.NameOf(*uid), .command = ProcessCommand(pid)};
  constexpr std::size_t kManyKnown = 1024;
  const MutexLock lock(known_mutex_);
  if (known_.size() >= kManyKnown) known_.clear();
  known_[pid] = found;
  return found;
}

// User and amount are shown to all callers, as in Refusals; the command only to its own user and root.
void StatsReporter::AddForeignProcesses(const Caller& caller, v1::StatsSnapshot& snapshot) const {
  const std::vector<Broker::CardInfo> infos = broker_.Cards();
  for (v1::CardStats& card : *snapshot.mutable_cards()) {
    for (const Broker::CardInfo& info : infos) {
      if (info.card.device.uuid != card.uuid()) continue;
      for (const DeviceMemory::ProcessMemory& process : info.outsiders) {
        const Known known = LookUp(process.pid);
        v1::ForeignProcess& entry = *card.add_foreign_processes();
        entry.set_pid(process.pid);
        entry.set_used_bytes(process.used.count());
        entry.set_uid(known.uid);
        entry.set_user(known.user);
        if (const auto percent = loads_.SmPercentOf(process.pid)) entry.set_sm_percent(*percent);
        if (caller.is_root() || (caller.uid == known.uid && !caller.only)) entry.set_command(known.command);
      }
    }
  }
}

// As Refusals name the holders of a card. Names of leases are their owner's business.
void StatsReporter::AddQueues(const Caller& caller, v1::StatsSnapshot& snapshot) const {
  const std::string user = user_names_.NameOf(caller.uid);
  const auto now = std::chrono::steady_clock::now();
  const auto milliseconds = [](std::chrono::steady_clock::duration time) {
    const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
    return static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0));
  };
  const std::vector<Broker::CardInfo> infos = broker_.Cards();
  for (v1::CardStats& card : *snapshot.mutable_cards()) {
    const auto info = std::find_if(infos.begin(), infos.end(), [&card](const Broker::CardInfo& candidate) {
      return candidate.card.device.uuid == card.uuid();
    });
    if (info == infos.end()) continue;
    for (const Broker::Queued& queued : info->queue) {
      v1::QueuedRequest& entry = *card.add_queue();
      entry.set_place(static_cast<std::uint32_t>(card.queue_size()));
      entry.set_owner(queued.owner);
      entry.set_pid(queued.pid);
      if (caller.is_root() || (queued.owner == user && !caller.only)) {
        entry.set_lease_name(queued.lease_name);
        entry.set_device(queued.device_name);
        entry.set_what(queued.what);
      }
      entry.set_makes_lease(queued.device_name.empty());
      entry.set_asked_bytes(queued.asked.count());
      entry.set_waited_ms(milliseconds(now - queued.since));
      entry.set_turns(static_cast<std::uint32_t>(queued.turns));
      if (queued.turn_ends) entry.set_turn_left_ms(milliseconds(*queued.turn_ends - now));
    }
  }
}

std::string StatsReporter::AskerFor(const Caller& caller, const GivingWayView& view) const {
  const bool is_own = view.for_owner == user_names_.NameOf(caller.uid) && !caller.only;
  if (!caller.is_root() && !is_own) return "another user";
  if (!view.for_lease.empty()) return view.for_lease;
  const std::string program = view.for_pid == 0 ? "" : LookUp(view.for_pid).command;
  return program.empty() ? view.for_owner : program;
}

void StatsReporter::AddCharges(const SessionState& session, const std::vector<Bytes>& lent_by_device,
                               v1::LeaseStats& lease, v1::SessionStats& out) const {
  const std::vector<Broker::Charged> charges = broker_.ChargesOf(session.id());
  Bytes used, lent;
  for (const Broker::Charged& charge : charges) {
    used += charge.used;
    lent += charge.lent;
    AddCharged(charge.used, charge.card_uuid, lent_by_device, lease);
  }
  out.set_charged_bytes(used.count());
  out.set_allowance_bytes((lent - used).count());
  for (v1::ChargedKind& kind : ChargedByKind(charges, session)) *out.add_charged_by_kind() = std::move(kind);
}

void StatsReporter::AddSessions(const Lease& lease, const std::vector<Bytes>& lent,
                                const CardObserver::Overheads& overheads, v1::LeaseStats& out) const {
  std::set<SessionId> ids = lease.live;
  ids.insert(lease.draining.begin(), lease.draining.end());
  for (const SessionId id : ids) {
    const std::shared_ptr<SessionState> session = sessions_.Find(id);
    if (session == nullptr) continue;
    v1::SessionStats& entry = *out.add_sessions();
    entry.set_id(id.value);
    entry.set_pid(session->process().pid);
    entry.set_process_start_ticks(session->process().start_time);
    entry.set_uid(session->uid());
    entry.set_command(session->identity().command);
    const bool live = session->phase() == SessionState::Phase::kLive;
    entry.set_state(live                                               ? v1::SessionStats::STATE_LIVE
                    : session->phase() == SessionState::Phase::kAbsent ? v1::SessionStats::STATE_ABSENT
                                                                       : v1::SessionStats::STATE_DRAINING);
    *entry.mutable_connected_at() = ToTimestamp(session->connected_at());
    if (const SessionUse use = session->use(); use.is_known) {
      *entry.mutable_idle_since() = ToTimestamp(use.last ? ToSystemTime(*use.last) : session->connected_at());
    }
    entry.set_held_bytes(broker_.Held(id).count());
    entry.set_context_lost(session->has_lost_context());
    entry.set_unreturned_bytes(broker_.observer().UnreturnedBy(id).count());
    const SessionTrims::Record trims = broker_.trims().RecordOf(id);
    entry.set_trims_ignored(trims.ignored);
    entry.set_ignores_trim(trims.ignores_now);
    if (const auto overhead = overheads.of_session.find(id); overhead != overheads.of_session.end()) {
      entry.set_overhead_bytes(overhead->second.count());
    }
    if (const auto percent = loads_.SmPercentOf(session->process().pid)) entry.set_sm_percent(*percent);
    AddCharges(*session, lent, out, entry);
    for (int i = 0; live && i < out.devices_size() && i < ClientPage::kMaxDevices; ++i) {
      AddClientNumbers(session->client_page()->devices[static_cast<std::size_t>(i)], *out.mutable_devices(i));
    }
  }
}

v1::LeaseStats StatsReporter::LeaseToProto(const Lease& lease,
                                           const CardObserver::Overheads& overheads) const {
  v1::LeaseStats out;
  out.set_id(lease.id);
  out.set_name(lease.name);
  out.set_owner_uid(lease.owner.uid);
  out.set_owner(lease.owner.name);
  out.set_lasting(lease.lasting);
  out.set_anonymous(lease.anonymous);
  *out.mutable_created_at() = ToTimestamp(lease.created_at);
  if (lease.management) *out.mutable_management() = ToProto(*lease.management, BootTimeNow());
  if (const auto last = lease.placements->last_at()) *out.mutable_last_op_at() = ToTimestamp(*last);
  if (lease.ends.any()) *out.mutable_ends() = ToProto(lease.ends, BootTimeNow());
  out.set_preemptible(ToProto(lease.preemptible));
  const auto idle_after_ms = static_cast<std::uint64_t>(lease.idle_after.count());
  if (idle_after_ms > 0) out.set_idle_after_ms(idle_after_ms);
  if (auto suspension = SuspensionOf(lease, broker_)) *out.mutable_suspension() = *std::move(suspension);
  if (const auto last = LastUse(lease, sessions_)) {
    *out.mutable_idle_since() = ToTimestamp(std::max(ToSystemTime(*last), lease.created_at));
  }
  std::vector<Bytes> lent;  // for charges, by each device
  for (const LeaseDevice& device : lease.devices) {
    v1::LogicalDeviceStats& entry = *out.add_devices();
    lent.emplace_back();
    entry.set_id(device.id.value);
    entry.set_name(FullDeviceName(device.index));
    entry.set_card_uuid(device.card.device.uuid);
    entry.set_card_index(static_cast<std::uint32_t>(device.card.index));
    entry.set_mode(device.preallocate ? "preallocate" : "growth");
    entry.set_limit_bytes(device.limit.count());
    entry.set_guarantee_bytes(device.guarantee.count());
    if (const std::optional<Broker::DeviceInfo> info = broker_.Find(device.id)) {
      entry.set_held_bytes(info->held.count());
      entry.set_leaving_bytes(info->leaving.count());
      entry.set_missing_bytes(info->missing.count());
      lent.back() = info->charged;
      const auto found = overheads.of_lease.find({lease.key, info->card});
      const Bytes overhead = found == overheads.of_lease.end() ? Bytes() : found->second;
      entry.set_overhead_bytes(overhead.count());
      entry.set_total_limit_bytes(SaturatingAdd(device.limit, overhead).count());
      out.set_degraded(out.degraded() || !info->missing.is_zero());
    }
  }
  AddSessions(lease, lent, overheads, out);
  return out;
}

v1::StatsSnapshot StatsReporter::Snapshot(const Caller& caller) const {
  v1::StatsSnapshot snapshot;
  *snapshot.mutable_taken_at() = ToTimestamp(std::chrono::system_clock::now());
  snapshot.set_daemon("lgpud " LGPU_VERSION);
  const bool exact =
      std::all_of(cards_.begin(), cards_.end(), [](const ListedCard& card) { return card.exact; });
  snapshot.set_accounting(exact ? "exact" : "estimated");
  snapshot.set_uptime_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count());
  for (v1::CardStats& card : CardsFor(caller)) *snapshot.add_cards() = std::move(card);
  AddForeignProcesses(caller, snapshot);
  AddQueues(caller, snapshot);
  const CardObserver::Overheads overheads = broker_.observer().overheads();
  std::map<LeaseKey, GivingWayView> giving_way;
  for (GivingWayView& view : broker_.releases().Views()) giving_way.emplace(view.lease, std::move(view));
  for (const Lease& lease : leases_.Snapshot(caller)) {
    v1::LeaseStats& entry = *snapshot.add_leases() = LeaseToProto(lease, overheads);
    if (const auto found = giving_way.find(lease.key); found != giving_way.end()) {
      entry.set_gives_way_for(AskerFor(caller, found->second));
    }
  }
  const Broker::Counters counters = broker_.counters();
  snapshot.set_grants_total(counters.grants);
  snapshot.set_refusals_total(counters.refusals);
  snapshot.set_returns_total(counters.returns);
  snapshot.set_charges_total(counters.charges);
  snapshot.set_trims_total(counters.trims);
  snapshot.set_trims_ignored_total(counters.trims_ignored);
  snapshot.set_sessions_lost_total(leases_.lost_sessions());
  const PlacementLog::Counts placements = leases_.placement_counts();
  snapshot.set_placements_total(placements.records);
  snapshot.set_placements_dropped_total(placements.dropped);
  return snapshot;
}

}  // namespace lgpu::daemon
