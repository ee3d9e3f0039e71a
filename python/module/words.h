#ifndef LGPU_PYTHON_MODULE_WORDS_H_
#define LGPU_PYTHON_MODULE_WORDS_H_

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "lgpu/context.h"
#include "lgpu/dtype.h"

namespace lgpu::python {

/// numpy's names: "float32". INVALID_ARGUMENT, as a StatusError, for another one.
DType DTypeOf(std::string_view name);
std::string NameOf(DType dtype);
/// TensorFlow's words: "silent".
DevicePolicy PolicyOf(std::string_view word);

/// A function of lgpu._arrays.
nanobind::object Arrays(const char* function);

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_WORDS_H_
