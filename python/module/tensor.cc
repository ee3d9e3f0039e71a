#include "lgpu/tensor.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>

#include "lgpu/dtype.h"
#include "python/module/bind.h"
#include "python/module/errors.h"
#include "python/module/scopes.h"
#include "python/module/words.h"

namespace lgpu::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

nb::object ShapeOfTensor(const Tensor& self) {
  const Shape& shape = self.shape();
  nb::list dimensions;
  for (int i = 0; i < shape.rank(); ++i) dimensions.append(shape[i]);
  return nb::tuple(dimensions);
}

void CopyInto(const Tensor& self, nb::handle target) {
  struct View {
    ~View() { PyBuffer_Release(&buffer); }
    Py_buffer buffer{};
  } view;
  if (PyObject_GetBuffer(target.ptr(), &view.buffer, PyBUF_WRITABLE) != 0) throw nb::python_error();
  Check(Waiting([&] { return self.CopyToHost(view.buffer.buf, static_cast<std::size_t>(view.buffer.len)); }));
}

template <typename T>
T ValueOf(const Tensor& self) {
  T value{};
  Check(Waiting([&] { return self.CopyToHost(&value, sizeof(value)); }));
  return value;
}

nb::object Item(nb::handle self) {
  const auto& tensor = nb::cast<const Tensor&>(self);
  if (tensor.shape().elements() == 1) {
    switch (tensor.dtype()) {
      case DType::kFloat32:
        return nb::float_(static_cast<double>(ValueOf<float>(tensor)));
      case DType::kFloat64:
        return nb::float_(ValueOf<double>(tensor));
      case DType::kInt32:
        return nb::int_(ValueOf<std::int32_t>(tensor));
      case DType::kInt64:
        return nb::int_(ValueOf<std::int64_t>(tensor));
      case DType::kFloat16:
        return nb::float_(static_cast<double>(HalfToFloat(ValueOf<Half>(tensor))));
      case DType::kBFloat16:
        return nb::float_(static_cast<double>(BFloat16ToFloat(ValueOf<BFloat16>(tensor))));
      default:
        break;
    }
  }
  throw StatusError(absl::InvalidArgumentError(
      "a Tensor of shape " + tensor.shape().ToString() +
      " is no single value: write tensor.numpy() or tensor.tolist() for its values"));
}

}  // namespace

void BindTensor(nb::module_& module, nb::class_<Tensor>& tensor) {
  tensor
      .def_prop_ro("shape", &ShapeOfTensor, nb::sig("def shape(self) -> tuple[int, ...]"), "The dimensions.")
      .def_prop_ro(
          "ndim", [](const Tensor& self) { return self.shape().rank(); }, "The number of dimensions.")
      .def_prop_ro(
          "size", [](const Tensor& self) { return self.shape().elements(); }, "The number of elements.")
      .def_prop_ro(
          "nbytes", [](const Tensor& self) { return self.bytes().count(); }, "The bytes of all elements.")
      .def_prop_ro(
          "dtype_name", [](const Tensor& self) { return NameOf(self.dtype()); },
          "The name of the element type: \"float32\".")
      .def_prop_ro(
          "dtype", [](const Tensor& self) { return Arrays("dtype_of")(NameOf(self.dtype())); },
          nb::sig("def dtype(self) -> typing.Any"), "The element type, as a numpy.dtype.")
      .def_prop_ro(
          "device", [](const Tensor& self) { return self.device(); },
          "The full name of the device: \"/job:localhost/replica:0/task:0/device:GPU:0\".")
      .def(
          "numpy", [](nb::handle self) { return Arrays("to_numpy")(self); },
          nb::sig("def numpy(self) -> typing.Any"), "A copy of the values on the host, as a numpy.ndarray.")
      .def("item", &Item, nb::sig("def item(self) -> float | int"), "The value of a tensor with one element.")
      .def(
          "tolist", [](nb::handle self) { return Arrays("to_numpy")(self).attr("tolist")(); },
          nb::sig("def tolist(self) -> typing.Any"), "The values as nested lists.")
      .def(
          "__array__",
          [](nb::handle self, nb::handle dtype, nb::handle copy) {
            return Arrays("array_of")(self, dtype, copy);
          },
          "dtype"_a = nb::none(), "copy"_a = nb::none(),
          nb::sig("def __array__(self, dtype: typing.Any = None, copy: bool | None = None) -> typing.Any"),
          "A copy on the host. ValueError for copy=False.")
      .def(
          "__repr__", [](nb::handle self) { return Arrays("text_of")(self); },
          nb::sig("def __repr__(self) -> str"))
      .def("__bool__", [](nb::handle self) { return nb::cast<bool>(nb::bool_(Item(self))); })
      .def("__float__", [](nb::handle self) { return nb::float_(Item(self)); })
      .def("__int__", [](nb::handle self) { return nb::int_(Item(self)); })
      .def("copy_into", &CopyInto, "target"_a,
           "Copies the values into a writable, contiguous buffer of nbytes bytes.")
      .def(
          "__dlpack__", &ToDlpack, nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(),
          "dl_device"_a = nb::none(), "copy"_a = nb::none(),
          nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = "
                  "None, "
                  "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"),
          "The values without a copy, as a DLPack capsule; they stay charged as long as a consumer has them. "
          "Versioned capsules are marked as read-only. copy=True: a copy that may be written, on the same "
          "device. On a real GPU `stream` waits for the values, and dl_device=(1, 0) gives a copy on the "
          "host.")
      .def(
          "__dlpack_device__", &DlpackDevice, nb::sig("def __dlpack_device__(self) -> tuple[int, int]"),
          "(1, 0), memory of the CPU, for tensors on the CPU and on simulated GPUs; (2, CUDA's number of the "
          "card) on a real GPU.");
  module.attr("Tensor") = tensor;
}

}  // namespace lgpu::python
