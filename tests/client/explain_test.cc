#include "client/runtime/explain.h"

#include <map>
#include <random>
#include <thread>

#include "kernels/cpu/cpu_kernels.h"
#include "tests/client/context_testing.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using testing::FakeLeaseOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kCpu0;
using testing::kGpu0;
using testing::kGpu1;
using testing::Must;
using ::testing::StartsWith;
using testing::TestContext;

TEST(ExplainTest, SaysWhyEachDeviceWasTakenOrNot) {
  const TestContext test;
  const Tensor a = Must(test.gpu->Constant<float>({{1, 2}, {3, 4}}));
  const DeviceScope scope(*test.gpu, "/GPU:1");
  const std::vector<Tensor> inputs = {a, a};
  const PlacementExplanation why = Must(test.gpu->Explain("MatMul", inputs));
  EXPECT_TRUE(why.status.ok());
  EXPECT_EQ(why.device, kGpu1);
  EXPECT_FALSE(why.soft_placed);
  EXPECT_EQ(why.ToString(),
            "op MatMul, float, asked for /GPU:1, soft placement on\n"
            "    /job:localhost/replica:0/task:0/device:GPU:0  asked for is /device:GPU:1\n"
            "  * /job:localhost/replica:0/task:0/device:GPU:1  fits /device:GPU:1\n"
            "    /job:localhost/replica:0/task:0/device:CPU:0  asked for is /device:GPU:1\n"
            "  input #0 is copied from /job:localhost/replica:0/task:0/device:GPU:0 (16B)\n"
            "  input #1 is copied from /job:localhost/replica:0/task:0/device:GPU:0 (16B)\n"
            "runs on /job:localhost/replica:0/task:0/device:GPU:1\n");
  EXPECT_EQ(test.gpu->OpCounts().at(1).ops, 0U);  // nothing ran
}

TEST(ExplainTest, SoftPlacementAndFailuresAreExplained) {
  const TestContext test;
  const Tensor whole = Must(test.gpu->Constant<std::int32_t>({{1, 2}, {3, 4}}));
  const std::vector<Tensor> inputs = {whole, whole};
  const DeviceScope scope(*test.gpu, "/GPU:0");
  const PlacementExplanation soft = Must(test.gpu->Explain("MatMul", inputs));
  EXPECT_EQ(soft.device, kCpu0);
  EXPECT_TRUE(soft.soft_placed);
  EXPECT_EQ(soft.candidates.at(0).device, kCpu0);
  EXPECT_EQ(soft.candidates.at(1).why, "no GPU kernel for int32");
  test.gpu->SetSoftDevicePlacement(false);
  const PlacementExplanation hard = Must(test.gpu->Explain("MatMul", inputs));
  EXPECT_EQ(hard.device, "");
  EXPECT_EQ(hard.status, MatMul(whole, whole).status());
  EXPECT_THAT(hard.ToString(), HasSubstr("fails: Could not satisfy device specification"));
  EXPECT_THAT(std::string(test.gpu->Explain("Conv2D", inputs).status().message()),
              HasSubstr("there is no op \"Conv2D\"; there are: MatMul, AddN"));
}

/// The placement that TensorFlow's rules give, said once more: a number of lists, filtered one after another.
struct Restated {
  std::string device;  // empty: it fails
  std::string error;   // a part of the text
  bool soft = false;
};

struct Question {
  const Op* op;
  DType dtype;
  std::map<std::string, int> kernels;  // priority by device type
  int gpus;
  std::string type;  // asked for; empty: any
  int id;            // asked for; -1: any
  std::string job;   // asked for; empty: any
  bool malformed;
  bool soft;
  bool pin;        // small whole numbers stay on the CPU; all inputs are there
  std::string at;  // where the inputs are
};

