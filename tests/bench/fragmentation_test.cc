// The allocator's promises about space, as tests: whole traces through a real Pool at limits close to their
// peaks of live bytes. bench/allocator.md has the figures of other allocators.

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>

#include "bench/peers/contenders.h"
#include "bench/peers/pool_contender.h"
#include "bench/peers/space.h"
#include "bench/workloads/catalog.h"
#include "bench/workloads/random.h"

namespace lgpu::bench {
namespace {

struct Gate {
  std::string_view workload;
  double of_peak;  // the trace completes at a limit of this times its peak
};

void PrintTo(const Gate& gate, std::ostream* out) { *out << gate.workload << " at " << gate.of_peak; }

class FragmentationTest : public ::testing::TestWithParam<Gate> {};

TEST_P(FragmentationTest, TraceCompletesCloseToItsPeak) {
  const Trace trace = *MakeWorkload(GetParam().workload);
  const Bytes limit = LimitWithSpare(Summarize(trace).peak_live, GetParam().of_peak - 1);
  PoolContender contender({.limit = limit, .slots = trace.slots});
  const SpaceResult result = ReplayForSpace(trace, contender, OnRefusal::kStop);
  EXPECT_TRUE(result.completed) << "refused at event " << result.first_refusal << " of "
                                << trace.events.size() << ": " << contender.first_refusal();
  if (result.completed) {
    EXPECT_EQ(contender.pool().stats().live_blocks, 0u);
  }
  EXPECT_TRUE(contender.pool().CheckInvariants().ok()) << contender.pool().CheckInvariants();
}

INSTANTIATE_TEST_SUITE_P(All, FragmentationTest,
                         ::testing::Values(Gate{"S1", 1.003}, Gate{"S2", 1.003}, Gate{"S3", 1.006},
                                           Gate{"S4", 1.002}, Gate{"S5", 1.003}, Gate{"S6", 1.003},
                                           Gate{"S7", 1.006}, Gate{"S8", 1.02}, Gate{"S9", 1.02},
                                           Gate{"S10", 1.0005}),
                         [](const auto& gate) { return std::string(gate.param.workload); });

TEST(PageMovesTest, SteadyTrainingMovesNothingWithAHundredthToSpare) {
  for (const std::string_view name : {"S1", "S2", "S4", "S5"}) {
    const Trace trace = *MakeWorkload(name);
    PoolContender contender(
        {.limit = LimitWithSpare(Summarize(trace).peak_live, 0.01), .slots = trace.slots});
    const SpaceResult result = ReplayForSpace(trace, contender, OnRefusal::kStop);
    EXPECT_TRUE(result.completed) << name;
    EXPECT_EQ(result.warm_operations.unmapped, 0u) << name;
  }
}

TEST(PageMovesTest, ShardedTrainingSettlesWithSomeToSpare) {
  const Trace trace = *MakeWorkload("S3");
  const auto moves_at = [&](double spare) {
    PoolContender contender(
        {.limit = LimitWithSpare(Summarize(trace).peak_live, spare), .slots = trace.slots});
    const SpaceResult result = ReplayForSpace(trace, contender, OnRefusal::kStop);
    EXPECT_TRUE(result.completed) << spare;
    return result.WarmMovesPerStep();
  };
  EXPECT_LE(moves_at(0.05), 200);
  EXPECT_EQ(moves_at(0.08), 0);
}

// bench/growth_bench.cc has what the chunks cost, and the rule before it.
TEST(GpuChunksTest, SixtyGibibytesOfModestBlocksTakeAThousandChunksAtMost) {
  for (const Bytes limit : {60_GiB, 80_GiB, 141_GiB}) {
    GpuPoolContender contender({.limit = limit, .slots = 1 << 16});
    Random random(1);
    Slot slot = 0;
    for (Bytes live; live < 59_GiB; ++slot) {
      const Bytes bytes = 1_MiB + Bytes(random.Below((19_MiB).count()));
      ASSERT_TRUE(contender.Allocate(slot, bytes)) << contender.first_refusal();
      live += bytes;
    }
    EXPECT_LE(contender.source().chunks, 1000u) << limit;
    for (Slot i = 0; i < slot; ++i) contender.Free(i);
    EXPECT_TRUE(contender.pool().Trim(limit).ok());
    EXPECT_EQ(contender.held(), Bytes()) << "all of it goes back";
  }
}

// The limits that do where a program of lgpud's grows on a GPU: its chunks are larger than pages.
TEST(GpuChunksTest, TracesCompleteCloseToTheirPeaks) {
  for (const Gate& gate : {Gate{"S1", 1.012}, Gate{"S2", 1.006}, Gate{"S3", 1.023}, Gate{"S4", 1.005},
                           Gate{"S5", 1.003}, Gate{"S6", 1.003}, Gate{"S7", 1.010}, Gate{"S10", 1.0005}}) {
    const Trace trace = *MakeWorkload(gate.workload);
    GpuPoolContender contender(
        {.limit = LimitWithSpare(Summarize(trace).peak_live, gate.of_peak - 1), .slots = trace.slots});
    EXPECT_TRUE(ReplayForSpace(trace, contender, OnRefusal::kStop).completed)
        << gate.workload << ": " << contender.first_refusal();
  }
}

TEST(FirstRefusalTest, RisingChurnUsesNearlyAll) {
  const MakeContender pool = (*FindContenderKind("pool"))->make;
  const MakeContender bound = (*FindContenderKind("bound"))->make;
  constexpr int kSeeds = 5;  // as suballocator_bench
  for (const RisingWorkload& workload : RisingWorkloads()) {
    double use = 0;
    double possible = 0;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      use += UseAtFirstRefusal(workload.shape, pool, 1000 + seed) / kSeeds;
      possible += UseAtFirstRefusal(workload.shape, bound, 1000 + seed) / kSeeds;
    }
    if (workload.name == "L2") {
      EXPECT_GE(use / possible, 0.995) << use;
    } else {
      EXPECT_GE(use, workload.name == "L1" ? 0.978 : 0.975) << workload.name;
    }
  }
}

}  // namespace
}  // namespace lgpu::bench
