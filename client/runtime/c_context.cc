#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/runtime/c_handles.h"
#include "client/runtime/config_words.h"

using lgpu::c::Missing;
using lgpu::c::NewStrings;
using lgpu::c::Report;
using lgpu::c::Text;

namespace {

absl::StatusOr<lgpu::DevicePolicy> PolicyCalled(const char* word) {
  return lgpu::ParseDevicePolicy(word == nullptr ? std::string_view("silent") : word);
}

}  // namespace

void lgpu_options_add_device_on(lgpu_options* options, const char* physical_device, uint64_t memory_limit,
                                uint64_t guarantee, int preallocate) {
  if (options == nullptr) return;
  options->options.logical_devices.push_back(
      {.memory_limit = lgpu::c::LimitOf(memory_limit),
       .guarantee = lgpu::Bytes(guarantee),
       .mode = preallocate != 0 ? lgpu::MemoryMode::kPreallocate : lgpu::MemoryMode::kGrowth,
       .physical_device = Text(physical_device)});
}
void lgpu_options_set_log_sink(lgpu_options* options,
                               void (*sink)(const char* line, size_t length, void* user), void* user) {
  if (options == nullptr) return;
  options->options.log_sink = nullptr;
  if (sink == nullptr) return;
  options->options.log_sink = [sink, user](std::string_view line) {
    const std::string text(line);  // ends in a zero, for callers that print it
    sink(text.c_str(), text.size(), user);
  };
}
lgpu_code lgpu_options_set_device_policy(lgpu_options* options, const char* policy, lgpu_status* status) {
  if (options == nullptr) return Missing("the options", status);
  const absl::StatusOr<lgpu::DevicePolicy> called = PolicyCalled(policy);
  if (called.ok()) options->options.device_policy = *called;
  return Report(called.status(), status);
}

lgpu_code lgpu_context_reset_memory_stats(const lgpu_context* context, const char* device,
                                          lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  return Report(context->context.ResetMemoryStats(Text(device)), status);
}
lgpu_code lgpu_context_memory_stat(const lgpu_context* context, const char* device, const char* stat,
                                   uint64_t* value, lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  if (value == nullptr) return Missing("the place for the value", status);
  const absl::StatusOr<lgpu::AllocatorStats> stats = context->context.GetAllocatorStats(Text(device));
  if (!stats.ok()) return Report(stats.status(), status);
  const std::array<std::pair<std::string_view, uint64_t>, 7> values = {
      {{"num_allocs", stats->num_allocs},
       {"bytes_in_use", stats->bytes_in_use.count()},
       {"peak_bytes_in_use", stats->peak_bytes_in_use.count()},
       {"largest_alloc_size", stats->largest_alloc_size.count()},
       {"bytes_limit", stats->bytes_limit.count()},
       {"pool_bytes", stats->pool_bytes.count()},
       {"largest_free_block_bytes", stats->largest_free_block_bytes.count()}}};
  std::string names;
  for (const auto& [name, number] : values) {
    if (name == Text(stat)) {
      *value = number;
      return Report(absl::OkStatus(), status);
    }
    names.append(names.empty() ? "" : ", ").append(name);
  }
  return Report(
      absl::InvalidArgumentError("there is no statistic \"" + Text(stat) + "\"; there are: " + names),
      status);
}
lgpu_strings* lgpu_context_memory_summary(const lgpu_context* context) {
  return context == nullptr ? nullptr : NewStrings({context->context.MemorySummary()});
}
lgpu_strings* lgpu_context_device_mapping(const lgpu_context* context) {
  return context == nullptr ? nullptr : NewStrings({context->context.DeviceMapping()});
}
lgpu_strings* lgpu_context_list_logical_devices(const lgpu_context* context, const char* type) {
  if (context == nullptr) return nullptr;
  std::vector<std::string> names;
  for (const lgpu::LogicalDeviceName& device : context->context.ListLogicalDevices(Text(type))) {
    names.push_back(device.name);
  }
  return NewStrings(std::move(names));
}
lgpu_code lgpu_context_trim(const lgpu_context* context, uint64_t* bytes, lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  const absl::StatusOr<lgpu::Bytes> trimmed = context->context.Trim();
  if (trimmed.ok() && bytes != nullptr) *bytes = trimmed->count();
  return Report(trimmed.status(), status);
}
lgpu_code lgpu_context_resize_device(const lgpu_context* context, const char* device, uint64_t memory_limit,
                                     lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  return Report(context->context.ResizeDevice(Text(device), {.memory_limit = lgpu::Bytes(memory_limit)}),
                status);
}
void lgpu_context_set_soft_device_placement(const lgpu_context* context, int on) {
  if (context != nullptr) context->context.SetSoftDevicePlacement(on != 0);
}
void lgpu_context_set_log_device_placement(const lgpu_context* context, int on) {
  if (context != nullptr) context->context.SetLogDevicePlacement(on != 0);
}
lgpu_code lgpu_context_set_device_policy(const lgpu_context* context, const char* policy,
                                         lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  const absl::StatusOr<lgpu::DevicePolicy> called = PolicyCalled(policy);
  if (called.ok()) context->context.SetDevicePolicy(*called);
  return Report(called.status(), status);
}
void lgpu_context_copy_counts(const lgpu_context* context, uint64_t* copies, uint64_t* bytes) {
  const lgpu::Context::CopyCount count =
      context == nullptr ? lgpu::Context::CopyCount{} : context->context.CopyCounts();
  if (copies != nullptr) *copies = count.copies;
  if (bytes != nullptr) *bytes = count.bytes.count();
}

