#include "cli/env_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cli/cdi_files.h"
#include "cli/slurm_gres.h"
#include "nlohmann/json.hpp"
#include "tests/support/child_program.h"

namespace lgpu::cli {
namespace {

using ::testing::HasSubstr;

const SpawnOptions::Environment kVariables = {
    {"LGPU_LEASE", "l-1"}, {"ODD", "a 'b' \"c\" $d\\e"}, {"UNSET", std::nullopt}};

TEST(EnvFormatsTest, EachReaderGetsItsOwnQuoting) {
  EXPECT_EQ(*FormatEnvironment("l-1", kVariables, "sh"),
            "export LGPU_LEASE='l-1'\nexport ODD='a '\\''b'\\'' \"c\" $d\\e'\n");
  EXPECT_EQ(*FormatEnvironment("l-1", kVariables, "systemd"),
            "LGPU_LEASE=\"l-1\"\nODD=\"a 'b' \\\"c\\\" \\$d\\\\e\"\n");
  EXPECT_EQ(*FormatEnvironment("l-1", kVariables, "taskprolog"),
            "export LGPU_LEASE=l-1\nexport ODD=a 'b' \"c\" $d\\e\n")
      << "Slurm takes a line as it is";
  const auto parsed = nlohmann::json::parse(*FormatEnvironment("l-1", kVariables, "json"));
  EXPECT_EQ(parsed["schema"], "lgpu.env/v1");
  EXPECT_EQ(parsed["variables"]["ODD"], "a 'b' \"c\" $d\\e");
}

TEST(EnvFormatsTest, ALineBreakIsRefusedWhereLinesAreValues) {
  const auto refused = FormatEnvironment("l-1", {{"TWO", "a\nb"}}, "taskprolog");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("TWO has a line break"));
}

TEST(EnvFormatsTest, ACdiSpecificationMountsTheDirectoryOfTheLease) {
  v1::Lease lease;
  lease.set_id("l-1");
  lease.set_name("train");
  lease.add_devices()->set_card_uuid("GPU-1");
  const auto spec = nlohmann::json::parse(
      FormatCdi(lease, {.directory = "/run/lgpu/leases/l-1/run", .hook = "/usr/lib/lgpu/lgpu-hook"}));
  const auto& edits = spec["devices"][0]["containerEdits"];
  EXPECT_EQ(spec["devices"][0]["name"], "train");
  EXPECT_EQ(edits["env"], (std::vector<std::string>{"LGPU_ENDPOINT=/run/lgpu", "LGPU_LEASE=l-1",
                                                    "CUDA_VISIBLE_DEVICES=GPU-1"}));
  EXPECT_EQ(edits["mounts"][0]["hostPath"], "/run/lgpu/leases/l-1/run");
  EXPECT_EQ(edits["mounts"][0]["containerPath"], "/run/lgpu");
  EXPECT_EQ(edits["mounts"][1]["containerPath"], "/usr/lib/lgpu/cover");
  EXPECT_EQ(edits["mounts"][1]["type"], "tmpfs")
      << "a runtime that has made the root read-only makes no folder";
  EXPECT_EQ(edits["hooks"][0]["hookName"], "createContainer");
  EXPECT_EQ(edits["hooks"][0]["path"], "/usr/lib/lgpu/lgpu-hook");
  EXPECT_EQ(edits["hooks"][0]["args"],
            (std::vector<std::string>{"lgpu-hook", "cover", "l-1", "GPU-1", "/run/lgpu/leases/l-1/run"}));
  EXPECT_EQ(edits["hooks"][0]["env"], (std::vector<std::string>{"PATH=/usr/bin:/bin"}))
      << "without one of its own the hook has the image's environment";
  lease.set_name("_odd");
  EXPECT_EQ(nlohmann::json::parse(FormatCdi(lease, {.directory = "/x"}))["devices"][0]["name"], "l-1");
}

class CdiFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_.path() + "/nvidia.json") << R"({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu",
               "containerEdits": {"env": ["ALL=1"], "hooks": [{"hookName": "createContainer", "path": "/h"}]},
               "devices": [{"name": "GPU-1", "containerEdits": {"env": ["ONE=1"], "deviceNodes": [{"path": "/dev/x"}]}}]})";
    std::ofstream(folder_.path() + "/odd.json") << "[1, {";
  }
  const testing::TempDir folder_;
};

