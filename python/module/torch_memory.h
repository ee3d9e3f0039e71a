#ifndef LGPU_PYTHON_MODULE_TORCH_MEMORY_H_
#define LGPU_PYTHON_MODULE_TORCH_MEMORY_H_

#include <sys/types.h>

#include <cstddef>

// Functions for torch.cuda.CUDAPluggableAllocator, which finds them in this module by name. They know no user
// data, so their memories are in a table of the process; python/lgpu/torch.py fills it.
//
// Any thread may call them, with the interpreter's lock or without it. `stream` is a cudaStream_t.

#define LGPU_TORCH_EXPORT __attribute__((visibility("default")))

extern "C" {

/// For the current allocator: memory of the logical device on CUDA device `device`. Never NULL but for 0
/// bytes: throws c10::OutOfMemoryError with the refusal's text, or std::runtime_error.
LGPU_TORCH_EXPORT void* lgpu_torch_malloc(ssize_t size, int device, void* stream);
LGPU_TORCH_EXPORT void lgpu_torch_free(void* address, ssize_t size, int device, void* stream);
/// Tensor.record_stream: the block is used on another stream, too, by all work that is queued there before
/// the block is freed. Throws std::runtime_error for an address that is no live block of lgpu.torch.enable's.
LGPU_TORCH_EXPORT void lgpu_torch_record_stream(void* address, void* stream);
/// torch.cuda.empty_cache: idle memory goes back.
LGPU_TORCH_EXPORT void lgpu_torch_empty_cache();
/// torch.cuda.set_per_process_memory_fraction: throws std::runtime_error, for the limit is the device's.
LGPU_TORCH_EXPORT void lgpu_torch_memory_fraction(double fraction, int device);
/// The start of a CUDA graph or of a MemPool: throws std::runtime_error. The parameters are not read.
LGPU_TORCH_EXPORT void lgpu_torch_no_pools();

// lgpu_torch_pool_malloc_N and lgpu_torch_pool_free_N, N from 0 to 15: for a torch.cuda.MemPool each, with
// the parameters of the first two.
}

#endif  // LGPU_PYTHON_MODULE_TORCH_MEMORY_H_
