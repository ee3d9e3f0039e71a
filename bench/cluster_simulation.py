#!/usr/bin/env python3
"""Whole GPUs against shares of GPU memory, on a simulated cluster: how much of the GPUs is asked for and given, and how long jobs
wait. Deterministic: the seed is printed.

    bench/cluster_simulation.py [--nodes 1000] [--load 0.7,0.8,0.9] [--days 14] [--seed 1] [--trace FILE]

Without --trace the jobs are drawn from the figures of GENERATED below. With it they are those of the trace itself: a CSV with the
columns num_gpu, gpu_milli, creation_time, scheduled_time and deletion_time, as cluster-trace-gpu-v2023 of Alibaba's clusterdata
has them (openb_pod_list_default.csv).

Both ways of sharing see the same jobs. Under `whole` a job that asks for a part of a GPU gets a whole one; under `shares` it gets
its part, on the GPU with the least free memory that is enough. Jobs that ask for several GPUs get whole ones on one node. Jobs of
the same size start in their order; jobs of other sizes may pass them. A job runs as long under both: what programs on one GPU do to
each other's speed is not simulated, and neither are CPUs, memory of hosts, failures and the delays of a real scheduler."""

import argparse
import collections
import csv
import heapq
import math
import random
import statistics

CARDS = 8  # of a node
UNITS = 20  # a card's memory is given in parts of 5 %
# Of the tasks that ask for GPUs in the production trace of "Beware of Fragmentation" (USENIX ATC 2023, Alibaba): 37.8 % of all
# tasks share a GPU, 48.0 % have one, 0.2 % two, 0.2 % four, 0.5 % eight. Run times as of the trace of "MLaaS in the Wild" (NSDI 2022, Alibaba): median 23 min, nine of ten below 4.5 h.
GENERATED = {"share": 37.8, 1: 48.0, 2: 0.2, 4: 0.2, 8: 0.5}
MEDIAN, NINTH = 23 * 60.0, 4.5 * 3600.0
LONGEST = 7 * 86400.0
# Parts are drawn evenly from 15 % to 95 %: an assumption, of no trace.
LEAST_SHARE, MOST_SHARE = 3, UNITS - 1

Job = collections.namedtuple("Job", "arrival seconds units cards")  # units: of one card, or of `cards` whole ones


def generated(rng, nodes, load, days):
    """Jobs that arrive at random, and ask for `load` of all memory on average."""
    sigma = math.log(NINTH / MEDIAN) / 1.2815515655446004
    kinds, weights = list(GENERATED), list(GENERATED.values())

    def draw():
        kind = rng.choices(kinds, weights)[0]
        seconds = min(LONGEST, rng.lognormvariate(math.log(MEDIAN), sigma))
        if kind == "share":
            return seconds, rng.randint(LEAST_SHARE, MOST_SHARE), 1
        return seconds, UNITS, kind

    # The mean of a run time that ends with LONGEST, and of what a job has of a card.
    normal, mu, limit = statistics.NormalDist(), math.log(MEDIAN), math.log(LONGEST)
    seconds = (math.exp(mu + sigma * sigma / 2) * normal.cdf((limit - mu - sigma * sigma) / sigma) +
               LONGEST * (1 - normal.cdf((limit - mu) / sigma)))
    share = (LEAST_SHARE + MOST_SHARE) / 2 / UNITS
    cards = sum(weight * (share if kind == "share" else kind) for kind, weight in GENERATED.items()) / sum(weights)
    rate = load * nodes * CARDS / (seconds * cards)
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        if now > days * 86400:
            return
        yield Job(now, *draw())


def traced(file):
    """The tasks of a trace that have run on GPUs, in their order, from the first arrival on."""
    jobs = []
    with open(file, newline="") as rows:
        for row in csv.DictReader(rows):
            cards, milli = int(row["num_gpu"]), int(row["gpu_milli"] or 0)
            if cards == 0 or not row["scheduled_time"]:
                continue
            seconds = float(row["deletion_time"]) - float(row["scheduled_time"])
            units = UNITS if cards > 1 or milli == 0 else max(1, math.ceil(milli * UNITS / 1000))
            if seconds > 0 and cards <= CARDS:
                jobs.append(Job(float(row["creation_time"]), seconds, units, cards))
    jobs.sort(key=lambda job: job.arrival)
    first = jobs[0].arrival if jobs else 0
    return [job._replace(arrival=job.arrival - first) for job in jobs]


def lowest(mask):
    return (mask & -mask).bit_length() - 1


