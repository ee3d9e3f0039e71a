"""A user's program for type checkers: typing_test.py runs mypy --strict on it, and then the program."""

from typing import assert_type

import numpy as np

import lgpu
from lgpu import Context, Tensor, distribute


def operators(ctx: Context) -> float:
    x = ctx.constant(np.ones((2, 2), np.float32))
    with ctx.device("GPU:0"), ctx.device_policy("silent"):
        y = 2 * lgpu.matmul(x, x, transpose_b=True) + 1
        z = lgpu.reduce_sum(1.0 - y / 2 - x @ x.T, axis=np.int64(0), keepdims=True)
    assert_type(y, Tensor)
    assert_type(z, Tensor)
    assert_type(lgpu.add_n([x, lgpu.relu(-y)]), Tensor)
    loss, gradient = lgpu.sparse_softmax_cross_entropy_with_logits(labels=ctx.constant([0, 1]), logits=x)
    assert_type(loss.shape, tuple[int, ...])
    return float(lgpu.reduce_mean(gradient, axis=(0, 1)).item()) + np.asarray(z).size


def figures(ctx: Context) -> list[str]:
    explanation = ctx.explain("MatMul", ctx.constant([[1.0]]), ctx.constant([[1.0]]))
    used: int = ctx.memory_info("GPU:0")["current"]
    names = [device.name for device in ctx.list_logical_devices("GPU")]
    return [explanation.device, str(used), *names, lgpu.format_bytes(lgpu.parse_bytes("2MiB"))]


def refusal(ctx: Context) -> str:
    try:
        ctx.fill([1 << 30], 1.0)
    except lgpu.OutOfMemoryError as error:
        return str(error.refusal["reason"]) if error.refusal is not None else error.code
    return ""


def config() -> lgpu.Config:
    made = lgpu.Config(endpoint="local:1x64MiB")
    for gpu in made.list_physical_devices("GPU"):
        made.set_logical_device_configuration(gpu, [lgpu.LogicalDeviceConfiguration(memory_limit="16MiB")] * 2)
    return made


def replicas(ctx: Context) -> list[float]:
    strategy = lgpu.MirroredStrategy(ctx)
    weight = strategy.variable(lgpu.constant([1.0]))

    def step(replica: distribute.Replica, part: Tensor) -> float:
        total, = replica.all_reduce("sum", [lgpu.reduce_sum(part * replica.read(weight))])
        return float(total.item())

    return strategy.run(step, args=(strategy.split(lgpu.constant([1.0, 2.0, 3.0, 4.0])),))


def main() -> None:
    with lgpu.Context(config=config()) as ctx:
        print(operators(ctx), figures(ctx), refusal(ctx), replicas(ctx))
    with lgpu.LogicalMemory("16MiB", endpoint="local:1x64MiB") as memory:
        memory.free(memory.allocate("1MiB", tag="typed"))
        print(memory.stats()["used"], memory.lease_name)


if __name__ == "__main__":
    main()
