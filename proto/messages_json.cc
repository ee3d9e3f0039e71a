#include "proto/messages_json.h"

#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/refusal_json.h"
#include "proto/refusal_messages.h"

namespace lgpu {
namespace {

using nlohmann::json;

std::string ShortName(const std::string& name, std::string_view prefix) {
  return absl::AsciiStrToLower(std::string(absl::StripPrefix(name, {prefix.data(), prefix.size()})));
}

std::string ModeName(v1::LogicalDeviceSpec::Mode mode) {
  return mode == v1::LogicalDeviceSpec::MODE_PREALLOCATE ? "preallocate" : "growth";
}

}  // namespace

namespace v1 {

namespace {

/// How busy the card is, where that is known.
void AddLoad(const CardStats& card, json& result) {
  const auto watts = [](std::uint32_t milliwatts) { return 0.001 * milliwatts; };
  if (card.has_utilization_percent()) result["utilization_percent"] = card.utilization_percent();
  if (card.has_temperature_celsius()) result["temperature_celsius"] = card.temperature_celsius();
  if (card.has_power_milliwatts()) result["power_watts"] = watts(card.power_milliwatts());
  if (card.has_power_limit_milliwatts()) result["power_limit_watts"] = watts(card.power_limit_milliwatts());
}

}  // namespace

json ToJson(const CardStats& card) {
  json result = {{"schema", "lgpu.card/v1"},
                 {"index", card.index()},
                 {"uuid", card.uuid()},
                 {"name", card.name()},
                 {"pci_bus_id", card.pci_bus_id()},
                 {"simulated", card.simulated()},
                 {"served", card.served()},
                 {"total_bytes", card.total_bytes()},
                 {"reserve_bytes", card.reserve_bytes()},
                 {"held_bytes", card.held_bytes()},
                 {"promised_bytes", card.promised_bytes()},
                 {"overhead_bytes", card.overhead_bytes()},
                 {"free_bytes", card.free_bytes()},
                 {"draining_bytes", card.draining_bytes()},
                 {"granularity_bytes", card.granularity_bytes()},
                 {"overcommitted", card.overcommitted()},
                 {"waiting_requests", card.waiting_requests()}};
  AddLoad(card, result);
  if (card.has_minor()) result["minor"] = card.minor();
  if (!card.not_served_because().empty()) result["not_served_because"] = card.not_served_because();
  if (card.has_foreign_bytes()) result["foreign_bytes"] = card.foreign_bytes();
  result["foreign_processes"] = json::array();
  for (const ForeignProcess& process : card.foreign_processes()) {
    json entry = {
        {"pid", process.pid()}, {"command", process.command()}, {"used_bytes", process.used_bytes()}};
    if (!process.user().empty()) {
      entry["uid"] = process.uid();
      entry["user"] = process.user();
    }
    if (process.has_sm_percent()) entry["sm_percent"] = process.sm_percent();
    result["foreign_processes"].push_back(std::move(entry));
  }
  result["queue"] = json::array();
  for (const QueuedRequest& request : card.queue()) {
    json entry = {{"place", request.place()},
                  {"owner", request.owner()},
                  {"pid", request.pid()},
                  {"lease", request.lease_name()},
                  {"device", request.device()},
                  {"asked_bytes", request.asked_bytes()},
                  {"waited_seconds", 0.001 * static_cast<double>(request.waited_ms())},
                  {"turns", request.turns()},
                  {"makes_lease", request.makes_lease()},
                  {"what", request.what()}};
    if (request.has_turn_left_ms()) {
      entry["turn_left_seconds"] = 0.001 * static_cast<double>(request.turn_left_ms());
    }
    result["queue"].push_back(std::move(entry));
  }
  return result;
}

static json DeviceToJson(const LogicalDeviceStats& device) {
  return {{"name", device.name()},
          {"gpu", device.card_index()},
          {"card_uuid", device.card_uuid()},
          {"mode", device.mode()},
          {"memory_limit_bytes", device.limit_bytes()},
          {"guarantee_bytes", device.guarantee_bytes()},
          {"held_bytes", device.held_bytes()},
          {"leaving_bytes", device.leaving_bytes()},
          {"missing_bytes", device.missing_bytes()},
          {"charged_bytes", device.charged_bytes()},
          {"overhead_bytes", device.overhead_bytes()},
          {"total_limit_bytes", device.total_limit_bytes()},
          {"used_bytes", device.used_bytes()},
          {"peak_used_bytes", device.peak_used_bytes()},
          {"requested_bytes", device.requested_bytes()},
          {"largest_free_block_bytes", device.largest_free_block_bytes()},
          {"live_blocks", device.live_blocks()},
          {"allocations_total", device.allocations_total()},
          {"refusals_total", device.refusals_total()},
          {"ops_total", device.ops_total()}};
}

/// Adds the labels and ends of a managed lease.
static void AddManagement(const Management& management, json& lease) {
  lease["labels"] = json::object();
  for (const Label& label : management.labels()) lease["labels"][label.key()] = label.value();
  if (management.time_to_live_ms() > 0) {
    lease["time_left_seconds"] = 0.001 * static_cast<double>(management.time_to_live_ms());
  }
  if (!management.end_with_cgroup().empty()) lease["end_with_cgroup"] = management.end_with_cgroup();
}

/// Adds the ends that its owner asked for.
static void AddEnds(const LeaseEnds& ends, json& lease) {
  if (ends.time_to_live_ms() > 0) {
    lease["time_left_seconds"] = 0.001 * static_cast<double>(ends.time_to_live_ms());
  }
  if (ends.when_idle_ms() > 0) {
    lease["end_when_idle_seconds"] = 0.001 * static_cast<double>(ends.when_idle_ms());
  }
}

static const char* PreemptibleName(Preemptible preemptible) {
  switch (preemptible) {
    case PREEMPTIBLE_IDLE:
      return "idle";
    case PREEMPTIBLE_ALWAYS:
      return "always";
    default:
      return "never";
  }
}

static void AddSuspension(const LeaseSuspension& suspension, json& lease) {
  lease["suspension"] = {{"in_host_memory", suspension.in_host_memory()}, {"bytes", suspension.bytes()}};
  if (suspension.place() > 0) lease["suspension"]["place"] = suspension.place();
  if (!suspension.failed().empty()) lease["suspension"]["failed"] = suspension.failed();
}

static void AddIdleAfter(std::uint64_t milliseconds, json& lease) {
  lease["idle_after_seconds"] = 0.001 * static_cast<double>(milliseconds);
}

json ToJson(const SessionStats& session) {
  json by_kind = json::object();
  for (const ChargedKind& kind : session.charged_by_kind()) by_kind[kind.kind()] = kind.bytes();
  json result = {{"schema", "lgpu.session/v1"},
                 {"id", session.id()},
                 {"pid", session.pid()},
                 {"uid", session.uid()},
                 {"command", session.command()},
                 {"state", ShortName(SessionStats::State_Name(session.state()), "STATE_")},
                 {"connected_at", FormatIso8601(session.connected_at())},
                 {"held_bytes", session.held_bytes()},
                 {"unreturned_bytes", session.unreturned_bytes()},
                 {"overhead_bytes", session.overhead_bytes()},
                 {"charged_bytes", session.charged_bytes()},
                 {"allowance_bytes", session.allowance_bytes()},
                 {"charged_by_kind", std::move(by_kind)},
                 {"context_lost", session.context_lost()},
                 {"trims_ignored", session.trims_ignored()},
                 {"ignores_trim", session.ignores_trim()}};
  if (session.has_idle_since()) result["idle_since"] = FormatIso8601(session.idle_since());
  if (session.has_sm_percent()) result["sm_percent"] = session.sm_percent();
  return result;
}

json ToJson(const LeaseStats& lease) {
  json result = {
      {"schema", "lgpu.lease/v1"},      {"id", lease.id()},
      {"name", lease.name()},           {"owner", {{"uid", lease.owner_uid()}, {"user", lease.owner()}}},
      {"lasting", lease.lasting()},     {"created_at", FormatIso8601(lease.created_at())},
      {"devices", json::array()},       {"sessions", json::array()},
      {"anonymous", lease.anonymous()}, {"degraded", lease.degraded()}};
  result["managed"] = lease.has_management();
  if (lease.has_management()) AddManagement(lease.management(), result);
  if (lease.has_ends()) AddEnds(lease.ends(), result);
  result["preemptible"] = PreemptibleName(lease.preemptible());
  if (lease.has_suspension()) AddSuspension(lease.suspension(), result);
  if (lease.has_idle_after_ms()) AddIdleAfter(lease.idle_after_ms(), result);
  if (!lease.gives_way_for().empty()) result["gives_way_for"] = lease.gives_way_for();
  if (lease.has_idle_since()) result["idle_since"] = FormatIso8601(lease.idle_since());
  if (lease.has_last_op_at()) result["last_op_at"] = FormatIso8601(lease.last_op_at());
  for (const auto& device : lease.devices()) result["devices"].push_back(DeviceToJson(device));
  for (const auto& session : lease.sessions()) result["sessions"].push_back(ToJson(session));
  return result;
}

json ToJson(const StatsSnapshot& snapshot) {
  json result = {{"schema", "lgpu.snapshot/v1"},
                 {"taken_at", FormatIso8601(snapshot.taken_at())},
                 {"daemon", snapshot.daemon()},
                 {"accounting", snapshot.accounting()},
                 {"uptime_seconds", snapshot.uptime_seconds()},
                 {"grants_total", snapshot.grants_total()},
                 {"charges_total", snapshot.charges_total()},
                 {"refusals_total", snapshot.refusals_total()},
                 {"returns_total", snapshot.returns_total()},
                 {"trims_total", snapshot.trims_total()},
                 {"trims_ignored_total", snapshot.trims_ignored_total()},
                 {"sessions_lost_total", snapshot.sessions_lost_total()},
                 {"placements_total", snapshot.placements_total()},
                 {"placements_dropped_total", snapshot.placements_dropped_total()},
                 {"cards", json::array()},
                 {"leases", json::array()}};
  for (const auto& card : snapshot.cards()) result["cards"].push_back(ToJson(card));
  for (const auto& lease : snapshot.leases()) result["leases"].push_back(ToJson(lease));
  return result;
}

json ToJson(const Lease& lease) {
  json result = {{"schema", "lgpu.lease/v1"},
                 {"id", lease.id()},
                 {"name", lease.name()},
                 {"owner", {{"uid", lease.owner_uid()}, {"user", lease.owner()}}},
                 {"lasting", lease.lasting()},
                 {"created_at", FormatIso8601(lease.created_at())},
                 {"managed", lease.has_management()},
                 {"devices", json::array()}};
  if (lease.has_management()) AddManagement(lease.management(), result);
  if (lease.has_ends()) AddEnds(lease.ends(), result);
  result["preemptible"] = PreemptibleName(lease.preemptible());
  if (lease.has_suspension()) AddSuspension(lease.suspension(), result);
  if (lease.idle_after_ms() > 0) AddIdleAfter(lease.idle_after_ms(), result);
  for (const auto& device : lease.devices()) {
    result["devices"].push_back({{"name", device.name()},
                                 {"label", device.label()},
                                 {"gpu", device.card_index()},
                                 {"card_uuid", device.card_uuid()},
                                 {"card_name", device.card_name()},
                                 {"mode", ModeName(device.mode())},
                                 {"memory_limit_bytes", device.memory_limit_bytes()},
                                 {"guarantee_bytes", device.guarantee_bytes()}});
  }
  return result;
}

json ToJson(const SuspendLeaseResponse& suspended) {
  return {{"schema", "lgpu.suspension/v1"},
          {"id", suspended.lease_id()},
          {"name", suspended.lease_name()},
          {"suspended", true},
          {"bytes", suspended.bytes()},
          {"waited_seconds", 0.0},
          {"took_seconds", 0.001 * static_cast<double>(suspended.took_ms())}};
}

json ToJson(const ResumeLeaseResponse& resumed) {
  return {{"schema", "lgpu.suspension/v1"},
          {"id", resumed.lease_id()},
          {"name", resumed.lease_name()},
          {"suspended", false},
          {"bytes", resumed.bytes()},
          {"waited_seconds", 0.001 * static_cast<double>(resumed.waited_ms())},
          {"took_seconds", 0.001 * static_cast<double>(resumed.took_ms())}};
}

json ToJson(const LeaseTrim& trim) {
  json result = {{"schema", "lgpu.trim/v1"},
                 {"id", trim.lease_id()},
                 {"name", trim.lease_name()},
                 {"owner", trim.owner()},
                 {"returned_bytes", trim.returned_bytes()},
                 {"held_bytes", trim.held_bytes()},
                 {"sessions", json::array()}};
  for (const auto& session : trim.sessions()) {
    result["sessions"].push_back({{"id", session.session_id()},
                                  {"pid", session.pid()},
                                  {"command", session.command()},
                                  {"answer", ShortName(LeaseTrim::Answer_Name(session.answer()), "ANSWER_")},
                                  {"returned_bytes", session.returned_bytes()}});
  }
  return result;
}

static json CopyToJson(const CopyRecord& copy) {
  return {{"sequence", copy.sequence()},
          {"session_id", copy.session_id()},
          {"pid", copy.pid()},
          {"source", copy.source()},
          {"target", copy.target()},
          {"dtype", copy.dtype()},
          {"bytes", copy.bytes()},
          {"submitted_at", FormatIso8601(copy.submitted_at())},
          {"host_seconds", static_cast<double>(copy.host_ns()) / 1e9}};
}

json ToJson(const PlacementReport& report) {
  json result = {{"schema", "lgpu.placements/v1"},
                 {"lease", {{"id", report.lease_id()}, {"name", report.lease_name()}}},
                 {"records_total", report.records_total()},
                 {"dropped_total", report.dropped_total()},
                 {"totals", json::array()},
                 {"records", json::array()}};
  for (const auto& total : report.totals()) {
    result["totals"].push_back({{"device", total.device()},
                                {"op", total.op()},
                                {"dtype", total.dtype()},
                                {"count", total.count()},
                                {"output_bytes", total.output_bytes()},
                                {"host_seconds", static_cast<double>(total.host_ns()) / 1e9},
                                {"soft_placed", total.soft_placed()}});
  }
  for (const auto& record : report.records()) result["records"].push_back(ToJson(record));
  result["copies_total"] = report.copies_total();
  result["copy_totals"] = json::array();
  for (const auto& total : report.copy_totals()) {
    result["copy_totals"].push_back({{"source", total.source()},
                                     {"target", total.target()},
                                     {"count", total.count()},
                                     {"bytes", total.bytes()},
                                     {"host_seconds", static_cast<double>(total.host_ns()) / 1e9}});
  }
  result["copies"] = json::array();
  for (const auto& copy : report.copies()) result["copies"].push_back(CopyToJson(copy));
  return result;
}

json ToJson(const PlacementRecord& record) {
  if (record.has_copy()) {
    json copy = CopyToJson(record.copy());
    copy["schema"] = "lgpu.copy/v1";
    return copy;
  }
  json result = {{"schema", "lgpu.placement/v1"},
                 {"sequence", record.sequence()},
                 {"session_id", record.session_id()},
                 {"pid", record.pid()},
                 {"op", record.op()},
                 {"dtype", record.dtype()},
                 {"requested_device", record.requested_device()},
                 {"device", record.device()},
                 {"output_bytes", record.output_bytes()},
                 {"submitted_at", FormatIso8601(record.submitted_at())},
                 {"host_seconds", static_cast<double>(record.host_ns()) / 1e9},
                 {"soft_placed", record.soft_placed()}};
  if (record.has_device_ns()) result["device_seconds"] = static_cast<double>(record.device_ns()) / 1e9;
  return result;
}

json ToJson(const Event& event) {
  json result = {{"schema", "lgpu.event/v1"},
                 {"sequence", event.sequence()},
                 {"at", FormatIso8601(event.at())},
                 {"kind", ShortName(Event::Kind_Name(event.kind()), "KIND_")},
                 {"text", event.text()}};
  if (!event.lease_id().empty()) result["lease"] = {{"id", event.lease_id()}, {"name", event.lease_name()}};
  if (event.session_id() != 0) result["session_id"] = event.session_id();
  if (event.pid() != 0) result["pid"] = event.pid();
  if (event.has_refusal()) result["refusal"] = RefusalToJson(RefusalFromProto(event.refusal()));
  return result;
}

json ToJson(const Diagnosis::Finding& finding) {
  return {{"id", finding.id()},
          {"level", ShortName(Diagnosis::Level_Name(finding.level()), "LEVEL_")},
          {"text", finding.text()}};
}

json ToJson(const Diagnosis::Setting& setting) {
  return {{"key", setting.key()}, {"value", setting.value()}, {"origin", setting.origin()}};
}

}  // namespace v1

std::string FormatIso8601(const google::protobuf::Timestamp& time) {
  const std::time_t seconds = time.seconds();
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "";
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", parts.tm_year + 1900, parts.tm_mon + 1,
                         parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, time.nanos() / 1'000);
}

std::string JsonLine(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace lgpu
