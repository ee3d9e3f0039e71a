#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/config_words.h"
#include "kernels/text.h"
#include "tests/client/context_testing.h"
#include "tests/support/cases.h"

namespace lgpu {
namespace {

using testing::FakeLeaseOptions;
using ::testing::HasSubstr;
using testing::TestContext;

constexpr std::string_view kTask = "/job:localhost/replica:0/task:0/device:";

std::vector<std::string> Split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + separator.size();
  }
}

std::string Expanded(const std::string& text) {
  std::string expanded;
  for (const char c : text) expanded += c == '@' ? std::string(kTask) : std::string(1, c == '|' ? '\n' : c);
  return expanded;
}

DType DTypeCalled(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64}) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return DType::kInvalid;
}

/// "1,2,3", or "1*" for `count` times the same.
template <typename T>
std::vector<T> Values(const std::string& text, std::size_t count) {
  if (text.ends_with('*')) return std::vector<T>(count, static_cast<T>(std::stod(text)));
  std::vector<T> values;
  for (const std::string& value : Split(text, ",")) values.push_back(static_cast<T>(std::stod(value)));
  return values;
}

FakeLeaseOptions LeaseOf(const testing::Case& row) {
  const int gpus = std::stoi(row[1]);
  const bool cards = row[2].find("cards") != std::string::npos;
  return cards ? FakeLeaseOptions{.cards = gpus, .devices_per_card = 1}
               : FakeLeaseOptions{.devices_per_card = gpus};
}

ContextOptions OptionsOf(const testing::Case& row) {
  ContextOptions options;
  if (row[2].find("graph") != std::string::npos) options.placement_log_format = PlacementLogFormat::kGraph;
  options.pin_small_ops = row[2].find("pin") != std::string::npos;
  return options;
}

internal::RuntimeOptions RuntimeOf(const testing::Case& row) {
  return {.cpu_count = row[2].find("cpus") != std::string::npos ? 2 : 1,
          .strict = row[2].find("strict") != std::string::npos};
}

/// A Context, the tensors that a row names, and the state of the row's earlier commands.
class Script {
 public:
  explicit Script(const testing::Case& row) : test_(LeaseOf(row), OptionsOf(row), RuntimeOf(row)) {}
  ~Script() {
    while (!scopes_.empty()) scopes_.pop_back();  // the innermost first
  }

