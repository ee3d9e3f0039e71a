"""Programs in the words of TensorFlow's GPU guide, with the import changed and nothing else: no Context is opened, and the names
are those of its editions. Each is a process of its own, on simulated GPUs of that process."""

import os
import subprocess
import sys
import unittest

PLACED = "Executing op {} in device /job:localhost/replica:0/task:0/device:{}"
PRODUCT = "[[22.0, 28.0], [49.0, 64.0]]"
FACTORS = """
a = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
b = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
"""


def run(program, endpoint="local:2x64MiB", **variables):
    done = subprocess.run([sys.executable, "-c", "import lgpu as tf\n" + program], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "LGPU_ENDPOINT": endpoint, **variables})
    logged = [line for line in done.stderr.splitlines() if not line.startswith("Created device ")]
    return done.returncode, done.stdout.splitlines(), logged


class GuideNamesTest(unittest.TestCase):
    def test_ops_without_a_context(self):
        program = ("print(len(tf.config.list_physical_devices('GPU')))\ntf.debugging.set_log_device_placement(True)" + FACTORS
                   + "print(tf.matmul(a, b).numpy().tolist())")
        self.assertEqual(run(program), (0, ["2", PRODUCT], [PLACED.format(op, "GPU:0") for op in
                                                             ("_EagerConst", "_EagerConst", "MatMul")]))

    def test_manual_placement(self):
        program = ("tf.debugging.set_log_device_placement(True)\nwith tf.device('/CPU:0'):" + FACTORS.replace("\n", "\n  ")
                   + "\nprint(tf.matmul(a, b).numpy().tolist())")
        self.assertEqual(run(program), (0, [PRODUCT], [PLACED.format("_EagerConst", "CPU:0")] * 2
                                        + [PLACED.format("MatMul", "GPU:0")]))

    def test_constants_of_the_first_edition_have_a_shape_and_a_name(self):
        program = """
a = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], shape=[2, 3], name='a')
b = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], shape=[3, 2], name='b')
print(tf.matmul(a, b).numpy().tolist())
print(tf.constant(7, shape=[2]).numpy().tolist())
try:
  tf.constant([1, 2, 3], shape=[2, 2])
except ValueError as error:
  print(error)
"""
        self.assertEqual(run(program), (0, [PRODUCT, "[7, 7]", "3 values do not fit shape=(2, 2), which has room for 4"], []))

    def test_the_log_of_the_first_edition_is_that_of_its_graph(self):
        program = """
context = tf.Context(log_device_placement=True, graph_log_format=True)
with context:
  a = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], shape=[2, 3])
  b = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], shape=[3, 2])
  print(tf.matmul(a, b).numpy().tolist())
"""
        code, out, logged = run(program)
        self.assertEqual((code, out, logged[0]), (0, [PRODUCT], "Device mapping:"))
        self.assertEqual(logged[-3:], [f"{name}: /job:localhost/replica:0/task:0/device:GPU:0"
                                       for name in ("Const: (Const)", "Const_1: (Const)", "MatMul: (MatMul)")])

    def test_visible_devices_and_growth(self):
        program = """
gpus = tf.config.experimental.list_physical_devices('GPU')
tf.config.experimental.set_visible_devices(gpus[1], 'GPU')
tf.config.experimental.set_memory_growth(gpus[1], True)
print(len(gpus), len(tf.config.experimental.list_logical_devices('GPU')))
print(tf.constant([1.0]).device)
try:
  tf.config.set_visible_devices(gpus, 'GPU')
except RuntimeError as error:
  print(str(error).partition(';')[0])
"""
        self.assertEqual(run(program), (0, ["2 1", "/job:localhost/replica:0/task:0/device:GPU:0",
                                            "Visible devices cannot be modified after being initialized"], []))

    def test_towers_on_virtual_devices_whose_limits_count_mib(self):
        for name, kind in (("experimental.set_virtual_device_configuration", "experimental.VirtualDeviceConfiguration"),
                           ("set_logical_device_configuration", "LogicalDeviceConfiguration")):
            program = f"""
gpus = tf.config.list_physical_devices('GPU')
tf.config.{name}(gpus[0], [tf.config.{kind}(memory_limit=16), tf.config.{kind}(memory_limit=24)])
logical_gpus = tf.config.list_logical_devices('GPU')
c = []
for gpu in logical_gpus:
  with tf.device(gpu.name):{FACTORS.replace(chr(10), chr(10) + '    ')}
    c.append(tf.matmul(a, b))
with tf.device('/CPU:0'):
  matmul_sum = tf.add_n(c)
print(matmul_sum.numpy().tolist(), matmul_sum.device)
print([one['memory_limit'] >> 20 for one in tf.current_context().logical_devices()])
print(tf.distribute.MirroredStrategy(logical_gpus).num_replicas_in_sync)
"""
            with self.subTest(name):
                self.assertEqual(run(program, "local:1x64MiB"),
                                 (0, ["[[44.0, 56.0], [98.0, 128.0]] /job:localhost/replica:0/task:0/device:CPU:0", "[16, 24]",
                                      "2"], []))

    def test_a_machine_without_gpus_has_the_cpu(self):
        program = FACTORS + "print(tf.matmul(a, b).device)"
        code, out, logged = run(program, CUDA_VISIBLE_DEVICES="-1")
        self.assertEqual((code, out), (0, ["/job:localhost/replica:0/task:0/device:CPU:0"]))
        self.assertEqual(logged[0], "lgpu: note: no GPU: no GPU is visible to this process")

    def test_a_forked_child_has_a_default_context_of_its_own(self):
        program = """
import os
tf.constant([1.0])
child = os.fork()
if child == 0:
  print(tf.constant([2.0]).numpy().tolist(), flush=True)
  os._exit(0)
os.waitpid(child, 0)
print(tf.constant([3.0]).numpy().tolist())
"""
        self.assertEqual(run(program), (0, ["[2.0]", "[3.0]"], []))

    def test_threads_use_the_context_of_the_with_block(self):
        program = """
import threading
with tf.Context(endpoint="local:1x32MiB") as context:
  seen = []
  thread = threading.Thread(target=lambda: seen.append(tf.current_context()))
  thread.start()
  thread.join()
  print(seen[0] is context)
print(tf.current_context() is context)
"""
        self.assertEqual(run(program), (0, ["True", "False"], []))


if __name__ == "__main__":
    unittest.main()
