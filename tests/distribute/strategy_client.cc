// One of several processes of a MirroredStrategy: it reads commands from stdin and answers each with a line.

#include <lgpu/lgpu.h>
#include <lgpu/mirrored_strategy.h>
#include <lgpu/training.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace lgpu;
using Words = std::vector<std::string>;

constexpr std::int64_t kInputs = 6;
constexpr std::int64_t kUnits = 4;

std::string Error(const absl::Status& status) {
  std::string line = "error " + absl::StatusCodeToString(status.code()) + " ";
  for (const char c : std::string(status.message())) line += c == '\n' ? ' ' : c;
  return line;
}

/// Numbers that look random and are the same everywhere.
std::vector<float> Numbers(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525U + 1013904223U;
    values.push_back(static_cast<float>(seed >> 8U) * 0x1p-24F - 0.5F);
  }
  return values;
}

class Client {
 public:
  std::string Do(const Words& words) {
    if (words[0] == "open") return Open(words);
    if (words[0] == "train") return Train(words);
    if (words[0] == "sum") return Sum(std::stoi(words.at(1)));
    if (words[0] == "fail") return Fail();
    return "error no such command";
  }

 private:
  // open RANK COUNT MEETING TIMEOUT_MS
  std::string Open(const Words& words) {
    if (!context_) {
      absl::StatusOr<Context> context = Context::Create({.allocation_timeout = std::chrono::milliseconds(0)});
      if (!context.ok()) return Error(context.status());
      context_.emplace(*std::move(context));
    }
    MirroredProcesses processes{.rank = std::stoi(words.at(1)),
                                .count = std::stoi(words.at(2)),
                                .meeting = words.at(3),
                                .timeout = std::chrono::milliseconds(std::stoi(words.at(4)))};
    absl::StatusOr<MirroredStrategy> strategy = MirroredStrategy::Create(*context_, {.processes = processes});
    if (!strategy.ok()) return Error(strategy.status());
    strategy_.emplace(*std::move(strategy));
    rank_ = processes.rank;
    return "ok " + std::to_string(strategy_->replicas());
  }

  absl::StatusOr<Tensor> Constant(const Shape& shape, std::uint32_t seed) const {
    const std::vector<float> values = Numbers(shape.elements(), seed);
    const DeviceScope cpu(*context_, "/CPU:0");
    return context_->Constant<float>(shape, std::span<const float>(values));
  }

  /// Suspends the process's Context, where ops fail then, and resumes it.
  absl::Status SuspendAndResume(const Tensor& tensor) const {
    LGPU_RETURN_IF_ERROR(context_->Suspend());
    const absl::Status op = AddN({tensor, tensor}).status();
    if (!absl::IsFailedPrecondition(op)) return absl::InternalError("an op ran in a suspended Context");
    return context_->Resume();
  }

