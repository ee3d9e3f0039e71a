// Load of a fixed size, without a clock: sessions, leases and devices leave nothing behind. bench/load_bench
// has figures.

#include "tests/load/load.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "tests/support/open_files_limit.h"

namespace lgpu::testing {
namespace {

using nlohmann::json;

class LoadTest : public E2eTest {
 protected:
  json Lgpu(std::vector<std::string> words) {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    words.emplace_back("--json");
    const auto result = RunProgram({.argv = words, .environment = {{"LGPU_ENDPOINT", daemon_->dir()}}});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? json::parse(result->out, nullptr, /*allow_exceptions=*/false) : json();
  }
  bool LedgerHolds() {
    const json diagnosis = Lgpu({"doctor"});
    for (const json& check : diagnosis["checks"]) {
      if (check.value("id", "") == "ledger") return check.value("level", "") == "ok";
    }
    return false;
  }
  /// The daemon's open descriptors, once their number stays: it closes those of ended sessions a little
  /// later.
  std::size_t SettledDescriptors() {
    std::size_t now = CountDescriptors(daemon_->pid());
    int same = 0;
    EXPECT_TRUE(Eventually([&] {
      const std::size_t before = std::exchange(now, CountDescriptors(daemon_->pid()));
      same = before == now ? same + 1 : 0;
      return same == 10;
    }));
    return now;
  }
};

TEST_F(LoadTest, CyclesOfLeasesLeaveDescriptorsAndLeasesAsBefore) {
  constexpr int kCycles = kSanitized ? 500 : 5000;
  StartDaemon({.simulate = "1GiB"});
  ASSERT_TRUE(RunLeaseCycles(daemon_->dir(), 200, 4).ok());  // first calls start threads and open files
  ASSERT_TRUE(Eventually([&] { return Stats().leases_size() == 0; }));
  const std::size_t before = SettledDescriptors();
  const absl::Status cycled = RunLeaseCycles(daemon_->dir(), kCycles, 4);
  EXPECT_TRUE(cycled.ok()) << cycled;
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; }));
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(daemon_->pid()) <= before; }))
      << CountDescriptors(daemon_->pid()) << " descriptors, " << before << " before";
  EXPECT_EQ(Stats().grants_total(), static_cast<std::uint64_t>(200 + kCycles));
  EXPECT_TRUE(LedgerHolds());
}

TEST_F(LoadTest, AThousandLogicalDevicesAreListed) {
  StartDaemon({.simulate = "1GiB"});
  const absl::Status made = MakeDevices(*control_, 100, 10);
  ASSERT_TRUE(made.ok()) << made;
  const json listed = Lgpu({"ls"});
  ASSERT_EQ(listed["leases"].size(), 100u);
  std::size_t devices = 0;
  for (const json& lease : listed["leases"]) devices += lease["devices"].size();
  EXPECT_EQ(devices, 1000u);
  EXPECT_TRUE(LedgerHolds());
  for (const json& lease : listed["leases"]) {
    EXPECT_TRUE(control_->RemoveLease(lease["id"].get<std::string>()).ok());
  }
}

TEST_F(LoadTest, TwoHundredSessionsGrowAndReturnAndTheLedgerIsExact) {
  constexpr std::uint32_t kSeed = 11;
  RecordProperty("seed", kSeed);
  const OpenFilesLimit files(OpenFilesLimit::kAll);  // three for each session, and its grants' descriptors
  StartDaemon({.simulate = "1GiB", .open_files = 8192});
  const absl::Status load = GrowAndReturnAtRandom(daemon_->dir(), 200, 8, kSanitized ? 5 : 20, kSeed);
  EXPECT_TRUE(load.ok()) << load << ", seed " << kSeed;
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; }));
  EXPECT_EQ(HeldBytes(), 0u);
  EXPECT_TRUE(LedgerHolds());
  EXPECT_GT(Stats().grants_total(), 0u);
}

}  // namespace
}  // namespace lgpu::testing
