// The simulated machine itself: its threads, time, sockets, files and processes.

#include "tests/simulation/machine/machine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/simulation/machine/processes.h"

namespace lgpu::simulation {
namespace {

using std::chrono::steady_clock;

// Exit code 1 with the line where it does not hold: GoogleTest's checks are not for a child.
#define LGPU_CHECK(condition)                                    \
  if (!(condition)) {                                            \
    std::fprintf(stderr, "line %d: " #condition "\n", __LINE__); \
    std::fflush(nullptr);                                        \
    std::_Exit(EXIT_FAILURE);                                    \
  }

void ExpectRuns(const std::function<void(Scheduler&)>& body) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const MachineRun run = RunMachineInChild({.seed = seed}, false, body);
    ASSERT_EQ(run.exit_code, 0) << "seed " << seed << ": " << run.output;
  }
}

void CountTogether(Scheduler&) {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 5; ++turn) {
        const std::lock_guard lock(mutex);
        ++count;
        changed.notify_all();
      }
    });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return count == 20; });
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
}

TEST(SimulatedMachineTest, TheSameSeedGivesTheSameTrace) {
  const MachineRun first = RunMachineInChild({.seed = 7}, true, CountTogether);
  const MachineRun second = RunMachineInChild({.seed = 7}, true, CountTogether);
  EXPECT_EQ(first.exit_code, 0);
  EXPECT_GT(first.output.size(), 1000u);
  EXPECT_EQ(first.output, second.output);
}

TEST(SimulatedMachineTest, SeedsDifferInTheOrderOfThreads) {
  EXPECT_NE(RunMachineInChild({.seed = 7}, true, CountTogether).output,
            RunMachineInChild({.seed = 8}, true, CountTogether).output);
}

TEST(SimulatedMachineTest, AThreadIsInterruptedBetweenTwoLocks) {
  const auto race = [](Scheduler&) {
    std::mutex mutex;
    int value = 0;
    const auto add = [&] {
      int seen = 0;
      {
        const std::lock_guard lock(mutex);
        seen = value;
      }
      const std::lock_guard lock(mutex);
      value = seen + 1;
    };
    std::thread other(add);
    add();
    other.join();
    std::printf("%d", value);
  };
  int lost = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const MachineRun run = RunMachineInChild({.seed = seed}, false, race);
    ASSERT_EQ(run.output.size(), 1u) << run.output;
    lost += run.output == "1" ? 1 : 0;
  }
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, 100);
}

TEST(SimulatedMachineTest, TimeJumpsWhenAllThreadsWait) {
  const auto started = steady_clock::now();
  ExpectRuns([](Scheduler&) {
    const auto before = steady_clock::now();
    std::this_thread::sleep_for(std::chrono::hours(24));
    const auto slept = steady_clock::now() - before;
    LGPU_CHECK(slept >= std::chrono::hours(24) && slept < std::chrono::hours(25));
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock lock(mutex);
    const auto deadline = steady_clock::now() + std::chrono::minutes(1);
    while (never.wait_until(lock, deadline) == std::cv_status::no_timeout) {
    }
    LGPU_CHECK(steady_clock::now() >= deadline);
  });
  EXPECT_LT(steady_clock::now() - started, std::chrono::hours(1));
}

