"""Signals in calls that wait: Ctrl-C ends the call, the op is undone, the Context can be used. The waits below are for an
hour, so a test that ends has been interrupted.

interrupts_test.py LGPUD"""

import ctypes
import functools
import json
import operator
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

LGPUD = sys.argv[1]
MIB = 1 << 20

# What each program below begins with.
PREAMBLE = """
import signal, threading
import lgpu
MIB = 1 << 20

def interrupted(call, error=KeyboardInterrupt):
    print("calls", flush=True)
    try:
        try:
            call()
        except Exception as swallowed:
            if isinstance(swallowed, error):
                raise
            print("swallowed", repr(swallowed), flush=True)
            return
        print("returned", flush=True)
    except error:
        print("interrupted", flush=True)
"""


class Program:
    """A Python program that is interrupted from outside. Its lines are read one by one."""

    def __init__(self, code, endpoint):
        self.process = subprocess.Popen([sys.executable, "-c", PREAMBLE + textwrap.dedent(code)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env={**os.environ, "LGPU_ENDPOINT": endpoint})

    def line(self):
        return self.process.stdout.readline().strip()

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def send(self, number):
        self.process.send_signal(number)

    def await_sleep(self):
        """Returns when the main thread sleeps."""
        state = None
        while state != "S":
            time.sleep(0.01)
            with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
                state = file.read().rsplit(") ", 1)[1][0]

    def end(self):
        self.process.stdin.close()
        rest = self.process.stdout.read()  # communicate() would not see what readline() has read ahead
        return rest.split("\n")[:-1], self.process.wait()


class InterruptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.runtime = os.path.join(folder.name, "run")
        self.daemon = subprocess.Popen([LGPUD, "--simulate", "1x256MiB", "--dir", self.runtime], stderr=subprocess.PIPE,
                                       text=True, env={**os.environ, "XDG_STATE_HOME": folder.name})
        self.addCleanup(self.end_daemon)
        ready = threading.Event()

        def read():
            for line in self.daemon.stderr:
                if " ready: " in line:
                    ready.set()

        threading.Thread(target=read, daemon=True).start()
        self.assertTrue(ready.wait(30), "lgpud did not start")
        import lgpu
        self.lgpu = lgpu

    def end_daemon(self):
        self.daemon.kill()
        self.daemon.wait()

    def program(self, code, endpoint=None):
        program = Program(code, endpoint or self.runtime)
        self.addCleanup(program.process.stdout.close)
        self.addCleanup(program.process.wait)
        self.addCleanup(program.process.kill)
        self.addCleanup(program.process.stdin.close)
        return program

    def waiting_requests(self):
        done = subprocess.run(["lgpu", "ls", "--json"], capture_output=True, text=True, check=True,
                              env={**os.environ, "LGPU_ENDPOINT": self.runtime})
        return sum(card["waiting_requests"] for card in json.loads(done.stdout)["cards"])

    def await_waiter(self):
        while self.waiting_requests() == 0:
            pass

    WAITER = """
    ctx = lgpu.Context(memory_limit="200MiB", allocation_timeout=3600)
    kept = ctx.fill([4 * MIB], 1.0)  # 16 MiB
    interrupted(lambda: ctx.fill([40 * MIB], 1.0))
    print(ctx.memory_info("GPU:0")["current"] // MIB, kept.shape, ctx.constant([1.0, 2.0]).tolist(), flush=True)
    input()
    print(ctx.fill([40 * MIB], 2.0).shape, flush=True)
    ctx.close()
    """

    def test_a_request_that_waits_for_the_card_leaves_its_queue(self):
        with self.lgpu.Context(memory_limit="200MiB", endpoint=self.runtime) as ctx:
            held = ctx.fill([32 * MIB], 1.0)  # 128 MiB
            program = self.program(self.WAITER)
            self.assertEqual(program.line(), "calls")
            self.await_waiter()
            program.send(signal.SIGINT)
            self.assertEqual(program.line(), "interrupted")
            self.assertEqual(program.line(), "16 (4194304,) [1.0, 2.0]")
            self.assertEqual(self.waiting_requests(), 0)
            # A request that would have stood behind it.
            self.assertEqual(ctx.fill([8 * MIB], 1.0).shape, (8 * MIB,))
            del held
            ctx.trim()
            program.go_on()
            self.assertEqual(program.end(), ([f"({40 * MIB},)"], 0))

    def test_a_block_of_logical_memory_is_not_waited_for(self):
        with self.lgpu.Context(memory_limit="200MiB", endpoint=self.runtime) as ctx:
            held = ctx.fill([32 * MIB], 1.0)
            program = self.program("""
                memory = lgpu.LogicalMemory(memory_limit="200MiB", allocation_timeout=3600)
                interrupted(lambda: memory.allocate(160 * MIB))
                address = memory.allocate(8 * MIB)
                memory.free(address)
                memory.close()
                print("closed", flush=True)
                """)
            self.assertEqual(program.line(), "calls")
            self.await_waiter()
            program.send(signal.SIGINT)
            self.assertEqual(program.end(), (["interrupted", "closed"], 0))
            self.assertEqual(self.waiting_requests(), 0)
            del held

    def test_a_handler_that_raises_ends_the_wait_and_one_that_returns_does_not(self):
        with self.lgpu.Context(memory_limit="200MiB", endpoint=self.runtime) as ctx:
            held = ctx.fill([32 * MIB], 1.0)
            program = self.program("""
                class Enough(Exception):
                    pass

                def enough(*_):
                    raise Enough

                def tell(*_):
                    try:
                        ctx.close()
                    except lgpu.Error as error:
                        print("handled", error.code, flush=True)

                signal.signal(signal.SIGUSR1, tell)
                signal.signal(signal.SIGUSR2, enough)
                ctx = lgpu.Context(memory_limit="200MiB", allocation_timeout=3600)
                interrupted(lambda: ctx.fill([40 * MIB], 1.0), Enough)
                ctx.close()
                """)
            self.assertEqual(program.line(), "calls")
            self.await_waiter()
            program.send(signal.SIGUSR1)
            self.assertEqual(program.line(), "handled FAILED_PRECONDITION")
            self.assertEqual(self.waiting_requests(), 1)
            program.send(signal.SIGUSR2)
            self.assertEqual(program.end(), (["interrupted"], 0))
            del held

    def test_a_wait_for_another_thread_and_a_wait_without_a_daemon(self):
        program = self.program("""
            ctx = lgpu.Context(memory_limit="32MiB", allocation_timeout=3600)
            held, go = [], threading.Event()
            thread = threading.Thread(target=lambda: (held.append(ctx.fill([6 * MIB], 1.0)), go.wait()))
            thread.start()
            while not held:
                pass
            interrupted(lambda: ctx.fill([6 * MIB], 1.0))
            go.set()
            thread.join()
            held.clear()
            print(ctx.fill([6 * MIB], 1.0).shape, flush=True)
            """, "local:64MiB")
        self.assertEqual(program.line(), "calls")
        program.await_sleep()
        program.send(signal.SIGINT)
        self.assertEqual(program.end(), (["interrupted", f"({6 * MIB},)"], 0))

        program = self.program("""
            ctx = lgpu.Context(devices=2, memory_limit="64MiB", allocation_timeout=3600)
            with ctx.device("GPU:0"):
                held = ctx.fill([12 * MIB], 1.0)  # 48 MiB of 64
            def fill():
                with ctx.device("GPU:1"):
                    return ctx.fill([8 * MIB], 1.0)
            interrupted(fill)
            del held
            print(fill().shape, flush=True)
            """, "local:64MiB")
        self.assertEqual(program.line(), "calls")
        program.await_sleep()
        program.send(signal.SIGINT)
        self.assertEqual(program.end(), (["interrupted", f"({8 * MIB},)"], 0))

    def test_processes_that_do_not_come_to_a_meeting_are_not_waited_for(self):
        program = self.program("""
            import os, tempfile
            ctx = lgpu.Context(memory_limit="32MiB")
            with tempfile.TemporaryDirectory() as folder:
                meeting = os.path.join(folder, "meeting")
                for rank in (0, 1):
                    processes = lgpu.distribute.Processes(rank, 2, meeting, timeout=3600)
                    interrupted(lambda: lgpu.MirroredStrategy(ctx, processes=processes))
                    print(os.path.exists(meeting), flush=True)
            print(lgpu.MirroredStrategy(ctx).num_replicas_in_sync, flush=True)
            """, "local:64MiB")
        for _ in range(2):
            self.assertEqual(program.line(), "calls")
            program.await_sleep()
            program.send(signal.SIGINT)
            self.assertEqual(program.line(), "interrupted")
            self.assertEqual(program.line(), "False")
        self.assertEqual(program.end(), (["1"], 0))

    def test_a_process_that_does_not_come_to_a_sum_is_not_waited_for(self):
        for rank, reason in ((0, "process 0 (pid {}) was interrupted"), (1, "process 1 (pid {}) has ended")):
            with self.subTest(rank=rank), tempfile.TemporaryDirectory() as folder:
                programs = [self.program(f"""
                    ctx = lgpu.Context(memory_limit="32MiB")
                    processes = lgpu.distribute.Processes({number}, 2, "{folder}/meeting", timeout=3600)
                    strategy = lgpu.MirroredStrategy(ctx, processes=processes)
                    value = ctx.constant([1.0])
                    print("met", flush=True)
                    input()
                    interrupted(lambda: strategy.run(lambda replica: replica.all_reduce("sum", [value])))
                    print(value.tolist(), flush=True)
                    """, "local:64MiB") for number in (0, 1)]
                for program in programs:
                    self.assertEqual(program.line(), "met")
                programs[rank].go_on()
                self.assertEqual(programs[rank].line(), "calls")
                programs[rank].await_sleep()
                programs[rank].send(signal.SIGINT)
                self.assertEqual(programs[rank].end(), (["interrupted", "[1.0]"], 0))
                programs[1 - rank].go_on()
                (calls, error, value), code = programs[1 - rank].end()
                self.assertEqual((calls, value, code), ("calls", "[1.0]", 0))
                self.assertIn("AbortedError" if rank == 0 else "UnavailableError", error)
                self.assertIn(reason.format(programs[rank].process.pid), error)

    def test_a_replica_that_waits_for_memory_is_not_waited_for(self):
        for interrupted in ("its caller", "replica 0"):
            with self.subTest(interrupted), self.lgpu.Context(memory_limit="200MiB", endpoint=self.runtime) as ctx:
                held = ctx.fill([32 * MIB], 1.0)  # 128 MiB of 256
                program = self.program(f"""
                    ctx = lgpu.Context(devices=2, memory_limit="200MiB", allocation_timeout=3600)
                    strategy = lgpu.MirroredStrategy(ctx)
                    def step(replica):
                        if replica.id == 1:
                            ctx.fill([40 * MIB], 1.0)
                        elif {interrupted == "replica 0"}:
                            threading.Event().wait()
                    interrupted(lambda: strategy.run(step))
                    print(strategy.run(lambda replica: ctx.fill([2], 1.0).tolist()), flush=True)
                    """)
                self.assertEqual(program.line(), "calls")
                self.await_waiter()
                program.await_sleep()
                program.send(signal.SIGINT)
                self.assertEqual(program.end(), (["interrupted", "[[1.0, 1.0], [1.0, 1.0]]"], 0))
                del held

    def test_a_daemon_that_does_not_answer_is_not_waited_for(self):
        program = self.program("""
            ctx = lgpu.Context(memory_limit="64MiB", allocation_timeout=3600)
            kept = ctx.constant([1.0, 2.0])
            print("open", flush=True)
            input()
            for call in (lambda: lgpu.Context(memory_limit="32MiB"),            # the greeting
                         lambda: ctx.fill([8 * MIB], 1.0),                      # memory
                         lambda: ctx.resize("GPU:0", memory_limit="32MiB"),     # gRPC
                         ctx.close):
                interrupted(call)
                input()
            ctx.close()
            print("closed", flush=True)
            """)
        self.assertEqual(program.line(), "open")
        self.daemon.send_signal(signal.SIGSTOP)
        for _ in range(4):
            program.go_on()
            self.assertEqual(program.line(), "calls")
            program.await_sleep()
            program.send(signal.SIGINT)
            self.assertEqual(program.line(), "interrupted")
        self.daemon.send_signal(signal.SIGCONT)
        program.go_on()
        self.assertEqual(program.end(), (["closed"], 0))
        self.assertEqual(self.lgpu.leases(self.runtime), [])

    def test_a_call_that_fails_with_a_signal_pending_raises_of_the_signal(self):
        core = __import__("lgpu._core")._core
        with self.assertRaises(KeyboardInterrupt):
            # Functions in C, between which the interpreter runs no handler.
            list(map(operator.call, [functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGINT)),
                                     functools.partial(core.parse_bytes, "nonsense")]))
        with self.assertRaises(ValueError):
            core.parse_bytes("nonsense")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
