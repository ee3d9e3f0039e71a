#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lgpu/context.h"
#include "lgpu/tensor_export.h"
#include "lgpu/tensor_import.h"
#include "python/module/bind.h"
#include "python/module/dlpack_abi.h"
#include "python/module/errors.h"
#include "python/module/scopes.h"
#include "python/module/sinks.h"
#include "python/module/words.h"

namespace lgpu::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

dlpack::DataType TypeOf(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * ElementBytes(dtype));
  switch (dtype) {
    case DType::kInt32:
    case DType::kInt64:
      return {dlpack::kInt, bits, 1};
    case DType::kBFloat16:
      return {dlpack::kBfloat, bits, 1};
    default:
      return {dlpack::kFloat, bits, 1};
  }
}

DType LgpuTypeOf(const dlpack::DataType& type) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64, DType::kBFloat16, DType::kFloat16}) {
    const dlpack::DataType known = TypeOf(dtype);
    if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return dtype;
  }
  return DType::kInvalid;
}

dlpack::Device DeviceOf(const Tensor& tensor) {
  const int cuda_device = tensor.cuda_device();
  return cuda_device < 0 ? dlpack::Device{dlpack::kCpu, 0} : dlpack::Device{dlpack::kCuda, cuda_device};
}

/// The content of a capsule: the memory, and the shape that it points at. Deleted on any thread, with or
/// without the interpreter.
struct Lent {
  TensorExport tensor;
  std::unique_ptr<std::byte[]> copy;  // on the host
  dlpack::Device device = {dlpack::kCpu, 0};
  bool writable = false;
  std::array<std::int64_t, Shape::kMaxRank> shape{};
  std::array<std::int64_t, Shape::kMaxRank> strides{};

  dlpack::Array Describe(const Tensor& of) {
    const Shape& dimensions = of.shape();
    std::int64_t stride = 1;
    for (int i = dimensions.rank() - 1; i >= 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      shape[at] = dimensions[i];
      strides[at] = stride;
      stride *= dimensions[i] == 0 ? 1 : dimensions[i];
    }
    void* const data = copy != nullptr ? copy.get() : const_cast<void*>(tensor.data());
    return {data,
            device,
            dimensions.rank(),
            TypeOf(of.dtype()),
            shape.data(),
            dimensions.rank() == 0 ? nullptr : strides.data(),
            0};
  }
};

struct VersionedCapsule {
  using Managed = dlpack::ManagedVersioned;
  static constexpr const char* kName = dlpack::kVersionedName;
};
struct LegacyCapsule {
  using Managed = dlpack::Managed;
  static constexpr const char* kName = dlpack::kName;
};

// The end of the last array of a Context that is gone closes it, which waits for the daemon and other
// threads.
template <typename Kind>
void Delete(typename Kind::Managed* managed) {
  const std::unique_ptr<typename Kind::Managed> owned(managed);
  LetGo(std::shared_ptr<Lent>(static_cast<Lent*>(owned->manager)));
}

/// A capsule whose name is still its first was never consumed.
template <typename Kind>
void EndCapsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, Kind::kName) == 0) return;
  auto* const managed = static_cast<typename Kind::Managed*>(PyCapsule_GetPointer(capsule, Kind::kName));
  managed->deleter(managed);
}

template <typename Kind>
nb::object NewCapsule(const Tensor& tensor, Lent lent) {
  auto managed = std::make_unique<typename Kind::Managed>();
  auto owned = std::make_unique<Lent>(std::move(lent));
  managed->array = owned->Describe(tensor);
  if constexpr (std::is_same_v<Kind, VersionedCapsule>) {
    managed->version = {1, 0};
    managed->flags = owned->writable ? dlpack::kIsCopied : dlpack::kReadOnly;
  }
  managed->deleter = &Delete<Kind>;
  managed->manager = owned.get();
  nb::object capsule = nb::steal(PyCapsule_New(managed.get(), Kind::kName, &EndCapsule<Kind>));
  if (!capsule.is_valid()) throw nb::python_error();
  [[maybe_unused]] const Lent* const kept = owned.release();
  [[maybe_unused]] const auto* const also_kept = managed.release();
  return capsule;
}

[[noreturn]] void BufferError(const std::string& text) {
  PyErr_SetString(PyExc_BufferError, text.c_str());
  throw nb::python_error();
}

