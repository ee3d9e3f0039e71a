#include "client/runtime/config_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "kernels/text.h"
#include "tests/support/cases.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
    if (end == std::string::npos) return parts;
    begin = end + separator.size();
  }
}

std::vector<PhysicalDeviceInfo> Machine(int gpus) {
  std::vector<PhysicalDeviceInfo> devices = {{.name = "/physical_device:CPU:0", .device_type = "CPU"}};
  for (int i = 0; i < gpus; ++i) {
    devices.push_back({.name = Cat("/physical_device:GPU:", i),
                       .device_type = "GPU",
                       .card_uuid = Cat("GPU-", i),
                       .total = 1000_MiB,
                       .free = 1000_MiB,
                       .compute_major = 5});
  }
  return devices;
}

/// "10@-1+2" and so on: LIMIT, @PRIORITY, +GUARANTEE.
std::vector<LogicalDeviceConfiguration> Parts(const std::string& text) {
  std::vector<LogicalDeviceConfiguration> parts;
  if (text.empty()) return parts;
  for (const std::string& item : Split(text, ",")) {
    LogicalDeviceConfiguration& part = parts.emplace_back();
    const std::size_t plus = item.find('+');
    const std::size_t at = item.find('@');
    if (plus != std::string::npos) part.guarantee = Bytes(std::stoull(item.substr(plus + 1)) << 20);
    if (at != std::string::npos) part.priority = std::stoi(item.substr(at + 1));
    if (item[0] != '-') part.memory_limit = Bytes(std::stoull(item) << 20);
  }
  return parts;
}

std::string Megabytes(Bytes bytes) { return bytes.is_zero() ? "all" : Cat(bytes.count() >> 20, "M"); }

/// Runs a script against a ConfigState.
class Script {
 public:
  Script(const std::string& mode, int gpus)
      : state_(mode == "s" ? ConfigMode::kStrict : ConfigMode::kNative, Machine(gpus)) {}

  absl::Status Call(const std::vector<std::string>& words) {
    const auto word = [&](std::size_t i) {
      return i < words.size() && words[i] != "-" ? words[i] : std::string();
    };
    if (words[0] == "growth") return state_.SetGrowth(word(1), word(2) == "true");
    if (words[0] == "visible") {
      return state_.SetVisible(word(2).empty() ? std::vector<std::string>() : Split(word(2), ","), word(1));
    }
    if (words[0] == "logical") return state_.SetLogical(word(1), Parts(words.size() > 2 ? words[2] : ""));
    if (words[0] == "fraction") return state_.SetFraction(std::stod(words[1]));
    if (words[0] == "policy") {
      const absl::StatusOr<DevicePolicy> policy = ParseDevicePolicy(word(1) == "None" ? "silent" : word(1));
      if (!policy.ok()) return policy.status();
      policy_ = *policy;
      return absl::OkStatus();
    }
    if (words[0] == "close") {
      state_.set_initialized(state_.mode() == ConfigMode::kStrict);
      return absl::OkStatus();
    }
    EXPECT_EQ(words[0], "init");
    std::vector<std::string> notes;
    const absl::Status planned = state_.MakePlan({}, notes).status();
    if (planned.ok()) state_.set_initialized(true);
    return planned;
  }

  std::string Value(const std::string& what) const {
    std::vector<std::string> notes;
    if (what == "policy") return std::string(DevicePolicyWord(policy_));
    if (what == "visible") {
      std::string text;
      for (const PhysicalDeviceInfo& device : state_.Visible("")) {
        text += Cat(text.empty() ? "" : ",", device.name.substr(std::string("/physical_device:").size()));
      }
      return text;
    }
    if (what == "growth") return state_.ToGpuOptions()->allow_growth ? "true" : "false";
    const ConfigState::Plan plan = state_.MakePlan({}, notes).value();
    if (what == "cpus") return Cat(plan.cpus);
    EXPECT_EQ(what, "devices");
    std::string text;
    for (const ConfigState::Plan::Gpu& gpu : plan.gpus) {
      const LogicalDeviceOptions& options = gpu.options;
      text += Cat(text.empty() ? "" : " ", gpu.device - 1, ":",
                  Megabytes(options.memory_limit.value_or(Bytes())));
      if (state_.mode() == ConfigMode::kStrict) continue;
      text += options.mode == MemoryMode::kGrowth ? ":g" : ":p";
      if (!options.guarantee.is_zero()) text += Cat(":", Megabytes(options.guarantee));
    }
    return text.empty() ? "-" : text;
  }

