#include <algorithm>
#include <sstream>

#include "client/runtime/placer.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/text.h"
#include "tests/client/context_testing.h"
#include "tests/support/cases.h"

namespace lgpu::internal {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kTask = "/job:localhost/replica:0/task:0/device:";

DType TypeCalled(const std::string& name) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64, DType::kFloat16, DType::kBFloat16}) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return DType::kInvalid;
}

std::string Expanded(const std::string& text) {
  std::string expanded;
  for (const char c : text) {
    if (c == '@') {
      expanded += kTask;
    } else {
      expanded += c == '|' ? '\n' : c;
    }
  }
  return expanded;
}

TEST(PlacementCasesTest, OpsArePlacedAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("placement.tsv");
  ASSERT_GT(cases.size(), 45U);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where);
    const Op* op = FindOp(row[2]);
    ASSERT_NE(op, nullptr);
    const DType dtype = TypeCalled(row[3]);
    KernelRegistry registry = row[4] == "standard" ? KernelRegistry::WithoutCode({}) : KernelRegistry();
    std::istringstream kernels(row[4] == "standard" ? "" : row[4]);
    for (std::string kernel; kernels >> kernel && kernel != "-";) {
      const DeviceType type = kernel[0] == 'g' ? DeviceType::kGpu : DeviceType::kCpu;
      registry.Add({op, type, dtype, std::stoi(kernel.substr(1)), RunIdentity});
    }
    const Placer placer(registry, std::stoi(row[1]));
    const DeviceRequest request = placer.Resolve(row[5]);
    const DeviceRequest* const asked = row[5] == "-" ? nullptr : &request;
    absl::StatusOr<Placement> placed = placer.Place(*op, dtype, asked, row[6].substr(0, 4) == "soft");
    if (!placed.ok() && row[6].ends_with(" graph")) placed = placer.GraphError(*op, dtype, asked, "var");
    const std::string expected = Expanded(row[7]);
    if (expected.rfind("error ", 0) != 0) {
      ASSERT_TRUE(placed.ok()) << placed.status();
      EXPECT_EQ(ToString(placer.NameOf(placed->device)) + (placed->soft_placed ? " soft" : ""),
                std::string(kTask) + expected);
      continue;
    }
    EXPECT_EQ(static_cast<int>(placed.status().code()), expected[6] - '0');
    EXPECT_THAT(std::string(placed.status().message()), HasSubstr(expected.substr(8)));
  }
}

}  // namespace
}  // namespace lgpu::internal
