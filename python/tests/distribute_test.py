"""MirroredStrategy from Python; the digits example learns. With a daemon.

distribute_test.py DIGITS: the example's path."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np

import lgpu
from lgpu import distribute

DIGITS = sys.argv[1]


class DistributeTest(unittest.TestCase):
    def setUp(self):
        self.ctx = lgpu.Context(devices=2, memory_limit="32MiB")
        self.addCleanup(self.ctx.close)
        self.strategy = lgpu.MirroredStrategy(self.ctx)

    def test_each_replica_runs_on_its_device(self):
        batch = self.ctx.constant(np.arange(10, dtype=np.float32).reshape(5, 2))
        parts = self.strategy.split(batch)
        threads = set()

        def step(replica, part, factor):
            threads.add(threading.get_ident())
            self.assertTrue(replica.device.endswith(f"GPU:{replica.id}"))
            self.assertEqual(part.device, replica.device)
            self.assertEqual(lgpu.constant([1.0]).device, replica.device)
            total, = replica.all_reduce("sum", [lgpu.reduce_sum(part)])
            return total.item() * factor, replica.loss_weight(parts)

        with self.ctx.device("CPU:0"):  # does not count within
            results = self.strategy.run(step, args=(parts, 2))
        self.assertEqual([total for total, _ in results], [90, 90])
        self.assertEqual([weight for _, weight in results], [0.6, 0.4])
        self.assertEqual((len(threads), self.strategy.num_replicas_in_sync, len(parts)), (2, 2, 2))
        np.testing.assert_array_equal(self.strategy.gather(parts).numpy(), batch.numpy())
        self.assertEqual(self.strategy.reduce("mean", self.strategy.broadcast(batch)).tolist(), batch.tolist())

    def test_the_exception_of_a_step_comes_out_as_it_is(self):
        class Mine(Exception):
            pass

        def step(replica):
            if replica.id == 1:
                raise Mine("from replica 1")
            replica.all_reduce("sum", [lgpu.constant([1.0])])

        with self.assertRaisesRegex(Mine, "from replica 1"):
            self.strategy.run(step)
        self.assertEqual(self.strategy.run(lambda replica: replica.id), [0, 1])

    def test_out_of_memory_in_a_step_keeps_its_refusal(self):
        with self.assertRaises(lgpu.OutOfMemoryError) as caught:
            self.strategy.run(lambda replica: lgpu.fill([16 << 20], 1.0))
        self.assertEqual(caught.exception.refusal["reason"], "limit")

    def test_what_is_wrong_is_said(self):
        kept = []
        self.strategy.run(kept.append)
        with self.assertRaisesRegex(RuntimeError, "step of this replica has ended"):
            kept[0].device
        variable = self.strategy.variable(self.ctx.constant([1.0]))
        for kind, call in ((ValueError, lambda: self.strategy.split(self.ctx.constant([1.0]))),
                           (ValueError, lambda: self.strategy.reduce("max", self.strategy.broadcast(variable.value()))),
                           (ValueError, lambda: lgpu.MirroredStrategy(self.ctx, devices=["GPU:0", "GPU:0"])),
                           (IndexError, lambda: self.strategy.broadcast(variable.value())[2]),
                           (IndexError, lambda: variable.value(2)), (IndexError, lambda: variable.value(-1)),
                           (RuntimeError, lambda: self.strategy.run(lambda _: self.strategy.run(lambda _: None)))):
            self.assertRaises(kind, call)

    def test_variables_and_sgd(self):
        variable = self.strategy.variable(self.ctx.constant([1.0, 2.0]))
        sgd = distribute.SGD(self.strategy, learning_rate=0.5)

        def step(replica):
            loss, gradient = distribute.mean_squared_error(replica, replica.read(variable), lgpu.constant([0.0, 0.0]))
            sgd.apply(replica, [variable], [gradient])
            return loss.item()

        self.assertEqual(self.strategy.run(step), [2.5, 2.5])
        self.assertEqual([variable.value(i).tolist() for i in range(2)], [[0.5, 1.0]] * 2)

    def test_replicas_of_two_processes(self):
        program = """
import sys, lgpu
from lgpu import distribute
rank, meeting = int(sys.argv[1]), sys.argv[2]
with lgpu.Context() as ctx:
    strategy = lgpu.MirroredStrategy(ctx, processes=distribute.Processes(rank=rank, count=2, meeting=meeting, timeout=50))
    def step(replica):
        total, = replica.all_reduce("sum", [lgpu.constant([10.0 * rank + replica.id])])
        return replica.count, total.tolist()
    print(strategy.run(step))
"""
        with tempfile.TemporaryDirectory() as folder:
            processes = [subprocess.Popen([sys.executable, "-c", program, str(rank), folder + "/meeting"], stdout=subprocess.PIPE,
                                          text=True, env={**os.environ, "LGPU_LEASE": self.ctx.lease}) for rank in range(2)]
            for process in processes:
                out, _ = process.communicate(timeout=120)
                self.assertEqual((process.returncode, out), (0, "[(4, [22.0]), (4, [22.0])]\n"))
        with self.assertRaisesRegex(ValueError, "timeout is 0"):
            lgpu.MirroredStrategy(self.ctx, processes=distribute.Processes(0, 1, "meeting", timeout=0))
        self.assertRaisesRegex(TypeError, "processes is an", lgpu.MirroredStrategy, self.ctx, processes=1)
        self.assertRaisesRegex(TypeError, "context is an", lgpu.MirroredStrategy, 5)
        self.assertRaisesRegex(TypeError, "devices is a list", lgpu.MirroredStrategy, self.ctx, [5])

    def test_digits_learn(self):
        for devices in (1, 2):
            done = subprocess.run([sys.executable, DIGITS, "--devices", str(devices), "--epochs", "12"],
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            accuracy = float(re.search(rf"test accuracy ([0-9.]+) on {devices} logical GPU", done.stdout).group(1))
            self.assertGreaterEqual(accuracy, 0.95)
        wrong = subprocess.run([sys.executable, DIGITS, "--memory", "much"], capture_output=True, text=True, timeout=60)
        self.assertEqual((wrong.returncode, wrong.stderr[:17]), (1, "digits.py: error:"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
