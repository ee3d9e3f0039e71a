// Both sides of the socket between gpu_probe and its agents: a line of text, a descriptor beside it or not.

#include "tools/gpu_probe/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "tools/gpu_probe/obey.h"

namespace lgpu::gpu_probe {
namespace {

constexpr int kAgentSocket = 3;

bool SendLine(int socket, const std::string& line, int fd) {
  iovec data{const_cast<char*>(line.data()), line.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) >= 0;
}

bool ReceiveLine(int socket, std::string& line, UniqueFd& fd) {
  char text[4096];
  iovec data{text, sizeof(text)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (count <= 0) return false;
  line.assign(text, static_cast<std::size_t>(count));
  if (CMSG_FIRSTHDR(&message) != nullptr) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(received));
    fd = UniqueFd(received);
  }
  return true;
}

}  // namespace

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

Agent::Agent(const Environment& environment) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  absl::StatusOr<SpawnedProcess> process =
      SpawnedProcess::Start({.argv = {"/proc/self/exe", "--agent"},
                             .environment = environment,
                             .descriptors = {{theirs.get(), kAgentSocket}}});
  if (!process.ok()) return;
  process_ = *std::move(process);
  pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process_.pid(), 0)));
}

void Agent::Tell(const std::string& command) { SendLine(socket_.get(), command, -1); }

Answer Agent::Await() {
  Answer answer;
  std::string line;
  if (!ReceiveLine(socket_.get(), line, answer.fd)) {
    answer.error = "the process died";
    return answer;
  }
  std::istringstream words(line);
  std::string word;
  words >> word;
  answer.ok = word == "ok";
  if (!answer.ok) {
    answer.error = line;
    return answer;
  }
  while (words >> word) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = word.substr(0, equals);
    const char* const value = word.c_str() + equals + 1;
    char* end = nullptr;
    const double number = std::strtod(value, &end);
    if (*end == '\0') {
      answer.numbers[name] = number;
    } else {
      answer.words[name] = value;
    }
  }
  return answer;
}

bool Agent::HasAnswered(int milliseconds) {
  pollfd polled{socket_.get(), POLLIN, 0};
  return ::poll(&polled, 1, milliseconds) == 1;
}

Answer Agent::Ask(const std::string& command, int fd) {
  if (!SendLine(socket_.get(), command, fd)) {
    Answer answer;
    answer.error = "the process died";
    return answer;
  }
  return Await();
}

Agent::Death Agent::KillAndTime() {
  Death death;
  const auto start = std::chrono::steady_clock::now();
  ::kill(pid(), SIGKILL);
  pollfd polled[2] = {{socket_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
  while (polled[0].fd >= 0 || polled[1].fd >= 0) {
    if (::poll(polled, 2, 60'000) <= 0) break;
    if (polled[0].fd >= 0 && polled[0].revents != 0) {
      char byte = 0;
      if (::recv(socket_.get(), &byte, 1, MSG_DONTWAIT) <= 0) {
        death.socket_ms = MillisecondsSince(start);
        polled[0].fd = -1;
      }
    }
    if (polled[1].fd >= 0 && polled[1].revents != 0) {
      death.process_ms = MillisecondsSince(start);
      polled[1].fd = -1;
    }
  }
  Kill();
  return death;
}

int RunAgent(int socket) {
  // The agent may hang in the driver when its owner ends.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Obedience obedience;
  std::string line;
  UniqueFd fd;
  while (ReceiveLine(socket, line, fd)) {
    UniqueFd reply_fd;
    const std::string answer = obedience.Do(line, std::move(fd), reply_fd);
    if (!SendLine(socket, answer, reply_fd.get())) break;
    fd = UniqueFd();
  }
  return 0;
}

}  // namespace lgpu::gpu_probe