TEST(SimulatedMachineTest, ADeadlockNamesTheThreadsThatWait) {
  const auto deadlock = [](Scheduler&) {
    std::mutex mutex;
    const std::lock_guard held(mutex);
    std::thread other([&] { const std::lock_guard lock(mutex); });
    other.join();
  };
  const MachineRun run = RunMachineInChild({.seed = 1}, false, deadlock);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.output.find("nothing will wake one"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("waits for a mutex"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("waits for the end of a thread"), std::string::npos) << run.output;
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

std::string NewPath() {
  std::string folder = "/tmp/lgpu_machine.XXXXXX";
  return std::string(::mkdtemp(folder.data())) + "/socket";
}

int Listen(const sockaddr_un& address) {
  const int listening = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  LGPU_CHECK(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  LGPU_CHECK(::listen(listening, 8) == 0);
  return listening;
}

int Connect(const sockaddr_un& address) {
  const int connected = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  LGPU_CHECK(::connect(connected, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return connected;
}

TEST(SimulatedMachineTest, AMessageBringsADescriptorToAnotherProcess) {
  const sockaddr_un address = AddressOf(NewPath());
  ExpectRuns([address](Scheduler&) {
    ::unlink(address.sun_path);
    const int listening = Listen(address);
    MachineProcess& sender = Processes::Get().Start("sender", 1001, [&] {
      const int connected = Connect(address);
      int file = ::memfd_create("passed", 0);
      LGPU_CHECK(::ftruncate(file, 4096) == 0);
      char byte = 'x';
      iovec part = {.iov_base = &byte, .iov_len = 1};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      auto* const header = reinterpret_cast<cmsghdr*>(control);
      *header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
      std::memcpy(CMSG_DATA(header), &file, sizeof file);
      msghdr message = {};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      LGPU_CHECK(::sendmsg(connected, &message, 0) == 1);
    });
    const pid_t pid = sender.pid;
    const int accepted = ::accept4(listening, nullptr, nullptr, 0);
    ucred peer = {};
    socklen_t bytes = sizeof peer;
    LGPU_CHECK(::getsockopt(accepted, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0);
    LGPU_CHECK(peer.pid == pid && peer.uid == 1001);
    char byte = 0;
    iovec part = {.iov_base = &byte, .iov_len = 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    LGPU_CHECK(::recvmsg(accepted, &message, 0) == 1);
    int file = -1;
    std::memcpy(&file, CMSG_DATA(reinterpret_cast<cmsghdr*>(control)), sizeof file);
    struct stat info = {};
    LGPU_CHECK(::fstat(file, &info) == 0 && info.st_size == 4096);
    // The sender has ended, and the connection with it.
    pollfd polled = {.fd = accepted, .events = POLLIN, .revents = 0};
    LGPU_CHECK(::poll(&polled, 1, -1) == 1 && (polled.revents & POLLHUP) != 0);
  });
  std::filesystem::remove_all(std::filesystem::path(address.sun_path).parent_path());
}

TEST(SimulatedMachineTest, AProcessDiesAtAnyStepAndItsPidfdTells) {
  ExpectRuns([](Scheduler& scheduler) {
    int count = 0;
    MachineProcess& victim = Processes::Get().Start("victim", 1001, [&] {
      std::mutex mutex;
      while (true) {
        const std::lock_guard lock(mutex);
        ++count;
      }
    });
    victim.dies_at_step = 1 + scheduler.Below(50);
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, victim.pid, 0u));
    if (fd < 0) return;  // it is gone already
    pollfd polled = {.fd = fd, .events = POLLIN, .revents = 0};
    LGPU_CHECK(::poll(&polled, 1, -1) == 1);
    LGPU_CHECK(count < 50);
    LGPU_CHECK(::kill(victim.pid, 0) != 0);
  });
}

TEST(SimulatedMachineTest, ProcShowsTheMemfdsOfAnotherProcess) {
  ExpectRuns([](Scheduler&) {
    std::atomic<bool> is_made = false;
    MachineProcess& holder = Processes::Get().Start("holder", 1001, [&] {
      const int file = ::memfd_create("held", 0);
      LGPU_CHECK(::ftruncate(file, 4096) == 0);
      LGPU_CHECK(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED);
      is_made = true;
      std::this_thread::sleep_for(std::chrono::seconds(10));
    });
    while (!is_made) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::string folder = "/proc/" + std::to_string(holder.pid);
    int found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/fd")) {
      found += std::filesystem::read_symlink(entry.path()) == "/memfd:held (deleted)" ? 1 : 0;
    }
    LGPU_CHECK(found == 1);
    std::ifstream maps(folder + "/maps");
    found = 0;
    for (std::string line; std::getline(maps, line);) {
      found += line.find("/memfd:held") != std::string::npos ? 1 : 0;
    }
    LGPU_CHECK(found == 1);
    std::this_thread::sleep_for(std::chrono::seconds(11));
    LGPU_CHECK(!std::filesystem::exists(folder));
  });
}

TEST(SimulatedMachineTest, AWriteIsCutByTheDeathOfItsProcess) {
  std::string path = "/tmp/lgpu_machine_file.XXXXXX";
  ::close(::mkstemp(path.data()));
  bool is_torn = false;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const MachineRun run = RunMachineInChild({.seed = seed}, false, [&](Scheduler&) {
      MachineProcess& writer = Processes::Get().Start("writer", 0, [&] {
        const int file = ::open(path.c_str(), O_WRONLY | O_TRUNC);
        const std::string text(1000, 'x');
        (void)!::write(file, text.data(), text.size());
        LGPU_CHECK(false);
      });
      writer.dies_at_step = 2;  // 1 is open
      std::this_thread::sleep_for(std::chrono::seconds(1));
      LGPU_CHECK(!writer.is_alive);
    });
    ASSERT_EQ(run.exit_code, 0) << run.output;
    const auto bytes = std::filesystem::file_size(path);
    EXPECT_LE(bytes, 1000u);
    is_torn = is_torn || (bytes > 0 && bytes < 1000);
  }
  EXPECT_TRUE(is_torn);
  ::unlink(path.c_str());
}

TEST(SimulatedMachineTest, AStoppedProcessRunsOnlyWhenItIsContinued) {
  ExpectRuns([](Scheduler&) {
    std::atomic<int> count = 0;
    MachineProcess& process = Processes::Get().Start("stopped", 0, [&] {
      while (true) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++count;
      }
    });
    std::this_thread::sleep_for(std::chrono::seconds(1));
    ::kill(process.pid, SIGSTOP);
    const int before = count;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    LGPU_CHECK(before > 0 && count <= before + 1);
    ::kill(process.pid, SIGCONT);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    LGPU_CHECK(count > before + 1);
  });
}

}  // namespace
}  // namespace lgpu::simulation