TEST_F(CdiFilesTest, TheEditsOfACardsDeviceComeBeforeThoseOfTheLease) {
  const absl::StatusOr<CdiDevice> card = FindCdiDevice("nvidia.com/gpu=GPU-1", {"/nowhere", folder_.path()});
  ASSERT_TRUE(card.ok()) << card.status();
  v1::Lease lease;
  lease.set_id("l-1");
  const auto spec =
      nlohmann::json::parse(FormatCdi(lease, {.directory = "/x", .hook = "/hook", .with = *card}));
  EXPECT_EQ(spec["cdiVersion"], "0.6.0") << "of the fields that the card's file may have";
  const auto& edits = spec["devices"][0]["containerEdits"];
  EXPECT_EQ(edits["env"],
            (std::vector<std::string>{"ALL=1", "ONE=1", "LGPU_ENDPOINT=/run/lgpu", "LGPU_LEASE=l-1"}));
  EXPECT_EQ(edits["deviceNodes"][0]["path"], "/dev/x");
  ASSERT_EQ(edits["hooks"].size(), 2u);
  EXPECT_EQ(edits["hooks"][0]["path"], "/h") << "it makes the driver's links first";
  EXPECT_EQ(edits["hooks"][1]["path"], "/hook");
}

TEST_F(CdiFilesTest, TheVersionIsNewEnoughForTheLeasesOwnFields) {
  v1::Lease lease;
  lease.set_id("l-1");
  for (const auto& [card, wanted] : std::vector<std::pair<std::string, std::string>>{
           {"0.3.0", "0.5.0"}, {"0.5.0", "0.5.0"}, {"0.10.0", "0.10.0"}, {"1.0.0", "1.0.0"}, {"", "0.5.0"}}) {
    const CdiDevice device{.version = card, .edits = nlohmann::json::object()};
    EXPECT_EQ(nlohmann::json::parse(FormatCdi(lease, {.directory = "/x", .with = device}))["cdiVersion"],
              wanted)
        << card;
  }
}

TEST_F(CdiFilesTest, AnAbsentDeviceIsRefusedWithThoseThatAreThere) {
  const absl::Status refused = FindCdiDevice("nvidia.com/gpu=GPU-2", {folder_.path()}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no device nvidia.com/gpu=GPU-2"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("there are: nvidia.com/gpu=GPU-1"));
}

v1::ListPhysicalDevicesResponse Cards() {
  v1::ListPhysicalDevicesResponse cards;
  for (const std::uint32_t minor : {3u, 1u}) {
    v1::CardStats& card = *cards.add_devices();
    card.set_name("NVIDIA H200");
    card.set_served(true);
    card.set_minor(minor);
    card.set_total_bytes((std::uint64_t{1} << 30) + (std::uint64_t{1} << 20));
    card.set_reserve_bytes(std::uint64_t{24} << 20);
  }
  cards.add_devices()->set_name("hidden");
  return cards;
}

TEST(SlurmGresTest, EachServedCardHasALineOfItsOwnWithATypeAndItsMemory) {
  EXPECT_EQ(*FormatSlurmGres(Cards(), {.node = "n7", .overhead_bytes = std::uint64_t{100} << 20}),
            "# slurm.conf: GresTypes=gpu,shard and, at this node, Gres=gpu:nvidia_h200:2,shard:1800\n"
            "NodeName=n7 Name=gpu Type=nvidia_h200 File=/dev/nvidia1\n"
            "NodeName=n7 Name=gpu Type=nvidia_h200 File=/dev/nvidia3\n"
            "NodeName=n7 Name=shard Count=900 File=/dev/nvidia1\n"
            "NodeName=n7 Name=shard Count=900 File=/dev/nvidia3\n");
}

TEST(SlurmGresTest, CardsThatGresConfCannotDescribeAreAnError) {
  EXPECT_THAT(std::string(FormatSlurmGres({}, {}).status().message()), HasSubstr("serves no GPU"));
  EXPECT_THAT(
      std::string(FormatSlurmGres(Cards(), {.overhead_bytes = std::uint64_t{2} << 30}).status().message()),
      HasSubstr("nothing is left"));
  v1::ListPhysicalDevicesResponse unknown = Cards();
  unknown.mutable_devices(0)->clear_minor();
  EXPECT_EQ(FormatSlurmGres(unknown, {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace lgpu::cli
