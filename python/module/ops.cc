#include "lgpu/ops.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "python/module/bind.h"
#include "python/module/errors.h"
#include "python/module/scopes.h"
#include "python/module/words.h"

namespace lgpu::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using Unary = absl::StatusOr<Tensor> (*)(const Tensor&);
using Binary = absl::StatusOr<Tensor> (*)(const Tensor&, const Tensor&);

template <Unary op>
Tensor Call1(const Tensor& x) {
  return Check(InScopes([&] { return op(x); }));
}
template <Binary op>
Tensor Call2(const Tensor& a, const Tensor& b) {
  return Check(InScopes([&] { return op(a, b); }));
}

Tensor CallMatMul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  return Check(
      InScopes([&] { return MatMul(a, b, {.transpose_a = transpose_a, .transpose_b = transpose_b}); }));
}
Tensor CallTranspose(const Tensor& input, const std::optional<std::vector<int>>& perm) {
  std::optional<std::span<const int>> order;
  if (perm) order = *perm;
  return Check(InScopes([&] { return Transpose(input, order); }));
}
/// One dimension, an int or one of numpy's, or several.
std::vector<int> AxesOf(nb::handle axis) {
  try {
    if (PyIndex_Check(axis.ptr()) != 0 && PySequence_Check(axis.ptr()) == 0) return {nb::cast<int>(axis)};
    return nb::cast<std::vector<int>>(axis);
  } catch (const nb::cast_error&) {
    throw nb::type_error(("axis is " + nb::cast<std::string>(nb::repr(axis)) +
                          "; it is a number of a dimension, a list of them, or None for all")
                             .c_str());
  }
}
template <absl::StatusOr<Tensor> (*op)(const Tensor&, const ReduceOptions&)>
Tensor CallReduce(const Tensor& input, nb::handle axis, bool keepdims) {
  ReduceOptions options{.keep_dims = keepdims};
  if (!axis.is_none()) options.axes = AxesOf(axis);
  return Check(InScopes([&] { return op(input, options); }));
}

void BindMatrixOps(nb::module_& module) {
  module
      .def("matmul", &CallMatMul, "a"_a, "b"_a, nb::kw_only(), "transpose_a"_a = false,
           "transpose_b"_a = false, "[m,k] x [k,n] -> [m,n], both of one element type.")
      .def(
          "add_n",
          [](const std::vector<Tensor>& inputs) { return Check(InScopes([&] { return AddN(inputs); })); },
          "inputs"_a, "The elementwise sum of one or more tensors of one shape and element type.")
      .def("transpose", &CallTranspose, "input"_a, "perm"_a = nb::none(),
           "Dimension i of the result is dimension perm[i] of the input; without perm their order is "
           "reversed.")
      .def(
          "concat",
          [](const std::vector<Tensor>& inputs) { return Check(InScopes([&] { return Concat(inputs); })); },
          "inputs"_a, "The tensors behind one another along their first dimension.")
      .def(
          "reshape",
          [](const Tensor& input, const std::vector<std::int64_t>& shape) {
            const Shape to = Check(Shape::Make(shape));
            return Check(InScopes([&] { return Reshape(input, to); }));
          },
          "input"_a, "shape"_a, "The same elements in another shape of as many; the memory is shared.")
      .def(
          "slice_rows",
          [](const Tensor& input, std::int64_t begin, std::int64_t count) {
            return Check(InScopes([&] { return SliceRows(input, begin, count); }));
          },
          "input"_a, "begin"_a, "count"_a,
          "count rows of the first dimension, from row begin on; the memory is shared.")
      .def(
          "fill",
          [](const std::vector<std::int64_t>& shape, const Tensor& value) {
            const Shape to = Check(Shape::Make(shape));
            return Check(InScopes([&] { return Fill(to, value); }));
          },
          "shape"_a, "value"_a, "A tensor of that shape with the one element of value everywhere.");
}

void BindOtherOps(nb::module_& module) {
  module
      .def("reduce_sum", &CallReduce<&ReduceSum>, "input"_a, "axis"_a = nb::none(), "keepdims"_a = false,
           nb::sig("def reduce_sum(input: Tensor, axis: typing.SupportsIndex | "
                   "collections.abc.Sequence[typing.SupportsIndex] | None = None, keepdims: bool = False) -> "
                   "Tensor"),
           "The sum over the dimensions in axis, or over all.")
      .def("reduce_mean", &CallReduce<&ReduceMean>, "input"_a, "axis"_a = nb::none(), "keepdims"_a = false,
           nb::sig("def reduce_mean(input: Tensor, axis: typing.SupportsIndex | "
                   "collections.abc.Sequence[typing.SupportsIndex] | None = None, keepdims: bool = False) -> "
                   "Tensor"),
           "The mean over the dimensions in axis, or over all.")
      .def(
          "sparse_softmax_cross_entropy_with_logits",
          [](const Tensor& labels, const Tensor& logits) {
            CrossEntropy both =
                Check(InScopes([&] { return SparseSoftmaxCrossEntropyWithLogits(logits, labels); }));
            return std::pair(std::move(both.loss), std::move(both.backprop));
          },
          "labels"_a, "logits"_a,
          "The loss of each row, and its gradient by the logits [rows,classes]; labels [rows] are int32 or "
          "int64.")
      .def(
          "cast",
          [](const Tensor& input, nb::handle dtype) {
            const nb::object name = Arrays("name_of")(dtype);
            const DType to = DTypeOf(nb::cast<std::string>(name));
            return Check(InScopes([&] { return Cast(input, to); }));
          },
          "input"_a, "dtype"_a, nb::sig("def cast(input: Tensor, dtype: typing.Any) -> Tensor"),
          "The same values in another element type: a name, or what numpy.dtype takes.")
      .def(
          "copy_to_device",
          [](const Tensor& input, const std::string& device) {
            return Check(Waiting([&] { return CopyToDevice(input, device); }));
          },
          "input"_a, "device"_a, "The tensor on that device: itself, or a copy; no scope has a say.");
}

void BindPlainOps(nb::module_& module) {
#define LGPU_CALL(call, name, op, a, b, text) module.def(#name, &Call2<&call>, nb::arg(a), nb::arg(b), text);
  LGPU_CALLS_OF_TWO(LGPU_CALL)
#undef LGPU_CALL
#define LGPU_CALL(call, name, op, input, text) module.def(#name, &Call1<&call>, nb::arg(input), text);
  LGPU_CALLS_OF_ONE(LGPU_CALL)
#undef LGPU_CALL
}

}  // namespace

void BindOps(nb::module_& module, nb::class_<Tensor>& tensor) {
  BindPlainOps(module);
  BindMatrixOps(module);
  BindOtherOps(module);
  tensor
      .def_prop_ro(
          "T", [](const Tensor& self) { return CallTranspose(self, {}); },
          "The tensor with its dimensions in reverse order, a copy.")
      .def(
          "to",
          [](const Tensor& self, const std::string& device) {
            return Check(Waiting([&] { return CopyToDevice(self, device); }));
          },
          "device"_a, "The tensor on that device: itself, or a copy.")
      .def(
          "reshape",
          [](const Tensor& self, const std::vector<std::int64_t>& shape) {
            const Shape to = Check(Shape::Make(shape));
            return Check(InScopes([&] { return Reshape(self, to); }));
          },
          "shape"_a, "The same elements in another shape of as many; the memory is shared.");
}

}  // namespace lgpu::python
