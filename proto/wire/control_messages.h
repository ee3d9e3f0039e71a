#ifndef LGPU_PROTO_WIRE_CONTROL_MESSAGES_H_
#define LGPU_PROTO_WIRE_CONTROL_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/wire/encoding.h"

/// The messages of the control service that programs send and receive, as plain structs: those of
/// lgpu/v1/control.proto and lgpu/v1/stats.proto, which say what each field means. A test holds every number,
/// name and type against them.

namespace lgpu::wire {

/// google.protobuf.Timestamp.
struct Timestamp {
  std::int64_t seconds = 0;
  std::int32_t nanos = 0;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.seconds);
    visit(2, m.nanos);
  }
};

struct ForeignProcess {
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
  std::string user;
  std::string command;
  std::uint64_t used_bytes = 0;
  std::optional<std::uint32_t> sm_percent;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.pid);
    visit(2, m.uid);
    visit(3, m.user);
    visit(4, m.command);
    visit(5, m.used_bytes);
    visit(6, m.sm_percent);
  }
};

struct QueuedRequest {
  std::uint32_t place = 0;
  std::string owner;
  std::int64_t pid = 0;
  std::string lease_name;
  std::string device;
  std::uint64_t asked_bytes = 0;
  std::uint64_t waited_ms = 0;
  std::uint32_t turns = 0;
  std::optional<std::uint64_t> turn_left_ms;
  bool makes_lease = false;
  std::string what;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.place);
    visit(2, m.owner);
    visit(3, m.pid);
    visit(4, m.lease_name);
    visit(5, m.device);
    visit(6, m.asked_bytes);
    visit(7, m.waited_ms);
    visit(8, m.turns);
    visit(9, m.turn_left_ms);
    visit(10, m.makes_lease);
    visit(11, m.what);
  }
};

struct CardStats {
  std::uint32_t index = 0;
  std::string uuid;
  std::string name;
  std::string pci_bus_id;
  bool simulated = false;
  bool served = false;
  std::string not_served_because;
  std::uint64_t total_bytes = 0;
  std::uint64_t reserve_bytes = 0;
  std::uint64_t held_bytes = 0;
  std::uint64_t promised_bytes = 0;
  std::uint64_t overhead_bytes = 0;
  std::optional<std::uint64_t> foreign_bytes;
  std::uint64_t free_bytes = 0;
  std::uint64_t granularity_bytes = 0;
  bool overcommitted = false;
  std::uint64_t waiting_requests = 0;
  std::uint64_t draining_bytes = 0;
  std::uint32_t compute_major = 0;
  std::uint32_t compute_minor = 0;
  std::optional<std::uint32_t> multiprocessors;
  std::vector<ForeignProcess> foreign_processes;
  std::vector<QueuedRequest> queue;
  std::optional<std::uint32_t> minor;
  std::optional<std::uint32_t> utilization_percent;
  std::optional<std::uint32_t> temperature_celsius;
  std::optional<std::uint32_t> power_milliwatts;
  std::optional<std::uint32_t> power_limit_milliwatts;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.index);
    visit(2, m.uuid);
    visit(3, m.name);
    visit(4, m.pci_bus_id);
    visit(5, m.simulated);
    visit(6, m.served);
    visit(7, m.not_served_because);
    visit(8, m.total_bytes);
    visit(9, m.reserve_bytes);
    visit(10, m.held_bytes);
    visit(11, m.promised_bytes);
    visit(12, m.overhead_bytes);
    visit(13, m.foreign_bytes);
    visit(14, m.free_bytes);
    visit(15, m.granularity_bytes);
    visit(16, m.overcommitted);
    visit(17, m.waiting_requests);
    visit(18, m.draining_bytes);
    visit(19, m.compute_major);
    visit(20, m.compute_minor);
    visit(21, m.multiprocessors);
    visit(22, m.foreign_processes);
    visit(23, m.queue);
    visit(24, m.minor);
    visit(25, m.utilization_percent);
    visit(26, m.temperature_celsius);
    visit(27, m.power_milliwatts);
    visit(28, m.power_limit_milliwatts);
  }
};

struct ListPhysicalDevicesRequest {
  static void Fields(auto&&, auto&) {}
};

struct ListPhysicalDevicesResponse {
  std::vector<CardStats> devices;
  static void Fields(auto&& visit, auto& m) { visit(1, m.devices); }
};

