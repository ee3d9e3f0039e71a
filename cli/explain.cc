#include "cli/explain.h"

#include <array>
#include <charconv>
#include <utility>

#include "client/runtime/config_words.h"
#include "client/runtime/explain.h"
#include "client/runtime/placer.h"
#include "kernels/registry.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

using Json = nlohmann::json;

/// An input of an op, and the device that it lies on (a placer's position).
struct Input {
  TensorSpec spec;
  int device = 0;
};

absl::Status WrongInput(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(
      Cat("--input \"", text, "\": ", why, "; write DTYPE[SHAPE]@DEVICE, for example float[2,3]@GPU:0"));
}

absl::StatusOr<Shape> ParseShape(std::string_view input, std::string_view text) {
  std::vector<std::int64_t> dimensions;
  while (!text.empty()) {
    const std::string_view number = text.substr(0, text.find(','));
    std::int64_t dimension = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), dimension);
    if (error != std::errc() || end != number.data() + number.size()) {
      return WrongInput(input, Cat("\"", number, "\" is not a dimension"));
    }
    dimensions.push_back(dimension);
    text.remove_prefix(std::min(number.size() + 1, text.size()));
  }
  return Shape::Make(dimensions);
}

absl::StatusOr<Input> ParseInput(const internal::Placer& placer, std::string_view text) {
  Input input;
  std::string_view rest = text;
  const std::size_t at = rest.find('@');
  const std::string_view device = at == std::string_view::npos ? "CPU:0" : rest.substr(at + 1);
  rest = rest.substr(0, at);
  const std::size_t open = rest.find('[');
  if (open == std::string_view::npos || !rest.ends_with(']')) return WrongInput(text, "[SHAPE] is missing");
  LGPU_ASSIGN_OR_RETURN(input.spec.dtype, ParseDType(rest.substr(0, open)));
  LGPU_ASSIGN_OR_RETURN(input.spec.shape, ParseShape(text, rest.substr(open + 1, rest.size() - open - 2)));
  LGPU_ASSIGN_OR_RETURN(input.device, placer.Lookup(device));
  return input;
}

}  // namespace

absl::StatusOr<DType> ParseDType(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, DType>, 10> kWords = {{
      {"float", DType::kFloat32},
      {"double", DType::kFloat64},
      {"half", DType::kFloat16},
      {"bfloat16", DType::kBFloat16},
      {"int32", DType::kInt32},
      {"int64", DType::kInt64},
      {"float32", DType::kFloat32},
      {"float64", DType::kFloat64},
      {"float16", DType::kFloat16},
      {"int", DType::kInt32},
  }};
  for (const auto& [word, dtype] : kWords) {
    if (word == text) return dtype;
  }
  return absl::InvalidArgumentError(
      Cat("there is no dtype \"", text, "\"; there are: float, double, half, bfloat16, int32, int64"));
}

absl::StatusOr<PlacementExplanation> ExplainFlagsOf(const ExplainFlags& flags) {
  LGPU_ASSIGN_OR_RETURN(const Op* op, internal::FindOpToExplain(flags.op));
  LGPU_ASSIGN_OR_RETURN(const DType dtype, ParseDType(flags.dtype));
  OpAttributes attributes{
      .transpose_a = flags.transpose_a, .transpose_b = flags.transpose_b, .axes = {.all = true}};
  LGPU_ASSIGN_OR_RETURN(attributes.cast_to, ParseDType(flags.cast_to));
  LGPU_ASSIGN_OR_RETURN(const DevicePolicy policy, ParseDevicePolicy(flags.policy));
  const KernelRegistry registry = KernelRegistry::WithoutCode({.cast_on_gpu = flags.cast_on_gpu});
  const internal::Placer placer(registry, flags.gpus);
  std::vector<TensorSpec> specs;
  std::vector<int> devices;
  for (const std::string& text : flags.inputs) {
    LGPU_ASSIGN_OR_RETURN(const Input input, ParseInput(placer, text));
    specs.push_back(input.spec);
    devices.push_back(input.device);
  }
  // Without inputs: example inputs that fit the op, on no device in particular.
  if (specs.empty()) specs = ExampleInputs(*op, dtype);
  const internal::DeviceRequest request = placer.Resolve(flags.device);
  return internal::Explain(placer, {.op = *op,
                                    .inputs = specs,
                                    .devices = devices,
                                    .attributes = attributes,
                                    .request = flags.device.empty() ? nullptr : &request,
                                    .soft = flags.soft,
                                    .policy = policy,
                                    .pin_small_ops = flags.pin_small_ops});
}

nlohmann::json ToJson(const PlacementExplanation& explanation) {
  Json json = {{"schema", "lgpu.explanation/v1"},
               {"op", explanation.op},
               {"dtype", std::string(DTypeName(explanation.dtype))},
               {"requested_device", explanation.requested},
               {"soft_placement", explanation.soft_placement},
               {"candidates", Json::array()},
               {"copies", Json::array()},
               {"device", explanation.device},
               {"soft_placed", explanation.soft_placed}};
  for (const PlacementCandidate& candidate : explanation.candidates) {
    json["candidates"].push_back(
        {{"device", candidate.device}, {"taken", candidate.taken}, {"why", candidate.why}});
  }
  for (const PlacementCopy& copy : explanation.copies) {
    json["copies"].push_back({{"input", copy.input},
                              {"from", copy.from},
                              {"to", copy.to},
                              {"bytes", copy.bytes.count()},
                              {"note", copy.why}});
  }
  if (!explanation.status.ok()) {
    json["error"] = {{"code", absl::StatusCodeToString(explanation.status.code())},
                     {"message", std::string(explanation.status.message())}};
  }
  return json;
}

}  // namespace lgpu::cli
