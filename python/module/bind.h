#ifndef LGPU_PYTHON_MODULE_BIND_H_
#define LGPU_PYTHON_MODULE_BIND_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "lgpu/bytes.h"
#include "lgpu/tensor.h"

// The parts of the module `lgpu._core`; module.cc puts them together.

namespace lgpu::python {

/// A size that may be left out: None in Python.
inline std::optional<Bytes> OptionalBytes(std::optional<std::uint64_t> bytes) {
  return bytes ? std::optional<Bytes>(*bytes) : std::nullopt;
}

void BindConfig(nanobind::module_& module);
void BindContext(nanobind::module_& module);
void BindDistribute(nanobind::module_& module);
void BindMemory(nanobind::module_& module);
void BindOperators(nanobind::class_<Tensor>& tensor);
void BindOps(nanobind::module_& module, nanobind::class_<Tensor>& tensor);
void BindSignatures(nanobind::module_& module);
void BindTensor(nanobind::module_& module, nanobind::class_<Tensor>& tensor);
void BindTorch(nanobind::module_& module);

/// Tensor.__dlpack__: a capsule.
nanobind::object ToDlpack(const Tensor& tensor, nanobind::handle stream, nanobind::handle max_version,
                          nanobind::handle dl_device, nanobind::handle copy);
/// Tensor.__dlpack_device__: (1, 0), or (2, card) on a real GPU.
nanobind::object DlpackDevice(const Tensor& tensor);
void BindDlpack(nanobind::module_& module);

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_BIND_H_
