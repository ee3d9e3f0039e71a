#!/usr/bin/env python3
"""Measures lgpu from Python, beside the bare call from C++ and, where they are installed, PyTorch and TensorFlow in the same
run: a MatMul of 2x2 floats on a simulated GPU, DLPack, the import.

    PYTHONPATH=build/release/python/package PYTHON bench/python/python_bench.py build/release/bench/python_bare_call

Each row is the best of the rounds, which alternate; PYTHON is that of scripts/python-env."""

import importlib.util
import os
import statistics
import subprocess
import sys
import time

import numpy as np

import lgpu

CALLS, ROUNDS, IMPORTS = 100_000, 5, 15
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def nanoseconds(function, calls=CALLS):
    """Of a call, with the loop."""
    repeat = [None] * calls
    begin = time.perf_counter_ns()
    for _ in repeat:
        function()
    return (time.perf_counter_ns() - begin) / calls


def rows_of_lgpu(ctx):
    a = ctx.constant([[1.0, 2.0], [3.0, 4.0]])
    matmul = lgpu.matmul
    from_dlpack = np.from_dlpack

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
    }


def rows_of_others():
    rows = {}
    array = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    rows["numpy.matmul"] = lambda: nanoseconds(lambda: np.matmul(array, array))
    if importlib.util.find_spec("torch"):
        import torch
        t = torch.from_numpy(array)
        rows["torch.mm"] = lambda: nanoseconds(lambda: torch.mm(t, t))
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as tf
        with tf.device("CPU:0"):
            x = tf.constant(array)
        rows["tf.matmul"] = lambda: nanoseconds(lambda: tf.matmul(x, x), CALLS // 10)
    return rows


def import_milliseconds(code):
    begin = time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter_ns() - begin) / 1e6


def main():
    bare = sys.argv[1]
    with lgpu.Context(memory_limit="32MiB", endpoint="local:1x64MiB") as ctx:
        rows = {"MatMul(a, a) in C++": lambda: float(subprocess.check_output([bare, str(CALLS)])), **rows_of_lgpu(ctx),
                **rows_of_others()}
        best = {name: min(measure() for _ in range(1)) for name, measure in rows.items()}
        for _ in range(ROUNDS - 1):
            for name, measure in rows.items():
                best[name] = min(best[name], measure())
    print(f"{'':38} ns per call, best of {ROUNDS}")
    for name, value in best.items():
        print(f"{name:38} {value:10.0f}")
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
