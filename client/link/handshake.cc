#include "client/link/handshake.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace lgpu::link {
namespace {

using Kind = Reply::Kind;

/// The name and the arguments of this process as its user started it, for `lgpu ls`.
std::string OwnCommand() {
  char text[256];
  const int file = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t bytes = ::read(file, text, sizeof(text));
  ::close(file);
  std::string command(text, static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  while (!command.empty() && command.back() == '\0') command.pop_back();
  // A string of the protocol is UTF-8; an argument may be anything, and may be cut within a character.
  for (char& c : command) {
    if (c == '\0') c = ' ';
    if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return command;
}

}  // namespace

bool MayBeAskedAgain(PlainCode code) {
  switch (code) {
    case PlainCode::kUnavailable:
    case PlainCode::kDeadlineExceeded:
    case PlainCode::kResourceExhausted:
    case PlainCode::kAborted:
      return true;
    default:
      return false;
  }
}

bool Passes(const wire::Goodbye& goodbye) {
  return goodbye.code == static_cast<std::int32_t>(PlainCode::kUnavailable);
}

bool Reply::MayBeAskedAgain() const {
  switch (kind) {
    case Kind::kGoodbye:
    case Kind::kRefused:
      return link::MayBeAskedAgain(status.code);
    case Kind::kGarbled:
    case Kind::kStrange:
    case Kind::kOtherVersion:
      return false;
    default:
      return true;
  }
}

wire::Hello HelloOf(std::string client, std::uint32_t oldest, std::string command) {
  wire::Hello hello;
  hello.protocol_version = wire::Protocol::kProtocolVersion;
  hello.oldest_version = oldest;
  hello.client = std::move(client);
  hello.pid = ::getpid();
  hello.command = command.empty() ? OwnCommand() : std::move(command);
  return hello;
}

Reply LeaseOf(wire::Frame& answer, wire::Lease& lease) {
  auto* const attached = std::get_if<wire::Attached>(&answer.body);
  if (attached == nullptr || (attached->code == 0) != attached->lease.has_value()) return {Kind::kStrange};
  if (!attached->lease) {
    return {Kind::kRefused, PlainError(static_cast<PlainCode>(attached->code), attached->message)};
  }
  lease = *std::move(attached->lease);
  return {};
}

// A daemon that does not want the client may say so and hang up before it reads anything. Its last frame is
// read before the end of file, also where the question could not be sent any more.
Reply Handshake::Ask(const wire::Frame& frame, std::span<const int> fds, TimePoint deadline) {
  const PlainStatus sent = channel_.Send(frame, fds, deadline);
  if (!sent.ok() && sent.code != PlainCode::kUnavailable) return {Kind::kSilent, sent};
  while (true) {
    const TimePoint look = watch_ != nullptr ? watch_->NextLook(deadline) : deadline;
    const PlainStatus received = channel_.Receive(received_, look);
    if (received.code == PlainCode::kUnavailable) return {Kind::kHungUp, sent.ok() ? received : sent};
    if (received.code == PlainCode::kInvalidArgument) return {Kind::kGarbled, received};
    if (const auto* const goodbye = received_.frame.Get<wire::Goodbye>()) {
      return {Kind::kGoodbye, PlainError(static_cast<PlainCode>(goodbye->code), goodbye->message)};
    }
    if (received.ok()) return {};
    if (received.code != PlainCode::kDeadlineExceeded || look == deadline) return {Kind::kSilent, received};
    if (watch_->IsToStop()) return {Kind::kStopped};
  }
}

Reply Handshake::Greet(wire::Hello hello, bool resumes, Membership& member, TimePoint deadline) {
  const std::uint32_t oldest = hello.oldest_version, newest = hello.protocol_version;
  if (resumes) hello.resume = {.session_id = member.session_id, .session_token = {member.token}};
  if (Reply reply = Ask({.body = std::move(hello)}, {}, deadline); !reply.ok()) return reply;
  if (received_.fds_cut) return {Kind::kCut};
  const auto* const welcome = received_.frame.Get<wire::Welcome>();
  if (welcome == nullptr || received_.fds.size() != 2 || welcome->session_token.bytes.empty() ||
      welcome->resumed != resumes || (resumes && welcome->session_token.bytes != member.token)) {
    return {Kind::kStrange};
  }
  member.version = welcome->protocol_version;
  if (member.version < oldest || member.version > newest) return {Kind::kOtherVersion};
  if (resumes) return {};
  member.session_id = welcome->session_id;
  member.token = welcome->session_token.bytes;
  return {};
}

PlainStatus Handshake::TakePages(MapMemory map, bool resumes, Membership& member) {
  UniqueFd& stats_fd = received_.fds[0];
  UniqueFd& page_fd = received_.fds[1];
  if (resumes) {
    LGPU_PLAIN_RETURN_IF_ERROR(SharedPages::ReplaceStatsPage(map, member.stats, std::move(stats_fd)));
    LGPU_PLAIN_RETURN_IF_ERROR(SharedPages::ReplaceClientPage(map, member.page, std::move(page_fd)));
  } else {
    LGPU_PLAIN_ASSIGN_OR_RETURN(stats, SharedPage<const StatsPage> stats_page,
                                SharedPages::OpenStatsPage(map, std::move(stats_fd)));
    LGPU_PLAIN_ASSIGN_OR_RETURN(page, SharedPage<ClientPage> client_page,
                                SharedPages::OpenClientPage(map, std::move(page_fd)));
    member.stats = std::move(stats_page);
    member.page = std::move(client_page);
    // The pages stay mapped; the descriptors would be in the way of a program that closes all that it finds.
    member.stats.CloseFd();
    member.page.CloseFd();
  }
  if (member.makes_no_use) member.page->last_use.store(ClientPage::kNoUse, std::memory_order_relaxed);
  return {};
}

Reply Handshake::Attach(std::uint64_t request_id, const std::string& lease, wire::Lease& attached,
                        TimePoint deadline) {
  const wire::Frame frame{.body = wire::Attach{.request_id = request_id, .lease = lease}};
  if (Reply reply = Ask(frame, {}, deadline); !reply.ok()) return reply;
  return LeaseOf(received_.frame, attached);
}

Reply Handshake::Attest(wire::Attest page, std::span<const int> fds, TimePoint deadline) {
  if (Reply reply = Ask({.body = std::move(page)}, fds, deadline); !reply.ok()) return reply;
  return {received_.frame.Get<wire::Attested>() != nullptr ? Kind::kAnswered : Kind::kStrange};
}

}  // namespace lgpu::link
