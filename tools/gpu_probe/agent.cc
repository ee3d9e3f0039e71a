// Both sides of the socket between gpu_probe and its agents: a line of text, a descriptor beside it or not.

#include "tools/gpu_probe/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "tools/gpu_probe/obey.h"

extern char** environ;

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

std::vector<std::string> ChangedEnvironment(const Agent::Environment& changes) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (changes.count(text.substr(0, text.find('='))) == 0) variables.push_back(text);
  }
  for (const auto& [name, value] : changes) variables.push_back(name + "=" + value);
  return variables;
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
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kAgentSocket);
  std::vector<std::string> variables = ChangedEnvironment(environment);
  std::vector<char*> pointers;
  for (std::string& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  char self[] = "/proc/self/exe";
  char role[] = "--agent";
  char* const argv[] = {self, role, nullptr};
  if (::posix_spawn(&pid_, self, &actions, nullptr, argv, pointers.data()) != 0) pid_ = -1;
  ::posix_spawn_file_actions_destroy(&actions);
  if (pid_ > 0) pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

Agent::~Agent() { Kill(); }

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
    if (equals != std::string::npos) {
      answer.numbers[word.substr(0, equals)] = std::strtod(word.c_str() + equals + 1, nullptr);
    }
  }
  return answer;
}

Answer Agent::Ask(const std::string& command, int fd) {
  if (!SendLine(socket_.get(), command, fd)) {
    Answer answer;
    answer.error = "the process died";
    return answer;
  }
  return Await();
}

void Agent::Kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Agent::Death Agent::KillAndTime() {
  Death death;
  const auto start = std::chrono::steady_clock::now();
  ::kill(pid_, SIGKILL);
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
