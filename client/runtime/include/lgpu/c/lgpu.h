#ifndef LGPU_C_LGPU_H_
#define LGPU_C_LGPU_H_

/*
 * The stable C interface of liblgpu. Each call has the meaning of the call in lgpu/lgpu.h that it wraps.
 *
 * Handles are opaque. The caller deletes a handle from a function named _new, _create or _constant, from an
 * op, or of type lgpu_strings, with the function of its type; NULL may be deleted. Strings that are
 * returned belong to the handle and live as long as it does (those of a status: until its next use).
 *
 * Every call that can fail returns a code and, if `status` is not NULL, leaves code and message there.
 * Outputs are written on LGPU_OK only. Calls may come from any thread; one status belongs to one thread at a
 * time, and scopes to the thread that opened them.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LGPU_C_API __attribute__((visibility("default")))

/* A program in C may pass any number; in C++ an enum has to allow for that. */
#ifdef __cplusplus
#define LGPU_C_ANY_NUMBER : unsigned int
#else
#define LGPU_C_ANY_NUMBER
#endif

/* The canonical codes of gRPC and absl. */
typedef enum lgpu_code LGPU_C_ANY_NUMBER {
  LGPU_OK = 0,
  LGPU_UNKNOWN = 2,
  LGPU_INVALID_ARGUMENT = 3,
  LGPU_DEADLINE_EXCEEDED = 4,
  LGPU_NOT_FOUND = 5,
  LGPU_ALREADY_EXISTS = 6,
  LGPU_PERMISSION_DENIED = 7,
  LGPU_RESOURCE_EXHAUSTED = 8,
  LGPU_FAILED_PRECONDITION = 9,
  LGPU_UNIMPLEMENTED = 12,
  LGPU_INTERNAL = 13,
  LGPU_UNAVAILABLE = 14
} lgpu_code;

/* The numbers are TensorFlow's. Elements of half and bfloat16 are uint16_t. */
typedef enum lgpu_dtype LGPU_C_ANY_NUMBER {
  LGPU_INVALID = 0,
  LGPU_FLOAT32 = 1,
  LGPU_FLOAT64 = 2,
  LGPU_INT32 = 3,
  LGPU_INT64 = 9,
  LGPU_BFLOAT16 = 14,
  LGPU_FLOAT16 = 19
} lgpu_dtype;

typedef struct lgpu_status lgpu_status;
typedef struct lgpu_refusal lgpu_refusal;
typedef struct lgpu_options lgpu_options;
typedef struct lgpu_context lgpu_context;
typedef struct lgpu_tensor lgpu_tensor;
typedef struct lgpu_scope lgpu_scope;
typedef struct lgpu_policy_scope lgpu_policy_scope;
typedef struct lgpu_config lgpu_config;
typedef struct lgpu_strings lgpu_strings;
typedef struct lgpu_explanation lgpu_explanation;

/* "0.1.0" */
LGPU_C_API const char* lgpu_version(void);

LGPU_C_API lgpu_status* lgpu_status_new(void);
LGPU_C_API void lgpu_status_delete(lgpu_status* status);
LGPU_C_API lgpu_code lgpu_status_code(const lgpu_status* status);
LGPU_C_API const char* lgpu_status_message(const lgpu_status* status);

/* Everything that is known of memory that was refused; NULL where the status carries no refusal. It belongs
 * to the status, and lives until its next use. */
LGPU_C_API const lgpu_refusal* lgpu_status_refusal(const lgpu_status* status);
/* "limit", "card", "address range", "map count", "deadlock", "backend", "descriptors". */
LGPU_C_API const char* lgpu_refusal_reason(const lgpu_refusal* refusal);
/* A text by its name: "device", "lease", "what", "card". "" where it is not known, NULL for another name. */
LGPU_C_API const char* lgpu_refusal_text(const lgpu_refusal* refusal, const char* name);
/* A number by its name: "asked_bytes", "limit_bytes", "used_bytes", "held_bytes", "peak_used_bytes",
 * "live_blocks", "largest_free_block_bytes", "card_total_bytes", "card_free_bytes", "coming_back_bytes",
 * "waited_ms". 1, and `value` is written, where it is known; 0 where it is not, and for another name. */
