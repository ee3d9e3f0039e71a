#!/usr/bin/env python3
"""bench/cluster_simulation.py: its bookkeeping on small clusters, and that a seed means one result.

cluster_simulation_test.py ROOT"""

import pathlib
import random
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv.pop(1)) / "bench"))
import cluster_simulation as simulation  # noqa: E402
from cluster_simulation import UNITS, Job  # noqa: E402


class ClusterTest(unittest.TestCase):
    def test_a_part_goes_to_the_gpu_with_the_least_free_memory_that_is_enough(self):
        cluster = simulation.Cluster(1)
        self.assertEqual(cluster.take(12, 1), (0,))
        self.assertEqual(cluster.take(10, 1), (1,))
        self.assertEqual(cluster.take(8, 1), (0,))
        self.assertEqual(cluster.take(10, 1), (1,))
        self.assertEqual(cluster.empty, [6])
        self.assertIsNone(cluster.take(UNITS, 7))
        self.assertEqual(cluster.take(UNITS, 6), (2, 3, 4, 5, 6, 7))

    def test_whole_gpus_of_a_job_lie_on_one_node(self):
        cluster = simulation.Cluster(2)
        for node in (0, 1):
            self.assertEqual(len(cluster.take(UNITS, 5)), 5, node)
        self.assertIsNone(cluster.take(UNITS, 4), "6 are free, 3 on each node")
        self.assertIsNotNone(cluster.take(UNITS, 3))

    def test_all_that_was_taken_comes_back(self):
        rng, cluster, held = random.Random(7), simulation.Cluster(3), []
        for _ in range(3000):
            if held and rng.random() < 0.5:
                cluster.give_back(*held.pop(rng.randrange(len(held))))
                continue
            units, cards = rng.choice([(rng.randint(1, UNITS - 1), 1), (UNITS, rng.choice([1, 2, 4, 8]))])
            taken = cluster.take(units, cards)
            if taken is not None:
                self.assertEqual(len(taken), cards)
                self.assertTrue(all(cluster.free[card] >= 0 for card in taken))
                held.append((taken, units))
        for taken, units in held:
            cluster.give_back(taken, units)
        self.assertEqual(cluster.free, [UNITS] * 24)
        self.assertEqual(cluster.empty, [8] * 3)
        with self.assertRaises(AssertionError):
            cluster.give_back((0,), 1)


class SimulateTest(unittest.TestCase):
    def test_parts_share_a_gpu_and_whole_gpus_wait(self):
        jobs = [Job(0.0, 60.0, UNITS // 2, 1) for _ in range(16)] + [Job(90.0, 1.0, UNITS, 1)]
        waits, asked, taken, left = simulation.simulate(jobs, 1, "shares", 0)
        self.assertEqual((waits["share"], left), ([0.0] * 16, 0))
        self.assertAlmostEqual(asked, 60 / 90)
        self.assertAlmostEqual(taken, asked)
        waits, asked, taken, left = simulation.simulate(jobs, 1, "whole", 0)
        self.assertEqual(sorted(waits["share"]), [0.0] * 8 + [60.0] * 8)
        self.assertAlmostEqual(taken, 1.0)
        self.assertAlmostEqual(asked, 0.5)

    def test_jobs_of_one_size_start_in_their_order_and_others_pass(self):
        jobs = [Job(0.0, 100.0, UNITS, 4), Job(1.0, 100.0, UNITS, 8), Job(2.0, 10.0, UNITS, 8), Job(3.0, 5.0, UNITS, 2),
                Job(400.0, 1.0, UNITS, 1)]
        waits, _, _, left = simulation.simulate(jobs, 1, "whole", 0)
        self.assertEqual((waits[8], waits[2], left), ([99.0, 198.0], [0.0], 0))

    def test_a_seed_means_one_result(self):
        def run(seed):
            jobs = list(simulation.generated(random.Random(seed), 5, 0.9, 1))
            return len(jobs), [simulation.simulate(jobs, 5, way, 0) for way in ("whole", "shares")]
        self.assertEqual(run(3), run(3))
        self.assertNotEqual(run(3), run(4))

    def test_jobs_of_a_trace_are_read(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
                       "a,1,470,100,160,110\nb,0,,100,160,110\nc,8,1000,90,200,95\nd,1,1000,120,130,\ne,1,1000,130,150,130\n")
            file.flush()
            self.assertEqual(simulation.traced(file.name),
                             [Job(0.0, 105.0, UNITS, 8), Job(10.0, 50.0, 10, 1), Job(40.0, 20.0, UNITS, 1)])


if __name__ == "__main__":
    unittest.main()
