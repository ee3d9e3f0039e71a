#!/usr/bin/env python3
"""gpu_adaptors.py torch|torch-pool|cupy|rmm|numba: a library of arrays on a real GPU, with the memory of a logical one, for
scripts/gpu-check. LGPU_ENDPOINT names the daemon.

It computes, fills the limit, is refused, frees, and fills it again."""

import gc
import sys

MIB = 1 << 20
LIMIT = 512 * MIB


def fill(make, error):
    """Bytes that were had in blocks of 64 MiB, and the first refusal."""
    held = []
    while len(held) <= LIMIT // (64 * MIB):
        try:
            held.append(make(64 * MIB))
        except error as refused:
            return len(held) * 64 * MIB, refused
    raise AssertionError(f"{len(held) * 64} MiB were given with a limit of {LIMIT // MIB} MiB")


def twice(ctx, make, error, leave=0):
    """Fills what `leave` bytes are left of, twice; the second time needs that the first was freed."""
    first, refused = fill(make, error)
    text = str(refused)
    del refused
    gc.collect()
    second, _ = fill(make, error)
    assert first == second and LIMIT - leave - 64 * MIB <= first <= LIMIT, (first, second)
    gc.collect()
    print(f"{first // MIB} MiB of {LIMIT // MIB} MiB twice; refused with:\n{text}")
    assert "lgpu" in text, text


def compute_with_torch(torch):
    x = torch.arange(1024, dtype=torch.float32, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    y = x * 2
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = (y * y).sum()
        y.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    z.backward()
    assert torch.equal(x.grad.cpu(), 8 * torch.arange(1024, dtype=torch.float32))


def share_with_torch(torch, ctx):
    """DLPack both ways, on a stream of torch's own too."""
    values = [float(i) for i in range(1024)]
    tensor = ctx.constant(values)
    shared = torch.from_dlpack(tensor)
    with torch.cuda.stream(torch.cuda.Stream()):
        doubled = torch.from_dlpack(tensor) * 2
        back = ctx.from_dlpack(doubled)
    assert shared.is_cuda and shared.cpu().tolist() == values
    assert back.tolist() == [2 * value for value in values]
    del shared
    gc.collect()
    assert ctx.exports() == (0, 0), ctx.exports()


def use_torch(lgpu, ctx):
    import torch
    lgpu.torch.enable(ctx)
    share_with_torch(torch, ctx)
    gc.collect()
    compute_with_torch(torch)
    gc.collect()
    assert torch.cuda.memory_allocated() == ctx.memory_info()["current"]
    make = lambda size: torch.zeros(size, dtype=torch.uint8, device="cuda")
    kept = make(MIB)
    assert torch.cuda.memory_allocated() >= MIB and torch.cuda.max_memory_allocated() >= MIB
    print(torch.cuda.memory_summary())
    twice(ctx, make, torch.OutOfMemoryError, leave=2 * MIB)
    del kept
    gc.collect()
    torch.cuda.empty_cache()


def use_torch_pool(lgpu, ctx):
    import torch
    with lgpu.torch.pool(ctx):
        compute_with_torch(torch)
        assert ctx.memory_info()["current"] > 0
        try:
            torch.zeros(2 * LIMIT, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert "lgpu" in str(error), error
        else:
            raise AssertionError("more than the limit was given")


def use_cupy(lgpu, ctx):
    import cupy
    lgpu.cupy.enable(ctx)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        assert int((cupy.arange(1024) * 2).sum()) == 1023 * 1024
        stream.synchronize()
    twice(ctx, lambda size: cupy.zeros(size, cupy.uint8), MemoryError)


def use_rmm(lgpu, ctx):
    import rmm
    lgpu.rmm.enable(ctx)
    buffer = rmm.DeviceBuffer.to_device(b"lgpu" * 1024)
    assert bytes(buffer.copy_to_host())[:4] == b"lgpu"
    del buffer
    twice(ctx, lambda size: rmm.DeviceBuffer(size=size), MemoryError)


def use_numba(lgpu, ctx):
    import numpy as np
    from numba import cuda
    lgpu.numba.use(ctx)
    cuda.set_memory_manager(lgpu.numba.MemoryManager)

    @cuda.jit
    def double(values):
        at = cuda.grid(1)
        if at < values.size:
            values[at] *= 2

    values = cuda.to_device(np.arange(1024, dtype=np.float32))
    double[4, 256](values)
    assert (values.copy_to_host() == 2 * np.arange(1024)).all()
    del values
    twice(ctx, lambda size: cuda.device_array(size, np.uint8), MemoryError)


def main():
    name = sys.argv[1]
    import lgpu
    ctx = lgpu.Context(memory_limit=LIMIT, allocation_timeout=0)
    {"torch": use_torch, "torch-pool": use_torch_pool, "cupy": use_cupy, "rmm": use_rmm, "numba": use_numba}[name](lgpu, ctx)
    print(f"{name}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
