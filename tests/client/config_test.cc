#include "lgpu/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lgpu/lgpu.h"
#include "tests/support/daemon_process.h"

namespace lgpu {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kCpu0[] = "/job:localhost/replica:0/task:0/device:CPU:0";
constexpr char kCpu1[] = "/job:localhost/replica:0/task:0/device:CPU:1";
constexpr char kGpu0[] = "/job:localhost/replica:0/task:0/device:GPU:0";
constexpr char kGpu1[] = "/job:localhost/replica:0/task:0/device:GPU:1";

/// A variable of the environment, as long as it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
};

template <typename T>
T Must(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  return *std::move(value);
}

class ConfigTest : public ::testing::Test {
 protected:
  Config Make(ConfigMode mode, const std::string& endpoint = "local:2x64MiB") {
    return Must(Config::Create({.mode = mode,
                                .endpoint = endpoint,
                                .log_sink = [this](std::string_view line) { lines_.emplace_back(line); }}));
  }
  static std::string Where(const Context& context) { return Must(context.Constant<float>({1})).device(); }
  std::vector<std::string> lines_;
};

TEST_F(ConfigTest, ListsPhysicalAndLogicalDevicesWithoutStartingAnything) {
  const Config config = Make(ConfigMode::kNative);
  std::vector<std::string> names;
  for (const PhysicalDeviceInfo& device : config.ListPhysicalDevices()) names.push_back(device.name);
  EXPECT_THAT(names,
              ElementsAre("/physical_device:CPU:0", "/physical_device:GPU:0", "/physical_device:GPU:1"));
  EXPECT_EQ(config.ListPhysicalDevices("GPU").size(), 2U);
  EXPECT_EQ(config.ListPhysicalDevices("GPU").at(0).total, 64_MiB);
  const auto cpu = LogicalDeviceName{"/device:CPU:0", "CPU"};
  const auto gpu = [](int i) { return LogicalDeviceName{"/device:GPU:" + std::to_string(i), "GPU"}; };
  EXPECT_THAT(Must(config.ListLogicalDevices()), ElementsAre(cpu, gpu(0), gpu(1)));
  EXPECT_THAT(Must(config.ListLogicalDevices("CPU")), ElementsAre(cpu));
}

TEST_F(ConfigTest, DetailsOfADevice) {
  const Config config = Make(ConfigMode::kNative);
  EXPECT_EQ(Must(config.GetDeviceDetails("GPU:0")).device_name, "Simulated GPU");
  EXPECT_EQ(Must(config.GetDeviceDetails("GPU:0")).compute_capability, std::pair(9, 0));
  EXPECT_FALSE(Must(config.GetDeviceDetails("CPU:0")).device_name.has_value());
  EXPECT_THAT(std::string(config.GetDeviceDetails("GPU:5").status().message()),
              StartsWith("The PhysicalDevice must be one obtained from calling "
                         "`tf.config.list_physical_devices`, but got: GPU:5"));
}

TEST_F(ConfigTest, NativeHasADeviceForEachGpuThatGrows) {
  Config config = Make(ConfigMode::kNative);
  const Context context = Must(Context::Create(config));
  ASSERT_EQ(context.logical_devices().size(), 2U);
  EXPECT_EQ(context.logical_devices()[1].memory_limit, 64_MiB);
  EXPECT_EQ(context.logical_devices()[1].mode, MemoryMode::kGrowth);
  EXPECT_EQ(Must(context.GetMemoryStats("GPU:0")).held, Bytes(0));
  EXPECT_EQ(context.ListLogicalDevices().size(), 3U);
}

TEST_F(ConfigTest, StrictPreallocatesLimitsInWholeMebibytes) {
  Config config = Make(ConfigMode::kStrict);
  ASSERT_TRUE(config
                  .SetLogicalDeviceConfiguration(
                      "GPU:0", {{.memory_limit = Bytes((10 << 20) + 5)}, {.memory_limit = 20_MiB}})
                  .ok());
  ASSERT_TRUE(config.SetVisibleDevices({"GPU:0"}, "GPU").ok());
  const Context context = Must(Context::Create(config));
  ASSERT_EQ(context.logical_devices().size(), 2U);
  EXPECT_EQ(context.logical_devices()[0].memory_limit, 10_MiB);
  EXPECT_EQ(context.logical_devices()[0].mode, MemoryMode::kPreallocate);
  EXPECT_EQ(context.logical_devices()[1].guarantee, 20_MiB);
  EXPECT_THAT(lines_, ElementsAre("Created device /job:localhost/replica:0/task:0/device:GPU:0 with 10 MB "
                                  "memory:  -> device: 0, name: Simulated GPU, pci bus id: 0000:01:00.0, "
                                  "compute capability: 9.0",
                                  HasSubstr("device:GPU:1 with 20 MB memory:  -> device: 0, name: ")));
}