Restated Restate(const Question& asked) {
  if (asked.malformed) return {"", "Malformed device specification '", false};
  if (asked.kernels.empty()) return {"", "Could not find device for node: {{node ", false};
  std::vector<std::pair<std::string, int>> types(asked.kernels.begin(), asked.kernels.end());
  std::sort(types.begin(), types.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first > b.first;  // "GPU" comes before "CPU"
  });
  const auto pick = [&](const std::string& type, int id) -> std::string {
    for (const auto& [kernel_type, priority] : types) {
      const int count = kernel_type == "GPU" ? asked.gpus : 1;
      if (!type.empty() && type != kernel_type) continue;
      if (id < 0 && count > 0) return kernel_type + ":0";
      if (id >= 0 && id < count) return kernel_type + ":" + std::to_string(id);
    }
    return "";
  };
  const std::size_t colon = asked.at.find(':');
  const std::string at_type = asked.at.substr(0, colon);
  const bool fits_there = (asked.type.empty() || asked.type == at_type) &&
                          (asked.id < 0 || std::to_string(asked.id) == asked.at.substr(colon + 1)) &&
                          (asked.job.empty() || asked.job == "localhost");
  const bool metadata = asked.op == &ShapeOp() || asked.op == &SizeOp() || asked.op == &RankOp();
  const bool pinned =
      asked.pin && asked.dtype == DType::kInt32 && asked.at == "CPU:0" && asked.op != &EagerConstOp();
  if ((metadata || pinned) && fits_there && asked.kernels.contains(at_type)) return {asked.at, "", false};
  const bool here = asked.job.empty() || asked.job == "localhost";
  const std::string exact = here ? pick(asked.type, asked.id) : "";
  if (!exact.empty()) return {exact, "", false};
  const bool constrained = !asked.type.empty() || asked.id >= 0 || !asked.job.empty();
  const std::string fallback = asked.soft && here && constrained ? pick("", -1) : "";
  if (!fallback.empty()) return {fallback, "", true};
  if (asked.op == &EagerConstOp() && !here) return {"", "unknown device.", false};
  return {"", constrained ? "Could not satisfy device specification '" : "No supported device found", false};
}

std::string NameOf(const Question& asked) {
  if (asked.malformed) return "/foo:bar";
  std::string name = asked.job.empty() ? "" : "/job:" + asked.job;
  if (!asked.type.empty() || asked.id >= 0) {
    name += "/device:" + (asked.type.empty() ? "*" : asked.type) +
            (asked.id < 0 ? "" : ":" + std::to_string(asked.id));
  }
  return name;
}

