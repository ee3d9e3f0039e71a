#include "daemon/leases/lease_record.h"

#include <chrono>

namespace lgpu::daemon {

v1::JournalLease RecordOf(const Lease& lease) {
  v1::JournalLease record;
  record.set_key(lease.key.value);
  record.set_id(lease.id);
  record.set_name(lease.name);
  record.set_owner_uid(lease.owner.uid);
  record.set_lasting(lease.lasting);
  record.set_created_unix_ns(
      std::chrono::duration_cast<std::chrono::nanoseconds>(lease.created_at.time_since_epoch()).count());
  record.set_request_id(lease.request_id);
  record.set_sessions_ever(lease.sessions_ever);
  record.set_removed(lease.removed);
  record.set_has_directory(lease.has_directory);
  if (lease.management) *record.mutable_management() = RecordOf(*lease.management);
  if (lease.ends.any()) *record.mutable_ends() = RecordOf(lease.ends);
  record.set_preemptible(ToProto(lease.preemptible));
  record.set_idle_after_ms(static_cast<std::uint64_t>(lease.idle_after.count()));
  record.set_was_resumed(lease.was_resumed);
  if (lease.suspended) *record.mutable_suspended() = *lease.suspended;
  for (const LeaseDevice& device : lease.devices) {
    v1::JournalDevice& out = *record.add_devices();
    out.set_id(device.id.value);
    out.set_card_uuid(device.card.device.uuid);
    out.set_limit_bytes(device.limit.count());
    out.set_guarantee_bytes(device.guarantee.count());
    out.set_preallocate(device.preallocate);
    out.set_label(device.name);
  }
  return record;
}

}  // namespace lgpu::daemon
