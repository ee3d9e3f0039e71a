"""lgpu with grpcio, TensorFlow and jax in one process, in both orders of import, each used before and after the other, with
a fork between. Each order is a process of its own. With a daemon.

together_test.py [LIBRARY ORDER]: without arguments all of them."""

import importlib.util
import os
import subprocess
import sys
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")


def use_grpc():
    import grpc
    server = grpc.server(__import__("concurrent.futures").futures.ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request + b"!")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lgpu.Echo", {"Say": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/lgpu.Echo/Say")(b"hello", timeout=20) == b"hello!"
    server.stop(None).wait()


def use_tensorflow():
    import tensorflow as tf
    assert tf.matmul(tf.eye(2), [[1.0, 2.0], [3.0, 4.0]]).numpy().tolist() == [[1, 2], [3, 4]]


def use_jax():
    import jax
    assert (jax.numpy.eye(2) @ jax.numpy.ones((2, 2))).tolist() == [[1, 1], [1, 1]]


LIBRARIES = {"grpc": use_grpc, "tensorflow": use_tensorflow, "jax": use_jax}


def use_lgpu():
    import lgpu
    with lgpu.Context(memory_limit="16MiB") as ctx:
        a = ctx.constant([[1.0, 2.0], [3.0, 4.0]])
        assert (a @ a).tolist() == [[7, 10], [15, 22]]


def both(library, order):
    first, second = (LIBRARIES[library], use_lgpu) if order == "library_first" else (use_lgpu, LIBRARIES[library])
    first()
    second()
    import lgpu
    ctx = lgpu.Context(memory_limit="16MiB")
    tensor = ctx.constant([1.0])
    child = os.fork()
    if child == 0:
        try:
            tensor + tensor
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert (tensor + tensor).tolist() == [2]
    ctx.close()
    first()
    second()


class TogetherTest(unittest.TestCase):
    def test_every_order(self):
        for library in LIBRARIES:
            for order in ("library_first", "lgpu_first"):
                with self.subTest(library=library, order=order):
                    if importlib.util.find_spec(library) is None:
                        self.skipTest(f"{library} is not installed")
                    done = subprocess.run([sys.executable, __file__, library, order], capture_output=True, text=True,
                                          timeout=120)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        both(*sys.argv[1:])
    else:
        unittest.main()
