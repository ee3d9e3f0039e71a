#include <nanobind/nanobind.h>

#include "lgpu/tensor.h"
#include "python/module/bind.h"
#include "python/module/errors.h"
#include "python/module/lock.h"
#include "python/module/scopes.h"

NB_MODULE(_core, module) {
  module.doc() = "liblgpu, for the package lgpu.";
  // Arrays of other libraries and globals may outlive the module at the interpreter's end.
  nanobind::set_leak_warnings(false);
  lgpu::python::RegisterErrors();
  lgpu::python::BindEnd(module);
  nanobind::class_<lgpu::Tensor> tensor(
      module, "Tensor",
      "A Tensor is an immutable array on one device: the CPU or a logical GPU. Its memory goes back with the "
      "last reference.");
  lgpu::python::BindTensor(module, tensor);
  lgpu::python::BindConfig(module);
  lgpu::python::BindContext(module);
  lgpu::python::BindMemory(module);
  lgpu::python::BindScopes(module);
  lgpu::python::BindOps(module, tensor);
  lgpu::python::BindDlpack(module);
  lgpu::python::BindDistribute(module);
  lgpu::python::BindTorch(module);
}
