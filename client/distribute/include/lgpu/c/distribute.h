#ifndef LGPU_C_DISTRIBUTE_H_
#define LGPU_C_DISTRIBUTE_H_

/*
 * Data parallelism over the logical devices of one context in C: lgpu/mirrored_strategy.h, where the meaning
 * of each call is. The rules of lgpu/c/lgpu.h hold for handles, statuses and outputs; every handle that a
 * call writes is deleted with the function of its type.
 */

#include <stddef.h>

#include "lgpu/c/lgpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lgpu_strategy lgpu_strategy;       /* runs steps on several devices, a thread for each */
typedef struct lgpu_replica lgpu_replica;         /* what a step sees; it lives as long as the step */
typedef struct lgpu_per_replica lgpu_per_replica; /* one tensor for each replica, by its number */
typedef struct lgpu_variable lgpu_variable;       /* a value on the device of each replica */

typedef enum lgpu_reduce_op LGPU_C_ANY_NUMBER {
  LGPU_REDUCE_OP_SUM = 0,
  LGPU_REDUCE_OP_MEAN = 1
} lgpu_reduce_op;

/* `devices` are names such as "GPU:1"; without any (count 0) there is a replica on each logical GPU, or on
 * each CPU where there is no GPU. The context outlives the strategy. LGPU_INVALID_ARGUMENT: a device twice,
 * or one that is not there. */
LGPU_C_API lgpu_code lgpu_distribute_create(const lgpu_context* context, const char* const* devices,
                                            size_t count, lgpu_strategy** strategy, lgpu_status* status);
LGPU_C_API void lgpu_distribute_delete(lgpu_strategy* strategy);
LGPU_C_API int lgpu_distribute_replicas(const lgpu_strategy* strategy);
/* The full name of a replica's device; NULL for a number that is not there. */
LGPU_C_API const char* lgpu_distribute_device(const lgpu_strategy* strategy, int replica);

/* Parts of a batch by its rows, each on its replica's device; the larger ones first. */
LGPU_C_API lgpu_code lgpu_distribute_split(const lgpu_strategy* strategy, const lgpu_tensor* batch,
                                           lgpu_per_replica** parts, lgpu_status* status);
/* The value on every device. */
LGPU_C_API lgpu_code lgpu_distribute_broadcast(const lgpu_strategy* strategy, const lgpu_tensor* value,
                                               lgpu_per_replica** values, lgpu_status* status);
/* The sum or mean of the values, and the values behind one another; both on the device of replica 0. */
LGPU_C_API lgpu_code lgpu_distribute_reduce(const lgpu_strategy* strategy, lgpu_reduce_op op,
                                            const lgpu_per_replica* values, lgpu_tensor** result,
                                            lgpu_status* status);
LGPU_C_API lgpu_code lgpu_distribute_gather(const lgpu_strategy* strategy, const lgpu_per_replica* values,
                                            lgpu_tensor** result, lgpu_status* status);
/* A variable with this value on every device. Not within a step. */
LGPU_C_API lgpu_code lgpu_distribute_variable(const lgpu_strategy* strategy, const lgpu_tensor* initial,
                                              lgpu_variable** variable, lgpu_status* status);

/* A step: LGPU_OK, or the code of its failure. Its `status` is its own; a call that gets it leaves its
 * message and refusal there for lgpu_distribute_run. */
typedef lgpu_code (*lgpu_step)(lgpu_replica* replica, lgpu_status* status, void* user);
/* Calls the step once for each replica, at the same time, each on a thread whose scope is the replica's
 * device, and waits for all of them. Where one fails the others end at their next sum; the error names the
 * replica. LGPU_FAILED_PRECONDITION: called within a step. */
LGPU_C_API lgpu_code lgpu_distribute_run(const lgpu_strategy* strategy, lgpu_step step, void* user,
                                         lgpu_status* status);

/* Within a step. */
LGPU_C_API int lgpu_replica_id(const lgpu_replica* replica);
LGPU_C_API int lgpu_replica_count(const lgpu_replica* replica);
LGPU_C_API const char* lgpu_replica_device(const lgpu_replica* replica);
/* The sum or mean over all replicas of each of `count` tensors, on this replica's device, as new tensors in
 * `results`, which has as many places. Every replica calls it, equally often, with tensors of the same shapes
 * and dtypes. It waits for the others. */
LGPU_C_API lgpu_code lgpu_replica_all_reduce(lgpu_replica* replica, lgpu_reduce_op op,
                                             const lgpu_tensor* const* tensors, size_t count,
                                             lgpu_tensor** results, lgpu_status* status);
/* This replica's value of a variable, and another one of the same shape and dtype for it. */
LGPU_C_API lgpu_code lgpu_replica_read(const lgpu_replica* replica, const lgpu_variable* variable,
                                       lgpu_tensor** value, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_replica_assign(const lgpu_replica* replica, lgpu_variable* variable,
                                         const lgpu_tensor* value, lgpu_status* status);
/* What the mean loss over this replica's part of the batch counts in the sum over all replicas; 0 for a
 * batch that has no rows for it. */
LGPU_C_API double lgpu_replica_loss_weight(const lgpu_replica* replica, const lgpu_per_replica* batch);

/* Of `count` tensors, the value of replica 0 first; they may be deleted after the call. */
LGPU_C_API lgpu_code lgpu_per_replica_create(const lgpu_tensor* const* tensors, size_t count,
                                             lgpu_per_replica** values, lgpu_status* status);
LGPU_C_API void lgpu_per_replica_delete(lgpu_per_replica* values);
LGPU_C_API size_t lgpu_per_replica_count(const lgpu_per_replica* values);
/* The value of a replica as a tensor of its own, of the same memory. */
LGPU_C_API lgpu_code lgpu_per_replica_at(const lgpu_per_replica* values, int replica, lgpu_tensor** value,
                                         lgpu_status* status);

LGPU_C_API void lgpu_variable_delete(lgpu_variable* variable);
/* The value of a replica, between steps. */
LGPU_C_API lgpu_code lgpu_variable_value(const lgpu_variable* variable, int replica, lgpu_tensor** value,
                                         lgpu_status* status);

#ifdef __cplusplus
}
#endif

#endif /* LGPU_C_DISTRIBUTE_H_ */
