// Resources that run out: files that a process may open, addresses, room for the journal. Each is an error
// with its cause, and passes. And a wall clock that is set.

#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using ResourcesTest = E2eTest;

TEST_F(ResourcesTest, AClientThatMayOpenNoMoreFilesIsRefusedAndGoesOn) {
  StartDaemon();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "first", 3), StartsWith("ok "));
  ASSERT_EQ(Ask(*client, "rlimit nofile 20"), "ok");
  int live = 0;
  std::string answer = "ok ";
  for (; answer.rfind("ok ", 0) == 0 && live < 100; ++live) {
    answer = Alloc(*client, absl::StrCat("t", live), 3);
  }
  EXPECT_THAT(answer, AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("ulimit -n")));
  EXPECT_EQ(Ask(*client, "read first"), absl::StrCat("ok ", 3 * kMiB / 4 * 1.0));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_TRUE(IsBack(client->pid()));
  ASSERT_EQ(Ask(*client, "free t0"), "ok");
  EXPECT_THAT(Alloc(*client, "again", 3), StartsWith("ok "));
  ASSERT_EQ(Ask(*client, "rlimit nofile all"), "ok");
  EXPECT_THAT(Alloc(*client, "more", 100), StartsWith("ok "));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
}

TEST_F(ResourcesTest, AClientWithoutDescriptorsResumesWhenItHasThemAgain) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 30), StartsWith("ok "));
  // 1 is enough for a socket, and not for the descriptors that come over it.
  for (const int room : {0, 1, 2}) {
    SCOPED_TRACE(room);
    KillDaemon();
    EXPECT_THAT(Alloc(*client, "none", 70), StartsWith("error UNAVAILABLE"));
    ASSERT_EQ(Ask(*client, absl::StrCat("rlimit nofile ", room)), "ok");
    StartInDirectory();
    if (room < 2) {
      EXPECT_TRUE(Eventually([&] {
        return Alloc(*client, "none", 70).find("ulimit -n") != std::string::npos;
      })) << Alloc(*client, "none", 70);
    }
    ASSERT_EQ(Ask(*client, "rlimit nofile all"), "ok");
    ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
    EXPECT_TRUE(LedgerIsTrue({client->pid()}));
    EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 30 * kMiB / 4 * 1.0));
  }
}

TEST_F(ResourcesTest, AClientWithoutAddressesSaysSo) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow takes all addresses there are";
  StartDaemon();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 30), StartsWith("ok "));
  // Enough for threads.
  ASSERT_EQ(Ask(*client, absl::StrCat("rlimit as ", 1024 * kMiB)), "ok");
  const std::string answer = Ask(*client, absl::StrCat("open d limit=", 512 * kMiB));
  EXPECT_THAT(answer, AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("ulimit -v"),
                            Not(HasSubstr("OOM when allocating"))));
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 30 * kMiB / 4 * 1.0));
  ASSERT_EQ(Ask(*client, "rlimit as all"), "ok");
  EXPECT_THAT(Ask(*client, absl::StrCat("open d limit=", 512 * kMiB)), StartsWith("ok "));
}

TEST_F(ResourcesTest, AProgramThatMayStartNoThreadsSaysSo) {
  if (::getuid() != 0) GTEST_SKIP() << "needs root, to be a user of whom nothing else runs";
  StartDaemon({.open_to_everybody = true});
  auto client = StartClient();
  ASSERT_EQ(Ask(*client, "setuid 61234"), "ok");
  const auto says_so = AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("pids.max"));
  for (int more = 0; more < 16; ++more) {
    SCOPED_TRACE(more);
    ASSERT_EQ(Ask(*client, absl::StrCat("rlimit nproc ", more)), "ok");
    const std::string answer = Ask(*client, "open c limit=4194304");
    const bool is_open = answer.rfind("ok ", 0) == 0;
    EXPECT_TRUE(more != 0 || !is_open);
    EXPECT_THAT(answer, AnyOf(StartsWith("ok "), says_so));
    if (!is_open) continue;
    EXPECT_EQ(Ask(*client, "drop c"), "ok");
  }
  ASSERT_EQ(Ask(*client, "rlimit nproc all"), "ok");
  ASSERT_THAT(Ask(*client, "open c limit=4194304"), StartsWith("ok "));
  ASSERT_EQ(Ask(*client, "rlimit nproc 0"), "ok");
  EXPECT_THAT(Ask(*client, "resize c 0 8388608"), says_so);
  // The first MatMul opens OpenBLAS, which needs threads too.
  EXPECT_THAT(Ask(*client, "work c"), AnyOf("ok", says_so));
  ASSERT_EQ(Ask(*client, "rlimit nproc all"), "ok");
  EXPECT_EQ(Ask(*client, "work c"), "ok");
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(ResourcesTest, AnLgpudThatMayStartNoThreadSaysSo) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow takes all addresses there are";
  StartDaemon();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  rlimit before = {};
  // Not enough for a stack, and enough for all else.
  std::uint64_t pages = 0;
  std::ifstream(absl::StrCat("/proc/", daemon_->pid(), "/statm")) >> pages;
  const rlimit few = {.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + 192 * 1024,
                      .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(::prlimit(daemon_->pid(), RLIMIT_AS, &few, &before), 0);
  EXPECT_THAT(Ask(*client, "open d"),
              AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("lgpud cannot start another thread"),
                    HasSubstr("pids.max")));
  ASSERT_EQ(::prlimit(daemon_->pid(), RLIMIT_AS, &before, nullptr), 0);
  EXPECT_THAT(Ask(*client, "open d"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "work c"), "ok");
}