std::string TextOf(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

/// What a consumer asks for in a call of __dlpack__.
struct Request {
  bool to_host = false;       // memory of the CPU
  bool copy = false;          // memory that no tensor has
  void* stream = nullptr;     // of a GPU's
  bool orders_stream = true;  // false: the consumer waits for the tensor itself
};

/// The array API's number of a CUDA stream; nothing: -1.
std::optional<void*> CudaStreamOf(nb::handle stream) {
  if (stream.is_none()) return nullptr;
  if (PyLong_Check(stream.ptr()) == 0 || PyBool_Check(stream.ptr()) != 0) {
    throw nb::type_error(("stream is " + nb::cast<std::string>(nb::repr(stream)) +
                          "; it is an int, as the array API numbers CUDA streams, or None")
                             .c_str());
  }
  const long long number = PyLong_AsLongLong(stream.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (number == -1) return std::nullopt;
  if (number == 0 || number < 0) {
    throw StatusError(absl::InvalidArgumentError(
        "stream=" + std::to_string(number) +
        (number == 0 ? " may be any of CUDA's default streams" : " is no stream of CUDA") +
        "; pass 1 for the legacy default stream, 2 for the thread's own, the handle of another, or -1 to "
        "order the work yourself"));
  }
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
}

Request RequestOf(dlpack::Device on, nb::handle stream, nb::handle dl_device, nb::handle copy) {
  Request request;
  request.copy = !copy.is_none() && nb::cast<bool>(copy);
  request.to_host = on.type == dlpack::kCpu;
  if (!dl_device.is_none()) {
    // Consumers also pass their own enumeration.
    const int type = nb::cast<int>(nb::int_(nb::object(nb::borrow(dl_device)[0])));
    const int id = nb::cast<int>(nb::int_(nb::object(nb::borrow(dl_device)[1])));
    if (type != dlpack::kCpu && (type != on.type || id != on.id)) {
      BufferError("dl_device=" + TextOf(dl_device) + ": lgpu gives this tensor as memory of device (" +
                  std::to_string(on.type) + ", " + std::to_string(on.id) +
                  (on.type == dlpack::kCpu ? ")" : ") or, as a copy, of the CPU, (1, 0)"));
    }
    if (type == dlpack::kCpu && !request.to_host && !copy.is_none() && !request.copy) {
      BufferError("copy=False, dl_device=" + TextOf(dl_device) +
                  ": the tensor is in memory of a GPU, so the CPU has it only as a copy; pass copy=None");
    }
    request.to_host = type == dlpack::kCpu;
  }
  if (request.to_host) {
    if (!stream.is_none()) {
      BufferError("stream=" + TextOf(stream) +
                  ": the tensor is given in memory of the CPU, which has no streams; pass None");
    }
    request.copy = request.copy || on.type != dlpack::kCpu;
    return request;
  }
  const std::optional<void*> given = CudaStreamOf(stream);
  request.orders_stream = given.has_value();
  request.stream = given.value_or(nullptr);
  return request;
}

/// The array that a capsule of either kind holds; the consumer's half of the protocol.
class Consumed {
 public:
  explicit Consumed(nb::handle capsule) {
    if (PyCapsule_IsValid(capsule.ptr(), dlpack::kVersionedName) != 0) {
      versioned_ =
          static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kVersionedName));
      if (PyCapsule_SetName(capsule.ptr(), dlpack::kUsedVersionedName) != 0) throw nb::python_error();
    } else if (PyCapsule_IsValid(capsule.ptr(), dlpack::kName) != 0) {
      legacy_ = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kName));
      if (PyCapsule_SetName(capsule.ptr(), dlpack::kUsedName) != 0) throw nb::python_error();
    } else {
      BufferError("a DLPack capsule that nobody has used yet is needed; each can be used once");
    }
  }
  ~Consumed() {
    if (versioned_ != nullptr && versioned_->deleter != nullptr) versioned_->deleter(versioned_);
    if (legacy_ != nullptr && legacy_->deleter != nullptr) legacy_->deleter(legacy_);
  }
  Consumed(const Consumed&) = delete;
  Consumed& operator=(const Consumed&) = delete;

  const dlpack::Array& array() const {
    if (versioned_ == nullptr) return legacy_->array;
    if (versioned_->version.major != 1) {
      BufferError("the array is of DLPack " + std::to_string(versioned_->version.major) + "." +
                  std::to_string(versioned_->version.minor) + "; lgpu reads version 1");
    }
    return versioned_->array;
  }

 private:
  dlpack::ManagedVersioned* versioned_ = nullptr;
  dlpack::Managed* legacy_ = nullptr;
};

bool IsDense(const dlpack::Array& array) {
  if (array.strides == nullptr) return true;
  // Strides of an array without elements mean nothing.
  const std::span shape(array.shape, static_cast<std::size_t>(array.ndim));
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  std::int64_t stride = 1;
  for (int i = array.ndim - 1; i >= 0; --i) {
    if (array.shape[i] != 1 && array.strides[i] != stride) return false;
    stride *= array.shape[i];
  }
  return true;
}

struct Incoming {
  DType dtype;
  Shape shape;
  const std::byte* data;
  std::size_t bytes;
};

