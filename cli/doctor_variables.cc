// The half of `lgpu doctor` that is about the variables of a process.

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/doctor.h"
#include "cli/lease_cards.h"
#include "lgpu/visibility.h"

namespace lgpu::cli {
namespace {

using Level = Check::Level;

constexpr char kEnvironment[] = "environment";
constexpr char kDefault[] = "default";

const v1::CardStats* FindCard(const v1::ListPhysicalDevicesResponse& cards, const std::string& uuid) {
  const auto found = std::find_if(cards.devices().begin(), cards.devices().end(),
                                  [&](const v1::CardStats& card) { return card.uuid() == uuid; });
  return found == cards.devices().end() ? nullptr : &*found;
}

void ExamineVisibleDevices(const std::optional<std::string>& value, const DaemonAnswers& daemon,
                           Examination& examination) {
  const char* const name = "CUDA_VISIBLE_DEVICES";
  const char* const unset = daemon.lease == nullptr ? "all GPUs" : "all GPUs of the lease";
  examination.variables.push_back({name, value.value_or(unset), value ? kEnvironment : kDefault});
  if (!value || daemon.cards == nullptr) return;
  std::vector<std::string> uuids;
  if (daemon.lease != nullptr) {
    uuids = CardUuidsOf(*daemon.lease);
  } else {
    for (const v1::CardStats& card : daemon.cards->devices()) uuids.push_back(card.uuid());
  }
  const VisibleList list = ParseVisibleDevices(*value, uuids);
  std::vector<std::string> seen;
  bool any_served = false;
  for (const int index : list.devices) {
    const v1::CardStats* const card = FindCard(*daemon.cards, uuids[static_cast<std::size_t>(index)]);
    if (card == nullptr) continue;
    any_served = any_served || card->served();
    seen.push_back(absl::StrCat("GPU ", card->index(), " (", card->pci_bus_id(),
                                card->served() ? ")" : ", not served)"));
  }
  std::string text =
      absl::StrCat("\"", *value, "\" -> ", seen.empty() ? "no GPU" : absl::StrJoin(seen, ", "));
  if (daemon.lease != nullptr) {
    absl::StrAppend(&text, "; inside lease ", daemon.lease->name(),
                    " an index counts the lease's GPUs, from 0");
  }
  if (!list.note.empty()) absl::StrAppend(&text, "; ", list.note);
  const bool fine = any_served && list.note.empty();
  examination.checks.push_back({name, fine ? Level::kOk : Level::kWarn, text});
}

void ExamineOrder(const std::optional<std::string>& value, const DaemonAnswers& daemon,
                  Examination& examination) {
  const char* const name = "CUDA_DEVICE_ORDER";
  const bool by_bus = ParseDeviceOrder(value) == DeviceOrder::kPciBusId;
  examination.variables.push_back(
      {name, by_bus ? "PCI_BUS_ID" : "FASTEST_FIRST", value ? kEnvironment : kDefault});
  const v1::ListPhysicalDevicesResponse* const cards = daemon.cards;
  const bool many = cards != nullptr && cards->devices_size() > 1 && !cards->devices(0).simulated() &&
                    daemon.lease == nullptr;
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

void ExamineVariables(const GetVariable& get, const DaemonAnswers& daemon, Examination& examination) {
  ExamineVisibleDevices(get("CUDA_VISIBLE_DEVICES"), daemon, examination);
  ExamineOrder(get("CUDA_DEVICE_ORDER"), daemon, examination);
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
