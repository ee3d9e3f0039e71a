#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/mapped_region.h"
#include "proto/wire/pages.h"
#include "tests/proto/peer_process.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

UniqueFd Duplicate(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

UniqueFd Memfd(std::size_t bytes, int seals) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

// The line of /proc/self/smaps that says which flags the mapping at `address` has.
std::string VmFlags(const void* address) {
  char start[32];
  std::snprintf(start, sizeof(start), "%lx-", reinterpret_cast<unsigned long>(address));
  std::ifstream smaps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(smaps, line);) {
    found = found || line.compare(0, std::char_traits<char>::length(start), start) == 0;
    if (found && line.compare(0, 8, "VmFlags:") == 0) return line + " ";
  }
  return "";
}

TEST(SharedPagesTest, ClientSeesTheDaemonsWritesToTheStatsPage) {
  auto daemon = SharedPages::CreateStatsPage(MapWithBoost);
  ASSERT_TRUE(daemon.ok()) << daemon.status().message;
  auto client = SharedPages::OpenStatsPage(MapWithBoost, Duplicate(daemon->fd()));
  ASSERT_TRUE(client.ok()) << client.status().message;
  (*daemon)->devices[63].limit.store(12345);
  EXPECT_EQ((*client)->devices[63].limit.load(), 12345u);
  EXPECT_EQ((*client)->epoch.load(), 0u);
}

TEST(SharedPagesTest, DaemonSeesTheClientsWritesToItsPage) {
  auto daemon = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(daemon.ok()) << daemon.status().message;
  auto client = SharedPages::OpenClientPage(MapWithBoost, Duplicate(daemon->fd()));
  ASSERT_TRUE(client.ok()) << client.status().message;
  (*client)->devices[0].used.store(77);
  (*client)->ring.Push({.op = 3});
  EXPECT_EQ((*daemon)->devices[0].used.load(), 77u);
  PlacementRingReader reader(&(*daemon)->ring);
  EXPECT_EQ(reader.Next()->op, 3);
}

TEST(SharedPagesTest, MappingsOutliveTheirDescriptors) {
  auto daemon = SharedPages::CreateStatsPage(MapWithBoost);
  ASSERT_TRUE(daemon.ok());
  auto client = SharedPages::OpenStatsPage(MapWithBoost, Duplicate(daemon->fd()));
  ASSERT_TRUE(client.ok());
  daemon->CloseFd();
  EXPECT_EQ(daemon->fd(), -1);
  (*daemon)->device_count.store(2);
  EXPECT_EQ((*client)->device_count.load(), 2u);
}

TEST(SharedPagesTest, ReplacingAPageLosesNoCount) {
  auto daemon = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(daemon.ok()) << daemon.status().message;
  auto client = SharedPages::OpenClientPage(MapWithBoost, Duplicate(daemon->fd()));
  ASSERT_TRUE(client.ok()) << client.status().message;
  ClientPage& page = **client;
  std::atomic<bool> over = false;
  std::vector<std::uint64_t> done(2);
  std::vector<std::thread> users;
  for (std::size_t user = 0; user < done.size(); ++user) {
    users.emplace_back([&, user] {
      ClientPage::Device& counters = page.devices[user];
      for (std::uint64_t& count = done[user]; !over; ++count) {
        counters.used.fetch_add(64);
        counters.peak_used.store(count + 1);
        counters.ops.store(count + 1);
        counters.allocations.fetch_add(1);
        counters.used.fetch_sub(64);
      }
    });
  }
  for (int op = 0; op < ClientPage::kMaxOps; ++op) {
    std::thread namer([&page, op] { SetOpName(page, op, absl::StrCat("Op", op)); });
    daemon = SharedPages::CreateClientPage(MapWithBoost);
    ASSERT_TRUE(daemon.ok()) << daemon.status().message;
    const absl::Status replaced =
        SharedPages::ReplaceClientPage(MapWithBoost, *client, Duplicate(daemon->fd()));
    EXPECT_TRUE(replaced.ok()) << replaced;
    namer.join();
  }
  over = true;
  for (std::thread& user : users) user.join();
  for (std::size_t user = 0; user < done.size(); ++user) {
    const ClientPage::Device& seen = (*daemon)->devices[user];
    EXPECT_EQ(seen.used.load(), 0u);
    EXPECT_EQ(seen.peak_used.load(), done[user]);
    EXPECT_EQ(seen.ops.load(), done[user]);
    EXPECT_EQ(seen.allocations.load(), done[user]);
  }
  for (int op = 0; op < ClientPage::kMaxOps; ++op) EXPECT_EQ(GetOpName(**daemon, op), absl::StrCat("Op", op));
}