TEST_F(ConfigTest, StrictTakesFreeMemoryLessTheReserve) {
  Config config = Make(ConfigMode::kStrict, "local:1x300MiB");
  const Context context = Must(Context::Create(config));
  EXPECT_EQ(context.logical_devices().at(0).memory_limit, 75_MiB);
}

TEST_F(ConfigTest, StrictMakesOneContextAndRefusesChanges) {
  Config config = Make(ConfigMode::kStrict);
  {
    const Context context = Must(Context::Create(config));
    EXPECT_EQ(config.SetMemoryGrowth("GPU:0", true).message(),
              "Physical devices cannot be modified after being initialized");
    EXPECT_EQ(config.SetVisibleDevices({"GPU:0"}, "GPU").message(),
              "Visible devices cannot be modified after being initialized");
    EXPECT_EQ(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 1_MiB}}).message(),
              "Virtual devices cannot be modified after being initialized");
  }
  EXPECT_EQ(Context::Create(config).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(config.SetMemoryGrowth("GPU:0", true).ok());
}

TEST_F(ConfigTest, NativeLimitsChangeWhileTheContextRuns) {
  Config config = Make(ConfigMode::kNative);
  ASSERT_TRUE(
      config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 8_MiB}, {.memory_limit = 30_MiB}})
          .ok());
  std::optional<Context> context = Must(Context::Create(config));
  const std::vector<float> values(3 << 20);  // 12 MiB
  EXPECT_FALSE(context->Constant<float>({3 << 20}, values).ok());
  EXPECT_TRUE(config
                  .SetLogicalDeviceConfiguration(
                      "GPU:0", {{.memory_limit = 16_MiB, .guarantee = 14_MiB}, {.memory_limit = 4_MiB}})
                  .ok());
  EXPECT_TRUE(context->Constant<float>({3 << 20}, values).ok());
  EXPECT_EQ(Must(context->GetMemoryStats("GPU:1")).limit, 4_MiB);
  // More than the card can guarantee: nothing changes, the second device does not shrink for nothing.
  const absl::Status refused = config.SetLogicalDeviceConfiguration(
      "GPU:0",
      {{.memory_limit = 64_MiB, .guarantee = 60_MiB}, {.memory_limit = 20_MiB, .guarantee = 20_MiB}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(Must(context->GetMemoryStats("GPU:0")).limit, 16_MiB);
  EXPECT_EQ(Must(context->GetMemoryStats("GPU:1")).limit, 4_MiB);
  EXPECT_EQ(Must(config.GetLogicalDeviceConfiguration("GPU:0")).at(0).memory_limit, 16_MiB);
  EXPECT_EQ(Context::Create(config).status().code(), absl::StatusCode::kFailedPrecondition);
  context.reset();
  EXPECT_TRUE(config.SetMemoryGrowth("GPU:0", false).ok());
  EXPECT_TRUE(Context::Create(config).ok());
}

TEST_F(ConfigTest, ANewLimitIsComparedWithTheOneOfNow) {
  Config config = Make(ConfigMode::kNative);
  ASSERT_TRUE(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 8_MiB}}).ok());
  const Context context = Must(Context::Create(config));
  const absl::Status resized = context.ResizeDevice("GPU:0", {.memory_limit = 16_MiB});
  ASSERT_TRUE(resized.ok()) << resized;
  EXPECT_TRUE(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 8_MiB}}).ok());
  EXPECT_EQ(Must(context.GetMemoryStats("GPU:0")).limit, 8_MiB);
  EXPECT_TRUE(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 24_MiB}}).ok());
  EXPECT_EQ(Must(context.GetMemoryStats("GPU:0")).limit, 24_MiB);
  EXPECT_EQ(Must(context.GetMemoryStats("GPU:1")).limit, 64_MiB);
  EXPECT_EQ(Must(config.ListLogicalDevices("GPU")).size(), context.logical_devices().size());
}