 private:
  ConfigState state_;
  DevicePolicy policy_ = DevicePolicy::kSilent;
};

TEST(ConfigStateTest, CallsAnswerAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("config_state.tsv");
  ASSERT_GT(cases.size(), 60U);
  const std::map<char, absl::StatusCode> codes = {{'i', absl::StatusCode::kInvalidArgument},
                                                  {'f', absl::StatusCode::kFailedPrecondition},
                                                  {'n', absl::StatusCode::kNotFound},
                                                  {'u', absl::StatusCode::kUnknown},
                                                  {'x', absl::StatusCode::kInternal}};
  for (const testing::Case& row : cases) {
    Script script(row[1], std::stoi(row[2]));
    for (const std::string& item : Split(row[3], " ; ")) {
      SCOPED_TRACE(row.where + ": " + item);
      if (item.rfind("= ", 0) == 0) {
        const std::size_t blank = item.find(' ', 2);
        EXPECT_EQ(script.Value(item.substr(2, blank - 2)), item.substr(blank + 1));
        continue;
      }
      const std::vector<std::string> sides = Split(item, " ! ");
      const absl::Status status = script.Call(Split(sides[0], " "));
      if (sides.size() == 1) {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_EQ(status.code(), codes.at(sides[1].at(0)));
      EXPECT_THAT(std::string(status.message()), HasSubstr(sides[1].substr(2)));
    }
  }
}

/// TensorFlow's rules once more, written as its Python has them: names in lists, maps of names.
struct Python {
  std::vector<std::string> physical;
  std::vector<std::string> visible;
  std::map<std::string, int> growth;  // -1: None
  std::map<std::string, std::vector<LogicalDeviceConfiguration>> virtuals;
  bool handle = false;

  static bool IsGpu(const std::string& device) { return device[0] == 'G'; }
  bool Known(const std::string& device) const {
    return std::find(physical.begin(), physical.end(), device) != physical.end();
  }

  std::string SetGrowth(const std::string& device, bool on) {
    if (!Known(device)) return "Unrecognized device";
    if (virtuals.count(device) != 0) {
      return "Cannot set memory growth on device when virtual devices configured";
    }
    if (!IsGpu(device)) return "Cannot set memory growth on non-GPU and non-Pluggable devices";
    if (growth.at(device) == (on ? 1 : 0)) return "";
    if (handle) return "Physical devices cannot be modified";
    growth[device] = on ? 1 : 0;
    return "";
  }
  std::string SetVirtual(const std::string& device, const std::vector<LogicalDeviceConfiguration>& parts) {
    if (!Known(device)) return "Unrecognized device";
    for (const auto& part : parts) {
      if (!IsGpu(device) && part.memory_limit) return "Setting memory limit on CPU";
      if (!IsGpu(device) && part.priority) return "Setting experimental_priority on CPU virtual  devices";
      if (IsGpu(device) && !part.memory_limit) return "Setting memory limit is required";
    }
    if (virtuals.count(device) != 0 && virtuals.at(device) == parts) return "";
    if (handle) return "Virtual devices cannot be modified";
    virtuals[device] = parts;
    return "";
  }
  std::string SetVisible(const std::vector<std::string>& devices, const std::string& type) {
    for (const std::string& device : devices) {
      if (!Known(device) || (!type.empty() && device.substr(0, 3) != type)) return "Unrecognized device";
    }
    std::vector<std::string> list;
    for (const std::string& device : visible) {
      if (!type.empty() && device.substr(0, 3) != type) list.push_back(device);
    }
    list.insert(list.end(), devices.begin(), devices.end());
    if (list == visible) return "";
    if (handle) return "Visible devices cannot be modified";
    visible = list;
    return "";
  }
  /// "error TEXT", or allow_growth, device count, visible list and limits as one text.
  std::string Options() const {
    std::set<int> growths;
    std::string list, limits;
    int count = 0, index = -1;
    for (const std::string& device : physical) {
      if (!IsGpu(device)) continue;
      ++index;
      if (std::find(visible.begin(), visible.end(), device) == visible.end()) continue;
      growths.insert(growth.at(device));
      list += (list.empty() ? "" : ",") + std::to_string(index);
      const auto parts = virtuals.find(device);
      count += parts == virtuals.end() ? 1 : static_cast<int>(parts->second.size());
      if (virtuals.empty()) continue;
      std::size_t priorities = 0;
      limits += "{";
      if (parts != virtuals.end()) {
        for (const auto& part : parts->second) {
          limits += std::to_string(part.memory_limit->count() >> 20) + ";";
          priorities += part.priority ? 1 : 0;
        }
        if (priorities != 0 && priorities != parts->second.size()) {
          return "error priority must be specified for all virtual devices";
        }
      }
      limits += "}";
    }
    if (limits.empty() && growths.size() > 1) return "error Memory growth cannot differ between GPU devices";
    const bool on = limits.empty() && !growths.empty() && *growths.begin() == 1;
    return std::to_string(on) + " " + std::to_string(count) + " " + list + " " + limits;
  }
};

std::string OptionsText(const absl::StatusOr<GpuOptions>& options) {
  if (!options.ok()) return "error " + std::string(options.status().message());
  std::string limits;
  for (const VirtualDevices& entry : options->virtual_devices) {
    limits += "{";
    for (const float limit : entry.memory_limit_mb) limits += std::to_string(static_cast<int>(limit)) + ";";
    limits += "}";
  }
  return std::to_string(options->allow_growth) + " " + std::to_string(*options->device_count) + " " +
         options->visible_device_list + " " + limits;
}

TEST(ConfigStateTest, RandomCallsAgreeWithTheRulesSaidOtherwise) {
  const std::uint32_t seed = TestSeed();
  std::mt19937 random(seed);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const int gpus = below(4);
    ConfigState state(ConfigMode::kStrict, Machine(gpus));
    Python python;
    python.physical = {"CPU:0"};
    for (int i = 0; i < gpus; ++i) python.physical.push_back(Cat("GPU:", i));
    for (int i = 0; i < gpus; ++i) python.growth[Cat("GPU:", i)] = -1;
    python.visible = python.physical;
    const auto device = [&] { return below(6) == 0 ? Cat("CPU:", below(2)) : Cat("GPU:", below(4)); };
    for (int step = below(12); step >= 0; --step) {
      std::string expected;
      absl::Status answer;
      const std::string name = device();
      switch (below(8)) {
        case 0:
        case 1:
        case 2: {
          const bool on = below(2) == 0;
          expected = python.SetGrowth(name, on);
          answer = state.SetGrowth(name, on);
          break;
        }
        case 3:
        case 4: {
          std::vector<LogicalDeviceConfiguration> parts(static_cast<std::size_t>(below(3)));
          for (auto& part : parts) {
            if (below(6) != 0 && name[0] == 'G') part.memory_limit = Bytes((random() % 3 + 1) << 20);
            if (below(8) == 0) part.memory_limit = 2_MiB;
            if (below(4) == 0) part.priority = 0;
          }
          expected = python.SetVirtual(name, parts);
          answer = state.SetLogical(name, parts);
          break;
        }
        case 5:
        case 6: {
          std::vector<std::string> names;
          for (int n = below(4); n > 0; --n) names.push_back(device());
          const std::string type = below(3) == 0 ? "" : below(4) == 0 ? "CPU" : "GPU";
          expected = python.SetVisible(names, type);
          answer = state.SetVisible(names, type);
          break;
        }
        default:
          if (below(3) != 0) continue;
          python.handle = true;
          state.set_initialized(true);
          continue;
      }
      refused += expected.empty() ? 0 : 1;
      ASSERT_EQ(answer.ok(), expected.empty()) << answer << " for " << expected;
      ASSERT_THAT(std::string(answer.message()), HasSubstr(expected));
      ASSERT_EQ(OptionsText(state.ToGpuOptions()), python.Options());
    }
  }
  EXPECT_GT(refused, 2000);
}