TEST(ExplainTest, RandomKernelsAndRequestsAgreeWithTheRulesSaidOtherwise) {
  const std::uint32_t seed = TestSeed();
  std::mt19937 random(seed);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  int placed = 0;
  const OpAttributes attributes{.cast_to = DType::kFloat64, .axes = {.all = true}};
  for (int round = 0; round < 10000; ++round) {
    Question asked{&AllOps()[random() % AllOps().size()],
                   below(2) ? DType::kFloat32 : DType::kInt32,
                   {},
                   below(13),
                   "",
                   -1,
                   "",
                   below(20) == 0,
                   below(2) == 0,
                   below(2) == 0,
                   "CPU:0"};
    if (asked.gpus > 0 && below(2)) asked.at = Cat("GPU:", below(static_cast<unsigned>(asked.gpus)));
    KernelRegistry registry;
    for (const DeviceType type : {DeviceType::kCpu, DeviceType::kGpu}) {
      if (below(3) == 0) continue;
      const int priority = below(3);
      asked.kernels[std::string(DeviceTypeName(type))] = priority;
      registry.Add({asked.op, type, asked.dtype, priority, RunIdentity});
    }
    static const char* const kTypes[] = {"", "GPU", "GPU", "CPU", "TPU"};
    asked.type = kTypes[below(5)];
    if (below(2)) asked.id = below(14);
    if (below(5) == 0) asked.job = below(2) ? "localhost" : "worker";
    const internal::Placer placer(registry, asked.gpus);
    const internal::DeviceRequest request = placer.Resolve(NameOf(asked));
    const bool unasked = below(10) == 0;
    if (unasked) {
      asked.type = asked.job = "";
      asked.id = -1;
      asked.malformed = false;
    }
    const Restated expected = Restate(asked);
    const std::vector<TensorSpec> specs = ExampleInputs(*asked.op, asked.dtype);
    const int at = asked.at == "CPU:0" ? placer.cpu() : std::stoi(asked.at.substr(4));
    const std::vector<int> devices(specs.size(), at);
    const PlacementExplanation why = internal::Explain(placer, {.op = *asked.op,
                                                                .inputs = specs,
                                                                .devices = devices,
                                                                .attributes = attributes,
                                                                .request = unasked ? nullptr : &request,
                                                                .soft = asked.soft,
                                                                .pin_small_ops = asked.pin});
    const int near = placer.NearInputs(*asked.op, specs, devices, asked.pin);
    const auto real = placer.Place(*asked.op, asked.dtype, unasked ? nullptr : &request, asked.soft, near);
    ASSERT_EQ(real.status(), why.status) << NameOf(asked);
    ASSERT_EQ(why.status.ok(), !expected.device.empty()) << NameOf(asked) << " " << why;
    if (!why.status.ok()) {
      ASSERT_THAT(std::string(why.status.message()), HasSubstr(expected.error)) << NameOf(asked);
      continue;
    }
    ++placed;
    ASSERT_EQ(why.device, "/job:localhost/replica:0/task:0/device:" + expected.device) << NameOf(asked);
    ASSERT_EQ(why.soft_placed, expected.soft) << NameOf(asked);
    ASSERT_EQ(ToString(placer.NameOf(real->device)), why.device);
    ASSERT_EQ(
        std::count_if(why.candidates.begin(), why.candidates.end(), [](const auto& c) { return c.taken; }),
        1);
    ASSERT_EQ(why.candidates.size(), static_cast<std::size_t>(asked.gpus) + 1);
  }
  EXPECT_GT(placed, 3000);
}

/// Runs an op for real.
absl::StatusOr<Tensor> RunOp(const std::string& op, const std::vector<Tensor>& inputs,
                             const Context::ExplainOptions& options) {
  if (op == "MatMul") {
    return MatMul(inputs[0], inputs[1],
                  {.transpose_a = options.transpose_a, .transpose_b = options.transpose_b});
  }
  if (op == "AddN") return AddN(inputs);
  if (op == "Shape") return ShapeOf(inputs[0]);
  if (op == "Size") return SizeOf(inputs[0]);
  return op == "Cast" ? Cast(inputs[0], options.cast_to) : Identity(inputs[0]);
}

