#!/usr/bin/env python3
"""framework_client.py torch|cupy LIMIT: a framework that has never heard of lgpu, for scripts/gpu-check.

It allocates until it is out of memory, frees, and allocates again; it fails unless what it got is at most LIMIT."""

import sys

MIB = 1 << 20


def torch_client(limit):
    import torch
    free, total = torch.cuda.mem_get_info()
    make = lambda size: torch.zeros(size, dtype=torch.uint8, device="cuda")
    return total, make, torch.cuda.OutOfMemoryError, torch.cuda.empty_cache


def cupy_client(limit):
    import cupy
    free, total = cupy.cuda.runtime.memGetInfo()
    make = lambda size: cupy.zeros(size, dtype=cupy.uint8)
    return total, make, cupy.cuda.memory.OutOfMemoryError, cupy.get_default_memory_pool().free_all_blocks


def fill(make, error, limit):
    held, size = [], limit // 8
    while size >= 2 * MIB and sum(len(block) for block in held) <= limit:
        try:
            held.append(make(size))
        except error:
            size //= 2
    return sum(len(block) for block in held)


def main():
    name, limit = sys.argv[1], int(sys.argv[2])
    total, make, error, clear = {"torch": torch_client, "cupy": cupy_client}[name](limit)
    first = fill(make, error, limit)
    clear()
    second = fill(make, error, limit)
    print(f"{name}: told of {total // MIB} MiB, got {first // MIB} MiB, and {second // MIB} MiB after it had freed all; limit {limit // MIB} MiB")
    return 0 if total <= limit and 0 < first <= limit and 0 < second <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
