// The half of `lgpu doctor` that is about the variables of a process.

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/doctor.h"
#include "lgpu/visibility.h"

namespace lgpu::cli {
namespace {

using Level = Check::Level;

constexpr char kEnvironment[] = "environment";
constexpr char kDefault[] = "default";

void ExamineVisibleDevices(const std::optional<std::string>& value,
                           const v1::ListPhysicalDevicesResponse* cards, Examination& examination) {
  const char* const name = "CUDA_VISIBLE_DEVICES";
  examination.variables.push_back({name, value.value_or("all GPUs"), value ? kEnvironment : kDefault});
  if (!value || cards == nullptr) return;
  std::vector<std::string> uuids;
  for (const v1::CardStats& card : cards->devices()) uuids.push_back(card.uuid());
  const VisibleList list = ParseVisibleDevices(*value, uuids);
  std::vector<std::string> seen;
  bool any_served = false;
  for (const int index : list.devices) {
    const v1::CardStats& card = cards->devices(index);
    any_served = any_served || card.served();
    seen.push_back(
        absl::StrCat("GPU ", card.index(), " (", card.pci_bus_id(), card.served() ? ")" : ", not served)"));
  }
  std::string text =
      absl::StrCat("\"", *value, "\" -> ", seen.empty() ? "no GPU" : absl::StrJoin(seen, ", "));
  if (!list.note.empty()) absl::StrAppend(&text, "; ", list.note);
  const bool fine = any_served && list.note.empty();
  examination.checks.push_back({name, fine ? Level::kOk : Level::kWarn, text});
}

void ExamineOrder(const std::optional<std::string>& value, const v1::ListPhysicalDevicesResponse* cards,
                  Examination& examination) {
  const char* const name = "CUDA_DEVICE_ORDER";
  const bool by_bus = ParseDeviceOrder(value) == DeviceOrder::kPciBusId;
  examination.variables.push_back(
      {name, by_bus ? "PCI_BUS_ID" : "FASTEST_FIRST", value ? kEnvironment : kDefault});
  const bool many = cards != nullptr && cards->devices_size() > 1 && !cards->devices(0).simulated();
  if (!by_bus && many) {
    examination.checks.push_back(
        {name, Level::kWarn,
         "indices of CUDA_VISIBLE_DEVICES count the fastest GPU first; lgpu and nvidia-smi count by PCI bus. "
         "Set it to PCI_BUS_ID, or use UUIDs"});
  }
}

/// A variable that has to be one of some words.
struct WordVariable {
  const char* name;
  std::vector<std::string> words;
  const char* default_value;
  const char* otherwise;  // what happens with another word
};

void ExamineWord(const GetVariable& get, const WordVariable& variable, Examination& examination) {
  const std::optional<std::string> value = get(variable.name);
  const bool known =
      value && std::find(variable.words.begin(), variable.words.end(), *value) != variable.words.end();
  examination.variables.push_back({variable.name, known ? *value : variable.default_value,
                                   known   ? kEnvironment
                                   : value ? absl::StrCat("default: \"", *value, "\" is ignored")
                                           : std::string(kDefault)});
  if (value && !known) {
    examination.checks.push_back(
        {variable.name, Level::kWarn,
         absl::StrCat("is \"", *value, "\"; only ", absl::StrJoin(variable.words, ", "), " count, so ",
                      variable.otherwise)});
  }
}

}  // namespace

void ExamineVariables(const GetVariable& get, const v1::ListPhysicalDevicesResponse* cards,
                      Examination& examination) {
  ExamineVisibleDevices(get("CUDA_VISIBLE_DEVICES"), cards, examination);
  ExamineOrder(get("CUDA_DEVICE_ORDER"), cards, examination);
  for (const WordVariable& variable : {
           WordVariable{
               "TF_FORCE_GPU_ALLOW_GROWTH", {"true", "false"}, "as the program says", "it is ignored"},
           WordVariable{"LGPU_LOG_DEVICE_PLACEMENT", {"1", "0"}, "0", "it is ignored"},
           WordVariable{"LGPU_SOFT_PLACEMENT", {"1", "0"}, "1", "it is ignored"},
           WordVariable{"LGPU_LOG_LEVEL",
                        {"trace", "debug", "info", "warn", "error", "off"},
                        "info",
                        "an lgpud started here would refuse it"},
       }) {
    ExamineWord(get, variable, examination);
  }
  const std::optional<std::string> lease = get("LGPU_LEASE");
  examination.variables.push_back({"LGPU_LEASE", lease.value_or("none: programs make leases of their own"),
                                   lease ? kEnvironment : kDefault});
}

}  // namespace lgpu::cli
