#ifndef LGPU_C_LGPU_H_
#define LGPU_C_LGPU_H_

/*
 * The stable C interface of liblgpu. It says what lgpu/lgpu.h says; see there for the meaning of each call.
 *
 * Handles are opaque. Whoever gets one from a function whose name ends in _new, _create, _constant or is an
 * op deletes it with the function of its type; NULL may be deleted. Strings that are returned belong to the
 * handle and live as long as it does (those of a status: until its next use).
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

/* The canonical codes of gRPC and absl. */
typedef enum lgpu_code {
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
typedef enum lgpu_dtype {
  LGPU_INVALID = 0,
  LGPU_FLOAT32 = 1,
  LGPU_FLOAT64 = 2,
  LGPU_INT32 = 3,
  LGPU_INT64 = 9,
  LGPU_BFLOAT16 = 14,
  LGPU_FLOAT16 = 19
} lgpu_dtype;

typedef struct lgpu_status lgpu_status;
typedef struct lgpu_options lgpu_options;
typedef struct lgpu_context lgpu_context;
typedef struct lgpu_tensor lgpu_tensor;
typedef struct lgpu_scope lgpu_scope;

/* "0.1.0" */
LGPU_C_API const char* lgpu_version(void);

LGPU_C_API lgpu_status* lgpu_status_new(void);
LGPU_C_API void lgpu_status_delete(lgpu_status* status);
LGPU_C_API lgpu_code lgpu_status_code(const lgpu_status* status);
LGPU_C_API const char* lgpu_status_message(const lgpu_status* status);

/* Options of a context; what is not set has its default. */
LGPU_C_API lgpu_options* lgpu_options_new(void);
LGPU_C_API void lgpu_options_delete(lgpu_options* options);
/* A runtime directory of lgpud, "local", or "local:2x1GiB". */
LGPU_C_API void lgpu_options_set_endpoint(lgpu_options* options, const char* endpoint);
/* A lease to attach to. */
LGPU_C_API void lgpu_options_set_lease(lgpu_options* options, const char* lease);
/* Adds a logical device: its limit in bytes (0: all that the card can give), grown on demand or preallocated.
 */
LGPU_C_API void lgpu_options_add_device(lgpu_options* options, uint64_t memory_limit, int preallocate);
LGPU_C_API void lgpu_options_set_log_device_placement(lgpu_options* options, int on);
LGPU_C_API void lgpu_options_set_soft_device_placement(lgpu_options* options, int on);
LGPU_C_API void lgpu_options_set_allocation_timeout_ms(lgpu_options* options, int64_t milliseconds);

LGPU_C_API lgpu_code lgpu_context_create(const lgpu_options* options, lgpu_context** context,
                                         lgpu_status* status);
/* Gives everything back and waits until the quota is free. */
LGPU_C_API lgpu_code lgpu_context_close(lgpu_context* context, lgpu_status* status);
/* Closes too. Tensors may outlive their context; their data does not. */
LGPU_C_API void lgpu_context_delete(lgpu_context* context);
LGPU_C_API int lgpu_context_device_count(const lgpu_context* context);
/* "/job:localhost/replica:0/task:0/device:GPU:0"; NULL for an index that is not there. */
LGPU_C_API const char* lgpu_context_device_name(const lgpu_context* context, int index);
/* `device` as in "GPU:0". */
LGPU_C_API lgpu_code lgpu_context_memory_info(const lgpu_context* context, const char* device,
                                              uint64_t* current, uint64_t* peak, lgpu_status* status);

/* All ops and constants of `context` on this thread ask for `device` until the scope is deleted. Scopes nest
 * and end in reverse order. A wrong name makes the next op fail. */
LGPU_C_API lgpu_scope* lgpu_scope_new(const lgpu_context* context, const char* device);
LGPU_C_API void lgpu_scope_delete(lgpu_scope* scope);

/* `bytes` is the size of `data`, which holds the elements row by row. */
LGPU_C_API lgpu_code lgpu_constant(const lgpu_context* context, lgpu_dtype dtype, const int64_t* dimensions,
                                   int rank, const void* data, size_t bytes, lgpu_tensor** tensor,
                                   lgpu_status* status);
LGPU_C_API lgpu_code lgpu_matmul(const lgpu_tensor* a, const lgpu_tensor* b, int transpose_a, int transpose_b,
                                 lgpu_tensor** product, lgpu_status* status);
LGPU_C_API lgpu_code lgpu_add_n(const lgpu_tensor* const* inputs, size_t count, lgpu_tensor** sum,
                                lgpu_status* status);
LGPU_C_API lgpu_code lgpu_cast(const lgpu_tensor* input, lgpu_dtype to, lgpu_tensor** output,
                               lgpu_status* status);
LGPU_C_API lgpu_code lgpu_identity(const lgpu_tensor* input, lgpu_tensor** output, lgpu_status* status);

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