  void Run(const std::string& step) {
    const std::size_t failing = step.find(" ! ");
    std::istringstream in(step.substr(0, failing));
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    if (words.size() < 2 || words[1] != "=") return Call(words, step);
    const absl::StatusOr<Tensor> made = Make({words.begin() + 2, words.end()});
    if (failing == std::string::npos) {
      ASSERT_TRUE(made.ok()) << made.status();
      tensors_.insert_or_assign(words[0], *made);
      return;
    }
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(Expanded(step.substr(failing + 3))));
  }

 private:
  absl::StatusOr<Tensor> Make(const std::vector<std::string>& words) {
    const std::string& op = words[0];
    if (op == "const") return Constant(words);
    std::vector<Tensor> inputs;
    for (std::size_t i = 1; i < words.size() && tensors_.contains(words[i]); ++i) {
      inputs.push_back(tensors_.at(words[i]));
    }
    if (op == "AddN") return AddN(inputs);
    EXPECT_FALSE(inputs.empty());
    if (op == "MatMul") return MatMul(inputs.at(0), inputs.at(1));
    if (op == "MatMulT") return MatMul(inputs.at(0), inputs.at(1), {.transpose_a = true});
    if (op == "Cast") return Cast(inputs.at(0), DTypeCalled(words.at(2)));
    if (op == "Copy") return CopyToDevice(inputs.at(0), words.at(2));
    if (op == "Shape") return ShapeOf(inputs.at(0));
    if (op == "Size") return SizeOf(inputs.at(0));
    if (op == "Rank") return RankOf(inputs.at(0));
    EXPECT_EQ(op, "Identity");
    return Identity(inputs.at(0));
  }

  absl::StatusOr<Tensor> Constant(const std::vector<std::string>& words) {
    std::vector<std::int64_t> dimensions;
    for (const std::string& dimension : Split(words.at(2), ",")) dimensions.push_back(std::stoll(dimension));
    const Shape shape = Shape::Make(dimensions).value();
    const auto make = [&]<typename T>(T) {
      const auto values = Values<T>(words.at(3), static_cast<std::size_t>(shape.elements()));
      return test_.gpu->Constant<T>(shape, values);
    };
    if (words.at(1) == "float") return make(0.0F);
    return words[1] == "int32" ? make(std::int32_t{0}) : make(std::int64_t{0});
  }

  void Call(const std::vector<std::string>& words, const std::string& step) {
    const Context& gpu = *test_.gpu;
    const std::string rest = step.substr(std::min(words[0].size() + 1, step.size()));
    if (words[0] == "on" || words[0] == "out") {
      while (!scopes_.empty()) {
        scopes_.pop_back();
        if (words[0] == "out") return;
      }
      if (rest != "-") scopes_.push_back(std::make_unique<DeviceScope>(gpu, rest));
    } else if (words[0] == "in" && rest == "None") {
      scopes_.push_back(std::make_unique<DeviceScope>(gpu, std::nullopt));
    } else if (words[0] == "in") {
      scopes_.push_back(std::make_unique<DeviceScope>(gpu, rest == "''" ? "" : rest));
    } else if (words[0] == "policy") {
      policy_.reset();
      policy_.emplace(gpu, ParseDevicePolicy(rest).value());
    } else if (words[0] == "placement") {
      gpu.SetSoftDevicePlacement(rest == "soft");
    } else if (words[0] == "log") {
      gpu.SetLogDevicePlacement(rest == "on");
    } else if (words[0] == "delete") {
      ASSERT_EQ(tensors_.erase(rest), 1U);
    } else if (words[0] == "reset") {
      ASSERT_TRUE(gpu.ResetMemoryStats(rest).ok());
      peak_ = Bytes();
    } else {
      Check(words, rest);
    }
  }

  void Check(const std::vector<std::string>& words, const std::string& rest) {
    const Context& gpu = *test_.gpu;
    if (words[0] == "is") {
      Is(tensors_.at(words.at(1)), words.at(2), words.at(3));
    } else if (words[0] == "copies") {
      const std::uint64_t copies = gpu.CopyCounts().copies;
      EXPECT_EQ(copies - std::exchange(copies_, copies), std::stoull(rest));
    } else if (words[0] == "line") {
      ASSERT_FALSE(test_.lines->empty());
      EXPECT_EQ(test_.lines->back(), Expanded(rest));
    } else if (words[0] == "lines") {
      const std::size_t lines = test_.lines->size();
      EXPECT_EQ(lines - std::exchange(lines_, lines), std::stoull(rest));
    } else if (words[0] == "mapping") {
      EXPECT_THAT(gpu.DeviceMapping(), HasSubstr(Expanded(rest)));
    } else if (words[0] == "ops") {
      for (const Context::OpCount& count : gpu.OpCounts()) {
        if (count.device != Cat(kTask, words.at(1))) continue;
        EXPECT_EQ(count.ops, std::stoull(words.at(2)));
        EXPECT_EQ(count.soft_placed, std::stoull(words.at(3)));
      }
    } else {
      ASSERT_EQ(words[0], "memory");
      const MemoryInfo info = testing::Must(gpu.GetMemoryInfo(rest));
      EXPECT_GE(info.peak, info.current);
      EXPECT_GE(info.peak, peak_);
      peak_ = info.peak;
    }
  }

  static void Is(const Tensor& tensor, const std::string& device, const std::string& expected) {
    EXPECT_EQ(tensor.device(), Cat(kTask, device));
    const auto count = static_cast<std::size_t>(tensor.shape().elements());
    if (tensor.dtype() == DType::kFloat32) {
      EXPECT_EQ(testing::Must(tensor.ToVector<float>()), Values<float>(expected, count));
    } else if (tensor.dtype() == DType::kInt32) {
      EXPECT_EQ(testing::Must(tensor.ToVector<std::int32_t>()), Values<std::int32_t>(expected, count));
    } else {
      EXPECT_EQ(testing::Must(tensor.ToVector<std::int64_t>()), Values<std::int64_t>(expected, count));
    }
  }

  TestContext test_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::unique_ptr<DeviceScope>> scopes_;
  std::optional<DevicePolicyScope> policy_;
  std::uint64_t copies_ = 0;
  std::size_t lines_ = 0;
  Bytes peak_;
};

TEST(RuntimeCasesTest, AContextFollowsTheTable) {
  const std::vector<testing::Case> cases = testing::ReadCases("runtime.tsv");
  ASSERT_GT(cases.size(), 20U);
  for (const testing::Case& row : cases) {
    Script script(row);
    for (const std::string& step : Split(row[3], " ; ")) {
      SCOPED_TRACE(row.where + ": " + step);
      ASSERT_NO_FATAL_FAILURE(script.Run(step));
    }
  }
}

}  // namespace
}  // namespace lgpu
