#include "python/module/errors.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <optional>
#include <string>

#include "lgpu/refusal.h"
#include "lgpu/refusal_json.h"

namespace lgpu::python {

namespace nb = nanobind;

nb::object ExceptionOf(const absl::Status& status) {
  const std::optional<Refusal> refusal = GetRefusal(status);
  const nb::object fields =
      refusal ? nb::module_::import_("json").attr("loads")(RefusalJson(*refusal)) : nb::none();
  const absl::string_view message = status.message();
  return nb::module_::import_("lgpu.errors")
      .attr("_make")(static_cast<int>(status.code()), std::string(message.data(), message.size()), fields);
}

void SetPythonError(const absl::Status& status) {
  if (PyErr_CheckSignals() != 0) return;
  try {
    const nb::object exception = ExceptionOf(status);
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
  } catch (nb::python_error& raised) {
    raised.restore();  // by a handler that ran while the exception was made
  }
}

void RegisterErrors() {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      SetPythonError(error.status());
    } catch (const nb::cast_error&) {
      PyErr_SetString(PyExc_TypeError, "an argument, or an item of one, has the wrong type");
    }
  });
}

}  // namespace lgpu::python
