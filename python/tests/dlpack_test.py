"""DLPack with numpy, jax, TensorFlow and torch: without copies out, with a checked copy in."""

import ctypes
import functools
import gc
import importlib.util
import operator
import os
import sys
import threading
import unittest

import numpy as np

import lgpu

ENDPOINT = "local:1x64MiB"
HAS = {name: importlib.util.find_spec(name) is not None for name in ("jax", "tensorflow", "torch", "ml_dtypes")}
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
VERSIONED, LEGACY = "dltensor_versioned", "dltensor"


def name_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get(capsule).decode()


class Managed(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]


CAPSULE_NAME = LEGACY.encode()  # a capsule keeps its address


def capsule_of(shape, strides):
    """A capsule of float32 without memory, and what it needs as long as it lives."""
    numbers = ctypes.c_int64 * len(shape)
    managed = Managed(None, (1, 0), len(shape), 2, 32, 1, numbers(*shape), numbers(*strides))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(managed), CAPSULE_NAME, None), managed


class Producer:
    """An array of numpy's behind the protocol, with an answer of its own."""

    def __init__(self, array, device=(1, 0), old=False):
        self.array, self.device, self.old, self.asked = array, device, old, None

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **asked):
        if self.old and asked:
            raise TypeError("unexpected keyword argument")
        self.asked = asked
        return self.array.__dlpack__(**asked)


