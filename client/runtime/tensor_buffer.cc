#include "client/runtime/tensor_buffer.h"

#include "client/runtime/context_state.h"

namespace lgpu::internal {

TensorBuffer::~TensorBuffer() {
  if (block_.address == nullptr) return;
  if (!device_.is_gpu()) {
    device_.Free(block_, bytes());  // host memory is this process's own, whatever became of the context
    return;
  }
  if (state_->IsForked()) return;
  const GatePass pass(state_->free_gate());
  if (pass) device_.Free(block_, bytes());
}

}  // namespace lgpu::internal
