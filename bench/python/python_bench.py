#!/usr/bin/env python3
"""Measures lgpu from Python, beside the bare calls from C++, numpy and, where they are installed, PyTorch and TensorFlow in the
same run: a MatMul of 2x2 floats on a simulated GPU, values in and out, bias and sums, a training step, DLPack, the import.

    PYTHONPATH=build/release/python/package PYTHON bench/python/python_bench.py build/release/bench/python_bare_call

Each row is the best of the rounds, which alternate; PYTHON is that of scripts/python-env. All libraries use one thread
(OPENBLAS_NUM_THREADS=1). PyTorch comes from the folder of scripts/python-env python/tests/torch-requirements.txt if its
site-packages stand behind the package in PYTHONPATH and the toolkit's libraries in LD_LIBRARY_PATH."""

import importlib.util
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import lgpu
import training_step

CALLS, FEW, STEPS, ROUNDS, IMPORTS = 100_000, 300, 10, 5, 15
BARE = ("MatMul", "CopyToHost")
SMALL = [[1.0, 2.0], [3.0, 4.0]]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def nanoseconds(function, calls=CALLS):
    """Of a call, with the loop."""
    repeat = [None] * calls
    begin = time.perf_counter_ns()
    for _ in repeat:
        function()
    return (time.perf_counter_ns() - begin) / calls


def matrix_and_bias():
    numbers = np.random.default_rng(1)
    return numbers.random((256, 1024), np.float32), numbers.random(1024, np.float32)


def rows_of_lgpu(ctx):
    a = ctx.constant([[1.0, 2.0], [3.0, 4.0]])
    matmul = lgpu.matmul
    from_dlpack = np.from_dlpack
    scalar, array = ctx.constant(3.0), np.array(SMALL, np.float32)
    matrix, bias = (ctx.constant(values) for values in matrix_and_bias())

    def in_scope():
        with ctx.device("GPU:0"):
            return nanoseconds(lambda: matmul(a, a))

    return {
        "an empty function": lambda: nanoseconds(lambda: None),
        "lgpu.matmul(a, a)": lambda: nanoseconds(lambda: matmul(a, a)),
        "a @ a": lambda: nanoseconds(lambda: a @ a),
        "lgpu.matmul(a, a) in a device scope": in_scope,
        "numpy.from_dlpack(a)": lambda: nanoseconds(lambda: from_dlpack(a)),
        "a.__dlpack__(max_version=(1, 0))": lambda: nanoseconds(lambda: a.__dlpack__(max_version=(1, 0))),
        "a.numpy()": lambda: nanoseconds(a.numpy, CALLS // 4),
        "scalar.item()": lambda: nanoseconds(scalar.item),
        "ctx.constant(array)": lambda: nanoseconds(lambda: ctx.constant(array), CALLS // 4),
        "ctx.constant(list)": lambda: nanoseconds(lambda: ctx.constant(SMALL), CALLS // 4),
        "lgpu: matrix + bias": lambda: nanoseconds(lambda: matrix + bias, FEW),
        "lgpu.reduce_sum(matrix, axis=0)": lambda: nanoseconds(lambda: lgpu.reduce_sum(matrix, axis=0), FEW),
        "lgpu.reduce_sum(matrix, axis=1)": lambda: nanoseconds(lambda: lgpu.reduce_sum(matrix, axis=1), FEW),
        "lgpu: a training step": lambda: nanoseconds(training_step.of_lgpu(ctx), STEPS),
    }


def rows_of_others():
    rows = {}
    array = np.array(SMALL, np.float32)
    matrix, bias = matrix_and_bias()
    rows["numpy.matmul"] = lambda: nanoseconds(lambda: np.matmul(array, array))
    rows["numpy: matrix + bias"] = lambda: nanoseconds(lambda: matrix + bias, FEW)
    rows["numpy: matrix.sum(axis=0)"] = lambda: nanoseconds(lambda: matrix.sum(axis=0), FEW)
    rows["numpy: matrix.sum(axis=1)"] = lambda: nanoseconds(lambda: matrix.sum(axis=1), FEW)
    if importlib.util.find_spec("torch"):
        import torch
        torch.set_num_threads(1)
        t = torch.from_numpy(array)
        rows["torch.mm"] = lambda: nanoseconds(lambda: torch.mm(t, t))
        rows["torch.tensor(array)"] = lambda: nanoseconds(lambda: torch.tensor(array), CALLS // 4)
        rows["torch.tensor(list)"] = lambda: nanoseconds(lambda: torch.tensor(SMALL), CALLS // 4)
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as tf
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        with tf.device("CPU:0"):
            x = tf.constant(array)
        rows["tf.matmul"] = lambda: nanoseconds(lambda: tf.matmul(x, x), CALLS // 10)
        rows["tf.function: a training step"] = lambda: nanoseconds(training_step.of_tensorflow(tf), STEPS)
    return rows


def import_milliseconds(code):
    begin = time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter_ns() - begin) / 1e6


def main():
    bare = sys.argv[1]
    with lgpu.Context(memory_limit="256MiB", endpoint="local:1x512MiB") as ctx:
        rows = {**{name: lambda name=name: float(subprocess.check_output([bare, name, str(CALLS)])) for name in BARE},
                **rows_of_lgpu(ctx),
                **rows_of_others()}
        if "tf.function: a training step" in rows:
            import tensorflow
            mine, theirs = (training_step.losses(step) for step in (training_step.of_lgpu(ctx), training_step.of_tensorflow(tensorflow)))
            assert np.allclose(mine[1:], theirs[:-1], rtol=1e-3), (mine, theirs)  # TensorFlow's made a step when it was traced
        best = {name: min(measure() for _ in range(1)) for name, measure in rows.items()}
        for _ in range(ROUNDS - 1):
            for name, measure in rows.items():
                best[name] = min(best[name], measure())
    print(f"{'':38} ns per call, best of {ROUNDS}")
    for name, value in best.items():
        print(f"{name:38} {value:10.0f}")
    for name in ("lgpu.matmul(a, a)", "a @ a"):
        above = best[name] - best["MatMul"]
        print(f"{name}: {above:.0f} ns above bare C++, {best['an empty function']:.0f} ns of them the loop of the measurement")
    codes = {"an empty interpreter": "pass", "import lgpu": "import lgpu", "import numpy": "import numpy",
             "import lgpu; lgpu.Context": "import lgpu; lgpu.Context"}
    taken = {name: [] for name in codes}
    for _ in range(IMPORTS):
        for name, code in codes.items():
            taken[name].append(import_milliseconds(code))
    print(f"\n{'':38} ms, median of {IMPORTS}")
    for name, values in taken.items():
        print(f"{name:38} {statistics.median(values):10.1f}")
    absent = [name for name in ("torch", "tensorflow") if not importlib.util.find_spec(name)]
    if absent:
        print(f"\nnot installed: {', '.join(absent)}")


if __name__ == "__main__":
    main()
