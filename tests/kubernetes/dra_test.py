#!/usr/bin/env python3
"""packaging/kubernetes with a real lgpud on simulated GPUs, and doubles of kubelet and of the API server.

dra_test.py ROOT BUILD [CASE ...]   as root, with the packages of packaging/kubernetes/requirements.txt"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT, BUILD = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "packaging/kubernetes"))
from doubles import ApiServer, Kubelet  # noqa: E402
from lgpu_dra.__main__ import Upkeep  # noqa: E402
from lgpu_dra.api import ApiError  # noqa: E402
from lgpu_dra.leases import LeaseError, Leases  # noqa: E402

NODE = "node-7"
CASES = []


def case(function):
    CASES.append(function)
    return function


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def eventually(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        expect(time.monotonic() < deadline, f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.05)


class World:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.daemon = self.driver = None
        self.api, self.kubelet = ApiServer(NODE), Kubelet(folder)
        self.api.kubeconfig(self.folder / "kubeconfig")
        self.cdi = self.folder / "cdi"
        config = f'[daemon]\nstate_dir = "{folder}/state"\nlock_dir = "{folder}/locks"\nsocket_group = ""\n'
        (self.folder / "lgpud.toml").write_text(config)
        self.uids = 0

    def start_lgpud(self):
        self.daemon = subprocess.Popen([BUILD / "daemon/lgpud", "--dir", self.folder / "run", "--simulate", "2x256MiB", "--config",
                                        self.folder / "lgpud.toml"], stderr=subprocess.DEVNULL)
        eventually(lambda: self.lgpu("ls").returncode == 0, "lgpud answers")

    def kill_lgpud(self):
        self.daemon.kill()
        self.daemon.wait()

    def start_driver(self, resync="0.5"):
        log = open(self.folder / "driver.log", "ab")
        self.driver = subprocess.Popen(
            [sys.executable, "-m", "lgpu_dra", "--node", NODE, "--endpoint", self.folder / "run", "--lgpu", BUILD / "cli/lgpu",
             "--cdi-folder", self.cdi, "--kubelet", self.folder, "--kubeconfig", self.folder / "kubeconfig", "--interval", "0.3", "--resync",
             resync, "--grace", "1"], stderr=log, cwd=ROOT / "packaging/kubernetes")
        eventually(self.kubelet.registry.exists, lambda: f"the driver has its socket: {self.log()}")
        self.kubelet.register()

    def kill_driver(self):
        self.driver.kill()
        self.driver.wait()

    def log(self):
        return (self.folder / "driver.log").read_text()

    def lgpu(self, *words):
        return subprocess.run([BUILD / "cli/lgpu", "--endpoint", self.folder / "run", *words], capture_output=True, text=True,
                              check=False, timeout=60)

    def leases(self):
        return {lease["name"]: lease for lease in json.loads(self.lgpu("ls", "--json").stdout)["leases"]}

    def files(self, ending="*"):
        return sorted(file.name for file in self.cdi.glob(ending)) if self.cdi.exists() else []

    @contextlib.contextmanager
    def in_lease(self, name):
        """A program is attached to the lease."""
        program = subprocess.Popen([BUILD / "tests/e2e/e2e_client"], env={**os.environ, "LGPU_ENDPOINT": str(self.folder / "run")},
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            program.stdin.write(f"open c lease={name}\n")
            program.stdin.flush()
            answer = program.stdout.readline()
            expect(answer.startswith("ok"), answer)
            yield
        finally:
            program.kill()
            program.communicate()

    def device(self, index):
        return json.loads(self.lgpu("ls", "--json").stdout)["cards"][index]["uuid"].lower()

    def claim(self, *results, name=None):
        """Made and allocated: (namespace, name, uid)."""
        self.uids += 1
        uid = f"00000000-0000-4000-8000-{self.uids:012d}"
        name = name or f"claim-{self.uids}"
        self.api.put_claim("team", name, uid, results)
        return "team", name, uid

    def prepared(self, claim):
        devices, error = self.kubelet.prepare(claim)[claim[2]]
        expect(not error, error)
        return devices

    def refused(self, claim):
        devices, error = self.kubelet.prepare(claim)[claim[2]]
        expect(error and not devices, f"{claim} is prepared")
        return error

    def end(self, claim):
        error = self.kubelet.unprepare(claim)[claim[2]]
        expect(not error, error)


@case
def kubelet_finds_the_driver(world):
    info = world.kubelet.register()
    expect((info.type, info.name, list(info.supported_versions)) == ("DRAPlugin", "lgpu.io", ["v1.DRAPlugin"]), f"{info}")


@case
def the_cards_are_published_with_their_memory(world):
    found = eventually(world.api.slice, "the slice is there")
    spec = found["spec"]
    expect((spec["driver"], spec["nodeName"], spec["pool"]["name"]) == ("lgpu.io", NODE, NODE), f"{spec}")
    expect(found["metadata"]["ownerReferences"][0]["uid"] == "node-uid", "it goes with its node")
    expect([device["name"] for device in spec["devices"]] == [world.device(0), world.device(1)], f"{spec}")
    for device in spec["devices"]:
        memory = device["capacity"]["memory"]
        expect(device["allowMultipleAllocations"] is True and memory["value"] == "256Mi", f"{device}")
        expect(memory["requestPolicy"]["validRange"] == {"min": "2Mi", "max": "256Mi", "step": "2Mi"}, f"{memory}")
    writes = world.api.writes
    time.sleep(1)
    expect(world.api.writes == writes, "an unchanged slice is not written again")


@case
def a_claim_becomes_a_lease_on_the_schedulers_card(world):
    for index in (1, 0):
        claim = world.claim(("memory", NODE, world.device(index), "64Mi"))
        device, = world.prepared(claim)
        name = f"k8s-{claim[2]}"
        expect(list(device.cdi_device_ids) == [f"lgpu.io/lease={name}"] and list(device.request_names) == ["memory"], f"{device}")
        expect((device.pool_name, device.device_name) == (NODE, world.device(index)), f"{device}")
        lease = world.leases()[name]
        expect(lease["managed"] and lease["devices"][0]["memory_limit_bytes"] == 64 << 20, f"{lease}")
        expect(lease["devices"][0]["card_uuid"].lower() == world.device(index), f"{lease}")
        specification = json.loads((world.cdi / f"lgpu-{name}.json").read_text())
        expect(specification["kind"] == "lgpu.io/lease" and specification["devices"][0]["name"] == name, f"{specification}")
        inside = specification["devices"][0]["containerEdits"]["mounts"][0]["hostPath"]
        checked = subprocess.run([BUILD / "cli/lgpu", "--endpoint", inside, "verify", "--lease", name], capture_output=True,
                                 text=True, check=False, timeout=60)
        expect(checked.returncode == 0, f"the limit holds: {checked.stdout}{checked.stderr}")
        world.end(claim)
        world.end(claim)


@case
def repetitions_and_two_at_once_make_one_lease(world):
    claim = world.claim(("memory", NODE, world.device(0), "64Mi"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answers = [answer.result() for answer in [pool.submit(world.prepared, claim) for _ in range(6)]]
    expect(all(answer == answers[0] for answer in answers), f"{answers}")
    expect(list(world.leases()) == [f"k8s-{claim[2]}"], f"{world.leases()}")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for ended in [pool.submit(world.end, claim) for _ in range(4)]:
            ended.result()


@case
def errors_say_what_is_wrong(world):
    device = world.device(0)
    large = world.claim(("memory", NODE, device, "257Mi"))
    text = world.refused(large)
    expect("was given 257Mi of GPU" in text and "leases can have 256Mi" in text, text)
    expect("has no GPU memory of node node-7" in world.refused(world.claim()), "not allocated")
    expect("has no GPU memory of node node-7" in world.refused(world.claim(("memory", "other", device, "2Mi"))), "of another node")
    expect("does not serve the GPU gpu-gone" in world.refused(world.claim(("memory", NODE, "gpu-gone", "2Mi"))), "an unknown card")
    expect("several GPUs" in world.refused(world.claim(("m", NODE, device, "2Mi"), ("m", NODE, world.device(1), "2Mi"))), "two cards")
    expect("is not there any more" in world.refused(("team", "never", "00000000-0000-4000-8000-999999999999")), "no claim")
    expect("not a UID of Kubernetes" in world.refused(("team", "odd", "../x")), "no UID")
    # Each claim of a call has an answer of its own.
    good = world.claim(("memory", NODE, device, "2Mi"))
    answers = world.kubelet.prepare(large, good)
    expect(answers[large[2]][1] and not answers[good[2]][1], f"{answers}")
    world.end(good)
    world.end(large)


@case
def a_refusal_names_the_holders_of_a_full_card(world):
    taken = world.lgpu("create", "--name", "mine", "-m", "200MiB", "--guarantee", "200MiB", "--gpus", "0")
    expect(taken.returncode == 0, taken.stderr)
    claim = world.claim(("memory", NODE, world.device(0), "128Mi"))
    text = world.refused(claim)
    expect("not enough memory on GPU 0" in text and "mine" in text, text)
    expect(world.lgpu("rm", "mine").returncode == 0, "rm")
    world.prepared(claim)
    world.end(claim)


@case
def requests_of_a_claim_have_a_lease_each(world):
    claim = world.claim(("a", NODE, world.device(0), "32Mi"), ("b/sub", NODE, world.device(1), "64Mi"))
    first, second = world.prepared(claim)
    expect(list(first.request_names) == ["a"] and list(second.request_names) == ["b"], f"{first} {second}")
    expect(len(world.leases()) == 2 and len(world.files("*.json")) == 2, f"{world.leases()}")
    world.end(claim)


@case
def a_claim_without_an_amount_has_the_whole_card(world):
    claim = world.claim(("memory", NODE, world.device(1), None))
    world.prepared(claim)
    expect(world.leases()[f"k8s-{claim[2]}"]["devices"][0]["memory_limit_bytes"] == 256 << 20, f"{world.leases()}")
    world.end(claim)


@case
def another_allocation_gets_another_lease(world):
    claim = world.claim(("memory", NODE, world.device(0), "32Mi"))
    world.prepared(claim)
    world.api.put_claim(*claim, [("memory", NODE, world.device(1), "64Mi")])
    world.prepared(claim)
    device = world.leases()[f"k8s-{claim[2]}"]["devices"][0]
    expect((device["card_uuid"].lower(), device["memory_limit_bytes"]) == (world.device(1), 64 << 20), f"{device}")
    world.end(claim)


@case
def leases_of_claims_that_are_gone_end(world):
    long_name = "claim-" + "x" * 190
    gone, stays = world.claim(("m", NODE, world.device(0), "2Mi"), name=long_name), world.claim(("m", NODE, world.device(0), "2Mi"))
    for claim in (gone, stays):
        world.prepared(claim)
    hand_made = world.lgpu("create", "--managed", "--name", "k8s-by-hand", "-m", "2MiB")
    expect(hand_made.returncode == 0, hand_made.stderr)
    world.kill_driver()
    world.api.delete_claim("team", long_name)
    (world.cdi / f"lgpu-k8s-{stays[2]}.json").unlink()  # as a start of the machine does
    (world.cdi / "lgpu-k8s-11111111.json").write_text("{}")  # of a lease that is gone
    world.api.fail, logged = 503, len(world.log())
    world.start_driver()
    for claim in (gone, stays):
        eventually(lambda: f"the claim of UID {claim[2]}: the API server refuses to" in world.log()[logged:], world.log)
    expect(len(world.leases()) == 3, "no lease ends while the API server refuses")
    world.api.fail = 0
    eventually(lambda: sorted(world.leases()) == sorted([f"k8s-{stays[2]}", "k8s-by-hand"]), lambda: f"{list(world.leases())}")
    eventually(lambda: world.files("*.json") == [f"lgpu-k8s-{stays[2]}.json"], lambda: f"{world.files()}")
    expect(world.lgpu("rm", "k8s-by-hand").returncode == 0, "rm")
    # Made again under its name.
    world.api.put_claim("team", stays[1], "00000000-0000-4000-8000-aaaaaaaaaaaa", [])
    eventually(lambda: not world.leases(), lambda: f"{world.leases()}")


@case
def a_repeated_prepare_leaves_a_running_pod_its_lease(world):
    claim = world.claim(("m", NODE, world.device(0), "32Mi"))
    world.prepared(claim)
    name = f"k8s-{claim[2]}"
    lease = world.leases()[name]
    world.api.put_claim(*claim, [("m", NODE, world.device(0), None)])
    world.prepared(claim)
    expect(world.leases()[name]["id"] == lease["id"], "the scheduler names no amount any more: the lease that is there stays")
    with world.in_lease(name):
        world.api.put_claim(*claim, [("m", NODE, world.device(0), "64Mi")])
        world.prepared(claim)
        expect(world.leases()[name]["id"] == lease["id"], "a program is attached")
    eventually(lambda: not world.leases()[name]["sessions"], "the program has ended")
    world.prepared(claim)
    expect(world.leases()[name]["devices"][0]["memory_limit_bytes"] == 64 << 20, f"{world.leases()}")
    world.end(claim)


@case
def a_stuck_claim_does_not_block_other_claims(world):
    stuck, gone = world.claim(("m", NODE, world.device(0), "2Mi")), world.claim(("m", NODE, world.device(0), "2Mi"))
    slow = world.claim(("m", NODE, world.device(0), "2Mi"))
    for claim in (stuck, gone, slow):
        world.prepared(claim)
    world.api.failing = {world.api.path_of(*claim[:2]) for claim in (stuck, slow)}
    world.api.delete_claim(*gone[:2])
    eventually(lambda: f"k8s-{gone[2]}" not in world.leases(), lambda: f"{list(world.leases())}")
    expect(len(world.leases()) == 2, f"the API server tells nothing about the other claims, so their leases stay: {list(world.leases())}")
    eventually(lambda: f"the claim of UID {stuck[2]}: the API server refuses" in world.log(), world.log)
    expect(world.api.slice()["spec"]["devices"], "the cards are not withdrawn")
    world.api.failing = set()
    for claim in (stuck, slow):
        world.end(claim)


@case
def a_failed_step_of_upkeep_does_not_stop_the_others(_):
    class Failing:
        tended, published = 0, []

        def devices(self):
            return ["card"]

        def publish(self, devices):
            self.published.append(devices)
            raise ApiError("refused")

        def tend(self):
            self.tended += 1
            raise LeaseError(75, "stuck")

    driver = Failing()
    upkeep = Upkeep(driver, resync=3600, grace=0)
    for _ in range(3):
        upkeep.once()
    expect(driver.tended == 1, f"claims are tended although the slice is refused, and not at each look: {driver.tended}")
    expect(driver.published == [["card"]] * 3, f"tried each time, and never withdrawn: {driver.published}")


@case
def wrapped_lines_of_an_error_become_whole_sentences(world):
    message = ("not enough memory on GPU 0 (NVIDIA H100 80GB HBM3) for /device:GPU:0 of lease\n    k8s-7\n  asked for    2.00MiB   guaranteed"
               " memory\n  held by    768.00MiB   /device:GPU:0 of lease train (user anna, pid\n                         4242)\n"
               "  try: raise the limit:\n         ulimit -n 16384\n       wait longer")
    (world.folder / "error").write_text(json.dumps({"message": message}))
    program = world.folder / "refusing-lgpu"
    program.write_text(f"#!/bin/sh\ncat '{world.folder}/error' >&2\nexit 75\n")
    program.chmod(0o755)
    try:
        Leases(program=program).remove("x")
        told = "nothing"
    except LeaseError as error:
        told = str(error)
    expect(told == "not enough memory on GPU 0 (NVIDIA H100 80GB HBM3) for /device:GPU:0 of lease k8s-7; asked for    2.00MiB   guaranteed memory;"
           " held by    768.00MiB   /device:GPU:0 of lease train (user anna, pid 4242); try: raise the limit: ulimit -n 16384; wait longer", told)


@case
def the_file_of_a_claim_that_is_there_stays(world):
    claim = world.claim(("m", NODE, world.device(0), "2Mi"))
    world.prepared(claim)
    files = world.files()
    # As while lgpud keeps the lease for a card that is not served.
    expect(world.lgpu("rm", f"k8s-{claim[2]}").returncode == 0, "rm")
    time.sleep(1.5)
    expect(world.files() == files, f"{files} became {world.files()}")
    world.api.delete_claim(*claim[:2])
    eventually(lambda: not world.files(), lambda: f"{world.files()}")


@case
def slices_that_a_restarted_kubelet_deletes_are_made_again(world):
    world.kill_driver()
    world.start_driver(resync="3600")
    eventually(world.api.slice, "the slice is there")
    time.sleep(1)
    world.api.delete_slices()
    world.kubelet.register()
    eventually(world.api.slice, "it is made again at a registration")
    world.api.delete_slices()
    expect(world.api.slice() is None, "this deletion comes late")
    eventually(world.api.slice, "and a while after a registration", 90)
    world.kill_driver()
    world.start_driver()


@case
def restarts_of_lgpud_are_survived(world):
    claim = world.claim(("m", NODE, world.device(0), "64Mi"))
    before = world.prepared(claim)
    lease = world.leases()[f"k8s-{claim[2]}"]["id"]
    device = world.device(1)
    world.kill_lgpud()
    late = world.claim(("m", NODE, device, "2Mi"))
    expect("lgpud does not answer on this node" in world.refused(late), "no lgpud")
    expect("lgpud does not answer" in world.kubelet.unprepare(late)[late[2]], "kubelet asks again")
    eventually(lambda: not world.api.slice()["spec"].get("devices"), "the cards are withdrawn")
    generation = world.api.slice()["spec"]["pool"]["generation"]
    world.start_lgpud()
    eventually(lambda: len(world.api.slice()["spec"].get("devices") or []) == 2, "and published again")
    expect(world.api.slice()["spec"]["pool"]["generation"] > generation, "under a new generation")
    expect(world.prepared(claim) == before and world.leases()[f"k8s-{claim[2]}"]["id"] == lease, "the lease is the same")
    for each in (claim, late):
        world.end(each)


@case
def a_foreign_lease_of_the_same_name_is_replaced(world):
    claim = world.claim(("m", NODE, world.device(0), "64Mi"))
    made = world.lgpu("create", "--managed", "--name", f"k8s-{claim[2]}", "-m", "2MiB")
    expect(made.returncode == 0, made.stderr)
    world.prepared(claim)
    expect(world.leases()[f"k8s-{claim[2]}"]["devices"][0]["memory_limit_bytes"] == 64 << 20, f"{world.leases()}")
    world.end(claim)


@case
def a_stopped_driver_removes_its_sockets(world):
    world.driver.send_signal(signal.SIGTERM)
    expect(world.driver.wait(60) == 0, world.log())
    expect(not world.kubelet.registry.exists(), "kubelet sees that it is gone")
    expect(world.api.slice()["spec"]["devices"], "the slice stays for the next one")
    world.start_driver()


def main():
    if os.geteuid() != 0:
        print("skipped: only root makes managed leases")
        return 77
    folder, failed = tempfile.mkdtemp(prefix="lgpu-dra-"), 0
    world = World(folder)
    try:
        world.start_lgpud()
        world.start_driver()
        for function in CASES:
            if sys.argv[3:] and function.__name__ not in sys.argv[3:]:
                continue
            try:
                function(world)
                eventually(lambda: not world.leases() and not world.files(), lambda: f"nothing is left: {world.leases()} {world.files()}")
                print(f"ok      {function.__name__}", flush=True)
            except Exception:
                failed = 1
                print(f"FAILED  {function.__name__}\n{traceback.format_exc()}\n{world.log()[-3000:]}", flush=True)
                break
        expect("Traceback" not in world.log(), world.log())
    finally:
        for process in (world.driver, world.daemon):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        world.api.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
