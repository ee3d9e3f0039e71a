/* Data parallelism from C: two replicas learn the factor of y = 3 x, each from its part of the batch. */

#include <lgpu/c/distribute.h>
#include <stdio.h>

enum { kRows = 8, kSteps = 20 };

typedef struct model {
  lgpu_variable* factor;
  lgpu_per_replica* x;
  lgpu_per_replica* y;
  lgpu_tensor* rate;
} model;

/* What a step makes; all of it goes when the step ends. */
typedef struct tensors {
  lgpu_tensor* x;
  lgpu_tensor* y;
  lgpu_tensor* factor;
  lgpu_tensor* predicted;
  lgpu_tensor* error;
  lgpu_tensor* slope;
  lgpu_tensor* gradient;
  lgpu_tensor* mean;
  lgpu_tensor* change;
  lgpu_tensor* better;
} tensors;

/* The first call that fails ends the chain and is the step's code; what it says is in the status. */
static lgpu_code Learn(lgpu_replica* replica, const model* of, tensors* t, lgpu_status* status) {
  const int id = lgpu_replica_id(replica);
  lgpu_code code = lgpu_per_replica_at(of->x, id, &t->x, status);
  if (code == LGPU_OK) code = lgpu_per_replica_at(of->y, id, &t->y, status);
  if (code == LGPU_OK) code = lgpu_replica_read(replica, of->factor, &t->factor, status);
  if (code == LGPU_OK) code = lgpu_multiply(t->x, t->factor, &t->predicted, status);
  if (code == LGPU_OK) code = lgpu_subtract(t->predicted, t->y, &t->error, status);
  if (code == LGPU_OK) code = lgpu_multiply(t->error, t->x, &t->slope, status);
  if (code == LGPU_OK) code = lgpu_reduce_mean(t->slope, NULL, 0, 0, &t->gradient, status);
  if (code != LGPU_OK) return code;
  const lgpu_tensor* const gradients[] = {t->gradient};
  code = lgpu_replica_all_reduce(replica, LGPU_REDUCE_OP_MEAN, gradients, 1, &t->mean, status);
  if (code == LGPU_OK) code = lgpu_multiply(t->mean, of->rate, &t->change, status);
  if (code == LGPU_OK) code = lgpu_subtract(t->factor, t->change, &t->better, status);
  if (code == LGPU_OK) code = lgpu_replica_assign(replica, of->factor, t->better, status);
  return code;
}

static lgpu_code Step(lgpu_replica* replica, lgpu_status* status, void* user) {
  tensors t = {NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
  const lgpu_code code = Learn(replica, user, &t, status);
  lgpu_tensor* const all[] = {t.x,     t.y,        t.factor, t.predicted, t.error,
                              t.slope, t.gradient, t.mean,   t.change,    t.better};
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); ++i) lgpu_tensor_delete(all[i]);
  return code;
}

static lgpu_code Prepare(const lgpu_context* context, const lgpu_strategy* strategy, model* made,
                         lgpu_status* status) {
  float x[kRows];
  float y[kRows];
  const float zero = 0;
  const float rate = 0.5F;
  const int64_t shape[] = {kRows, 1};
  lgpu_tensor* all_x = NULL;
  lgpu_tensor* all_y = NULL;
  lgpu_tensor* start = NULL;
  for (int i = 0; i < kRows; ++i) {
    x[i] = (float)(i + 1) / kRows;
    y[i] = 3 * x[i];
  }
  lgpu_code code = lgpu_constant(context, LGPU_FLOAT32, shape, 2, x, sizeof(x), &all_x, status);
  if (code == LGPU_OK) code = lgpu_constant(context, LGPU_FLOAT32, shape, 2, y, sizeof(y), &all_y, status);
  if (code == LGPU_OK)
    code = lgpu_constant(context, LGPU_FLOAT32, NULL, 0, &zero, sizeof(zero), &start, status);
  if (code == LGPU_OK) {
    code = lgpu_constant(context, LGPU_FLOAT32, NULL, 0, &rate, sizeof(rate), &made->rate, status);
  }
  if (code == LGPU_OK) code = lgpu_distribute_split(strategy, all_x, &made->x, status);
  if (code == LGPU_OK) code = lgpu_distribute_split(strategy, all_y, &made->y, status);
  if (code == LGPU_OK) code = lgpu_distribute_variable(strategy, start, &made->factor, status);
  lgpu_tensor_delete(all_x);
  lgpu_tensor_delete(all_y);
  lgpu_tensor_delete(start);
  return code;
}

static lgpu_code Run(const lgpu_strategy* strategy, model* learned, lgpu_status* status) {
  for (int i = 0; i < kSteps; ++i) {
    const lgpu_code code = lgpu_distribute_run(strategy, Step, learned, status);
    if (code != LGPU_OK) return code;
  }
  for (int i = 0; i < lgpu_distribute_replicas(strategy); ++i) {
    lgpu_tensor* value = NULL;
    float factor = 0;
    lgpu_code code = lgpu_variable_value(learned->factor, i, &value, status);
    if (code == LGPU_OK) code = lgpu_tensor_copy_to_host(value, &factor, sizeof(factor), status);
    lgpu_tensor_delete(value);
    if (code != LGPU_OK) return code;
    printf("%s: y = %.2f x\n", lgpu_distribute_device(strategy, i), (double)factor);
  }
  return LGPU_OK;
}

int main(void) {
  lgpu_status* const status = lgpu_status_new();
  lgpu_options* const options = lgpu_options_new();
  lgpu_context* context = NULL;
  lgpu_strategy* strategy = NULL;
  model learned = {NULL, NULL, NULL, NULL};
  for (int i = 0; i < 2; ++i) lgpu_options_add_device(options, (uint64_t)32 << 20, 0);
  lgpu_code code = lgpu_context_create(options, &context, status);
  lgpu_options_delete(options);
  if (code == LGPU_OK) code = lgpu_distribute_create(context, NULL, 0, &strategy, status);
  if (code == LGPU_OK) code = Prepare(context, strategy, &learned, status);
  if (code == LGPU_OK) code = Run(strategy, &learned, status);
  if (code != LGPU_OK) fprintf(stderr, "10_mirrored_in_c: %s\n", lgpu_status_message(status));
  lgpu_variable_delete(learned.factor);
  lgpu_per_replica_delete(learned.x);
  lgpu_per_replica_delete(learned.y);
  lgpu_tensor_delete(learned.rate);
  lgpu_distribute_delete(strategy);
  lgpu_context_delete(context);
  lgpu_status_delete(status);
  return code == LGPU_OK ? 0 : 1;
}