TEST_F(ConfigTest, ResizeDeviceNeedsNoConfig) {
  Config config = Make(ConfigMode::kNative);
  const Context context = Must(Context::Create(config));
  EXPECT_TRUE(context.ResizeDevice("GPU:1", {.memory_limit = 6_MiB}).ok());
  EXPECT_EQ(Must(context.GetMemoryStats("GPU:1")).limit, 6_MiB);
  EXPECT_FALSE(context.ResizeDevice("CPU:0", {.memory_limit = 6_MiB}).ok());
  EXPECT_FALSE(context.ResizeDevice("GPU:1", {.memory_limit = 6_MiB, .guarantee = 8_MiB}).ok());
  EXPECT_EQ(context.ResizeDevice("GPU:1", {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(context.ResizeDevice("GPU:7", {.memory_limit = 6_MiB}).message()),
              StartsWith("/job:localhost/replica:0/task:0/device:GPU:7 unknown device."));
}

TEST_F(ConfigTest, NoVisibleGpuMeansTheCpu) {
  Config config = Make(ConfigMode::kStrict);
  ASSERT_TRUE(config.SetVisibleDevices({}, "GPU").ok());
  const Context context = Must(Context::Create(config));
  EXPECT_THAT(context.logical_devices(), IsEmpty());
  const Tensor a = Must(context.Constant<float>({{1, 2}, {3, 4}}));
  EXPECT_EQ(Must(MatMul(a, a)).device(), kCpu0);
  EXPECT_EQ(context.DeviceMapping(), "Device mapping: no known devices.\n");
}

TEST_F(ConfigTest, CpusCanBeSplit) {
  Config config = Make(ConfigMode::kStrict);
  ASSERT_TRUE(config.SetLogicalDeviceConfiguration("CPU:0", {{}, {}}).ok());
  ASSERT_TRUE(config.SetVisibleDevices({}, "GPU").ok());
  const Context context = Must(Context::Create(config));
  const DeviceScope scope(context, "/CPU:1");
  const Tensor a = Must(context.Constant<float>({{1, 2}, {3, 4}}));
  EXPECT_EQ(Must(MatMul(a, a)).device(), kCpu1);
  EXPECT_EQ(Must(CopyToDevice(a, "CPU:0")).device(), kCpu0);
  EXPECT_THAT(Must(Must(CopyToDevice(a, "CPU:0")).ToVector<float>()), ElementsAre(1, 2, 3, 4));
}

TEST_F(ConfigTest, CudaVisibleDevicesComesFirstThenTheList) {
  const Variable visible("CUDA_VISIBLE_DEVICES", "2,1");
  Config config = Make(ConfigMode::kNative, "local:3x64MiB");
  ASSERT_EQ(config.ListPhysicalDevices("GPU").size(), 2U);
  ASSERT_TRUE(config.SetVisibleDevices({"GPU:1"}, "GPU").ok());
  const Context context = Must(Context::Create(config));
  ASSERT_EQ(context.logical_devices().size(), 1U);
  EXPECT_EQ(context.logical_devices()[0].card_index, 1);
  EXPECT_EQ(context.logical_devices()[0].name, kGpu0);
}

TEST_F(ConfigTest, AnEmptyCudaVisibleDevicesLeavesTheCpuAndSaysSo) {
  const Variable visible("CUDA_VISIBLE_DEVICES", "");
  Config config = Make(ConfigMode::kNative);
  EXPECT_THAT(config.ListPhysicalDevices("GPU"), IsEmpty());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("no GPU: ")));
  EXPECT_EQ(Where(Must(Context::Create(config))), kCpu0);
}

TEST_F(ConfigTest, TheGrowthVariableOverrides) {
  const Variable force("TF_FORCE_GPU_ALLOW_GROWTH", "true");
  Config config = Make(ConfigMode::kStrict);
  ASSERT_TRUE(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 10_MiB}}).ok());
  const Context context = Must(Context::Create(config));
  EXPECT_EQ(context.logical_devices().at(0).mode, MemoryMode::kGrowth);
  EXPECT_THAT(lines_.at(0), HasSubstr("Overriding allow_growth setting because the TF_FORCE_GPU_ALLOW_GROWTH "
                                      "environment variable is set. Original config value was 0."));
}

