// The limit is what the driver takes, not what programs ask for: each case compares the fake driver's own
// figure with the limit.

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

class FiguresTest : public ShimTest {
 protected:
  FiguresTest() : ShimTest({.total = 32_GiB, .context = kContext}) { machine_.state().any_program = true; }
  std::unique_ptr<ChildProgram> StartClient(const std::string& limit) {
    return Start(limit, {Client("dlopen"), "dlopen", "libcuda.so.1"});
  }
  /// What programs have beside one context.
  std::uint64_t Taken() { return machine_.Used(0).count() - kContext.count(); }
  /// The free bytes that a program is told.
  static std::uint64_t FreeOf(ChildProgram& client, const std::string& ask = "info") {
    const std::string answer = Ask(client, ask);
    return answer.rfind("ok ", 0) == 0 ? std::strtoull(answer.c_str() + 3, nullptr, 10) : ~std::uint64_t{0};
  }

  /// Figures of a daemon that is busy for half a second are the last ones.
  static bool BothTellTheSame(ChildProgram& client) {
    return Eventually([&] { return FreeOf(client, "nvml_info") == FreeOf(client); });
  }

  static constexpr Bytes kContext = 16_MiB;
};

TEST_F(FiguresTest, PoolsOfManyPiecesAreChargedByWhatTheyReserve) {  // PyTorch's cudaMallocAsync, 5 MiB each
  StartMachine();
  auto client = StartClient("1GiB");
  EXPECT_THAT(Ask(*client, absl::StrCat("take_many default 1000 ", 5 * kMiB)), EndsWith(" 2"));
  EXPECT_LE(Taken(), 1024 * kMiB);
  EXPECT_GE(Taken(), 960 * kMiB) << "used what there was";
  End(*client);
}

TEST_F(FiguresTest, APoolThatHasHolesIsChargedWithThem) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, "new_pool p"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("take_many p 4 ", 16 * kMiB)), "ok 4 0");
  EXPECT_EQ(Ask(*client, "drop_every_second"), "ok") << "a hole in each block";
  EXPECT_EQ(Ask(*client, absl::StrCat("take x p ", 20 * kMiB)), "error 2") << "no hole is so large";
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc y plain ", 20 * kMiB)), "error 2");
  EXPECT_LE(Taken(), 64 * kMiB);
  EXPECT_EQ(Ask(*client, absl::StrCat("take x p ", 16 * kMiB)), "ok") << "a hole";
  End(*client);
}

TEST_F(FiguresTest, ManyPoolsAreChargedByWhatTheyReserve) {
  StartMachine();
  auto client = StartClient("64MiB");
  for (int i = 0; i < 24; ++i) {
    EXPECT_EQ(Ask(*client, absl::StrCat("new_pool p", i)), "ok");
    const std::string answer = Ask(*client, absl::StrCat("take x", i, " p", i, " ", kMiB));
    EXPECT_EQ(answer, i < 2 ? "ok" : "error 2") << i << ": a pool has 32 MiB";
  }
  EXPECT_LE(Taken(), 64 * kMiB);
  End(*client);
}

TEST_F(FiguresTest, FreesThatAreQueuedBehindWorkStayCharged) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, "block_stream"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("take_and_drop 100 ", 4 * kMiB)), "ok 16 2");
  EXPECT_LE(Taken(), 64 * kMiB);
  EXPECT_EQ(Ask(*client, "release_stream"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 60 * kMiB)), "ok") << "the pool has given it back";
  End(*client);
}

TEST_F(FiguresTest, APoolGivesUnusedMemoryBackBeforeAnyCallIsRefused) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, "new_pool p"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("take a p ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "drop a"), "ok");
  EXPECT_EQ(Ask(*client, "release_stream"), "ok");
  EXPECT_GE(Taken(), 40 * kMiB) << "the pool keeps it";
  for (const char* const kind : {"plain", "virtual", "array", "managed", "graph"}) {
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc b ", kind, " ", 60 * kMiB)), "ok") << kind;
    EXPECT_LE(Taken(), 64 * kMiB);
    EXPECT_EQ(Ask(*client, "free b"), "ok");
    EXPECT_EQ(Ask(*client, "trim_graphs"), "ok");
    EXPECT_EQ(Ask(*client, absl::StrCat("take a p ", 40 * kMiB)), "ok");
    EXPECT_EQ(Ask(*client, "drop a"), "ok");
    EXPECT_EQ(Ask(*client, "release_stream"), "ok");
  }
  End(*client);
  EXPECT_THAT(client->Errors(), Not(HasSubstr("refused"))) << "nothing was";
}

