#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/c_handles.h"

using lgpu::c::Deliver;
using lgpu::c::Missing;
using lgpu::c::Report;
using lgpu::c::Text;

const char* lgpu_version(void) { return LGPU_VERSION; }

lgpu_status* lgpu_status_new(void) { return std::make_unique<lgpu_status>().release(); }
void lgpu_status_delete(lgpu_status* status) { std::unique_ptr<lgpu_status>{status}.reset(); }
lgpu_code lgpu_status_code(const lgpu_status* status) {
  return status == nullptr ? LGPU_OK : static_cast<lgpu_code>(status->status.raw_code());
}
const char* lgpu_status_message(const lgpu_status* status) {
  return status == nullptr ? "" : status->message.c_str();
}

lgpu_options* lgpu_options_new(void) { return std::make_unique<lgpu_options>().release(); }
void lgpu_options_delete(lgpu_options* options) { std::unique_ptr<lgpu_options>{options}.reset(); }
void lgpu_options_set_endpoint(lgpu_options* options, const char* endpoint) {
  if (options == nullptr) return;
  options->options.endpoint = Text(endpoint);
}
void lgpu_options_set_lease(lgpu_options* options, const char* lease) {
  if (options == nullptr) return;
  options->options.lease = Text(lease);
}
void lgpu_options_set_lease_name(lgpu_options* options, const char* name) {
  if (options == nullptr) return;
  options->options.lease_name = Text(name);
}
void lgpu_options_add_device(lgpu_options* options, uint64_t memory_limit, int preallocate) {
  if (options == nullptr) return;
  options->options.logical_devices.push_back(
      {.memory_limit = lgpu::c::LimitOf(memory_limit),
       .mode = preallocate != 0 ? lgpu::MemoryMode::kPreallocate : lgpu::MemoryMode::kGrowth});
}
void lgpu_options_set_log_device_placement(lgpu_options* options, int on) {
  if (options == nullptr) return;
  options->options.log_device_placement = on != 0;
}
void lgpu_options_set_soft_device_placement(lgpu_options* options, int on) {
  if (options == nullptr) return;
  options->options.soft_device_placement = on != 0;
}
void lgpu_options_set_allocation_timeout_ms(lgpu_options* options, int64_t milliseconds) {
  if (options == nullptr) return;
  options->options.allocation_timeout = std::chrono::milliseconds(milliseconds);
}

lgpu_code lgpu_context_create(const lgpu_options* options, lgpu_context** context, lgpu_status* status) {
  if (context == nullptr) return Missing("the place for the context", status);
  absl::StatusOr<lgpu::Context> created =
      lgpu::Context::Create(options == nullptr ? lgpu::ContextOptions{} : options->options);
  if (created.ok()) *context = std::make_unique<lgpu_context>(lgpu_context{*std::move(created)}).release();
  return Report(created.status(), status);
}
lgpu_code lgpu_context_close(lgpu_context* context, lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  return Report(context->context.Close(), status);
}
lgpu_code lgpu_context_suspend(lgpu_context* context, lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  return Report(context->context.Suspend(), status);
}
lgpu_code lgpu_context_resume(lgpu_context* context, lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  return Report(context->context.Resume(), status);
}
void lgpu_context_delete(lgpu_context* context) { std::unique_ptr<lgpu_context>{context}.reset(); }
const char* lgpu_context_lease(const lgpu_context* context) {
  return context == nullptr ? "" : context->context.lease().c_str();
}
const char* lgpu_context_lease_name(const lgpu_context* context) {
  return context == nullptr ? "" : context->context.lease_name().c_str();
}
int lgpu_context_device_count(const lgpu_context* context) {
  return context == nullptr ? 0 : static_cast<int>(context->context.logical_devices().size());
}
const char* lgpu_context_device_name(const lgpu_context* context, int index) {
  if (index < 0 || index >= lgpu_context_device_count(context)) return nullptr;
  return context->context.logical_devices()[static_cast<std::size_t>(index)].name.c_str();
}
lgpu_code lgpu_context_memory_info(const lgpu_context* context, const char* device, uint64_t* current,
                                   uint64_t* peak, lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  const absl::StatusOr<lgpu::MemoryInfo> info = context->context.GetMemoryInfo(Text(device));
  if (info.ok() && current != nullptr) *current = info->current.count();
  if (info.ok() && peak != nullptr) *peak = info->peak.count();
  return Report(info.status(), status);
}

