/* The C interface from a C program: what a binding does. Ends with 0 if all is as it should be. */

#include <stdio.h>
#include <string.h>

#include "lgpu/c/lgpu.h"
#include "tests/client/c_check.h"

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

static int lines = 0;
static char last_line[256];

static void TakeLine(const char* line, size_t length, void* user) {
  ++*(int*)user;
  snprintf(last_line, sizeof last_line, "%.*s", (int)length, line);
}

static lgpu_tensor* Ones(const lgpu_context* context, int64_t rows, int64_t columns, lgpu_status* status) {
  static const float kOnes[] = {1, 1, 1, 1};
  const int64_t shape[] = {rows, columns};
  lgpu_tensor* tensor = NULL;
  CHECK(lgpu_constant(context, LGPU_FLOAT32, shape, 2, kOnes, (size_t)(rows * columns) * sizeof(float),
                      &tensor, status) == LGPU_OK);
  return tensor;
}

/* TensorFlow's tf.config from C: two cards, the first one split. */
static void CheckConfig(lgpu_status* status) {
  static const uint64_t kLimits[] = {(uint64_t)32 << 20, (uint64_t)64 << 20};
  static const uint64_t kMore[] = {(uint64_t)48 << 20, (uint64_t)64 << 20};
  static const char* const kVisible[] = {"GPU:0"};
  static const float kOne[] = {1};
  lgpu_config* config = NULL;
  lgpu_context* context = NULL;
  lgpu_strings* names = NULL;
  uint64_t limit = 0;
  int growth = 7;
  int major = 7;

  CHECK(lgpu_config_create("local:2x1GiB", 0, &config, status) == LGPU_OK);
  names = lgpu_config_list_physical_devices(config, "GPU");
  CHECK(lgpu_strings_count(names) == 2 && strcmp(lgpu_strings_at(names, 1), "/physical_device:GPU:1") == 0);
  CHECK(lgpu_strings_at(names, 2) == NULL);
  lgpu_strings_delete(names);
  CHECK(lgpu_config_device_details(config, "GPU:0", &names, &major, NULL, status) == LGPU_OK);
  CHECK(strcmp(lgpu_strings_at(names, 0), "Simulated GPU") == 0 && major == 9);
  lgpu_strings_delete(names);

  CHECK(lgpu_config_get_memory_growth(config, "GPU:0", &growth, status) == LGPU_OK && growth == -1);
  CHECK(lgpu_config_set_memory_growth(config, "GPU:0", 1, status) == LGPU_OK);
  CHECK(lgpu_config_get_memory_growth(config, "GPU:0", &growth, status) == LGPU_OK && growth == 1);
  CHECK(lgpu_config_set_memory_growth(config, "CPU:0", 1, status) == LGPU_INVALID_ARGUMENT);
  CHECK(strcmp(lgpu_status_message(status), "Cannot set memory growth on non-GPU and non-Pluggable devices") == 0);
  CHECK(lgpu_config_set_visible_devices(config, kVisible, 1, "GPU", status) == LGPU_OK);
  names = lgpu_config_get_visible_devices(config, NULL);
  CHECK(lgpu_strings_count(names) == 2);
  lgpu_strings_delete(names);
  CHECK(lgpu_config_set_logical_devices(config, "GPU:0", 2, kLimits, NULL, NULL, NULL, status) == LGPU_OK);
  CHECK(lgpu_config_list_logical_devices(config, "GPU", &names, status) == LGPU_OK);
  CHECK(lgpu_strings_count(names) == 2 && strcmp(lgpu_strings_at(names, 1), "/device:GPU:1") == 0);
  lgpu_strings_delete(names);
  CHECK(lgpu_config_set_device_policy(config, "loud", status) == LGPU_INVALID_ARGUMENT);
  CHECK(strstr(lgpu_status_message(status), "Invalid argument `device_policy`: 'loud'") != NULL);
  CHECK(lgpu_config_set_device_policy(config, "warn", status) == LGPU_OK);
  CHECK(strcmp(lgpu_config_get_device_policy(config), "warn") == 0);
  CHECK(lgpu_config_set_device_policy(config, NULL, status) == LGPU_OK);
  CHECK(lgpu_config_get_soft_device_placement(config) == 1);
  lgpu_config_set_soft_device_placement(config, 0);
  CHECK(lgpu_config_get_soft_device_placement(config) == 0);
  CHECK(lgpu_config_get_log_device_placement(config) == 0);
  lgpu_config_set_log_device_placement(config, 1);
  CHECK(lgpu_config_get_log_device_placement(config) == 1);
  lgpu_config_set_log_device_placement(config, 0);
  lgpu_config_set_graph_placement_log(config, 1);

  CHECK(lgpu_context_create_from_config(config, &context, status) == LGPU_OK);
  CHECK(lgpu_context_create_from_config(config, &context, status) == LGPU_FAILED_PRECONDITION);
  names = lgpu_context_list_logical_devices(context, NULL);
  CHECK(lgpu_strings_count(names) == 3 && strcmp(lgpu_strings_at(names, 0), "/device:CPU:0") == 0);
  lgpu_strings_delete(names);
  CHECK(lgpu_context_memory_stat(context, "GPU:0", "bytes_limit", &limit, status) == LGPU_OK);
  CHECK(limit == kLimits[0]);
  CHECK(lgpu_config_set_logical_devices(config, "GPU:0", 2, kMore, NULL, NULL, NULL, status) == LGPU_OK);
  CHECK(lgpu_context_memory_stat(context, "GPU:0", "bytes_limit", &limit, status) == LGPU_OK);
  CHECK(limit == kMore[0]);
  CHECK(lgpu_context_resize_device(context, "GPU:0", kLimits[0], status) == LGPU_OK);
  {
    lgpu_scope* const scope = lgpu_scope_new(context, "/device:GPU:5");
    lgpu_tensor* none = NULL;
    CHECK(lgpu_constant(context, LGPU_FLOAT32, NULL, 0, kOne, sizeof kOne, &none, status) ==
          LGPU_INVALID_ARGUMENT);
    CHECK(strstr(lgpu_status_message(status), "Cannot assign a device for operation _EagerConst: ") != NULL);
    lgpu_scope_delete(scope);
  }
  CHECK(lgpu_config_set_visible_devices(config, NULL, 0, "GPU", status) == LGPU_FAILED_PRECONDITION);
  CHECK(strstr(lgpu_status_message(status), "Visible devices cannot be modified after being initialized") !=
        NULL);
  lgpu_config_delete(config);
  lgpu_context_delete(context);

  config = NULL;
  CHECK(lgpu_config_create("local:1x1GiB", 1, &config, status) == LGPU_OK);
  CHECK(lgpu_config_set_logical_devices(config, "GPU:0", 1, NULL, NULL, NULL, NULL, status) ==
        LGPU_INVALID_ARGUMENT);
  CHECK(strcmp(lgpu_status_message(status), "Setting memory limit is required for GPU virtual devices") == 0);
  CHECK(lgpu_config_set_memory_fraction(config, -1, status) == LGPU_INVALID_ARGUMENT);
  lgpu_config_delete(config);
  lgpu_config_delete(NULL);
}

