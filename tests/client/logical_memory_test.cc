// LogicalMemory as programs have it: with a daemon and without one, on simulated GPUs and, where
// LGPU_TEST_CUDA is defined, on the GPUs of the libcuda.so.1 that the loader finds. One file past the usual
// length: every case runs in all these places, by one fixture and one program's own kernels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lgpu/lgpu.h"
#include "lgpu/memory.h"
#include "tests/support/daemon_process.h"

#ifdef LGPU_TEST_CUDA
#include "allocator/device/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/kernel_parameters.h"
#include "tests/client/cuda_caller.h"
#include "tests/fake_cuda/fake_state.h"
#endif

namespace lgpu {
namespace {

using testing::DaemonProcess;
using ::testing::HasSubstr;

enum class Place { kLocal, kDaemon };

#ifdef LGPU_TEST_CUDA
constexpr char kLocalEndpoint[] = "local";
constexpr char kSimulate[] = "";
/// Of the card: twice as much is more than it has.
constexpr Bytes kMost = 700_MiB;
/// The program's own work with a device.
using Caller = testing::CudaCaller;
#else
constexpr char kLocalEndpoint[] = "local:1x256MiB";
constexpr char kSimulate[] = "256MiB";
constexpr Bytes kMost = 200_MiB;
/// Plain loops, and streams that are nothing but names.
class Caller {
 public:
  explicit Caller(int cuda_device) { EXPECT_EQ(cuda_device, -1); }
  void* MakeStream() { return &names_[next_++]; }
  void Write(const Block& block, std::uint8_t value, void* /*stream*/) {
    for (std::size_t i = 0; i < block.bytes.count(); ++i) block.address[i] = std::byte{value};
  }
  std::uint8_t ReadLast(const Block& block, void* /*stream*/) {
    return std::to_integer<std::uint8_t>(block.address[block.bytes.count() - 1]);
  }

 private:
  char names_[256] = {};
  std::size_t next_ = 0;
};
#endif

class LogicalMemoryTest : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    endpoint_ = kLocalEndpoint;
    if (GetParam() == Place::kLocal) return;
    absl::StatusOr<std::unique_ptr<DaemonProcess>> daemon = DaemonProcess::Start({.simulate = kSimulate});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    endpoint_ = daemon_->dir();
  }
  absl::StatusOr<LogicalMemory> Open(Bytes limit, const std::string& lease_name = {}) const {
    return LogicalMemory::Open({.memory_limit = limit,
                                .lease_name = lease_name,
                                .endpoint = endpoint_,
                                .allocation_timeout = std::chrono::milliseconds(2000)});
  }
  LogicalMemory MustOpen(Bytes limit, const std::string& lease_name = {}) const {
    absl::StatusOr<LogicalMemory> memory = Open(limit, lease_name);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  static Block Must(const absl::StatusOr<Block>& block) {
    EXPECT_TRUE(block.ok()) << block.status();
    return block.value_or(Block());
  }
  static Bytes Held(const LogicalMemory& memory) { return memory.GetStats()->held; }

  std::string endpoint_;
  std::unique_ptr<DaemonProcess> daemon_;
};

INSTANTIATE_TEST_SUITE_P(Places, LogicalMemoryTest, ::testing::Values(Place::kLocal, Place::kDaemon),
                         [](const ::testing::TestParamInfo<Place>& place) {
                           return place.param == Place::kLocal ? "Local" : "Daemon";
                         });

TEST_P(LogicalMemoryTest, BlocksAreMemoryThatTheCallersOwnCodeUses) {
  const LogicalMemory memory = MustOpen(64_MiB);
  Caller caller(memory.cuda_device());
  void* const stream = caller.MakeStream();
  std::vector<Block> blocks;
  for (std::uint8_t i = 0; i < 8; ++i) {
    blocks.push_back(Must(memory.Allocate(Bytes(1000) * (std::uint64_t{1} << i), {.stream = stream})));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back().address) % 256, 0u);
    caller.Write(blocks.back(), i, stream);
  }
  for (std::uint8_t i = 0; i < 8; ++i) {
    EXPECT_EQ(caller.ReadLast(blocks[i], stream), i);
    EXPECT_TRUE(memory.Free(blocks[i], stream).ok());
  }
  const Block aligned = Must(memory.Allocate(Bytes(100), {.stream = stream, .alignment = 2_MiB}));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned.address) % (2_MiB).count(), 0u);
  EXPECT_TRUE(memory.Free(aligned.address, stream).ok());
  EXPECT_TRUE(memory.Close().ok());
}

