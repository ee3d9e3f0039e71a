#include "tests/fuzz/hostile_client.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace lgpu::daemon {
namespace {

constexpr std::chrono::seconds kPatience{60};

}  // namespace

void HostileClient::Connect(MemoryPlane& plane) {
  Hang();
  channel_ = plane.Connect();
  state_ = State::kNew;
  closed_ = false;
  takes_up_ = nullptr;
}

void HostileClient::Hang() { Over(); }

void HostileClient::Drop() {
  Over();
  chunks_.clear();
}

void HostileClient::Over() {
  channel_ = GeneratedChannel();
  state_ = State::kOver;
  settled_ = true;
  unanswered_ = 0;
  answered_ = true;
  grant_ = acknowledges_ = 0;
  trims_.clear();
  grows_.clear();
  waits_for_ever_ = false;
  returning_.clear();
  pages_.clear();
  // Some chunks may be attested already; a client that resumes again attests all.
  chunks_.merge(attested_);
  attested_.clear();
}

void HostileClient::SayHello(std::uint32_t version, std::uint32_t oldest, const std::string& command) {
  v1::Frame frame;
  frame.mutable_hello()->set_protocol_version(version);
  frame.mutable_hello()->set_oldest_version(oldest);
  frame.mutable_hello()->set_command(command);
  Send(std::move(frame));
}

void HostileClient::Resume(HostileClient& whose, std::uint8_t lie) {
  if (takes_up_ == nullptr) {
    takes_up_ = &whose;
    takes_up_id_ = whose.id_;
    lies_ = lie % 4 != 0;
  }
  v1::Frame frame;
  frame.mutable_hello()->set_protocol_version(GeneratedChannel::kProtocolVersion);
  frame.mutable_hello()->set_oldest_version(GeneratedChannel::kOldestVersion);
  v1::Resume& resume = *frame.mutable_hello()->mutable_resume();
  resume.set_session_id(whose.id_ + (lie % 4 == 1 ? 1 : 0));
  resume.set_session_token(whose.token_);
  if (lie % 4 == 2 && !whose.token_.empty()) {
    (*resume.mutable_session_token())[lie / 4 % whose.token_.size()] ^= 1;
  }
  if (lie % 4 == 3) resume.clear_session_token();
  Send(std::move(frame));
}

void HostileClient::Grow(const Wish& wish) {
  v1::Frame frame;
  v1::GrowRequest& grow = *frame.mutable_grow();
  grow.set_request_id(++last_request_);
  grow.set_device_id(wish.device);
  grow.set_at_least_bytes(wish.at_least);
  grow.set_wanted_bytes(wish.wanted);
  grow.set_timeout_ms(wish.timeout_ms);
  grow.set_ahead(wish.ahead);
  Send(std::move(frame));
}

void HostileClient::Acknowledge() {
  if (grant_ != 0) AcknowledgeWrongly(grant_);
}

void HostileClient::AcknowledgeWrongly(std::uint64_t grant) {
  v1::Frame frame;
  frame.mutable_ack()->set_grant_id(grant);
  Send(std::move(frame));
}

std::uint64_t HostileClient::ChunkFrom(InputReader& input) const {
  const std::uint64_t which = input.Number();
  if (which >= 0x80 || chunks_.empty()) return which;
  return std::next(chunks_.begin(), static_cast<std::ptrdiff_t>(which % chunks_.size()))->first;
}

void HostileClient::Return(std::uint64_t device, InputReader& input) {
  v1::Frame frame;
  v1::ReturnRequest& request = *frame.mutable_return_chunks();
  const std::uint8_t how = input.Byte();
  const bool truly = how >= 0x40 && !chunks_.empty();
  if (truly) device = chunks_.begin()->second.device;
  request.set_request_id(++last_request_);
  request.set_device_id(device);
  if (truly) {
    for (const auto& [id, held] : chunks_) {
      if (held.device == device && (how >= 0x80 || request.chunk_ids().empty())) request.add_chunk_ids(id);
    }
  } else {
    for (int i = 0; i < how % 5; ++i) request.add_chunk_ids(ChunkFrom(input));
  }
  Send(std::move(frame));
}

void HostileClient::ReturnOne() {
  constexpr std::uint8_t kOneOfMine = 0x40;
  InputReader input(&kOneOfMine, 1);
  Return(0, input);
}

void HostileClient::AnswerTrim(std::uint8_t how) {
  v1::Frame frame;
  frame.mutable_trimmed()->set_pending(how >= 0x80);
  if (how % 4 == 0 || trims_.empty()) {
    frame.mutable_trimmed()->set_trim_id(how % 0x80 / 4);
  } else {
    frame.mutable_trimmed()->set_trim_id(trims_.front());
    trims_.pop_front();
  }
  Send(std::move(frame));
}

void HostileClient::Close() {
  v1::Frame frame;
  frame.mutable_close()->set_request_id(++last_request_);
  Send(std::move(frame));
}

