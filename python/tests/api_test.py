"""Contexts, tensors, ops, explain, memory figures."""

import gc
import sys
import unittest
import unittest.mock

import numpy as np

import lgpu

ENDPOINT = "local:2x64MiB"


class ApiTest(unittest.TestCase):
    def setUp(self):
        self.ctx = lgpu.Context(devices=2, memory_limit="32MiB", endpoint=ENDPOINT)
        self.addCleanup(self.ctx.close)

    def test_matmul_on_each_device_and_a_sum_of_both(self):
        ctx = self.ctx
        a = ctx.constant(np.arange(4, dtype=np.float32).reshape(2, 2))
        with ctx.device("GPU:1"):
            b = lgpu.matmul(a, a, transpose_b=True)
        c = lgpu.add_n([a, b])
        self.assertTrue(b.device.endswith("GPU:1"))
        self.assertTrue(c.device.endswith("GPU:0"))
        np.testing.assert_array_equal(c.numpy(), [[1, 4], [5, 16]])
        np.testing.assert_array_equal((a @ a.T).numpy(), b.numpy())

    def test_numbers_become_what_numpy_makes_of_them_as_tensorflow_takes_them(self):
        nested = 7
        for _ in range(8):
            nested = [nested]
        for value in (1, -2.5, [True, 3], [1, 2], (1, 2.5), [[1, 2], (3, 4)], [1 << 40, 2], [1 << 31], -(1 << 31), [], [[], []], nested,
                      [16777217, 0.5], [float("inf"), 5e-46], [1 << 63, 1.0], [np.float64(0.5), 1], [np.ones(2), [1, 2]]):
            expected = np.array(value)
            if expected.dtype == np.float64:
                expected = expected.astype(np.float32)
            elif expected.dtype != np.int64 or np.all(expected == expected.astype(np.int32)):
                expected = expected.astype(np.int32)
            made = self.ctx.constant(value)
            self.assertEqual((made.dtype, made.shape), (expected.dtype, expected.shape), value)
            np.testing.assert_array_equal(made.numpy(), expected)

    def test_operators(self):
        a, b = self.ctx.constant([[1.0, 2.0]]), self.ctx.constant([[4.0, 8.0]])
        for made, expected in ((a + b, [[5, 10]]), (a - b, [[-3, -6]]), (a * b, [[4, 16]]), (b / a, [[4, 4]]),
                               (-a, [[-1, -2]]), (a.T, [[1], [2]]), (a.reshape([2]), [1, 2])):
            np.testing.assert_array_equal(made.numpy(), expected)

    def test_operators_take_tensors_and_numbers_only(self):
        a = self.ctx.constant([1.0])
        for wrong in (lambda: a + "1", lambda: a @ 1, lambda: a @ "x", lambda: a + [1.0], lambda: a + True, lambda: None - a, lambda: a + np.ones(1, np.float32),
                      lambda: np.ones(1, np.float32) + a):
            self.assertRaises(TypeError, wrong)

    def test_every_op_runs(self):
        ctx = self.ctx
        x = ctx.constant(np.arange(6, dtype=np.float32).reshape(2, 3) - 2)
        cases = [
            (lgpu.add(x, x), x.numpy() * 2), (lgpu.subtract(x, x), x.numpy() * 0), (lgpu.multiply(x, x), x.numpy() ** 2),
            (lgpu.divide(x, ctx.fill([], 2.0)), x.numpy() / 2), (lgpu.negative(x), -x.numpy()),
            (lgpu.relu(x), np.maximum(x.numpy(), 0)), (lgpu.tanh(x), np.tanh(x.numpy())),
            (lgpu.tanh_grad(x, x), x.numpy() * (1 - x.numpy() ** 2)), (lgpu.relu_grad(x, x), np.where(x.numpy() > 0, x.numpy(), 0)),
            (lgpu.transpose(x, [1, 0]), x.numpy().T), (lgpu.concat([x, x]), np.concatenate([x.numpy()] * 2)),
            (lgpu.reshape(x, [3, 2]), x.numpy().reshape(3, 2)), (lgpu.slice_rows(x, 1, 1), x.numpy()[1:]),
            (lgpu.reduce_sum(x), x.numpy().sum()), (lgpu.reduce_sum(x, axis=0), x.numpy().sum(0)),
            (lgpu.reduce_mean(x, axis=[1], keepdims=True), x.numpy().mean(1, keepdims=True)),
            (lgpu.cast(x, np.int64), x.numpy().astype(np.int64)), (lgpu.identity(x), x.numpy()),
            (lgpu.shape_of(x), [2, 3]), (lgpu.size_of(x), 6), (lgpu.rank_of(x), 2), (ctx.fill([2], 7.0), [7, 7]),
        ]
        for made, expected in cases:
            np.testing.assert_allclose(made.numpy(), expected)
        loss, gradient = lgpu.sparse_softmax_cross_entropy_with_logits(labels=ctx.constant([0, 1]), logits=x)
        self.assertEqual((loss.shape, gradient.shape), ((2,), (2, 3)))
        self.assertEqual(x.to("CPU:0").device, "/job:localhost/replica:0/task:0/device:CPU:0")

    def test_values_go_in_and_out_in_every_dtype(self):
        import ml_dtypes
        for dtype in (np.float32, np.float64, np.int32, np.int64, np.float16, ml_dtypes.bfloat16):
            for array in (np.array(3, dtype), np.ones((2, 3), dtype), np.zeros((2, 0), dtype)):
                tensor = self.ctx.constant(array)
                self.assertEqual((tensor.dtype, tensor.shape, tensor.nbytes), (np.dtype(dtype), array.shape, array.nbytes))
                np.testing.assert_array_equal(np.asarray(tensor), array)

    def test_numbers_of_python_are_float32_and_int32(self):
        self.assertEqual(self.ctx.constant([[1, 2]]).dtype, np.int32)
        self.assertEqual(self.ctx.constant([1.5]).dtype, np.float32)
        self.assertEqual(self.ctx.constant([1 << 40]).dtype, np.int64)
        self.assertEqual(self.ctx.constant([1.5], dtype="float64").dtype, np.float64)
        self.assertEqual(self.ctx.constant(np.ones(1), dtype=np.float32).dtype, np.float32)
        self.assertEqual(self.ctx.constant(2.5).item(), 2.5)
        self.assertEqual((float(self.ctx.constant(2.5)), int(self.ctx.constant(2)), bool(self.ctx.constant(0))), (2.5, 2, False))

    def test_wrong_values_are_errors_of_python(self):
        wrong = [
            (ValueError, "not C-contiguous", lambda: self.ctx.constant(np.ones((4, 4), np.float32)[:, ::2])),
            (ValueError, "uint8", lambda: self.ctx.constant(np.ones(2, np.uint8))),
            (ValueError, "foreign byte order", lambda: self.ctx.constant(np.ones(2, ">f4"))),
            (ValueError, "rows differ in length", lambda: self.ctx.constant([[1, 2], [3]])),
            (ValueError, "are not numbers", lambda: self.ctx.constant(["a"])),
            (ValueError, "at most 64 bits", lambda: self.ctx.constant(1 << 70)),
            (ValueError, "does not fit the element type", lambda: self.ctx.constant(1 << 40, dtype="int32")),
            (ValueError, "dimension below 0", lambda: self.ctx.constant(1.0, shape=[-1])),
            (ValueError, "lgpu.fill makes on the device", lambda: self.ctx.constant(1.0, shape=[1 << 62])),
            (TypeError, "list of whole numbers", lambda: self.ctx.constant(1.0, shape=3)),
            (TypeError, "list of whole numbers", lambda: self.ctx.fill([2.5], 1.0)),
            (ValueError, r"shape \[2\] is no single value", lambda: self.ctx.constant([1, 2]).item()),
            (ValueError, "is no single value", lambda: float(self.ctx.constant([1.0, 2.0]))),
            (ValueError, "is no single value", lambda: bool(self.ctx.constant(np.zeros(0, np.float32)))),
            (TypeError, "is not an element type", lambda: self.ctx.constant([1], dtype="flaot")),
            (ValueError, "is a copy", lambda: np.asarray(self.ctx.constant([1]), copy=False)),
            (ValueError, "Matrix size-incompatible|incompatible", lambda: self.ctx.constant([[1.0]]) @ self.ctx.constant([[1.0]] * 2)),
            (TypeError, "", lambda: lgpu.matmul(np.ones((2, 2)), np.ones((2, 2)))),
            (TypeError, "", lambda: lgpu.add_n([1, 2])),
            (ValueError, "", lambda: lgpu.reshape(self.ctx.constant([1.0]), [-1])),
        ]
        for kind, text, call in wrong:
            with self.assertRaisesRegex(kind, text):
                call()

    def test_repr_is_one_line_with_values(self):
        self.assertEqual(repr(self.ctx.constant([[1.0, 2.0], [3.0, 4.0]])),
                         "<lgpu.Tensor shape=(2, 2) dtype=float32 device=GPU:0 [[1. 2.] [3. 4.]]>")
        self.assertNotIn("\n", repr(self.ctx.fill([4000], 1.0)))
        halves = [self.ctx.constant(values, dtype="bfloat16") for values in (1.5, [1.5, -2.0], np.zeros((2, 0), np.float32))]
        with unittest.mock.patch.dict(sys.modules, {"ml_dtypes": None}):
            self.assertEqual([repr(tensor).partition("GPU:0 ")[2] for tensor in halves], ["1.5>", "[ 1.5 -2. ]>", "[]>"])
            self.assertRaisesRegex(TypeError, "pip install ml_dtypes", halves[0].numpy)
        self.assertEqual(repr(self.ctx), "<lgpu.Context GPU:0 32.00MiB, GPU:1 32.00MiB>")
        self.assertIn("32.00MiB limit", self.ctx._repr_html_())

    def test_a_with_block_is_the_current_context(self):
        with lgpu.Context(endpoint=ENDPOINT) as outer:
            with lgpu.Context(endpoint=ENDPOINT) as inner:
                self.assertIs(lgpu.current_context(), inner)
            self.assertIs(lgpu.current_context(), outer)
            self.assertEqual(lgpu.constant([1.0]).shape, (1,))
        with self.assertRaisesRegex(RuntimeError, "the Context is closed"):
            outer.constant([1.0])

    def test_the_end_of_a_with_block_keeps_the_exception_of_the_body(self):
        def fails():
            raise lgpu.InternalError("of close")

        ctx = lgpu.Context(endpoint=ENDPOINT)
        self.addCleanup(ctx._core.close)
        ctx.close = fails
        with self.assertRaisesRegex(KeyError, "of the body") as caught:
            with ctx:
                raise KeyError("of the body")
        self.assertIn("of close", caught.exception.__notes__[0])
        with self.assertRaisesRegex(lgpu.InternalError, "of close"):
            with ctx:
                pass

    def test_tensors_of_another_or_of_a_closed_context(self):
        other = lgpu.Context(endpoint=ENDPOINT)
        a, b = self.ctx.constant([1.0]), other.constant([1.0])
        with self.assertRaisesRegex(ValueError, "another Context"):
            a + b
        other.close()
        other.close()
        for use in (b.numpy, lambda: b + b, lambda: other.memory_info("GPU:0"), other.trim):
            self.assertRaises(RuntimeError, use)
        self.assertIn("without values", repr(b))
        self.assertIn("closed", other._repr_html_())

    def test_sizes(self):
        for wrong in (0.5, 1e9, True, None):
            with self.assertRaises(TypeError):
                self.ctx.resize("GPU:0", wrong)
        for wrong in ("2GB", "much", -1, 1 << 64):
            with self.assertRaises(ValueError):
                self.ctx.resize("GPU:0", wrong)
        self.ctx.resize("GPU:0", "16MiB")
        self.assertEqual(self.ctx.memory_stats("GPU:0")["limit"], 16 << 20)
        for wrong in (0, -1, [], "two"):
            with self.assertRaises((ValueError, TypeError)):
                lgpu.Context(devices=wrong, endpoint=ENDPOINT)
        for ask in (lambda: lgpu.Context(memory_limit=0, endpoint=ENDPOINT), lambda: lgpu.Context([lgpu.Device(0)], endpoint=ENDPOINT),
                    lambda: lgpu.LogicalMemory(0, endpoint=ENDPOINT)):
            self.assertRaisesRegex(ValueError, "memory_limit is 0, which allows nothing", ask)
        for small, hint in ((1024, "write '1024MiB' or '2GiB'"), ("1MiB", "write '2GiB'"), ((2 << 20) - 1, "write '2GiB'")):
            with self.assertRaisesRegex(ValueError, f"the smallest is 2MiB.*{hint}"):
                lgpu.Context(memory_limit=small, endpoint=ENDPOINT)
            self.assertRaisesRegex(ValueError, "the smallest is 2MiB", lgpu.LogicalMemory, small, endpoint=ENDPOINT)
        lgpu.Context(memory_limit=2 << 20, endpoint=ENDPOINT).close()
        with self.assertRaisesRegex(ValueError, r"number of logical devices, 1 to 64.*memory_limit=2147483648 \(bytes\)"):
            lgpu.Context(2 << 30, endpoint=ENDPOINT)
        with self.assertRaisesRegex(ValueError, "65 logical devices were asked for; a lease has 1 to 64"):
            lgpu.Context([lgpu.Device("2MiB")] * 65, endpoint=ENDPOINT)
        with self.assertRaisesRegex(ValueError, "cannot simulate"):
            lgpu.Context(endpoint="local:nonsense")

    def test_options_of_wrong_types(self):
        for option in ({"lease": 5}, {"endpoint": b"local"}, {"log_device_placement": "yes"}, {"pin_small_ops": 1},
                       {"allocation_timeout": "long"}):
            with self.assertRaises(TypeError):
                lgpu.Context(**{"endpoint": ENDPOINT, **option})
        with self.assertRaisesRegex(TypeError, "log_device_placement of a Context cannot be 'yes'"):
            lgpu.Context(endpoint=ENDPOINT, log_device_placement="yes")
        for wrong in (-1.0, float("nan"), float("inf")):
            with self.assertRaisesRegex(ValueError, "allocation_timeout is .* a number of seconds"):
                lgpu.Context(endpoint=ENDPOINT, allocation_timeout=wrong)
        self.assertRaisesRegex(TypeError, "config is an lgpu.Config", lgpu.Context, config=5)
        config = lgpu.Config(endpoint=ENDPOINT)
        for call in (config.get_logical_device_configuration, config.set_visible_devices):
            self.assertRaisesRegex(TypeError, "a device is one of list_physical_devices", call, 5)
        self.assertRaisesRegex(TypeError, "device_type is", config.list_physical_devices, 5)
        with self.assertRaisesRegex(TypeError, "list of LogicalDeviceConfiguration"):
            config.set_logical_device_configuration("GPU:0", [5])
        tensor = self.ctx.constant([1.0])
        for request in ({"max_version": "1"}, {"max_version": 1}, {"dl_device": 5}, {"copy": "no"}, {"dl_device": ("cpu", 0)}):
            with self.assertRaises((TypeError, ValueError)):
                tensor.__dlpack__(**request)
        self.assertRaises(TypeError, lgpu.Tensor)

    def test_out_of_memory_carries_the_refusal(self):
        with self.assertRaises(lgpu.OutOfMemoryError) as caught:
            self.ctx.constant(np.zeros(16 << 20, np.float32))
        error = caught.exception
        self.assertIsInstance(error, MemoryError)
        self.assertIsInstance(error, lgpu.Error)
        self.assertEqual(error.code, "RESOURCE_EXHAUSTED")
        self.assertEqual(error.refusal["reason"], "limit")
        self.assertEqual((error.refusal["asked_bytes"], error.refusal["limit_bytes"]), (64 << 20, 32 << 20))
        self.assertIn("OOM when allocating", str(error))
        self.assertTrue(error.refusal["advice"])

    def test_memory_figures(self):
        self.assertEqual(self.ctx.memory_info("GPU:1"), {"current": 0, "peak": 0})
        kept = self.ctx.fill([1 << 20], 1.0)
        info = self.ctx.memory_info("GPU:0")
        self.assertGreaterEqual(info["current"], kept.nbytes)
        del kept
        self.assertLess(self.ctx.memory_info("GPU:0")["current"], 1 << 20)
        self.assertGreaterEqual(self.ctx.memory_info("GPU:0")["peak"], 4 << 20)
        self.ctx.reset_memory_stats("GPU:0")
        self.assertLess(self.ctx.memory_info("GPU:0")["peak"], 1 << 20)
        self.assertGreater(self.ctx.trim(), 0)
        self.assertIn("GPU:0", self.ctx.memory_summary())
        with self.assertRaises(ValueError):
            self.ctx.memory_info("GPU:7")

    def test_a_suspended_context_has_its_values_afterwards(self):
        values = np.arange(1 << 20, dtype=np.float32)
        kept = self.ctx.constant(values)
        gone = self.ctx.constant(values)
        self.ctx.suspend()
        with self.assertRaisesRegex(lgpu.FailedPreconditionError, "suspended.*\n.*Resume"):
            kept + kept
        del gone
        gc.collect()
        self.ctx.resume()
        np.testing.assert_array_equal(kept.numpy(), values)
        array = np.from_dlpack(kept)
        with self.assertRaisesRegex(lgpu.errors.ExportsInUseError, "cannot be suspended"):
            self.ctx.suspend()
        del array
        gc.collect()
        self.ctx.suspend()

    def test_explain_says_where_and_why(self):
        a = self.ctx.constant([[1.0]])
        with self.ctx.device("GPU:1"):
            explanation = self.ctx.explain("MatMul", a, a)
        self.assertTrue(explanation.device.endswith("GPU:1"))
        self.assertFalse(explanation.soft_placed)
        self.assertEqual([copy["input"] for copy in explanation.copies], [0, 1])
        self.assertIn("MatMul", str(explanation))
        with self.assertRaises(ValueError):
            self.ctx.explain("NoSuchOp", a)

    def test_placement_is_logged_to_the_sink(self):
        lines = []
        ctx = lgpu.Context(endpoint=ENDPOINT, log_device_placement=True, log_sink=lines.append)
        a = ctx.constant([[1.0]])
        lgpu.matmul(a, a)
        self.assertIn("Executing op MatMul in device /job:localhost/replica:0/task:0/device:GPU:0", lines)
        self.assertEqual(ctx.op_counts()["/job:localhost/replica:0/task:0/device:GPU:0"], (2, 0))
        ctx.set_log_device_placement(False)
        count = len(lines)
        a @ a
        self.assertEqual(len(lines), count)
        ctx.close()

    def test_garbage_gives_back(self):
        before = self.ctx.memory_info("GPU:0")["current"]
        self.ctx.fill([1 << 18], 1.0)
        gc.collect()
        self.assertEqual(self.ctx.memory_info("GPU:0")["current"], before)


if __name__ == "__main__":
    unittest.main()