LGPU_C_API int lgpu_refusal_number(const lgpu_refusal* refusal, const char* name, uint64_t* value);
/* The leases that hold, or are promised, memory of the card, largest first. */
typedef struct lgpu_refusal_holder {
  const char* lease;
  const char* owner; /* user name, or the uid in digits */
  int64_t pid;       /* 0: no process now */
  const char* device;
  uint64_t held;
  uint64_t guarantee;
} lgpu_refusal_holder;
LGPU_C_API size_t lgpu_refusal_holder_count(const lgpu_refusal* refusal);
/* 1, and `holder` is written; 0 for an index that is not there. So is the next one. */
LGPU_C_API int lgpu_refusal_holder_at(const lgpu_refusal* refusal, size_t index, lgpu_refusal_holder* holder);
/* What is in use in this program, by op or tag, largest first. */
typedef struct lgpu_refusal_owner {
  const char* op;
  uint64_t bytes;
  uint64_t blocks;
} lgpu_refusal_owner;
LGPU_C_API size_t lgpu_refusal_owner_count(const lgpu_refusal* refusal);
LGPU_C_API int lgpu_refusal_owner_at(const lgpu_refusal* refusal, size_t index, lgpu_refusal_owner* owner);
/* Commands or changes that would help, one each; NULL for an index that is not there. */
LGPU_C_API size_t lgpu_refusal_advice_count(const lgpu_refusal* refusal);
LGPU_C_API const char* lgpu_refusal_advice_at(const lgpu_refusal* refusal, size_t index);

/* A list of strings, or one text: then it has one. Of NULL the count is 0, and an index that is not there
 * NULL. */
LGPU_C_API void lgpu_strings_delete(lgpu_strings* strings);
LGPU_C_API size_t lgpu_strings_count(const lgpu_strings* strings);
LGPU_C_API const char* lgpu_strings_at(const lgpu_strings* strings, size_t index);

/* A configuration: the calls of TensorFlow's tf.config, and then lgpu_context_create_from_config. `endpoint`
 * as lgpu_options_set_endpoint has it, NULL or "": the default. `strict`: TensorFlow's rules and refusals.
 * Devices are named "/physical_device:GPU:0", or "GPU:0"; a `type` is "GPU", "CPU", or NULL for all. One
 * thread at a time. */
LGPU_C_API lgpu_code lgpu_config_create(const char* endpoint, int strict, lgpu_config** config,
                                        lgpu_status* status);
LGPU_C_API void lgpu_config_delete(lgpu_config* config);
LGPU_C_API lgpu_strings* lgpu_config_list_physical_devices(const lgpu_config* config, const char* type);
/* What the context has, or would have: "/device:GPU:0". */
LGPU_C_API lgpu_code lgpu_config_list_logical_devices(const lgpu_config* config, const char* type,
                                                      lgpu_strings** devices, lgpu_status* status);
/* The card's name and compute capability; "" and 0 for a CPU. Each place may be NULL. */
LGPU_C_API lgpu_code lgpu_config_device_details(const lgpu_config* config, const char* device,
                                                lgpu_strings** name, int* compute_major, int* compute_minor,
                                                lgpu_status* status);
LGPU_C_API lgpu_code lgpu_config_set_visible_devices(lgpu_config* config, const char* const* devices,
                                                     size_t count, const char* type, lgpu_status* status);
LGPU_C_API lgpu_strings* lgpu_config_get_visible_devices(const lgpu_config* config, const char* type);
LGPU_C_API lgpu_code lgpu_config_set_memory_growth(lgpu_config* config, const char* device, int on,
                                                   lgpu_status* status);
