#ifndef LGPU_TESTS_SIMULATION_CONTROL_CALLS_H_
#define LGPU_TESTS_SIMULATION_CONTROL_CALLS_H_

#include <chrono>
#include <functional>

#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "daemon/leases/lease_table.h"

namespace lgpu::simulation {

/// What a call of the control plane does inside lgpud, on a thread of lgpud.
using ControlBody = std::function<absl::Status(daemon::LeaseTable&)>;

/// Calls lgpud from another process, as gRPC would: UNAVAILABLE where no lgpud serves, or where it dies
/// before its answer is there. The call may have had its effect then.
absl::Status CallControl(ControlBody body);

/// The deadline of such calls.
inline std::chrono::steady_clock::time_point InTwoSeconds() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(2);
}

/// The broker of the lgpud that serves; null: none does, or it is starting.
const Broker* ServingBroker();

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_CONTROL_CALLS_H_
