#ifndef LGPU_TESTS_PROTO_PEER_PROCESS_H_
#define LGPU_TESTS_PROTO_PEER_PROCESS_H_

#include <signal.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace lgpu {

/// A running proto_test_peer with a page as its descriptor 3. It is killed and reaped when it goes.
class PeerProcess {
 public:
  PeerProcess(int page_fd, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), LGPU_PROTO_TEST_PEER);
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    // Where both numbers are the same, posix_spawn clears the close-on-exec flag.
    ::posix_spawn_file_actions_adddup2(&actions, page_fd, 3);
    if (::posix_spawn(&pid_, LGPU_PROTO_TEST_PEER, &actions, nullptr, argv.data(), environ) != 0) {
      pid_ = -1;
    }
    ::posix_spawn_file_actions_destroy(&actions);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess() { Kill(); }

  bool started() const { return pid_ > 0; }
  void Kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    }
  }
  /// Waits for the process to end by itself; its exit code, or -1.
  int ExitCode() {
    int status = -1;
    if (pid_ <= 0 || ::waitpid(std::exchange(pid_, -1), &status, 0) < 0 || !WIFEXITED(status)) {
      return -1;
    }
    return WEXITSTATUS(status);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_PROTO_PEER_PROCESS_H_
