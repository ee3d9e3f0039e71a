#!/usr/bin/env python3
"""workloads.py jax|numba|triton|training LIMIT: work of a framework that has never heard of lgpu, for scripts/gpu-check.

It computes on the GPU, compares the result, and fails unless the memory that it is told of is at most LIMIT. With a file in
HARD_LIFE_GO_ON it computes again and again until that file exists, and once more after."""

import os
import sys

MIB = 1 << 20
# The fake driver runs no kernel of programs.
KERNELS_RUN = not os.environ.get("LGPU_GPU_CHECK_FAKE")


def with_jax(limit):
    import jax
    import jax.numpy as jnp
    device = jax.devices("gpu")[0]
    told = device.memory_stats()["bytes_limit"]

    @jax.jit
    def step(weights, rows, targets):
        loss = lambda w: jnp.mean((rows @ w - targets) ** 2)
        return weights - 0.1 * jax.grad(loss)(weights)

    def once():
        with jax.default_device(device):
            rows = jnp.eye(256, dtype=jnp.float32)
            targets = jnp.ones((256, 4), dtype=jnp.float32)
            weights = step(jnp.zeros((256, 4), dtype=jnp.float32), rows, targets)
            # The gradient of each weight is 2 * (0 - 1) / (256 * 4).
            assert jnp.allclose(weights, 0.1 * 2 / 1024, rtol=1e-3), weights

    return told, once


def with_numba(limit):
    import numpy as np
    from numba import cuda
    told = cuda.current_context().get_memory_info().total

    @cuda.jit
    def double(values):
        at = cuda.grid(1)
        if at < values.size:
            values[at] *= 2

    def once():
        given = np.arange(MIB, dtype=np.float32)
        values = cuda.to_device(given)
        double[MIB // 256, 256](values)
        assert (values.copy_to_host() == (2 if KERNELS_RUN else 1) * given).all()

    return told, once


def with_triton(limit):
    global tl  # Triton looks for names in kernels among the module's
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < count
        tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)

    def once():
        count = MIB + 17
        x = torch.arange(count, dtype=torch.float32, device="cuda")
        y = torch.ones_like(x)
        out = torch.empty_like(x)
        add[(triton.cdiv(count, 1024),)](x, y, out, count, BLOCK=1024)
        assert torch.equal(out, x + 1)

    return torch.cuda.mem_get_info()[1], once


def with_training(limit):
    import torch
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(1024, 256, device="cuda")
    targets = rows.sum(dim=1, keepdim=True) / 16

    def train():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(rows), targets)
        loss.backward()
        optimizer.step()
        return loss

    # As PyTorch's documentation has it: warm up on a side stream, then capture.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            first = train().item()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train()

    def once():
        for _ in range(50):
            graph.replay()
        # New memory in every round, which a restarted daemon has to give.
        block = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
        assert int(block.sum(dtype=torch.int64)) == 64 * MIB
        del block
        torch.cuda.empty_cache()
        assert loss.item() < first, (loss.item(), first)

    return torch.cuda.mem_get_info()[1], once


def main():
    name, limit = sys.argv[1], int(sys.argv[2])
    told, once = {"jax": with_jax, "numba": with_numba, "triton": with_triton, "training": with_training}[name](limit)
    once()
    rounds = 1
    file = os.environ.get("HARD_LIFE_GO_ON")
    while file and not os.path.exists(file):
        once()
        rounds += 1
    if file:
        once()
    print(f"{name}: told of {told // MIB} MiB, limit {limit // MIB} MiB; every result is right, {rounds} rounds")
    return 0 if told <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
