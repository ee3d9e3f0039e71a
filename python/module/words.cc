#include "python/module/words.h"

#include <array>
#include <utility>

#include "python/module/errors.h"

namespace lgpu::python {

namespace {

constexpr std::array<std::pair<std::string_view, DType>, 6> kDTypes = {{{"float32", DType::kFloat32},
                                                                        {"float64", DType::kFloat64},
                                                                        {"int32", DType::kInt32},
                                                                        {"int64", DType::kInt64},
                                                                        {"bfloat16", DType::kBFloat16},
                                                                        {"float16", DType::kFloat16}}};
constexpr std::array<std::pair<std::string_view, DevicePolicy>, 4> kPolicies = {
    {{"explicit", DevicePolicy::kExplicit},
     {"warn", DevicePolicy::kWarn},
     {"silent", DevicePolicy::kSilent},
     {"silent_for_int32", DevicePolicy::kSilentForInt32}}};

template <typename Table>
auto Find(const Table& table, std::string_view word, std::string_view what) {
  std::string words;
  for (const auto& [name, value] : table) {
    if (name == word) return value;
    words.append(words.empty() ? "" : ", ").append(name);
  }
  throw StatusError(absl::InvalidArgumentError(
      std::string(what).append(" \"").append(word).append("\" is not one of: ").append(words)));
}

}  // namespace

DType DTypeOf(std::string_view name) { return Find(kDTypes, name, "the element type"); }

std::string NameOf(DType dtype) {
  for (const auto& [name, value] : kDTypes) {
    if (value == dtype) return std::string(name);
  }
  return "invalid";
}

DevicePolicy PolicyOf(std::string_view word) { return Find(kPolicies, word, "the device policy"); }

nanobind::object Arrays(const char* function) {
  return nanobind::module_::import_("lgpu._arrays").attr(function);
}

}  // namespace lgpu::python