TEST_F(FiguresTest, ADestroyedPoolIsChargedUntilItsLastAllocationIsGone) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, "new_pool p"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("take a p ", kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "destroy_pool p"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  EXPECT_LE(Taken(), 64 * kMiB);
  EXPECT_EQ(Ask(*client, "drop a"), "ok");
  EXPECT_EQ(Ask(*client, "release_stream"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 60 * kMiB)), "ok");
  End(*client);
}

TEST_F(FiguresTest, SmallRequestsThatDoNotFillABlockCountWithTheRestOfIt) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_THAT(Ask(*client, absl::StrCat("plain_many 1000 ", 700 * 1024)), "ok 64 2") << "two in a block";
  EXPECT_LE(Taken(), 64 * kMiB);
  EXPECT_EQ(Ask(*client, "drop_all"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 60 * kMiB)), "ok");
  End(*client);
}

TEST_F(FiguresTest, ABlockCountsUntilItsLastSmallRequestIsFreed) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, absl::StrCat("plain_many 60 ", 1024 * 1024 - 512)), "ok 60 0");
  EXPECT_EQ(Ask(*client, "drop_every_second"), "ok") << "one stays in each block";
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 20 * kMiB)), "error 2");
  EXPECT_LE(Taken(), 64 * kMiB);
  EXPECT_EQ(Ask(*client, "drop_all"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 60 * kMiB)), "ok");
  End(*client);
}

TEST_F(FiguresTest, ArraysAreChargedWithTheirPadding) {
  machine_.state().array_row_unit = 1024;
  machine_.state().array_rows_unit = 64;
  StartMachine();
  auto client = StartClient("64MiB");
  for (const auto& [width, height] :
       {std::pair(1000, 1030), std::pair(300, 65), std::pair(33, 1), std::pair(2049, 129)}) {
    EXPECT_THAT(Ask(*client, absl::StrCat("arrays 100000 ", width, " ", height)), EndsWith(" 2"));
    EXPECT_LE(Taken(), 64 * kMiB) << width << " x " << height;
    EXPECT_GE(Taken(), 32 * kMiB) << width << " x " << height;
    EXPECT_EQ(Ask(*client, "drop_arrays"), "ok");
  }
  End(*client);
}

TEST_F(FiguresTest, LlamaCppsPoolGrowsToTheLimitAndGoesAtOnce) {
  StartMachine();
  auto client = StartClient("64MiB");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Ask(*client, absl::StrCat("llama_grow ", 20 * kMiB)), "ok");
    EXPECT_EQ(Ask(*client, "llama_grow 30000001"), "ok");
    EXPECT_EQ(Ask(*client, absl::StrCat("llama_grow ", 20 * kMiB)), "error 2");
    EXPECT_EQ(Taken(), 50 * kMiB);
    EXPECT_EQ(FreeOf(*client), 14 * kMiB);
    EXPECT_EQ(Ask(*client, "llama_end"), "ok");
    EXPECT_EQ(Taken(), 0U);
    EXPECT_EQ(FreeOf(*client), 64 * kMiB);
  }
  End(*client);
}

TEST_F(FiguresTest, MemoryOfPoolsOutlivesAResetOfThePrimaryContext) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, "new_pool p"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("take a p ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 10 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "forget_context"), "ok");
  EXPECT_EQ(Ask(*client, "retain_primary"), "ok");
  EXPECT_EQ(Taken(), 40 * kMiB);
  EXPECT_EQ(FreeOf(*client), 24 * kMiB);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*client, "drop a"), "ok");
  EXPECT_EQ(Ask(*client, "release_stream"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 60 * kMiB)), "ok");
  End(*client);
}

