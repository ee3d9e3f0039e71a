#ifndef LGPU_DAEMON_CONFIG_H_
#define LGPU_DAEMON_CONFIG_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lgpu/bytes.h"

namespace lgpu::daemon {

/// One simulated GPU.
struct SimulatedDeviceConfig {
  Bytes memory;
  std::string uuid;  // empty: made from the runtime directory and the index
  std::string name = "Simulated GPU";
  bool sparse = false;  // do not allocate chunks really: more memory than the machine has
};

/// Caps for one user or group, over all of its leases; an absent one does not limit.
struct CapConfig {
  std::string name;                   // a user or group name, or a number; "*": everybody else
  std::optional<Bytes> memory_limit;  // sum of limits of its logical devices
  std::optional<Bytes> guarantee;     // sum of guarantees
  std::optional<std::uint32_t> leases;
};

/// A Config is lgpud's whole configuration, after defaults, files, environment and flags.
struct Config {
  std::string runtime_dir;  // sockets, lock, journal
  std::string state_dir;    // leases that were made to last
  std::string lock_dir;     // one lock per physical device, machine-wide
  std::string socket_group = "lgpu";
  std::uint32_t socket_mode = 0660;
  std::string cuda_visible_devices;  // as the environment has it
  bool has_cuda_visible_devices = false;
  std::vector<SimulatedDeviceConfig> simulated;  // empty: the machine's GPUs
  Bytes reserve;                                 // of every card, never granted
  Bytes overhead_allowance;                      // charged per session and card until measured
  std::vector<CapConfig> user_caps;
  std::vector<CapConfig> group_caps;
  std::uint32_t placement_records = 1024;  // kept per lease
  std::uint32_t kept_events = 1024;
  std::uint32_t max_sessions = 4096;
  std::string log_level = "info";
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_CONFIG_H_
