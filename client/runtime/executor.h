#ifndef LGPU_CLIENT_RUNTIME_EXECUTOR_H_
#define LGPU_CLIENT_RUNTIME_EXECUTOR_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "client/runtime/context_state.h"

namespace lgpu::internal {

/// Runs an op eagerly: checks its inputs, places it, brings the inputs there, launches the kernel, and
/// records it. At least one input; all of one open context.
using Outputs = absl::InlinedVector<Tensor, 1>;
absl::StatusOr<Outputs> ExecuteAll(const Op& op, std::span<const Tensor* const> inputs,
                                   const OpAttributes& attributes);
/// Its first output.
absl::StatusOr<Tensor> Execute(const Op& op, std::span<const Tensor* const> inputs,
                               const OpAttributes& attributes);

/// The tensor on that device: itself, or a copy. "... unknown device." where there is none, soft placement or
/// not.
absl::StatusOr<Tensor> CopyToNamed(const Tensor& tensor, std::string_view device);

/// A constant, placed like an op. By value: a sink may let the Context go meanwhile.
absl::StatusOr<Tensor> MakeConstant(std::shared_ptr<ContextState> state, const TensorSpec& spec,
                                    std::span<const std::byte> values);

/// The position of the GPU on that card which an array there is copied to. NOT_FOUND: there is none.
/// Callers are behind the gate.
absl::StatusOr<int> ChooseImporter(ContextState& state, int cuda_device);
/// A constant with what other code has at `data` in the memory of that GPU's card, placed as TensorImport
/// says.
absl::StatusOr<Tensor> MakeImported(const std::shared_ptr<ContextState>& state, const TensorSpec& spec,
                                    int gpu, const void* data);

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_EXECUTOR_H_
