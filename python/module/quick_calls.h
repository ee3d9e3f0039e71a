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

/// The operators of a Tensor as slots of its type.
const PyType_Slot* OperatorSlots();
/// Remembers the slots of the new type, before nanobind's operators of the same names replace them.
void KeepOperatorSlots(nanobind::handle tensor);
/// Defines `_quicken_operators`, which puts the slots back. Until then the operators are nanobind's, whose
/// signatures the stub needs.
void BindQuickOperators(nanobind::module_& module);

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_QUICK_CALLS_H_
