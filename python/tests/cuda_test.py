"""Tensors on a real GPU, as far as the fake driver shows it: values go in and out, memory is limited."""

import gc
import unittest

import numpy as np

import lgpu


class CudaTest(unittest.TestCase):
    def setUp(self):
        self.ctx = lgpu.Context(memory_limit="32MiB")
        self.addCleanup(self.ctx.close)

    def test_the_card_is_a_real_one(self):
        device, = self.ctx.logical_devices()
        self.assertFalse(device["simulated"])
        self.assertEqual([gpu.simulated for gpu in lgpu.config.list_physical_devices("GPU")], [False])

    def test_values_go_in_and_out(self):
        for elements in (3, 1 << 20):  # the second by way of the upload stream
            array = np.arange(elements, dtype=np.float32)
            tensor = self.ctx.constant(array)
            self.assertTrue(tensor.device.endswith("GPU:0"))
            np.testing.assert_array_equal(tensor.numpy(), array)

    def test_memory_is_limited_and_given_back(self):
        with self.assertRaises(MemoryError) as caught:
            self.ctx.constant(np.zeros(16 << 20, np.float32))
        self.assertEqual(caught.exception.refusal["reason"], "limit")
        tensor = self.ctx.constant(np.zeros(4 << 20, np.float32))
        del tensor
        gc.collect()
        self.assertEqual(self.ctx.memory_info("GPU:0")["current"], 0)


if __name__ == "__main__":
    unittest.main()
