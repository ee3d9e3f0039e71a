#include "allocator/device/simulated/memfd_holders.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "allocator/device/simulated/memfd.h"
#include "base/unique_fd.h"

namespace lgpu {
namespace {

struct stat About(int fd) {
  struct stat info = {};
  EXPECT_EQ(::fstat(fd, &info), 0);
  return info;
}

// As a look into /proc finds it.
MemfdHolder HolderOf(int fd, std::uint64_t inode) {
  return {.inode = inode,
          .pid = ::getpid(),
          .name = "lgpu-chunk:test",
          .path = absl::StrCat("/proc/self/fd/", fd),
          .bytes = 2_MiB};
}

TEST(MemfdHoldersTest, AChunkIsEmptied) {
  const absl::StatusOr<UniqueFd> chunk = CreateChunkMemfd(2_MiB, /*sparse=*/false, "lgpu-chunk:test");
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_TRUE(EmptyHeldMemfd(HolderOf(chunk->get(), About(chunk->get()).st_ino)).ok());
  EXPECT_EQ(About(chunk->get()).st_blocks, 0);
}

// After the look a process can put another file under the number, also one that it may not write.
TEST(MemfdHoldersTest, AnotherFileIsLeftAloneAlsoWithTheSameNumber) {
  std::string path = ::testing::TempDir() + "/memfd_holders_XXXXXX";
  const UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  ASSERT_TRUE(static_cast<bool>(file));
  ASSERT_EQ(::write(file.get(), "kept", 4), 4);
  const UniqueFd shown(::open(path.c_str(), O_PATH | O_CLOEXEC));
  const absl::Status status = EmptyHeldMemfd(HolderOf(shown.get(), About(file.get()).st_ino));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(About(file.get()).st_size, 4);
  EXPECT_EQ(::unlink(path.c_str()), 0);
}

TEST(MemfdHoldersTest, AHolderThatHasSomethingElseThereIsLookedAtAgain) {
  const absl::StatusOr<UniqueFd> chunk = CreateChunkMemfd(2_MiB, /*sparse=*/false, "lgpu-chunk:test");
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  const absl::Status status = EmptyHeldMemfd(HolderOf(chunk->get(), About(chunk->get()).st_ino + 1));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(About(chunk->get()).st_blocks, 0);
}

// The answer "no process has it" would cost a living process its memory.
TEST(MemfdHoldersTest, WithoutFreeDescriptorsTheHoldersAreUnknown) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(STDIN_FILENO);
  ASSERT_EQ(::close(next), 0);
  const rlimit none = {.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = FindMemfdHolders("lgpu-chunk:test").status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(FindMemfdHolders("lgpu-chunk:test").ok());
}

// Of this run: a process of an earlier or of another one may have chunks, too.
std::string NameOfThisRun(const std::string& name) {
  return absl::StrCat("lgpu-chunk:", name, "-", ::getpid(), "-");
}

// Waits until the first thread has ended, then does nothing until the process is killed.
pid_t StartWithoutFirstThread() {
  const pid_t child = ::fork();
  if (child == 0) {
    std::thread([] {
      while (true) ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);  // of this thread, without unwinding the test above it
  }
  // A thread that ends lets go of its memory first, and of its files a little later.
  const std::string folder = absl::StrCat("/proc/", child);
  while (child > 0 && (std::ifstream(folder + "/maps").peek() != std::ifstream::traits_type::eof() ||
                       !std::filesystem::is_empty(folder + "/fd"))) {
    std::this_thread::yield();
  }
  return child;
}

// /proc/PID/fd and maps are empty then.
TEST(MemfdHoldersTest, AProcessWhoseFirstThreadHasEndedIsSeen) {
  const std::string name = NameOfThisRun("first");
  const absl::StatusOr<UniqueFd> chunk = CreateChunkMemfd(2_MiB, /*sparse=*/false, name);
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  void* const mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, chunk->get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const pid_t child = StartWithoutFirstThread();
  ASSERT_GT(child, 0);
  EXPECT_TRUE(std::filesystem::is_empty(absl::StrCat("/proc/", child, "/fd")));
  const std::vector<MemfdHolder> holders = FindMemfdHolders(name).value_or(std::vector<MemfdHolder>());
  EXPECT_EQ(holders.size(), 2u) << "the descriptor and the mapping";
  for (const MemfdHolder& holder : holders) {
    EXPECT_EQ(holder.pid, child);
    EXPECT_EQ(holder.inode, About(chunk->get()).st_ino);
  }
  if (!holders.empty()) {
    const absl::Status emptied = EmptyHeldMemfd(holders.front());
    EXPECT_TRUE(emptied.ok()) << emptied;
    EXPECT_EQ(About(chunk->get()).st_blocks, 0);
  }
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(::munmap(mapped, 4096), 0);
}

// The process always has a thread, and each of its threads ends soon.
TEST(MemfdHoldersTest, AProcessOfShortThreadsIsSeen) {
  const std::string name = NameOfThisRun("short");
  const absl::StatusOr<UniqueFd> chunk = CreateChunkMemfd(2_MiB, /*sparse=*/false, name);
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  const pid_t child = ::fork();
  if (child == 0) {
    struct Chain {
      static void Link() {
        std::this_thread::sleep_for(std::chrono::microseconds(500));
        std::thread(Link).detach();
      }
    };
    std::thread(Chain::Link).detach();
    ::syscall(SYS_exit, 0);
  }
  ASSERT_GT(child, 0);
  int seen = 0;
  for (int look = 0; look < 100; ++look) {
    const auto holders = FindMemfdHolders(name);
    seen += !holders.ok() || holders->size() == 1 ? 1 : 0;  // an error: nothing is believed
  }
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(seen, 100);
}

// The process may have another descriptor of the memfd, which the look missed.
TEST(MemfdHoldersTest, ADescriptorThatIsGoneIsUnavailable) {
  const absl::StatusOr<UniqueFd> chunk = CreateChunkMemfd(2_MiB, /*sparse=*/false, "lgpu-chunk:test");
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  constexpr int kNoSuchDescriptor = 1 << 20;
  const absl::Status status = EmptyHeldMemfd(HolderOf(kNoSuchDescriptor, About(chunk->get()).st_ino));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(About(chunk->get()).st_blocks, 0);
}

}  // namespace
}  // namespace lgpu
