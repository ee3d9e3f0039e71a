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
AGAIN = 30  # seconds until a comparison that failed is repeated, and the one of a registration


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
    """The repeated work: keeps the slice true, and ends leases of claims that are gone. It looks at lgpud each time; it asks the
    API server only when a card has changed, when kubelet has registered the driver, and now and then, not by all nodes at once.
    kubelet_came() may be called on any thread."""

    def __init__(self, driver, resync, grace):
        self._driver, self._resync, self._grace = driver, resync, grace
        self._heard = time.monotonic()
        self._mutex = threading.Lock()
        self._resync_at, self._after_kubelet = self._heard, None
        self._published = None
        self._told = {}

    def kubelet_came(self):
        """A kubelet that starts deletes its node's slices, before it registers the driver or a little later."""
        with self._mutex:
            self._resync_at = time.monotonic()
            self._after_kubelet = self._resync_at + AGAIN

    def once(self):
        is_due = self._is_due()
        try:
            devices = self._driver.devices()
            self._heard = time.monotonic()
            self._tell("lgpud", [])
        except LeaseError as error:
            self._tell("lgpud", [str(error)])
            self._withdraw_late()
            devices = None
        if devices is not None and (is_due or devices != self._published):
            self._publish(devices)
        if is_due and (devices is None or not self._tend()):
            with self._mutex:
                self._resync_at = min(self._resync_at, time.monotonic() + AGAIN)

    def _is_due(self):
        """Whether slice and claims are compared now. The next time is set at once, so that no failure holds it up."""
        with self._mutex:
            now = time.monotonic()
            is_due = now >= self._resync_at
            if self._after_kubelet is not None and now >= self._after_kubelet:
                is_due, self._after_kubelet = True, None
            if is_due:
                self._resync_at = now + self._resync * random.uniform(0.5, 1)
            return is_due

    def _publish(self, devices):
        try:
            if self._driver.publish(devices):
                log.info("the node's GPUs are published")
            self._published = devices
            self._tell("slice", [])
        except ApiError as error:
            self._published = None  # it is tried again at the next look
            self._tell("slice", [str(error)])

    def _tend(self):
        """Whether the upkeep of every claim succeeded."""
        try:
            failures = self._driver.tend()
        except LeaseError as error:
            failures = [str(error)]
        self._tell("claims", failures)
        return not failures

    def _tell(self, what, texts):
        """Logs each text once, not at each look."""
        for text in texts:
            if text not in self._told.get(what, []):
                log.warning("%s", text)
        self._told[what] = texts

    def _withdraw_late(self):
        if self._published == [] or time.monotonic() - self._heard < self._grace:
            return
        try:
            self._driver.publish([])
            self._published = []
            log.warning("lgpud is silent: the node's GPUs are withdrawn; claims that are prepared stay")
        except ApiError as error:
            self._tell("slice", [str(error)])


def main(arguments=None):
    options = parse(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    driver = Driver(options.driver, options.node, Leases(options.lgpu, options.endpoint, options.owner),
                    Api(options.driver, options.node, options.kubeconfig), options.cdi_folder, options.overhead, options.card_cdi)
    upkeep = Upkeep(driver, options.resync, options.grace)
    plugin = Plugin(driver, f"{options.kubelet}/plugins/{options.driver}", f"{options.kubelet}/plugins_registry",
                    upkeep.kubelet_came)
    while not stopping.is_set():
        upkeep.once()
        stopping.wait(options.interval)
    # The slice stays: another process of this driver takes over, or kubelet removes it.
    plugin.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