lgpu_code lgpu_context_explain(const lgpu_context* context, const char* op, const lgpu_tensor* const* inputs,
                               size_t count, int transpose_a, int transpose_b, lgpu_dtype cast_to,
                               lgpu_explanation** explanation, lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  if (explanation == nullptr) return Missing("the place for the explanation", status);
  if (count > 0 && inputs == nullptr) return Missing("the list of inputs", status);
  std::vector<lgpu::Tensor> tensors;
  for (const lgpu_tensor* input : std::span(inputs, count)) {
    if (input == nullptr) return Missing("an input of lgpu_context_explain", status);
    tensors.push_back(input->tensor);
  }
  absl::StatusOr<lgpu::PlacementExplanation> why =
      context->context.Explain(Text(op), tensors,
                               {.transpose_a = transpose_a != 0,
                                .transpose_b = transpose_b != 0,
                                .cast_to = static_cast<lgpu::DType>(cast_to)});
  if (!why.ok()) return Report(why.status(), status);
  std::string message(why->status.message());
  std::string text = why->ToString();
  *explanation = std::make_unique<lgpu_explanation>(
                     lgpu_explanation{*std::move(why), std::move(message), std::move(text)})
                     .release();
  return Report(absl::OkStatus(), status);
}
void lgpu_explanation_delete(lgpu_explanation* explanation) {
  std::unique_ptr<lgpu_explanation>{explanation}.reset();
}
const char* lgpu_explanation_device(const lgpu_explanation* explanation) {
  return explanation == nullptr ? "" : explanation->explanation.device.c_str();
}
int lgpu_explanation_soft_placed(const lgpu_explanation* explanation) {
  return explanation != nullptr && explanation->explanation.soft_placed ? 1 : 0;
}
lgpu_code lgpu_explanation_code(const lgpu_explanation* explanation) {
  return explanation == nullptr ? LGPU_OK
                                : static_cast<lgpu_code>(explanation->explanation.status.raw_code());
}
const char* lgpu_explanation_message(const lgpu_explanation* explanation) {
  return explanation == nullptr ? "" : explanation->message.c_str();
}
const char* lgpu_explanation_text(const lgpu_explanation* explanation) {
  return explanation == nullptr ? "" : explanation->text.c_str();
}
size_t lgpu_explanation_candidate_count(const lgpu_explanation* explanation) {
  return explanation == nullptr ? 0 : explanation->explanation.candidates.size();
}
const char* lgpu_explanation_candidate_device(const lgpu_explanation* explanation, size_t index) {
  if (index >= lgpu_explanation_candidate_count(explanation)) return nullptr;
  return explanation->explanation.candidates[index].device.c_str();
}
const char* lgpu_explanation_candidate_why(const lgpu_explanation* explanation, size_t index) {
  if (index >= lgpu_explanation_candidate_count(explanation)) return nullptr;
  return explanation->explanation.candidates[index].why.c_str();
}
int lgpu_explanation_candidate_taken(const lgpu_explanation* explanation, size_t index) {
  return index < lgpu_explanation_candidate_count(explanation) &&
                 explanation->explanation.candidates[index].taken
             ? 1
             : 0;
}

lgpu_policy_scope* lgpu_policy_scope_new(const lgpu_context* context, const char* policy) {
  const absl::StatusOr<lgpu::DevicePolicy> called = PolicyCalled(policy);
  if (context == nullptr || !called.ok()) return nullptr;
  return std::unique_ptr<lgpu_policy_scope>(
             new lgpu_policy_scope{lgpu::DevicePolicyScope(context->context, *called)})
      .release();
}
void lgpu_policy_scope_delete(lgpu_policy_scope* scope) { std::unique_ptr<lgpu_policy_scope>{scope}.reset(); }