TEST_F(ConfigTest, SwitchesReachTheContext) {
  Config config = Make(ConfigMode::kNative);
  EXPECT_TRUE(config.GetSoftDevicePlacement());
  EXPECT_FALSE(config.GetLogDevicePlacement());
  const Context context = Must(Context::Create(config));
  config.SetLogDevicePlacement(true);
  EXPECT_EQ(Where(context), kGpu0);
  EXPECT_THAT(lines_, ElementsAre("Executing op _EagerConst in device "
                                  "/job:localhost/replica:0/task:0/device:GPU:0"));
  config.SetSoftDevicePlacement(false);
  EXPECT_TRUE(config.SetDevicePolicy("explicit").ok());
  const DeviceScope scope(context, "/GPU:9");
  EXPECT_FALSE(context.Constant<float>({1}).ok());
  EXPECT_EQ(config.GetDevicePolicy(), "explicit");
  EXPECT_EQ(
      config.SetDevicePolicy("loud").message(),
      "Invalid argument `device_policy`: 'loud'. Valid arguments: silent, silent_for_int32, warn, explicit");
  EXPECT_TRUE(config.SetDevicePolicy(std::nullopt).ok());
  EXPECT_EQ(config.GetDevicePolicy(), "silent");
}

TEST_F(ConfigTest, SwitchesReportTheEnvironmentAndTheContext) {
  Config config = Make(ConfigMode::kNative);
  {
    const Variable soft("LGPU_SOFT_PLACEMENT", "0");
    const Variable log("LGPU_LOG_DEVICE_PLACEMENT", "1");
    EXPECT_FALSE(config.GetSoftDevicePlacement());
    EXPECT_TRUE(config.GetLogDevicePlacement());
    config.SetLogDevicePlacement(false);
    EXPECT_FALSE(config.GetLogDevicePlacement());
    const Variable wrong("LGPU_SOFT_PLACEMENT", "no");
    EXPECT_TRUE(config.GetSoftDevicePlacement());
  }
  const Context context = Must(Context::Create(config));
  EXPECT_TRUE(config.GetSoftDevicePlacement());
  context.SetSoftDevicePlacement(false);
  context.SetLogDevicePlacement(true);
  context.SetDevicePolicy(DevicePolicy::kWarn);
  EXPECT_FALSE(config.GetSoftDevicePlacement());
  EXPECT_TRUE(config.GetLogDevicePlacement());
  EXPECT_EQ(config.GetDevicePolicy(), "warn");
}

TEST_F(ConfigTest, StrictScopesAreAsInPython) {
  Config config = Make(ConfigMode::kStrict, "local:2x300MiB");
  const Context context = Must(Context::Create(config));
  EXPECT_EQ(Where(context), kGpu0);
  const DeviceScope gpu(context, "GPU");  // over CPU:0: its number stays
  EXPECT_EQ(Where(context), kGpu0);
  const DeviceScope second(context, "/device:GPU:1");
  EXPECT_EQ(Where(context), kGpu1);
  {
    const DeviceScope task(context, "/task:0");
    EXPECT_EQ(Where(context), kGpu1);
    const DeviceScope none(context, std::nullopt);
    EXPECT_EQ(Where(context), kGpu0);
    const DeviceScope empty(context, "");
    EXPECT_EQ(Where(context), kCpu0);
  }
  config.SetSoftDevicePlacement(false);
  const DeviceScope cpu(context, "CPU");  // inherits the number 1, which no CPU has
  EXPECT_THAT(std::string(context.Constant<float>({1}).status().message()),
              StartsWith("Could not satisfy device specification "
                         "'/job:localhost/replica:0/task:0/device:CPU:1'."));
  const DeviceScope wrong(context, "/device:GPU");
  EXPECT_EQ(context.Constant<float>({1}).status().message(),
            "Unknown attribute 'device' is encountered while parsing the device spec: '/device:GPU'.");
}

TEST_F(ConfigTest, OptionsOfAContextGoOverThoseOfItsConfig) {
  Config config = Make(ConfigMode::kNative);
  ASSERT_TRUE(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 8_MiB}}).ok());
  config.SetSoftDevicePlacement(false);
  ContextOptions options = config.GetContextOptions();
  EXPECT_EQ(options.soft_device_placement, false);
  options.log_device_placement = true;
  options.endpoint = "local:2x64MiB";
  {
    const Context context = Must(Context::Create(config, options));
    EXPECT_EQ(context.logical_devices().at(0).memory_limit, 8_MiB);
    EXPECT_TRUE(config.GetLogDevicePlacement()) << "the Context's, while it is open";
    EXPECT_EQ(Where(context), kGpu0);
    EXPECT_THAT(lines_, Contains(HasSubstr("Executing op")));
    const DeviceScope scope(context, "/GPU:9");
    EXPECT_FALSE(context.Constant<float>({1}).ok());
  }
  EXPECT_FALSE(config.GetLogDevicePlacement());
}

