#include "daemon/leases/lease_events.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "allocator/broker/session_trims.h"
#include "base/refusal_text.h"

namespace lgpu::daemon {
namespace {

std::string DevicesText(const Lease& lease) {
  std::string text;
  for (const LeaseDevice& device : lease.devices) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "GPU:", device.index, " = ", FormatBytes(device.limit),
                    device.preallocate ? " (preallocate)" : " (growth)", " on GPU ", device.card.index);
  }
  return text;
}

std::string ProgramOf(const SessionState& session) {
  return absl::StrCat(session.identity().command, " (pid ", session.process().pid, ")");
}

std::string ProgramOf(const SessionState& session, const Lease& lease) {
  return absl::StrCat(ProgramOf(session), " of lease ", lease.name);
}

}  // namespace

void LeaseEvents::Append(v1::Event::Kind kind, const Lease& lease, const SessionState* session,
                         std::string text) const {
  v1::Event event;
  event.set_kind(kind);
  event.set_lease_id(lease.id);
  event.set_lease_name(lease.name);
  if (session != nullptr) {
    event.set_session_id(session->id().value);
    event.set_pid(session->process().pid);
  }
  event.set_text(std::move(text));
  log_.Append(std::move(event), lease.owner.uid);
}

void LeaseEvents::Created(const Lease& lease, const SessionState* maker) const {
  Append(v1::Event::KIND_LEASE_CREATED, lease, maker,
         absl::StrCat("lease ", lease.name, ": ", DevicesText(lease)));
}

void LeaseEvents::Resized(const Lease& lease) const {
  Append(v1::Event::KIND_LEASE_RESIZED, lease, nullptr,
         absl::StrCat("lease ", lease.name, " has new limits"));
}

void LeaseEvents::Ended(const Lease& lease) const {
  Append(v1::Event::KIND_LEASE_REMOVED, lease, nullptr, absl::StrCat("lease ", lease.name, " has ended"));
}

void LeaseEvents::EndsByItself(const Lease& lease, const std::string& why) const {
  const std::string text = absl::StrCat("lease ", lease.name, " ends: ", why);
  spdlog::info("{}", text);
  Append(v1::Event::KIND_LEASE_ENDS, lease, nullptr, text);
}

void LeaseEvents::LacksMemory(const Lease& lease, Bytes missing, const absl::Status& why) const {
  const std::string text =
      absl::StrCat("lease ", lease.name, " lacks ", FormatBytes(missing), " of its preallocated memory: ");
  spdlog::warn("{}{}", text, std::string(why.message()));
  Append(v1::Event::KIND_LEASE_DEGRADED, lease, nullptr, absl::StrCat(text, StatusHeadline(why)));
}

void LeaseEvents::Uncharged(const Lease& lease, std::int64_t pid, const std::string& program,
                            const std::string& what) const {
  Append(v1::Event::KIND_UNCHARGED, lease, nullptr,
         absl::StrCat(program, " (pid ", pid, ") of lease ", lease.name, " ", what));
}

void LeaseEvents::Attached(const Lease& lease, const SessionState& session) const {
  Append(v1::Event::KIND_SESSION_ATTACHED, lease, &session,
         absl::StrCat(ProgramOf(session), " is attached to lease ", lease.name));
}

void LeaseEvents::Absent(const Lease& lease, const SessionState& session, Bytes held) const {
  Append(v1::Event::KIND_SESSION_ABSENT, lease, &session,
         absl::StrCat(ProgramOf(session, lease), " holds ", FormatBytes(held),
                      " from before lgpud was started again"));
}

void LeaseEvents::Back(const Lease& lease, const SessionState& session, Bytes held) const {
  Append(v1::Event::KIND_SESSION_BACK, lease, &session,
         absl::StrCat(ProgramOf(session, lease), " is back and holds ", FormatBytes(held)));
}

void LeaseEvents::Lost(const Lease& lease, const SessionState& session, Bytes held) const {
  Append(v1::Event::KIND_SESSION_LOST, lease, &session,
         absl::StrCat(ProgramOf(session, lease), " ended without closing; ", FormatBytes(held),
                      " are draining"));
}

void LeaseEvents::Gone(const Lease& lease, const SessionState& session, bool was_lost) const {
  Append(was_lost ? v1::Event::KIND_SESSION_GONE : v1::Event::KIND_SESSION_CLOSED, lease, &session,
         absl::StrCat(ProgramOf(session),
                      was_lost ? " is gone from lease " : " has closed its session of lease ", lease.name,
                      "; its memory is back"));
}

void LeaseEvents::Unreturned(const Lease& lease, const SessionState& session, Bytes bytes) const {
  Append(v1::Event::KIND_UNRETURNED, lease, &session,
         absl::StrCat(ProgramOf(session, lease), " returned ", FormatBytes(bytes),
                      " that the card does not have back: the program is charged for it and gets no more"));
}

void LeaseEvents::GaveWay(const Lease& lease, const GivingWayNews& news) const {
  const std::string bytes = FormatBytes(news.bytes);
  const std::string time = absl::StrFormat("%.1fs", std::chrono::duration<double>(news.took).count());
  Append(v1::Event::KIND_GIVING_WAY, lease, nullptr,
         news.what == GivingWayNews::What::kGave
             ? absl::StrCat("gave way: ", bytes, " in ", time)
             : absl::StrCat("served after ", time, ": ", bytes, " were set aside for it"));
}

void LeaseEvents::AskedToGiveWay(const Lease& lease, std::string text) const {
  Append(v1::Event::KIND_GIVING_WAY, lease, nullptr, std::move(text));
}

void LeaseEvents::Suspended(const Lease& lease, std::string text) const {
  Append(v1::Event::KIND_SUSPENDED, lease, nullptr, std::move(text));
}

void LeaseEvents::IgnoredTrim(const Lease& lease, const SessionState& session,
                              const SessionTrims::Ignored& ignored) const {
  Append(v1::Event::KIND_TRIM_IGNORED, lease, &session,
         absl::StrCat(ProgramOf(session, lease), " did not answer within 1s how much of its ",
                      FormatBytes(ignored.asked), " is idle (unanswered questions so far: ", ignored.ignored,
                      "): the program is stopped, or its session thread is blocked; requests for memory no "
                      "longer wait for its answer"));
}

void LeaseEvents::LostContext(const Lease& lease, const SessionState& session) const {
  Append(v1::Event::KIND_CONTEXT_LOST, lease, &session,
         absl::StrCat(ProgramOf(session, lease),
                      " has lost its GPU context to a fault: its calls fail until it is started again; "
                      "`dmesg` may have an Xid that says more"));
}

}  // namespace lgpu::daemon
