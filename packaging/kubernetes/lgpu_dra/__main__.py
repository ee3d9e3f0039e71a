"""The driver of one node: `python3 -m lgpu_dra --node NAME`."""

import argparse
import logging
import os
import random
import signal
import sys
import threading
import time

from lgpu_dra import cards
from lgpu_dra.api import Api, ApiError
from lgpu_dra.driver import Driver
from lgpu_dra.leases import LeaseError, Leases
from lgpu_dra.plugin import Plugin

log = logging.getLogger("lgpu_dra")


def parse(arguments):
    parser = argparse.ArgumentParser(prog="lgpu_dra", description=__doc__)
    parser.add_argument("--node", default=os.environ.get("NODE_NAME"), help="name of this node in the cluster (NODE_NAME)")
    parser.add_argument("--driver", default="lgpu.io", help="name of the driver; default: %(default)s")
    parser.add_argument("--endpoint", default=os.environ.get("LGPU_ENDPOINT", "/run/lgpu"), help="directory of lgpud (LGPU_ENDPOINT)")
    parser.add_argument("--lgpu", default="lgpu", help="the command; default: %(default)s")
    parser.add_argument("--owner", default="0", help="user of this machine that owns the leases; default: root")
    parser.add_argument("--overhead", default="0", help="kept of each GPU for contexts and libraries, e.g. 2Gi; default: none")
    parser.add_argument("--cdi-folder", default="/var/run/cdi", help="which the container runtime reads; default: %(default)s")
    parser.add_argument("--card-cdi", default="", metavar="NAME",
                        help="also this CDI device for a real GPU, e.g. nvidia.com/gpu={uuid} for its device files and driver")
    parser.add_argument("--kubelet", default="/var/lib/kubelet", help="kubelet's folder; default: %(default)s")
    parser.add_argument("--kubeconfig", help="in place of the pod's own account")
    parser.add_argument("--interval", type=float, default=10, help="seconds between looks at the cards; default: %(default)s")
    parser.add_argument("--resync", type=float, default=600, metavar="SECONDS",
                        help="at most between two comparisons of slice and claims with the API server; default: %(default)s")
    parser.add_argument("--grace", type=float, default=30, metavar="SECONDS",
                        help="how long lgpud may be silent before the node's devices are withdrawn; default: %(default)s")
    options = parser.parse_args(arguments)
    if not options.node:
        parser.error("--node or NODE_NAME is needed: the name of this node")
    try:
        options.overhead = cards.size_of(options.overhead)
    except ValueError as error:
        parser.error(f"--overhead: {error}")
    return options


class Upkeep:
    """What is done again and again: the slice is true, and leases of claims that are gone end. lgpud is looked at each time; the
    API server is asked only when a card has changed, and now and then, not by all nodes at once."""

    def __init__(self, driver, resync, grace):
        self._driver, self._resync, self._grace = driver, resync, grace
        self._heard = self._resync_at = time.monotonic()
        self._published = None
        self._told = ""

    def once(self):
        now = time.monotonic()
        try:
            devices = self._driver.devices()
            self._heard = now
            is_due = now >= self._resync_at
            if is_due or devices != self._published:
                if self._driver.publish(devices):
                    log.info("the node's GPUs are published")
                self._published = devices
            if is_due:
                self._driver.tend()
                self._resync_at = now + self._resync * random.uniform(0.5, 1)
            self._told = ""
        except LeaseError as error:
            self._tell(error)
            self._withdraw_late()
        except ApiError as error:
            self._tell(error)

    def _tell(self, error):
        """Once, not at each look."""
        if str(error) != self._told:
            self._told = str(error)
            log.warning("%s", error)

    def _withdraw_late(self):
        if self._published == [] or time.monotonic() - self._heard < self._grace:
            return
        try:
            self._driver.publish([])
            self._published = []
            log.warning("lgpud is silent: the node's GPUs are withdrawn; claims that are prepared stay")
        except ApiError as error:
            self._tell(error)


def main(arguments=None):
    options = parse(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    driver = Driver(options.driver, options.node, Leases(options.lgpu, options.endpoint, options.owner),
                    Api(options.driver, options.node, options.kubeconfig), options.cdi_folder, options.overhead, options.card_cdi)
    upkeep = Upkeep(driver, options.resync, options.grace)
    plugin = Plugin(driver, f"{options.kubelet}/plugins/{options.driver}", f"{options.kubelet}/plugins_registry")
    while not stopping.is_set():
        upkeep.once()
        stopping.wait(options.interval)
    # The slice stays: another process of this driver takes over, or kubelet removes it.
    plugin.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