void HostileClient::Attest(std::uint64_t device, InputReader& input, const HostileClient& other) {
  v1::Frame frame;
  v1::Attest& page = *frame.mutable_attest();
  const std::uint8_t how = input.Byte();
  page.set_more(how % 2 == 1);
  std::vector<int> fds;
  const auto add = [&](std::uint64_t id, std::uint64_t bytes) {
    v1::Chunk& chunk = *page.add_chunks();
    chunk.set_id(id);
    chunk.set_bytes(bytes);
    const Chunks& whose = chunks_.contains(id) ? chunks_ : other.chunks_;
    const auto found = whose.find(id);
    fds.push_back(found == whose.end() ? STDERR_FILENO : found->second.fd.get());
  };
  if (how >= 0x80 && !chunks_.empty()) {
    device = chunks_.begin()->second.device;
    for (const auto& [id, held] : chunks_) {
      if (held.device == device) add(id, held.bytes);
    }
  } else {
    for (int i = 0; i < how / 16 % 8; ++i) {
      const std::uint64_t id = ChunkFrom(input);
      add(id, input.Number() % 4 * MemoryPlane::kChunkBytes);
    }
  }
  page.set_device_id(device);
  switch (how / 2 % 8) {
    case 1:
      fds.clear();
      break;
    case 2:
      fds.push_back(STDERR_FILENO);
      break;
    case 3:
      if (!fds.empty()) fds.back() = STDERR_FILENO;
      break;
    case 4:
      if (!fds.empty()) std::swap(fds.front(), fds.back());
      break;
    default:
      break;
  }
  Send(std::move(frame), fds);
}

void HostileClient::SendPacket(const std::string& bytes, std::size_t fd_count) {
  SendEncoded(bytes, std::vector<int>(fd_count, STDERR_FILENO));
}

void HostileClient::SendBare(std::uint8_t body) {
  // All of 1 to 31, so those too that no version knows; wire type 2, no bytes.
  const int field = 1 + body % 31;
  const auto tag = static_cast<unsigned>(field << 3 | 2);
  std::string bytes;
  if (tag >= 0x80) {
    bytes += {static_cast<char>(tag % 0x80 | 0x80), static_cast<char>(tag / 0x80)};
  } else {
    bytes += static_cast<char>(tag);
  }
  SendPacket(bytes + '\0', 0);
}

void HostileClient::ComeBack(MemoryPlane& plane) {
  Connect(plane);
  Resume(*this, 0);
  Settle();
  LGPU_CHECK(state_ == State::kAttesting);
  const std::uint8_t all_at_once = 0x80;
  InputReader input(&all_at_once, 1);
  Attest(0, input, *this);
  Settle();
  LGPU_CHECK(state_ == State::kLive);
}

void HostileClient::Send(v1::Frame frame, const std::vector<int>& fds) {
  frame.set_acknowledges(std::exchange(acknowledges_, 0));
  SendEncoded(frame.SerializeAsString(), fds);
}

void HostileClient::SendEncoded(const std::string& bytes, const std::vector<int>& fds) {
  if (state_ == State::kOver) return;
  iovec part = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 64)> control = {};
  if (!fds.empty()) {
    const std::size_t count = std::min<std::size_t>(fds.size(), 64);
    auto* header = reinterpret_cast<cmsghdr*>(control.data());
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    std::memcpy(CMSG_DATA(header), fds.data(), count * sizeof(int));
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  }
  settled_ = false;
  ++unanswered_;
  if (::sendmsg(channel_.fd(), &message, MSG_NOSIGNAL) < 0) {
    LGPU_CHECK(errno == EPIPE || errno == ECONNRESET);
    while (state_ != State::kOver) Receive();
    return;
  }
  if (v1::Frame frame; frame.ParseFromString(bytes)) Note(frame);
}

void HostileClient::Note(const v1::Frame& frame) {
  if (grant_ != 0 && (frame.acknowledges() == grant_ || frame.ack().grant_id() == grant_)) grant_ = 0;
  if (frame.has_grow()) {
    grows_.insert(frame.grow().request_id());
    waits_for_ever_ = waits_for_ever_ || frame.grow().timeout_ms() > kShortTimeoutMs;
  }
  if (frame.has_return_chunks()) {
    const auto& ids = frame.return_chunks().chunk_ids();
    returning_.push_back({.request = frame.return_chunks().request_id(),
                          .is_probe = false,
                          .chunks = {ids.begin(), ids.end()}});
  }
  if (frame.has_attest()) {
    Page page{.chunks = {}, .more = frame.attest().more()};
    for (const v1::Chunk& chunk : frame.attest().chunks()) page.chunks.push_back(chunk.id());
    pages_.push_back(std::move(page));
  }
  if (frame.has_close() && state_ == State::kLive) {
    state_ = State::kClosing;
    chunks_.clear();
  }
}

void HostileClient::SendProbe() {
  // Always refused, and always answered.
  v1::Frame frame;
  frame.mutable_return_chunks();
  answered_ = false;
  Send(std::move(frame));
  if (state_ != State::kOver) returning_.back().is_probe = true;
}

