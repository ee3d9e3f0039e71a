#!/usr/bin/env python3
"""liblgpu and another library in one process, each used before and after the other, with a fork between.

together.py LIBLGPU LIBRARY ORDER, where ORDER is library_first or lgpu_first. LGPU_ENDPOINT names a daemon. Exit
code 77, and a line "NAME: Skipped" with the reason: the library is not installed."""

import ctypes
import importlib.util
import os
import sys

SKIPPED = 77


class Lgpu:
    """The C interface, as far as this test needs it."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name in ("lgpu_status_new", "lgpu_options_new"):
            getattr(self.c, name).restype = ctypes.c_void_p
        self.c.lgpu_status_message.restype = ctypes.c_char_p
        self.c.lgpu_status_message.argtypes = [ctypes.c_void_p]
        self.c.lgpu_tensor_device.restype = ctypes.c_char_p
        self.c.lgpu_tensor_device.argtypes = [ctypes.c_void_p]
        self.status = ctypes.c_void_p(self.c.lgpu_status_new())

    def check(self, code):
        if code != 0:
            raise RuntimeError(self.c.lgpu_status_message(self.status).decode())

    def open(self):
        options = ctypes.c_void_p(self.c.lgpu_options_new())
        self.c.lgpu_options_add_device(options, ctypes.c_uint64(64 << 20), 0)
        context = ctypes.c_void_p()
        self.check(self.c.lgpu_context_create(options, ctypes.byref(context), self.status))
        self.c.lgpu_options_delete(options)
        return context

    def multiply(self, context):
        """[[1, 2], [3, 4]] times itself on the logical GPU."""
        data = (ctypes.c_float * 4)(1, 2, 3, 4)
        shape = (ctypes.c_int64 * 2)(2, 2)
        a, product = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.c.lgpu_constant(context, 1, shape, 2, data, ctypes.c_size_t(16), ctypes.byref(a), self.status))
        self.check(self.c.lgpu_matmul(a, a, 0, 0, ctypes.byref(product), self.status))
        device = self.c.lgpu_tensor_device(product).decode()
        assert device.endswith("GPU:0"), device
        out = (ctypes.c_float * 4)()
        self.check(self.c.lgpu_tensor_copy_to_host(product, out, ctypes.c_size_t(16), self.status))
        for tensor in (a, product):
            self.c.lgpu_tensor_delete(tensor)
        assert list(out) == [7, 10, 15, 22], list(out)

    def is_dead_in_a_forked_child(self, context):
        data = (ctypes.c_float * 1)(1)
        shape = (ctypes.c_int64 * 1)(1)
        tensor = ctypes.c_void_p()
        return self.c.lgpu_constant(context, 1, shape, 1, data, ctypes.c_size_t(4), ctypes.byref(tensor), self.status) != 0

    def close(self, context):
        self.check(self.c.lgpu_context_close(context, self.status))
        self.c.lgpu_context_delete(context)


def use_numpy():
    import numpy
    a = numpy.arange(256 * 256, dtype=numpy.float32).reshape(256, 256) % 7
    assert numpy.array_equal((a @ numpy.eye(256, dtype=numpy.float32)), a)


def use_scipy():
    import numpy
    import scipy.linalg
    a = numpy.array([[4.0, 1.0], [1.0, 3.0]])
    x = scipy.linalg.solve(a, numpy.array([1.0, 2.0]))
    assert numpy.allclose(a @ x, [1.0, 2.0])


def use_grpc():
    from concurrent import futures
    import grpc

    def answer(request, context):
        return request[::-1]

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(
        "test.Echo", {"Reverse": grpc.unary_unary_rpc_method_handler(answer)})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/test.Echo/Reverse")(b"abc", timeout=20) == b"cba"
    server.stop(None).wait()


def use_tensorflow():
    import tensorflow as tf
    a = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    assert tf.matmul(a, a).numpy().tolist() == [[7, 10], [15, 22]]

    @tf.function
    def twice(x):
        return x + x

    assert twice(a).numpy().tolist() == [[2, 4], [6, 8]]  # a graph: protobuf's code is used


def use_torch():
    import torch
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (a @ a).tolist() == [[7, 10], [15, 22]]


LIBRARIES = {"numpy": use_numpy, "scipy": use_scipy, "grpc": use_grpc, "tensorflow": use_tensorflow, "torch": use_torch}


def fork_between(lgpu, context):
    child = os.fork()
    if child == 0:
        os._exit(0 if lgpu.is_dead_in_a_forked_child(context) else 1)
    _, result = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(result) == 0, "a forked child used its parent's Context"


def main():
    path, library, order = sys.argv[1:]
    name = f"Together.{library}_{order}"
    if importlib.util.find_spec(library) is None:
        print(f"{name}: Skipped\n{library} is not installed for {sys.executable}\n[  SKIPPED ] {name} (0 ms)")
        return SKIPPED
    use = LIBRARIES[library]
    if order == "library_first":
        use()
    lgpu = Lgpu(path)
    context = lgpu.open()
    lgpu.multiply(context)
    use()
    lgpu.multiply(context)
    fork_between(lgpu, context)
    use()
    lgpu.multiply(context)
    lgpu.close(context)
    use()
    print(f"{name}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
