#ifndef LGPU_CLI_JSON_H_
#define LGPU_CLI_JSON_H_

#include <string>

#include "lgpu/refusal.h"
#include "lgpu/v1/control.pb.h"
#include "lgpu/v1/events.pb.h"
#include "lgpu/v1/stats.pb.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

// The messages as --json shows them: amounts are bytes, times are seconds or ISO 8601, both always as numbers
// or strings of one type; what is unknown is left out. Fields are added, never renamed ("lgpu.<noun>/v1").

nlohmann::json ToJson(const v1::StatsSnapshot& snapshot);
nlohmann::json ToJson(const v1::Lease& lease);
nlohmann::json ToJson(const v1::PlacementReport& report);
nlohmann::json ToJson(const v1::PlacementRecord& record);
nlohmann::json ToJson(const v1::Event& event);
nlohmann::json RefusalToJson(const Refusal& refusal);

/// One line with a newline; bytes that are no UTF-8 are replaced, never an exception.
std::string Line(const nlohmann::json& json);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_JSON_H_
