#ifndef LGPU_PROTO_MESSAGES_JSON_H_
#define LGPU_PROTO_MESSAGES_JSON_H_

#include <string>

#include "google/protobuf/timestamp.pb.h"
#include "lgpu/v1/control.pb.h"
#include "lgpu/v1/events.pb.h"
#include "lgpu/v1/stats.pb.h"
#include "nlohmann/json.hpp"

namespace lgpu {

// The messages as JSON, for `lgpu --json` and the daemon's HTTP: amounts are bytes, times are seconds or ISO
// 8601, both always as numbers or strings of one type; unknown values are left out. Every object names its
// schema ("lgpu.<noun>/v1"); fields are added to one, never renamed.

namespace v1 {
nlohmann::json ToJson(const StatsSnapshot& snapshot);
nlohmann::json ToJson(const CardStats& card);
nlohmann::json ToJson(const LeaseStats& lease);
nlohmann::json ToJson(const SessionStats& session);
nlohmann::json ToJson(const Lease& lease);
nlohmann::json ToJson(const LeaseTrim& trim);
nlohmann::json ToJson(const SuspendLeaseResponse& suspended);
nlohmann::json ToJson(const ResumeLeaseResponse& resumed);
nlohmann::json ToJson(const PlacementReport& report);
nlohmann::json ToJson(const PlacementRecord& record);
nlohmann::json ToJson(const Event& event);
nlohmann::json ToJson(const Diagnosis::Finding& finding);
nlohmann::json ToJson(const Diagnosis::Setting& setting);
}  // namespace v1

/// "2026-01-31T12:00:00.123456Z"
std::string FormatIso8601(const google::protobuf::Timestamp& time);

/// One line with a newline; bytes that are no UTF-8 are replaced, never an exception.
std::string JsonLine(const nlohmann::json& json);

}  // namespace lgpu

#endif  // LGPU_PROTO_MESSAGES_JSON_H_