TEST_P(LogicalMemoryTest, LimitHoldsAndARefusalHasItsFields) {
  const LogicalMemory memory = MustOpen(64_MiB, "mine");
  const Block weights = Must(memory.Allocate(48_MiB, {.tag = "weights"}));
  const absl::Status status = memory.Allocate(32_MiB, {.tag = "batch"}).status();
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  const std::optional<Refusal> refusal = GetRefusal(status);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_EQ(refusal->device, "/device:GPU:0");
  EXPECT_EQ(refusal->lease, "mine");
  EXPECT_EQ(refusal->what, "block of batch");
  EXPECT_EQ(refusal->asked, 32_MiB);
  EXPECT_EQ(refusal->limit, 64_MiB);
  EXPECT_EQ(refusal->used, 48_MiB);
  ASSERT_EQ(refusal->owners.size(), 1u);
  EXPECT_EQ(refusal->owners[0].op, "weights");
  EXPECT_EQ(memory.lease_name(), "mine");
  EXPECT_EQ(memory.lease().empty(), GetParam() == Place::kLocal);
  EXPECT_TRUE(memory.Free(weights, nullptr).ok());
  EXPECT_TRUE(memory.Free(Must(memory.Allocate(64_MiB)), nullptr).ok()) << "the whole limit";
}