lgpu_scope* lgpu_scope_new(const lgpu_context* context, const char* device) {
  if (context == nullptr) return nullptr;
  if (device == nullptr) {
    return std::unique_ptr<lgpu_scope>(new lgpu_scope{lgpu::DeviceScope(context->context, std::nullopt)})
        .release();
  }
  return std::unique_ptr<lgpu_scope>(new lgpu_scope{lgpu::DeviceScope(context->context, device)}).release();
}
void lgpu_scope_delete(lgpu_scope* scope) { std::unique_ptr<lgpu_scope>{scope}.reset(); }

lgpu_code lgpu_constant(const lgpu_context* context, lgpu_dtype dtype, const int64_t* dimensions, int rank,
                        const void* data, size_t bytes, lgpu_tensor** tensor, lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  if (rank < 0 || (rank > 0 && dimensions == nullptr) || (bytes > 0 && data == nullptr)) {
    return Report(absl::InvalidArgumentError("rank is negative, or dimensions or data are NULL"), status);
  }
  const absl::StatusOr<lgpu::Shape> shape = lgpu::Shape::Make({dimensions, static_cast<std::size_t>(rank)});
  if (!shape.ok()) return Report(shape.status(), status);
  return Deliver(context->context.ConstantBytes(static_cast<lgpu::DType>(dtype), *shape,
                                                {static_cast<const std::byte*>(data), bytes}),
                 tensor, status);
}
lgpu_code lgpu_matmul(const lgpu_tensor* a, const lgpu_tensor* b, int transpose_a, int transpose_b,
                      lgpu_tensor** product, lgpu_status* status) {
  if (a == nullptr || b == nullptr) return Missing("an input of lgpu_matmul", status);
  return Deliver(
      lgpu::MatMul(a->tensor, b->tensor, {.transpose_a = transpose_a != 0, .transpose_b = transpose_b != 0}),
      product, status);
}
lgpu_code lgpu_add_n(const lgpu_tensor* const* inputs, size_t count, lgpu_tensor** sum, lgpu_status* status) {
  if (count > 0 && inputs == nullptr) return Missing("the list of inputs", status);
  std::vector<lgpu::Tensor> tensors;
  for (const lgpu_tensor* input : std::span(inputs, count)) {
    if (input == nullptr) return Missing("an input of lgpu_add_n", status);
    tensors.push_back(input->tensor);
  }
  return Deliver(lgpu::AddN(tensors), sum, status);
}
lgpu_code lgpu_cast(const lgpu_tensor* input, lgpu_dtype to, lgpu_tensor** output, lgpu_status* status) {
  if (input == nullptr) return Missing("the input of lgpu_cast", status);
  return Deliver(lgpu::Cast(input->tensor, static_cast<lgpu::DType>(to)), output, status);
}
lgpu_code lgpu_copy_to_device(const lgpu_tensor* input, const char* device, lgpu_tensor** output,
                              lgpu_status* status) {
  if (input == nullptr) return Missing("the input of lgpu_copy_to_device", status);
  if (device == nullptr) return Missing("the device", status);
  return Deliver(lgpu::CopyToDevice(input->tensor, device), output, status);
}

void lgpu_tensor_delete(lgpu_tensor* tensor) { std::unique_ptr<lgpu_tensor>{tensor}.reset(); }
lgpu_dtype lgpu_tensor_dtype(const lgpu_tensor* tensor) {
  return tensor == nullptr ? LGPU_INVALID : static_cast<lgpu_dtype>(tensor->tensor.dtype());
}
int lgpu_tensor_rank(const lgpu_tensor* tensor) {
  return tensor == nullptr ? 0 : tensor->tensor.shape().rank();
}
int64_t lgpu_tensor_dimension(const lgpu_tensor* tensor, int axis) {
  if (axis < 0 || axis >= lgpu_tensor_rank(tensor)) return -1;
  return tensor->tensor.shape()[axis];
}
uint64_t lgpu_tensor_bytes(const lgpu_tensor* tensor) {
  return tensor == nullptr ? 0 : tensor->tensor.bytes().count();
}
const char* lgpu_tensor_device(const lgpu_tensor* tensor) {
  return tensor == nullptr ? "" : tensor->tensor.device().c_str();
}
lgpu_code lgpu_tensor_copy_to_host(const lgpu_tensor* tensor, void* data, size_t bytes, lgpu_status* status) {
  if (tensor == nullptr) return Missing("the tensor", status);
  if (data == nullptr && bytes > 0) return Missing("the place for the data", status);
  return Report(tensor->tensor.CopyToHost(data, bytes), status);
}
