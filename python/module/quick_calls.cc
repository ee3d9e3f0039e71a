#include "python/module/quick_calls.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "lgpu/ops.h"
#include "lgpu/tensor.h"
#include "python/module/errors.h"
#include "python/module/numbers.h"
#include "python/module/scopes.h"

namespace lgpu::python {

namespace nb = nanobind;

namespace {

using Unary = absl::StatusOr<Tensor> (*)(const Tensor&);
using Binary = absl::StatusOr<Tensor> (*)(const Tensor&, const Tensor&);

PyObject* tensor_type = nullptr;  // of the module, which is never unloaded

absl::StatusOr<Tensor> Product(const Tensor& a, const Tensor& b) { return MatMul(a, b, {}); }

/// Null for other objects.
const Tensor* TensorOf(PyObject* object) {
  const bool is_tensor = reinterpret_cast<PyObject*>(Py_TYPE(object)) == tensor_type;
  return is_tensor && nb::inst_ready(object) ? nb::inst_ptr<Tensor>(object) : nullptr;
}

PyObject* Wrapped(Tensor tensor) {
  nb::object made = nb::inst_alloc(tensor_type);
  if (!made.is_valid()) throw nb::python_error();
  new (nb::inst_ptr<Tensor>(made)) Tensor(std::move(tensor));
  nb::inst_mark_ready(made);
  return made.release().ptr();
}

/// What `call` returns; null, with Python's error set, where it throws.
template <typename Call>
PyObject* Guarded(const Call& call) {
  try {
    return call();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const StatusError& error) {
    SetPythonError(error.status());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <typename Op>
PyObject* Ran(const Op& op) {
  const OpenScopes scopes;
  absl::StatusOr<Tensor> made = Briefly(op);
  if (made.ok()) return Wrapped(*std::move(made));
  SetPythonError(made.status());
  return nullptr;
}

template <Unary op>
PyObject* QuickUnary(PyObject* function, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  const Tensor* const input = count == 1 && names == nullptr ? TensorOf(arguments[0]) : nullptr;
  if (input == nullptr) return CallFunction(function, arguments, count, names);
  return Guarded([&] { return Ran([&] { return op(*input); }); });
}

template <Binary op>
PyObject* QuickBinary(PyObject* function, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  const bool has_two = count == 2 && names == nullptr;
  const Tensor* const a = has_two ? TensorOf(arguments[0]) : nullptr;
  const Tensor* const b = has_two ? TensorOf(arguments[1]) : nullptr;
  if (a == nullptr || b == nullptr) return CallFunction(function, arguments, count, names);
  return Guarded([&] { return Ran([&] { return op(*a, *b); }); });
}

template <Binary op, bool takes_numbers>
PyObject* BinarySlot(PyObject* left, PyObject* right) {
  const Tensor* const a = TensorOf(left);
  const Tensor* const b = TensorOf(right);
  return Guarded([&]() -> PyObject* {
    if (a != nullptr && b != nullptr) return Ran([&] { return op(*a, *b); });
    if (takes_numbers && (a != nullptr || b != nullptr)) {
      const std::optional<Tensor> number =
          a != nullptr ? ConstantBeside(left, right) : ConstantBeside(right, left);
      if (number) return Ran([&] { return a != nullptr ? op(*a, *number) : op(*number, *b); });
    }
    return nb::borrow(Py_NotImplemented).release().ptr();
  });
}

PyObject* NegativeSlot(PyObject* self) {
  const Tensor* const input = TensorOf(self);
  if (input != nullptr) return Guarded([&] { return Ran([&] { return Negative(*input); }); });
  PyErr_SetString(PyExc_TypeError, "the Tensor has no value");
  return nullptr;
}

struct Operator {
  const char* name;
  nb::object slot;  // Python's wrapper of the slot
};
std::vector<Operator>& Operators() {
  static auto* const operators = new std::vector<Operator>();  // Python's objects outlive those of this file
  return *operators;
}

}  // namespace

PyObject* CallFunction(PyObject* function, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  return PyObject_Vectorcall(function, arguments, static_cast<std::size_t>(count), names);
}

FastCall QuickCallOf(std::string_view name) {
  if (name == "matmul") return &QuickBinary<&Product>;
#define LGPU_CALL(call, python, ...) \
  if (name == #python) return &QuickBinary<&call>;
  LGPU_CALLS_OF_TWO(LGPU_CALL)
#undef LGPU_CALL
#define LGPU_CALL(call, python, ...) \
  if (name == #python) return &QuickUnary<&call>;
  LGPU_CALLS_OF_ONE(LGPU_CALL)
#undef LGPU_CALL
  return &CallFunction;
}

const PyType_Slot* OperatorSlots() {
  const auto slot = [](auto* function) { return reinterpret_cast<void*>(function); };
  static const PyType_Slot kSlots[] = {
      {Py_nb_matrix_multiply, slot(&BinarySlot<&Product, false>)},
      {Py_nb_add, slot(&BinarySlot<&Add, true>)},
      {Py_nb_subtract, slot(&BinarySlot<&Subtract, true>)},
      {Py_nb_multiply, slot(&BinarySlot<&Multiply, true>)},
      {Py_nb_true_divide, slot(&BinarySlot<&Divide, true>)},
      {Py_nb_negative, slot(&NegativeSlot)},
      {0, nullptr},
  };
  return kSlots;
}

void KeepOperatorSlots(nb::handle tensor) {
  tensor_type = tensor.ptr();
  for (const char* name : {"__matmul__", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__",
                           "__truediv__", "__rtruediv__", "__neg__"}) {
    Operators().push_back({name, tensor.attr(name)});
  }
}

void BindQuickOperators(nb::module_& module) {
  module.def(
      "_quicken_operators",
      [] {
        for (const Operator& one : Operators()) nb::handle(tensor_type).attr(one.name) = one.slot;
      },
      "The operators of Tensor are slots of the type from here on, which the stub does not know.");
}

}  // namespace lgpu::python
