#ifndef LGPU_CLIENT_RUNTIME_COPIES_H_
#define LGPU_CLIENT_RUNTIME_COPIES_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/runtime/context_state.h"

namespace lgpu::internal {

// Contents of tensors between devices and the host. Callers are behind the gate of the tensor's context.

/// A copy of `from` on `to`, ordered on the streams of both; it is counted. `op` asked for it.
absl::StatusOr<std::shared_ptr<TensorBuffer>> CopyTo(const std::shared_ptr<TensorBuffer>& from, Device& to,
                                                     const Op& op);
/// The same, not counted; `to` may be the device of `from`.
absl::StatusOr<std::shared_ptr<TensorBuffer>> MakeCopy(const std::shared_ptr<TensorBuffer>& from, Device& to,
                                                       const Op& op);
/// Whether the policy of this thread lets input `index` of `op` be copied to `to`; says so where TensorFlow
/// does.
absl::Status CheckCopyPolicy(ContextState& state, const Op& op, std::size_t index, const TensorBuffer& input,
                             const Device& to);

/// A new tensor with `values`, which may go when this returns. `op` is for the refusal.
absl::StatusOr<std::shared_ptr<TensorBuffer>> MakeFromHost(const std::shared_ptr<ContextState>& state,
                                                           Device& device, const TensorSpec& spec,
                                                           const Op& op, std::span<const std::byte> values);
/// A new tensor on a real GPU with what other code has at `from` in the same card's memory, which may go when
/// this returns.
absl::StatusOr<std::shared_ptr<TensorBuffer>> MakeFromOutside(const std::shared_ptr<ContextState>& state,
                                                              Device& device, const TensorSpec& spec,
                                                              const Op& op, const void* from);
/// Waits for the tensor and copies it; `to` has its size.
absl::Status CopyToHost(const TensorBuffer& from, std::span<std::byte> to);

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_COPIES_H_