static void CheckExplanations(const lgpu_context* context, const lgpu_tensor* a, lgpu_status* status) {
  lgpu_explanation* why = NULL;
  lgpu_tensor* b = NULL;
  lgpu_scope* const scope = lgpu_scope_new(context, "/GPU:7");
  {
    const lgpu_tensor* const inputs[] = {a, a};
    CHECK(lgpu_context_explain(context, "MatMul", inputs, 2, 0, 1, LGPU_INVALID, &why, status) == LGPU_OK);
    CHECK(lgpu_explanation_soft_placed(why) == 1 && lgpu_explanation_code(why) == LGPU_OK);
    CHECK(strstr(lgpu_explanation_device(why), "/device:GPU:0") != NULL);
    CHECK(lgpu_explanation_candidate_count(why) == 3 && lgpu_explanation_candidate_taken(why, 0) == 1);
    CHECK(strstr(lgpu_explanation_candidate_why(why, 1), "asked for is /device:GPU:7") != NULL);
    CHECK(lgpu_explanation_candidate_device(why, 3) == NULL);
    CHECK(strstr(lgpu_explanation_text(why), "runs on ") != NULL);
    lgpu_explanation_delete(why);
    lgpu_context_set_soft_device_placement(context, 0);
    CHECK(lgpu_context_explain(context, "MatMul", inputs, 2, 0, 1, LGPU_INVALID, &why, status) == LGPU_OK);
    CHECK(lgpu_explanation_code(why) == LGPU_INVALID_ARGUMENT && *lgpu_explanation_device(why) == 0);
    CHECK(strstr(lgpu_explanation_message(why), "Could not satisfy device specification") != NULL);
    lgpu_explanation_delete(why);
    CHECK(lgpu_context_explain(context, "Conv2D", inputs, 2, 0, 1, LGPU_INVALID, &why, status) ==
          LGPU_INVALID_ARGUMENT);
  }
  {
    lgpu_scope* const none = lgpu_scope_new(context, NULL); /* asks for nothing in there */
    CHECK(lgpu_matmul(a, a, 0, 0, &b, status) == LGPU_OK);
    lgpu_tensor_delete(b);
    b = NULL;
    lgpu_scope_delete(none);
  }
  lgpu_scope_delete(scope);
}

