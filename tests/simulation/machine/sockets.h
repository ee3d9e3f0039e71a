#ifndef LGPU_TESTS_SIMULATION_MACHINE_SOCKETS_H_
#define LGPU_TESTS_SIMULATION_MACHINE_SOCKETS_H_

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/machine/descriptors.h"

namespace lgpu::simulation {

/// A UnixSocket is a socket of AF_UNIX whose messages keep their bounds. Messages arrive at once; the
/// receiver sees them when the seed lets it run.
class UnixSocket final : public Descriptor, public std::enable_shared_from_this<UnixSocket> {
 public:
  struct Message {
    std::string data;
    std::vector<OpenDescriptor<Descriptor>> descriptors;
  };

  explicit UnixSocket(int of) : type(of) {}
  short Ready() const override;

  /// 0, or an error number: EAGAIN, EPIPE, ENOTCONN, EMSGSIZE.
  int Send(const std::string& data, const std::vector<std::shared_ptr<Descriptor>>& passed);
  /// 0 with a message, or with none at the end; or an error number.
  int Receive(std::optional<Message>& message);
  void Shutdown(int how);
  bool HasRoom() const;
  std::size_t unread() const;  // bytes that the other end has not read
  /// Connects it to a listening socket, where there is room: else EAGAIN.
  int ConnectTo(UnixSocket& listener);

  const int type;
  bool is_listening = false;
  std::size_t backlog = 0;
  std::deque<OpenDescriptor<UnixSocket>> pending;  // connections to accept
  ucred peer_credentials = {};
  std::optional<Time> receive_timeout, send_timeout;

 private:
  static constexpr std::size_t kBuffer = 212'992;  // Linux's
  static constexpr std::size_t kOfAMessage = 768;  // beside its bytes

  void Ended() override;
  /// Null: it is closed.
  std::shared_ptr<UnixSocket> peer() const;

  std::weak_ptr<UnixSocket> peer_;
  bool is_connected_ = false;  // has been
  bool is_reset_ = false;      // the peer was closed before it had read everything
  bool reads_no_more_ = false, writes_no_more_ = false;
  std::deque<Message> inbox_;
  std::size_t inbox_size_ = 0;  // with kOfAMessage for each
};

/// The listening sockets, by the file that stands for each.
std::map<std::pair<std::uint64_t, std::uint64_t>, std::weak_ptr<UnixSocket>>& BoundSockets();

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_SOCKETS_H_
