/* Memory, refusals and the ops that training needs from a C program. Ends with 0 if all is as it should be.
 */

#include <stdio.h>
#include <string.h>

#include "lgpu/c/memory.h"
#include "tests/client/c_check.h"

static const uint64_t kMiB = (uint64_t)1 << 20;

static lgpu_tensor* Tensor(const lgpu_context* context, lgpu_dtype dtype, int64_t rows, int64_t columns,
                           const void* values, size_t element) {
  const int64_t shape[] = {rows, columns};
  lgpu_tensor* tensor = NULL;
  CHECK(lgpu_constant(context, dtype, shape, columns > 0 ? 2 : 1, values,
                      (size_t)(rows * (columns > 0 ? columns : 1)) * element, &tensor, NULL) == LGPU_OK);
  return tensor;
}

typedef lgpu_code (*binary_op)(const lgpu_tensor*, const lgpu_tensor*, lgpu_tensor**, lgpu_status*);
typedef lgpu_code (*unary_op)(const lgpu_tensor*, lgpu_tensor**, lgpu_status*);
typedef lgpu_code (*reduction)(const lgpu_tensor*, const int*, size_t, int, lgpu_tensor**, lgpu_status*);

static lgpu_tensor* Binary(binary_op op, const lgpu_tensor* a, const lgpu_tensor* b) {
  lgpu_tensor* output = NULL;
  CHECK(op(a, b, &output, NULL) == LGPU_OK);
  CHECK(op(a, NULL, &output, NULL) == LGPU_INVALID_ARGUMENT && op(a, b, NULL, NULL) == LGPU_INVALID_ARGUMENT);
  return output;
}

static lgpu_tensor* Unary(unary_op op, const lgpu_tensor* input) {
  lgpu_tensor* output = NULL;
  CHECK(op(input, &output, NULL) == LGPU_OK);
  CHECK(op(NULL, &output, NULL) == LGPU_INVALID_ARGUMENT);
  return output;
}

static lgpu_tensor* Reduce(reduction op, const lgpu_tensor* input, const int* axes, size_t count, int keep) {
  lgpu_tensor* output = NULL;
  CHECK(op(input, axes, count, keep, &output, NULL) == LGPU_OK);
  CHECK(op(input, NULL, 1, 0, &output, NULL) == LGPU_INVALID_ARGUMENT);
  return output;
}

