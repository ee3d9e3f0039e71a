#ifndef LGPU_CLIENT_RUNTIME_TENSOR_BUFFER_H_
#define LGPU_CLIENT_RUNTIME_TENSOR_BUFFER_H_

#include <memory>
#include <utility>

#include "client/runtime/device.h"
#include "kernels/op.h"
#include "lgpu/pool.h"
#include "lgpu/tensor.h"

namespace lgpu::internal {

class ContextState;

/// A TensorBuffer is what the copies of a Tensor share: its memory on one device, and what is in it. Its
/// destructor gives the memory back, unless the context did so before.
class TensorBuffer {
 public:
  /// `block` belongs to the buffer now; it is empty for a tensor without elements.
  TensorBuffer(std::shared_ptr<ContextState> state, Device& device, const TensorSpec& spec,
               const Block& block)
      : state_(std::move(state)), device_(device), spec_(spec), block_(block) {}
  ~TensorBuffer();
  TensorBuffer(const TensorBuffer&) = delete;
  TensorBuffer& operator=(const TensorBuffer&) = delete;

  const std::shared_ptr<ContextState>& state() const { return state_; }
  Device& device() const { return device_; }
  const TensorSpec& spec() const { return spec_; }
  Bytes bytes() const { return SpecBytes(spec_); }
  std::byte* data() const { return block_.address; }
  TensorView view() const { return {block_.address, spec_}; }

  static Bytes SpecBytes(const TensorSpec& spec) {
    return Bytes(static_cast<std::uint64_t>(spec.shape.elements()) * ElementBytes(spec.dtype));
  }
  static Tensor MakeTensor(std::shared_ptr<TensorBuffer> buffer) { return Tensor(std::move(buffer)); }
  /// Null for a tensor without value.
  static const std::shared_ptr<TensorBuffer>& Of(const Tensor& tensor) { return tensor.buffer_; }

 private:
  const std::shared_ptr<ContextState> state_;
  Device& device_;  // of state_
  const TensorSpec spec_;
  const Block block_;
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_TENSOR_BUFFER_H_