void HostileClient::Settle() {
  if (state_ == State::kLive) SendProbe();
  while (state_ != State::kOver) {
    const bool waits_for_greeting = state_ == State::kNew || state_ == State::kAttesting;
    if (waits_for_greeting && unanswered_ <= 0) break;
    if (state_ == State::kLive && answered_) {
      if (unanswered_ <= 0) break;
      SendProbe();
      continue;
    }
    Receive();
  }
  settled_ = true;
}

void HostileClient::AwaitGrows() {
  while (!grows_.empty() && !waits_for_ever_) {
    Acknowledge();
    Receive();
  }
}

void HostileClient::Receive() {
  absl::StatusOr<GeneratedFrame> received = channel_.Receive(std::chrono::steady_clock::now() + kPatience);
  if (absl::IsUnavailable(received.status())) {
    Over();
    return;
  }
  if (!received.ok()) std::fprintf(stderr, "%s\n", std::string(received.status().message()).c_str());
  LGPU_CHECK(received.ok());
  Take(*received);
}

void HostileClient::Take(GeneratedFrame& received) {
  const v1::Frame& frame = received.frame;
  if (frame.has_welcome()) {
    LGPU_CHECK_OP(received.fds.size(), ==, 2u);
    TakeWelcome(frame.welcome());
  } else if (frame.has_grant()) {
    TakeGrant(received);
  } else if (frame.has_returned()) {
    TakeReturned(frame.returned());
  } else if (frame.has_attested()) {
    TakeAttested();
  } else if (frame.has_trim()) {
    trims_.push_back(frame.trim().trim_id());
  } else if (frame.has_closed()) {
    closed_ = true;
  } else if (frame.has_grow_refused()) {
    TakeGrowAnswer(frame.grow_refused().request_id());
  } else {
    LGPU_CHECK(frame.has_goodbye());
  }
}

void HostileClient::TakeWelcome(const v1::Welcome& welcome) {
  LGPU_CHECK(state_ == State::kNew);
  --unanswered_;
  token_ = welcome.session_token();
  id_ = welcome.session_id();
  if (!welcome.resumed()) {
    state_ = State::kLive;
    chunks_.clear();
    return;
  }
  state_ = State::kAttesting;
  LGPU_CHECK(takes_up_ != nullptr && !lies_);
  LGPU_CHECK_OP(takes_up_id_, ==, id_);
  // The client that had the session may have another one by now, and nothing of the one before.
  if (takes_up_ != this && takes_up_->id_ == id_) chunks_ = std::exchange(takes_up_->chunks_, {});
}

void HostileClient::TakeGrowAnswer(std::uint64_t request) {
  // Every one once.
  const auto asked = grows_.find(request);
  LGPU_CHECK(asked != grows_.end());
  grows_.erase(asked);
}

void HostileClient::TakeGrant(GeneratedFrame& received) {
  const v1::Grant& grant = received.frame.grant();
  // One at a time.
  LGPU_CHECK(grant_ == 0 && grant.grant_id() != 0);
  LGPU_CHECK_OP(received.fds.size(), ==, static_cast<std::size_t>(grant.chunks_size()));
  grant_ = grant.grant_id();
  if (!grant.more()) TakeGrowAnswer(grant.request_id());
  for (int i = 0; i < grant.chunks_size(); ++i) {
    const v1::Chunk& chunk = grant.chunks(i);
    Held held{.device = grant.device_id(),
              .bytes = chunk.bytes(),
              .fd = std::move(received.fds[static_cast<std::size_t>(i)])};
    if (state_ != State::kLive) continue;
    granted_->insert({id_, chunk.id()});
    LGPU_CHECK(chunks_.emplace(chunk.id(), std::move(held)).second);
  }
}

void HostileClient::TakeReturned(const v1::ReturnReply& reply) {
  LGPU_CHECK(!returning_.empty());
  const Returning returning = std::move(returning_.front());
  returning_.pop_front();
  LGPU_CHECK_OP(reply.request_id(), ==, returning.request);
  if (reply.code() == 0) {
    for (const std::uint64_t id : returning.chunks) chunks_.erase(id);
  }
  if (!returning.is_probe) return;
  answered_ = true;
  unanswered_ = 0;
}

void HostileClient::TakeAttested() {
  LGPU_CHECK(state_ == State::kAttesting && !pages_.empty());
  --unanswered_;
  for (const std::uint64_t id : pages_.front().chunks) {
    auto chunk = chunks_.extract(id);
    // Another client, which took the session up before, may have told of it already, and have it.
    LGPU_CHECK(granted_->contains({id_, id}));
    if (!chunk.empty()) attested_.insert(std::move(chunk));
  }
  const bool more = pages_.front().more;
  pages_.pop_front();
  if (more) return;
  chunks_ = std::exchange(attested_, {});
  state_ = State::kLive;
}

Bytes HostileClient::SurelyHeld() const {
  Bytes sum;
  if (state_ != State::kLive || !settled_) return sum;
  for (const auto& [id, held] : chunks_) {
    struct stat info = {};
    LGPU_CHECK(::fstat(held.fd.get(), &info) == 0 && static_cast<std::uint64_t>(info.st_size) == held.bytes);
    sum += Bytes(held.bytes);
  }
  return sum;
}

}  // namespace lgpu::daemon
