"""The blocks of TensorFlow's GPU guide by a strict Config, against a daemon: programs that never close their Context, one
after the other, each of which wants all of the card or limits that leave no room for two.

guide_test.py LGPUD"""

import os
import subprocess
import sys
import tempfile
import threading
import unittest

LGPUD = sys.argv[1]
MIB = 1 << 20
CARD = 512 * MIB
PRODUCT = [[22, 28], [49, 64]]

BEGIN = """
import lgpu, numpy
lgpu.Config, lgpu.Context
input()  # all is loaded: what follows is quick
config = lgpu.Config(strict=True)
gpus = config.list_physical_devices("GPU")
"""
A_AND_B = """
a = context.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
b = context.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
"""
END = """
print([device["memory_limit"] >> 20 for device in context.logical_devices()])
"""
# What each block of the guide prints, and the limits that its Context has, in MiB. Without a limit that is what is free, less
# TensorFlow's reserve of 225 MiB.
BLOCKS = {
    "logging device placement": ("context = lgpu.Context(config=config)" + A_AND_B + "print((a @ b).tolist())", [287]),
    "manual device placement": (
        "context = lgpu.Context(config=config)\nwith context.device('/CPU:0'):" + A_AND_B.replace("\n", "\n  ")
        + "\nprint((a @ b).tolist())", [287]),
    "one visible GPU": (
        "config.set_visible_devices(gpus[0], 'GPU')\ncontext = lgpu.Context(config=config)" + A_AND_B + "print((a @ b).tolist())",
        [287]),
    "memory growth": (
        "for gpu in gpus: config.set_memory_growth(gpu, True)\ncontext = lgpu.Context(config=config)" + A_AND_B
        + "print((a @ b).tolist())", [287]),
    "a limit": (
        "config.set_logical_device_configuration(gpus[0], [lgpu.LogicalDeviceConfiguration(memory_limit='384MiB')])\n"
        "context = lgpu.Context(config=config)" + A_AND_B + "print((a @ b).tolist())", [384]),
    "two virtual GPUs": ("""
config.set_logical_device_configuration(
    gpus[0],
    [lgpu.LogicalDeviceConfiguration(memory_limit="224MiB"),
     lgpu.LogicalDeviceConfiguration(memory_limit="224MiB")])
context = lgpu.Context(config=config)
c = []
for gpu in context.list_logical_devices("GPU"):
  with context.device(gpu.name):
    a = context.constant([[1., 2., 3.], [4., 5., 6.]])
    b = context.constant([[1., 2.], [3., 4.], [5., 6.]])
    c.append(lgpu.matmul(a, b))
with context.device("/CPU:0"):
  matmul_sum = lgpu.add_n(c)
print(matmul_sum.tolist())
""", [224, 224]),
}
# The program becomes another one: its connection ends, and its process goes on until its input ends.
LIVE_ON = """
import os, sys
sys.stdout.flush()
os.execvp("sh", ["sh", "-c", "echo gone; exec cat"])
"""


class GuideTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp")
        cls.addClassCleanup(folder.cleanup)
        cls.runtime = os.path.join(folder.name, "run")
        daemon = subprocess.Popen([LGPUD, "--simulate", f"1x{CARD}", "--dir", cls.runtime], stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, "XDG_STATE_HOME": folder.name})
        cls.addClassCleanup(daemon.wait)
        cls.addClassCleanup(daemon.terminate)
        ready = threading.Event()

        def read():
            for line in daemon.stderr:
                if " ready: " in line:
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        assert ready.wait(60) and daemon.poll() is None, "lgpud did not start"

    def start(self, name, end=""):
        """The program of a block, which begins with a line of input."""
        return subprocess.Popen([sys.executable, "-c", BEGIN + BLOCKS[name][0] + END + end], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "LGPU_ENDPOINT": self.runtime})

    def check(self, name, program):
        out, errors = program.communicate("\n", timeout=120)
        said = [line for line in errors.splitlines() if not line.startswith("Created device ")]
        self.assertEqual((program.returncode, said), (0, []), errors)
        limits = BLOCKS[name][1]
        result = [[float(len(limits) * value) for value in row] for row in PRODUCT]
        self.assertEqual(out, f"{result}\n{limits}\n")

    def test_each_block_runs_twice_in_a_row(self):
        import lgpu
        for name in BLOCKS:
            for run in (1, 2):
                with self.subTest(block=name, run=run):
                    self.check(name, self.start(name))
                    gpu, = lgpu.Config(endpoint=self.runtime).list_physical_devices("GPU")
                    self.assertEqual((gpu.total, gpu.free), (CARD, CARD), "the program has given all back at its end")

    def test_each_block_runs_after_one_that_ended_without_a_close(self):
        for name in BLOCKS:
            with self.subTest(block=name), self.start(name, LIVE_ON) as first, self.start(name) as second:
                first.stdin.write("\n")
                first.stdin.flush()
                self.assertEqual([first.stdout.readline() for _ in range(3)][-1], "gone\n")
                self.check(name, second)  # while lgpud still leaves the first one's memory to its process


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
