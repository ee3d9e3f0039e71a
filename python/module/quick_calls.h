#ifndef LGPU_PYTHON_MODULE_QUICK_CALLS_H_
#define LGPU_PYTHON_MODULE_QUICK_CALLS_H_

#include <nanobind/nanobind.h>

#include <string_view>

namespace lgpu::python {

// nanobind's search for the function that takes the arguments costs a tenth of an op on small tensors. These
// calls do without it where all arguments are Tensors.

/// METH_FASTCALL | METH_KEYWORDS.
using FastCall = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

/// Calls `function`, which is nanobind's.
PyObject* CallFunction(PyObject* function, PyObject* const* arguments, Py_ssize_t count, PyObject* names);
/// A call of lgpu's op of that name in Python, such as "add", that is CallFunction for other arguments than
/// Tensors alone; CallFunction itself for other names.
FastCall QuickCallOf(std::string_view name);

/// The operators of a Tensor as slots of its type. `tensor.def` of one of them goes before its slot until
/// QuickOperators.
const PyType_Slot* OperatorSlots();
/// After the type is made, and before its operators are defined.
void KeepOperatorSlots(nanobind::handle tensor);
/// Defines `_quicken_operators`: the operators are those of the slots from then on. nanobind's, which have
/// signatures for the stub, are before.
void BindQuickOperators(nanobind::module_& module);

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_QUICK_CALLS_H_
