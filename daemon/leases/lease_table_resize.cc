// Gives the devices of leases new limits and guarantees.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/lease_suspensions.h"
#include "allocator/broker/thread_waker.h"
#include "base/check.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// The devices of a lease, as a request wants them.
absl::StatusOr<std::vector<LeaseDevice>> Resized(const Lease& lease, const v1::ResizeLeaseRequest& request,
                                                 const std::vector<Broker::CardInfo>& cards) {
  std::vector<LeaseDevice> devices = lease.devices;
  for (const v1::ResizeLeaseRequest::Device& wish : request.devices()) {
    if (wish.index() >= devices.size()) {
      return absl::InvalidArgumentError(absl::StrCat("lease ", lease.name, " has no GPU:", wish.index(),
                                                     ", it has ", devices.size(), " devices"));
    }
    if (wish.memory_limit_bytes() == 0 && !wish.whole_card() && !wish.has_guarantee_bytes()) {
      return absl::InvalidArgumentError("neither a new memory_limit nor a new guarantee; give at least one");
    }
    if (wish.memory_limit_bytes() > 0 && wish.whole_card()) {
      return absl::InvalidArgumentError("both a memory_limit and the whole card; give one of them");
    }
    LeaseDevice& device = devices[wish.index()];
    if (device.preallocate && wish.has_guarantee_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("GPU:", wish.index(), " of lease ", lease.name,
                       " is preallocated: its guarantee is its limit; give a new "
                       "memory_limit"));
    }
    if (wish.memory_limit_bytes() > 0) device.limit = Bytes(wish.memory_limit_bytes());
    if (wish.whole_card()) {
      const auto card = std::find_if(cards.begin(), cards.end(), [&](const Broker::CardInfo& each) {
        return each.card.device.uuid == device.card.device.uuid;
      });
      LGPU_CHECK(card != cards.end());  // cards are there as long as the daemon
      // The device's own promise stays with it; a larger guarantee needs unpromised memory.
      device.limit = device.preallocate
                         ? RoundDown(std::min(Broker::WholeCard(*card), device.limit + card->view.free()),
                                     card->view.granularity)
                         : Broker::WholeCard(*card);
    }
    if (device.preallocate) {
      device.guarantee = device.limit;
    } else if (wish.has_guarantee_bytes()) {
      device.guarantee = Bytes(wish.guarantee_bytes());
    } else {
      device.guarantee = std::min(device.guarantee, device.limit);
    }
  }
  return devices;
}

bool HasSizeOf(const LeaseDevice& device, const LeaseDevice& other) {
  return device.limit == other.limit && device.guarantee == other.guarantee;
}

// The size of a device while its lease is resized: with the larger guarantee, and a limit that is raised no
// more than that guarantee needs.
LeaseDevice WithLargerGuarantee(const LeaseDevice& before, const LeaseDevice& wanted) {
  LeaseDevice device = before;
  device.guarantee = std::max(before.guarantee, wanted.guarantee);
  device.limit = std::max(before.limit, device.guarantee);
  return device;
}

}  // namespace

absl::StatusOr<LeaseTable::Resizing> LeaseTable::StartResize(const Caller& caller,
                                                             const v1::ResizeLeaseRequest& request,
                                                             TimePoint deadline) {
  const std::vector<Broker::CardInfo> cards = broker_.Cards();
  MutexLock lock(mutex_);
  LGPU_ASSIGN_OR_RETURN(LeaseKey key, FindKey(caller, request.lease()));
  while (leases_.at(key).resizing) {
    if (!changed_.WaitUntil(mutex_, deadline) || closed_) {
      return absl::UnavailableError("another call resizes the lease; try again later");
    }
    LGPU_ASSIGN_OR_RETURN(key, FindKey(caller, request.lease()));
  }
  Lease& lease = leases_.at(key);
  LGPU_RETURN_IF_ERROR(CheckMayChange(caller, lease));
  if (broker_.suspensions().Find(key)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "lease ", lease.name, " is suspended; resize it when it is resumed\ntry: lgpu resume ", lease.name));
  }
  LGPU_ASSIGN_OR_RETURN(std::vector<LeaseDevice> devices, Resized(lease, request, cards));
  Holdings more;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const LeaseDevice& before = lease.devices[i];
    more.memory_limit =
        SaturatingAdd(more.memory_limit, SaturatingSub(devices[i].capped_limit(), before.capped_limit()));
    more.guarantee = SaturatingAdd(more.guarantee,
                                   SaturatingSub(devices[i].capped_guarantee(), before.capped_guarantee()));
  }
  if (!lease.management) LGPU_RETURN_IF_ERROR(CheckCaps(lease.owner, more));
  Resizing resizing{.lease = lease, .wanted = std::move(devices)};
  lease.resizing = true;
  // The caps count the larger of both from here on, so that calls side by side do not add up beyond them.
  lease.resizing_to = resizing.wanted;
  for (std::size_t i = 0; i < lease.devices.size(); ++i) {
    LeaseDevice& largest = lease.resizing_to[i];
    largest.limit = std::max(largest.limit, lease.devices[i].limit);
    largest.guarantee = std::max(largest.guarantee, lease.devices[i].guarantee);
  }
  return resizing;
}

