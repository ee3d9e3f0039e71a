"""DLPack on a card of the fake driver, behind a daemon. The consumer here is this test: it reads capsules as the protocol
says, and orders its work by calls of the driver's."""

import ctypes
import gc
import threading
import time
import unittest

import numpy as np

import lgpu

MIB = 1 << 20
CUDA_SUCCESS, CUDA_ERROR_NOT_READY = 0, 600
NON_BLOCKING = 1
LEGACY, PER_THREAD = 1, 2
READ_ONLY, IS_COPIED = 1, 2
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("array", Array), ("manager", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), ("array", Array)]


def capsule_call(name, result, *arguments):
    call = getattr(ctypes.pythonapi, name)
    call.restype, call.argtypes = result, arguments
    return call


get_name = capsule_call("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
get_pointer = capsule_call("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
set_name = capsule_call("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


class Consumed:
    """What a consumer keeps of a capsule; drop ends it."""

    names = {b"dltensor": (Managed, b"used_dltensor"), b"dltensor_versioned": (ManagedVersioned, b"used_dltensor_versioned")}

    def __init__(self, capsule):
        self.name = get_name(capsule)
        kind, self.used = self.names[self.name]
        self.address = get_pointer(capsule, self.name)
        self.managed = kind.from_address(self.address)
        set_name(capsule, self.used)

    def __getattr__(self, name):
        return getattr(self.managed.array, name)

    def drop(self):
        self.managed.deleter(self.address)


class Driver:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.callbacks = []
        context = ctypes.c_void_p()
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.check("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        return getattr(self.cuda, name)(*arguments)

    def check(self, name, *arguments):
        result = self.call(name, *arguments)
        assert result == CUDA_SUCCESS, f"{name} gave {result}"

    def stream(self):
        made = ctypes.c_void_p()
        self.check("cuStreamCreate", ctypes.byref(made), NON_BLOCKING)
        return made.value

    def destroy(self, stream):
        self.check("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def is_busy(self, stream):
        result = self.call("cuStreamQuery", ctypes.c_void_p(stream))
        assert result in (CUDA_SUCCESS, CUDA_ERROR_NOT_READY), result
        return result == CUDA_ERROR_NOT_READY

    def becomes_idle(self, stream):
        """Whether the stream has nothing to do before long: freed memory puts fences on streams, which are done at once, at any
        time. A stream that waits for a blocked one does so for longer."""
        deadline = time.monotonic() + 30
        while self.is_busy(stream):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def wait(self, stream):
        self.check("cuStreamSynchronize", ctypes.c_void_p(stream))

    def block(self, stream):
        """Keeps the stream busy until the event that it returns is set."""
        go = threading.Event()
        callback = HostFunction(lambda _: go.wait(60) and None)
        self.callbacks.append(callback)
        self.check("cuLaunchHostFunc", ctypes.c_void_p(stream), callback, None)
        return go

    def read(self, array, dtype):
        shape = [array.shape[i] for i in range(array.ndim)]
        values = np.empty(shape, dtype)
        self.check("cuMemcpyDtoH_v2", ctypes.c_void_p(values.ctypes.data), ctypes.c_uint64(array.data + array.byte_offset),
                   ctypes.c_size_t(values.nbytes))
        return values


class Producer:
    """A tensor of lgpu's behind the protocol, as another library's array."""

    def __init__(self, tensor, device=None, old=False):
        self.tensor, self.device, self.old, self.asked = tensor, device or tensor.__dlpack_device__(), old, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **asked):
        self.asked.append(asked)
        if self.old and "max_version" in asked:
            raise TypeError("unexpected keyword argument")
        return self.tensor.__dlpack__(**asked)


class CudaDlpackTest(unittest.TestCase):
    def setUp(self):
        self.ctx = lgpu.Context(memory_limit="32MiB", allocation_timeout=0)
        self.driver = Driver()
        self.held = []

    def tearDown(self):
        for consumed in self.held:
            consumed.drop()
        gc.collect()
        self.assertEqual(self.ctx.exports(), (0, 0))
        self.ctx.close()

    def consume(self, tensor, **asked):
        self.held.append(Consumed(tensor.__dlpack__(**asked)))
        return self.held[-1]

    def drop(self, consumed):
        self.held.remove(consumed)
        consumed.drop()

    def current(self):
        gc.collect()
        return self.ctx.memory_info("GPU:0")["current"]

    def home(self, ctx=None):
        """The stream of the Context's GPU, as its from_dlpack tells it to producers."""
        producer = Producer(self.ctx.constant([1.0]))
        (ctx or self.ctx).from_dlpack(producer)
        return producer.asked[0]["stream"]

    # Out.

    def test_the_memory_is_given_without_a_copy(self):
        values = np.arange(6, dtype=np.float32).reshape(2, 3)
        tensor = self.ctx.constant(values)
        self.assertEqual(tensor.__dlpack_device__(), (2, 0))
        first, second = self.consume(tensor, max_version=(1, 0)), self.consume(tensor, stream=LEGACY)
        self.assertEqual((first.name, second.name), (b"dltensor_versioned", b"dltensor"))
        self.assertEqual((first.managed.major, first.managed.flags), (1, READ_ONLY))
        for array in (first, second):
            self.assertEqual((array.device_type, array.device_id, array.code, array.bits, array.lanes), (2, 0, 2, 32, 1))
            self.assertEqual([(array.shape[i], array.strides[i]) for i in range(array.ndim)], [(2, 3), (3, 1)])
            self.assertEqual(array.data, first.data)
            np.testing.assert_array_equal(self.driver.read(array, np.float32), values)
        # What the consumer writes is what the tensor has: it is the tensor's memory.
        self.driver.check("cuMemsetD8_v2", ctypes.c_uint64(first.data), ctypes.c_ubyte(0), ctypes.c_size_t(4 * 6))
        self.assertEqual(tensor.tolist(), [[0, 0, 0], [0, 0, 0]])

    def test_tensors_on_the_cpu_stay_there(self):
        with self.ctx.device("CPU:0"):
            tensor = self.ctx.constant([1.0, 2.0])
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        self.assertEqual(np.from_dlpack(tensor).tolist(), [1, 2])

    def test_the_consumers_stream_waits_and_this_thread_does_not(self):
        home = self.home()
        own = self.driver.stream()
        for stream, given in ((LEGACY, None), (LEGACY, LEGACY), (PER_THREAD, PER_THREAD), (own, own)):
            go = self.driver.block(home)
            tensor = self.ctx.constant([1.0, 2.0])  # its values are not there yet
            self.assertTrue(self.driver.becomes_idle(stream), f"stream {given}")
            consumed = self.consume(tensor, stream=given)
            self.assertTrue(self.driver.is_busy(stream), f"stream {given}")
            go.set()
            self.driver.wait(stream)
            self.assertEqual(self.driver.read(consumed, np.float32).tolist(), [1, 2])
            self.drop(consumed)
        self.driver.destroy(own)

    def test_minus_one_orders_nothing(self):
        go = self.driver.block(self.home())
        consumed = self.consume(self.ctx.constant([1.0, 2.0]), stream=-1)
        self.assertEqual([self.driver.becomes_idle(stream) for stream in (LEGACY, PER_THREAD)], [True, True])
        go.set()
        self.drop(consumed)

    def test_an_export_keeps_its_block_and_close_counts_it(self):
        tensor = self.ctx.constant(np.full(4 * MIB, 7, np.float32))
        consumed = self.consume(tensor)
        del tensor
        self.assertEqual((self.current(), self.ctx.exports()), (16 * MIB, (1, 16 * MIB)))
        for value in range(3):
            self.ctx.constant(np.full(2 * MIB, value, np.float32))
            self.ctx.trim()
        with self.assertRaisesRegex(BufferError, r"1 array \(16.00MiB\) still uses"):
            self.ctx.close()
        self.assertTrue((self.driver.read(consumed, np.float32) == 7).all())
        self.drop(consumed)
        self.assertEqual((self.current(), self.ctx.exports()), (0, (0, 0)))

    def test_a_with_block_leaves_the_rest_to_the_last_array(self):
        with lgpu.Context(memory_limit="32MiB") as ctx:
            consumed = Consumed(ctx.constant([3.0]).__dlpack__())
        self.assertEqual(ctx.exports(), (1, 4))
        self.assertEqual(self.driver.read(consumed, np.float32).tolist(), [3])
        consumed.drop()
        self.assertEqual(ctx.exports(), (0, 0))
        ctx.close()

    def test_capsules_that_nobody_consumes_give_back(self):
        capsule = self.ctx.constant([1.0]).__dlpack__()
        self.assertEqual(self.ctx.exports(), (1, 4))
        del capsule
        self.assertEqual((self.current(), self.ctx.exports()), (0, (0, 0)))

    def test_memory_is_not_used_again_before_work_on_a_default_stream_is_done(self):
        for stream in (None, PER_THREAD):
            tensor = self.ctx.constant(np.full(5 * MIB, 7, np.float32))
            consumed = self.consume(tensor, stream=stream)
            go = self.driver.block(stream or LEGACY)
            del tensor
            self.drop(consumed)  # waits for nothing
            made = []
            maker = threading.Thread(target=lambda: made.append(self.ctx.constant(np.zeros(5 * MIB, np.float32)).numpy()))
            maker.start()
            maker.join(0.3)
            self.assertTrue(maker.is_alive())
            go.set()
            maker.join(60)
            self.assertFalse(made.pop().any())

    def test_the_end_of_an_array_waits_for_work_on_a_stream_of_the_consumers(self):
        for given in (True, False):  # False: -1, and the consumer uses any stream
            stream = self.driver.stream()
            consumed = self.consume(self.ctx.constant([1.0]), stream=stream if given else -1)
            go = self.driver.block(stream)
            self.driver.destroy(stream)  # which has work, and is no stream any more
            ends = threading.Thread(target=self.drop, args=(consumed,))
            ends.start()
            ends.join(0.3)
            self.assertEqual((ends.is_alive(), self.ctx.exports()), (True, (1, 4)))
            go.set()
            ends.join(60)
            self.assertEqual((self.current(), self.ctx.exports()), (0, (0, 0)))

    def test_copies(self):
        tensor = self.ctx.constant([1.0, 2.0])
        shared, copied = self.consume(tensor, max_version=(1, 0)), self.consume(tensor, max_version=(1, 0), copy=True)
        self.assertNotEqual(copied.data, shared.data)
        self.assertEqual((copied.device_type, copied.managed.flags, self.ctx.exports()), (2, IS_COPIED, (2, 16)))
        self.assertEqual(self.driver.read(copied, np.float32).tolist(), [1, 2])
        self.driver.check("cuMemsetD8_v2", ctypes.c_uint64(copied.data), ctypes.c_ubyte(0), ctypes.c_size_t(8))
        self.assertEqual(tensor.tolist(), [1, 2])
        host = np.from_dlpack(tensor, device="cpu")
        host[0] = 9
        self.assertEqual((host.tolist(), tensor.tolist(), self.ctx.exports()), ([9, 2], [1, 2], (2, 16)))

    def test_a_copy_for_which_there_is_no_memory_is_refused(self):
        tensor = self.ctx.constant(np.zeros(6 * MIB, np.float32))
        with self.assertRaises(lgpu.OutOfMemoryError):
            tensor.__dlpack__(copy=True)

    def test_requests_that_cannot_be_met(self):
        tensor = self.ctx.constant([1.0])
        gone = self.driver.stream()
        self.driver.destroy(gone)
        wrong = [
            (ValueError, "stream=0 may be any", {"stream": 0}),
            (ValueError, "stream=-2 is no stream", {"stream": -2}),
            (ValueError, "is no stream of GPU 0's primary context", {"stream": gone}),
            (TypeError, "stream is 1.0", {"stream": 1.0}),
            (TypeError, "stream is True", {"stream": True}),
            (OverflowError, "", {"stream": 1 << 70}),
            (BufferError, r"dl_device=\(2, 1\).*device \(2, 0\) or, as a copy", {"dl_device": (2, 1)}),
            (BufferError, "copy=False", {"dl_device": (1, 0), "copy": False}),
            (BufferError, "the CPU, which has no streams", {"dl_device": (1, 0), "stream": 1}),
        ]
        for kind, text, asked in wrong:
            with self.assertRaisesRegex(kind, text):
                tensor.__dlpack__(**asked)
        with self.assertRaises((BufferError, RuntimeError)):
            np.from_dlpack(tensor)  # numpy has no memory of GPUs
        self.assertEqual(self.ctx.exports(), (0, 0))

    # In.

    def test_an_array_of_the_card_is_copied_on_the_card(self):
        values = np.arange(1 << 17, dtype=np.int64).reshape(1 << 8, 1 << 9)
        for old in (False, True):
            producer = Producer(self.ctx.constant(values), old=old)
            with lgpu.Context(memory_limit="32MiB") as other:
                tensor = other.from_dlpack(producer)
                np.testing.assert_array_equal(tensor.numpy(), values)
                self.assertTrue(tensor.device.endswith("GPU:0"))
                asked = producer.asked[-1]
                self.assertGreater(asked.pop("stream"), PER_THREAD)
                self.assertEqual(asked, {} if old else {"max_version": (1, 0)})
                self.assertEqual(other.memory_info()["peak"], MIB)  # one copy
            self.assertEqual(self.ctx.exports(), (0, 0))  # let go
        self.assertEqual(self.ctx.from_dlpack(Producer(self.ctx.constant(np.zeros((2, 0), np.float32)))).shape, (2, 0))

    def test_the_copy_waits_for_the_producers_work(self):
        go = self.driver.block(self.home())
        tensor = self.ctx.constant([5.0, 6.0])
        with lgpu.Context(memory_limit="32MiB") as other:
            made = []
            reader = threading.Thread(target=lambda: made.append(other.from_dlpack(tensor)))
            reader.start()
            reader.join(0.3)
            self.assertTrue(reader.is_alive())
            go.set()
            reader.join(60)
            self.assertEqual(made.pop().tolist(), [5, 6])

    def test_scopes_say_where_the_copy_lies(self):
        producer = Producer(self.ctx.constant([5.0, 6.0]))
        with lgpu.Context(devices=2, memory_limit="8MiB") as two:
            for scope, device in ((None, "GPU:0"), ("GPU:1", "GPU:1"), ("CPU:0", "CPU:0")):
                with two.device(scope):
                    tensor = two.from_dlpack(producer)
                self.assertTrue(tensor.device.endswith(device), tensor.device)
                self.assertEqual(tensor.tolist(), [5, 6])
            self.assertEqual([two.memory_info(f"GPU:{i}")["current"] for i in (0, 1)], [0, 0])

    def test_what_does_not_go_in_is_named(self):
        tensor = self.ctx.constant([1.0])
        with self.assertRaisesRegex(BufferError, r"device \(2, 1\): no logical GPU of this Context is on CUDA device 1: "
                                                 r".*GPU:0 is on CUDA device 0; copy the array to the host"):
            self.ctx.from_dlpack(Producer(tensor, device=(2, 1)))
        with self.assertRaisesRegex(BufferError, r"capsule holds an array on DLPack device \(2, 0\).*pass the array"):
            self.ctx.from_dlpack(tensor.__dlpack__())
        with lgpu.Context(memory_limit="32MiB", endpoint="local:1x64MiB") as simulated:
            with self.assertRaisesRegex(BufferError, "it has no real GPU; copy the array to the host"):
                simulated.from_dlpack(tensor)
        self.ctx.close()
        with self.assertRaisesRegex(RuntimeError, "the Context is closed"):
            self.ctx.from_dlpack(Producer(tensor, device=(2, 0)))


if __name__ == "__main__":
    unittest.main()
