#include <nanobind/nanobind.h>

#include "lgpu/tensor.h"
#include "python/module/bind.h"
#include "python/module/errors.h"
#include "python/module/lock.h"
#include "python/module/py_context.h"
#include "python/module/quick_calls.h"
#include "python/module/scopes.h"

namespace lgpu::python {
namespace {

/// The other threads stop first, so that none of them finds its Context closed.
void End() {
  StopOtherThreads();
  PyContext::RetireAll();
}

}  // namespace
}  // namespace lgpu::python

// The module is nanobind's, and PyInit__core lets it into the main interpreter alone.
NB_MODULE(_core_of_nanobind, module) {
  module.doc() = "liblgpu, for the package lgpu.";
  // Arrays of other libraries and globals may outlive the module at the interpreter's end.
  nanobind::set_leak_warnings(false);
  lgpu::python::RegisterErrors();
  lgpu::python::ForgetOtherThreadsInChildren();
  module.def("_end", &lgpu::python::End, "Ends all Contexts; atexit calls it when the interpreter ends.");
  nanobind::module_::import_("atexit").attr("register")(module.attr("_end"));
  nanobind::class_<lgpu::Tensor> tensor(
      module, "Tensor", nanobind::pooled(), nanobind::type_slots(lgpu::python::OperatorSlots()),
      "A Tensor is an immutable array on one device: the CPU or a logical GPU. Its memory goes back with the "
      "last reference.");
  lgpu::python::KeepOperatorSlots(tensor);
  lgpu::python::BindTensor(module, tensor);
  lgpu::python::BindConfig(module);
  lgpu::python::BindContext(module);
  lgpu::python::BindMemory(module);
  lgpu::python::BindScopes(module);
  lgpu::python::BindOps(module, tensor);
  lgpu::python::BindOperators(tensor);
  lgpu::python::BindQuickOperators(module);
  lgpu::python::BindDlpack(module);
  lgpu::python::BindDistribute(module);
  lgpu::python::BindSignatures(module);
  lgpu::python::BindTorch(module);
}

extern "C" NB_EXPORT PyObject* PyInit__core();  // NOLINT(bugprone-reserved-identifier): Python's name
/// nanobind has its types once in a process, and an interpreter that ends would take them along. Python 3.12
/// keeps such a module out of other interpreters; 3.11 does not.
extern "C" PyObject* PyInit__core() {  // NOLINT(bugprone-reserved-identifier)
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError,
                    "lgpu cannot be imported in a sub-interpreter; import it in the main interpreter");
    return nullptr;
  }
  return PyInit__core_of_nanobind();
}
