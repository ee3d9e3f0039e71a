#include "client/runtime/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lgpu/status.h"

namespace lgpu {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<MachineCard>& Machine() {
  static const std::vector<MachineCard> cards = {
      {.index = 0, .uuid = "GPU-aa10", .served = true, .not_served_because = "", .available = 8_GiB},
      {.index = 1, .uuid = "GPU-aa20", .served = true, .not_served_because = "", .available = 8_GiB},
      {.index = 2, .uuid = "GPU-bb30", .served = false, .not_served_because = "too old", .available = 8_GiB}};
  return cards;
}

DeviceChoice Must(const std::vector<LogicalDeviceOptions>& options,
                  const DeviceEnvironment& environment = {}) {
  const absl::StatusOr<DeviceChoice> choice = ChooseDevices(options, Machine(), environment);
  EXPECT_EQ(choice.status(), absl::OkStatus());
  return choice.ok() ? *choice : DeviceChoice();
}

absl::Status ErrorOf(const LogicalDeviceOptions& option, const DeviceEnvironment& environment = {}) {
  return ChooseDevices({option}, Machine(), environment).status();
}

TEST(DeviceChoiceTest, WithoutOptionsOneGrowingDeviceOnTheFirstVisibleCard) {
  const DeviceChoice choice = Must({}, {.cuda_visible_devices = "1,0"});
  ASSERT_THAT(choice.devices, SizeIs(1));
  EXPECT_THAT(choice.devices[0].cards, ElementsAre("GPU-aa20"));
  EXPECT_FALSE(choice.devices[0].preallocate);
  EXPECT_FALSE(choice.devices[0].limit.has_value());
}

TEST(DeviceChoiceTest, ADeviceWithoutACardMayBeOnEveryServedCardInTheProgramsOrder) {
  EXPECT_THAT(Must({{.memory_limit = 1_GiB}}).devices[0].cards, ElementsAre("GPU-aa10", "GPU-aa20"));
  const DeviceChoice choice = Must({{.memory_limit = 1_GiB}}, {.cuda_visible_devices = "1,0"});
  EXPECT_THAT(choice.devices[0].cards, ElementsAre("GPU-aa20", "GPU-aa10"));
}

TEST(DeviceChoiceTest, OptionsReachTheDevice) {
  const DeviceChoice choice = Must({{.memory_limit = 1_GiB, .guarantee = 1_MiB, .name = "weights"},
                                    {.memory_limit = 2_GiB, .mode = MemoryMode::kPreallocate}});
  ASSERT_THAT(choice.devices, SizeIs(2));
  EXPECT_EQ(choice.devices[0].limit, 1_GiB);
  EXPECT_EQ(choice.devices[0].guarantee, 1_MiB);
  EXPECT_EQ(choice.devices[0].name, "weights");
  EXPECT_FALSE(choice.devices[0].preallocate);
  EXPECT_EQ(choice.devices[1].limit, 2_GiB);
  EXPECT_TRUE(choice.devices[1].preallocate);
  EXPECT_THAT(choice.notes, IsEmpty());
}

TEST(DeviceChoiceTest, ALimitOfZeroIsNotTheWholeCard) {
  EXPECT_FALSE(Must({LogicalDeviceOptions{}}).devices.at(0).limit.has_value());
  EXPECT_EQ(ErrorOf({.memory_limit = Bytes()}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(DeviceChoiceTest, TooManyDevicesAndTooSmallLimitsAreRefused) {
  const auto message = [](const std::vector<LogicalDeviceOptions>& devices) {
    const absl::Status status = CheckDevices(devices);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(CheckDevices({}), absl::OkStatus());
  EXPECT_EQ(CheckDevices(std::vector<LogicalDeviceOptions>(64, {.memory_limit = 2_MiB})), absl::OkStatus());
  EXPECT_THAT(message(std::vector<LogicalDeviceOptions>(65)),
              HasSubstr("65 logical devices were asked for; a lease has 1 to 64"));
  EXPECT_THAT(message({{.memory_limit = 2_GiB}, {.memory_limit = 1_KiB}}),
              AllOf(HasSubstr("memory_limit of logical device 1 is 1.0KiB; the smallest is 2.00MiB"),
                    HasSubstr("2_GiB")));
  EXPECT_THAT(message({{.memory_limit = Bytes()}}), HasSubstr("memory_limit of logical device 0 is 0"));
}

TEST(DeviceChoiceTest, ACardIsNamedByItsMachineIndexOrTheBeginningOfItsUuid) {
  EXPECT_THAT(Must({{.physical_device = "1"}}).devices[0].cards, ElementsAre("GPU-aa20"));
  EXPECT_THAT(Must({{.physical_device = "GPU-aa2"}}).devices[0].cards, ElementsAre("GPU-aa20"));
  // The index counts the machine's cards, also where CUDA_VISIBLE_DEVICES has another order.
  EXPECT_THAT(Must({{.physical_device = "1"}}, {.cuda_visible_devices = "1,0"}).devices[0].cards,
              ElementsAre("GPU-aa20"));
}

TEST(DeviceChoiceTest, AnAmbiguousBeginningIsAnError) {
  const absl::Status status = ErrorOf({.physical_device = "GPU-aa"});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than one UUID"));
}

TEST(DeviceChoiceTest, AnUnknownCardIsNotFoundAndTheErrorListsTheCards) {
  for (const char* const name : {"7", "-1", "1x", "GPU-cc"}) {
    const absl::Status status = ErrorOf({.physical_device = name});
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("GPU-aa10"), HasSubstr("not served: too old")));
  }
}

TEST(DeviceChoiceTest, ACardThatIsHiddenOrNotServedIsNotFoundAndTheErrorNamesTheVariable) {
  const absl::Status hidden = ErrorOf({.physical_device = "1"}, {.cuda_visible_devices = "0"});
  EXPECT_TRUE(absl::IsNotFound(hidden)) << hidden;
  EXPECT_THAT(std::string(hidden.message()),
              AllOf(HasSubstr("which this program cannot use"), HasSubstr("CUDA_VISIBLE_DEVICES=\"0\"")));
  const absl::Status unserved = ErrorOf({.physical_device = "GPU-bb30"});
  EXPECT_TRUE(absl::IsNotFound(unserved)) << unserved;
  EXPECT_THAT(std::string(unserved.message()), HasSubstr("CUDA_VISIBLE_DEVICES is not set"));
}

TEST(DeviceChoiceTest, AnEmptyVisibleListLeavesNoCard) {
  EXPECT_TRUE(absl::IsNotFound(ErrorOf({}, {.cuda_visible_devices = ""})));
}

TEST(DeviceChoiceTest, TheDriversOrderReplacesTheVariable) {
  const DeviceChoice choice =
      Must({{.memory_limit = 1_GiB}}, {.driver_cards = std::vector<std::string>{"GPU-aa20", "GPU-zz99"}});
  EXPECT_THAT(choice.devices[0].cards, ElementsAre("GPU-aa20"));
}

TEST(DeviceChoiceTest, ADriverThatShowsNoServedCardIsNotFoundWithBothLists) {
  const absl::Status status = ErrorOf({}, {.driver_cards = std::vector<std::string>{"GPU-zz99"}});
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("GPU-zz99"), HasSubstr("GPU-aa10")));
}

TEST(DeviceChoiceTest, TheGrowthVariableChangesTheModeAndDropsTheGuarantee) {
  const DeviceChoice growth =
      Must({{.memory_limit = 1_GiB, .mode = MemoryMode::kPreallocate}}, {.force_gpu_allow_growth = "true"});
  EXPECT_FALSE(growth.devices[0].preallocate);
  const DeviceChoice preallocated =
      Must({{.memory_limit = 1_GiB, .guarantee = 1_MiB}}, {.force_gpu_allow_growth = "false"});
  EXPECT_TRUE(preallocated.devices[0].preallocate);
  EXPECT_TRUE(preallocated.devices[0].guarantee.is_zero());
}

TEST(DeviceChoiceTest, AWrongGrowthVariableIsNotedOnce) {
  const DeviceChoice choice =
      Must({{.memory_limit = 1_GiB}, {.memory_limit = 1_GiB}}, {.force_gpu_allow_growth = "maybe"});
  EXPECT_THAT(choice.notes, SizeIs(1));
  EXPECT_FALSE(choice.devices[0].preallocate);
}

}  // namespace
}  // namespace lgpu
