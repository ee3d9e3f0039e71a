#include "cli/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lgpu::cli {
namespace {

using ::testing::HasSubstr;

constexpr char kGpu1[] = "/job:localhost/replica:0/task:0/device:GPU:1";

PlacementExplanation Explained(const ExplainFlags& flags) {
  const absl::StatusOr<PlacementExplanation> explanation = ExplainFlagsOf(flags);
  EXPECT_TRUE(explanation.ok()) << explanation.status();
  return explanation.value_or(PlacementExplanation());
}
std::string Error(const ExplainFlags& flags) {
  const absl::Status status = ExplainFlagsOf(flags).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ExplainCommandTest, AnOpWithoutInputsIsExplainedForItsDtype) {
  const PlacementExplanation on_gpu = Explained({.op = "MatMul", .device = "gpu:1", .gpus = 2});
  EXPECT_EQ(on_gpu.device, kGpu1);
  EXPECT_TRUE(on_gpu.copies.empty());
  const PlacementExplanation whole =
      Explained({.op = "MatMul", .dtype = "int32", .device = "gpu:1", .gpus = 2});
  EXPECT_THAT(whole.device, HasSubstr("CPU:0"));
  EXPECT_TRUE(whole.soft_placed);
  EXPECT_EQ(Explained({.op = "Cast", .device = "GPU:1", .cast_on_gpu = true, .gpus = 2}).device, kGpu1);
}

TEST(ExplainCommandTest, InputsMayLieAnywhere) {
  const PlacementExplanation why = Explained(
      {.op = "MatMul", .inputs = {"float[2,3]@GPU:0", "float32[3,4]@GPU:1"}, .device = "/GPU:1", .gpus = 2});
  EXPECT_EQ(why.device, kGpu1);
  ASSERT_EQ(why.copies.size(), 1U);
  EXPECT_EQ(why.copies[0].bytes, Bytes(24));
  const PlacementExplanation wrong = Explained({.op = "MatMul", .inputs = {"float[2,3]", "float[2,3]"}});
  EXPECT_THAT(std::string(wrong.status.message()), HasSubstr("Matrix size-incompatible"));
}

TEST(ExplainCommandTest, CastIsOnGpusWhereThatIsAskedFor) {
  EXPECT_THAT(Explained({.op = "Cast"}).device, HasSubstr("CPU:0"));
  EXPECT_THAT(Explained({.op = "Cast", .cast_on_gpu = true}).device, HasSubstr("GPU:0"));
}

TEST(ExplainCommandTest, OpsMayStayWhereTheirInputsAre) {
  EXPECT_EQ(Explained({.op = "Shape", .inputs = {"float[2]@GPU:1"}, .gpus = 2}).device, kGpu1);
  const ExplainFlags small{.op = "AddN", .inputs = {"int32[2]", "int32[2]"}, .pin_small_ops = true};
  EXPECT_THAT(Explained(small).device, HasSubstr("CPU:0"));
  EXPECT_THAT(Explained(small).candidates.at(1).why, HasSubstr("stay there"));
}

TEST(ExplainCommandTest, WrongFlagsAreNamed) {
  EXPECT_THAT(Error({.op = "Conv2D"}), HasSubstr("there are: MatMul"));
  EXPECT_THAT(Error({.op = "MatMul", .dtype = "string"}), HasSubstr("there is no dtype \"string\""));
  EXPECT_THAT(Error({.op = "MatMul", .policy = "loud"}),
              HasSubstr("Invalid argument `device_policy`: 'loud'"));
  for (const char* input : {"float", "float[", "float[x]", "float[2,]x", "[2]"}) {
    EXPECT_NE(Error({.op = "AddN", .inputs = {input}}), "") << input;
  }
  EXPECT_THAT(Error({.op = "AddN", .inputs = {"float[2]@GPU:5"}}), HasSubstr("unknown device."));
}

TEST(ExplainCommandTest, JsonHasEverything) {
  const nlohmann::json json = ToJson(
      Explained({.op = "AddN", .inputs = {"float[2]@CPU:0", "float[2]"}, .policy = "warn", .gpus = 1}));
  EXPECT_EQ(json["schema"], "lgpu.explanation/v1");
  EXPECT_EQ(json["candidates"].size(), 2U);
  EXPECT_EQ(json["candidates"][0]["taken"], true);
  EXPECT_EQ(json["copies"].size(), 2U);
  EXPECT_THAT(std::string(json["copies"][1]["note"]), HasSubstr("before computing AddN input #1"));
  EXPECT_FALSE(json.contains("error"));
  const nlohmann::json failed = ToJson(Explained({.op = "MatMul", .device = "GPU:7", .soft = false}));
  EXPECT_EQ(failed["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(failed["device"], "");
}

}  // namespace
}  // namespace lgpu::cli
