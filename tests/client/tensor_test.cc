#include "lgpu/tensor.h"

#include <sstream>

#include "tests/client/context_testing.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;
using testing::Must;
using testing::TestContext;

std::string Print(const Tensor& tensor) {
  std::ostringstream out;
  out << tensor;
  return out.str();
}

TEST(TensorTest, NothingAnswersWithNothing) {
  const Tensor nothing;
  EXPECT_FALSE(nothing.has_value());
  EXPECT_EQ(nothing.dtype(), DType::kInvalid);
  EXPECT_EQ(nothing.shape().elements(), 0);
  EXPECT_EQ(nothing.device(), "");
  EXPECT_EQ(nothing.ToVector<float>().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Print(nothing), HasSubstr("no value"));
}

TEST(TensorTest, ReadsNeedTheRightTypeAndSize) {
  const TestContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({1, 2}));
  EXPECT_THAT(std::string(tensor.ToVector<double>().status().message()),
              HasSubstr("the tensor holds float, not double"));
  float values[2];
  EXPECT_TRUE(tensor.CopyToHost(values, sizeof values).ok());
  EXPECT_EQ(values[1], 2);
  EXPECT_EQ(tensor.CopyToHost(values, 4).code(), absl::StatusCode::kInvalidArgument);
}

TEST(TensorTest, SpansGoInAndOut) {
  const TestContext test;
  const std::vector<float> values = {1, 2, 3};
  const Tensor tensor = Must(test.gpu->Constant<float>(std::span<const float>(values).first(2)));
  EXPECT_EQ(tensor.shape(), Shape({2}));
  std::vector<float> read(4, 7);
  EXPECT_TRUE(tensor.CopyToHost(std::span<float>(read).subspan(1, 2)).ok());
  EXPECT_THAT(read, ::testing::ElementsAre(7, 1, 2, 7));
  EXPECT_THAT(std::string(tensor.CopyToHost<float>(read).message()),
              HasSubstr("has 8 bytes; the buffer has 16"));
  std::vector<double> wrong(2);
  EXPECT_THAT(std::string(tensor.CopyToHost<double>(wrong).message()),
              HasSubstr("the tensor holds float, not double"));
}

TEST(TensorTest, CopiesShareOneBlock) {
  const TestContext test;
  Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  const Tensor b = a;
  EXPECT_EQ(Must(test.gpu->GetMemoryStats("GPU:0")).live_blocks, 1U);
  a = Tensor();
  EXPECT_EQ(Must(b.ToVector<float>()).at(1), 2);
}

TEST(TensorTest, PrintsNestedLists) {
  const TestContext test;
  EXPECT_EQ(Print(Must(test.gpu->Constant<float>({{44, 56}, {98, 128.5F}}))), "[[44 56] [98 128.5]]");
  EXPECT_EQ(Print(Must(test.gpu->Constant<std::int64_t>({-7}))), "[-7]");
  EXPECT_EQ(Print(Must(test.gpu->Constant<Half>({FloatToHalf(0.5F)}))), "[0.5]");
  const std::vector<float> one = {3};
  EXPECT_EQ(Print(Must(test.gpu->Constant<float>({}, one))), "3");
  EXPECT_EQ(Print(Must(test.gpu->Constant<float>({2, 0}, std::vector<float>()))), "[[] []]");
}

TEST(TensorTest, PrintsTheEndsOfLongAxes) {
  const TestContext test;
  std::vector<std::int32_t> values(2000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  EXPECT_EQ(Print(Must(test.gpu->Constant<std::int32_t>({2000}, values))), "[0 1 2 ... 1997 1998 1999]");
  EXPECT_EQ(Print(Must(test.gpu->Constant<std::int32_t>({2, 1000}, values))),
            "[[0 1 2 ... 997 998 999] [1000 1001 1002 ... 1997 1998 1999]]");
}

}  // namespace
}  // namespace lgpu
