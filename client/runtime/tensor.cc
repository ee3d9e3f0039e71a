#include "lgpu/tensor.h"

#include <algorithm>
#include <ostream>
#include <span>

#include "client/runtime/context_state.h"
#include "client/runtime/copies.h"
#include "client/runtime/tensor_buffer.h"
#include "kernels/text.h"
#include "lgpu/status.h"
#include "lgpu/tensor_export.h"

namespace lgpu {

namespace {

constexpr std::int64_t kPrintAll = 1000;  // elements; larger tensors show the ends of their axes
constexpr std::int64_t kEdge = 3;

bool IsOnRealGpu(const internal::TensorBuffer& buffer) {
  const internal::Device& device = buffer.device();
  return device.is_gpu() && !buffer.state()->infos()[static_cast<std::size_t>(device.index())].simulated;
}

absl::Status NoValue() { return absl::InvalidArgumentError("this Tensor has no value"); }

void PrintElement(std::ostream& out, DType dtype, const std::byte* element) {
  const auto as = [element]<typename T>(T value) {
    std::copy_n(element, sizeof(T), reinterpret_cast<std::byte*>(&value));
    return value;
  };
  switch (dtype) {
    case DType::kFloat32:
      out << as(float{});
      return;
    case DType::kFloat64:
      out << as(double{});
      return;
    case DType::kInt32:
      out << as(std::int32_t{});
      return;
    case DType::kInt64:
      out << as(std::int64_t{});
      return;
    case DType::kFloat16:
      out << HalfToFloat(as(Half{}));
      return;
    case DType::kBFloat16:
      out << BFloat16ToFloat(as(BFloat16{}));
      return;
    case DType::kInvalid:
      return;
  }
}

/// Prints axis `axis` and all below it; `data` is the first element, `elements` how many there are.
void PrintAxis(std::ostream& out, const Tensor& tensor, int axis, const std::byte* data,
               std::int64_t elements) {
  const Shape& shape = tensor.shape();
  if (axis == shape.rank()) return PrintElement(out, tensor.dtype(), data);
  const std::int64_t length = shape[axis];
  const std::int64_t step = length == 0 ? 0 : elements / length;
  const bool shorten = shape.elements() > kPrintAll && length > 2 * kEdge;
  out << '[';
  for (std::int64_t i = 0; i < length; ++i) {
    if (i != 0) out << ' ';
    if (shorten && i == kEdge) {
      out << "... ";
      i = length - kEdge;
    }
    PrintAxis(out, tensor, axis + 1, data + static_cast<std::size_t>(i * step) * ElementBytes(tensor.dtype()),
              step);
  }
  out << ']';
}

}  // namespace

DType Tensor::dtype() const { return has_value() ? buffer_->spec().dtype : DType::kInvalid; }

const Shape& Tensor::shape() const {
  static const Shape kNothing{0};
  return has_value() ? buffer_->spec().shape : kNothing;
}

Bytes Tensor::bytes() const { return has_value() ? buffer_->bytes() : Bytes(); }

const std::string& Tensor::device() const {
  static const std::string kNowhere;
  return has_value() ? buffer_->device().name() : kNowhere;
}

absl::Status Tensor::CopyToHost(void* to, std::size_t size) const {
  if (!has_value()) return NoValue();
  internal::ContextState& state = *buffer_->state();
  if (state.IsForked()) return state.ClosedError();
  const internal::GatePass pass = state.Pass();
  if (!pass) return state.ClosedError();
  if (size != bytes().count()) {
    return absl::InvalidArgumentError(Cat("the tensor, ", DTypeName(dtype()), " of shape ",
                                          shape().ToString(), ", has ", bytes().count(),
                                          " bytes; the buffer has ", size));
  }
  return internal::CopyToHost(*buffer_, {static_cast<std::byte*>(to), size});
}

int Tensor::cuda_device() const { return has_value() ? buffer_->device().cuda_device() : -1; }

absl::StatusOr<TensorExport> Tensor::Export(const ExportOptions& options) const {
  if (!has_value()) return NoValue();
  internal::ContextState& state = *buffer_->state();
  if (state.IsForked()) return state.ClosedError();
  const internal::GatePass pass = state.Pass();
  if (!pass) return state.ClosedError();
  internal::Device& device = buffer_->device();
  std::shared_ptr<internal::TensorBuffer> lent = buffer_;
  if (options.copies) {
    LGPU_ASSIGN_OR_RETURN(lent, internal::MakeCopy(buffer_, device, IdentityOp()));
  }
  if (!device.is_gpu()) return TensorExport(std::move(lent), true);
  if (!IsOnRealGpu(*buffer_)) {
    LGPU_RETURN_IF_ERROR(device.Synchronize());
  } else if (device.cuda_device() < 0) {
    return absl::FailedPreconditionError(
        Cat(device.name(),
            " is on a card that the CUDA driver does not list in this process, so no other code can "
            "find the tensor there; copy it to the host"));
  } else if (options.orders_stream) {
    LGPU_RETURN_IF_ERROR(device.LetFollow(options.stream));
  }
  LGPU_RETURN_IF_ERROR(state.AddExport(bytes()));
  return TensorExport(std::move(lent), options.orders_stream && CallerStreams::IsDefault(options.stream));
}

TensorExport::~TensorExport() { Release(); }

TensorExport& TensorExport::operator=(TensorExport&& other) noexcept {
  if (this != &other) {
    Release();
    buffer_ = std::move(other.buffer_);
    on_default_stream_ = other.on_default_stream_;
  }
  return *this;
}

const void* TensorExport::data() const { return buffer_ == nullptr ? nullptr : buffer_->data(); }

// The block is freed before the export is taken off the count: the last one shuts the pool down.
void TensorExport::Release() {
  if (buffer_ == nullptr) return;
  const std::shared_ptr<internal::ContextState> state = buffer_->state();
  internal::Device& device = buffer_->device();
  const bool counted = device.is_gpu();
  const Bytes bytes = buffer_->bytes();
  if (IsOnRealGpu(*buffer_) && !bytes.is_zero() && !state->IsForked()) {
    using UsedOn = internal::Device::UsedOn;
    device.EndOutsideUse(buffer_->block(), on_default_stream_ ? UsedOn::kDefaultStreams : UsedOn::kAnyStream);
  }
  buffer_.reset();
  if (counted) state->RemoveExport(bytes);
}

absl::Status Tensor::CheckType(DType expected) const {
  if (!has_value()) return NoValue();
  if (dtype() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat("the tensor holds ", DTypeName(dtype()), ", not ",
                                        DTypeName(expected), "; ask for that type, or Cast it"));
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  std::vector<std::byte> data(tensor.bytes().count());
  if (const absl::Status status = tensor.CopyToHost(data.data(), data.size()); !status.ok()) {
    return out << "<" << status.ToString() << ">";
  }
  PrintAxis(out, tensor, 0, data.data(), tensor.shape().elements());
  return out;
}

}  // namespace lgpu