TEST_F(ConfigTest, OptionsThatAConfigCannotHaveAreRefused) {
  Config config = Make(ConfigMode::kNative);
  const auto refused = [&](const ContextOptions& options) {
    const absl::Status status = Context::Create(config, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused({.logical_devices = {{.memory_limit = 8_MiB}}}),
              HasSubstr("the devices of the Config"));
  EXPECT_THAT(refused({.lease = "train"}), HasSubstr("the devices of the Config"));
  EXPECT_THAT(refused({.endpoint = "local:1x64MiB"}), HasSubstr("another one than that of the Config"));
  EXPECT_THAT(refused({.allocation_timeout = std::chrono::milliseconds(-1)}), HasSubstr("0 or more"));
  ASSERT_TRUE(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 1_MiB}}).ok());
  EXPECT_THAT(refused(config.GetContextOptions()), HasSubstr("the smallest is 2.00MiB"));
}

TEST_F(ConfigTest, AContextWithATooSmallLimitOrTooManyDevicesIsRefused) {
  for (const ContextOptions& options :
       {ContextOptions{.logical_devices = {{.memory_limit = 1_KiB}}, .endpoint = "local:1x64MiB"},
        ContextOptions{.logical_devices = std::vector<LogicalDeviceOptions>(65),
        .endpoint = "local:1x64MiB"}}) {
    EXPECT_EQ(Context::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const absl::Status memory =
      LogicalMemory::Open({.memory_limit = 1_KiB, .endpoint = "local:1x64MiB"}).status();
  EXPECT_EQ(memory.code(), absl::StatusCode::kInvalidArgument) << memory;
}

TEST_F(ConfigTest, AConfigMayGoBeforeItsContext) {
  std::optional<Config> config = Make(ConfigMode::kNative);
  const Context context = Must(Context::Create(*config));
  config.reset();
  EXPECT_EQ(Where(context), kGpu0);
}

TEST_F(ConfigTest, NoDaemonIsAnError) {
  EXPECT_EQ(Config::Create({.endpoint = "/nonexistent"}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ConfigTest, LimitsOfADaemonsLeaseCanChange) {
  const auto daemon = testing::DaemonProcess::Start({.simulate = "256MiB"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  Config config = Make(ConfigMode::kNative, (*daemon)->dir());
  ASSERT_TRUE(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 8_MiB}}).ok());
  const Context context = Must(Context::Create(config));
  const std::vector<float> values(3 << 20);
  EXPECT_FALSE(context.Constant<float>({3 << 20}, values).ok());
  ASSERT_TRUE(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 20_MiB}}).ok());
  EXPECT_EQ(Must(context.GetMemoryStats("GPU:0")).limit, 20_MiB);
  EXPECT_TRUE(context.Constant<float>({3 << 20}, values).ok());
}

TEST_F(ConfigTest, StrictOnACardWithoutFreeMemoryIsRefused) {
  const auto daemon = testing::DaemonProcess::Start({.simulate = "64MiB"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  Config config = Make(ConfigMode::kStrict, (*daemon)->dir());
  ASSERT_TRUE(config.SetMemoryGrowth("GPU:0", true).ok());
  std::optional<Context> holder = Must(Context::Create(
      {.logical_devices = {{.memory_limit = 64_MiB, .guarantee = 64_MiB}}, .endpoint = (*daemon)->dir()}));
  const absl::Status refused = Context::Create(config).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("GPU:0 would have a memory limit of 0 bytes"));
  EXPECT_TRUE(holder->Close().ok());
  const absl::StatusOr<Context> after = Context::Create(config);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->logical_devices().at(0).memory_limit, 64_MiB)
      << "free memory below the reserve: all of it";
}

TEST_F(ConfigTest, NoLimitAgainIsAllThatTheCardCanGive) {
  const auto daemon =
      testing::DaemonProcess::Start({.simulate = "256MiB", .config = "[memory]\nreserve = \"32MiB\"\n"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  for (const std::string& endpoint : {(*daemon)->dir(), std::string("local:1x256MiB")}) {
    Config config = Make(ConfigMode::kNative, endpoint);
    ASSERT_TRUE(config.SetLogicalDeviceConfiguration("GPU:0", {{.memory_limit = 8_MiB}}).ok());
    const Context context = Must(Context::Create(config));
    const absl::Status whole = config.SetLogicalDeviceConfiguration("GPU:0", {{}});
    EXPECT_TRUE(whole.ok()) << whole;
    EXPECT_EQ(Must(context.GetMemoryStats("GPU:0")).limit, endpoint[0] == '/' ? 224_MiB : 256_MiB);
  }
}

}  // namespace
}  // namespace lgpu
