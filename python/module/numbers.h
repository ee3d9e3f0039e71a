#ifndef LGPU_PYTHON_MODULE_NUMBERS_H_
#define LGPU_PYTHON_MODULE_NUMBERS_H_

#include <nanobind/nanobind.h>

#include <optional>

#include "lgpu/context.h"
#include "lgpu/tensor.h"

// Python's own numbers as values of tensors. lgpu._arrays does the same by numpy for all other values, and
// for the numbers that need a warning or an error.

namespace lgpu::python {

/// A number, or lists and tuples of numbers in equal rows, as TensorFlow takes them: float32 where one is a
/// float, else int32, or int64 where one does not fit. Nothing: `value` is something else.
std::optional<Tensor> ConstantOfNumbers(const Context& context, nanobind::handle value);

/// The number beside a tensor as a constant of the tensor's element type; nothing: it is no number.
std::optional<Tensor> ConstantBeside(nanobind::handle tensor, nanobind::handle number);

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_NUMBERS_H_
