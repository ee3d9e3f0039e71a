#include "python/module/numbers.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "python/module/errors.h"
#include "python/module/scopes.h"
#include "python/module/words.h"

namespace lgpu::python {

namespace nb = nanobind;

namespace {

/// The number as a float32; nothing: it is too large for one.
std::optional<float> AsFloat(double value) {
  if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) return std::nullopt;
  return static_cast<float>(value);
}

/// Nothing: it does not fit.
std::optional<std::int64_t> AsInteger(PyObject* number) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  return overflow == 0 ? std::optional<std::int64_t>(value) : std::nullopt;
}

/// Numbers in rows, which are read without running any code of Python's.
class Rows {
 public:
  /// False: not all are plain numbers, or the rows are empty or differ in length.
  bool Read(PyObject* value) {
    PyObject* first = value;
    for (Py_ssize_t size = 0; (size = SizeOf(first)) >= 0; first = ItemOf(first, 0)) {
      if (size == 0 || dimensions_.size() == Shape::kMaxRank) return false;
      dimensions_.push_back(size);
    }
    return Add(value, 0);
  }

  /// Nothing: a number is too large.
  std::optional<Tensor> Made(const Context& context) const {
    if (is_float_) return MadeOf<float>(context, DType::kFloat32, floats_, &AsFloat);
    const auto as_int = [](std::int64_t value) { return std::optional(static_cast<std::int32_t>(value)); };
    if (fits_int_) return MadeOf<std::int32_t>(context, DType::kInt32, integers_, as_int);
    const auto as_long = [](std::int64_t value) { return std::optional(value); };
    return MadeOf<std::int64_t>(context, DType::kInt64, integers_, as_long);
  }

 private:
  template <typename T>
  using Values = absl::InlinedVector<T, 16>;

  /// -1: it is no list and no tuple.
  static Py_ssize_t SizeOf(PyObject* value) {
    if (PyList_CheckExact(value)) return PyList_Size(value);
    return PyTuple_CheckExact(value) ? PyTuple_Size(value) : -1;
  }
  static PyObject* ItemOf(PyObject* row, Py_ssize_t i) {
    return PyList_CheckExact(row) ? PyList_GetItem(row, i) : PyTuple_GetItem(row, i);
  }

  bool Add(PyObject* value, std::size_t depth) {
    if (depth == dimensions_.size()) return AddNumber(value);
    const Py_ssize_t size = SizeOf(value);
    if (size != dimensions_[depth]) return false;
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!Add(ItemOf(value, i), depth + 1)) return false;
    }
    return true;
  }
  bool AddNumber(PyObject* value) {
    if (PyFloat_CheckExact(value)) {
      is_float_ = true;
      floats_.push_back(PyFloat_AsDouble(value));
      return true;
    }
    const std::optional<std::int64_t> integer = PyLong_CheckExact(value) ? AsInteger(value) : std::nullopt;
    if (!integer) return false;
    floats_.push_back(static_cast<double>(*integer));
    integers_.push_back(*integer);
    fits_int_ = fits_int_ && *integer == static_cast<std::int32_t>(*integer);
    return true;
  }

  template <typename T, typename From, typename Convert>
  std::optional<Tensor> MadeOf(const Context& context, DType dtype, const Values<From>& from,
                               const Convert& convert) const {
    Values<T> values;
    for (const From one : from) {
      const std::optional<T> value = convert(one);
      if (!value) return std::nullopt;
      values.push_back(*value);
    }
    const Shape shape = Check(Shape::Make(dimensions_));
    return Check(InScopes(
        [&] { return context.ConstantBytes(dtype, shape, std::as_bytes(std::span<const T>(values))); }));
  }

  absl::InlinedVector<std::int64_t, 4> dimensions_;
  Values<double> floats_;
  Values<std::int64_t> integers_;  // of no use where one is a float
  bool is_float_ = false;
  bool fits_int_ = true;
};

template <typename T>
Tensor Beside(const Tensor& tensor, T value) {
  const auto bytes = std::as_bytes(std::span<const T>(&value, 1));
  return Check(InScopes([&] { return Context::ScalarBeside(tensor, bytes); }));
}

/// Nothing where numpy is needed.
std::optional<Tensor> PlainBeside(const Tensor& tensor, PyObject* number) {
  const bool is_float = PyFloat_CheckExact(number);
  if (!is_float && !PyLong_CheckExact(number)) return std::nullopt;
  const std::optional<std::int64_t> integer = is_float ? std::nullopt : AsInteger(number);
  if (!is_float && !integer) return std::nullopt;
  const double value = is_float ? PyFloat_AsDouble(number) : static_cast<double>(*integer);
  if (tensor.dtype() == DType::kFloat64) return Beside(tensor, value);
  const std::optional<float> single = AsFloat(value);
  if (tensor.dtype() == DType::kFloat32 && single) return Beside(tensor, *single);
  if (tensor.dtype() == DType::kInt64 && integer) return Beside(tensor, *integer);
  if (tensor.dtype() == DType::kInt32 && integer && *integer == static_cast<std::int32_t>(*integer)) {
    return Beside(tensor, static_cast<std::int32_t>(*integer));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Tensor> ConstantOfNumbers(const Context& context, nb::handle value) {
  Rows rows;
  return rows.Read(value.ptr()) ? rows.Made(context) : std::nullopt;
}

std::optional<Tensor> ConstantBeside(nb::handle tensor, nb::handle number) {
  const auto& beside = nb::cast<const Tensor&>(tensor);
  if (std::optional<Tensor> made = PlainBeside(beside, number.ptr())) return made;
  const nb::object bytes = Arrays("number_beside")(tensor, number);
  if (bytes.is_none()) return std::nullopt;
  const auto value = nb::cast<nb::bytes>(bytes);
  const auto* const data = reinterpret_cast<const std::byte*>(value.c_str());
  return Check(InScopes([&] { return Context::ScalarBeside(beside, std::span(data, value.size())); }));
}

}  // namespace lgpu::python
