#include "client/driver/visible_devices.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/visible_list.h"

namespace lgpu::shim {
namespace {

constexpr char kName[] = "CUDA_VISIBLE_DEVICES";

bool NamesUuids(std::string_view value) {
  const std::string_view kind = value.substr(0, 4);
  return kind == "GPU-" || kind == "MIG-";
}

}  // namespace

bool ShowCardsOfLease(LeaseSession& session) {
  const char* const variable = std::getenv(kName);
  const std::optional<std::string> value =
      variable == nullptr ? std::nullopt : std::optional<std::string>(variable);
  const bool counts = value && !value->empty() && !NamesUuids(*value);
  const std::optional<std::vector<std::string>> cards =
      counts ? session.AwaitCardUuids() : session.CardUuids();
  if (!cards) return !value || NamesUuids(*value);
  const VisibleEntries list = ReadVisibleDevices(value, *cards);
  if (!list.unknown_uuid.empty()) session.TellForeignCard(list.unknown_uuid);
  if (list.devices.empty()) return false;
  std::string uuids;
  for (const int card : list.devices) {
    if (!uuids.empty()) uuids += ',';
    uuids += (*cards)[static_cast<std::size_t>(card)];
  }
  // Another thread's getenv beside setenv is safe only where the variable keeps its place in the environment.
  // So it is not set where it says the same, as in every program that leaves it as `lgpu run` set it, and
  // never after the driver has started. Threads that start the driver at the same time set the same value.
  if (value != uuids) ::setenv(kName, uuids.c_str(), /*overwrite=*/1);
  return true;
}

}  // namespace lgpu::shim
