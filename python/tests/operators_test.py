"""A tensor beside numbers, and what a tensor has not: comparison, len, iteration, indices, numpy's functions."""

import operator
import unittest

import ml_dtypes
import numpy as np

import lgpu


class OperatorsTest(unittest.TestCase):
    def setUp(self):
        self.ctx = lgpu.Context(devices=2, memory_limit="32MiB", endpoint="local:1x64MiB")
        self.addCleanup(self.ctx.close)

    def test_a_number_beside_a_tensor_takes_its_element_type(self):
        for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64):
            a = self.ctx.constant(np.array([2, 4], dtype))
            for made, expected in ((2 * a + 1, [5, 9]), (a - 1, [1, 3]), (1 - a, [-1, -3]), (a * 3, [6, 12])):
                self.assertEqual(made.dtype, np.dtype(dtype))
                np.testing.assert_array_equal(made.numpy(), expected)
        a = self.ctx.constant([2.0, 4.0])
        self.assertEqual(((a / 2).tolist(), (8 / a).tolist(), (0.5 * a).tolist()), ([1, 2], [4, 2], [1, 2]))

    def test_numbers_of_numpy_are_numbers(self):
        a = self.ctx.constant([2.0, 4.0])
        for number in (np.float32(2), np.float64(2), np.float16(2), np.int64(2), np.int8(2)):
            for apply in (operator.add, operator.sub, operator.mul, operator.truediv):
                np.testing.assert_array_equal(apply(a, number).numpy(), apply(np.float32([2, 4]), 2))
                np.testing.assert_array_equal(apply(number, a).numpy(), apply(2, np.float32([2, 4])))

    def test_a_number_beside_a_tensor_is_in_its_context_and_its_device_scope(self):
        a = self.ctx.constant([1.0])
        with self.ctx.device("GPU:1"):
            self.assertTrue((a * 2).device.endswith("GPU:1"))

    def test_a_number_that_does_not_fit_says_what_to_write(self):
        whole = self.ctx.constant([1])
        for wrong in (lambda: whole * 0.5, lambda: 0.5 + whole, lambda: whole + np.float32(1)):
            self.assertRaisesRegex(TypeError, r"write lgpu.cast\(tensor, 'float32'\)", wrong)
        self.assertRaisesRegex(ValueError, r"4294967296 does not fit int32.*lgpu.cast\(tensor, 'int64'\)", lambda: whole + 2**32)
        self.assertRaisesRegex(ValueError, "does not fit int64.*a smaller number", lambda: lgpu.cast(whole, "int64") + 2**64)

    def test_what_a_tensor_has_not_says_what_to_write(self):
        a, b = self.ctx.constant([1.0, 2.0]), self.ctx.constant([1.0, 2.0])
        cases = [
            (r"a.numpy\(\) == b.numpy\(\)", lambda: a == b), ("`a is b`", lambda: a != b), ("`a is b`", lambda: a == None),  # noqa: E711
            (r"tensor.shape\[0\]", lambda: len(a)), (r"for row in tensor.numpy\(\)", lambda: list(a)),
            (r"value in tensor.numpy\(\)", lambda: 1.0 in a), (r"lgpu.slice_rows\(tensor, begin, count\)", lambda: a[0]),
            (r"tensor.numpy\(\)\[...\]", lambda: a[0:1]), ("", lambda: operator.setitem(a, 0, 1.0)),
            (r"a.numpy\(\) < b.numpy\(\)", lambda: a < b), (r"a.numpy\(\) < b.numpy\(\)", lambda: 2.0 >= a),
            (r"a \* a for a square", lambda: a ** 2), (r"a \* a for a square", lambda: 2 ** a),
            (r"a.numpy\(\) // b", lambda: a // 2), (r"a.numpy\(\) % b", lambda: 7 % a),
            ("operand", lambda: a @ 2), ("operand", lambda: a + "x"), ("operand", lambda: None * a),
            ("operand", lambda: lgpu.Tensor.__new__(lgpu.Tensor) + a), ("no value", lambda: -lgpu.Tensor.__new__(lgpu.Tensor)),
        ]
        for text, wrong in cases:
            self.assertRaisesRegex(TypeError, text, wrong)
        self.assertEqual(({a: 1, b: 2}[b], a is a), (2, True))  # its hash is that of the object

    def test_functions_of_numpy_say_what_to_write(self):
        a, array = self.ctx.constant([1.0, 2.0]), np.ones(2, np.float32)
        cases = [
            ("lgpu.reduce_sum, or numpy.sum of tensor.numpy", lambda: np.sum(a)), ("lgpu.reduce_mean", lambda: np.mean(a)),
            ("lgpu.add, or", lambda: np.add(a, a)), ("numpy.exp of tensor.numpy", lambda: np.exp(a)),
            ("lgpu.concat, or", lambda: np.concatenate([a, a])), ("numpy.stack of", lambda: np.stack([a, a])),
            ("numpy.shape", lambda: np.shape(a)), (r"lgpu.constant\(array\)", lambda: array + a),
            (r"lgpu.constant\(array\)", lambda: a * array), (r"lgpu.constant\(array\)", lambda: np.multiply(a, array)),
        ]
        for text, wrong in cases:
            self.assertRaisesRegex(TypeError, text, wrong)
        np.testing.assert_array_equal(np.asarray(a), np.array(a))  # these convert
        np.testing.assert_array_equal(np.array([a, a]), [[1, 2], [1, 2]])

    def test_an_axis_may_be_an_integer_of_numpy(self):
        a = self.ctx.constant([[1.0, 2.0], [3.0, 4.0]])
        for axis in (0, np.int64(0), np.int8(0), [np.int64(0)], (0,), np.array([0])):
            self.assertEqual(lgpu.reduce_sum(a, axis=axis).tolist(), [4, 6])
        self.assertEqual(lgpu.reduce_mean(a, axis=np.int32(-1)).tolist(), [1.5, 3.5])
        for wrong in ("x", 0.5, 2**40, np.float32(0)):
            self.assertRaisesRegex(TypeError, "axis is .*; it is a number of a dimension", lambda: lgpu.reduce_sum(a, axis=wrong))


if __name__ == "__main__":
    unittest.main()
