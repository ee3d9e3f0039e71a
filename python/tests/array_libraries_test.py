"""lgpu.cupy and lgpu.rmm on a card of the fake driver, behind a daemon. Both libraries need the CUDA runtime, so stand-ins of
theirs make the documented calls: scripts/gpu-check runs the libraries themselves."""

import contextlib
import gc
import importlib
import sys
import threading
import types
import unittest

import lgpu

MIB = 1 << 20


class Stream:
    """As CuPy's."""

    def __init__(self, handle=0):
        self.ptr = handle


class RmmStream:
    """As RMM's."""

    def __init__(self, handle=0):
        self._handle = handle

    def __cuda_stream__(self):
        return (0, self._handle)


def stand_in(name, **parts):
    module = types.ModuleType(name)
    module.__dict__.update(parts)
    return module


class CupyTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(sys.modules.pop, "lgpu.cupy", None)
        self.addCleanup(sys.modules.pop, "cupy")
        self.stream = Stream()

        class PythonFunctionAllocator:
            def __init__(self, malloc, free):
                self.functions = (malloc, free)

            def malloc(self, size):
                raise AssertionError("the test calls the functions itself")

        def set_allocator(malloc):
            self.functions = malloc.__self__.functions

        sys.modules["cupy"] = stand_in("cupy", cuda=types.SimpleNamespace(
            PythonFunctionAllocator=PythonFunctionAllocator, set_allocator=set_allocator,
            get_current_stream=self.current_stream))
        self.adaptor = importlib.import_module("lgpu.cupy")

    def current_stream(self, device):
        return self.stream

    def test_arrays_that_a_garbage_collection_frees_during_a_call_do_not_block_it(self):
        with lgpu.Context(memory_limit="32MiB") as ctx:
            self.adaptor.enable()
            malloc, free = self.functions
            dead = [malloc(MIB, 0)]

            class Handle(int):
                def __hash__(self):  # as a collection that begins inside the adaptor's call
                    while dead:
                        free(dead.pop(), 0)
                    return int.__hash__(self)

            self.stream = Stream(Handle(2))
            caller = threading.Thread(target=malloc, args=(MIB, 0), daemon=True)
            caller.start()
            caller.join(60)
            self.assertFalse(caller.is_alive())
            self.assertEqual(ctx.memory_info()["current"], MIB)

    def test_a_block_is_freed_although_its_last_stream_cannot_be_used(self):
        with lgpu.Context(memory_limit="32MiB") as ctx:
            self.adaptor.enable()
            malloc, free = self.functions
            address = malloc(MIB, 0)
            self.stream = Stream(12345)  # no stream of the driver's
            with self.assertRaises(Exception):
                free(address, 0)
            self.assertEqual(ctx.memory_info()["current"], 0)

    def test_the_context_stays_open_while_cupy_may_allocate(self):
        self.adaptor.enable(lgpu.Context(memory_limit="32MiB"))
        gc.collect()
        malloc, free = self.functions
        free(malloc(MIB, 0), 0)

    def test_arrays_are_in_the_lease_and_go_back(self):
        with lgpu.Context(memory_limit="32MiB", allocation_timeout=0) as ctx:
            self.adaptor.enable()
            malloc, free = self.functions
            address = malloc(4 * MIB, 0)
            self.assertEqual(ctx.memory().find(address), 4 * MIB)
            with self.assertRaises(lgpu.OutOfMemoryError) as caught:
                malloc(32 * MIB, 0)
            self.assertEqual(caught.exception.refusal["owners"][0]["op"], "cupy")
            self.stream = Stream(2)
            free(address, 0)  # on another stream than it was made on
            self.assertEqual(ctx.memory_info()["current"], 0)
            with self.assertRaisesRegex(RuntimeError, "no logical GPU on CUDA device 3; it has some on 0"):
                malloc(1, 3)

    def test_logical_gpus_of_one_card_are_told_apart(self):
        with lgpu.Context(devices=2, memory_limit="32MiB") as ctx:
            with self.assertRaisesRegex(ValueError, "GPU:0 and GPU:1 are both on CUDA device 0.*device=\"GPU:1\""):
                self.adaptor.enable(ctx)
            self.adaptor.enable(ctx, device="GPU:1")
            malloc, free = self.functions
            address = malloc(MIB, 0)
            self.assertEqual((ctx.memory_info("GPU:0")["current"], ctx.memory_info("GPU:1")["current"]), (0, MIB))
            free(address, 0)


class RmmTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(sys.modules.pop, "lgpu.rmm", None)
        self.addCleanup(sys.modules.pop, "rmm")
        self.resources = {}
        sys.modules["rmm"] = stand_in("rmm", __version__="26.10.00", mr=types.SimpleNamespace(
            CallbackMemoryResource=lambda allocate, deallocate: (allocate, deallocate),
            set_per_device_resource=self.resources.__setitem__))
        self.adaptor = importlib.import_module("lgpu.rmm")

    def test_the_context_stays_open_while_rmm_may_allocate(self):
        self.adaptor.enable(lgpu.Context(memory_limit="32MiB"))
        gc.collect()
        (allocate, deallocate), = self.resources.values()
        deallocate(allocate(MIB, RmmStream()), MIB, RmmStream())

    def test_an_rmm_that_tells_no_stream_is_refused(self):
        for version, is_refused in (("23.12.00", True), ("24.02.00", True), ("24.04.00", False), ("25.02.00a12", False),
                                    ("0+unknown", False)):
            self.adaptor.rmm.__version__ = version
            with lgpu.Context(memory_limit="32MiB") as ctx, contextlib.ExitStack() as expected:
                if is_refused:
                    expected.enter_context(self.assertRaisesRegex(lgpu.FailedPreconditionError, f"RMM {version} .* needs RMM 24.04"))
                self.adaptor.enable(ctx)

    def test_both_orders_of_arguments(self):
        with lgpu.Context(memory_limit="32MiB", allocation_timeout=0) as ctx:
            self.adaptor.enable()
            (allocate, deallocate), = self.resources.values()
            self.assertEqual(list(self.resources), [0])
            address = allocate(4 * MIB, RmmStream())
            self.assertEqual(ctx.memory().find(address), 4 * MIB)
            deallocate(address, 4 * MIB, RmmStream())
            address = allocate(RmmStream(2), 4 * MIB, 256)
            deallocate(RmmStream(2), address, 4 * MIB, 256)
            self.assertEqual(ctx.memory_info()["current"], 0)
            with self.assertRaises(MemoryError) as caught:
                allocate(64 * MIB, RmmStream())
            self.assertEqual(caught.exception.refusal["reason"], "limit")
            with self.assertRaisesRegex(TypeError, "RMM 26.10.00 calls a memory resource with"):
                allocate(4 * MIB)


if __name__ == "__main__":
    unittest.main()
