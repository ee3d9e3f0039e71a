#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "lgpu/context.h"
#include "lgpu/ops.h"
#include "python/module/bind.h"
#include "python/module/errors.h"
#include "python/module/numbers.h"
#include "python/module/scopes.h"
#include "python/module/words.h"

// The operators of a Tensor. Those that numpy's arrays have and a Tensor has not raise a TypeError that says
// what to write.

namespace lgpu::python {

namespace nb = nanobind;

namespace {

using Binary = absl::StatusOr<Tensor> (*)(const Tensor&, const Tensor&);

template <Binary op>
Tensor OfTensors(const Tensor& a, const Tensor& b) {
  return Check(InScopes([&] { return op(a, b); }));
}
template <Binary op>
nb::object OfTensorAndNumber(nb::handle self, nb::handle number) {
  const std::optional<Tensor> constant = ConstantBeside(self, number);
  if (!constant) return nb::borrow(Py_NotImplemented);
  return nb::cast(OfTensors<op>(nb::cast<const Tensor&>(self), *constant));
}
template <Binary op>
nb::object OfNumberAndTensor(nb::handle self, nb::handle number) {
  const std::optional<Tensor> constant = ConstantBeside(self, number);
  if (!constant) return nb::borrow(Py_NotImplemented);
  return nb::cast(OfTensors<op>(*constant, nb::cast<const Tensor&>(self)));
}

/// `tensor op tensor`, `tensor op number` and `number op tensor`.
template <Binary op>
void BindBinary(nb::class_<Tensor>& tensor, const std::string& name) {
  const std::string with_number = "def __" + name + "__(self, other: float, /) -> Tensor";
  const std::string reversed = "def __r" + name + "__(self, other: float, /) -> Tensor";
  tensor.def(("__" + name + "__").c_str(), &OfTensors<op>, nb::is_operator())
      .def(("__" + name + "__").c_str(), &OfTensorAndNumber<op>, nb::is_operator(),
           nb::sig(with_number.c_str()))
      .def(("__r" + name + "__").c_str(), &OfNumberAndTensor<op>, nb::is_operator(),
           nb::sig(reversed.c_str()));
}

[[noreturn]] void Refuse(const char* text) { throw nb::type_error(text); }

nb::object NoComparison(nb::handle, nb::handle) {
  Refuse(
      "lgpu has no op that compares Tensors: write a.numpy() == b.numpy() for their values, or `a is b` for "
      "one and the same Tensor");
}

/// Defines operators that lgpu has no op for, under their names with and without a number on the left.
void BindAbsent(nb::class_<Tensor>& tensor, const char* text, std::initializer_list<const char*> names) {
  for (const std::string name : names) {
    const std::string method = "__" + name + "__";
    const std::string signature = "def " + method + "(self, other: object, /) -> typing.NoReturn";
    tensor.def(
        method.c_str(), [text](nb::handle, nb::handle) -> nb::object { Refuse(text); }, nb::arg().none(),
        nb::sig(signature.c_str()));
  }
}

}  // namespace

void BindOperators(nb::class_<Tensor>& tensor) {
  BindBinary<&Add>(tensor, "add");
  BindBinary<&Subtract>(tensor, "sub");
  BindBinary<&Multiply>(tensor, "mul");
  BindBinary<&Divide>(tensor, "truediv");
  BindAbsent(tensor,
             "lgpu has no op that compares Tensors: write a.numpy() < b.numpy() for their values, which are "
             "copies on the host",
             {"lt", "le", "gt", "ge"});
  BindAbsent(
      tensor,
      "lgpu has no op for powers: write a * a for a square, or a.numpy() ** b, which is a copy on the host",
      {"pow", "rpow"});
  BindAbsent(
      tensor,
      "lgpu has no op for // and %: write a.numpy() // b or a.numpy() % b, which are copies on the host",
      {"floordiv", "rfloordiv", "mod", "rmod"});
  tensor
      .def(
          "__matmul__",
          [](const Tensor& a, const Tensor& b) { return Check(InScopes([&] { return MatMul(a, b, {}); })); },
          nb::is_operator())
      .def("__neg__", [](const Tensor& self) { return Check(InScopes([&] { return Negative(self); })); })
      .def("__eq__", &NoComparison, nb::arg().none(),
           nb::sig("def __eq__(self, other: object, /) -> typing.NoReturn"))
      .def("__ne__", &NoComparison, nb::arg().none(),
           nb::sig("def __ne__(self, other: object, /) -> typing.NoReturn"))
      .def(
          "__len__",
          [](nb::handle) -> int {
            Refuse("a Tensor has no len(): write tensor.shape[0] for its rows, or tensor.size");
          },
          nb::sig("def __len__(self) -> typing.NoReturn"))
      .def(
          "__iter__",
          [](nb::handle) -> nb::object {
            Refuse(
                "a Tensor is not iterated over: write `for row in tensor.numpy()`, which is a copy on the "
                "host");
          },
          nb::sig("def __iter__(self) -> typing.NoReturn"))
      .def(
          "__contains__",
          [](nb::handle, nb::handle) -> bool {
            Refuse("a Tensor is not searched: write `value in tensor.numpy()`, which is a copy on the host");
          },
          nb::arg().none(), nb::sig("def __contains__(self, value: object, /) -> typing.NoReturn"))
      .def(
          "__getitem__",
          [](nb::handle, nb::handle) -> nb::object {
            Refuse(
                "a Tensor has no indices: write lgpu.slice_rows(tensor, begin, count) for rows of it on its "
                "device, or tensor.numpy()[...] for a copy on the host");
          },
          nb::arg().none(), nb::sig("def __getitem__(self, index: object, /) -> typing.NoReturn"))
      .def(
          "__array_function__",
          [](nb::handle self, nb::handle function, nb::handle, nb::handle, nb::handle) {
            return Arrays("refuse_function")(self, function);
          },
          nb::sig("def __array_function__(self, function: typing.Any, types: typing.Any, args: typing.Any, "
                  "kwargs: typing.Any, /) -> typing.NoReturn"),
          "numpy's functions take no Tensor: a TypeError that says what to write.")
      .def(
          "__array_ufunc__",
          [](nb::handle self, nb::handle function, nb::handle, const nb::args& inputs, const nb::kwargs&) {
            return Arrays("of_ufunc")(self, function, inputs);
          },
          nb::sig("def __array_ufunc__(self, function: typing.Any, method: str, /, *inputs: typing.Any, "
                  "**options: typing.Any) -> Tensor"),
          "`numpy.float32(2) * tensor` is an op of lgpu's; numpy's functions take no Tensor.");
}

}  // namespace lgpu::python