PhysicalDeviceInfo CardWith(const char* uuid, Bytes free, Bytes coming_back = {}) {
  return {.name = {}, .device_type = "GPU", .card_uuid = uuid, .free = free, .coming_back = coming_back};
}

TEST(ConfigStateTest, AStrictPlanOnACardWithoutFreeMemoryIsRefused) {
  ConfigState state(ConfigMode::kStrict, Machine(2));
  state.SetFree({CardWith("GPU-1", Bytes())});
  std::vector<std::string> notes;
  const absl::StatusOr<ConfigState::Plan> plan = state.MakePlan({}, notes);
  ASSERT_EQ(plan.status(), absl::OkStatus());
  EXPECT_EQ(plan->gpus.at(1).options.memory_limit, Bytes()) << "0 is a limit, not all of the card";
  const absl::Status refused = state.CheckPlan(*plan);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(refused.message().find("GPU:1 would have a memory limit of 0"), std::string::npos) << refused;
  state.SetFree({CardWith("GPU-1", 1000_MiB)});
  const absl::StatusOr<ConfigState::Plan> free = state.MakePlan({}, notes);
  ASSERT_EQ(free.status(), absl::OkStatus());
  EXPECT_EQ(state.CheckPlan(*free), absl::OkStatus());
}

TEST(ConfigStateTest, AStrictPlanIsEarlyWhileFreeMemoryThatItCountsOnComesBack) {
  std::vector<std::string> notes;
  for (const ConfigMode mode : {ConfigMode::kStrict, ConfigMode::kNative}) {
    ConfigState state(mode, Machine(2));
    EXPECT_FALSE(state.IsEarly(*state.MakePlan({}, notes)));
    state.SetFree({CardWith("GPU-1", 100_MiB, 900_MiB)});
    EXPECT_EQ(state.IsEarly(*state.MakePlan({}, notes)), mode == ConfigMode::kStrict);
    ASSERT_EQ(state.SetLogical("GPU:1", {{.memory_limit = 512_MiB}}), absl::OkStatus());
    EXPECT_FALSE(state.IsEarly(*state.MakePlan({}, notes))) << "lgpud waits with a limit that was said";
    state.SetFree({CardWith("GPU-0", 100_MiB, 900_MiB)});
    ASSERT_EQ(state.SetVisible({"GPU:1"}, "GPU"), absl::OkStatus());
    EXPECT_FALSE(state.IsEarly(*state.MakePlan({}, notes))) << "no plan has the card";
  }
}

TEST(ConfigStateTest, ANativePlanSaysWhetherThereIsALimit) {
  ConfigState state(ConfigMode::kNative, Machine(1));
  std::vector<std::string> notes;
  EXPECT_FALSE(state.MakePlan({}, notes)->gpus.at(0).options.memory_limit.has_value());
  ASSERT_EQ(state.SetFraction(1e-12), absl::OkStatus());
  EXPECT_EQ(state.MakePlan({}, notes)->gpus.at(0).options.memory_limit, Bytes())
      << "a fraction below one byte is no permission for the whole card";
}

}  // namespace
}  // namespace lgpu
