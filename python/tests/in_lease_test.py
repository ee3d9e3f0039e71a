"""lgpu.config inside a lease, with a daemon of two simulated GPUs of 1 GiB: the GPUs are the lease's devices."""

import os
import subprocess
import sys
import textwrap
import unittest

import lgpu

MIB = 1 << 20
GUIDE = """
    import lgpu
    MIB = 1 << 20
    config = lgpu.Config(strict=STRICT)
    gpus = config.list_physical_devices("GPU")
    config.set_logical_device_configuration(gpus[0], [lgpu.LogicalDeviceConfiguration("64MiB"),
                                                      lgpu.LogicalDeviceConfiguration("128MiB")])
    logical = config.list_logical_devices("GPU")
    print(len(gpus), "Physical GPU,", len(logical), "Logical GPUs")
    with lgpu.Context(config=config) as ctx:
        assert ctx.list_logical_devices("GPU") == logical
        assert [device["memory_limit"] for device in ctx.logical_devices()] == [64 * MIB, 128 * MIB]
        assert {device["mode"] for device in ctx.logical_devices()} == {"preallocate" if STRICT else "growth"}
        towers = []
        for gpu in logical:
            with lgpu.device(gpu.name):
                a = lgpu.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
                b = lgpu.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
                towers.append(lgpu.matmul(a, b))
        print(*[tower.device[-5:] for tower in towers])
        with lgpu.device("CPU:0"):
            print(lgpu.add_n(towers).numpy().tolist())
        try:
            with lgpu.device("GPU:0"):
                lgpu.fill([80 * MIB], 1.0)
        except lgpu.OutOfMemoryError as refused:
            print(refused.refusal["reason"], refused.refusal["limit_bytes"] // MIB)
        with lgpu.device("GPU:1"):
            lgpu.fill([25 * MIB], 1.0)  # 100 MiB
"""


def run(code, lease, **variables):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, "LGPU_LEASE": lease, **variables},
                          capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout, done.stderr


class InLeaseTest(unittest.TestCase):
    def test_the_guide_splits_a_gpu_of_the_lease(self):
        for strict in ("False", "True"):
            with self.subTest(strict=strict), lgpu.Context(memory_limit="256MiB") as ctx:
                out, notes = run(GUIDE.replace("STRICT", strict), ctx.lease)
                self.assertEqual(out.splitlines(), ["1 Physical GPU, 2 Logical GPUs", "GPU:0 GPU:1",
                                                    "[[44.0, 56.0], [98.0, 128.0]]", "limit 64"])
                self.assertNotIn("not made", notes)

    def test_the_gpus_are_the_devices_of_the_lease(self):
        devices = [lgpu.Device("64MiB"), lgpu.Device("96MiB"), lgpu.Device("32MiB", mode="preallocate")]
        code = """
            import lgpu
            print([(gpu.name, gpu.total >> 20) for gpu in lgpu.config.list_physical_devices("GPU")])
            print(len(lgpu.config.list_logical_devices("GPU")))
            with lgpu.Context() as ctx:
                print([device["memory_limit"] >> 20 for device in ctx.logical_devices()])
            """
        with lgpu.Context(devices) as ctx:
            out, _ = run(code, ctx.lease)
        self.assertEqual(out.splitlines(), [
            "[('/physical_device:GPU:0', 64), ('/physical_device:GPU:1', 96), ('/physical_device:GPU:2', 32)]", "3", "[64, 96, 32]"])

    def test_parts_beyond_the_lease_are_refused(self):
        code = """
            import lgpu
            lgpu.config.set_logical_device_configuration("GPU:0", [lgpu.LogicalDeviceConfiguration("64MiB")] * 3)
            try:
                lgpu.Context()
            except ValueError as refused:
                print(refused)
            lgpu.config.set_logical_device_configuration("GPU:0", [lgpu.LogicalDeviceConfiguration("64MiB")] * 2)
            lgpu.Context().close()
            """
        with lgpu.Context(memory_limit="128MiB") as ctx:
            out, _ = run(code, ctx.lease)
        self.assertIn("asks for 192.00MiB of a GPU of its lease", out)
        self.assertIn("has 128.00MiB", out)

    def test_limits_move_while_it_runs(self):
        code = """
            import lgpu
            def parts(*limits):
                lgpu.config.set_logical_device_configuration("GPU:0", [lgpu.LogicalDeviceConfiguration(f"{n}MiB") for n in limits])
            parts(32, 96)
            with lgpu.Context() as ctx:
                with lgpu.device("GPU:1"):
                    kept = lgpu.fill([20 << 20], 1.0)  # 80 MiB
                try:
                    parts(64, 64)
                except RuntimeError as refused:
                    print("refused")
                del kept
                parts(64, 64)
                with lgpu.device("GPU:0"):
                    lgpu.fill([15 << 20], 1.0)  # 60 MiB
            """
        with lgpu.Context(memory_limit="128MiB") as ctx:
            out, _ = run(code, ctx.lease)
        self.assertEqual(out.split(), ["refused"])


class OutsideTest(unittest.TestCase):
    def setUp(self):
        lgpu.config._forget()
        self.addCleanup(lgpu.config._forget)

    def test_the_list_says_what_a_context_has(self):
        listed = lgpu.config.list_logical_devices("GPU")
        self.assertEqual(len(listed), 2)
        with lgpu.Context() as one, lgpu.Context() as other:
            self.assertEqual(one.list_logical_devices("GPU"), listed)
            self.assertEqual(other.list_logical_devices("GPU"), listed)
        with lgpu.Context(memory_limit="16MiB") as ctx:
            self.assertEqual(len(ctx.logical_devices()), 1)


if __name__ == "__main__":
    unittest.main()
