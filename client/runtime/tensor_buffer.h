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

/// A TensorBuffer is shared by the copies of a Tensor: its memory on one device, with its content. Its
/// destructor gives the memory back, unless the context did so before. A part of another buffer has no memory
/// of its own, and keeps that one.
class TensorBuffer {
 public:
  /// `block` belongs to the buffer now; it is empty for a tensor without elements.
  TensorBuffer(std::shared_ptr<ContextState> state, Device& device, const TensorSpec& spec,
               const Block& block)
      : state_(std::move(state)), device_(device), spec_(spec), block_(block), data_(block.address) {}
  /// A part of `whole`, from byte `offset` on; `spec` ends within it.
  TensorBuffer(const std::shared_ptr<TensorBuffer>& whole, const TensorSpec& spec, Bytes offset)
      : state_(whole->state_),
        device_(whole->device_),
        spec_(spec),
        block_{},
        whole_(whole),
        data_(whole->data_ == nullptr ? nullptr : whole->data_ + offset.count()) {}
  ~TensorBuffer();
  TensorBuffer(const TensorBuffer&) = delete;
  TensorBuffer& operator=(const TensorBuffer&) = delete;

  const std::shared_ptr<ContextState>& state() const { return state_; }
  Device& device() const { return device_; }
  const TensorSpec& spec() const { return spec_; }
  Bytes bytes() const { return SpecBytes(spec_); }
  std::byte* data() const { return data_; }
  TensorView view() const { return {data_, spec_}; }
  /// The memory that it lies in; empty for a tensor without elements.
  const Block& block() const { return whole_ == nullptr ? block_ : whole_->block(); }

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
  const Block block_;                          // empty: there is none, or it is that of `whole_`
  const std::shared_ptr<TensorBuffer> whole_;  // null for a buffer with memory of its own
  std::byte* const data_;
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_TENSOR_BUFFER_H_