TEST(SharedPagesTest, BothSidesWriteTheChargesOfAClientPage) {
  auto daemon = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(daemon.ok()) << daemon.status().message;
  auto charges = SharedPages::MapCharges(MapWithBoost, *daemon);
  ASSERT_TRUE(charges.ok()) << charges.status().message;
  auto client = SharedPages::OpenClientPage(MapWithBoost, Duplicate(daemon->fd()));
  ASSERT_TRUE(client.ok()) << client.status().message;
  (*charges)->cards[63].free.store(64);
  EXPECT_EQ((*client)->charges.cards[63].free.exchange(5), 64u);
  EXPECT_EQ((*charges)->cards[63].free.load(), 5u);
  EXPECT_EQ((*daemon)->charges.cards[63].free.load(), 5u);
}

TEST(SharedPagesTest, AReplacedPageHasTheChargesOfItsOwnDaemon) {
  auto daemon = SharedPages::CreateClientPage(MapWithBoost, kClientPageBytesWithoutCharges);
  ASSERT_TRUE(daemon.ok()) << daemon.status().message;
  EXPECT_EQ(SharedPages::MapCharges(MapWithBoost, *daemon).status().code, PlainCode::kInvalidArgument);
  auto client = SharedPages::OpenClientPage(MapWithBoost, Duplicate(daemon->fd()));
  ASSERT_TRUE(client.ok()) << client.status().message;
  (*client)->devices[3].used.store(7);
  for (const std::uint64_t lent : {1, 2}) {
    auto next = SharedPages::CreateClientPage(MapWithBoost);
    ASSERT_TRUE(next.ok()) << next.status().message;
    auto charges = SharedPages::MapCharges(MapWithBoost, *next);
    ASSERT_TRUE(charges.ok()) << charges.status().message;
    const PlainStatus replaced = SharedPages::ReplaceClientPage(MapWithBoost, *client, Duplicate(next->fd()));
    ASSERT_TRUE(replaced.ok()) << replaced.message;
    EXPECT_EQ((*client)->charges.cards[0].free.load(), 0u)
        << "what an earlier daemon lent is not carried over";
    (*charges)->cards[0].free.store(lent);
    EXPECT_EQ((*client)->charges.cards[0].free.load(), lent);
    EXPECT_EQ((*next)->devices[3].used.load(), 7u);
  }
}

TEST(SharedPagesTest, AReplacedPageHasTheRecordsOfItsRingAndNoMemoryForUnusedSlots) {
  auto daemon = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(daemon.ok()) << daemon.status().message;
  auto client = SharedPages::OpenClientPage(MapWithBoost, Duplicate(daemon->fd()));
  ASSERT_TRUE(client.ok()) << client.status().message;
  constexpr std::uint64_t kRecords = 100;
  for (std::uint64_t i = 0; i < kRecords; ++i) (*client)->ring.Push({.output_bytes = i});
  auto next = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(next.ok()) << next.status().message;
  const PlainStatus replaced = SharedPages::ReplaceClientPage(MapWithBoost, *client, Duplicate(next->fd()));
  ASSERT_TRUE(replaced.ok()) << replaced.message;
  struct stat about = {};
  ASSERT_EQ(::fstat(next->fd(), &about), 0);
  EXPECT_LT(about.st_blocks * 512, 64 * 1024) << "the ring has " << sizeof(PlacementRing) << " bytes";
  PlacementRingReader reader(&(*next)->ring);
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    const std::optional<PlacementEntry> entry = reader.Next();
    ASSERT_TRUE(entry.has_value()) << "record " << i;
    EXPECT_EQ(entry->output_bytes, i);
  }
  EXPECT_EQ(reader.Next(), std::nullopt);
}

TEST(SharedPagesTest, DescriptorsCloseOnExec) {
  auto page = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(::fcntl(page->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SharedPagesTest, OneSideMapsReadOnlyAndNoPageIsInheritedByFork) {
  auto stats = SharedPages::CreateStatsPage(MapWithBoost);
  auto client_page = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(stats.ok() && client_page.ok());
  auto opened = SharedPages::OpenStatsPage(MapWithBoost, Duplicate(stats->fd()));
  ASSERT_TRUE(opened.ok());
  // "dc": do not copy on fork; "wr": writable now.
  EXPECT_THAT(VmFlags(stats->get()), HasSubstr(" dc "));
  EXPECT_THAT(VmFlags(stats->get()), HasSubstr(" wr "));
  for (const void* address :
       {static_cast<const void*>(opened->get()), static_cast<const void*>(client_page->get())}) {
    EXPECT_THAT(VmFlags(address), HasSubstr(" dc "));
    EXPECT_THAT(VmFlags(address), Not(HasSubstr(" wr ")));
  }
}

TEST(SharedPagesTest, ClientProcessCannotWriteOrResizeTheStatsPage) {
  auto page = SharedPages::CreateStatsPage(MapWithBoost);
  ASSERT_TRUE(page.ok());
  SpawnedProcess attacker = StartPeer(page->fd(), {"attack-stats"});
  ASSERT_TRUE(attacker.pid() > 0);
  EXPECT_EQ(attacker.Wait(), 0) << "bits are the attacks of proto_test_peer.cc that succeeded";
  EXPECT_EQ((*page)->magic.load(), StatsPage::kMagic);
}

TEST(SharedPagesTest, ClientProcessCannotResizeOrResealItsPage) {
  auto page = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(page.ok());
  SpawnedProcess attacker = StartPeer(page->fd(), {"attack-client"});
  ASSERT_TRUE(attacker.pid() > 0);
  EXPECT_EQ(attacker.Wait(), 0) << "bits are the attacks of proto_test_peer.cc that succeeded";
}

TEST(SharedPagesTest, OpenRefusesDescriptorsThatAreNoPage) {
  const auto refused = [](UniqueFd fd) {
    const absl::Status stats = SharedPages::OpenStatsPage(MapWithBoost, Duplicate(fd.get())).status();
    const absl::Status client = SharedPages::OpenClientPage(MapWithBoost, std::move(fd)).status();
    EXPECT_EQ(stats.code(), absl::StatusCode::kInvalidArgument) << stats;
    EXPECT_EQ(client.code(), absl::StatusCode::kInvalidArgument) << client;
    return std::string(stats.message());
  };
  EXPECT_THAT(refused(UniqueFd()), HasSubstr("no open descriptor"));
  EXPECT_THAT(refused(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))), HasSubstr("bytes was received"));
  EXPECT_THAT(refused(Memfd(4096, F_SEAL_SHRINK)), HasSubstr("4096 bytes was received"));
}

