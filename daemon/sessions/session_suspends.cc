// Programs of leases that are suspended: the client, which started them, moves them, or it moves itself.

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "daemon/leases/lease_suspender.h"
#include "daemon/sessions/session.h"

namespace lgpu::daemon {
namespace {

constexpr std::size_t kMaxReasonBytes = 400;

}  // namespace

bool Session::Suspends(const wire::Hello& hello, std::uint32_t version) {
  return version >= wire::Protocol::kGiveWayVersion && hello.suspends;
}

bool Session::SuspendsItself(const wire::Hello& hello, std::uint32_t version) {
  return version >= wire::Protocol::kGiveWayVersion && hello.suspends_itself && !hello.suspends;
}

bool Session::FollowsSuspends() const {
  return services_.suspender != nullptr &&
         (state_->identity().suspends || state_->identity().suspends_itself);
}

void Session::SendSuspends() {
  if (!FollowsSuspends() || attesting_) return;
  for (wire::Suspend& order : services_.suspender->TakeOrders(peer_.id)) Send({.body = std::move(order)});
}

void Session::HandleSuspended(const wire::Suspended& suspended) {
  if (!FollowsSuspends()) {
    Break(absl::InvalidArgumentError("Suspended came from a client that suspends nothing"));
    return;
  }
  const int code = suspended.code;
  const bool is_code = code >= 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  std::set<std::int64_t> left;
  for (const wire::ProcessName& process : suspended.left) left.insert(process.pid);
  std::map<LogicalId, Bytes> needs;
  for (const wire::DeviceBytes& need : suspended.needs) needs[LogicalId{need.device_id}] = Bytes(need.bytes);
  services_.suspender->Answer(
      peer_.id, suspended.order_id,
      absl::Status(is_code ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                   AsUtf8(suspended.message.substr(0, kMaxReasonBytes))),
      left, needs);
}

}  // namespace lgpu::daemon
