#ifndef LGPU_PYTHON_MODULE_DICTS_H_
#define LGPU_PYTHON_MODULE_DICTS_H_

#include <nanobind/nanobind.h>

#include "lgpu/logical_device.h"
#include "lgpu/memory_stats.h"

// Structs of the library as dicts, with the fields' names as keys.

namespace lgpu::python {

nanobind::dict DictOf(const LogicalDeviceInfo& device);
nanobind::dict DictOf(const MemoryStats& stats);

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_DICTS_H_