class Cluster:
    """The free memory of all cards. Cards and nodes of one state are the bits of an integer, so that the fitting one that is most
    in use is found at once."""

    def __init__(self, nodes):
        self.free = [UNITS] * (nodes * CARDS)
        self.cards_with = [0] * UNITS + [(1 << nodes * CARDS) - 1]  # by free units
        self.empty = [CARDS] * nodes
        self.nodes_with = [0] * CARDS + [(1 << nodes) - 1]  # by empty cards

    def _set(self, card, units):
        before, node = self.free[card], card // CARDS
        self.cards_with[before] ^= 1 << card
        self.cards_with[units] ^= 1 << card
        self.free[card] = units
        change = (units == UNITS) - (before == UNITS)
        if change:
            self.nodes_with[self.empty[node]] ^= 1 << node
            self.empty[node] += change
            self.nodes_with[self.empty[node]] ^= 1 << node

    def take(self, units, cards):
        """The cards, or None."""
        if units < UNITS:
            for left in range(units, UNITS + 1):
                if self.cards_with[left] and left < UNITS:
                    card = lowest(self.cards_with[left])
                    self._set(card, left - units)
                    return (card,)
        for count in range(cards, CARDS + 1):
            if self.nodes_with[count]:
                node = lowest(self.nodes_with[count])
                taken = [card for card in range(node * CARDS, (node + 1) * CARDS) if self.free[card] == UNITS][:cards]
                for card in taken:
                    self._set(card, UNITS - units)
                return tuple(taken)
        return None

    def give_back(self, taken, units):
        for card in taken:
            assert self.free[card] + units <= UNITS, f"card {card} was given twice"
            self._set(card, self.free[card] + units)


def simulate(jobs, nodes, way, warm_up):
    """Waits of the jobs that arrived after the warm-up, in seconds, by kind; the part of all memory that jobs asked for and had,
    and the part that was set aside for them; jobs that still wait at the end."""
    cluster, ends, queues = Cluster(nodes), [], collections.defaultdict(collections.deque)
    waits = collections.defaultdict(list)
    asked = taken_now = 0
    area = {"asked": 0.0, "taken": 0.0}
    clock, last, number = 0.0, 0.0, 0

    def advance(now):
        nonlocal clock
        since = max(clock, warm_up)
        if now > since:
            area["asked"] += asked * (now - since)
            area["taken"] += taken_now * (now - since)
        clock = now

    def start(job, now):
        nonlocal asked, taken_now, number
        units = job.units if way == "shares" else UNITS
        taken = cluster.take(units, job.cards)
        if taken is None:
            return False
        asked += job.units * job.cards
        taken_now += units * job.cards
        number += 1
        heapq.heappush(ends, (now + job.seconds, number, taken, units, job))
        if job.arrival >= warm_up:
            waits["share" if job.units < UNITS else job.cards].append(now - job.arrival)
        return True

    def start_waiting(now):
        """Oldest first among the heads of the queues; a size that does not fit waits."""
        heads = [(queue[0].arrival, size) for size, queue in queues.items() if queue]
        heapq.heapify(heads)
        while heads:
            _, size = heapq.heappop(heads)
            queue = queues[size]
            if start(queue[0], now):
                queue.popleft()
                if queue:
                    heapq.heappush(heads, (queue[0].arrival, size))

    def end_until(now):
        nonlocal asked, taken_now
        while ends and ends[0][0] <= now:
            at, _, taken, units, job = heapq.heappop(ends)
            advance(at)
            cluster.give_back(taken, units)
            asked -= job.units * job.cards
            taken_now -= units * job.cards
            start_waiting(at)

    for job in jobs:
        last = job.arrival
        end_until(last)
        advance(last)
        size = (job.units if way == "shares" else UNITS, job.cards)
        if queues[size] or not start(job, last):
            queues[size].append(job)
    end_until(last)
    advance(last)
    all_memory = nodes * CARDS * UNITS * max(last - warm_up, 1e-9)
    left = sum(len(queue) for queue in queues.values())
    return waits, area["asked"] / all_memory, area["taken"] / all_memory, left


def minutes(waits, part):
    return sorted(waits)[min(len(waits) - 1, int(len(waits) * part))] / 60 if waits else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--load", default="0.7,0.8,0.9", help="what jobs ask for, as a part of all GPU memory")
    parser.add_argument("--days", type=float, default=14.0)
    parser.add_argument("--warm-up", type=float, default=7.0, metavar="DAYS", help="that no figure counts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", metavar="FILE")
    options = parser.parse_args()
    print(f"{options.nodes} nodes of {CARDS} GPUs, seed {options.seed}, jobs {'of ' + options.trace if options.trace else 'generated'}")
    print("| load | way | asked for and given | set aside | wait, mean | 9 of 10 | 99 of 100 | 8 GPUs, mean | still waiting |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for load in ["trace"] if options.trace else [float(part) for part in options.load.split(",")]:
        jobs = traced(options.trace) if options.trace else list(generated(random.Random(options.seed), options.nodes, load, options.days))
        for way in ("whole", "shares"):
            waits, asked, taken, left = simulate(jobs, options.nodes, way, 0 if options.trace else options.warm_up * 86400)
            every = [wait for of_kind in waits.values() for wait in of_kind]
            mean = sum(every) / len(every) / 60 if every else 0.0
            eight = sum(waits[8]) / len(waits[8]) / 60 if waits[8] else 0.0
            print(f"| {load} | {way} | {asked:.1%} | {taken:.1%} | {mean:.1f} min | {minutes(every, 0.9):.1f} min | "
                  f"{minutes(every, 0.99):.1f} min | {eight:.1f} min | {left} |", flush=True)


if __name__ == "__main__":
    main()
