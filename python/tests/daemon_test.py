"""Leases, holders in a refusal, and a daemon that dies. with_daemon.py is not for this: the test kills its daemon.

daemon_test.py LGPUD"""

import functools
import operator
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

LGPUD = sys.argv[1]


class Daemon:
    def __init__(self, runtime):
        self.process = subprocess.Popen([LGPUD, "--simulate", "1x256MiB", "--dir", runtime], stderr=subprocess.PIPE,
                                        text=True, env={**os.environ, "XDG_STATE_HOME": os.path.dirname(runtime)})
        ready = threading.Event()

        def read():
            for line in self.process.stderr:
                if " ready: " in line:
                    ready.set()

        threading.Thread(target=read, daemon=True).start()
        assert ready.wait(30), "lgpud did not start"

    def kill(self):
        self.process.kill()
        self.process.wait()


class DaemonTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.runtime = os.path.join(folder.name, "run")
        self.daemon = Daemon(self.runtime)
        self.addCleanup(lambda: self.daemon.kill())
        import lgpu
        self.lgpu = lgpu

    def test_a_lease_is_shared_by_its_handle(self):
        with self.lgpu.Context(devices=2, memory_limit="64MiB", lease_name="train", endpoint=self.runtime) as ctx:
            code = ("import lgpu, sys\nctx = lgpu.Context(lease=sys.argv[1], endpoint=sys.argv[2])\n"
                    "print(len(ctx.logical_devices()), ctx.lease == sys.argv[1])")
            done = subprocess.run([sys.executable, "-c", code, ctx.lease, self.runtime], capture_output=True, text=True,
                                  timeout=60)
            self.assertEqual((done.stdout, done.stderr), ("2 True\n", ""))
            self.assertIn(ctx.lease, repr(ctx))
        with self.assertRaises(LookupError):
            self.lgpu.Context(lease="no-such-lease", endpoint=self.runtime)

    def test_leases_are_listed(self):
        self.assertEqual(self.lgpu.leases(self.runtime), [])
        with self.lgpu.Context(memory_limit="64MiB", lease_name="mine", endpoint=self.runtime) as ctx:
            lease, = self.lgpu.leases(self.runtime)
            self.assertEqual((lease["id"], lease["name"], lease["sessions"][0]["pid"]), (ctx.lease, "mine", os.getpid()))
            html = self.lgpu.leases(self.runtime)._repr_html_()
            self.assertIn("<td>mine</td>", html)
            self.assertIn("<td>64.00MiB</td>", html)
        with self.assertRaisesRegex(ConnectionError, "^no lgpud at /nonexistent") as caught:
            self.lgpu.leases("/nonexistent")
        self.assertNotIn("{", str(caught.exception))

    def test_a_full_card_names_its_holders(self):
        first = self.lgpu.Context(devices=[self.lgpu.Device("200MiB", guarantee="200MiB")], lease_name="greedy",
                                  endpoint=self.runtime)
        held = first.fill([40 << 18], 1.0)
        with self.lgpu.Context(memory_limit="256MiB", endpoint=self.runtime, allocation_timeout=0) as second:
            with self.assertRaises(MemoryError) as caught:
                second.fill([100 << 18], 1.0)
        refusal = caught.exception.refusal
        self.assertEqual(refusal["reason"], "card")
        self.assertEqual(refusal["holders"][0]["pid"], os.getpid())
        self.assertGreaterEqual(refusal["holders"][0]["guarantee_bytes"], 200 << 20)
        del held
        first.close()

    def test_the_last_array_closes_without_the_interpreters_lock(self):
        import numpy as np
        with self.lgpu.Context(memory_limit="32MiB", endpoint=self.runtime) as ctx:
            array = [np.from_dlpack(ctx.constant([1.0, 2.0]))]
        order, go = [], threading.Lock()
        go.acquire()

        def wake():
            go.acquire()
            order.append("another thread runs")
            self.daemon.process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=wake)
        thread.start()
        self.daemon.process.send_signal(signal.SIGSTOP)  # the end of the lease waits for it
        os.waitid(os.P_PID, self.daemon.process.pid, os.WSTOPPED)  # the signal alone stops it some time later
        # Functions in C, between which the interpreter gives its lock to no other thread.
        list(map(operator.call, [go.release, array.clear, functools.partial(order.append, "closed")]))
        thread.join()
        self.assertEqual(order, ["another thread runs", "closed"])

    def test_a_with_block_ends_in_peace_when_its_daemon_is_gone(self):
        with self.lgpu.Context(memory_limit="32MiB", endpoint=self.runtime) as ctx:
            tensor = ctx.constant([1.0, 2.0])
            self.daemon.kill()
            self.assertEqual((tensor + tensor).tolist(), [2, 4])
        with self.assertRaises(self.lgpu.Error):
            ctx.constant([1.0])
        self.daemon = Daemon(self.runtime)
        with self.assertRaisesRegex(ValueError, "of the body"):
            with self.lgpu.Context(memory_limit="32MiB", endpoint=self.runtime):
                self.daemon.kill()
                raise ValueError("of the body")

    def test_a_program_ends_in_peace_when_its_daemon_is_gone(self):
        code = ("import lgpu, os, signal, sys\nctx = lgpu.Context(memory_limit='32MiB', endpoint=sys.argv[1])\n"
                "other = lgpu.Context(memory_limit='32MiB', endpoint=sys.argv[1])\n"
                "tensor = ctx.constant([1.0, 2.0])\nos.kill(int(sys.argv[2]), signal.SIGKILL)\nprint('ends')")
        done = subprocess.run([sys.executable, "-c", code, self.runtime, str(self.daemon.process.pid)], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ends\n", ""))

    def test_a_daemon_that_dies_is_a_connection_error_and_one_that_comes_back_is_not(self):
        ctx = self.lgpu.Context(memory_limit="128MiB", endpoint=self.runtime, allocation_timeout=0.2)
        tensor = ctx.constant([1.0, 2.0])
        self.daemon.kill()
        self.assertEqual((tensor + tensor).tolist(), [2, 4])  # memory that it has goes on
        with self.assertRaises(ConnectionError) as caught:
            ctx.fill([64 << 18], 1.0)
        self.assertEqual(caught.exception.code, "UNAVAILABLE")
        with self.assertRaises(ConnectionError):
            self.lgpu.Context(endpoint=self.runtime)
        self.daemon = Daemon(self.runtime)
        ctx2 = self.lgpu.Context(memory_limit="32MiB", endpoint=self.runtime)
        self.assertEqual(ctx2.constant([3.0]).tolist(), [3])
        self.assertEqual(tensor.tolist(), [1, 2])
        ctx2.close()
        ctx.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
