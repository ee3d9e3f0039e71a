#ifndef LGPU_CLIENT_RUNTIME_SCOPE_STACK_H_
#define LGPU_CLIENT_RUNTIME_SCOPE_STACK_H_

#include "client/runtime/context_state.h"

namespace lgpu::internal {

/// The request of this thread's innermost DeviceScope in this context; null: there is none.
const DeviceRequest* CurrentRequest(const ContextState& state);
/// The innermost DevicePolicyScope's policy; the context's where there is none.
DevicePolicy CurrentPolicy(const ContextState& state);

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_SCOPE_STACK_H_