/* -1: it was never set. */
LGPU_C_API lgpu_code lgpu_config_get_memory_growth(const lgpu_config* config, const char* device, int* on,
                                                   lgpu_status* status);
/* Splits a device into `count` logical ones. `memory_limits` in bytes (0: not set); the other lists have
 * `count` elements too, or are NULL: not set. With a context there, new limits reach it at once (not if
 * strict). */
LGPU_C_API lgpu_code lgpu_config_set_logical_devices(lgpu_config* config, const char* device, size_t count,
                                                     const uint64_t* memory_limits,
                                                     const uint64_t* guarantees, const int* priorities,
                                                     const int* ordinals, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_config_set_memory_fraction(lgpu_config* config, double fraction,
                                                     lgpu_status* status);
LGPU_C_API void lgpu_config_set_soft_device_placement(lgpu_config* config, int on);
LGPU_C_API int lgpu_config_get_soft_device_placement(const lgpu_config* config);
LGPU_C_API void lgpu_config_set_log_device_placement(lgpu_config* config, int on);
LGPU_C_API int lgpu_config_get_log_device_placement(const lgpu_config* config);
/* Lines and errors of placement as TensorFlow 1's graphs have them. */
LGPU_C_API void lgpu_config_set_graph_placement_log(lgpu_config* config, int on);
/* "silent", "silent_for_int32", "warn", "explicit"; NULL: the default, "silent". */
LGPU_C_API lgpu_code lgpu_config_set_device_policy(lgpu_config* config, const char* policy,
                                                   lgpu_status* status);
LGPU_C_API const char* lgpu_config_get_device_policy(const lgpu_config* config);

/* Options of a context; what is not set has its default. */
LGPU_C_API lgpu_options* lgpu_options_new(void);
LGPU_C_API void lgpu_options_delete(lgpu_options* options);
/* A runtime directory of lgpud, "local", or "local:2x1GiB". */
LGPU_C_API void lgpu_options_set_endpoint(lgpu_options* options, const char* endpoint);
/* A lease to attach to. */
LGPU_C_API void lgpu_options_set_lease(lgpu_options* options, const char* lease);
/* A name for the lease that is made. */
LGPU_C_API void lgpu_options_set_lease_name(lgpu_options* options, const char* name);
/* Adds a logical device: its limit in bytes (0: all that the card can give), grown on demand or preallocated.
 */
LGPU_C_API void lgpu_options_add_device(lgpu_options* options, uint64_t memory_limit, int preallocate);
/* The same on a card: its index, its UUID or the beginning of that, or NULL. `guarantee` is set aside for it.
 */
LGPU_C_API void lgpu_options_add_device_on(lgpu_options* options, const char* physical_device,
                                           uint64_t memory_limit, uint64_t guarantee, int preallocate);
/* `sink` gets every placement line and note, without a newline, instead of stderr; from any thread.
   It must return: no exception, no longjmp. */
LGPU_C_API void lgpu_options_set_log_sink(lgpu_options* options,
                                          void (*sink)(const char* line, size_t length, void* user),
                                          void* user);
LGPU_C_API lgpu_code lgpu_options_set_device_policy(lgpu_options* options, const char* policy,
                                                    lgpu_status* status);
LGPU_C_API void lgpu_options_set_log_device_placement(lgpu_options* options, int on);
LGPU_C_API void lgpu_options_set_soft_device_placement(lgpu_options* options, int on);
LGPU_C_API void lgpu_options_set_allocation_timeout_ms(lgpu_options* options, int64_t milliseconds);

LGPU_C_API lgpu_code lgpu_context_create(const lgpu_options* options, lgpu_context** context,
                                         lgpu_status* status);
/* With the devices that a configuration asks for; `config` stays, and may change what it may change later. */
LGPU_C_API lgpu_code lgpu_context_create_from_config(lgpu_config* config, lgpu_context** context,
                                                     lgpu_status* status);
/* Gives everything back and waits until the quota is free. */
LGPU_C_API lgpu_code lgpu_context_close(lgpu_context* context, lgpu_status* status);
/* Moves the contents of its tensors to host memory and gives the memory of its GPUs back; until it is
 * resumed, calls that need a device fail with LGPU_FAILED_PRECONDITION, and tensors may be deleted. Resuming
 * moves the contents back to the same addresses; where the memory is not to be had, the context stays
 * suspended. See Context::Suspend. */
LGPU_C_API lgpu_code lgpu_context_suspend(lgpu_context* context, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_context_resume(lgpu_context* context, lgpu_status* status);
/* Closes too. Tensors may outlive their context; their data does not. */
LGPU_C_API void lgpu_context_delete(lgpu_context* context);
/* The handle of the lease ("" for `local`), which LGPU_LEASE of a child would hold; and its name. */
LGPU_C_API const char* lgpu_context_lease(const lgpu_context* context);
LGPU_C_API const char* lgpu_context_lease_name(const lgpu_context* context);
LGPU_C_API int lgpu_context_device_count(const lgpu_context* context);
/* "/job:localhost/replica:0/task:0/device:GPU:0"; NULL for an index that is not there. */
LGPU_C_API const char* lgpu_context_device_name(const lgpu_context* context, int index);
/* `device` as in "GPU:0". */
LGPU_C_API lgpu_code lgpu_context_memory_info(const lgpu_context* context, const char* device,
                                              uint64_t* current, uint64_t* peak, lgpu_status* status);
/* Peak, number and largest of allocations start again. */
LGPU_C_API lgpu_code lgpu_context_reset_memory_stats(const lgpu_context* context, const char* device,
                                                     lgpu_status* status);
/* A number of TensorFlow's AllocatorStats by its name: "num_allocs", "bytes_in_use", "peak_bytes_in_use",
 * "largest_alloc_size", "bytes_limit", "pool_bytes", "largest_free_block_bytes". */
LGPU_C_API lgpu_code lgpu_context_memory_stat(const lgpu_context* context, const char* device,
                                              const char* stat, uint64_t* value, lgpu_status* status);
/* A table for people. */
LGPU_C_API lgpu_strings* lgpu_context_memory_summary(const lgpu_context* context);
/* TensorFlow 1's "Device mapping:". */
LGPU_C_API lgpu_strings* lgpu_context_device_mapping(const lgpu_context* context);
/* "/device:CPU:0", "/device:GPU:0"; `type` "GPU", "CPU", or NULL for both. */
LGPU_C_API lgpu_strings* lgpu_context_list_logical_devices(const lgpu_context* context, const char* type);
/* Gives chunks that no tensor needs back; `bytes` may be NULL. */
LGPU_C_API lgpu_code lgpu_context_trim(const lgpu_context* context, uint64_t* bytes, lgpu_status* status);
/* Another limit while it runs; the guarantee stays as far as the limit allows. */
LGPU_C_API lgpu_code lgpu_context_resize_device(const lgpu_context* context, const char* device,
                                                uint64_t memory_limit, lgpu_status* status);
LGPU_C_API void lgpu_context_set_soft_device_placement(const lgpu_context* context, int on);
LGPU_C_API void lgpu_context_set_log_device_placement(const lgpu_context* context, int on);
/* Of threads without a policy scope. */
LGPU_C_API lgpu_code lgpu_context_set_device_policy(const lgpu_context* context, const char* policy,
                                                    lgpu_status* status);
/* Tensors that were copied between devices; each place may be NULL. */
LGPU_C_API void lgpu_context_copy_counts(const lgpu_context* context, uint64_t* copies, uint64_t* bytes);

/* Where an op ("MatMul") would run on these tensors if this thread ran it now, and why; nothing runs.
 * MatMul reads `transpose_a` and `transpose_b`, Cast `cast_to`. */
LGPU_C_API lgpu_code lgpu_context_explain(const lgpu_context* context, const char* op,
                                          const lgpu_tensor* const* inputs, size_t count, int transpose_a,
                                          int transpose_b, lgpu_dtype cast_to, lgpu_explanation** explanation,
                                          lgpu_status* status);
LGPU_C_API void lgpu_explanation_delete(lgpu_explanation* explanation);
/* "": nowhere; lgpu_explanation_code says what the op would fail with. */
LGPU_C_API const char* lgpu_explanation_device(const lgpu_explanation* explanation);
LGPU_C_API int lgpu_explanation_soft_placed(const lgpu_explanation* explanation);
LGPU_C_API lgpu_code lgpu_explanation_code(const lgpu_explanation* explanation);
LGPU_C_API const char* lgpu_explanation_message(const lgpu_explanation* explanation);
/* A few lines for people. */
LGPU_C_API const char* lgpu_explanation_text(const lgpu_explanation* explanation);
LGPU_C_API size_t lgpu_explanation_candidate_count(const lgpu_explanation* explanation);
LGPU_C_API const char* lgpu_explanation_candidate_device(const lgpu_explanation* explanation, size_t index);
LGPU_C_API const char* lgpu_explanation_candidate_why(const lgpu_explanation* explanation, size_t index);
LGPU_C_API int lgpu_explanation_candidate_taken(const lgpu_explanation* explanation, size_t index);

/* All ops and constants of `context` on this thread ask for `device` until the scope is deleted. Scopes nest
 * and end in reverse order. A wrong name makes the next op fail. NULL: nothing is asked for. */
LGPU_C_API lgpu_scope* lgpu_scope_new(const lgpu_context* context, const char* device);
LGPU_C_API void lgpu_scope_delete(lgpu_scope* scope);
/* The device policy of this thread until the scope is deleted; NULL for a word that is no policy. */
LGPU_C_API lgpu_policy_scope* lgpu_policy_scope_new(const lgpu_context* context, const char* policy);
LGPU_C_API void lgpu_policy_scope_delete(lgpu_policy_scope* scope);

/* `bytes` is the size of `data`, which holds the elements row by row. */
LGPU_C_API lgpu_code lgpu_constant(const lgpu_context* context, lgpu_dtype dtype, const int64_t* dimensions,
                                   int rank, const void* data, size_t bytes, lgpu_tensor** tensor,
                                   lgpu_status* status);
LGPU_C_API lgpu_code lgpu_matmul(const lgpu_tensor* a, const lgpu_tensor* b, int transpose_a, int transpose_b,
                                 lgpu_tensor** product, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_add_n(const lgpu_tensor* const* inputs, size_t count, lgpu_tensor** sum,
                                lgpu_status* status);
/* A tensor of that shape with the one element of `value` everywhere. */
LGPU_C_API lgpu_code lgpu_fill(const int64_t* dimensions, int rank, const lgpu_tensor* value,
                               lgpu_tensor** filled, lgpu_status* status);
/* Elementwise, with broadcasting. */
LGPU_C_API lgpu_code lgpu_add(const lgpu_tensor* a, const lgpu_tensor* b, lgpu_tensor** output,
                              lgpu_status* status);
LGPU_C_API lgpu_code lgpu_subtract(const lgpu_tensor* a, const lgpu_tensor* b, lgpu_tensor** output,
                                   lgpu_status* status);
LGPU_C_API lgpu_code lgpu_multiply(const lgpu_tensor* a, const lgpu_tensor* b, lgpu_tensor** output,
                                   lgpu_status* status);
LGPU_C_API lgpu_code lgpu_divide(const lgpu_tensor* a, const lgpu_tensor* b, lgpu_tensor** output,
                                 lgpu_status* status);
LGPU_C_API lgpu_code lgpu_negative(const lgpu_tensor* input, lgpu_tensor** output, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_relu(const lgpu_tensor* input, lgpu_tensor** output, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_relu_grad(const lgpu_tensor* gradients, const lgpu_tensor* features,
                                    lgpu_tensor** output, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_tanh(const lgpu_tensor* input, lgpu_tensor** output, lgpu_status* status);
/* gradients * (1 - y * y), with y of lgpu_tanh. */
LGPU_C_API lgpu_code lgpu_tanh_grad(const lgpu_tensor* y, const lgpu_tensor* gradients, lgpu_tensor** output,
                                    lgpu_status* status);
/* Behind one another along the first dimension. */
LGPU_C_API lgpu_code lgpu_concat(const lgpu_tensor* const* inputs, size_t count, lgpu_tensor** output,
                                 lgpu_status* status);
/* `permutation` has as many elements as the input has dimensions; NULL: their order is reversed. */
LGPU_C_API lgpu_code lgpu_transpose(const lgpu_tensor* input, const int* permutation, lgpu_tensor** output,
                                    lgpu_status* status);
/* `axes`: the dimensions that go, negative ones count from the end; NULL: all. `keep_dims`: they stay, with
 * size 1.
 */
LGPU_C_API lgpu_code lgpu_reduce_sum(const lgpu_tensor* input, const int* axes, size_t count, int keep_dims,
                                     lgpu_tensor** output, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_reduce_mean(const lgpu_tensor* input, const int* axes, size_t count, int keep_dims,
                                      lgpu_tensor** output, lgpu_status* status);
/* The loss of each row, and its gradient. */
LGPU_C_API lgpu_code lgpu_sparse_softmax_cross_entropy_with_logits(const lgpu_tensor* logits,
                                                                   const lgpu_tensor* labels,
                                                                   lgpu_tensor** loss, lgpu_tensor** backprop,
                                                                   lgpu_status* status);
/* Other views of the input's memory. */
LGPU_C_API lgpu_code lgpu_reshape(const lgpu_tensor* input, const int64_t* dimensions, int rank,
                                  lgpu_tensor** output, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_slice_rows(const lgpu_tensor* input, int64_t begin, int64_t count,
                                     lgpu_tensor** output, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_cast(const lgpu_tensor* input, lgpu_dtype to, lgpu_tensor** output,
                               lgpu_status* status);
LGPU_C_API lgpu_code lgpu_identity(const lgpu_tensor* input, lgpu_tensor** output, lgpu_status* status);
/* int32: the dimensions, the number of elements, the number of dimensions. */
LGPU_C_API lgpu_code lgpu_shape_of(const lgpu_tensor* input, lgpu_tensor** output, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_size_of(const lgpu_tensor* input, lgpu_tensor** output, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_rank_of(const lgpu_tensor* input, lgpu_tensor** output, lgpu_status* status);
/* The tensor on `device`: the same values, there already or copied. */
LGPU_C_API lgpu_code lgpu_copy_to_device(const lgpu_tensor* input, const char* device, lgpu_tensor** output,
                                         lgpu_status* status);

LGPU_C_API void lgpu_tensor_delete(lgpu_tensor* tensor);
LGPU_C_API lgpu_dtype lgpu_tensor_dtype(const lgpu_tensor* tensor);
LGPU_C_API int lgpu_tensor_rank(const lgpu_tensor* tensor);
/* -1 for an axis that is not there. */
LGPU_C_API int64_t lgpu_tensor_dimension(const lgpu_tensor* tensor, int axis);
LGPU_C_API uint64_t lgpu_tensor_bytes(const lgpu_tensor* tensor);
LGPU_C_API const char* lgpu_tensor_device(const lgpu_tensor* tensor);
/* `bytes` must be lgpu_tensor_bytes. */
LGPU_C_API lgpu_code lgpu_tensor_copy_to_host(const lgpu_tensor* tensor, void* data, size_t bytes,
                                              lgpu_status* status);

#ifdef __cplusplus
}
#endif

#endif /* LGPU_C_LGPU_H_ */