class DlpackTest(unittest.TestCase):
    def setUp(self):
        self.ctx = lgpu.Context(memory_limit="32MiB", endpoint=ENDPOINT)

    def tearDown(self):
        gc.collect()
        self.assertEqual(self.ctx.exports(), (0, 0))
        self.ctx.close()

    def address_of(self, tensor):
        return np.from_dlpack(tensor).__array_interface__["data"][0]

    # Out.

    def test_numpy_shares_the_memory_and_may_not_write(self):
        tensor = self.ctx.constant([[1.0, 2.0], [3.0, 4.0]])
        array = np.from_dlpack(tensor)
        self.assertEqual(array.__array_interface__["data"][0], self.address_of(tensor))
        np.testing.assert_array_equal(array, [[1, 2], [3, 4]])
        self.assertFalse(array.flags.writeable)
        with self.assertRaises(ValueError):
            array[0, 0] = 5
        self.assertEqual(self.ctx.exports(), (1, 16))

    def test_every_dtype_and_shape(self):
        for dtype in (np.float32, np.float64, np.int32, np.int64, np.float16):
            for shape in ((), (3,), (2, 3, 4), (2, 0), (1, 5)):
                expected = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
                np.testing.assert_array_equal(np.from_dlpack(self.ctx.constant(expected)), expected)

    def test_kinds_of_capsules(self):
        tensor = self.ctx.constant([1.0])
        self.assertEqual(name_of(tensor.__dlpack__()), LEGACY)
        self.assertEqual(name_of(tensor.__dlpack__(max_version=(0, 8))), LEGACY)
        for version in ((1, 0), (1, 3), (2, 0)):
            self.assertEqual(name_of(tensor.__dlpack__(max_version=version)), VERSIONED)
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        gc.collect()
        self.assertEqual(self.ctx.exports(), (0, 0))  # capsules that nobody used give back too

    def test_requests_that_cannot_be_met(self):
        tensor = self.ctx.constant([1.0])
        for request in ({"stream": 1}, {"stream": -1}, {"dl_device": (2, 0)}, {"dl_device": (2, 0), "copy": False}):
            with self.assertRaises(BufferError):
                tensor.__dlpack__(**request)
        self.assertEqual(np.from_dlpack(tensor, device="cpu", copy=False)[0], 1)

    def test_a_copy_may_be_written(self):
        tensor = self.ctx.constant([1.0, 2.0])
        array = np.from_dlpack(tensor, copy=True)
        array[0] = 9
        self.assertEqual((tensor.tolist(), self.ctx.exports()), ([1, 2], (0, 0)))

    def test_memory_lives_as_long_as_the_array(self):
        array = np.from_dlpack(self.ctx.fill([1 << 20], 7.0))
        current = self.ctx.memory_info("GPU:0")["current"]
        self.assertGreaterEqual(current, 4 << 20)
        for value in range(4):  # the block is not given to others, moved or unmapped
            self.ctx.fill([1 << 20], float(value))
            self.ctx.trim()
        self.assertTrue((array == 7).all())
        del array
        self.assertLess(self.ctx.memory_info("GPU:0")["current"], current)

    def test_close_says_how_many_arrays_are_left(self):
        tensor = self.ctx.fill([1 << 18], 1.0)
        arrays = [np.from_dlpack(tensor) for _ in range(3)]
        with self.assertRaisesRegex(BufferError, r"3 arrays \(3.00MiB\) still use"):
            self.ctx.close()
        self.assertEqual(tensor.numpy()[0], 1)  # nothing happened
        self.assertIsInstance(lgpu.ExportsInUseError("x"), lgpu.Error)
        del arrays

    def test_a_with_block_leaves_the_rest_to_the_last_array(self):
        with lgpu.Context(memory_limit="32MiB", endpoint=ENDPOINT) as ctx:
            tensor = ctx.constant([1.0, 2.0])
            array = np.from_dlpack(tensor)
        with self.assertRaises(RuntimeError):
            tensor.numpy()
        self.assertEqual(array.tolist(), [1, 2])
        self.assertEqual(ctx.exports(), (1, 8))
        thread = threading.Thread(target=lambda held: held.clear(), args=([array],))
        del array
        thread.start()
        thread.join()
        gc.collect()
        self.assertEqual(ctx.exports(), (0, 0))
        ctx.close()

    def test_close_names_arrays_that_go_meanwhile(self):
        busy = functools.partial(sum, range(1 << 20))
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        sys.setswitchinterval(1e-6)

        def is_named():
            ctx = lgpu.Context(memory_limit="32MiB", endpoint=ENDPOINT)
            arrays = [np.from_dlpack(ctx.constant([1.0]))]
            go = threading.Lock()
            go.acquire()
            # Functions in C, between which the interpreter gives its lock to no other thread. While this thread is busy, the
            # other asks for the lock; it gets it when close lets it go, and is busy until close wants it back.
            ends = threading.Thread(target=lambda: list(map(operator.call, [go.acquire, busy, arrays.clear])))
            ends.start()
            try:
                list(map(operator.call, [go.release, busy, ctx._core.close]))
                named = False
            except lgpu.ExportsInUseError:
                named = True
            ends.join()
            ctx.close()
            return named

        # A thread that the kernel holds up between letting the lock go and looking at the arrays finds none, and rightly closes.
        self.assertTrue(any(is_named() for _ in range(100)))

    # In.

    def test_numpy_goes_in_as_a_copy(self):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        tensor = self.ctx.from_dlpack(array)
        array[0, 0] = 9
        np.testing.assert_array_equal(tensor.numpy(), [[0, 1, 2], [3, 4, 5]])

    def test_old_producers_and_capsules_go_in(self):
        old = Producer(np.ones(2, np.float32), old=True)
        self.assertEqual(self.ctx.from_dlpack(old).tolist(), [1, 1])
        new = Producer(np.ones(2, np.int64))
        self.assertEqual(self.ctx.from_dlpack(new).tolist(), [1, 1])
        self.assertEqual(new.asked, {"max_version": (1, 0)})
        capsule = np.ones(2, np.float32).__dlpack__()
        self.assertEqual(self.ctx.from_dlpack(capsule).tolist(), [1, 1])
        with self.assertRaisesRegex(BufferError, "used once"):
            self.ctx.from_dlpack(capsule)

    def test_what_does_not_go_in_is_named(self):
        wrong = [
            (ValueError, "strided", np.ones((4, 4), np.float32)[:, ::2]),
            (ValueError, "strided", np.ones((2, 3), np.float32).T),
            (ValueError, "code 1, 8 bits", np.ones(2, np.uint8)),
            (ValueError, "not an element type of lgpu", np.ones(2, np.complex64)),
            (BufferError, r"device \(2, 0\)", Producer(np.ones(2, np.float32), device=(2, 0))),
            (TypeError, "no __dlpack__", [1.0]),
        ]
        for kind, text, array in wrong:
            with self.assertRaisesRegex(kind, text):
                self.ctx.from_dlpack(array)
        # Dimensions of one element have any stride.
        self.assertEqual(self.ctx.from_dlpack(np.ones((3, 2), np.float32)[:, :1].copy()).shape, (3, 1))

    def test_an_array_without_elements_may_have_any_strides(self):
        for shape, strides in (((0, 2), (4, 2)), ((2, 0, 2), (9, 7, 2)), ((0, 3), (1, 5))):
            capsule, kept = capsule_of(shape, strides)
            tensor = self.ctx.from_dlpack(capsule)
            self.assertEqual((tensor.shape, tensor.dtype_name), (shape, "float32"))
            del kept
        empty = np.ones((4, 4), np.float32)[:0, ::2]
        self.assertEqual(self.ctx.from_dlpack(empty).shape, empty.shape)

    def test_a_producers_memory_is_let_go(self):
        array = np.ones(2, np.float32)
        count = sys.getrefcount(array)
        self.ctx.from_dlpack(array)
        self.assertRaises(ValueError, self.ctx.from_dlpack, array.astype(np.uint8))
        self.assertEqual(sys.getrefcount(array), count)

    # Other libraries.

    @unittest.skipUnless(HAS["jax"], "jax is not installed")
    def test_jax(self):
        import jax
        tensor = self.ctx.constant([[1.0, 2.0]])
        array = jax.dlpack.from_dlpack(tensor)
        self.assertEqual(array.unsafe_buffer_pointer(), self.address_of(tensor))
        self.assertEqual((array + 1).tolist(), [[2, 3]])
        self.assertEqual(self.ctx.from_dlpack(jax.numpy.arange(3, dtype="float32")).tolist(), [0, 1, 2])
        self.assertEqual(self.ctx.exports()[0], 1)
        del array

    @unittest.skipUnless(HAS["jax"] and HAS["ml_dtypes"], "jax is not installed")
    def test_bfloat16_by_jax(self):
        import jax
        tensor = self.ctx.from_dlpack(jax.numpy.ones(3, "bfloat16"))
        self.assertEqual((tensor.dtype_name, tensor.tolist()), ("bfloat16", [1, 1, 1]))
        self.assertEqual(jax.dlpack.from_dlpack(tensor).dtype, "bfloat16")

    @unittest.skipUnless(HAS["tensorflow"], "tensorflow is not installed")
    def test_tensorflow(self):
        import tensorflow as tf
        made = tf.experimental.dlpack.from_dlpack(self.ctx.constant([[1.0, 2.0]]).__dlpack__())
        self.assertEqual((made + 1).numpy().tolist(), [[2, 3]])
        capsule = tf.experimental.dlpack.to_dlpack(tf.constant([5.0, 6.0]))
        self.assertEqual(self.ctx.from_dlpack(capsule).tolist(), [5, 6])
        del made

    @unittest.skipUnless(HAS["torch"], "torch is not installed")
    def test_torch(self):
        import torch
        tensor = self.ctx.constant([1.0, 2.0])
        shared = torch.from_dlpack(tensor)
        self.assertEqual(shared.data_ptr(), self.address_of(tensor))
        copied = torch.from_dlpack(tensor, copy=True)
        copied[0] = 9
        self.assertEqual(tensor.tolist(), [1, 2])
        self.assertEqual(self.ctx.from_dlpack(torch.arange(3)).tolist(), [0, 1, 2])


if __name__ == "__main__":
    unittest.main()