TEST(SharedPagesTest, OpenRefusesAPageThatCouldShrink) {
  const absl::Status status =
      SharedPages::OpenStatsPage(MapWithBoost, Memfd(sizeof(StatsPage), F_SEAL_GROW)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not sealed"));
}

TEST(SharedPagesTest, OpenRefusesAnotherMagic) {
  const absl::Status stats =
      SharedPages::OpenStatsPage(MapWithBoost, Memfd(sizeof(StatsPage), F_SEAL_SHRINK)).status();
  EXPECT_EQ(stats.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(stats.message()), HasSubstr("same version"));
  const absl::Status client =
      SharedPages::OpenClientPage(MapWithBoost, Memfd(sizeof(ClientPage), F_SEAL_SHRINK)).status();
  EXPECT_EQ(client.code(), absl::StatusCode::kInvalidArgument);
}

class OpNameTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = SharedPages::CreateClientPage(MapWithBoost);
    ASSERT_TRUE(daemon.ok());
    auto client = SharedPages::OpenClientPage(MapWithBoost, Duplicate(daemon->fd()));
    ASSERT_TRUE(client.ok());
    page_ = *std::move(client);
  }
  void WriteRaw(int index, std::string_view bytes) {
    std::array<std::uint64_t, 4> words = {};
    std::memcpy(words.data(), bytes.data(), bytes.size());
    for (std::size_t i = 0; i < words.size(); ++i) {
      page_->op_names[static_cast<std::size_t>(index)].words[i].store(words[i]);
    }
    page_->op_count.store(ClientPage::kMaxOps);
  }

  SharedPage<ClientPage> page_;
};

TEST_F(OpNameTest, NamesComeBack) {
  SetOpName(*page_, 0, "MatMul");
  SetOpName(*page_, 127, "A_name_of_32_bytes_is_the_longes");
  EXPECT_EQ(GetOpName(*page_, 0), "MatMul");
  EXPECT_EQ(GetOpName(*page_, 127), "A_name_of_32_bytes_is_the_longes");
  EXPECT_EQ(page_->op_count.load(), 128u);
}

TEST_F(OpNameTest, WritingAnEarlierNameKeepsTheCount) {
  SetOpName(*page_, 5, "AddN");
  SetOpName(*page_, 2, "Cast");
  EXPECT_EQ(page_->op_count.load(), 6u);
  EXPECT_EQ(GetOpName(*page_, 3), "?");
}

TEST_F(OpNameTest, LongerNamesAreCut) {
  SetOpName(*page_, 0, std::string(100, 'x'));
  EXPECT_EQ(GetOpName(*page_, 0), std::string(32, 'x'));
}

TEST_F(OpNameTest, IndicesOutsideAreUnknown) {
  SetOpName(*page_, 0, "MatMul");
  page_->op_count.store(~std::uint64_t{0});
  for (const int index : {-1, 128, 1 << 30}) EXPECT_EQ(GetOpName(*page_, index), "?") << index;
  page_->op_count.store(0);
  EXPECT_EQ(GetOpName(*page_, 0), "?");
}

TEST_F(OpNameTest, NamesThatAreNotSensibleAreUnknown) {
  for (const std::string_view bytes :
       {std::string_view(""), std::string_view("\x1b[2J"), std::string_view("a b"), std::string_view("a\nb"),
        std::string_view("<script>"), std::string_view("caf\xc3\xa9"), std::string_view("a\0b", 3)}) {
    WriteRaw(1, bytes);
    EXPECT_EQ(GetOpName(*page_, 1), "?") << bytes;
  }
}

}  // namespace
}  // namespace lgpu
