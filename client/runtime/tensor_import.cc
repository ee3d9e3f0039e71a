#include "lgpu/tensor_import.h"

#include <string>
#include <vector>

#include "client/runtime/context_maker.h"
#include "client/runtime/executor.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<TensorImport> TensorImport::Open(const Context& context, int cuda_device) {
  const std::shared_ptr<internal::ContextState>& state = internal::ContextMaker::StateOf(context);
  if (state == nullptr) {
    return absl::FailedPreconditionError("this Context was moved from; use the one that it was moved to");
  }
  if (state->IsForked()) return state->ClosedError();
  const internal::GatePass pass = state->Pass();
  if (!pass) return state->ClosedError();
  LGPU_ASSIGN_OR_RETURN(const int gpu, internal::ChooseImporter(*state, cuda_device));
  LGPU_ASSIGN_OR_RETURN(void* const stream, state->device(gpu).NativeStream());
  return TensorImport(state, gpu, stream);
}

absl::StatusOr<Tensor> TensorImport::Copy(DType dtype, const Shape& shape, const void* data) const {
  return internal::MakeImported(state_, {dtype, shape}, gpu_, data);
}

}  // namespace lgpu