absl::Status LeaseTable::SetAside(const Resizing& resizing, TimePoint deadline) {
  const std::vector<LeaseDevice>& before = resizing.lease.devices;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const LeaseDevice& wanted = resizing.wanted[i];
    if (HasSizeOf(wanted, before[i])) continue;
    LGPU_RETURN_IF_ERROR(broker_.CheckSize(wanted.id, wanted.limit, wanted.guarantee));
  }
  // In the order of the cards, so that two calls never wait for what the other one has set aside.
  std::vector<std::size_t> order(before.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return before[i].card.index; });
  std::vector<LeaseDevice> changed;  // as they were
  for (const std::size_t i : order) {
    const LeaseDevice larger = WithLargerGuarantee(before[i], resizing.wanted[i]);
    if (HasSizeOf(larger, before[i])) continue;
    const absl::Status status =
        ResizeDeviceInTime(broker_, larger.id, larger.limit, larger.guarantee, deadline);
    if (!status.ok()) {
      for (const LeaseDevice& device : changed) SetSize(device);
      return status;
    }
    changed.push_back(before[i]);
  }
  return absl::OkStatus();
}

void LeaseTable::SetSize(const LeaseDevice& device) {
  // A guarantee that does not rise takes nothing of the card, so the broker does not refuse it.
  const absl::Status status = broker_.ResizeDevice(device.id, device.limit, device.guarantee);
  LGPU_CHECK(status.ok());
}

void LeaseTable::NoteDevices(LeaseKey key, const std::vector<LeaseDevice>& devices) {
  MutexLock lock(mutex_);
  Lease& lease = leases_.at(key);
  lease.devices = devices;
  NoteLease(lease);
}

void LeaseTable::EndResize(LeaseKey key) {
  std::optional<Lease> taken;
  std::vector<LogicalId> over;
  {
    MutexLock lock(mutex_);
    Lease& lease = leases_.at(key);
    lease.resizing = false;
    lease.resizing_to.clear();
    over = TakeIfOver(key, taken);
  }
  changed_.NotifyAll();
  Finish(taken, over);
}

absl::StatusOr<v1::Lease> LeaseTable::Resize(const Caller& caller, const v1::ResizeLeaseRequest& request,
                                             TimePoint deadline) {
  LGPU_ASSIGN_OR_RETURN(const Resizing resizing, StartResize(caller, request, deadline));
  const Lease& lease = resizing.lease;
  const absl::Status status = SetAside(resizing, deadline);
  if (status.ok()) {
    // From here on nothing is refused. Freed memory may be granted to another device at once, so the journal
    // has the new sizes before; added memory is set aside already.
    NoteDevices(lease.key, resizing.wanted);
    for (std::size_t i = 0; i < lease.devices.size(); ++i) {
      const LeaseDevice& wanted = resizing.wanted[i];
      if (!HasSizeOf(wanted, WithLargerGuarantee(lease.devices[i], wanted))) SetSize(wanted);
    }
  }
  EndResize(lease.key);
  for (const SessionId id : lease.live) {
    if (const std::shared_ptr<SessionState> session = sessions_.Find(id); session != nullptr) {
      WriteStats(*session);
    }
  }
  LGPU_RETURN_IF_ERROR(status);
  absl::Status saved = Commit();
  if (lease.lasting) saved.Update(SaveLasting());
  LGPU_RETURN_IF_ERROR(saved);
  events_.Resized(lease);
  return Describe(lease.key);
}

}  // namespace lgpu::daemon
