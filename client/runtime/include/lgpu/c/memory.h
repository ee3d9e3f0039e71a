#ifndef LGPU_C_MEMORY_H_
#define LGPU_C_MEMORY_H_

/*
 * Memory of a logical device for kernels of your own, in C. It says what lgpu/memory.h says; see there for
 * the meaning of each call, and <lgpu/c/lgpu.h> for handles and statuses.
 *
 * A block is known by its address: that of a real GPU is one that every CUDA call of this process takes, that
 * of a simulated one is host memory. A stream is a CUstream or cudaStream_t of the device's primary context
 * (NULL or 1: the legacy default stream, 2: the calling thread's own); on a simulated device any pointer.
 */

#include "lgpu/c/lgpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lgpu_memory lgpu_memory;
typedef struct lgpu_export lgpu_export;
typedef struct lgpu_snapshot lgpu_snapshot;

/* A device in a new lease: the one that `options` have, or one with default options. Where they name a lease,
 * or LGPU_LEASE does, device `device_of_lease` of that one. `options` may be NULL. INVALID_ARGUMENT for more
 * than one device. */
LGPU_C_API lgpu_code lgpu_memory_open(const lgpu_options* options, int device_of_lease, lgpu_memory** memory,
                                      lgpu_status* status);
/* The memory of a context's GPU ("GPU:0"), beside its tensors. */
LGPU_C_API lgpu_code lgpu_context_memory(const lgpu_context* context, const char* device,
                                         lgpu_memory** memory, lgpu_status* status);
/* Gives everything back and waits until the quota is free. LGPU_FAILED_PRECONDITION with the number of
 * blocks, and nothing changes, while blocks are live. */
LGPU_C_API lgpu_code lgpu_memory_close(lgpu_memory* memory, lgpu_status* status);
/* Closes too, with the blocks that are live; exported ones keep their memory and its lease. */
LGPU_C_API void lgpu_memory_delete(lgpu_memory* memory);

/* For `timeout_ms`. The options' allocation timeout: */
#define LGPU_DEFAULT_TIMEOUT ((int64_t)-1)
/* Only what is there at once; what is not is LGPU_RESOURCE_EXHAUSTED without a refusal: */
#define LGPU_ONLY_IF_READY ((int64_t)-2)

/* A block of at least `bytes` for work on `stream`; 0 bytes give the address NULL, which is no memory.
 * `alignment`: a power of two up to 2 MiB, 0: 256. `tag` (or NULL) says in refusals and snapshots whose it
 * is. */
LGPU_C_API lgpu_code lgpu_memory_allocate(const lgpu_memory* memory, uint64_t bytes, uint64_t alignment,
                                          void* stream, const char* tag, int64_t timeout_ms, void** address,
                                          lgpu_status* status);
/* After the last work with the block was queued on `stream`. NULL may be freed. */
LGPU_C_API lgpu_code lgpu_memory_free(const lgpu_memory* memory, void* address, void* stream,
                                      lgpu_status* status);
/* The size of the live block that starts at `address`; `bytes` may be NULL. */
LGPU_C_API lgpu_code lgpu_memory_find(const lgpu_memory* memory, const void* address, uint64_t* bytes,
                                      lgpu_status* status);
/* Work with a live block was queued on `stream`, which is not the one it will be freed on. */
LGPU_C_API lgpu_code lgpu_memory_use_on(const lgpu_memory* memory, const void* address, void* stream,
                                        lgpu_status* status);
/* Waits for the stream, which may then be destroyed. */
LGPU_C_API lgpu_code lgpu_memory_forget_stream(const lgpu_memory* memory, void* stream, lgpu_status* status);

/* Hands a live block to an owner of its own; lgpu_export_delete frees the block on `stream`, from any thread,
 * also after the memory and its context. */
LGPU_C_API lgpu_code lgpu_memory_export(const lgpu_memory* memory, void* address, void* stream,
                                        lgpu_export** owner, lgpu_status* status);
LGPU_C_API void lgpu_export_delete(lgpu_export* owner);
/* Blocks that this memory handed out and that are live; each place may be NULL. */
LGPU_C_API void lgpu_memory_live_blocks(const lgpu_memory* memory, uint64_t* blocks, uint64_t* bytes,
                                        uint64_t* exported);

/* The device's number for CUDA calls of this process; -1: it is simulated. */
LGPU_C_API int lgpu_memory_cuda_device(const lgpu_memory* memory);
/* The UUID of its card. */
LGPU_C_API const char* lgpu_memory_card(const lgpu_memory* memory);
LGPU_C_API const char* lgpu_memory_lease(const lgpu_memory* memory);
LGPU_C_API const char* lgpu_memory_lease_name(const lgpu_memory* memory);
/* A number by its name: "limit", "requested", "used", "peak_used", "held", "workspace", "idle", "cached",
 * "fenced" and "largest_free_block" in bytes, "live_blocks", "num_allocs", "num_refusals". */
LGPU_C_API lgpu_code lgpu_memory_stat(const lgpu_memory* memory, const char* stat, uint64_t* value,
                                      lgpu_status* status);
/* Gives chunks that no block needs back; `bytes` may be NULL. */
LGPU_C_API lgpu_code lgpu_memory_trim(const lgpu_memory* memory, uint64_t* bytes, lgpu_status* status);
/* Another limit while it runs; the guarantee stays as far as the limit allows. */
LGPU_C_API lgpu_code lgpu_memory_resize(const lgpu_memory* memory, uint64_t memory_limit,
                                        lgpu_status* status);

/* All blocks at one moment, by address. */
typedef struct lgpu_block_info {
  void* address;
  uint64_t offset; /* from the start of the region */
  uint64_t bytes;
  uint64_t requested;
  void* stream;
  uint64_t age_ms;
  const char* tag;
  const char* state; /* "live", "cached", "fenced" */
} lgpu_block_info;
LGPU_C_API lgpu_code lgpu_memory_snapshot(const lgpu_memory* memory, lgpu_snapshot** snapshot,
                                          lgpu_status* status);
LGPU_C_API void lgpu_snapshot_delete(lgpu_snapshot* snapshot);
LGPU_C_API size_t lgpu_snapshot_block_count(const lgpu_snapshot* snapshot);
/* 1, and `block` is written, whose texts belong to the snapshot; 0 for an index that is not there. */
LGPU_C_API int lgpu_snapshot_block_at(const lgpu_snapshot* snapshot, size_t index, lgpu_block_info* block);
/* One JSON object; docs/allocator.md has its schema. */
LGPU_C_API const char* lgpu_snapshot_json(const lgpu_snapshot* snapshot);

#ifdef __cplusplus
}
#endif

#endif /* LGPU_C_MEMORY_H_ */