TEST_P(LogicalMemoryTest, WrongUseIsAnErrorAndChangesNothing) {
  LogicalMemory memory = MustOpen(64_MiB);
  const Block none = Must(memory.Allocate(Bytes()));
  EXPECT_EQ(none.address, nullptr);
  EXPECT_TRUE(memory.Free(none, nullptr).ok());
  EXPECT_TRUE(memory.Free(static_cast<void*>(nullptr), nullptr).ok());
  const Block block = Must(memory.Allocate(1_MiB));
  EXPECT_TRUE(absl::IsInvalidArgument(memory.Allocate(1_MiB, {.alignment = Bytes(300)}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(memory.Find(block.address + 256).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(memory.Free(&memory, nullptr)));
  ASSERT_TRUE(memory.Find(block.address).ok());
  EXPECT_EQ(*memory.Find(block.address), block);
  EXPECT_TRUE(memory.Free(block, nullptr).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(memory.Free(block, nullptr)));
  EXPECT_TRUE(absl::IsInvalidArgument(memory.UseOn(block, nullptr)));
  EXPECT_TRUE(absl::IsInvalidArgument(memory.Export(block, nullptr).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(memory.Allocate(Bytes(~std::uint64_t{0})).status()));
  const LogicalMemory moved = std::move(memory);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(memory.Allocate(1_MiB).status()));  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(moved.Close().ok());
  EXPECT_TRUE(absl::IsNotFound(
      LogicalMemory::Open({.memory_limit = 2_MiB, .device_of_lease = 1, .endpoint = endpoint_}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      LogicalMemory::Open({.endpoint = endpoint_, .allocation_timeout = std::chrono::milliseconds(-1)})
          .status()));
}

TEST_P(LogicalMemoryTest, AnyNumberOfStreams) {
  const LogicalMemory memory = MustOpen(64_MiB);
  Caller caller(memory.cuda_device());
  std::vector<void*> streams;
  std::vector<Block> blocks;
  for (int i = 0; i < 150; ++i) {
    streams.push_back(caller.MakeStream());
    blocks.push_back(Must(memory.Allocate(Bytes(100'000), {.stream = streams.back()})));
    caller.Write(blocks.back(), static_cast<std::uint8_t>(i), streams.back());
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(caller.ReadLast(blocks[i], streams[i]), static_cast<std::uint8_t>(i));
    ASSERT_TRUE(memory.Free(blocks[i], streams[i]).ok());
    ASSERT_TRUE(memory.ForgetStream(streams[i]).ok());
  }
  EXPECT_EQ(memory.GetStats()->used, Bytes());
  EXPECT_TRUE(memory.Close().ok());
}

TEST_P(LogicalMemoryTest, TrimmedMemoryServesAnotherDevice) {
  const LogicalMemory one = MustOpen(200_MiB);
  ASSERT_TRUE(one.Free(Must(one.Allocate(180_MiB)), nullptr).ok());
  EXPECT_GE(Held(one), 180_MiB);
  const absl::StatusOr<Bytes> trimmed = one.Trim();
  ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  EXPECT_GE(*trimmed, 180_MiB);
  EXPECT_TRUE(testing::Eventually([&] { return Held(one).is_zero(); }));
  if (GetParam() == Place::kDaemon) {
    const LogicalMemory two = MustOpen(200_MiB);
    EXPECT_TRUE(
        two.Free(Must(two.Allocate(180_MiB, {.timeout = std::chrono::milliseconds(0)})), nullptr).ok());
  }
}

TEST_P(LogicalMemoryTest, ResizeChangesTheLimitWhileBlocksLive) {
  const LogicalMemory memory = MustOpen(32_MiB);
  const Block block = Must(memory.Allocate(24_MiB));
  EXPECT_TRUE(absl::IsResourceExhausted(memory.Allocate(24_MiB).status()));
  ASSERT_TRUE(memory.Resize({.memory_limit = 64_MiB}).ok());
  EXPECT_EQ(memory.GetStats()->limit, 64_MiB);
  const Block more = Must(memory.Allocate(24_MiB));
  ASSERT_TRUE(memory.Resize({.memory_limit = 16_MiB}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(memory.Allocate(1_MiB).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(memory.Resize({.memory_limit = 16_MiB, .guarantee = 32_MiB})));
  EXPECT_TRUE(memory.Free(block, nullptr).ok());
  EXPECT_TRUE(memory.Free(more, nullptr).ok());
  EXPECT_TRUE(memory.Free(Must(memory.Allocate(16_MiB)), nullptr).ok());
}

TEST_P(LogicalMemoryTest, CloseSaysHowManyBlocksAreLive) {
  const LogicalMemory memory = MustOpen(64_MiB);
  const Block one = Must(memory.Allocate(4_MiB));
  const Block two = Must(memory.Allocate(8_MiB));
  absl::StatusOr<std::shared_ptr<void>> owner = memory.Export(two, nullptr);
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_EQ(owner->get(), two.address);
  absl::Status closed = memory.Close();
  EXPECT_TRUE(absl::IsFailedPrecondition(closed));
  EXPECT_THAT(std::string(closed.message()),
              HasSubstr("2 blocks (12.00MiB) of this memory are still in use, 1 of them exported"));
  EXPECT_TRUE(memory.Free(one, nullptr).ok()) << "nothing was closed";
  EXPECT_EQ(memory.live_blocks().blocks, 1u);
  EXPECT_EQ(memory.live_blocks().exported, 1u);
  owner->reset();
  EXPECT_TRUE(memory.Close().ok());
  EXPECT_TRUE(memory.Close().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(memory.Allocate(1_MiB).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(memory.GetStats().status()));
}

TEST_P(LogicalMemoryTest, ExportedBlockOutlivesItsMemory) {
  std::optional<LogicalMemory> memory = MustOpen(64_MiB);
  Caller caller(memory->cuda_device());
  void* const stream = caller.MakeStream();
  const Block block = Must(memory->Allocate(4_MiB, {.stream = stream}));
  const Block other = Must(memory->Allocate(4_MiB, {.stream = stream}));
  absl::StatusOr<std::shared_ptr<void>> owner = memory->Export(block, stream);
  ASSERT_TRUE(owner.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(memory->Free(block, stream)));
  caller.Write(block, 7, stream);
  caller.Write(other, 8, stream);
  memory.reset();
  EXPECT_EQ(caller.ReadLast(block, stream), 7);
  std::thread([&] { owner->reset(); }).join();
}

TEST_P(LogicalMemoryTest, SnapshotHasEveryBlockAndItsSumsAreTheStatistics) {
  const LogicalMemory memory = MustOpen(64_MiB);
  Caller caller(memory.cuda_device());
  void* const streams[] = {caller.MakeStream(), caller.MakeStream()};
  std::vector<std::pair<Block, void*>> blocks;
  for (std::size_t i = 0; i < 40; ++i) {
    void* const stream = streams[i % 2];
    blocks.emplace_back(
        Must(memory.Allocate(Bytes(3000 * (i + 1)), {.stream = stream, .tag = i % 2 == 0 ? "even" : "odd"})),
        stream);
  }
  for (std::size_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(memory.Free(blocks.back().first, blocks.back().second).ok());
    blocks.pop_back();
  }
  const absl::StatusOr<LogicalMemorySnapshot> snapshot = memory.Snapshot();
  ASSERT_TRUE(snapshot.ok());
  Bytes used;
  Bytes requested;
  std::uint64_t live = 0;
  for (const BlockInfo& info : snapshot->blocks) {
    if (info.state != BlockState::kLive) continue;
    ++live;
    used += info.bytes;
    requested += info.requested;
    const auto mine = std::find_if(blocks.begin(), blocks.end(), [&](const auto& block) {
      return block.first.address == snapshot->base + info.offset.count();
    });
    ASSERT_NE(mine, blocks.end());
    EXPECT_EQ(info.bytes, mine->first.bytes);
    EXPECT_EQ(snapshot->streams[info.stream], mine->second);
    EXPECT_EQ(info.op, mine->second == streams[0] ? "even" : "odd");
  }
  const absl::StatusOr<MemoryStats> stats = memory.GetStats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(live, blocks.size());
  EXPECT_EQ(stats->live_blocks, live);
  EXPECT_EQ(stats->used, used);
  EXPECT_EQ(stats->requested, requested);
  EXPECT_EQ(memory.live_blocks().bytes, used);
}

TEST_P(LogicalMemoryTest, ForkedChildHasNone) {
  LogicalMemory memory = MustOpen(64_MiB);
  const Block block = Must(memory.Allocate(1_MiB));
  absl::StatusOr<std::shared_ptr<void>> owner = memory.Export(Must(memory.Allocate(1_MiB)), nullptr);
  ASSERT_TRUE(owner.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool dead = absl::IsFailedPrecondition(memory.Allocate(1_MiB).status()) &&
                      absl::IsFailedPrecondition(memory.Free(block, nullptr)) &&
                      absl::IsFailedPrecondition(memory.Close()) && memory.live_blocks().blocks == 0;
    owner->reset();
    { const LogicalMemory gone = std::move(memory); }
    ::_exit(dead ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(memory.Free(block, nullptr).ok());
  owner->reset();
  EXPECT_TRUE(memory.Close().ok());
}

TEST_P(LogicalMemoryTest, ThreadsAllocateAndFreeOnStreamsOfTheirOwn) {
  const LogicalMemory memory = MustOpen(128_MiB);
  Caller caller(memory.cuda_device());
  constexpr int kThreads = 4;
  std::vector<void*> streams;
  for (int t = 0; t < kThreads; ++t) streams.push_back(caller.MakeStream());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 100; ++i) {
        const Block block = Must(memory.Allocate(Bytes(512 << (i % 12)), {.stream = streams[t]}));
        const auto value = static_cast<std::uint8_t>(i + t);
        caller.Write(block, value, streams[t]);
        EXPECT_EQ(caller.ReadLast(block, streams[t]), value);
        void* const next = streams[(t + i) % kThreads];
        ASSERT_TRUE(next == streams[t] || memory.UseOn(block, streams[t]).ok());
        ASSERT_TRUE(memory.Free(block, next).ok());
        ASSERT_TRUE(i % 32 != 0 || memory.Trim().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.live_blocks().blocks, 0u);
  EXPECT_EQ(memory.GetStats()->used, Bytes());
  EXPECT_TRUE(memory.Close().ok());
}

TEST_P(LogicalMemoryTest, ContextsMemoryIsItsTensorsMemory) {
  absl::StatusOr<Context> context =
      Context::Create({.logical_devices = {{.memory_limit = 64_MiB}}, .endpoint = endpoint_});
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_TRUE(absl::IsInvalidArgument(context->Memory("CPU:0").status()));
  const absl::StatusOr<LogicalMemory> memory = context->Memory("GPU:0");
  ASSERT_TRUE(memory.ok()) << memory.status();
  const absl::StatusOr<Tensor> tensor = context->Fill<float>({1024, 1024}, 1);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  const Block block = Must(memory->Allocate(48_MiB, {.tag = "mine"}));
  EXPECT_GE(context->GetMemoryInfo("GPU:0")->current, 52_MiB);
  const absl::Status refused = context->Fill<float>({4096, 1024}, 1).status();
  ASSERT_TRUE(absl::IsResourceExhausted(refused)) << "one limit for both";
  EXPECT_EQ(GetRefusal(refused)->owners[0].op, "mine");
  const absl::Status closed = context->Close();
  EXPECT_TRUE(absl::IsFailedPrecondition(closed)) << closed;
  EXPECT_TRUE(IsMemoryInUse(closed));
  EXPECT_TRUE(context->Fill<float>({2}, 1).ok()) << "nothing was closed";
  EXPECT_TRUE(absl::IsFailedPrecondition(memory->Close()));
  EXPECT_TRUE(memory->Free(block, nullptr).ok());
  EXPECT_TRUE(memory->Close().ok());
  EXPECT_TRUE(context->Close().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(memory->Allocate(1_MiB).status()));
}

TEST_P(LogicalMemoryTest, ExportedBlockOutlivesItsContext) {
  std::shared_ptr<void> owner;
  Block block;
  std::optional<Caller> caller;
  void* stream = nullptr;
  {
    absl::StatusOr<Context> context =
        Context::Create({.logical_devices = {{.memory_limit = 64_MiB}}, .endpoint = endpoint_});
    ASSERT_TRUE(context.ok()) << context.status();
    const absl::StatusOr<LogicalMemory> memory = context->Memory("GPU:0");
    ASSERT_TRUE(memory.ok());
    caller.emplace(memory->cuda_device());
    stream = caller->MakeStream();
    block = Must(memory->Allocate(1_MiB, {.stream = stream}));
    owner = memory->Export(block, stream).value_or(nullptr);
    caller->Write(block, 9, stream);
  }
  ASSERT_NE(owner, nullptr);
  EXPECT_EQ(caller->ReadLast(block, stream), 9);
  owner.reset();
}

// Without a daemon there is no other device that could get the memory.
TEST_P(LogicalMemoryTest, LeaseOfAContextThatIsGoneEndsWithItsLastBlock) {
  const auto others_can_have_it = [this] {
    if (GetParam() == Place::kLocal) return true;
    const absl::StatusOr<LogicalMemory> other = LogicalMemory::Open(
        {.memory_limit = kMost, .guarantee = kMost, .endpoint = endpoint_, .allocation_timeout = {}});
    return other.ok();
  };
  if (GetParam() == Place::kDaemon) {
    const absl::StatusOr<LogicalMemory> first =
        LogicalMemory::Open({.memory_limit = kMost, .guarantee = kMost, .endpoint = endpoint_});
    ASSERT_TRUE(first.ok()) << first.status();
    if (others_can_have_it()) GTEST_SKIP() << "the card has room for two leases of " << FormatBytes(kMost);
  }
  std::optional<Context> context = *Context::Create(
      {.logical_devices = {{.memory_limit = kMost, .guarantee = kMost}}, .endpoint = endpoint_});
  const absl::StatusOr<LogicalMemory> memory = context->Memory("GPU:0");
  ASSERT_TRUE(memory.ok()) << memory.status();
  Caller caller(memory->cuda_device());
  void* const stream = caller.MakeStream();
  const Tensor tensor = context->Fill<float>({2}, 1).value_or(Tensor());
  const Block block = Must(memory->Allocate(4_MiB, {.stream = stream}));
  const Block lent = Must(memory->Allocate(4_MiB, {.stream = stream}));
  absl::StatusOr<std::shared_ptr<void>> owner = memory->Export(lent, stream);
  ASSERT_TRUE(owner.ok()) << owner.status();
  context.reset();

  const absl::Status refused = memory->Allocate(1_MiB).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the Context of this LogicalMemory is gone"));
  EXPECT_TRUE(absl::IsFailedPrecondition(tensor.ToVector<float>().status()));
  caller.Write(block, 7, stream);
  EXPECT_EQ(caller.ReadLast(block, stream), 7) << "the block is usable";
  EXPECT_EQ(memory->live_blocks().blocks, 2u);
  EXPECT_TRUE(GetParam() == Place::kLocal || !others_can_have_it());
  EXPECT_TRUE(memory->Free(block, stream).ok());
  EXPECT_TRUE(GetParam() == Place::kLocal || !others_can_have_it());
  owner->reset();
  EXPECT_TRUE(others_can_have_it()) << "the handle and a tensor are still there";
  EXPECT_THAT(std::string(memory->GetStats().status().message()),
              HasSubstr("the Context of this LogicalMemory is closed"));
  EXPECT_TRUE(memory->Close().ok());
}

TEST_P(LogicalMemoryTest, BlocksThatNoHandleCanFreeGoWithTheContext) {
  absl::StatusOr<LogicalMemory> after = absl::UnknownError("");
  for (const bool handle_goes_first : {true, false}) {
    std::optional<Context> context = *Context::Create(
        {.logical_devices = {{.memory_limit = kMost, .guarantee = kMost}}, .endpoint = endpoint_});
    std::optional<LogicalMemory> memory = *context->Memory("GPU:0");
    const Tensor tensor = context->Fill<float>({2}, 1).value_or(Tensor());
    Must(memory->Allocate(4_MiB));
    if (handle_goes_first) memory.reset();
    context.reset();
    memory.reset();
    after = LogicalMemory::Open({.memory_limit = kMost, .guarantee = kMost, .endpoint = endpoint_});
    EXPECT_TRUE(after.ok()) << after.status();
    EXPECT_TRUE(after->Close().ok());
  }
}

TEST_P(LogicalMemoryTest, ThreadsEndTheLastLoansOfAContextThatGoes) {
  for (int round = 0; round < 20; ++round) {
    std::optional<Context> context = *Context::Create(
        {.logical_devices = {{.memory_limit = kMost, .guarantee = kMost}}, .endpoint = endpoint_});
    const absl::StatusOr<LogicalMemory> memory = context->Memory("GPU:0");
    ASSERT_TRUE(memory.ok());
    const Block block = Must(memory->Allocate(1_MiB));
    std::shared_ptr<void> owner = memory->Export(Must(memory->Allocate(1_MiB)), nullptr).value_or(nullptr);
    std::thread frees([&] { EXPECT_TRUE(memory->Free(block, nullptr).ok()); });
    std::thread lets_go([&] { owner.reset(); });
    context.reset();
    frees.join();
    lets_go.join();
    EXPECT_TRUE(absl::IsFailedPrecondition(memory->GetStats().status())) << "it is closed";
  }
}

TEST_P(LogicalMemoryTest, CallDuringCloseSaysThatTheContextIsBeingClosed) {
  std::atomic<bool> armed{false};
  std::atomic<bool> inside{false};
  std::atomic<bool> leave{false};
  absl::StatusOr<Context> context = Context::Create({.logical_devices = {{.memory_limit = 64_MiB}},
                                                     .endpoint = endpoint_,
                                                     .log_device_placement = true,
                                                     .log_sink = [&](std::string_view) {
                                                       if (!armed.load()) return;
                                                       inside.store(true);
                                                       while (!leave.load()) std::this_thread::yield();
                                                     }});
  ASSERT_TRUE(context.ok()) << context.status();
  const absl::StatusOr<LogicalMemory> memory = context->Memory("GPU:0");
  ASSERT_TRUE(memory.ok()) << memory.status();
  armed.store(true);
  std::thread op([&context] { context->Fill<float>({2}, 1).IgnoreError(); });  // Close waits for it
  while (!inside.load()) std::this_thread::yield();
  std::thread closes([&context] { EXPECT_TRUE(context->Close().ok()); });
  absl::Status said;
  // More than the limit, so that no block is in the way of Close.
  while (!absl::IsFailedPrecondition(said)) {
    said = memory->Allocate(128_MiB, {.only_if_ready = true}).status();
  }
  leave.store(true);
  op.join();
  closes.join();
  EXPECT_THAT(std::string(said.message()), HasSubstr("the Context of this LogicalMemory is being closed"));
  const absl::Status closed = memory->Allocate(1_MiB).status();
  EXPECT_THAT(std::string(closed.message()), HasSubstr("the Context of this LogicalMemory is closed"));
}

TEST_P(LogicalMemoryTest, TwoProgramsShareTheLimitOfALease) {
  if (GetParam() == Place::kLocal) {
    EXPECT_TRUE(absl::IsInvalidArgument(LogicalMemory::Open({.lease = "x", .endpoint = endpoint_}).status()));
    return;
  }
  const LogicalMemory one = MustOpen(64_MiB, "shared");
  const absl::StatusOr<LogicalMemory> two =
      LogicalMemory::Open({.lease = "shared", .endpoint = endpoint_, .allocation_timeout = {}});
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->lease(), one.lease());
  const Block block = Must(one.Allocate(48_MiB));
  EXPECT_TRUE(absl::IsResourceExhausted(two->Allocate(32_MiB).status()));
  EXPECT_TRUE(one.Free(block, nullptr).ok());
  // As long as the first one's background thread may take to return it.
  const Block over = Must(two->Allocate(32_MiB, {.timeout = std::chrono::minutes(1)}));
  EXPECT_TRUE(two->Free(over, nullptr).ok()) << "idle memory of the first goes over";
  EXPECT_TRUE(absl::IsInvalidArgument(
      LogicalMemory::Open({.memory_limit = 2_MiB, .lease = "shared", .endpoint = endpoint_}).status()));
}

#ifdef LGPU_TEST_CUDA
/// A stream of the program's on which a kernel writes a block until the test lets it end. On a real GPU it
/// ends at once.
class HeldKernel {
 public:
  HeldKernel() : machine_(fake_cuda::StateFile::OfThisProcess()), program_(*OpenCudaBackend()) {
    handle_ = *program_->CreateStream(0, 0);
    const absl::Status found = program_->CallLibrary(handle_, [this](void* stream) {
      stream_ = stream;
      return absl::OkStatus();
    });
    EXPECT_TRUE(found.ok()) << found;
  }
  ~HeldKernel() { End(); }
  HeldKernel(const HeldKernel&) = delete;
  HeldKernel& operator=(const HeldKernel&) = delete;

  void* stream() const { return stream_; }
  bool is_held() const { return machine_ != nullptr && machine_->state().hold_kernels; }
  void Launch(const Block& block) {
    if (machine_ != nullptr) machine_->state().hold_kernels = true;
    const FillParameters parameters{reinterpret_cast<std::uint8_t*>(block.address), block.bytes.count(), 7};
    KernelLaunch launch;
    launch.device_kernel = &kFillKernel;
    launch.arguments = &parameters;
    launch.argument_bytes = sizeof(parameters);
    const absl::Status launched = program_->Launch(handle_, launch);
    EXPECT_TRUE(launched.ok()) << launched;
  }
  void End() {
    if (machine_ != nullptr) machine_->state().hold_kernels = false;
  }

 private:
  fake_cuda::StateFile* const machine_;
  const std::unique_ptr<DeviceBackend> program_;
  StreamHandle handle_;
  void* stream_ = nullptr;
};

TEST_P(LogicalMemoryTest, ExportedBlockOutlivesItsStream) {
  const LogicalMemory memory = MustOpen(64_MiB);
  std::shared_ptr<void> owner;
  {
    const HeldKernel kernel;
    const Block block = Must(memory.Allocate(1_MiB, {.stream = kernel.stream()}));
    owner = memory.Export(block, kernel.stream()).value_or(nullptr);
    ASSERT_TRUE(memory.ForgetStream(kernel.stream()).ok());
  }
  ASSERT_NE(owner, nullptr);
  owner.reset();
  EXPECT_EQ(memory.live_blocks().blocks, 0u);
  EXPECT_TRUE(memory.Close().ok());
}

TEST_P(LogicalMemoryTest, MemoryIsNeitherUnmappedNorHandedOnUnderAKernelOfTheProgram) {
  const LogicalMemory memory = MustOpen(64_MiB);
  HeldKernel kernel;
  // The first stream of the memory, and another one, are kept in order in different ways.
  for (const bool is_first : {true, false}) {
    ASSERT_TRUE(memory.ForgetStream(nullptr).ok() && memory.ForgetStream(kernel.stream()).ok());
    void* const first = is_first ? kernel.stream() : nullptr;
    ASSERT_TRUE(memory.Free(Must(memory.Allocate(Bytes(256), {.stream = first})), first).ok());
    const Block block = Must(memory.Allocate(40_MiB, {.stream = kernel.stream()}));
    kernel.Launch(block);
    ASSERT_TRUE(memory.Free(block, kernel.stream()).ok());
    const absl::StatusOr<Block> ready = memory.Allocate(40_MiB, {.only_if_ready = true});
    EXPECT_EQ(ready.ok(), is_first || !kernel.is_held())
        << "on the device another stream waits for the first one";
    EXPECT_TRUE(!ready.ok() || memory.Free(*ready, nullptr).ok());
    std::thread trims([&] {
      const absl::StatusOr<Bytes> trimmed = memory.Trim();
      EXPECT_TRUE(trimmed.ok()) << trimmed.status();
      EXPECT_FALSE(kernel.is_held()) << "it was trimmed under a kernel";
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    kernel.End();
    trims.join();
  }
  EXPECT_TRUE(memory.ForgetStream(kernel.stream()).ok());
  EXPECT_TRUE(memory.Close().ok());
}
#endif

}  // namespace
}  // namespace lgpu