Incoming Read(const dlpack::Array& array) {
  const DType dtype = LgpuTypeOf(array.dtype);
  if (dtype == DType::kInvalid) {
    throw StatusError(absl::InvalidArgumentError(
        "DLPack type (code " + std::to_string(array.dtype.code) + ", " + std::to_string(array.dtype.bits) +
        " bits, " + std::to_string(array.dtype.lanes) +
        " lanes) is not an element type of lgpu; use float32, float64, int32, int64, bfloat16 or float16"));
  }
  if (!IsDense(array)) {
    throw StatusError(absl::InvalidArgumentError(
        "the array's elements do not lie behind one another (it is strided); make a dense copy of it first"));
  }
  const Shape shape = Check(Shape::Make(std::span(array.shape, static_cast<std::size_t>(array.ndim))));
  const auto bytes = static_cast<std::size_t>(shape.elements()) * ElementBytes(dtype);
  const auto* const data = static_cast<const std::byte*>(array.data) + array.byte_offset;
  return {dtype, shape, bytes == 0 ? nullptr : data, bytes};
}

Tensor FromCapsule(PyContext& context, nb::handle capsule, const TensorImport* import, int cuda_device) {
  const Consumed consumed(capsule);
  const dlpack::Array& array = consumed.array();
  if (import != nullptr && array.device.type == dlpack::kCuda && array.device.id == cuda_device) {
    const Incoming incoming = Read(array);
    return Check(InScopes([&] { return import->Copy(incoming.dtype, incoming.shape, incoming.data); }));
  }
  if (array.device.type != dlpack::kCpu && array.device.type != dlpack::kCudaHost) {
    BufferError("the capsule holds an array on DLPack device (" + std::to_string(array.device.type) + ", " +
                std::to_string(array.device.id) +
                "); lgpu takes capsules with memory of the CPU, and arrays themselves also from a GPU of its "
                "own, so pass the array");
  }
  const Incoming incoming = Read(array);
  return Check(InScopes([&] {
    return context.get().ConstantBytes(incoming.dtype, incoming.shape,
                                       std::span(incoming.data, incoming.bytes));
  }));
}

/// The consumer's half of the protocol, with `array.__dlpack__` between: it has to know the stream.
Tensor FromCuda(PyContext& context, nb::handle array, int cuda_device) {
  absl::StatusOr<TensorImport> import =
      InScopes([&] { return TensorImport::Open(context.get(), cuda_device); });
  if (absl::IsNotFound(import.status())) {
    const absl::string_view why = import.status().message();
    BufferError("the array lies on DLPack device (2, " + std::to_string(cuda_device) +
                "): " + std::string(why.data(), why.size()));
  }
  const TensorImport target = Check(std::move(import));
  const nb::object capsule = Arrays("capsule_of")(array, reinterpret_cast<std::uintptr_t>(target.stream()));
  return FromCapsule(context, capsule, &target, cuda_device);
}

}  // namespace

nb::object DlpackDevice(const Tensor& tensor) {
  const dlpack::Device device = DeviceOf(tensor);
  return nb::make_tuple(device.type, device.id);
}

nb::object ToDlpack(const Tensor& tensor, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                    nb::handle copy) {
  const dlpack::Device device = DeviceOf(tensor);
  const Request request = RequestOf(device, stream, dl_device, copy);
  Lent lent;
  lent.writable = request.copy;
  if (request.copy && request.to_host) {
    const std::size_t bytes = tensor.bytes().count();
    lent.copy.reset(new std::byte[bytes == 0 ? 1 : bytes]);
    Check(Waiting([&] { return tensor.CopyToHost(lent.copy.get(), bytes); }));
  } else {
    lent.device = device;
    lent.tensor = Check(Waiting([&] {
      return tensor.Export(
          {.stream = request.stream, .orders_stream = request.orders_stream, .copies = request.copy});
    }));
  }
  const bool versioned =
      !max_version.is_none() && nb::cast<int>(nb::borrow<nb::object>(max_version)[nb::int_(0)]) >= 1;
  return versioned ? NewCapsule<VersionedCapsule>(tensor, std::move(lent))
                   : NewCapsule<LegacyCapsule>(tensor, std::move(lent));
}

void BindDlpack(nb::module_& module) {
  module.def(
      "from_capsule",
      [](PyContext& context, nb::handle capsule) { return FromCapsule(context, capsule, nullptr, -1); },
      "context"_a, "capsule"_a, "A tensor with a copy of what a DLPack capsule holds, which is used up.");
  module.def("from_cuda", &FromCuda, "context"_a, "array"_a, "cuda_device"_a,
             "A tensor with a copy of a DLPack producer's array on that card, made on the card.");
}

}  // namespace lgpu::python
