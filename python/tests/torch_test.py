"""lgpu.torch on a card of the fake driver, behind a daemon: the functions that PyTorch calls, by ctypes, with a stand-in for its
libc10; and with PyTorch itself, as far as it goes without the CUDA runtime.

torch_test.py STAND_IN_C10 ENVIRONMENT LIBRARIES   PyTorch is in the ENVIRONMENT of scripts/python-env, the toolkit's libraries
                                                   are in LIBRARIES; without them the tests with PyTorch are skipped"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

import lgpu
from lgpu import _core

MIB = 1 << 20
STAND_IN = ctypes.CDLL(sys.argv[1])
OWN = ctypes.CDLL(_core.__file__)
SOURCE = pathlib.Path(__file__).with_name("stand_in_c10.cc")
OUT_OF_MEMORY, RUNTIME_ERROR = 1, 2
ENVIRONMENT = pathlib.Path(sys.argv[2])
# Before the libraries of the fake driver, one of which is a cuBLASLt.
LIBRARIES = f"{sys.argv[3]}:{os.environ.get('LD_LIBRARY_PATH', '')}"


def function(name):
    return ctypes.cast(getattr(OWN, name), ctypes.c_void_p)


def text_of(call, *arguments):
    """(what was thrown, its text)"""
    text = ctypes.create_string_buffer(4096)
    return call(*arguments, text, ctypes.c_size_t(len(text))), text.value.decode()


def malloc(size, device=0, stream=0, name="lgpu_torch_malloc"):
    """(address, what was thrown, its text)"""
    address = ctypes.c_void_p()
    thrown, text = text_of(STAND_IN.call_malloc, function(name), ctypes.c_ssize_t(size), device, ctypes.c_void_p(stream),
                           ctypes.byref(address))
    return address.value, thrown, text


def free(address, device=0, stream=0, name="lgpu_torch_free"):
    getattr(OWN, name)(ctypes.c_void_p(address), ctypes.c_ssize_t(0), device, ctypes.c_void_p(stream))


def record_stream(address, stream):
    return text_of(STAND_IN.call_record_stream, function("lgpu_torch_record_stream"), ctypes.c_void_p(address),
                   ctypes.c_void_p(stream))


class Streams:
    """Streams of the card's primary context, by the driver."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        for call in (lambda: self.driver.cuInit(0), lambda: self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                     lambda: self.driver.cuCtxSetCurrent(context)):
            assert call() == 0

    def make(self):
        stream = ctypes.c_void_p()
        assert self.driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        return stream.value

    @contextlib.contextmanager
    def blocked(self, stream):
        """The stream has work that does not end."""
        go = threading.Event()
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go.wait(60) and None)
        assert self.driver.cuLaunchHostFunc(ctypes.c_void_p(stream), callback, None) == 0
        try:
            yield
        finally:
            go.set()
            assert self.driver.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0


class FunctionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with unittest.TestCase().assertRaisesRegex(lgpu.NotFoundError, "c105Error"):
            _core.torch_find_errors(["/nonexistent/libc10.so"])
        _core.torch_find_errors(["/nonexistent/libc10.so", sys.argv[1]])
        cls.streams = Streams()

    def setUp(self):
        # Otherwise lgpud takes the card with more free memory, which is the other one while a program before this one ends.
        self.memory = lgpu.LogicalMemory("32MiB", allocation_timeout=0, physical_device="0")
        self.number = self.memory.cuda_device
        _core.torch_use(self.number, self.memory._core)

    def tearDown(self):
        _core.torch_leave(self.number)
        self.assertEqual(self.memory.live_blocks(), (0, 0, 0))
        self.assertEqual(STAND_IN.live_errors(), 0)
        self.memory.close()

    def test_memory_comes_from_the_lease_and_goes_back(self):
        self.assertEqual(self.number, 0)
        stream = self.streams.make()
        address, thrown, _ = malloc(4 * MIB, stream=stream)
        self.assertEqual((thrown, self.memory.find(address)), (0, 4 * MIB))
        self.assertEqual([owner for owner in self.memory.snapshot()["blocks"] if owner["op"] == "torch"][0]["bytes"], 4 * MIB)
        free(address, stream=stream)
        self.assertEqual(malloc(0), (None, 0, ""))
        free(None)
        self.memory.forget_stream(stream)

    def test_a_refusal_is_pytorchs_out_of_memory_error_with_lgpus_text(self):
        self.assertEqual(text_of(STAND_IN.throw_own), (OUT_OF_MEMORY, "own: own"))
        held, _, _ = malloc(20 * MIB)
        address, thrown, text = malloc(20 * MIB)
        self.assertEqual((address, thrown), (None, OUT_OF_MEMORY))
        for part in ("lgpu: ", "20.00MiB", "32.00MiB", "torch"):
            self.assertIn(part, text)
        free(held)
        address, thrown, _ = malloc(20 * MIB)
        self.assertEqual(thrown, 0)
        free(address)

    def test_what_is_no_refusal_is_a_runtime_error(self):
        for device, words in ((5, "has ended"), (64, "CUDA device 64"), (-1, "CUDA device -1")):
            address, thrown, text = malloc(MIB, device=device)
            self.assertEqual((address, thrown), (None, RUNTIME_ERROR))
            self.assertIn(words, text)
        for call in ((STAND_IN.call_memory_fraction, function("lgpu_torch_memory_fraction"), ctypes.c_double(0.5), 0),
                     (STAND_IN.call_no_pools, function("lgpu_torch_no_pools"))):
            thrown, text = text_of(*call)
            self.assertEqual(thrown, RUNTIME_ERROR)
            self.assertIn("lgpu.torch.enable", text)

    def test_a_recorded_stream_holds_the_block_when_it_is_freed(self):
        own, other = self.streams.make(), self.streams.make()
        for recorded in (False, True):
            address, _, _ = malloc(20 * MIB, stream=own)
            if recorded:
                self.assertEqual(record_stream(address, other), (0, ""))
            # Without a recorded stream, memory that its own stream freed is there for that stream at once; else it waits for a
            # fence of the other stream first. Its upkeep, a thread of its own, asks for fences at any time.
            with self.streams.blocked(other):
                free(address, stream=own)
                self.assertEqual(self.memory.stats()["fenced"] > 0, recorded)
            self.memory.trim()
        for stream in (own, other):
            self.memory.forget_stream(stream)

    def test_record_stream_of_memory_of_others_does_nothing(self):
        freed, _, _ = malloc(MIB)
        free(freed)
        for address in (None, 0x1000, 0xFFFF0000, freed):
            self.assertEqual(record_stream(address, 0), (0, ""))

    def test_empty_cache_gives_idle_memory_back(self):
        address, _, _ = malloc(20 * MIB)
        free(address)
        self.assertGreater(self.memory.stats()["held"], 0)
        OWN.lgpu_torch_empty_cache()
        self.assertEqual(self.memory.stats()["held"], 0)

    def test_a_free_of_an_unknown_address_is_said(self):
        code = """
            import ctypes, lgpu
            from lgpu import _core
            with lgpu.LogicalMemory("16MiB") as memory:
                _core.torch_use(0, memory._core)
                ctypes.CDLL(_core.__file__).lgpu_torch_free(ctypes.c_void_p(0x1000), ctypes.c_ssize_t(1), 0, None)
            """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertIn("lgpu.torch: the memory at 0x1000 was not freed: ", done.stderr)

    def test_a_pool_keeps_its_memory_until_its_blocks_are_freed(self):
        ctx = lgpu.Context(memory_limit="16MiB")
        lease = ctx.lease
        slot = _core.torch_take_pool(ctx.memory()._core)
        name = f"lgpu_torch_pool_{{}}_{slot}"
        address, thrown, _ = malloc(MIB, name=name.format("malloc"))
        self.assertEqual(thrown, 0)
        with ctx:
            pass
        _core.torch_leave_pool(slot)
        self.assertIn("has ended", malloc(MIB, name=name.format("malloc"))[2])
        self.assertIn(lease, [one["id"] for one in lgpu.leases()])
        free(address, name=name.format("free"))
        self.assertNotIn(lease, [one["id"] for one in lgpu.leases()])
        self.assertEqual(malloc(MIB, name=name.format("malloc"))[1], RUNTIME_ERROR)

    def test_pools_are_counted(self):
        slots = [_core.torch_take_pool(self.memory._core) for _ in range(16)]
        self.assertEqual(sorted(slots), list(range(16)))
        with self.assertRaisesRegex(lgpu.ResourceExhaustedError, "16 pools"):
            _core.torch_take_pool(self.memory._core)
        for slot in slots:
            _core.torch_leave_pool(slot)

    def test_an_allocation_that_waits_lets_the_thread_run_that_frees(self):
        with lgpu.LogicalMemory("32MiB", allocation_timeout=20) as memory:
            slot = _core.torch_take_pool(memory._core)
            holding = ctypes.PyDLL(_core.__file__)  # calls with the interpreter's lock
            for kind in ("malloc", "free"):
                getattr(holding, f"lgpu_torch_pool_{kind}_{slot}").restype = ctypes.c_void_p
            started, go, held = threading.Event(), threading.Event(), []

            def use(kind, *arguments):
                return getattr(holding, f"lgpu_torch_pool_{kind}_{slot}")(*arguments, 0, None)

            # At the limit an allocation waits where another thread has used the device of late.
            def other():
                held.append(use("malloc", ctypes.c_ssize_t(24 * MIB)))
                started.set()
                go.wait()
                use("free", ctypes.c_void_p(held.pop()), ctypes.c_ssize_t(0))

            thread = threading.Thread(target=other)
            thread.start()
            started.wait()
            go.set()
            address = use("malloc", ctypes.c_ssize_t(24 * MIB))
            self.assertTrue(address)
            use("free", ctypes.c_void_p(address), ctypes.c_ssize_t(0))
            thread.join()
            _core.torch_leave_pool(slot)


