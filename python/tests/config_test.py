"""lgpu.config, as tf.config has it; with a daemon of two simulated GPUs of 1 GiB."""

import os
import threading
import unittest

import lgpu
from lgpu import config

MIB = 1 << 20


class ConfigTest(unittest.TestCase):
    def setUp(self):
        config._forget()
        self.addCleanup(config._forget)

    def test_physical_devices(self):
        gpus = config.list_physical_devices("GPU")
        self.assertEqual([gpu.name for gpu in gpus], ["/physical_device:GPU:0", "/physical_device:GPU:1"])
        self.assertTrue(gpus[0].simulated)
        self.assertEqual(gpus[0].total, 1024 * MIB)
        self.assertEqual([device.device_type for device in config.list_physical_devices()], ["CPU", "GPU", "GPU"])
        self.assertIn("device_name", config.experimental.get_device_details(gpus[0]))

    def test_a_context_is_made_of_it(self):
        gpus = config.list_physical_devices("GPU")
        config.set_visible_devices(gpus[1], "GPU")
        limits = [lgpu.LogicalDeviceConfiguration("64MiB", guarantee="16MiB"), lgpu.LogicalDeviceConfiguration(32 * MIB)]
        config.set_logical_device_configuration(gpus[1], limits)
        self.assertEqual(config.get_logical_device_configuration(gpus[1])[1].memory_limit, 32 * MIB)
        self.assertEqual([gpu.name for gpu in config.get_visible_devices("GPU")], [gpus[1].name])
        with lgpu.Context() as ctx:
            self.assertEqual([device["memory_limit"] for device in ctx.logical_devices()], [64 * MIB, 32 * MIB])
            self.assertEqual(ctx.logical_devices()[0]["card_index"], 1)
            self.assertEqual(config.list_logical_devices("GPU"), ctx.list_logical_devices("GPU"))
            kept = lgpu.fill([MIB], 1.0)
            self.assertGreaterEqual(config.experimental.get_memory_info("GPU:0")["current"], kept.nbytes)
            config.experimental.reset_memory_stats("GPU:0")
            with self.assertRaises(RuntimeError):
                config.set_visible_devices(gpus[0], "GPU")

    def test_what_was_not_changed_is_not_used(self):
        config.list_physical_devices()
        with lgpu.Context(memory_limit="16MiB") as ctx:
            self.assertEqual(len(ctx.logical_devices()), 1)

    def test_keywords_are_merged_over_it(self):
        config.set_visible_devices("GPU:0", "GPU")
        config.set_logical_device_configuration("GPU:0", [lgpu.LogicalDeviceConfiguration("64MiB")])
        for keywords in ({"log_device_placement": True}, {"soft_device_placement": False}, {"device_policy": "warn"},
                         {"pin_small_ops": True}, {"allocation_timeout": 1}, {"lease_name": "merged"}, {"cast_on_gpu": True},
                         {"tensor_float_32": True}, {"graph_log_format": True}, {"endpoint": os.environ["LGPU_ENDPOINT"]}):
            lines = []
            with self.subTest(keywords=keywords), lgpu.Context(log_sink=lines.append, **keywords) as ctx:
                self.assertEqual([device["memory_limit"] for device in ctx.logical_devices()], [64 * MIB])
                self.assertEqual(config.list_logical_devices("GPU"), ctx.list_logical_devices("GPU"))
                ctx.constant([1.0])
                self.assertEqual(any("Executing op" in line for line in lines), "log_device_placement" in keywords)
                self.assertEqual(config.get_soft_device_placement(), "soft_device_placement" not in keywords)
                self.assertEqual(config.experimental.get_device_policy(), keywords.get("device_policy", "silent"))
        self.assertTrue(config.get_soft_device_placement())  # of one Context, not of lgpu.config
        with self.assertRaises(ValueError):
            lgpu.Context(allocation_timeout=-1)

    def test_what_cannot_be_merged_is_refused(self):
        config.set_logical_device_configuration("GPU:0", [lgpu.LogicalDeviceConfiguration("64MiB")])
        for keywords, named in (({"devices": 2}, "devices="), ({"memory_limit": "1GiB"}, "memory_limit="),
                                ({"devices": 1, "memory_limit": "32MiB"}, "devices=, memory_limit="), ({"lease": "x"}, "lease=")):
            with self.assertRaisesRegex(ValueError, f"^{named} cannot be merged with the devices that lgpu.config was told"):
                lgpu.Context(**keywords)
        with self.assertRaisesRegex(ValueError, "is another one than that of the Config"):
            lgpu.Context(endpoint="local:1x64MiB")
        lgpu.Context().close()

    def test_a_setter_that_fails_tells_nothing(self):
        with self.assertRaises(ValueError):
            config.set_visible_devices("GPU:9", "GPU")
        with lgpu.Context(devices=2, memory_limit="16MiB") as ctx:
            self.assertEqual(len(ctx.logical_devices()), 2)

    def test_switches_reach_a_context_with_devices_of_its_own(self):
        config.set_soft_device_placement(False)
        for keywords in ({"devices": 2, "memory_limit": "16MiB"}, {"endpoint": "local:2x64MiB", "devices": 2}):
            with lgpu.Context(**keywords) as ctx:
                self.assertEqual(len(ctx.logical_devices()), 2)
                with ctx.device("GPU:7"), self.assertRaises(lgpu.Error):
                    ctx.constant([1.0])
        with lgpu.Context(devices=1, soft_device_placement=True) as ctx, ctx.device("GPU:7"):
            ctx.constant([1.0])

    def test_a_config_of_its_own(self):
        own = lgpu.Config(strict=True)
        own.set_memory_growth("GPU:0", True)
        self.assertIs(own.get_memory_growth("GPU:0"), True)
        self.assertIsNone(own.get_memory_growth("GPU:1"))
        with self.assertRaisesRegex(ValueError, "Cannot set memory growth on device when virtual devices configured|"
                                                "both memory growth"):
            own.set_logical_device_configuration("GPU:0", [lgpu.LogicalDeviceConfiguration("64MiB")])
            own.set_memory_growth("GPU:0", True)
        with self.assertRaisesRegex(ValueError, "one of them"):
            lgpu.Context(config=own, memory_limit="1GiB")
        lines = []
        with lgpu.Context(config=lgpu.Config(), log_device_placement=True, log_sink=lines.append) as ctx:
            ctx.constant([1.0])
        self.assertTrue(lines)

    def test_a_strict_config_on_a_full_card_is_refused(self):
        own = lgpu.Config(strict=True)
        for gpu in ("GPU:0", "GPU:1"):
            own.set_memory_growth(gpu, True)
        with lgpu.Context(devices=[lgpu.Device("1GiB", guarantee="1GiB", physical_device="1")]):
            with self.assertRaisesRegex(lgpu.ResourceExhaustedError, "GPU:1 would have a memory limit of 0"):
                lgpu.Context(config=own)

    def test_a_number_below_a_mebibyte_counts_mebibytes(self):
        own = lgpu.Config()
        for given, limit in ((16, 16 * MIB), (8 * MIB, 8 * MIB), ("4MiB", 4 * MIB)):
            own.set_logical_device_configuration("GPU:0", [lgpu.LogicalDeviceConfiguration(memory_limit=given)])
            self.assertEqual(own.get_logical_device_configuration("GPU:0")[0].memory_limit, limit)

    def test_threads_share_a_config(self):
        own = lgpu.Config()
        failures = []

        def work(megabytes):
            try:
                for _ in range(50):
                    own.set_logical_device_configuration("GPU:0", [lgpu.LogicalDeviceConfiguration(megabytes * MIB)] * 2)
                    self.assertEqual(len(own.get_logical_device_configuration("GPU:0")), 2)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(megabytes,)) for megabytes in (16, 32, 64)]
        with lgpu.Context(config=own):
            pass
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_switches(self):
        own = lgpu.Config()
        for set_it, get in ((own.set_soft_device_placement, own.get_soft_device_placement),
                            (own.set_log_device_placement, own.get_log_device_placement)):
            for value in (True, False):
                set_it(value)
                self.assertIs(get(), value)
            self.assertRaises(TypeError, set_it, 1)
        own.set_device_policy("warn")
        self.assertEqual(own.get_device_policy(), "warn")
        with self.assertRaisesRegex(ValueError, "Invalid argument `device_policy`"):
            own.set_device_policy("loud")
        self.assertRaises(ValueError, own.set_visible_devices, "GPU:9")


if __name__ == "__main__":
    unittest.main()
