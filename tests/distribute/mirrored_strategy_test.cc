#include "lgpu/mirrored_strategy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "lgpu/refusal.h"
#include "lgpu/training.h"
#include "tests/client/context_testing.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kGpu0;
using testing::kGpu1;
using testing::Must;
using ::testing::StartsWith;
using testing::TestContext;

Tensor Numbers(const Context& gpu, std::int64_t rows, std::int64_t columns, float first = 0) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  std::iota(values.begin(), values.end(), first);
  return Must(gpu.Constant<float>(Shape{rows, columns}, std::span<const float>(values)));
}

class MirroredStrategyTest : public ::testing::Test {
 protected:
  explicit MirroredStrategyTest(const internal::RuntimeOptions& runtime = {})
      : test_({.asynchronous = true}, {}, runtime), strategy_(Make({})) {}
  MirroredStrategy Make(const MirroredStrategyOptions& options) {
    auto made = MirroredStrategy::Create(gpu(), options);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  const Context& gpu() const { return *test_.gpu; }

  TestContext test_;
  MirroredStrategy strategy_;
};

TEST_F(MirroredStrategyTest, DefaultsToAllLogicalGpus) {
  EXPECT_THAT(strategy_.devices(), ElementsAre(kGpu0, kGpu1));
  EXPECT_EQ(Make({.devices = {"GPU:1", "/CPU:0"}}).devices().front(), kGpu1);
  EXPECT_THAT(
      std::string(MirroredStrategy::Create(gpu(), {.devices = {"GPU:0", "/gpu:0"}}).status().message()),
      StartsWith("No duplicates allowed in `devices` argument: ('/job:localhost"));
  EXPECT_THAT(std::string(MirroredStrategy::Create(gpu(), {.devices = {"GPU:9"}}).status().message()),
              HasSubstr("GPU:9 unknown device."));
}

TEST_F(MirroredStrategyTest, EachReplicaRunsOnItsDeviceInAThreadOfItsOwn) {
  std::vector<std::thread::id> threads(2);
  std::vector<std::string> devices(2);
  ASSERT_TRUE(strategy_
                  .Run([&](Replica& replica) -> absl::Status {
                    const auto id = static_cast<std::size_t>(replica.id());
                    threads[id] = std::this_thread::get_id();
                    devices[id] = Must(gpu().Constant<float>({1})).device();
                    EXPECT_EQ(replica.device(), devices[id]);
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_THAT(devices, ElementsAre(kGpu0, kGpu1));
  EXPECT_NE(threads[0], threads[1]);
}

TEST_F(MirroredStrategyTest, SplitsRowsEvenlyLargerPartsFirstAndGathersThemBack) {
  const Tensor batch = Numbers(gpu(), 7, 2);
  const PerReplica parts = Must(strategy_.Split(batch));
  EXPECT_EQ(parts[0].shape(), (Shape{4, 2}));
  EXPECT_EQ(parts[1].shape(), (Shape{3, 2}));
  EXPECT_EQ(parts[1].device(), kGpu1);
  EXPECT_EQ(Must(Must(strategy_.Gather(parts)).ToVector<float>()), Must(batch.ToVector<float>()));
  EXPECT_THAT(std::string(strategy_.Split(Numbers(gpu(), 1, 2)).status().message()),
              HasSubstr("fewer rows than the 2 replicas"));
  EXPECT_FALSE(strategy_.Split(Tensor()).ok());
}

TEST_F(MirroredStrategyTest, ReducesAndBroadcasts) {
  const PerReplica values({Numbers(gpu(), 1, 3), Numbers(gpu(), 1, 3, 10)});
  EXPECT_THAT(Must(Must(strategy_.Reduce(ReduceOp::kSum, values)).ToVector<float>()),
              ElementsAre(10, 12, 14));
  EXPECT_THAT(Must(Must(strategy_.Reduce(ReduceOp::kMean, values)).ToVector<float>()), ElementsAre(5, 6, 7));
  const PerReplica everywhere = Must(strategy_.Broadcast(values[0]));
  EXPECT_EQ(everywhere[1].device(), kGpu1);
  EXPECT_THAT(std::string(strategy_.Reduce(ReduceOp::kSum, PerReplica()).status().message()),
              HasSubstr("got 0"));
}

// Both ways to add, and the trials that choose between them; the sums have the same bits each time.
TEST_F(MirroredStrategyTest, AllReduceAddsInTheOrderOfReplicasHoweverItIsDone) {
  for (const std::int64_t elements : {0, 1, 3, 40'000}) {
    std::vector<std::vector<float>> sums;
    for (int step = 0; step < 6; ++step) {
      PerReplica sum;
      std::vector<Tensor> results(2);
      const absl::Status status = strategy_.Run([&](Replica& replica) -> absl::Status {
        const Tensor mine = Numbers(gpu(), 1, elements, replica.id() == 0 ? 0.1F : 1000.7F);
        auto reduced = replica.AllReduce(ReduceOp::kSum, mine);
        if (!reduced.ok()) return reduced.status();
        EXPECT_EQ(reduced->device(), replica.device());
        results[static_cast<std::size_t>(replica.id())] = *reduced;
        return absl::OkStatus();
      });
      ASSERT_TRUE(status.ok()) << status;
      sums.push_back(Must(results[0].ToVector<float>()));
      EXPECT_EQ(sums.back(), Must(results[1].ToVector<float>()));
      EXPECT_EQ(sums.back(), sums.front());
    }
    if (elements > 0) {
      EXPECT_EQ(sums.front().back(),
                static_cast<float>(elements - 1) + 0.1F + (1000.7F + static_cast<float>(elements - 1)));
    }
  }
}

TEST_F(MirroredStrategyTest, AReductionMovesEachByteOnceInAndOnceOut) {
  const Context::CopyCount before = gpu().CopyCounts();
  ASSERT_TRUE(strategy_
                  .Run([&](Replica& replica) {
                    return replica.AllReduce(ReduceOp::kSum, Numbers(gpu(), 1, 40'000)).status();
                  })
                  .ok());
  EXPECT_EQ(gpu().CopyCounts().bytes - before.bytes, Bytes(2 * 40'000 * sizeof(float)));
}

TEST_F(MirroredStrategyTest, TheErrorOfOneReplicaEndsTheStepOfAllAndNamesIt) {
  const absl::Status status = strategy_.Run([&](Replica& replica) -> absl::Status {
    if (replica.id() == 1) {  // far beyond the limit
      auto huge = Fill(Shape{1 << 30}, Must(gpu().Constant<float>({1})));
      EXPECT_FALSE(huge.ok());
      return huge.status();
    }
    EXPECT_FALSE(replica.AllReduce(ReduceOp::kSum, Numbers(gpu(), 1, 3)).ok());
    return absl::InternalError("what replica 0 made of it");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), StartsWith(std::string("replica 1 (") + kGpu1 + "): OOM"));
  EXPECT_TRUE(GetRefusal(status).has_value());
  // The next step runs as if nothing had been.
  EXPECT_TRUE(strategy_
                  .Run([&](Replica& replica) {
                    return replica.AllReduce(ReduceOp::kSum, Numbers(gpu(), 1, 3)).status();
                  })
                  .ok());
}

TEST_F(MirroredStrategyTest, ReplicasThatDoNotDoTheSameAreAnErrorAndNoWait) {
  const auto run = [&](auto step) { return std::string(strategy_.Run(step).message()); };
  EXPECT_THAT(run([&](Replica& replica) {
                return replica.AllReduce(ReduceOp::kSum, Numbers(gpu(), 1, 2 + replica.id())).status();
              }),
              HasSubstr("AllReduce of tensor #0: it is float[1,2] on replica 0 and float[1,3] on replica 1"));
  EXPECT_THAT(run([&](Replica& replica) -> absl::Status {
                if (replica.id() == 1) return absl::OkStatus();
                return replica.AllReduce(ReduceOp::kSum, Numbers(gpu(), 1, 2)).status();
              }),
              HasSubstr("every replica calls AllReduce equally often"));
  EXPECT_THAT(run([&](Replica& replica) {
                const std::vector<Tensor> tensors(static_cast<std::size_t>(replica.id()) + 1,
                                                  Numbers(gpu(), 1, 1));
                return replica.AllReduce(ReduceOp::kSum, tensors).status();
              }),
              HasSubstr("AllReduce of 1 tensors on replica 0 and of 2 on replica 1"));
  EXPECT_THAT(run([&](Replica&) { return strategy_.Run([](Replica&) { return absl::OkStatus(); }); }),
              HasSubstr("within a step"));
}

TEST_F(MirroredStrategyTest, AReplicaThatIsNotThereHasNoValue) {
  const PerReplica values = Must(strategy_.Broadcast(Numbers(gpu(), 1, 2)));
  const MirroredVariable variable = Must(strategy_.Variable(Numbers(gpu(), 1, 2)));
  for (const int replica : {-1, 2, 1 << 30}) {
    EXPECT_FALSE(values[replica].has_value()) << replica;
    EXPECT_FALSE(variable.value(replica).has_value()) << replica;
  }
  EXPECT_TRUE(values[1].has_value());
  EXPECT_FALSE(PerReplica()[0].has_value());
  EXPECT_FALSE(MirroredVariable().value(0).has_value());
}

TEST_F(MirroredStrategyTest, AStepOfAnotherStrategyIsRefusedByAnSgd) {
  const MirroredStrategy one = Make({.devices = {"GPU:0"}});
  Sgd sgd(one, {});
  MirroredVariable variable = Must(strategy_.Variable(Numbers(gpu(), 1, 2)));
  const absl::Status status = strategy_.Run([&](Replica& replica) {
    EXPECT_EQ(replica.LossWeight(PerReplica()), 0);
    MirroredVariable* const variables[] = {&variable};
    const Tensor gradients[] = {Numbers(gpu(), 1, 2)};
    return replica.id() == 0 ? absl::OkStatus() : sgd.Apply(replica, variables, gradients);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("made for a MirroredStrategy of 1 replicas"));
}

TEST_F(MirroredStrategyTest, VariablesBelongToTheirStrategy) {
  const MirroredStrategy other = Make({});
  MirroredVariable foreign = Must(other.Variable(Numbers(gpu(), 1, 2)));
  MirroredVariable own = Must(strategy_.Variable(Numbers(gpu(), 1, 2)));
  EXPECT_EQ(own.value(1).device(), kGpu1);
  const absl::Status status = strategy_.Run([&](Replica& replica) -> absl::Status {
    EXPECT_THAT(std::string(replica.Read(foreign).status().message()), HasSubstr("another MirroredStrategy"));
    EXPECT_FALSE(replica.Read(MirroredVariable()).ok());
    EXPECT_THAT(std::string(replica.Assign(own, Numbers(gpu(), 1, 3)).message()),
                HasSubstr("a variable of float[1,2] cannot be assigned float[1,3]"));
    return replica.Assign(own, Numbers(gpu(), 1, 2, 5));
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(Must(own.value(1).ToVector<float>()), ElementsAre(5, 6));
}

TEST_F(MirroredStrategyTest, StepsOfTwoThreadsRunOneAfterTheOther) {
  std::atomic<int> inside{0};
  const auto many = [&] {
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(strategy_
                      .Run([&](Replica& replica) {
                        EXPECT_LE(++inside, 2);
                        const auto sum = replica.AllReduce(ReduceOp::kSum, Numbers(gpu(), 1, 1, 1));
                        --inside;
                        return sum.status();
                      })
                      .ok());
    }
  };
  std::thread other(many);
  many();
  other.join();
}

TEST_F(MirroredStrategyTest, AClosedContextIsAnErrorOfTheStep) {
  ASSERT_TRUE(test_.gpu->Close().ok());
  EXPECT_EQ(strategy_.Run([&](Replica&) { return gpu().Constant<float>({1}).status(); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

/// One step of w * x + b with mse, from w = b = 0: the summed gradients of w and b.
std::vector<float> UnevenGradients(const Context& gpu, const MirroredStrategy& strategy) {
  const PerReplica x = Must(strategy.Split(Must(gpu.Constant<float>({{1.F}, {2.F}, {3.F}}))));
  const PerReplica y = Must(strategy.Split(Must(gpu.Constant<float>({{3.F}, {5.F}, {7.F}}))));
  std::vector<float> gradients;
  const absl::Status status = strategy.Run([&](Replica& replica) -> absl::Status {
    const Tensor w = Must(Zeros(gpu, Shape{1, 1}));
    const Tensor b = Must(Zeros(gpu, Shape{1}));
    const Tensor& input = x[replica.id()];
    const Loss loss =
        Must(MeanSquaredError(gpu, Must(Dense(input, w, b)), y[replica.id()], replica.LossWeight(x)));
    const DenseGradients own = Must(DenseGrad(input, w, loss.gradient));
    const auto sums = Must(replica.AllReduce(ReduceOp::kSum, std::vector<Tensor>{own.kernel, own.bias}));
    if (replica.id() == 0) {
      gradients = {Must(sums[0].ToVector<float>())[0], Must(sums[1].ToVector<float>())[0]};
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return gradients;
}

TEST_F(MirroredStrategyTest, AnUnevenBatchCountsByItsRows) {
  const auto gradients = UnevenGradients(gpu(), strategy_);
  EXPECT_FLOAT_EQ(gradients[0], -68.0F / 3);  // as one device has it
  EXPECT_FLOAT_EQ(gradients[1], -10);
}

class StrictMirroredStrategyTest : public MirroredStrategyTest {
 protected:
  StrictMirroredStrategyTest() : MirroredStrategyTest({.strict = true}) {}
};

TEST_F(StrictMirroredStrategyTest, AnUnevenBatchCountsByReplicasAsInTensorFlow) {
  EXPECT_FLOAT_EQ(UnevenGradients(gpu(), strategy_)[0], -27.5);
  EXPECT_FLOAT_EQ(UnevenGradients(gpu(), Make({.tensorflow_weights = false}))[0], -68.0F / 3);
}

TEST_F(MirroredStrategyTest, SgdWithMomentumMovesAllCopiesAlike) {
  MirroredVariable w = Must(strategy_.Variable(Must(gpu().Constant<float>({1, 2}))));
  Sgd sgd(strategy_, {.learning_rate = 0.5, .momentum = 0.25});
  for (int step = 0; step < 2; ++step) {
    const absl::Status status = strategy_.Run([&](Replica& replica) -> absl::Status {
      const Tensor gradient = Must(gpu().Constant<float>({2, 4}));
      MirroredVariable* const variables[] = {&w};
      EXPECT_FALSE(sgd.Apply(replica, variables, {}).ok());
      return sgd.Apply(replica, variables, {&gradient, 1});
    });
    ASSERT_TRUE(status.ok()) << status;
  }
  // v = -1, then -0.25 - 1; of the second twice that.
  for (const int replica : {0, 1}) {
    EXPECT_THAT(Must(w.value(replica).ToVector<float>()), ElementsAre(-1.25F, -2.5F));
  }
}

}  // namespace
}  // namespace lgpu
