/* The C interface from a C program: what a binding does. Ends with 0 if all is as it should be. */

#include <stdio.h>
#include <string.h>

#include "lgpu/c/lgpu.h"

static int failures = 0;

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                             \
    }                                                                         \
  } while (0)

static void CheckOps(const lgpu_context* context, lgpu_status* status) {
  static const float kA[] = {1, 2, 3, 4, 5, 6};
  static const int64_t kShapeA[] = {2, 3};
  static const int64_t kShapeB[] = {3, 2};
  lgpu_tensor* a = NULL;
  lgpu_tensor* b = NULL;
  lgpu_tensor* product = NULL;
  lgpu_tensor* sum = NULL;
  lgpu_tensor* whole = NULL;
  lgpu_tensor* copy = NULL;
  float values[4] = {0, 0, 0, 0};
  int32_t wholes[4] = {0, 0, 0, 0};
  uint64_t current = 0;
  uint64_t peak = 0;

  CHECK(lgpu_constant(context, LGPU_FLOAT32, kShapeA, 2, kA, sizeof kA, &a, status) == LGPU_OK);
  CHECK(lgpu_constant(context, LGPU_FLOAT32, kShapeB, 2, kA, sizeof kA, &b, status) == LGPU_OK);
  CHECK(lgpu_matmul(a, b, 0, 0, &product, status) == LGPU_OK);
  CHECK(strcmp(lgpu_tensor_device(product), "/job:localhost/replica:0/task:0/device:GPU:0") == 0);
  {
    const lgpu_tensor* const inputs[] = {product, product};
    lgpu_scope* scope = lgpu_scope_new(context, "/CPU:0");
    CHECK(lgpu_add_n(inputs, 2, &sum, status) == LGPU_OK);
    lgpu_scope_delete(scope);
  }
  CHECK(strcmp(lgpu_tensor_device(sum), "/job:localhost/replica:0/task:0/device:CPU:0") == 0);
  CHECK(lgpu_tensor_copy_to_host(sum, values, sizeof values, status) == LGPU_OK);
  CHECK(values[0] == 44 && values[1] == 56 && values[2] == 98 && values[3] == 128);
  CHECK(lgpu_cast(sum, LGPU_INT32, &whole, status) == LGPU_OK);
  CHECK(lgpu_tensor_dtype(whole) == LGPU_INT32);
  CHECK(lgpu_tensor_copy_to_host(whole, wholes, sizeof wholes, status) == LGPU_OK);
  CHECK(wholes[3] == 128);
  CHECK(lgpu_identity(product, &copy, status) == LGPU_OK);
  CHECK(lgpu_tensor_rank(copy) == 2 && lgpu_tensor_dimension(copy, 1) == 2);
  CHECK(lgpu_tensor_dimension(copy, 2) == -1 && lgpu_tensor_bytes(copy) == 16);
  CHECK(lgpu_context_memory_info(context, "GPU:0", &current, &peak, status) == LGPU_OK);
  CHECK(current > 0 && peak >= current);

  lgpu_tensor_delete(product);
  product = NULL;
  CHECK(lgpu_matmul(a, a, 0, 0, &product, status) == LGPU_INVALID_ARGUMENT);
  CHECK(product == NULL && lgpu_status_code(status) == LGPU_INVALID_ARGUMENT);
  CHECK(strcmp(lgpu_status_message(status), "Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]") == 0);
  CHECK(lgpu_matmul(a, NULL, 0, 0, &product, status) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_matmul(a, b, 0, 0, NULL, NULL) == LGPU_INVALID_ARGUMENT);

  lgpu_tensor_delete(a);
  lgpu_tensor_delete(b);
  lgpu_tensor_delete(sum);
  lgpu_tensor_delete(whole);
  lgpu_tensor_delete(copy);
}

int main(void) {
  lgpu_status* status = lgpu_status_new();
  lgpu_options* options = lgpu_options_new();
  lgpu_context* context = NULL;

  lgpu_options_set_endpoint(options, "local:1x1GiB");
  lgpu_options_add_device(options, (uint64_t)64 << 20, 0);
  lgpu_options_set_soft_device_placement(options, 1);
  if (lgpu_context_create(options, &context, status) != LGPU_OK) {
    fprintf(stderr, "no context: %s\n", lgpu_status_message(status));
    return 1;
  }
  CHECK(lgpu_context_device_count(context) == 1);
  CHECK(lgpu_context_device_name(context, 1) == NULL);
  CHECK(strlen(lgpu_version()) > 0);
  CheckOps(context, status);
  CHECK(lgpu_context_close(context, status) == LGPU_OK);
  lgpu_context_delete(context);
  lgpu_options_delete(options);
  lgpu_status_delete(status);
  lgpu_status_delete(NULL);
  return failures == 0 ? 0 : 1;
}
