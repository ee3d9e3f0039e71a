#ifndef LGPU_CLIENT_RUNTIME_CONFIG_IMPL_H_
#define LGPU_CLIENT_RUNTIME_CONFIG_IMPL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/config_state.h"
#include "client/runtime/context_state.h"
#include "client/session/endpoint.h"
#include "client/session/lease.h"
#include "lgpu/config.h"

namespace lgpu {

/// The parts of a Config: its rules, a Context's options beside devices, and the Context that it made.
class Config::Impl {
 public:
  explicit Impl(ConfigState config_state) : state(std::move(config_state)) {}

  /// The Context that was made and is open; null. Tells the state.
  std::shared_ptr<internal::ContextState> Live();
  std::shared_ptr<internal::ContextState> LiveContext() const;
  absl::StatusOr<ConfigState::Plan> MakePlan(std::vector<std::string>& notes) const;
  /// MakePlan with the memory that the machine has now, for a Context. Waits, bounded, for memory on its way
  /// back that a limit of the plan counts on. Notes are logged. Errors as ConfigState::CheckPlan.
  absl::StatusOr<ConfigState::Plan> MakePlanOfNow();
  /// Gives the live Context the sizes of `changed`; on an error its sizes are as before.
  absl::Status Resize(internal::ContextState& context, const ConfigState& changed) const;
  /// This program runs inside a lease of a daemon (LGPU_LEASE): its GPUs are the lease's.
  bool IsInLease() const;
  /// The lease, split as the plan says.
  absl::StatusOr<std::unique_ptr<Lease>> OpenSplitLease(const ConfigState::Plan& plan,
                                                        const ContextOptions& given) const;
  /// INVALID_ARGUMENT: options that a Context of this Config cannot have.
  absl::Status CheckOptions(const ContextOptions& given) const;
  void Log(const std::vector<std::string>& notes) const;

  ConfigState state;
  Endpoint endpoint;
  ContextOptions options;  // without logical devices
  std::weak_ptr<internal::ContextState> live;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_CONFIG_IMPL_H_
