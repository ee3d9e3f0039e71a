"""LogicalMemory from Python, with a daemon of two simulated GPUs of 1 GiB and without one."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest
import weakref

import lgpu

MIB = 1 << 20
LOCAL = "local:1x64MiB"


class Stream:
    """As cuda.core has them."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


class MemoryTest(unittest.TestCase):
    def test_blocks_are_memory(self):
        with lgpu.LogicalMemory("32MiB", endpoint=LOCAL) as memory:
            address = memory.allocate(4 * MIB, 16, tag="mine")
            self.assertEqual((address % 256, memory.find(address), memory.cuda_device), (0, 4 * MIB, -1))
            ctypes.memset(address, 7, 4 * MIB)
            self.assertEqual(ctypes.string_at(address + 4 * MIB - 2, 2), b"\7\7")
            self.assertEqual(memory.live_blocks(), (1, 4 * MIB, 0))
            self.assertEqual(memory.stats()["used"], 4 * MIB)
            block, = [one for one in memory.snapshot()["blocks"] if one["state"] == "live"]
            self.assertEqual((block["op"], block["bytes"]), ("mine", 4 * MIB))
            memory.use_on(address, Stream(32))
            memory.free(address, 16)
            memory.forget_stream(16)
            self.assertEqual(memory.live_blocks(), (0, 0, 0))
            self.assertGreater(memory.trim(), 0)
            self.assertEqual(memory.stats()["held"], 0)
            self.assertIn("32.00MiB", repr(memory))

    def test_a_refusal_has_its_fields(self):
        with lgpu.LogicalMemory("32MiB", endpoint=LOCAL, allocation_timeout=0) as memory:
            address = memory.allocate("20MiB", tag="weights")
            with self.assertRaises(lgpu.OutOfMemoryError) as caught:
                memory.allocate("20MiB", tag="gradients")
            refusal = caught.exception.refusal
            self.assertEqual((refusal["reason"], refusal["asked_bytes"], refusal["limit_bytes"]), ("limit", 20 * MIB, 32 * MIB))
            self.assertEqual(refusal["owners"][0]["op"], "weights")
            self.assertEqual(memory.stats()["num_refusals"], 1)
            memory.resize("48MiB")
            memory.free(memory.allocate("20MiB"))
            memory.free(address)

    def test_wrong_use_is_an_exception(self):
        with lgpu.LogicalMemory("32MiB", endpoint=LOCAL) as memory:
            self.assertEqual(memory.allocate(0), 0)
            memory.free(0)
            address = memory.allocate(100, alignment=4096)
            self.assertEqual(address % 4096, 0)
            for wrong in (address + 256, 1 << 20):
                self.assertRaises(ValueError, memory.free, wrong)
                self.assertRaises(ValueError, memory.use_on, wrong, 16)
                self.assertRaises(ValueError, memory.find, wrong)
            self.assertRaises(ValueError, memory.allocate, 100, alignment=3)
            self.assertRaises(ValueError, memory.resize, 0)
            for wrong in (1.5, "lots", None, -1):
                self.assertRaises((TypeError, ValueError), memory.allocate, wrong)
            for wrong in (-1, "default", 1.0):
                self.assertRaises(TypeError, memory.allocate, 100, wrong)
            memory.free(address)
            self.assertRaises(ValueError, memory.free, address)
        self.assertRaises(ValueError, lgpu.LogicalMemory, "1MiB", mode="fast", endpoint=LOCAL)
        self.assertRaises(LookupError, lgpu.LogicalMemory, lease="no-such-lease")

    def test_close_says_what_is_live(self):
        memory = lgpu.LogicalMemory("32MiB", endpoint=LOCAL)
        address = memory.allocate(2 * MIB)
        with self.assertRaisesRegex(RuntimeError, r"1 block \(2.00MiB\) of this memory is still in use"):
            memory.close()
        memory.free(address)
        memory.close()
        memory.close()
        with self.assertRaisesRegex(RuntimeError, "is closed"):
            memory.allocate(1)

    def test_a_with_block_and_garbage_give_all_back(self):
        for _ in range(2):
            with lgpu.LogicalMemory("900MiB", guarantee="900MiB", physical_device="0") as memory:
                memory.allocate(1)
            with self.assertRaisesRegex(RuntimeError, "ended with its `with` block"):
                memory.allocate(1)
            self.assertIn("900.00MiB", repr(memory))
            self.assertNotIn(memory.lease, [lease["id"] for lease in lgpu.leases()])
        for _ in range(2):
            memory = lgpu.LogicalMemory("900MiB", guarantee="900MiB", physical_device="0")
            memory.allocate(1)
            left = weakref.ref(memory)
            del memory
            gc.collect()
            self.assertIsNone(left())

    def test_a_lease_is_attached_to(self):
        with lgpu.LogicalMemory("64MiB", lease_name="shared") as first:
            address = first.allocate("40MiB")
            code = ("import lgpu, sys\n"
                    "with lgpu.LogicalMemory(lease=sys.argv[1], allocation_timeout=0) as memory:\n"
                    "    print(memory.lease_name, memory.device['memory_limit'])\n"
                    "    try: memory.allocate('40MiB')\n"
                    "    except MemoryError as error: print(error.refusal['reason'])")
            done = subprocess.run([sys.executable, "-c", code, first.lease], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.stdout, done.stderr), (f"shared {64 * MIB}\nlimit\n", ""))
            first.free(address)
            with self.assertRaisesRegex(LookupError, "device 1 of lease"):
                lgpu.LogicalMemory(lease=first.lease, device_of_lease=1)

    def test_the_memory_of_a_context_is_its_tensors_memory(self):
        ctx = lgpu.Context(memory_limit="32MiB", allocation_timeout=0)
        memory = ctx.memory()
        self.assertRaises(ValueError, ctx.memory, "CPU:0")
        self.assertEqual(memory.lease, ctx.lease)
        address = memory.allocate("20MiB")
        with self.assertRaises(MemoryError):
            ctx.fill([5 * MIB], 1.0)
        with self.assertRaisesRegex(lgpu.ExportsInUseError, "1 block"):
            ctx.close()
        with ctx:
            pass
        self.assertRaisesRegex(RuntimeError, "Context of this LogicalMemory is gone", memory.allocate, 1)
        memory.free(address)  # the last block ends the lease
        self.assertNotIn(ctx.lease, [lease["id"] for lease in lgpu.leases()])

    def test_a_waiting_allocation_lets_the_thread_run_that_frees(self):
        with lgpu.LogicalMemory("32MiB", allocation_timeout=20) as memory:
            started = threading.Event()
            held = []

            # At the limit an allocation waits where another thread has used the device of late.
            def free():
                held.append(memory.allocate("24MiB"))
                started.set()
                while not memory.waits:
                    pass
                memory.free(held.pop())

            memory.waits = False
            thread = threading.Thread(target=free)
            thread.start()
            started.wait()
            memory.waits = True  # the other thread needs the interpreter's lock from here on
            memory.free(memory.allocate("24MiB"))
            thread.join()

    def test_a_short_op_that_waits_lets_the_thread_run_that_frees(self):
        with lgpu.Context(memory_limit="32MiB", allocation_timeout=20, endpoint=LOCAL) as ctx:
            started, waits = threading.Event(), []
            short = ctx.fill([1024], 1.0)

            def free():
                held = ctx.fill([6 * MIB], 1.0)
                started.set()
                while not waits:
                    pass
                del held

            thread = threading.Thread(target=free)
            thread.start()
            started.wait()
            left = 32 * MIB - ctx.memory_info("GPU:0")["current"]
            rest = ctx.fill([(left - 2048) // 4], 1.0)  # the op below needs 4096 bytes
            waits.append(True)  # the other thread needs the interpreter's lock from here on
            self.assertEqual((short + short).numpy()[0], 2.0)
            thread.join()
            self.assertGreater(rest.nbytes, 7 * MIB)

    def test_the_interpreter_ends_with_everything_open(self):
        code = """if True:
            import lgpu, sys, threading
            memory = lgpu.LogicalMemory("32MiB")
            ctx = lgpu.Context(memory_limit="16MiB")
            sys.kept = (ctx.memory(), ctx.memory().allocate(100), memory.allocate(100))
            from lgpu import _core
            _core.torch_use(0, memory._core)
            def forever():
                while True: memory.free(memory.allocate("1MiB"))
            threading.Thread(target=forever, daemon=True).start()
            print("end")
            """
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "end\n", ""))

    def test_a_forked_child_finds_it_dead(self):
        memory = lgpu.LogicalMemory("16MiB")
        address = memory.allocate(100)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                memory.allocate(100)
            except RuntimeError as error:
                code = 0 if "fork" in str(error) else 2
            del memory
            os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        memory.free(address)
        memory.close()


if __name__ == "__main__":
    unittest.main()
