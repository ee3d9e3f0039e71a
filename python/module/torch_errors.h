#ifndef LGPU_PYTHON_MODULE_TORCH_ERRORS_H_
#define LGPU_PYTHON_MODULE_TORCH_ERRORS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lgpu::python {

/// Finds the parts of a c10::OutOfMemoryError in PyTorch's libraries, which are files that are loaded
/// already: lgpu is not linked with any PyTorch, so that one module serves all of its versions. NOT_FOUND
/// names the missing part.
absl::Status FindTorchErrors(const std::vector<std::string>& libraries);

/// Throws c10::OutOfMemoryError, which PyTorch turns into torch.OutOfMemoryError. Where FindTorchErrors found
/// none, std::runtime_error, which it turns into RuntimeError.
[[noreturn]] void ThrowTorchOutOfMemory(const std::string& text);

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_TORCH_ERRORS_H_
