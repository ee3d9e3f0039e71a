/* MirroredStrategy from a C program. Ends with 0 if all is as it should be. */

#include <stdio.h>
#include <string.h>

#include "lgpu/c/distribute.h"
#include "tests/client/c_check.h"

static lgpu_context* NewContext(int devices) {
  lgpu_options* const options = lgpu_options_new();
  lgpu_context* context = NULL;
  lgpu_options_set_endpoint(options, "local:1x64MiB");
  for (int i = 0; i < devices; ++i) lgpu_options_add_device(options, (uint64_t)8 << 20, 0);
  CHECK(lgpu_context_create(options, &context, NULL) == LGPU_OK);
  lgpu_options_delete(options);
  return context;
}

static lgpu_tensor* Column(const lgpu_context* context, int64_t rows, const float* values) {
  const int64_t shape[] = {rows, 1};
  lgpu_tensor* tensor = NULL;
  CHECK(lgpu_constant(context, LGPU_FLOAT32, shape, 2, values, (size_t)rows * sizeof(float), &tensor, NULL) ==
        LGPU_OK);
  return tensor;
}

static int EndsWith(const char* text, const char* end) {
  return text != NULL && strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

static lgpu_tensor* At(const lgpu_per_replica* values, int replica) {
  lgpu_tensor* tensor = NULL;
  CHECK(lgpu_per_replica_at(values, replica, &tensor, NULL) == LGPU_OK);
  return tensor;
}

/* What the steps of this test share, and what they saw. */
typedef struct steps {
  const lgpu_strategy* strategy;
  const lgpu_per_replica* parts;
  lgpu_variable* variable;
  int fails; /* the replica that fails; -1: none */
  int seen[2];
  double weights[2];
  lgpu_code nested[2];
} steps;

static lgpu_code SumParts(lgpu_replica* replica, lgpu_status* status, void* user) {
  steps* const all = user;
  const int id = lgpu_replica_id(replica);
  lgpu_tensor* part = At(all->parts, id);
  lgpu_tensor* mine = NULL;
  lgpu_tensor* sums[2] = {NULL, NULL};
  CHECK(lgpu_replica_count(replica) == 2);
  CHECK(strcmp(lgpu_replica_device(replica), lgpu_distribute_device(all->strategy, id)) == 0);
  CHECK(strcmp(lgpu_tensor_device(part), lgpu_replica_device(replica)) == 0);
  all->nested[id] = lgpu_distribute_run(all->strategy, SumParts, user, NULL);
  all->weights[id] = lgpu_replica_loss_weight(replica, all->parts);
  CHECK(lgpu_reduce_sum(part, NULL, 0, 0, &mine, status) == LGPU_OK);
  CHECK(EndsWith(lgpu_tensor_device(mine), id == 0 ? "GPU:0" : "GPU:1"));
  const lgpu_tensor* const of_mine[] = {mine, mine};
  CHECK(lgpu_replica_all_reduce(replica, LGPU_REDUCE_OP_SUM, of_mine, 2, sums, status) == LGPU_OK);
  CHECK(lgpu_replica_assign(replica, all->variable, sums[0], status) == LGPU_OK);
  lgpu_tensor* read = NULL;
  CHECK(lgpu_replica_read(replica, all->variable, &read, status) == LGPU_OK);
  CHECK(Has(read, (const float[]){15}, 1));
  lgpu_tensor* mean = NULL;
  CHECK(lgpu_replica_all_reduce(replica, LGPU_REDUCE_OP_MEAN, of_mine, 1, &mean, status) == LGPU_OK);
  CHECK(Has(mean, (const float[]){7.5F}, 1));
  lgpu_tensor_delete(part);
  lgpu_tensor_delete(mine);
  lgpu_tensor_delete(sums[0]);
  lgpu_tensor_delete(sums[1]);
  ++all->seen[id];
  return LGPU_OK;
}

/* The replica that fails asks for more than its limit; the other one waits in a sum. */
static lgpu_code RunOut(lgpu_replica* replica, lgpu_status* status, void* user) {
  const steps* const all = user;
  const int id = lgpu_replica_id(replica);
  lgpu_tensor* part = At(all->parts, id);
  lgpu_tensor* made = NULL;
  const int64_t shape[] = {16 << 20};
  lgpu_tensor* one = NULL;
  CHECK(lgpu_reduce_sum(part, NULL, 0, 0, &one, status) == LGPU_OK);
  const lgpu_tensor* const tensors[] = {one};
  const lgpu_code code =
      id == all->fails ? lgpu_fill(shape, 1, one, &made, status)
                       : lgpu_replica_all_reduce(replica, LGPU_REDUCE_OP_SUM, tensors, 1, &made, status);
  lgpu_tensor_delete(part);
  lgpu_tensor_delete(one);
  lgpu_tensor_delete(made);
  return code;
}

static lgpu_code ReturnsACode(lgpu_replica* replica, lgpu_status* status, void* user) {
  (void)status;
  return lgpu_replica_id(replica) == 0 ? *(const lgpu_code*)user : LGPU_OK;
}

static void TestSteps(const lgpu_context* context, const lgpu_strategy* strategy) {
  lgpu_status* const status = lgpu_status_new();
  lgpu_tensor* const batch = Column(context, 5, (const float[]){1, 2, 3, 4, 5});
  lgpu_tensor* const zero = Column(context, 1, (const float[]){0});
  lgpu_tensor* scalar = NULL;
  lgpu_per_replica* parts = NULL;
  steps all = {.strategy = strategy, .fails = -1};
  CHECK(lgpu_reduce_sum(zero, NULL, 0, 0, &scalar, NULL) == LGPU_OK);
  CHECK(lgpu_distribute_split(strategy, batch, &parts, status) == LGPU_OK);
  CHECK(lgpu_per_replica_count(parts) == 2);
  CHECK(Has(At(parts, 0), (const float[]){1, 2, 3}, 3) && Has(At(parts, 1), (const float[]){4, 5}, 2));
  CHECK(lgpu_distribute_variable(strategy, scalar, &all.variable, status) == LGPU_OK);
  all.parts = parts;
  CHECK(lgpu_distribute_run(strategy, SumParts, &all, status) == LGPU_OK);
  for (int i = 0; i < 2; ++i) {
    lgpu_tensor* value = NULL;
    CHECK(all.seen[i] == 1 && all.nested[i] == LGPU_FAILED_PRECONDITION);
    CHECK(all.weights[i] == (i == 0 ? 0.6 : 0.4));
    CHECK(lgpu_variable_value(all.variable, i, &value, status) == LGPU_OK);
    CHECK(EndsWith(lgpu_tensor_device(value), i == 0 ? "GPU:0" : "GPU:1"));
    CHECK(Has(value, (const float[]){15}, 1));
  }

  all.fails = 1;
  CHECK(lgpu_distribute_run(strategy, RunOut, &all, status) == LGPU_RESOURCE_EXHAUSTED);
  CHECK(strstr(lgpu_status_message(status), "replica 1") != NULL);
  CHECK(lgpu_status_refusal(status) != NULL &&
        strcmp(lgpu_refusal_reason(lgpu_status_refusal(status)), "limit") == 0);
  lgpu_code code = LGPU_NOT_FOUND;
  CHECK(lgpu_distribute_run(strategy, ReturnsACode, &code, status) == LGPU_NOT_FOUND);
  CHECK(strstr(lgpu_status_message(status), "the step returned the code 5") != NULL);
  code = (lgpu_code)1234;
  CHECK(lgpu_distribute_run(strategy, ReturnsACode, &code, status) != LGPU_OK);
  all.fails = -1;
  CHECK(lgpu_distribute_run(strategy, SumParts, &all, NULL) == LGPU_OK); /* goes on */

  lgpu_per_replica_delete(parts);
  lgpu_variable_delete(all.variable);
  lgpu_tensor_delete(batch);
  lgpu_tensor_delete(zero);
  lgpu_tensor_delete(scalar);
  lgpu_status_delete(status);
}

static void TestOutsideOfSteps(const lgpu_context* context, const lgpu_strategy* strategy) {
  lgpu_tensor* const one = Column(context, 2, (const float[]){1, 2});
  lgpu_tensor* const two = Column(context, 2, (const float[]){3, 6});
  const lgpu_tensor* const tensors[] = {one, two};
  lgpu_per_replica* values = NULL;
  lgpu_per_replica* copies = NULL;
  lgpu_tensor* result = NULL;
  CHECK(lgpu_per_replica_create(tensors, 2, &values, NULL) == LGPU_OK);
  CHECK(lgpu_distribute_reduce(strategy, LGPU_REDUCE_OP_SUM, values, &result, NULL) == LGPU_OK);
  CHECK(Has(result, (const float[]){4, 8}, 2));
  CHECK(lgpu_distribute_reduce(strategy, LGPU_REDUCE_OP_MEAN, values, &result, NULL) == LGPU_OK);
  CHECK(Has(result, (const float[]){2, 4}, 2));
  CHECK(lgpu_distribute_gather(strategy, values, &result, NULL) == LGPU_OK);
  CHECK(Has(result, (const float[]){1, 2, 3, 6}, 4));
  CHECK(lgpu_distribute_broadcast(strategy, one, &copies, NULL) == LGPU_OK);
  for (int i = 0; i < 2; ++i) {
    result = At(copies, i);
    CHECK(strcmp(lgpu_tensor_device(result), lgpu_distribute_device(strategy, i)) == 0);
    CHECK(Has(result, (const float[]){1, 2}, 2));
  }
  lgpu_per_replica_delete(values);
  lgpu_per_replica_delete(copies);
  lgpu_tensor_delete(one);
  lgpu_tensor_delete(two);
}

static void TestNamedDevices(const lgpu_context* context) {
  const char* const names[] = {"GPU:1", "CPU:0"};
  const char* const twice[] = {"GPU:1", "GPU:1"};
  const char* const missing[] = {"GPU:7"};
  const char* const null[] = {NULL};
  lgpu_strategy* strategy = NULL;
  CHECK(lgpu_distribute_create(context, names, 2, &strategy, NULL) == LGPU_OK);
  CHECK(lgpu_distribute_replicas(strategy) == 2);
  CHECK(EndsWith(lgpu_distribute_device(strategy, 0), "GPU:1"));
  CHECK(EndsWith(lgpu_distribute_device(strategy, 1), "CPU:0"));
  CHECK(lgpu_distribute_device(strategy, 2) == NULL && lgpu_distribute_device(strategy, -1) == NULL);
  lgpu_distribute_delete(strategy);
  CHECK(lgpu_distribute_create(context, twice, 2, &strategy, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_create(context, missing, 1, &strategy, NULL) != LGPU_OK);
  CHECK(lgpu_distribute_create(context, null, 1, &strategy, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_create(context, NULL, 1, &strategy, NULL) == LGPU_INVALID_ARGUMENT);
}

static void TestMissingArguments(const lgpu_context* context, const lgpu_strategy* strategy) {
  lgpu_strategy* made = NULL;
  lgpu_per_replica* values = NULL;
  lgpu_variable* variable = NULL;
  lgpu_tensor* tensor = Column(context, 2, (const float[]){1, 2});
  lgpu_tensor* result = NULL;
  const lgpu_tensor* const null[] = {NULL};
  CHECK(lgpu_distribute_create(NULL, NULL, 0, &made, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_create(context, NULL, 0, NULL, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_replicas(NULL) == 0 && lgpu_distribute_device(NULL, 0) == NULL);
  CHECK(lgpu_distribute_split(NULL, tensor, &values, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_split(strategy, NULL, &values, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_split(strategy, tensor, NULL, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_broadcast(strategy, NULL, &values, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_broadcast(strategy, tensor, NULL, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_reduce(strategy, LGPU_REDUCE_OP_SUM, NULL, &result, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_gather(strategy, NULL, &result, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_variable(strategy, NULL, &variable, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_variable(strategy, tensor, NULL, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_run(NULL, ReturnsACode, NULL, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_run(strategy, NULL, NULL, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_replica_id(NULL) == -1 && lgpu_replica_count(NULL) == 0 && lgpu_replica_device(NULL) == NULL);
  CHECK(lgpu_replica_all_reduce(NULL, LGPU_REDUCE_OP_SUM, NULL, 0, NULL, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_replica_read(NULL, NULL, &result, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_replica_assign(NULL, NULL, tensor, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_replica_loss_weight(NULL, NULL) == 0);
  CHECK(lgpu_per_replica_create(null, 1, &values, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_per_replica_create(NULL, 1, &values, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_per_replica_at(NULL, 0, &result, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_per_replica_count(NULL) == 0);
  CHECK(lgpu_variable_value(NULL, 0, &result, NULL) == LGPU_INVALID_ARGUMENT);

  const lgpu_tensor* const tensors[] = {tensor};
  CHECK(lgpu_per_replica_create(tensors, 1, &values, NULL) == LGPU_OK);
  CHECK(lgpu_per_replica_at(values, 1, &result, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_per_replica_at(values, -1, &result, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_reduce(strategy, (lgpu_reduce_op)7, values, &result, NULL) == LGPU_INVALID_ARGUMENT);
  CHECK(lgpu_distribute_reduce(strategy, LGPU_REDUCE_OP_SUM, values, &result, NULL) ==
        LGPU_INVALID_ARGUMENT); /* one value for two replicas */
  CHECK(lgpu_distribute_variable(strategy, tensor, &variable, NULL) == LGPU_OK);
  CHECK(lgpu_variable_value(variable, 2, &result, NULL) == LGPU_INVALID_ARGUMENT);
  lgpu_variable_delete(variable);
  lgpu_per_replica_delete(values);
  lgpu_tensor_delete(tensor);
  lgpu_distribute_delete(NULL);
  lgpu_per_replica_delete(NULL);
  lgpu_variable_delete(NULL);
}

int main(void) {
  lgpu_context* const context = NewContext(2);
  lgpu_strategy* strategy = NULL;
  CHECK(lgpu_distribute_create(context, NULL, 0, &strategy, NULL) == LGPU_OK);
  CHECK(lgpu_distribute_replicas(strategy) == 2);
  TestSteps(context, strategy);
  TestOutsideOfSteps(context, strategy);
  TestNamedDevices(context);
  TestMissingArguments(context, strategy);
  lgpu_distribute_delete(strategy);
  CHECK(lgpu_context_close(context, NULL) == LGPU_OK);
  lgpu_context_delete(context);
  if (failures != 0) fprintf(stderr, "%d failures\n", failures);
  return failures != 0;
}
