#include "daemon/leases/lease_trim.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "allocator/broker/session_trims.h"
#include "daemon/leases/lease_idle.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr std::uint64_t kUsualWaitMs = 2'000;
constexpr std::uint64_t kLongestWaitMs = 60'000;

bool IsIdleFor(const Lease& lease, const SessionDirectory& sessions, std::uint64_t idle_ms) {
  const std::optional<UseTime> last = LastUse(lease, sessions);
  if (!last) return false;
  const auto idle = std::chrono::duration_cast<std::chrono::milliseconds>(UseTimeNow() - *last).count();
  return idle >= 0 && static_cast<std::uint64_t>(idle) >= idle_ms;
}

v1::LeaseTrim::Answer AnswerOf(const SessionTrims::Request::Asked& asked) {
  using Part = SessionTrims::Request::Part;
  const auto all = [&asked](bool Part::*member) {
    return std::all_of(asked.parts.begin(), asked.parts.end(),
                       [member](const Part& part) { return part.*member; });
  };
  return all(&Part::done)       ? v1::LeaseTrim::ANSWER_DONE
         : all(&Part::answered) ? v1::LeaseTrim::ANSWER_BUSY
                                : v1::LeaseTrim::ANSWER_NONE;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LeaseTrim>> LeaseTrim::Start(const Parts& parts, const Caller& caller,
                                                            const v1::TrimLeasesRequest& request) {
  const std::vector<std::string> names(request.leases().begin(), request.leases().end());
  LGPU_ASSIGN_OR_RETURN(const std::vector<Lease> leases, parts.leases.Find(caller, names));
  const std::uint64_t wait =
      request.wait_ms() == 0 ? kUsualWaitMs : std::min(request.wait_ms(), kLongestWaitMs);
  std::unique_ptr<LeaseTrim> trim(new LeaseTrim(parts, Clock::now() + std::chrono::milliseconds(wait)));
  for (const Lease& lease : leases) {
    if (request.idle_ms() > 0 && !IsIdleFor(lease, parts.sessions, request.idle_ms())) continue;
    Open& open = trim->open_.emplace_back();
    open.id = lease.id;
    open.name = lease.name;
    open.owner = lease.owner.name;
    for (const LeaseDevice& device : lease.devices) open.devices.push_back(device.id);
    open.request = parts.broker.trims().Start(open.devices);
  }
  return trim;
}

std::vector<v1::LeaseTrim> LeaseTrim::Take() {
  const bool is_late = Clock::now() >= deadline_;
  std::vector<v1::LeaseTrim> told;
  std::vector<Open> left;
  for (Open& open : open_) {
    parts_.broker.trims().Continue(open.request);
    if (is_late || open.request.is_done) {
      told.push_back(Describe(open));
    } else {
      left.push_back(std::move(open));
    }
  }
  open_ = std::move(left);
  return told;
}

v1::LeaseTrim LeaseTrim::Describe(const Open& open) const {
  v1::LeaseTrim out;
  out.set_lease_id(open.id);
  out.set_lease_name(open.name);
  out.set_owner(open.owner);
  Bytes returned = open.request.allowances;
  for (const SessionTrims::Request::Asked& asked : open.request.sessions) {
    returned += asked.returned;
    AddSession(asked.session, AnswerOf(asked), asked.returned, out);
  }
  for (const SessionId session : open.request.unasked) {
    AddSession(session, v1::LeaseTrim::ANSWER_NOT_ASKED, Bytes(), out);
  }
  out.set_returned_bytes(returned.count());
  Bytes held;
  for (const LogicalId id : open.devices) {
    if (const std::optional<Broker::DeviceInfo> info = parts_.broker.Find(id)) held += info->held;
  }
  out.set_held_bytes(held.count());
  return out;
}

void LeaseTrim::AddSession(SessionId session, v1::LeaseTrim::Answer answer, Bytes returned,
                           v1::LeaseTrim& out) const {
  v1::LeaseTrim::Session& entry = *out.add_sessions();
  entry.set_session_id(session.value);
  entry.set_answer(answer);
  entry.set_returned_bytes(returned.count());
  if (const std::shared_ptr<SessionState> state = parts_.sessions.Find(session); state != nullptr) {
    entry.set_pid(state->process().pid);
    entry.set_command(state->identity().command);
  }
}

}  // namespace lgpu::daemon