static void CheckPolicies(const lgpu_context* context, const lgpu_tensor* a, lgpu_status* status) {
  lgpu_scope* const scope = lgpu_scope_new(context, "/CPU:0");
  lgpu_policy_scope* policy = NULL;
  lgpu_tensor* b = NULL;
  uint64_t number = 0;

  CHECK(lgpu_policy_scope_new(context, "loud") == NULL);
  policy = lgpu_policy_scope_new(context, "explicit");
  CHECK(lgpu_matmul(a, a, 0, 0, &b, status) == LGPU_INVALID_ARGUMENT);
  CHECK(strstr(lgpu_status_message(status), "Tensors on conflicting devices") != NULL);
  lgpu_policy_scope_delete(policy);
  CHECK(lgpu_context_set_device_policy(context, "warn", status) == LGPU_OK);
  CHECK(lgpu_matmul(a, a, 0, 0, &b, status) == LGPU_OK);
  CHECK(strstr(last_line, "before computing MatMul input #1") != NULL);
  CHECK(lgpu_context_set_device_policy(context, NULL, status) == LGPU_OK);
  lgpu_context_copy_counts(context, &number, NULL);
  CHECK(number == 1);
  lgpu_tensor_delete(b);
  lgpu_scope_delete(scope);
}

static void CheckCopiesAndShapes(const lgpu_tensor* a, lgpu_status* status) {
  lgpu_tensor* b = NULL;
  int32_t shape[2] = {0, 0};

  CHECK(lgpu_copy_to_device(a, "GPU:1", &b, status) == LGPU_OK);
  CHECK(strcmp(lgpu_tensor_device(b), "/job:localhost/replica:0/task:0/device:GPU:1") == 0);
  lgpu_tensor_delete(b);
  b = NULL;
  CHECK(lgpu_shape_of(a, &b, status) == LGPU_OK);
  CHECK(lgpu_tensor_copy_to_host(b, shape, sizeof shape, status) == LGPU_OK && shape[1] == 2);
  lgpu_tensor_delete(b);
  b = NULL;
  CHECK(lgpu_size_of(a, &b, status) == LGPU_OK);
  CHECK(lgpu_tensor_copy_to_host(b, shape, sizeof shape[0], status) == LGPU_OK && shape[0] == 4);
  lgpu_tensor_delete(b);
  b = NULL;
  CHECK(lgpu_rank_of(a, &b, status) == LGPU_OK);
  CHECK(lgpu_tensor_copy_to_host(b, shape, sizeof shape[0], status) == LGPU_OK && shape[0] == 2);
  lgpu_tensor_delete(b);
}

static void CheckSuspension(lgpu_context* context, lgpu_tensor* tensor, lgpu_status* status) {
  lgpu_tensor* sum = NULL;
  CHECK(lgpu_context_suspend(NULL, status) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_context_resume(NULL, status) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_context_suspend(context, status) == LGPU_OK);
  CHECK(lgpu_add_n((const lgpu_tensor* const[]){tensor, tensor}, 2, &sum, status) == LGPU_FAILED_PRECONDITION);
  CHECK(strstr(lgpu_status_message(status), "try: Resume") != NULL);
  CHECK(lgpu_context_resume(context, status) == LGPU_OK);
  CHECK(lgpu_add_n((const lgpu_tensor* const[]){tensor, tensor}, 2, &sum, status) == LGPU_OK);
  lgpu_tensor_delete(sum);
}

