#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "python/module/bind.h"
#include "python/module/quick_calls.h"

// Python's inspect.signature finds the signature of a function in C in its docstring, and none of nanobind's
// functions. So the package shows functions of Python's own that call nanobind's.

namespace lgpu::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

/// Lives as long as the process, as the functions of a module do.
struct Definition {
  std::string name;
  std::string doc;
  PyMethodDef method{};
};

PyMethodDef& Define(const std::string& name, const std::string& doc, FastCall call) {
  auto* const definition = new Definition{.name = name, .doc = doc};
  definition->method = {definition->name.c_str(),
                        reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)),
                        METH_FASTCALL | METH_KEYWORDS, definition->doc.c_str()};
  return definition->method;
}

nb::object Checked(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object DescribeFunction(nb::handle function, const std::string& name, const std::string& doc) {
  const nb::str module("lgpu");
  return Checked(PyCFunction_NewEx(&Define(name, doc, QuickCallOf(name)), function.ptr(), module.ptr()));
}

// A method of Python's own has no place for nanobind's function: each has a C function of its own.
constexpr std::size_t kMethods = 64;
constexpr std::size_t kMostArguments = 15;
std::array<PyObject*, kMethods> methods{};

template <std::size_t number>
PyObject* CallMethod(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  const auto positional = static_cast<std::size_t>(count);
  const std::size_t all = positional + (names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_Size(names)));
  if (all > kMostArguments) {
    PyErr_SetString(PyExc_TypeError, "the method takes fewer arguments; help() has its signature");
    return nullptr;
  }
  std::array<PyObject*, kMostArguments + 1> with_self{self};
  std::copy_n(arguments, all, with_self.begin() + 1);
  return PyObject_Vectorcall(methods[number], with_self.data(), positional + 1, names);
}

template <std::size_t... numbers>
constexpr std::array<FastCall, kMethods> CallsOf(std::index_sequence<numbers...>) {
  return {&CallMethod<numbers>...};
}

void DescribeMethod(nb::handle type, const std::string& name, const std::string& doc) {
  static constexpr auto kCalls = CallsOf(std::make_index_sequence<kMethods>());
  static std::size_t count = 0;
  if (count == kMethods) throw nb::value_error("the module has more methods than signatures.cc has calls");
  methods[count] = nb::object(type.attr(name.c_str())).release().ptr();
  PyMethodDef& method = Define(name, doc, kCalls[count++]);
  type.attr(name.c_str()) = Checked(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method));
}

}  // namespace

void BindSignatures(nb::module_& module) {
  module.def("_describe_function", &DescribeFunction, "function"_a, "name"_a, "doc"_a,
             "The function as one of Python's own. `doc` begins with its signature.");
  module.def("_describe_method", &DescribeMethod, "type"_a, "name"_a, "doc"_a,
             "Makes the method of a type one of Python's own. `doc` begins with its signature.");
}

}  // namespace lgpu::python