static void CheckOps(const lgpu_context* context) {
  static const float kA[] = {1, -2, 3, 4};
  static const float kB[] = {2, 4};
  static const int32_t kLabels[] = {1, 0};
  static const int kRows[] = {0};
  static const int kSwapped[] = {1, 0};
  static const int64_t kFlat[] = {4};
  lgpu_tensor* const a = Tensor(context, LGPU_FLOAT32, 2, 2, kA, sizeof(float));
  lgpu_tensor* const b = Tensor(context, LGPU_FLOAT32, 2, 0, kB, sizeof(float));
  lgpu_tensor* const labels = Tensor(context, LGPU_INT32, 2, 0, kLabels, sizeof(int32_t));
  lgpu_tensor* const none = Binary(lgpu_subtract, b, b);
  lgpu_tensor* const one = Reduce(lgpu_reduce_sum, b, NULL, 0, 0);
  lgpu_tensor* output = NULL;
  lgpu_tensor* loss = NULL;

  CHECK(Has(Binary(lgpu_add, a, b), (const float[]){3, 2, 5, 8}, 4));
  CHECK(Has(Binary(lgpu_subtract, a, b), (const float[]){-1, -6, 1, 0}, 4));
  CHECK(Has(Binary(lgpu_multiply, a, b), (const float[]){2, -8, 6, 16}, 4));
  CHECK(Has(Binary(lgpu_divide, a, b), (const float[]){0.5F, -0.5F, 1.5F, 1}, 4));
  CHECK(Has(Binary(lgpu_relu_grad, a, a), (const float[]){1, 0, 3, 4}, 4));
  CHECK(Has(Unary(lgpu_negative, a), (const float[]){-1, 2, -3, -4}, 4));
  CHECK(Has(Unary(lgpu_relu, a), (const float[]){1, 0, 3, 4}, 4));
  CHECK(Has(Binary(lgpu_tanh_grad, a, a), (const float[]){0, 6, -24, -60}, 4));
  CHECK(Has(Unary(lgpu_tanh, none), (const float[]){0, 0}, 2));
  CHECK(Has(Reduce(lgpu_reduce_sum, a, kRows, 1, 0), (const float[]){4, 2}, 2));
  output = Reduce(lgpu_reduce_mean, a, kRows, 1, 1);
  CHECK(lgpu_tensor_rank(output) == 2 && lgpu_tensor_dimension(output, 0) == 1);
  CHECK(Has(output, (const float[]){2, 1}, 2));
  CHECK(lgpu_fill(kFlat, 1, one, &output, NULL) == LGPU_OK);
  CHECK(Has(output, (const float[]){6, 6, 6, 6}, 4));
  CHECK(lgpu_fill(NULL, 1, one, &output, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_transpose(a, NULL, &output, NULL) == LGPU_OK);
  CHECK(Has(output, (const float[]){1, 3, -2, 4}, 4));
  CHECK(lgpu_transpose(a, kSwapped, &output, NULL) == LGPU_OK);
  CHECK(Has(output, (const float[]){1, 3, -2, 4}, 4));
  {
    const lgpu_tensor* const both[] = {b, b};
    CHECK(lgpu_concat(both, 2, &output, NULL) == LGPU_OK);
    CHECK(Has(output, (const float[]){2, 4, 2, 4}, 4));
  }
  CHECK(lgpu_reshape(a, kFlat, 1, &output, NULL) == LGPU_OK && lgpu_tensor_rank(output) == 1);
  CHECK(Has(output, kA, 4));
  CHECK(lgpu_slice_rows(a, 1, 1, &output, NULL) == LGPU_OK);
  CHECK(Has(output, (const float[]){3, 4}, 2));
  CHECK(lgpu_slice_rows(a, 1, 5, &output, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_sparse_softmax_cross_entropy_with_logits(a, labels, &loss, &output, NULL) == LGPU_OK);
  CHECK(lgpu_tensor_bytes(loss) == 8 && lgpu_tensor_bytes(output) == 16);
  lgpu_tensor_delete(loss);
  lgpu_tensor_delete(output);
  lgpu_tensor_delete(one);
  lgpu_tensor_delete(none);
  lgpu_tensor_delete(labels);
  lgpu_tensor_delete(b);
  lgpu_tensor_delete(a);
}

static void CheckRefusal(const lgpu_memory* memory, lgpu_status* status) {
  void* none = NULL;
  uint64_t value = 0;
  lgpu_refusal_owner owner;
  lgpu_refusal_holder holder;
  CHECK(lgpu_memory_allocate(memory, 40 * kMiB, 0, NULL, "more", 0, &none, status) ==
        LGPU_RESOURCE_EXHAUSTED);
  const lgpu_refusal* const refusal = lgpu_status_refusal(status);
  CHECK(refusal != NULL && strcmp(lgpu_refusal_reason(refusal), "limit") == 0);
  CHECK(lgpu_refusal_number(refusal, "asked_bytes", &value) == 1 && value == 40 * kMiB);
  CHECK(lgpu_refusal_number(refusal, "limit_bytes", &value) == 1 && value == 64 * kMiB);
  CHECK(lgpu_refusal_number(refusal, "used_bytes", &value) == 1 && value == 32 * kMiB);
  CHECK(lgpu_refusal_number(refusal, "live_blocks", &value) == 1 && value == 1);
  CHECK(lgpu_refusal_number(refusal, "colour", &value) == 0);
  CHECK(strcmp(lgpu_refusal_text(refusal, "device"), "/device:GPU:0") == 0);
  CHECK(strcmp(lgpu_refusal_text(refusal, "what"), "block of more") == 0);
  CHECK(strcmp(lgpu_refusal_text(refusal, "lease"), "named") == 0);
  CHECK(lgpu_refusal_text(refusal, "colour") == NULL);
  CHECK(lgpu_refusal_owner_count(refusal) == 1 && lgpu_refusal_owner_at(refusal, 0, &owner) == 1);
  CHECK(strcmp(owner.op, "weights") == 0 && owner.bytes == 32 * kMiB && owner.blocks == 1);
  CHECK(lgpu_refusal_owner_at(refusal, 1, &owner) == 0);
  CHECK(lgpu_refusal_holder_at(refusal, lgpu_refusal_holder_count(refusal), &holder) == 0);
  CHECK(lgpu_refusal_advice_at(refusal, lgpu_refusal_advice_count(refusal)) == NULL);
  CHECK(lgpu_memory_allocate(memory, 40 * kMiB, 0, NULL, NULL, LGPU_ONLY_IF_READY, &none, status) ==
        LGPU_RESOURCE_EXHAUSTED);
  CHECK(lgpu_status_refusal(status) == NULL && lgpu_status_refusal(NULL) == NULL);
  CHECK(none == NULL);
}

static void CheckSnapshot(const lgpu_memory* memory, const void* address, lgpu_status* status) {
  lgpu_snapshot* snapshot = NULL;
  lgpu_block_info info;
  CHECK(lgpu_memory_snapshot(memory, &snapshot, status) == LGPU_OK);
  CHECK(lgpu_snapshot_block_count(snapshot) == 1 && lgpu_snapshot_block_at(snapshot, 0, &info) == 1);
  CHECK(info.address == address && info.bytes == 32 * kMiB && info.requested == 32 * kMiB);
  CHECK(strcmp(info.tag, "weights") == 0 && strcmp(info.state, "live") == 0 && info.stream == NULL);
  CHECK(lgpu_snapshot_block_at(snapshot, 1, &info) == 0);
  CHECK(strstr(lgpu_snapshot_json(snapshot), "weights") != NULL);
  lgpu_snapshot_delete(snapshot);
}

static void CheckMemory(lgpu_status* status) {
  lgpu_options* const options = lgpu_options_new();
  lgpu_memory* memory = NULL;
  lgpu_export* owner = NULL;
  void* block = NULL;
  uint64_t value = 0;
  uint64_t blocks = 0;
  uint64_t exported = 0;
  lgpu_options_set_endpoint(options, "local:1x1GiB");
  lgpu_options_set_lease_name(options, "named");
  lgpu_options_add_device(options, 64 * kMiB, 0);
  CHECK(lgpu_memory_open(options, 0, NULL, status) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_memory_open(options, 3, &memory, status) == LGPU_NOT_FOUND);
  CHECK(lgpu_memory_open(options, 0, &memory, status) == LGPU_OK);
  CHECK(strcmp(lgpu_memory_lease_name(memory), "named") == 0 && strcmp(lgpu_memory_lease(memory), "") == 0);
  CHECK(lgpu_memory_cuda_device(memory) == -1 && strncmp(lgpu_memory_card(memory), "GPU-", 4) == 0);
  CHECK(lgpu_memory_allocate(memory, 32 * kMiB, 512, NULL, "weights", LGPU_DEFAULT_TIMEOUT, &block, status) ==
        LGPU_OK);
  CHECK((uintptr_t)block % 512 == 0);
  memset(block, 1, (size_t)(32 * kMiB));
  CHECK(lgpu_memory_find(memory, block, &value, status) == LGPU_OK && value == 32 * kMiB);
  CHECK(lgpu_memory_find(memory, &value, NULL, status) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_memory_use_on(memory, block, options, status) == LGPU_OK);
  CHECK(lgpu_memory_forget_stream(memory, options, status) == LGPU_OK);
  CHECK(lgpu_memory_stat(memory, "used", &value, status) == LGPU_OK && value == 32 * kMiB);
  CHECK(lgpu_memory_stat(memory, "colour", &value, status) == LGPU_INVALID_ARGUMENT);
  CheckRefusal(memory, status);
  CheckSnapshot(memory, block, status);

  CHECK(lgpu_memory_export(memory, block, NULL, &owner, status) == LGPU_OK);
  lgpu_memory_live_blocks(memory, &blocks, NULL, &exported);
  CHECK(blocks == 1 && exported == 1);
  CHECK(lgpu_memory_free(memory, block, NULL, status) == LGPU_FAILED_PRECONDITION);
  CHECK(lgpu_memory_close(memory, status) == LGPU_FAILED_PRECONDITION);
  lgpu_export_delete(owner);
  lgpu_export_delete(NULL);
  CHECK(lgpu_memory_free(memory, block, NULL, status) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_memory_free(memory, NULL, NULL, status) == LGPU_OK);
  CHECK(lgpu_memory_trim(memory, &value, status) == LGPU_OK && value >= 32 * kMiB);
  CHECK(lgpu_memory_resize(memory, 128 * kMiB, status) == LGPU_OK);
  CHECK(lgpu_memory_allocate(memory, 100 * kMiB, 0, NULL, NULL, 0, &block, status) == LGPU_OK);
  CHECK(lgpu_memory_free(memory, block, NULL, status) == LGPU_OK);
  CHECK(lgpu_memory_close(memory, status) == LGPU_OK);
  CHECK(lgpu_memory_allocate(memory, 1, 0, NULL, NULL, 0, &block, status) == LGPU_FAILED_PRECONDITION);
  lgpu_memory_delete(memory);
  lgpu_memory_delete(NULL);
  lgpu_options_add_device(options, 64 * kMiB, 0);
  CHECK(lgpu_memory_open(options, 0, &memory, status) == LGPU_INVALID_ARGUMENT);
  lgpu_options_delete(options);
}

static void CheckContext(lgpu_status* status) {
  lgpu_options* const options = lgpu_options_new();
  lgpu_context* context = NULL;
  lgpu_memory* memory = NULL;
  void* block = NULL;
  lgpu_options_set_endpoint(options, "local:1x1GiB");
  lgpu_options_set_lease_name(options, "tensors");
  lgpu_options_add_device(options, 64 * kMiB, 0);
  CHECK(lgpu_context_create(options, &context, status) == LGPU_OK);
  lgpu_options_delete(options);
  CHECK(strcmp(lgpu_context_lease(context), "") == 0 &&
        strcmp(lgpu_context_lease_name(context), "tensors") == 0);
  CheckOps(context);
  CHECK(lgpu_context_memory(context, "GPU:1", &memory, status) != LGPU_OK);
  CHECK(lgpu_context_memory(context, "GPU:0", &memory, status) == LGPU_OK);
  CHECK(lgpu_memory_allocate(memory, kMiB, 0, NULL, NULL, 0, &block, status) == LGPU_OK);
  CHECK(lgpu_context_close(context, status) == LGPU_FAILED_PRECONDITION);
  CHECK(lgpu_memory_free(memory, block, NULL, status) == LGPU_OK);
  CHECK(lgpu_context_close(context, status) == LGPU_OK);
  lgpu_memory_delete(memory);
  lgpu_context_delete(context);
}

int main(void) {
  lgpu_status* const status = lgpu_status_new();
  CheckMemory(status);
  CheckContext(status);
  lgpu_status_delete(status);
  return failures == 0 ? 0 : 1;
}
