#ifndef LGPU_CLIENT_RUNTIME_CONTEXT_MAKER_H_
#define LGPU_CLIENT_RUNTIME_CONTEXT_MAKER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/runtime/context_state.h"
#include "client/session/lease.h"
#include "lgpu/context.h"

namespace lgpu::internal {

/// Between a Context and its state. Make is the second half of Context::Create, on a lease that is already
/// open: for tests of all that is above the lease.
struct ContextMaker {
  static absl::StatusOr<Context> Make(std::unique_ptr<Lease> lease, const ContextOptions& options,
                                      const RuntimeOptions& runtime = {});
  /// Null: the Context was moved from.
  static const std::shared_ptr<ContextState>& StateOf(const Context& context) { return context.state_; }
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_CONTEXT_MAKER_H_