struct LogicalDeviceSpec {
  enum class Mode : std::int32_t { kUnspecified = 0, kGrowth = 1, kPreallocate = 2 };
  std::string card_uuid;
  std::uint64_t memory_limit_bytes = 0;
  std::uint64_t guarantee_bytes = 0;
  Mode mode = Mode::kUnspecified;
  std::vector<std::string> candidate_uuids;
  std::string name;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.card_uuid);
    visit(2, m.memory_limit_bytes);
    visit(3, m.guarantee_bytes);
    visit(4, m.mode);
    visit(5, m.candidate_uuids);
    visit(6, m.name);
  }
};

struct LogicalDevice {
  std::uint64_t id = 0;
  std::uint32_t index = 0;
  std::string name;
  std::string label;
  std::string card_uuid;
  std::uint32_t card_index = 0;
  std::uint64_t memory_limit_bytes = 0;
  std::uint64_t guarantee_bytes = 0;
  LogicalDeviceSpec::Mode mode = LogicalDeviceSpec::Mode::kUnspecified;
  std::uint64_t granularity_bytes = 0;
  std::uint64_t card_total_bytes = 0;
  std::string card_name;
  std::string pci_bus_id;
  std::uint32_t compute_major = 0;
  std::uint32_t compute_minor = 0;
  bool simulated = false;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.id);
    visit(2, m.index);
    visit(3, m.name);
    visit(4, m.label);
    visit(5, m.card_uuid);
    visit(6, m.card_index);
    visit(7, m.memory_limit_bytes);
    visit(8, m.guarantee_bytes);
    visit(9, m.mode);
    visit(10, m.granularity_bytes);
    visit(11, m.card_total_bytes);
    visit(12, m.card_name);
    visit(13, m.pci_bus_id);
    visit(14, m.compute_major);
    visit(15, m.compute_minor);
    visit(16, m.simulated);
  }
};

struct Label {
  std::string key;
  std::string value;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.key);
    visit(2, m.value);
  }
};

struct Management {
  std::vector<Label> labels;
  std::uint64_t time_to_live_ms = 0;
  std::string end_with_cgroup;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.labels);
    visit(2, m.time_to_live_ms);
    visit(3, m.end_with_cgroup);
  }
};

struct LeaseEnds {
  std::uint64_t time_to_live_ms = 0;
  std::uint64_t when_idle_ms = 0;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.time_to_live_ms);
    visit(2, m.when_idle_ms);
  }
};

struct Lease {
  std::string id;
  std::string name;
  std::uint32_t owner_uid = 0;
  std::string owner;
  bool lasting = false;
  std::optional<Timestamp> created_at;
  std::vector<LogicalDevice> devices;
  std::uint32_t sessions = 0;
  std::uint32_t sessions_ever = 0;
  std::optional<Management> management;
  std::optional<LeaseEnds> ends;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.id);
    visit(2, m.name);
    visit(3, m.owner_uid);
    visit(4, m.owner);
    visit(5, m.lasting);
    visit(6, m.created_at);
    visit(7, m.devices);
    visit(8, m.sessions);
    visit(9, m.sessions_ever);
    visit(10, m.management);
    visit(11, m.ends);
  }
};

struct CreateLeaseRequest {
  std::string name;
  bool lasting = false;
  std::vector<LogicalDeviceSpec> devices;
  std::string request_id;
  std::optional<Management> management;
  std::uint32_t owner_uid = 0;
  std::optional<LeaseEnds> ends;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.name);
    visit(2, m.lasting);
    visit(3, m.devices);
    visit(4, m.request_id);
    visit(5, m.management);
    visit(6, m.owner_uid);
    visit(7, m.ends);
  }
};

struct AttachLeaseRequest {
  std::string lease;
  static void Fields(auto&& visit, auto& m) { visit(1, m.lease); }
};

struct GetLeaseRequest {
  std::string lease;
  static void Fields(auto&& visit, auto& m) { visit(1, m.lease); }
};

struct ResizeLeaseRequest {
  struct Device {
    std::uint32_t index = 0;
    std::uint64_t memory_limit_bytes = 0;
    std::optional<std::uint64_t> guarantee_bytes;
    bool whole_card = false;
    static void Fields(auto&& visit, auto& m) {
      visit(1, m.index);
      visit(2, m.memory_limit_bytes);
      visit(3, m.guarantee_bytes);
      visit(4, m.whole_card);
    }
  };
  std::string lease;
  std::vector<Device> devices;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.lease);
    visit(2, m.devices);
  }
};

}  // namespace lgpu::wire

#endif  // LGPU_PROTO_WIRE_CONTROL_MESSAGES_H_