def run(code, python=sys.executable, **environment):
    done = subprocess.run([python, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def run_with_torch(code, cards="0", **environment):
    return run(code, ENVIRONMENT / "bin/python", LD_LIBRARY_PATH=LIBRARIES, CUDA_VISIBLE_DEVICES=cards, **environment)


def why_no_torch():
    """Nothing where PyTorch can be imported."""
    if not (ENVIRONMENT / "complete").exists():
        return f"{ENVIRONMENT} is not complete; scripts/python-env python/tests/torch-requirements.txt makes it"
    code, _, errors = run_with_torch("import torch")
    return "" if code == 0 else "PyTorch cannot be imported: " + errors.strip().rpartition("\n")[2]


NO_TORCH = why_no_torch()


@unittest.skipIf(NO_TORCH, NO_TORCH)
class TorchTest(unittest.TestCase):
    """PyTorch's CUDA runtime takes no fake driver, so no tensor is made here: scripts/gpu-check does that."""

    def test_enable_sets_the_allocator_the_hooks_and_the_statistics(self):
        code, out, errors = run_with_torch("""
            import ctypes, lgpu, torch
            for name in ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats"):
                assert hasattr(torch._C, name), name
            assert hasattr(torch.cuda.memory, "memory_summary")
            with lgpu.Context(memory_limit="32MiB") as ctx:
                lgpu.torch.enable()
                memory = ctx.memory()
                held = memory.allocate("4MiB")
                stats = torch._C._cuda_memoryStats(0)
                print(stats["allocated_bytes"]["all"], torch._C._cuda_memoryStats(7))
                memory.free(held)
                torch._C._cuda_resetPeakMemoryStats(0)
                print(torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"])
                print(torch.cuda.memory_summary() == ctx.memory_summary())
                for call in (lgpu.torch.enable, lgpu.torch.pool().__enter__):
                    try: call()
                    except RuntimeError as error: print(type(error).__name__)
            """)
        self.assertEqual((code, out), (0, f"{{'current': {4 * MIB}, 'peak': {4 * MIB}}} {{}}\n0\nTrue\n"
                                          "FailedPreconditionError\nFailedPreconditionError\n"), errors)

    def test_the_figures_of_the_card_are_the_limits(self):
        code, out, errors = run_with_torch("""
            import lgpu, torch, types
            card = types.SimpleNamespace(name="Card", major=9, total_memory=80 << 30)
            torch.cuda.get_device_properties = lambda device=None: card
            torch.cuda.mem_get_info = lambda device=None: (1, 2)
            with lgpu.Context(memory_limit="32MiB") as ctx:
                lgpu.torch.enable()
                held = ctx.memory().allocate("4MiB")
                for call in (torch.cuda.mem_get_info, torch.cuda.memory.mem_get_info): print(call(0), call("cuda:1"))
                mine = torch.cuda.get_device_properties(0)
                print(mine.name, mine.major, mine.total_memory, torch.cuda.get_device_properties("cuda:1") is card)
                ctx.memory().free(held)
                ctx.resize("GPU:0", "16MiB")
                print(torch.cuda.mem_get_info(0), mine.total_memory)
            """)
        pair = f"({28 * MIB}, {32 * MIB}) (1, 2)\n"
        self.assertEqual((code, out), (0, f"{2 * pair}Card 9 {32 * MIB} True\n({16 * MIB}, {16 * MIB}) {16 * MIB}\n"), errors)

    def test_cards_that_are_peers_are_refused(self):
        code, out, errors = run_with_torch("""
            import lgpu, torch
            with lgpu.Context(devices=2, memory_limit="200MiB") as ctx:
                try: lgpu.torch.enable(ctx)
                except lgpu.FailedPreconditionError as error: print(error)
                lgpu.torch.enable(ctx, device="GPU:1")
            """, cards="0,1")
        self.assertEqual(code, 0, errors)
        self.assertIn("CUDA devices 0 and 1 are peers", out)

    def test_the_hooks_are_called_by_pytorch(self):
        code, out, errors = run_with_torch("""
            import lgpu, torch
            with lgpu.Context(memory_limit="32MiB") as ctx:
                lgpu.torch.enable(ctx)
                memory = ctx.memory()
                memory.free(memory.allocate("4MiB"))
                print(memory.stats()["held"] > 0)
                torch._C._cuda_emptyCache()
                print(memory.stats()["held"])
                for call in (lambda: torch._C._cuda_setMemoryFraction(0.5, 0), lambda: torch._C._cuda_beginAllocateToPool(0, (0, 1))):
                    try: call()
                    except RuntimeError as error: print("lgpu.torch.enable" in str(error))
            """)
        self.assertEqual((code, out), (0, "True\n0\nTrue\nTrue\n"), errors)

    @unittest.skipUnless(shutil.which("c++"), "there is no compiler for PyTorch's headers")
    def test_the_error_is_pytorchs_own(self):
        torch, = ENVIRONMENT.glob("lib/python3.*/site-packages/torch")
        with tempfile.TemporaryDirectory(prefix="lgpu-") as folder:
            made = f"{folder}/with_torch.so"
            subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", "-DLGPU_WITH_TORCH", f"-I{torch}/include", f"-L{torch}/lib",
                            "-o", made, SOURCE, "-lc10"], check=True)
            code, out, errors = run_with_torch(f"""
                import ctypes, torch, lgpu
                from lgpu import _core
                lgpu.torch._find_errors()
                catch = ctypes.CDLL({made!r})
                with lgpu.LogicalMemory("16MiB", allocation_timeout=0) as memory:
                    _core.torch_use(0, memory._core)
                    malloc = ctypes.cast(ctypes.CDLL(_core.__file__).lgpu_torch_malloc, ctypes.c_void_p)
                    text, address = ctypes.create_string_buffer(4096), ctypes.c_void_p()
                    print(catch.call_malloc(malloc, ctypes.c_ssize_t(64 << 20), 0, None, ctypes.byref(address), text,
                                            ctypes.c_size_t(len(text))), b"64.00MiB" in text.value)
                """)
        self.assertEqual((code, out), (0, f"{OUT_OF_MEMORY} True\n"), errors)

    def test_expandable_segments_and_simulated_gpus_are_refused(self):
        code, out, errors = run_with_torch("""
            import lgpu
            for endpoint in ("local:1x64MiB", None):
                with lgpu.Context(memory_limit="32MiB", endpoint=endpoint) as ctx:
                    try:
                        with lgpu.torch.pool(): pass
                    except ValueError as error: print(error)
                    if endpoint:
                        try: lgpu.torch.enable(ctx)
                        except ValueError as error: print(error)
            """, PYTORCH_ALLOC_CONF="expandable_segments: True")
        self.assertEqual(code, 0, errors)
        self.assertEqual(out.count("expandable_segments"), 2)
        self.assertIn("GPU:0 is simulated; lgpu.torch needs a Context on real GPUs", out)


class WithoutTheLibrariesTest(unittest.TestCase):
    def test_a_library_that_is_missing_is_named(self):
        for name, project in (("torch", "PyTorch"), ("cupy", "CuPy"), ("rmm", "RMM"), ("numba", "Numba")):
            code, out, errors = run(f"""
                import sys
                sys.modules["{name}"] = None
                import lgpu
                try: import lgpu.{name}
                except ModuleNotFoundError as error: print(error)
                try: from lgpu import {name}
                except ModuleNotFoundError as error: print(error)
                try: lgpu.{name}
                except AttributeError as error: print(error)
                print(hasattr(lgpu, "{name}"))
                """)
            needs = f"lgpu.{name} needs {project}, which is not installed here\n"
            self.assertEqual((code, errors, out), (0, "", f"{3 * needs}False\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
