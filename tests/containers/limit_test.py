#!/usr/bin/env python3
"""lgpu-hook with the real podman, programs that know nothing of lgpu and the fake driver: each form of a container is limited,
and is shown open without the hook first.

limit_test.py ROOT BUILD [CASE ...]   ends with 77 where it cannot run, and says why

The containers' root is this machine's under an overlay. A CDI file stands for the vendor's: it mounts the driver by the name
of its version, and a hook makes the names that programs ask for. The fake card is a folder, whose files programs share."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import types

from podman_test import LIMITS, PODMAN, Lgpud, eventually, expect, why_not

ROOT = pathlib.Path(sys.argv[1]).resolve()
OWNER = 61301  # a user without a name
NAME = f"limit-{os.getpid()}"
CARD = f"example.com/gpu=all-{os.getpid()}"  # a device of two files is none
CDI = pathlib.Path("/etc/cdi")
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
DRIVER = f"{LIBRARIES}/libcuda.so.580.65.06"
LIMITED, OPEN = "total 64, 96 MiB: 2", "total 256, 96 MiB: 0"
CASES = []


def case(function):
    CASES.append(function)
    return function


class World(Lgpud):
    def __init__(self, build, folder):
        super().__init__(build, folder)
        self.folder.chmod(0o755)
        self.fake = build / "tests/fake_cuda/lib"
        self.driver = self.folder / "driver"  # the machine's, for containers
        self.driver.mkdir()
        self.install_driver()
        self.config.write_text(f'[daemon]\nstate_dir = "{folder}/state"\nlock_dir = "{folder}/locks"\nsocket_group = ""\nsocket_mode = 0o666\n')
        self.endpoint.mkdir()
        self.endpoint.chmod(0o755)
        self.make_card()
        self.files = []

    def install_driver(self):
        """As a package manager does: each file is a new one, which takes the name of the one before."""
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(self.fake / name, self.driver / "new")
            os.replace(self.driver / "new", self.driver / name)

    def make_card(self):
        """The files of a fake machine, in a folder in place of descriptors of the program that makes them."""
        card = self.folder / "card"
        (card / "proc").mkdir(parents=True)
        copy = f"""
            folder=${{LGPU_FAKE_CUDA%/*}}; cp $LGPU_FAKE_CUDA {card}/state
            for fd in $folder/*; do
              case $(readlink $fd) in /memfd:*) [ $fd = $LGPU_FAKE_CUDA ] || cp --sparse=always $fd {card}/${{fd##*/}} ;; esac
            done"""
        subprocess.run([self.build / "tests/fake_cuda/fake_cuda_run", "--cards", "1", "--memory", "256MiB", "--rules", "off", "--",
                        "sh", "-ec", copy], check=True, timeout=60)
        for file in card.iterdir():
            file.chmod(0o777 if file.is_dir() else 0o666)

    def write(self, name, specification):
        CDI.mkdir(exist_ok=True)
        file = CDI / f"{NAME}-{name}.json"
        self.files.append(file)
        file.with_suffix(".new").write_text(json.dumps(specification))
        os.replace(file.with_suffix(".new"), file)

    def write_card(self):
        """The stand-in for the vendor's file."""
        def mount(source, target):
            return {"hostPath": str(source), "containerPath": target, "options": ["bind", "nosuid", "nodev"]}
        # Not every runtime starts a hook in the root. Where the configuration cannot be read, runc does.
        names = f"""
            bundle=$(sed -n 's/.*"bundle": *"\\([^"]*\\)".*/\\1/p')
            root=$(sed -n 's/.*"root": *{{"path": *"\\([^"]*\\)".*/\\1/p' "$bundle/config.json" 2> /dev/null)
            cd "${{root:-.}}" && cd .{LIBRARIES} || exit 1
            [ -h libcuda.so.1 ] || {{ ln -s {DRIVER.split('/')[-1]} libcuda.so.1 && ln -s libnvidia-ml.so.580.65.06 libnvidia-ml.so.1; }}"""
        edits = {"env": ["LGPU_FAKE_CUDA=/fake/state"],
                 "mounts": [mount(self.driver / "libcuda.so.1", DRIVER),
                            mount(self.driver / "libnvidia-ml.so.1", f"{LIBRARIES}/libnvidia-ml.so.580.65.06"),
                            mount(self.folder / "card", "/fake"), mount("/proc", "/fake/proc")],
                 "hooks": [{"hookName": "createContainer", "path": "/bin/sh", "args": ["sh", "-c", names],
                            "env": ["PATH=/usr/bin:/bin"]}]}
        self.write("card", {"cdiVersion": "0.5.0", "kind": CARD.split("=")[0],
                            "devices": [{"name": CARD.split("=")[1], "containerEdits": edits}]})

    def write_lease(self, name, *flags):
        spec = self.lgpu("env", name, "--format", "cdi", *flags)
        expect(spec.returncode == 0, spec.stderr)
        self.write(name, json.loads(spec.stdout))
        return json.loads(spec.stdout)["devices"][0]["containerEdits"]

    def start(self):
        environment = {**os.environ, "LGPU_FAKE_CUDA": str(self.folder / "card/state"), "LD_LIBRARY_PATH": str(self.fake)}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        log = open(self.folder / "lgpud.log", "ab")
        self.start_with(env=environment, stderr=log)

    def podman(self, *flags, lease=True):
        device = ["--device", f"lgpu.io/lease={NAME}"] if lease else []
        return [*PODMAN, "run", "--rm", *LIMITS, "--device", CARD, *device, *flags]

    def inside(self, command, *flags, lease=True, root="/:O"):
        return subprocess.run([*self.podman(*flags, lease=lease), "--rootfs", root, *command], capture_output=True, text=True,
                              check=False, timeout=120)

    def program(self, *words):
        return [self.build / "tests/containers/driver_program", *words]

    def both(self, command, *flags):
        """The command's output is that of an open program without the lease's device, and of a limited one with it."""
        for lease, wanted in ((False, OPEN), (True, LIMITED)):
            result = self.inside(command, *flags, lease=lease)
            expect(result.stdout.strip() == wanted, f"{'with' if lease else 'without'} the lease, {command} {flags}: "
                                                    f"{result.stdout}{result.stderr}")

    def refused(self, *flags, **keywords):
        result = self.inside(["true"], *flags, **keywords)
        expect(result.returncode != 0, "the container was started")
        return result.stderr

    def held(self):
        return self.lgpu("ls", "--query", "gpu.held", "--format", "csv,noheader,nounits").stdout.split()

    @contextlib.contextmanager
    def holding(self, *flags):
        """A container with 40 MiB."""
        container = subprocess.Popen([*self.podman("-i", "--name", NAME, *flags), "--rootfs", "/:O", *self.program("--hold")],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            answer = container.stdout.readline().strip()
            expect(answer == "40 MiB: 0", f"{answer}")
            yield container
        finally:
            subprocess.run([*PODMAN, "kill", "-s", "KILL", NAME], capture_output=True, check=False, timeout=60)
            container.communicate(timeout=60)

    @staticmethod
    def more(container):
        container.stdin.write("\n")
        container.stdin.flush()
        return container.stdout.readline().strip()


@case
def a_plain_program_is_limited(world):
    world.both(world.program())


@case
def the_absolute_path_of_the_driver_is_limited(world):
    world.both(world.program(DRIVER))


@case
def a_program_without_an_environment_is_limited(world):
    world.both(["env", "-i", "LGPU_FAKE_CUDA=/fake/state", *world.program()])


@case
def other_ways_to_load_the_driver_are_limited(world):
    world.both(world.program("deep:libcuda.so.1"))
    world.both(world.program("new:libcuda.so.1"))


@case
def an_images_own_variables_change_nothing(world):
    world.both(world.program(), "-e", f"LD_LIBRARY_PATH={LIBRARIES}", "-e", "LD_PRELOAD=libnvidia-ml.so.1", "-e", "LGPU_SHIM=off",
               "-e", "LGPU_LEASE=l-00000000", "-e", "LGPU_ENDPOINT=/nowhere")


@case
def another_user_in_a_container_of_few_rights_is_limited(world):
    world.both(world.program(), "--user", "4711", "--cap-drop", "all", "--security-opt", "no-new-privileges")


@case
def a_read_only_root_is_limited(world):
    world.both(world.program(), "--read-only", "--read-only-tmpfs=false", "--user", "4711")


@case
def a_driver_of_the_images_own_is_limited(world):
    for compat in ("/usr/local/cuda/compat", "/usr/local/cuda-13.0/compat", "/opt/mounted"):
        world.both(world.program(f"{compat}/libcuda.so.1"), "-v", f"{world.fake}:{compat}:ro")


@case
def either_order_of_devices_is_limited(world):
    for devices in ((CARD, f"lgpu.io/lease={NAME}"), (f"lgpu.io/lease={NAME}", CARD)):
        flags = [word for device in devices for word in ("--device", device)]
        result = subprocess.run([*PODMAN, "run", "--rm", *LIMITS, *flags, "--rootfs", "/:O", *world.program()],
                                capture_output=True, text=True, check=False, timeout=120)
        expect(result.stdout.strip() == LIMITED, f"{devices}: {result.stdout}{result.stderr}")


@case
def one_device_has_the_cards_edits_too(world):
    edits = world.write_lease(NAME, "--with", CARD)
    expect("LGPU_FAKE_CUDA=/fake/state" in edits["env"] and len(edits["hooks"]) == 2, f"{edits}")
    result = subprocess.run([*PODMAN, "run", "--rm", *LIMITS, "--device", f"lgpu.io/lease={NAME}", "--rootfs", "/:O",
                             *world.program()], capture_output=True, text=True, check=False, timeout=120)
    expect(result.stdout.strip() == LIMITED, result.stdout + result.stderr)
    world.write_lease(NAME)


@case
def a_program_of_podman_exec_is_limited(world):
    with world.holding():
        for before in ([], ["env", "-i", "LGPU_FAKE_CUDA=/fake/state"]):
            result = subprocess.run([*PODMAN, "exec", "-e", "LGPU_FAKE_CUDA=/fake/state", NAME, *before, *world.program()],
                                    capture_output=True, text=True, check=False, timeout=60)
            expect(result.stdout.strip() == LIMITED, result.stdout + result.stderr)


@case
def a_driver_that_is_upgraded_below_a_container_leaves_it_limited(world):
    with world.holding():
        world.install_driver()
        result = subprocess.run([*PODMAN, "exec", "-e", "LGPU_FAKE_CUDA=/fake/state", NAME, *world.program()], capture_output=True,
                                text=True, check=False, timeout=60)
        expect(result.stdout.strip() == LIMITED, result.stdout + result.stderr)


@case
def a_program_with_liblgpu_has_the_lease_and_is_counted_once(world):
    result = world.inside([world.build / "cli/lgpu", "verify", "--lease", NAME])
    expect(result.returncode == 0, result.stdout + result.stderr)


@case
def a_container_without_a_driver_is_refused(world):
    result = subprocess.run([*PODMAN, "run", "--rm", *LIMITS, "--device", f"lgpu.io/lease={NAME}", "--rootfs", "/:O", "true"],
                            capture_output=True, text=True, check=False, timeout=60)
    expect(result.returncode != 0 and "the container has no libcuda.so.1, so nothing would limit it" in result.stderr, result.stderr)


@case
def a_second_lease_is_refused(world):
    text = world.refused("--device", f"lgpu.io/lease={NAME}-second")
    expect("another lease, or a volume, mounted at /run/lgpu" in text, text)


@case
def a_socket_in_place_of_the_leases_is_refused(world):
    (world.folder / "other").mkdir()
    (world.folder / "other/session.sock").touch()
    for mount in ("other/session.sock:/run/lgpu/session.sock", "other/session.sock:/var/run/lgpu/session.sock"):
        text = world.refused("-v", f"{world.folder}/{mount}")
        expect("another lease, or a volume, mounted at /run/lgpu" in text, text)


@case
def a_program_is_known_by_its_pid_on_the_machine(world):
    with world.holding():
        row = world.lgpu("ps", "--query", "pid,uid,lease", "--format", "csv,noheader").stdout.strip().split(",")
        expect(row[1:] == [str(OWNER), NAME], f"the session is the owner's: {row}")
        command = pathlib.Path(f"/proc/{row[0]}/cmdline").read_bytes()
        expect(b"driver_program" in command, f"pid {row[0]} is {command}")
        expect(sum(map(int, world.held())) >= 40 << 20, f"{world.held()}")
    eventually(lambda: set(world.held()) == {"0"}, "the memory of a killed container is back")


@case
def suspending_the_programs_of_a_container_is_refused(world):
    with world.holding() as container:
        refused = world.lgpu("suspend", NAME)
        expect(refused.returncode != 0 and "has no `lgpu run` or `lgpu exec` above it" in refused.stderr, refused.stdout + refused.stderr)
        expect(world.more(container) == "4 MiB: 0", "the program does not go on")


@case
def a_restart_of_lgpud_is_survived(world):
    with world.holding() as container:
        world.kill()
        world.start()
        answers = [world.more(container) for _ in range(8)]
        expect(answers[:6] == ["4 MiB: 0"] * 6 and answers[6:] == ["4 MiB: 2"] * 2, f"{answers}")


@case
def a_full_card_refuses_as_it_does_outside(world):
    taken = world.lgpu("create", "--name", f"{NAME}-full", "-m", "160MiB", "--guarantee", "160MiB")
    expect(taken.returncode == 0, taken.stderr)
    try:
        refused = world.inside(world.program())
        expect(refused.stdout.strip().endswith("96 MiB: 2"), refused.stdout + refused.stderr)
    finally:
        world.lgpu("rm", f"{NAME}-full")


@case
def a_container_of_a_removed_lease_runs_and_is_refused_memory(world):
    name = f"{NAME}-third"
    made = world.lgpu("create", "--managed", "--owner", str(OWNER), "--name", name, "-m", "64MiB")
    expect(made.returncode == 0, made.stderr)
    folders = [pathlib.Path(mount["hostPath"]) for mount in world.write_lease(name)["mounts"] if "/leases/" in mount["hostPath"]]
    expect(folders and all(folder.exists() for folder in folders), f"the lease has a folder: {folders}")
    script = f"touch /mnt/started; until [ -e /mnt/gone ]; do sleep 0.1; done; {world.program()[0]}"
    (world.folder / "shared").mkdir()
    container = subprocess.Popen([*world.podman("--device", f"lgpu.io/lease={name}", "-v", f"{world.folder}/shared:/mnt", lease=False),
                                  "--rootfs", "/:O", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    eventually((world.folder / "shared/started").exists, "the container runs")
    expect(world.lgpu("rm", name).returncode == 0, "the lease is removed")
    (world.folder / "shared/gone").touch()
    output, _ = container.communicate(timeout=60)
    expect("96 MiB: 2" in output, output)
    eventually(lambda: not any(folder.exists() for folder in folders), "lgpud removes the lease's folder")
    text = world.refused("--device", f"lgpu.io/lease={name}", lease=False)
    expect("leases/" in text, text)


def libraries_of(file):
    """The files that the loader takes for a program or library of this machine."""
    listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=True, timeout=60).stdout
    return [word for word in listed.split() if word.startswith("/")]


def small_root(world, above, owner):
    """A root of the owner's with the program and what it loads, in the folder `above`."""
    program, root = world.program()[0], above / "root"
    old = {f"{LIBRARIES}/{name}" for name in ("libpthread.so.0", "libdl.so.2")}  # of lgpu's libraries
    for file in old | {str(program), *libraries_of(program), *libraries_of(world.fake / "libcuda.so.1")}:
        (root / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / file[1:])
    for folder in ("proc", "sys", "dev", "run", "tmp", "etc", LIBRARIES[1:], "fake"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder, _, files in os.walk(above):
        for each in (folder, *(os.path.join(folder, file) for file in files)):
            os.chown(each, owner, owner)
    return root


@case
def a_container_in_a_user_namespace_is_limited(world):
    root = str(small_root(world, world.folder / "mapped", 100000))
    for lease, wanted in ((False, OPEN), (True, LIMITED)):
        result = world.inside(world.program(), "--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536", lease=lease, root=root)
        expect(result.stdout.strip() == wanted, f"{lease}: {result.stdout}{result.stderr}")


@case
def a_user_without_root_uses_a_lease_of_their_own(world):
    name, home, program = f"{NAME}-own", world.folder / "home", world.program()[0]
    root = small_root(world, home, OWNER)
    user = ["setpriv", "--reuid", str(OWNER), "--regid", str(OWNER), "--clear-groups", "env", "-i", f"HOME={home}",
            f"XDG_RUNTIME_DIR={home}", "PATH=/usr/bin:/bin:/usr/sbin:/sbin"]

    def as_user(*words):
        return subprocess.run([*user, *words], capture_output=True, text=True, check=False, timeout=120)

    lgpu = [str(world.build / "cli/lgpu"), "--endpoint", str(world.endpoint)]
    made = as_user(*lgpu, "create", "--name", name, "-m", "64MiB")
    expect(made.returncode == 0, made.stderr)
    spec = as_user(*lgpu, "env", name, "--format", "cdi")
    expect(spec.returncode == 0, spec.stderr)
    world.write(name, json.loads(spec.stdout))
    podman = ["podman", "--storage-driver", "vfs", "--cgroup-manager=cgroupfs", "--runtime", "runc", "run", "--rm", "--network",
              "none", "--device", CARD]
    for device, wanted in (([], OPEN), (["--device", f"lgpu.io/lease={name}"], LIMITED)):
        result = as_user(*podman, *device, "--rootfs", str(root), str(program))
        expect(result.stdout.strip() == wanted, f"{device}: {result.stdout}{result.stderr}")
    stranger = subprocess.run(["setpriv", "--reuid", "61302", "--regid", "61302", "--clear-groups", "ls",
                               json.loads(spec.stdout)["devices"][0]["containerEdits"]["mounts"][-1]["hostPath"]],
                              capture_output=True, text=True, check=False, timeout=60)
    expect(stranger.returncode != 0, "another user comes into the lease's folder")
    gone = as_user(*lgpu, "rm", name)
    expect(gone.returncode == 0, gone.stderr)


@case
def the_file_of_the_kubernetes_driver_limits(world):
    requirements = ROOT / "packaging/kubernetes/requirements.txt"
    environment = subprocess.run([ROOT / "scripts/python-env", "--path", requirements], capture_output=True, text=True, check=True,
                                 timeout=60).stdout.strip()
    packages = list(pathlib.Path(environment).glob("lib/python3*/site-packages"))
    if not packages:
        print(f"        without the packages of {requirements}: the next case looks at nothing")
        return
    sys.path[:0] = [str(ROOT / "packaging/kubernetes"), str(packages[0])]
    from lgpu_dra import cards  # pylint: disable=import-outside-toplevel
    from lgpu_dra.driver import Driver  # pylint: disable=import-outside-toplevel
    from lgpu_dra.leases import Leases  # pylint: disable=import-outside-toplevel
    of = types.SimpleNamespace
    leases = Leases(str(world.build / "cli/lgpu"), str(world.endpoint), str(OWNER))
    result = of(driver="lgpu.io", pool="node", device=cards.device_name(leases.snapshot()[0][0]["uuid"]), request="memory",
                consumed_capacity={"memory": "64Mi"}, admin_access=False)
    uid = f"00000000-0000-4000-8000-{os.getpid():012d}"
    found = of(metadata=of(uid=uid), status=of(allocation=of(devices=of(results=[result]))))
    driver = Driver("lgpu.io", "node", leases, of(claim=lambda *_: found), CDI)
    claim = of(namespace="team", name="claim", uid=uid)
    try:
        (_, _, _, ids), = driver.prepare(claim)
        for devices in ([CARD, *ids], [*ids, CARD]):
            flags = [word for device in devices for word in ("--device", device)]
            ran = subprocess.run([*PODMAN, "run", "--rm", *LIMITS, *flags, "--rootfs", "/:O", *world.program()],
                                 capture_output=True, text=True, check=False, timeout=120)
            expect(ran.stdout.strip() == LIMITED, f"{devices}: {ran.stdout}{ran.stderr}")
    finally:
        driver.unprepare(claim)


def run(cases, why):
    """The cases that the command line names, or all, in a world with two leases. `why` not: the reason."""
    if why:
        print(f"skipped: {why}")
        return 77
    folder = tempfile.mkdtemp(prefix="lgpu-limit-", dir="/dev/shm")
    world = World(pathlib.Path(sys.argv[2]).resolve(), folder)
    wanted = sys.argv[3:]
    try:
        world.start()
        world.write_card()
        for name in (NAME, f"{NAME}-second"):
            made = world.lgpu("create", "--managed", "--owner", str(OWNER), "--name", name, "-m", "64MiB")
            expect(made.returncode == 0, made.stderr)
            world.write_lease(name)
        for each in cases:
            if wanted and each.__name__ not in wanted:
                continue
            started = time.monotonic()
            each(world)
            print(f"ok {time.monotonic() - started:6.1f} s  {each.__name__}", flush=True)
    finally:
        for file in world.files:
            file.unlink(missing_ok=True)
        if world.daemon is not None:
            world.kill()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(run(CASES, why_not()))
