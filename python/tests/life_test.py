"""Threads, the interpreter's lock, fork, spawn, the end of the interpreter, a daemon that dies. With a daemon of two
simulated GPUs of 1 GiB."""

import gc
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import numpy as np

import lgpu

MIB = 1 << 20


def run(code, **environment):
    """A program of its own; its exit code, output and errors."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def sum_in_a_worker(values):
    with lgpu.Context(memory_limit="16MiB") as ctx:
        return lgpu.reduce_sum(ctx.constant(values)).item()


class LifeTest(unittest.TestCase):
    def test_an_op_that_waits_for_memory_lets_other_threads_run(self):
        with lgpu.Context(memory_limit="32MiB", allocation_timeout=20) as ctx:
            held = []
            waiting = threading.Event()

            # A request at the limit waits where another thread has used the device of late.
            def free():
                held.append(ctx.fill([6 * MIB], 1.0))  # 24 MiB
                waiting.set()
                time.sleep(0.2)  # the other thread is inside of fill by now; this one needs the interpreter's lock
                held.clear()

            thread = threading.Thread(target=free)
            thread.start()
            waiting.wait()
            made = ctx.fill([6 * MIB], 2.0)  # does not fit beside the other
            thread.join()
            self.assertEqual(made.shape, (6 * MIB,))
            self.assertEqual(held, [])

    def test_threads_of_numpy_and_lgpu(self):
        with lgpu.Context(devices=2, memory_limit="64MiB") as ctx:
            failures = []

            def work(seed):
                random = np.random.default_rng(seed)
                try:
                    for _ in range(30):
                        a = random.integers(0, 8, (32, 32)).astype(np.float32)
                        with ctx.device(f"GPU:{seed % 2}"):
                            x = ctx.constant(a)
                            made = np.from_dlpack(x @ x)
                        np.testing.assert_array_equal(made, a @ a)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])

    def test_a_context_that_is_garbage_gives_its_lease_back(self):
        with lgpu.Context(memory_limit="900MiB", lease_name="first") as ctx:
            ctx.fill([MIB], 1.0)
        for _ in range(3):
            ctx = lgpu.Context(devices=[lgpu.Device("900MiB", guarantee="900MiB", physical_device="0")])
            ctx.log = lambda line, ctx=ctx: None  # a cycle, as notebooks make them
            del ctx
            gc.collect()

    def test_a_forked_child_finds_its_context_dead(self):
        ctx = lgpu.Context(memory_limit="16MiB")
        tensor = ctx.constant([1.0])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                tensor + tensor
            except RuntimeError as error:
                code = 0 if "fork" in str(error) else 2
            del tensor, ctx
            os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual((tensor + tensor).tolist(), [2])
        ctx.close()

    def test_workers_open_their_own(self):
        with lgpu.Context(memory_limit="16MiB"), multiprocessing.get_context("spawn").Pool(2) as pool:
            self.assertEqual(pool.map(sum_in_a_worker, [[1.0, 2.0], [3.0]]), [3, 3])

    def test_forked_workers_need_a_parent_without_contexts(self):
        program = """
            import multiprocessing, sys
            sys.path.insert(0, {folder!r})
            import lgpu, life_test
            pool = multiprocessing.get_context("fork").Pool
            with pool(2) as workers: print(workers.map(life_test.sum_in_a_worker, [[1.0, 2.0], [3.0]]))
            lgpu.Context(memory_limit="16MiB").close()
            with pool(1) as workers:
                try: workers.map(life_test.sum_in_a_worker, [[1.0]])
                except RuntimeError as error: print("spawn" in str(error))
            """.format(folder=os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual(run(program), (0, "[3.0, 3.0]\nTrue\n", ""))

    def test_the_interpreter_ends_with_everything_open(self):
        code, out, errors = run("""
            import lgpu, numpy as np, threading, sys
            ctx = lgpu.Context(memory_limit="16MiB", log_device_placement=True, log_sink=lambda line: None)
            tensor = ctx.constant([1.0, 2.0])
            array = np.from_dlpack(tensor)
            capsule = tensor.__dlpack__()
            scope = ctx.device("GPU:0"); scope.__enter__()
            sys.kept = (ctx, array, capsule)
            def forever():
                while True: ctx.constant([1.0]) + ctx.constant([1.0])
            threading.Thread(target=forever, daemon=True).start()
            print(array.tolist())
            """)
        self.assertEqual((code, out, errors), (0, "[1.0, 2.0]\n", ""))

    def test_the_end_of_the_interpreter_gives_every_lease_back(self):
        code, out, errors = run("""
            import lgpu, sys
            config = lgpu.Config(strict=True, log_sink=lambda line: config)  # a cycle that no collector sees
            for gpu in config.list_physical_devices("GPU"):
                config.set_logical_device_configuration(gpu, [lgpu.LogicalDeviceConfiguration("64MiB")])
            sys.kept = [lgpu.Context(config=config), lgpu.Context(devices=[lgpu.Device("64MiB", mode="preallocate")])]
            sys.kept += [ctx.fill([1 << 20], 1.0) for ctx in sys.kept]
            """)
        self.assertEqual((code, out, errors), (0, "", ""))
        self.assertEqual([gpu.free for gpu in lgpu.Config().list_physical_devices("GPU")], [1024 * MIB] * 2)

    def test_a_thread_that_stays_in_an_op_does_not_keep_the_interpreter(self):
        code, out, errors = run("""
            import lgpu, sys, threading
            inside, armed = threading.Event(), False
            def sink(line):
                if armed:
                    inside.set()
                    threading.Event().wait()
            ctx = lgpu.Context(memory_limit="16MiB", log_device_placement=True, log_sink=sink)
            tensor = ctx.constant([1.0])
            armed = True
            threading.Thread(target=lambda: tensor + tensor, daemon=True).start()
            inside.wait()
            print("ends")
            """)
        self.assertEqual((code, out, errors), (0, "ends\n", ""))

    def test_a_sink_that_fails_fails_no_op(self):
        code, out, errors = run("""
            import lgpu
            def sink(line): raise ValueError("from the sink")
            ctx = lgpu.Context(endpoint="local:1x64MiB", log_device_placement=True, log_sink=sink)
            print(ctx.constant([1.0]).tolist())
            """)
        self.assertEqual((code, out), (0, "[1.0]\n"))
        self.assertIn("from the sink", errors)

    def test_a_sink_may_drop_its_context_whose_tensors_stay(self):
        for drop in ("kept.clear()", "kept.pop().close()"):
            code, out, errors = run("""
                import lgpu
                kept, armed = [], False
                def sink(line):
                    if armed and kept:
                        try: {drop}
                        except RuntimeError as error: print("after that call" in str(error))
                        print("dropped")
                kept.append(lgpu.Context(endpoint="local:1x64MiB", log_device_placement=True, log_sink=sink))
                tensor = kept[0].constant([1.0, 2.0])
                armed = True
                print((tensor + tensor).shape)
                print((tensor + tensor).shape)
                """.replace("{drop}", drop))
            said = "dropped\n(2,)\n(2,)\n"
            self.assertEqual((code, out), (0, said if "clear" in drop else f"True\n{said}"))

    def test_a_sink_may_drop_the_last_tensor_of_another_context(self):
        code, out, errors = run("""
            import lgpu
            first = lgpu.Context(memory_limit="16MiB")
            lease, kept = first.lease, [first.constant([1.0])]
            del first
            ctx = lgpu.Context(memory_limit="16MiB", log_device_placement=True, log_sink=lambda line: kept.clear())
            tensor = ctx.constant([1.0]) + ctx.constant([1.0])
            print(kept, lease in [one["id"] for one in lgpu.leases()])
            """)
        self.assertEqual((code, out, errors), (0, "[] False\n", ""))

    def test_a_tensor_keeps_its_context_open(self):
        def leases():
            gc.collect()
            return [lease["name"] for lease in lgpu.leases()]

        for made in (lambda ctx: ctx.constant([1.0, 2.0]), lambda ctx: ctx.constant([0.5, 1.0]) + ctx.constant([0.5, 1.0]),
                     lambda ctx: ctx.from_dlpack(np.array([1, 2], np.float32)), lambda ctx: ctx.constant([[1.0, 2.0]]).reshape([2])):
            kept = made(lgpu.Context(memory_limit="16MiB", lease_name="kept"))
            self.assertIn("kept", leases())
            self.assertEqual((kept + kept).tolist(), [2, 4])
            del kept
            self.assertNotIn("kept", leases())
        array = np.from_dlpack(lgpu.Context(memory_limit="16MiB", lease_name="kept").constant([1.0]))
        self.assertEqual((leases(), array.tolist()), (["kept"], [1]))
        del array
        self.assertNotIn("kept", leases())

    def test_close_does_not_wait_for_tensors(self):
        ctx = lgpu.Context(memory_limit="16MiB", lease_name="closed")
        tensor = ctx.constant([1.0])
        ctx.close()
        self.assertNotIn("closed", [lease["name"] for lease in lgpu.leases()])
        self.assertRaisesRegex(RuntimeError, "the Context is closed", tensor.numpy)

    def test_the_end_of_the_interpreter_closes_a_context_that_a_tensor_keeps(self):
        code, out, errors = run("""
            import lgpu, sys
            sys.kept = lgpu.Context(devices=[lgpu.Device("64MiB", mode="preallocate")]).constant([1.0])
            print(sys.kept.tolist())
            """)
        self.assertEqual((code, out, errors), (0, "[1.0]\n", ""))
        self.assertEqual([gpu.free for gpu in lgpu.Config().list_physical_devices("GPU")], [1024 * MIB] * 2)

    def test_a_sink_may_drop_the_last_array_of_its_context(self):
        code, out, errors = run("""
            import lgpu, numpy as np
            first = lgpu.Context(memory_limit="16MiB")
            array = [np.from_dlpack(first.constant([1.0]))]
            first._core.retire()
            lease = first.lease
            ctx = lgpu.Context(memory_limit="16MiB", log_device_placement=True, log_sink=lambda line: array.clear())
            tensor = ctx.constant([1.0]) + ctx.constant([1.0])
            print(array, lease in [one["id"] for one in lgpu.leases()])
            """)
        self.assertEqual((code, out, errors), (0, "[] False\n", ""))

    def test_a_context_may_go_while_a_thread_is_inside_its_sink(self):
        code, out, errors = run("""
            import lgpu, threading
            inside, go, armed, said = threading.Event(), threading.Event(), False, []
            def sink(line):
                if armed:
                    inside.set()
                    go.wait()
            ctx = lgpu.Context(endpoint="local:1x64MiB", log_device_placement=True, log_sink=sink)
            tensor = ctx.constant([1.0])
            armed = True
            thread = threading.Thread(target=lambda: said.append((tensor + tensor).shape))
            thread.start()
            inside.wait()
            threading.Thread(target=go.set).start()
            del ctx
            thread.join()
            print(said)
            """)
        self.assertEqual((code, out, errors), (0, "[(1,)]\n", ""))

    def test_a_context_whose_sink_refers_to_it_is_garbage(self):
        code, out, errors = run("""
            import gc, lgpu, weakref
            def make():
                ctx = lgpu.Context(endpoint="local:1x64MiB", log_sink=lambda line: print(ctx, line))
                return weakref.ref(ctx)
            left = make()
            gc.collect()
            print(left())
            """)
        self.assertEqual((code, out, errors), (0, "None\n", ""))

    @unittest.skipUnless(importlib.util.find_spec("_xxsubinterpreters"), "this Python has another module of interpreters")
    def test_a_sub_interpreter_gets_an_import_error_and_the_main_one_lives(self):
        code, out, errors = run("""
            import _xxsubinterpreters as interpreters
            other = interpreters.create()
            interpreters.run_string(other, "try:\\n import lgpu\\n lgpu.Context\\nexcept ImportError: print('refused', flush=True)")
            interpreters.destroy(other)
            import lgpu
            with lgpu.Context(endpoint="local:1x64MiB") as ctx: print(ctx.constant([1.0]).tolist())
            """)
        self.assertEqual((code, out, errors), (0, "refused\n[1.0]\n", ""))

    def test_import_does_not_load_the_library(self):
        code, out, errors = run("""
            import sys, lgpu
            lgpu.Error, lgpu.OutOfMemoryError, dir(lgpu)
            loaded = open("/proc/self/maps").read()
            print("liblgpu" in loaded, "numpy" in sys.modules)
            lgpu.Context
            print("liblgpu" in open("/proc/self/maps").read())
            """)
        self.assertEqual((code, out, errors), (0, "False False\nTrue\n", ""))

    def test_the_command(self):
        done = subprocess.run([sys.executable, "-m", "lgpu", "--version"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("lgpu", done.stdout)
        empty = subprocess.run([sys.executable, "-m", "lgpu", "ls"], capture_output=True, text=True, timeout=60,
                               env={**os.environ, "PATH": "/nonexistent"})
        self.assertEqual(empty.returncode, 1)
        self.assertIn("has no program lgpu", empty.stderr)


if __name__ == "__main__":
    unittest.main()
