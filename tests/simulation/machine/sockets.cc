#include "tests/simulation/machine/sockets.h"

#include <poll.h>

#include <cerrno>

namespace lgpu::simulation {

std::shared_ptr<UnixSocket> UnixSocket::peer() const {
  std::shared_ptr<UnixSocket> other = peer_.lock();
  return other != nullptr && other->is_open() ? other : nullptr;
}

void UnixSocket::Ended() {
  if (const std::shared_ptr<UnixSocket> other = peer(); other != nullptr && !inbox_.empty()) {
    other->is_reset_ = true;
  }
  inbox_.clear();
  pending.clear();
  is_listening = false;
}

short UnixSocket::Ready() const {
  if (is_listening) return pending.empty() ? 0 : POLLIN;
  const std::shared_ptr<UnixSocket> other = peer();
  const bool is_alone = is_connected_ && other == nullptr;
  const bool has_end = is_alone || reads_no_more_ || (other != nullptr && other->writes_no_more_);
  short ready = 0;
  if (!inbox_.empty() || has_end || is_reset_) ready |= POLLIN;
  if (is_alone || (reads_no_more_ && writes_no_more_)) ready |= POLLHUP;
  if (is_connected_ && (is_alone || HasRoom())) ready |= POLLOUT;
  return ready;
}

bool UnixSocket::HasRoom() const {
  const std::shared_ptr<UnixSocket> other = peer();
  return other == nullptr || other->inbox_size_ * 4 <= kBuffer;  // as the kernel says "writable"
}

std::size_t UnixSocket::unread() const {
  const std::shared_ptr<UnixSocket> other = peer();
  return other == nullptr ? 0 : other->inbox_size_;
}

int UnixSocket::Send(const std::string& data, const std::vector<std::shared_ptr<Descriptor>>& passed) {
  if (!is_connected_) return ENOTCONN;
  const std::shared_ptr<UnixSocket> other = peer();
  if (other == nullptr || writes_no_more_ || other->reads_no_more_) return EPIPE;
  const std::size_t size = data.size() + kOfAMessage;
  if (size > kBuffer) return EMSGSIZE;
  if (other->inbox_size_ + size > kBuffer) return EAGAIN;
  Message message{.data = data, .descriptors = {}};
  for (const std::shared_ptr<Descriptor>& descriptor : passed) message.descriptors.emplace_back(descriptor);
  other->inbox_size_ += size;
  other->inbox_.push_back(std::move(message));
  return 0;
}

int UnixSocket::Receive(std::optional<Message>& message) {
  if (!inbox_.empty()) {
    message = std::move(inbox_.front());
    inbox_.pop_front();
    inbox_size_ -= message->data.size() + kOfAMessage;
    return 0;
  }
  if (!is_connected_) return ENOTCONN;
  if (std::exchange(is_reset_, false)) return ECONNRESET;
  const std::shared_ptr<UnixSocket> other = peer();
  const bool has_end = other == nullptr || reads_no_more_ || other->writes_no_more_;
  return has_end ? 0 : EAGAIN;
}

void UnixSocket::Shutdown(int how) {
  if (how != SHUT_WR) reads_no_more_ = true;
  if (how != SHUT_RD) writes_no_more_ = true;
}

int UnixSocket::ConnectTo(UnixSocket& listener) {
  if (listener.type != type) return EPROTOTYPE;
  if (!listener.is_listening) return ECONNREFUSED;
  if (listener.pending.size() > listener.backlog) return EAGAIN;
  auto other = std::make_shared<UnixSocket>(type);
  const MachineProcess& process = *Scheduler::Self().process;
  other->peer_credentials = {.pid = process.pid, .uid = process.uid, .gid = process.uid};
  other->peer_ = weak_from_this();
  other->is_connected_ = true;
  peer_ = other;
  peer_credentials = listener.peer_credentials;
  is_connected_ = true;
  listener.pending.push_back(OpenDescriptor(std::move(other)));
  return 0;
}

std::map<std::pair<std::uint64_t, std::uint64_t>, std::weak_ptr<UnixSocket>>& BoundSockets() {
  static auto* const sockets =
      new std::map<std::pair<std::uint64_t, std::uint64_t>, std::weak_ptr<UnixSocket>>();
  return *sockets;
}

}  // namespace lgpu::simulation