static void CheckMemory(const lgpu_context* context, lgpu_status* status) {
  lgpu_strings* text = NULL;
  uint64_t number = 0;
  uint64_t peak = 0;

  CHECK(lgpu_context_memory_stat(context, "GPU:0", "num_allocs", &number, status) == LGPU_OK && number > 1);
  CHECK(lgpu_context_reset_memory_stats(context, "GPU:0", status) == LGPU_OK);
  CHECK(lgpu_context_memory_stat(context, "GPU:0", "num_allocs", &number, status) == LGPU_OK && number == 0);
  CHECK(lgpu_context_memory_info(context, "GPU:0", &number, &peak, status) == LGPU_OK && peak == number);
  CHECK(lgpu_context_memory_stat(context, "GPU:0", "colour", &number, status) == LGPU_INVALID_ARGUMENT);
  CHECK(strstr(lgpu_status_message(status), "there are: num_allocs, bytes_in_use") != NULL);
  CHECK(lgpu_context_memory_stat(context, "CPU:0", "num_allocs", &number, status) == LGPU_INVALID_ARGUMENT);
  text = lgpu_context_memory_summary(context);
  CHECK(strstr(lgpu_strings_at(text, 0), "64.00MiB") != NULL);
  lgpu_strings_delete(text);
  CHECK(lgpu_context_trim(context, &number, status) == LGPU_OK);
}

/* Placement, its lines and explanations, policies and memory of a context with two GPUs. */
static void CheckPlacement(lgpu_status* status) {
  lgpu_options* options = lgpu_options_new();
  lgpu_context* context = NULL;
  lgpu_tensor* a = NULL;
  lgpu_tensor* b = NULL;
  lgpu_strings* text = NULL;

  lgpu_options_set_endpoint(options, "local:1x1GiB");
  lgpu_options_add_device_on(options, "0", (uint64_t)64 << 20, (uint64_t)2 << 20, 0);
  lgpu_options_add_device(options, (uint64_t)64 << 20, 0);
  lgpu_options_set_log_sink(options, TakeLine, &lines);
  lgpu_options_set_log_device_placement(options, 0);
  lgpu_options_set_allocation_timeout_ms(options, 0);
  CHECK(lgpu_options_set_device_policy(options, "silent", status) == LGPU_OK);
  lgpu_options_set_lease(options, "some");
  CHECK(lgpu_context_create(options, &context, status) == LGPU_INVALID_ARGUMENT);
  CHECK(strstr(lgpu_status_message(status), "give `lease` or `logical_devices`, not both") != NULL);
  lgpu_options_set_lease(options, NULL);
  CHECK(lgpu_context_create(options, &context, status) == LGPU_OK);
  lgpu_options_delete(options);
  text = lgpu_context_device_mapping(context);
  CHECK(strstr(lgpu_strings_at(text, 0), "device:GPU:1 -> device: 0, name: Simulated GPU") != NULL);
  lgpu_strings_delete(text);

  a = Ones(context, 2, 2, status);
  CHECK(lines == 0);
  lgpu_context_set_log_device_placement(context, 1);
  CHECK(lgpu_matmul(a, a, 0, 0, &b, status) == LGPU_OK);
  CHECK(lines == 1);
  CHECK(strcmp(last_line, "Executing op MatMul in device /job:localhost/replica:0/task:0/device:GPU:0") == 0);
  lgpu_context_set_log_device_placement(context, 0);
  lgpu_tensor_delete(b);
  b = NULL;
  CheckExplanations(context, a, status);
  CheckPolicies(context, a, status);
  CheckCopiesAndShapes(a, status);
  CheckMemory(context, status);
  CheckSuspension(context, a, status);
  lgpu_tensor_delete(a);
  lgpu_context_delete(context);
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
  CheckConfig(status);
  CheckPlacement(status);
  lgpu_status_delete(status);
  lgpu_status_delete(NULL);
  return failures == 0 ? 0 : 1;
}