// The runtime directory lies on a file system that is full.
TEST_F(ResourcesTest, AFullDiskForTheJournalStopsGrantsUntilThereIsRoom) {
  const std::string disk = directory_.path() + "/disk";
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=128k") != 0) {
    GTEST_SKIP() << "mounting a small tmpfs is not permitted here";
  }
  struct Unmount {
    const std::string& path;
    ~Unmount() { (void)::umount2(path.c_str(), MNT_DETACH); }
  } unmount{disk};
  DaemonProcess::Options options = InDirectory();
  options.dir = disk + "/run";
  StartDaemon(options);
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 10), StartsWith("ok "));
  {
    std::ofstream filler(disk + "/filler");
    const std::string block(4096, 'x');
    while (filler << block << std::flush) {
    }
  }
  // Records that fit into the journal's last page can still be written.
  std::string answer;
  for (int i = 0; i < 200; ++i) {
    answer = Alloc(*client, absl::StrCat("t", i), 3);
    if (answer.rfind("ok ", 0) != 0) break;
  }
  EXPECT_THAT(answer,
              AllOf(StartsWith("error UNAVAILABLE"), HasSubstr("journal"), HasSubstr("No space left")));
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 10 * kMiB / 4 * 1.0));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  std::filesystem::remove(disk + "/filler");
  EXPECT_TRUE(Eventually([&] { return Alloc(*client, "z", 30).rfind("ok ", 0) == 0; }));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  ASSERT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_TRUE(EverythingIsBack());
  control_.reset();
  daemon_.reset();
}

// The user's limit of a file's size.
TEST_F(ResourcesTest, AFileSizeLimitEndsNoSession) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.set_name("lasting");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  request.set_name("other");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  auto client = StartClient();
  auto other = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Ask(*other, "open c lease=other"), StartsWith("ok "));
  other->Signal(SIGSTOP);  // it does not hear that it is to go
  ASSERT_THAT(Alloc(*client, "a", 10), StartsWith("ok "));
  const auto may_write = [&](rlim_t bytes) {
    const rlimit limit = {.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
    return ::prlimit(daemon_->pid(), RLIMIT_FSIZE, &limit, nullptr) == 0;
  };
  ASSERT_TRUE(may_write(std::filesystem::file_size(directory_.path() + "/run/journal")));
  // A chunk is a file too.
  EXPECT_THAT(Alloc(*client, "b", 100), AllOf(StartsWith("error "), HasSubstr("File too large")));
  const absl::Status removed = control_->RemoveLease("lasting");
  EXPECT_TRUE(absl::IsUnavailable(removed)) << removed;
  EXPECT_THAT(std::string(removed.message()),
              AllOf(HasSubstr("would be back if lgpud died now"), HasSubstr("File too large")));
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 10 * kMiB / 4 * 1.0));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  // The other lease's program ends only when the journal can be written again: the removal then succeeds.
  absl::Status later = absl::UnknownError("not yet");
  std::thread remover([&] { later = (*Control::Open(daemon_->dir()))->RemoveLease("other"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_TRUE(may_write(RLIM_INFINITY));
  other->Signal(SIGKILL);
  remover.join();
  EXPECT_TRUE(later.ok()) << later;
  EXPECT_TRUE(Eventually([&] { return Alloc(*client, "c", 100).rfind("ok ", 0) == 0; }));
  Restart();
  EXPECT_FALSE(control_->GetLease("lasting").ok());
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
}

TEST_F(ResourcesTest, AClockThatIsSetBackAndForthChangesNothing) {
  if (kSanitized) GTEST_SKIP() << "nothing may be preloaded before a sanitizer";
  const ChildProgram::Environment jumping = {{"LD_PRELOAD", LGPU_JUMPING_CLOCK}};
  StartDaemon({.environment = jumping});
  auto client = StartClient(jumping);
  auto other = StartClient(jumping);
  ASSERT_THAT(Ask(*client, absl::StrCat("open c timeout=20000 limit=", 900 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*other, absl::StrCat("open c timeout=0 limit=", 900 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 600), StartsWith("ok "));
  EXPECT_THAT(Alloc(*other, "b", 600), StartsWith("error RESOURCE_EXHAUSTED"));
  ASSERT_THAT(Alloc(*other, "b", 300), StartsWith("ok "));
  // A request that waits for returned memory.
  client->WriteLine(absl::StrCat("alloc c c ", 250 * kMiB));
  ASSERT_EQ(Ask(*other, "free b"), "ok");
  ASSERT_THAT(Ask(*other, "trim c"), StartsWith("ok "));
  EXPECT_THAT(client->ReadLine().value_or(""), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "work c 3"), "ok");
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ(Ask(*other, "close c"), "ok");
}

}  // namespace
}  // namespace lgpu::testing