TEST_F(FiguresTest, TheEndOfAGreenContextThatHasThePrimaryOneLastGivesItsMemoryBack) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, "green_make"), "ok");
  EXPECT_EQ(Ask(*client, "green_enter"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "leave_context"), "ok");
  EXPECT_EQ(Ask(*client, "leave_context"), "ok");
  EXPECT_EQ(Ask(*client, "release_primary"), "ok") << "the green context has it still";
  EXPECT_EQ(Taken(), 40 * kMiB);
  EXPECT_EQ(Ask(*client, "green_destroy"), "ok");
  EXPECT_EQ(machine_.Used(0).count(), 0U);
  EXPECT_EQ(Ask(*client, "forget a"), "ok");
  EXPECT_EQ(Ask(*client, "retain_primary"), "ok");
  EXPECT_EQ(FreeOf(*client), 64 * kMiB);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 60 * kMiB)), "ok");
  End(*client);
}

TEST_F(FiguresTest, AGreenContextThatEndsFirstLeavesItsMemoryCharged) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, "green_make"), "ok");
  EXPECT_EQ(Ask(*client, "green_enter"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "leave_context"), "ok");
  EXPECT_EQ(Ask(*client, "green_destroy"), "ok");
  EXPECT_EQ(Taken(), 40 * kMiB) << "the primary context has it";
  EXPECT_EQ(FreeOf(*client), 24 * kMiB);
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(FreeOf(*client), 64 * kMiB);
  End(*client);
}

TEST_F(FiguresTest, TheHostsOwnPoolIsNotCharged) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, "host_pool h"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("take a h ", 100 * kMiB)), "ok");
  EXPECT_EQ(FreeOf(*client), 64 * kMiB);
  EXPECT_EQ(Ask(*client, "drop a"), "ok");
  End(*client);
}

TEST_F(FiguresTest, NvmlAndTheDriverTellTheSameOfALease) {
  StartMachine();
  auto client = StartClient("768MiB");
  for (const std::uint64_t bytes : {std::uint64_t{4096}, 2 * kMiB, 10 * kMiB, 100 * kMiB, kMiB / 2}) {
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", bytes)), "ok");
    EXPECT_TRUE(BothTellTheSame(*client)) << bytes;
    EXPECT_EQ(Ask(*client, "free a"), "ok");
    EXPECT_TRUE(BothTellTheSame(*client)) << bytes;
  }
  EXPECT_EQ(FreeOf(*client, "nvml_info"), 768 * kMiB);
  End(*client);
}

TEST_F(FiguresTest, MemoryThatIsFreedWhileTheDaemonHangsIsBackWhenItAnswers) {
  StartMachine();
  const std::string lease = CreateLease("14GiB");
  auto client = StartIn(lease);
  auto other = StartIn(lease);
  EXPECT_EQ(Ask(*client, absl::StrCat("plain_many 1500 ", 8 * kMiB)), "ok 1500 0");
  machine_.Stop(daemon_->program());
  EXPECT_EQ(Ask(*client, "drop_all"), "ok") << "more frees than a socket has room for";
  daemon_->program().Signal(SIGCONT);
  // The program that freed it makes no call more.
  EXPECT_TRUE(Eventually([&] { return Ask(*other, absl::StrCat("alloc a plain ", 13000 * kMiB)) == "ok"; }));
  End(*other);
  End(*client);
}

TEST_F(FiguresTest, AProgramThatClosesDescriptorsKeepsItsOwnFiles) {
  StartMachine();
  auto client = StartClient("64MiB");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 20 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "close_and_open"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 20 * kMiB)), "ok") << "by a connection made anew";
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc c plain ", 40 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, "free b"), "ok");
  EXPECT_EQ(FreeOf(*client), 64 * kMiB);
  EXPECT_EQ(Ask(*client, "fork"), "ok");
  EXPECT_EQ(Ask(*client, "check_own"), "ok");
  End(*client);
}

}  // namespace
}  // namespace lgpu::testing
