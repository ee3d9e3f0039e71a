#include "allocator/broker/session_trims.h"

#include "allocator/broker/broker_core.h"

namespace lgpu {

std::vector<TrimOrder> SessionTrims::TakeOrders(SessionId session) {
  BrokerLock lock(core_);
  return core_.trims.TakeOrders(session);
}

absl::Status SessionTrims::Answer(SessionId session, TrimId trim, bool pending) {
  BrokerLock lock(core_);
  const absl::StatusOr<LogicalId> answered = core_.trims.Answer(session, trim, pending);
  if (!answered.ok()) return answered.status();
  if (core_.tables.devices.contains(*answered)) core_.scheduler.Serve(core_.tables.CardOf(*answered));
  return absl::OkStatus();
}

SessionTrims::Request SessionTrims::Start(std::span<const LogicalId> devices) {
  SessionTrims::Request request;
  BrokerLock lock(core_);
  const Bytes before = core_.tables.LentOf(devices);
  if (!before.is_zero()) {
    for (const LogicalId id : devices) {
      const auto device = core_.tables.devices.find(id);
      if (device == core_.tables.devices.end()) continue;
      const Broker::DeviceSpec& spec = device->second.spec;
      if (core_.charges.TakeAllowances(spec.card, spec.lease)) core_.scheduler.Serve(spec.card);
    }
    request.allowances = SaturatingSub(before, core_.tables.LentOf(devices));
  }
  core_.trims.Start(devices, request);
  return request;
}

void SessionTrims::Continue(SessionTrims::Request& request) {
  BrokerLock lock(core_);
  core_.trims.Continue(request);
}

std::vector<SessionTrims::Ignored> SessionTrims::TakeIgnored() {
  BrokerLock lock(core_);
  return core_.trims.TakeIgnored();
}

SessionTrims::Record SessionTrims::RecordOf(SessionId session) const {
  BrokerLock lock(core_);
  const SessionEntry* const entry = core_.tables.FindSession(session);
  if (entry == nullptr) return {};
  return {.ignored = entry->trims_ignored, .ignores_now = core_.trims.Ignores(session)};
}

}  // namespace lgpu
