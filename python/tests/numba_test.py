"""lgpu.numba on a card of the fake driver, behind a daemon: Numba allocates and frees through lgpu."""

import gc
import os
import subprocess
import sys
import textwrap
import unittest

import numpy as np

import lgpu

MIB = 1 << 20


def run(code, **environment):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


class NumbaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from numba import cuda
        cls.cuda = cuda
        cls.ctx = lgpu.Context(memory_limit="32MiB", allocation_timeout=0)
        lgpu.numba.use(cls.ctx)
        cuda.set_memory_manager(lgpu.numba.MemoryManager)

    def current(self):
        gc.collect()
        self.cuda.current_context().deallocations.clear()
        return self.ctx.memory_info()["current"]

    def test_arrays_are_in_the_lease_and_go_back(self):
        before = self.current()
        made = self.cuda.to_device(np.arange(1 << 20, dtype=np.float32))
        self.assertEqual(self.current() - before, 4 * MIB)
        self.assertEqual(self.ctx.memory().find(made.device_ctypes_pointer.value), 4 * MIB)
        np.testing.assert_array_equal(made.copy_to_host(), np.arange(1 << 20, dtype=np.float32))
        part = made[10:20]
        del made
        self.assertEqual(part.copy_to_host()[0], 10)
        self.assertEqual(self.current() - before, 4 * MIB)
        del part
        self.assertEqual(self.current(), before)

    def test_streams(self):
        before = self.current()
        stream = self.cuda.stream()
        array = self.cuda.to_device(np.ones(1 << 10), stream=stream)
        back = array.copy_to_host(stream=stream)
        stream.synchronize()
        self.assertEqual(back.sum(), 1 << 10)
        del array, stream
        self.assertEqual(self.current(), before)

    def test_a_refusal_is_a_memory_error_with_its_fields(self):
        held = self.cuda.device_array(20 * MIB, np.uint8)
        with self.assertRaises(lgpu.OutOfMemoryError) as caught:
            self.cuda.device_array(20 * MIB, np.uint8)
        refusal = caught.exception.refusal
        self.assertEqual((refusal["reason"], refusal["owners"][0]["op"]), ("limit", "numba"))
        del held
        gc.collect()
        self.cuda.device_array(20 * MIB, np.uint8)

    def test_memory_info_is_the_limit(self):
        held = self.cuda.device_array(4 * MIB, np.uint8)
        info = self.cuda.current_context().get_memory_info()
        self.assertEqual((info.total, info.total - info.free), (32 * MIB, self.current()))
        del held

    def test_ipc_is_refused_with_a_reason(self):
        array = self.cuda.device_array(MIB, np.uint8)
        with self.assertRaisesRegex(NotImplementedError, "no CUDA IPC handles"):
            array.get_ipc_handle()

    def test_no_second_context(self):
        with self.assertRaisesRegex(RuntimeError, "has its Context already"):
            lgpu.numba.use(self.ctx)

    def test_a_program_without_a_word_of_lgpu(self):
        code = """
            import numpy as np
            from numba import cuda
            array = cuda.to_device(np.ones(1 << 20, np.uint8))
            info = cuda.current_context().get_memory_info()
            print(info.total, array.copy_to_host().sum())
            try: cuda.device_array(64 << 20, np.uint8)
            except MemoryError as error: print(error.refusal["reason"])
            """
        with lgpu.LogicalMemory("16MiB") as memory:
            said = run(code, NUMBA_CUDA_MEMORY_MANAGER="lgpu.numba", LGPU_LEASE=memory.lease)
        self.assertEqual(said, (0, f"{16 * MIB} {MIB}\nlimit\n", ""))

    def test_simulated_gpus_are_refused(self):
        code = """
            import lgpu
            with lgpu.Context(endpoint="local:1x64MiB"): lgpu.numba.use()
            """
        code, out, errors = run(code)
        self.assertEqual((code, out), (1, ""))
        self.assertIn("GPU:0 is simulated; lgpu.numba needs a Context on real GPUs", errors)


if __name__ == "__main__":
    unittest.main()