  absl::StatusOr<std::string> TrainOrError(int steps, int rows, int suspended_before) const {
    // Each process makes another kernel: the one of process 0 counts.
    LGPU_ASSIGN_OR_RETURN(const Tensor kernel, Constant(Shape{kInputs, kUnits}, 7 + 100U * rank_));
    LGPU_ASSIGN_OR_RETURN(const Tensor bias, Constant(Shape{kUnits}, 8));
    LGPU_ASSIGN_OR_RETURN(MirroredVariable w, strategy_->Variable(kernel));
    LGPU_ASSIGN_OR_RETURN(MirroredVariable b, strategy_->Variable(bias));
    Sgd sgd(*strategy_, {.learning_rate = 0.1, .momentum = 0.5});
    for (int step = 0; step < steps; ++step) {
      const auto seed = 1000U + 2 * static_cast<std::uint32_t>(step);
      LGPU_ASSIGN_OR_RETURN(const Tensor x, Constant(Shape{rows, kInputs}, seed));
      LGPU_ASSIGN_OR_RETURN(const Tensor y, Constant(Shape{rows, kUnits}, seed + 1));
      LGPU_ASSIGN_OR_RETURN(const PerReplica xs, strategy_->Split(x));
      LGPU_ASSIGN_OR_RETURN(const PerReplica ys, strategy_->Split(y));
      if (step == suspended_before) LGPU_RETURN_IF_ERROR(SuspendAndResume(w.value(0)));
      LGPU_RETURN_IF_ERROR(strategy_->Run([&](Replica& replica) -> absl::Status {
        LGPU_ASSIGN_OR_RETURN(const Tensor here, replica.Read(w));
        LGPU_ASSIGN_OR_RETURN(const Tensor there, replica.Read(b));
        LGPU_ASSIGN_OR_RETURN(const Tensor predictions, Dense(xs[replica.id()], here, there));
        LGPU_ASSIGN_OR_RETURN(const Loss loss, MeanSquaredError(*context_, predictions, ys[replica.id()],
                                                                replica.LossWeight(xs)));
        LGPU_ASSIGN_OR_RETURN(const DenseGradients own, DenseGrad(xs[replica.id()], here, loss.gradient));
        LGPU_ASSIGN_OR_RETURN(const std::vector<Tensor> sums,
                              replica.AllReduce(ReduceOp::kSum, std::vector<Tensor>{own.kernel, own.bias}));
        MirroredVariable* const variables[] = {&w, &b};
        return sgd.Apply(replica, variables, sums);
      }));
    }
    std::string line = "ok";
    for (const Tensor& tensor : {w.value(0), b.value(0)}) {
      LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, tensor.ToVector<float>());
      for (const float value : values) {
        char text[40];
        (void)std::snprintf(text, sizeof(text), " %a", static_cast<double>(value));
        line += text;
      }
    }
    return line;
  }
  // train STEPS ROWS [STEP]: suspends the Context before that step, for a moment.
  std::string Train(const Words& words) const {
    const int suspended_before = words.size() > 3 ? std::stoi(words[3]) : -1;
    const absl::StatusOr<std::string> line =
        TrainOrError(std::stoi(words.at(1)), std::stoi(words.at(2)), suspended_before);
    return line.ok() ? *line : Error(line.status());
  }

  // sum ELEMENTS: of ones, over all replicas.
  std::string Sum(int elements) const {
    float sum = 0;
    const absl::Status status = strategy_->Run([&](Replica& replica) -> absl::Status {
      LGPU_ASSIGN_OR_RETURN(const Tensor ones, context_->Fill<float>(Shape{elements}, 1.0F));
      LGPU_ASSIGN_OR_RETURN(const Tensor all, replica.AllReduce(ReduceOp::kSum, ones));
      if (replica.id() > 0) return absl::OkStatus();
      LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, all.ToVector<float>());
      for (const float value : values) sum += value;
      return absl::OkStatus();
    });
    return status.ok() ? "ok " + std::to_string(static_cast<int>(sum)) : Error(status);
  }

  // A step whose last replica asks for more than its limit.
  std::string Fail() const {
    const absl::Status status = strategy_->Run([&](Replica& replica) -> absl::Status {
      if (replica.id() + 1 == static_cast<int>(strategy_->devices().size())) {
        LGPU_RETURN_IF_ERROR(context_->Fill<float>(Shape{1 << 28}, 1.0F).status());
      }
      LGPU_ASSIGN_OR_RETURN(const Tensor ones, context_->Fill<float>(Shape{3}, 1.0F));
      return replica.AllReduce(ReduceOp::kSum, ones).status();
    });
    return status.ok() ? "ok" : Error(status);
  }

  std::optional<Context> context_;
  std::optional<MirroredStrategy> strategy_;
  int rank_ = 0;
};

}  // namespace

int main() {
  Client client;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    Words words;
    for (std::string word; in >> word;) words.push_back(word);
    if (words.empty() || words[0] == "exit") return 0;
    std::cout << client.Do(words) << std::endl;
  }
  return 0;
}