TEST(ExplainTest, TenThousandRandomOpsRunWhereItSays) {
  const std::uint32_t seed = TestSeed();
  std::mt19937 random(seed);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  static const char* const kNames[] = {"/GPU:0",        "/GPU:1",  "GPU:7",
                                       "/CPU:0",        "cpu:0",   "/device:GPU",
                                       "gpu:1",         "",        "/job:other",
                                       "/foo:bar",      "/CPU:3",  "/device:TPU:0",
                                       "/device:GPU:*", "/gpu:12", "/job:localhost/task:0",
                                       "/task:1/gpu:0"};
  int failed = 0, moved = 0;
  for (int world = 0; world < 20; ++world) {
    const TestContext test(
        {.cards = 1, .devices_per_card = world == 0 ? 12 : 1 + below(3)},
        {.placement_log_format = below(3) == 0 ? PlacementLogFormat::kGraph : PlacementLogFormat::kEager,
         .pin_small_ops = below(2) == 0,
         .cast_on_gpu = below(2) == 0});
    const Context& gpu = *test.gpu;
    std::vector<Tensor> tensors;
    for (const char* device : {"/GPU:0", "/GPU:1", "/CPU:0"}) {
      const DeviceScope scope(gpu, device);
      tensors.push_back(Must(gpu.Constant<float>({{1, 2}, {3, 4}})));
      tensors.push_back(Must(gpu.Constant<std::int32_t>({{1, 2}, {3, 4}})));
      tensors.push_back(Must(gpu.Constant<std::int32_t>({1, 2})));
    }
    for (int round = 0; round < 500; ++round) {
      static const char* const kOps[] = {"MatMul", "AddN", "Cast", "Identity", "Shape", "Size"};
      const std::string op = kOps[below(6)];
      const std::size_t first = random() % tensors.size();
      std::vector<std::size_t> chosen = {first};
      if (op == "MatMul" || (op == "AddN" && below(5) != 0)) {
        // Mostly one that fits: a matrix of the same dtype.
        const std::size_t fitting = static_cast<std::size_t>(below(3)) * 3 + first % 3;
        chosen.push_back(below(8) == 0 ? random() % tensors.size() : fitting);
      }
      std::vector<Tensor> inputs;
      for (const std::size_t i : chosen) inputs.push_back(tensors[i]);
      const Context::ExplainOptions options{.transpose_a = below(2) == 0, .cast_to = DType::kFloat64};
      gpu.SetSoftDevicePlacement(below(2) == 0);
      const DevicePolicyScope policy(gpu, static_cast<DevicePolicy>(below(4)));
      std::optional<DeviceScope> scope;
      if (below(5) != 0) scope.emplace(gpu, kNames[random() % std::size(kNames)]);

      const PlacementExplanation why = Must(gpu.Explain(op, inputs, options));
      const auto copies = gpu.CopyCounts().copies;
      test.lines->clear();
      const absl::StatusOr<Tensor> result = RunOp(op, inputs, options);
      ASSERT_EQ(result.status(), why.status) << why;
      if (!result.ok()) {
        ++failed;
        continue;
      }
      ASSERT_EQ(result->device(), why.device) << why;
      const auto warnings = std::count_if(why.copies.begin(), why.copies.end(),
                                          [](const PlacementCopy& copy) { return !copy.why.empty(); });
      const auto logged = std::count_if(test.lines->begin(), test.lines->end(), [](const std::string& line) {
        return line.rfind("before computing ", 0) == 0;
      });
      ASSERT_EQ(warnings, logged) << why;
      const bool twice = chosen.size() == 2 && chosen[0] == chosen[1];  // is copied once
      ASSERT_EQ(gpu.CopyCounts().copies - copies, twice ? why.copies.size() / 2 : why.copies.size()) << why;
      moved += why.soft_placed ? 1 : 0;
    }
  }
  EXPECT_GT(failed, 1000);
  EXPECT_GT(moved, 500);
}

TEST(DevicePolicyTest, IsOfOneThread) {
  const TestContext test;
  const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  const DevicePolicyScope policy(*test.gpu, DevicePolicy::kExplicit);
  const DeviceScope scope(*test.gpu, "/CPU:0");
  EXPECT_EQ(AddN({a, a}).status().code(), absl::StatusCode::kInvalidArgument);
  std::thread([&] {
    const DeviceScope other(*test.gpu, "/CPU:0");
    EXPECT_TRUE(AddN({a, a}).ok());
    test.gpu->SetDevicePolicy(DevicePolicy::kExplicit);
    EXPECT_FALSE(AddN({a, a}).ok());
    const DevicePolicyScope silent(*test.gpu, DevicePolicy::kSilent);
    EXPECT_TRUE(AddN({a, a}).ok());
  }).join();
  EXPECT_FALSE(AddN({a, a}).ok());
}

