"""Device scopes and policies: nesting, threads, tasks of asyncio that interleave."""

import asyncio
import threading
import unittest

import lgpu


def where(tensor):
    return tensor.device.rsplit(":", 2)[-2] + ":" + tensor.device.rsplit(":", 2)[-1]


class ScopesTest(unittest.TestCase):
    def setUp(self):
        self.ctx = lgpu.Context(devices=2, memory_limit="16MiB", endpoint="local:2x64MiB")
        self.addCleanup(self.ctx.close)

    def test_scopes_nest(self):
        ctx = self.ctx
        with ctx.device("GPU:1"):
            self.assertEqual(where(ctx.constant([1.0])), "GPU:1")
            with ctx.device("/CPU:0"):
                self.assertEqual(where(ctx.constant([1.0])), "CPU:0")
                with ctx.device(None):
                    self.assertEqual(where(ctx.constant([1.0])), "GPU:0")
            self.assertEqual(where(ctx.constant([1.0])), "GPU:1")
        self.assertEqual(where(ctx.constant([1.0])), "GPU:0")

    def test_a_scope_counts_for_its_context_only(self):
        other = lgpu.Context(devices=2, memory_limit="16MiB", endpoint="local:2x64MiB")
        with self.ctx.device("GPU:1"):
            self.assertEqual(where(other.constant([1.0])), "GPU:0")
        other.close()

    def test_an_exception_ends_the_scope(self):
        with self.assertRaises(KeyError), self.ctx.device("GPU:1"):
            raise KeyError
        self.assertEqual(where(self.ctx.constant([1.0])), "GPU:0")

    def test_a_wrong_name_fails_the_next_op(self):
        with self.ctx.device("GPU:one"), self.assertRaisesRegex(ValueError, "GPU:one"):
            self.ctx.constant([1.0])
        self.assertRaises(TypeError, self.ctx.device, 1)

    def test_another_thread_starts_without_scopes(self):
        seen = []
        with self.ctx.device("GPU:1"):
            thread = threading.Thread(target=lambda: seen.append(where(self.ctx.constant([1.0]))))
            thread.start()
            thread.join()
        self.assertEqual(seen, ["GPU:0"])

    def test_tasks_that_interleave_keep_their_own(self):
        shared = self.ctx.device("GPU:1")

        async def task(manager, expected, enter, leave):
            await enter.wait()
            with manager:
                for _ in range(3):
                    self.assertEqual(where(self.ctx.constant([1.0])), expected)
                    await asyncio.sleep(0)
                leave.set()
            self.assertEqual(where(self.ctx.constant([1.0])), "GPU:0")

        async def run():
            start, end = asyncio.Event(), asyncio.Event()
            start.set()
            # Scopes end in the order in which they were opened, not in reverse; one manager is entered by two tasks.
            await asyncio.gather(task(shared, "GPU:1", start, end), task(self.ctx.device("CPU:0"), "CPU:0", start, end),
                                 task(shared, "GPU:1", start, end))

        asyncio.run(run())

    def test_policy(self):
        a = self.ctx.constant([[1.0]])
        with self.ctx.device("GPU:1"):
            with self.ctx.device_policy("explicit"), self.assertRaises(ValueError):
                a @ a
            self.assertEqual(where(a @ a), "GPU:1")
        with self.assertRaisesRegex(ValueError, "is not one of"), self.ctx.device_policy("loud"):
            pass
        self.assertEqual(self.ctx.copy_counts()[0][2:], (1, 4))  # one tensor, used twice


if __name__ == "__main__":
    unittest.main()
