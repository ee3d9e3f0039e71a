#include "allocator/device/memfd_holders.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "allocator/device/memfd.h"
#include "allocator/unique_fd.h"

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

// A process can put any file there after it was looked at, one that it may not even write.
TEST(MemfdHoldersTest, AnotherFileIsLeftAloneWhateverItsNumber) {
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

// "Nobody has it" would cost a living process its memory.
TEST(MemfdHoldersTest, WhoMayOpenNoFileDoesNotKnowTheHolders) {
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

// It may have another descriptor of the same, by which it was not seen.
TEST(MemfdHoldersTest, WhatIsNotThereAnyMoreIsLookedForAgain) {
  const absl::StatusOr<UniqueFd> chunk = CreateChunkMemfd(2_MiB, /*sparse=*/false, "lgpu-chunk:test");
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  constexpr int kNoSuchDescriptor = 1 << 20;
  const absl::Status status = EmptyHeldMemfd(HolderOf(kNoSuchDescriptor, About(chunk->get()).st_ino));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(About(chunk->get()).st_blocks, 0);
}

}  // namespace
}  // namespace lgpu