TEST(DevicePolicyTest, CopiesAreCountedByRoute) {
  const TestContext test;
  const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  const Tensor b = Must(CopyToDevice(a, "gpu:1"));
  EXPECT_EQ(b.device(), kGpu1);
  Must(CopyToDevice(a, "GPU:1"));
  EXPECT_EQ(Must(CopyToDevice(a, "GPU:0")).device(), kGpu0);  // it is there
  Must(CopyToDevice(b, "/CPU:0"));
  const std::vector<Context::CopyRoute> routes = test.gpu->CopyRoutes();
  ASSERT_EQ(routes.size(), 2U);
  EXPECT_EQ(routes[0].from, kGpu0);
  EXPECT_EQ(routes[0].to, kGpu1);
  EXPECT_EQ(routes[0].count.copies, 2U);
  EXPECT_EQ(routes[0].count.bytes, 16_B);
  EXPECT_EQ(routes[1].to, kCpu0);
  EXPECT_EQ(test.gpu->CopyCounts().copies, 3U);
  EXPECT_THAT(std::string(CopyToDevice(a, "GPU:2").status().message()),
              StartsWith("/job:localhost/replica:0/task:0/device:GPU:2 unknown device.\n  this context has: "
                         "/device:GPU:0 /device:GPU:1 /device:CPU:0\n"));
  EXPECT_THAT(std::string(CopyToDevice(a, "/foo:bar").status().message()), HasSubstr("Malformed device"));
  EXPECT_FALSE(CopyToDevice(Tensor(), "GPU:0").ok());
}

TEST(DevicePolicyTest, ATensorThatIsTwoInputsIsCopiedOnce) {
  const TestContext test;
  const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  const DeviceScope scope(*test.gpu, "/CPU:0");
  EXPECT_THAT(Must(Must(AddN({a, a, a})).ToVector<float>()), ElementsAre(3, 6));
  EXPECT_EQ(test.gpu->CopyCounts().copies, 1U);
}

TEST(PlacementLogTest, GraphFormIsThatOfTensorFlow1) {
  const TestContext test({},
                         {.log_device_placement = true, .placement_log_format = PlacementLogFormat::kGraph});
  EXPECT_THAT(*test.lines, ElementsAre(StartsWith("Created device "), StartsWith("Created device "),
                                       "Device mapping:\n"
                                       "/job:localhost/replica:0/task:0/device:GPU:0 -> device: 0, name: "
                                       "Simulated GPU, pci bus id: 0000:01:00.0, compute "
                                       "capability: 9.0\n"
                                       "/job:localhost/replica:0/task:0/device:GPU:1 -> device: 0, name: "
                                       "Simulated GPU, pci bus id: 0000:01:00.0, compute "
                                       "capability: 9.0"));
  test.lines->clear();
  const Tensor a = Must(test.gpu->Constant<float>({{1, 2}, {3, 4}}));
  Must(MatMul(a, a));
  Must(MatMul(a, Must(test.gpu->Constant<float>({{1}, {2}}))));
  EXPECT_THAT(*test.lines, ElementsAre("Const: (Const): /job:localhost/replica:0/task:0/device:GPU:0",
                                       "MatMul: (MatMul): /job:localhost/replica:0/task:0/device:GPU:0",
                                       "Const_1: (Const): /job:localhost/replica:0/task:0/device:GPU:0",
                                       "MatMul_1: (MatMul): /job:localhost/replica:0/task:0/device:GPU:0"));
}

TEST(PlacementLogTest, AConstantOnAMissingDeviceHasTensorFlowsError) {
  const TestContext test({}, {.soft_device_placement = false});
  const DeviceScope scope(*test.gpu, "/device:GPU:2");
  EXPECT_THAT(std::string(test.gpu->Constant<float>({1}).status().message()),
              StartsWith("Could not satisfy device specification "
                         "'/job:localhost/replica:0/task:0/device:GPU:2'. enable_soft_placement=0."));
  EXPECT_THAT(*test.lines, IsEmpty());
}

}  // namespace
}  // namespace lgpu
