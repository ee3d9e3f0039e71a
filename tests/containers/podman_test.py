#!/usr/bin/env python3
"""`lgpu env --format cdi` with the real podman: a container has a lease and nothing else, whoever runs in it.

podman_test.py ROOT BUILD   ends with 77 where it cannot run, and says why

The containers' root is this machine's under an overlay, so that no image is needed."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PODMAN = ["podman", "--cgroup-manager=cgroupfs", "--runtime", "runc"]
# Limits that a runtime without CAP_SYS_RESOURCE can set.
LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none"]
OWNER = 61301  # a user without a name
NAME = f"podman-{os.getpid()}"
CDI = pathlib.Path(f"/etc/cdi/lgpu-{NAME}.json")


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def eventually(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < deadline, f"not within {seconds} s: {what}")
        time.sleep(0.1)


def why_not():
    if os.geteuid() != 0:
        return "only root mounts a lease's directory into a container"
    absent = [program for program in ("podman", "runc") if shutil.which(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (scripts/deps --ci)"
    try:
        tried = subprocess.run([*PODMAN, "run", "--rm", *LIMITS, "--rootfs", "/:O", "true"], capture_output=True, text=True,
                               check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return "podman does not start a container within 60 s"
    return f"podman starts no container here: {tried.stderr.strip().splitlines()[-1]}" if tried.returncode else None


class Lgpud:
    """A daemon with a runtime directory `run` in a folder, and lgpu's command with it."""

    def __init__(self, build, folder):
        self.build, self.folder, self.daemon = build, pathlib.Path(folder), None
        self.endpoint, self.config = self.folder / "run", self.folder / "lgpud.toml"

    def start_with(self, *flags, **how):
        self.daemon = subprocess.Popen([self.build / "daemon/lgpud", "--dir", self.endpoint, "--config", self.config, *flags],
                                       **how)
        eventually(lambda: self.lgpu("ls").returncode == 0, "lgpud answers")

    def kill(self):
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def lgpu(self, *words):
        return subprocess.run([self.build / "cli/lgpu", "--endpoint", self.endpoint, *words], capture_output=True, text=True,
                              check=False, timeout=60)


class World(Lgpud):
    def __init__(self, build, folder):
        super().__init__(build, folder)
        (self.folder / "shared").mkdir()
        (self.folder / "shared").chmod(0o1777)
        self.folder.chmod(0o755)
        self.config.write_text(f'[daemon]\nstate_dir = "{folder}/state"\nlock_dir = "{folder}/locks"\nsocket_group = ""\n')

    def start(self):
        self.start_with("--simulate", "2x256MiB", stderr=subprocess.DEVNULL)

    def podman(self, *flags):
        return [*PODMAN, "run", "--rm", *LIMITS, "--device", f"lgpu.io/lease={NAME}", "-e", f"PATH={self.build}/cli:/usr/bin:/bin",
                "-v", f"{self.folder}/shared:/mnt", *flags, "--rootfs", "/:O"]

    def inside(self, script, *flags):
        return subprocess.run([*self.podman(*flags), "sh", "-c", script], capture_output=True, text=True, check=False,
                              timeout=120)

    def held(self):
        return self.lgpu("ls", "--query", "gpu.held", "--format", "csv,noheader,nounits").stdout.split()


def root_and_others_have_the_lease_alone(world):
    for user in ("0", "4711"):
        result = world.inside("""
            lgpu ls --query lease --format csv,noheader
            lgpu verify > /dev/null; echo verify $?
            lgpu rm other; echo rm other $?
            lgpu resize $LGPU_LEASE -m 128MiB; echo resize $?
            lgpu rm $LGPU_LEASE; echo rm $?
            lgpu create -m 2MiB; echo create $?
            """, "--user", user)
        lines = result.stdout.splitlines()
        expect(lines == [NAME, "verify 0", "rm other 6", "resize 4", "rm 4", "create 4"], f"user {user}: {lines}\n{result.stderr}")


def a_restart_of_lgpud_is_survived(world):
    container = subprocess.Popen(
        [*world.podman(), "sh", "-c", "lgpu verify && touch /mnt/first; until [ -e /mnt/again ]; do sleep 0.1; done; lgpu verify"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    eventually((world.folder / "shared/first").exists, "the container has verified its limit")
    world.kill()
    world.start()
    (world.folder / "shared/again").touch()
    output, _ = container.communicate(timeout=60)
    expect(container.returncode == 0, output)


def processes_are_known_by_the_hosts_numbers(world):
    container = subprocess.Popen([*world.podman("-i", "--name", NAME), world.build / "tests/e2e/e2e_client"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for command in (f"open c lease={NAME}", "alloc c a 33554432"):
            container.stdin.write(command + "\n")
            container.stdin.flush()
            answer = container.stdout.readline()
            expect(answer.startswith("ok"), f"{command}: {answer}")
        row = world.lgpu("ps", "--query", "pid,uid,lease", "--format", "csv,noheader").stdout.strip().split(",")
        expect(row[1:] == [str(OWNER), NAME], f"the session is the owner's: {row}")
        command = pathlib.Path(f"/proc/{row[0]}/cmdline").read_bytes()
        expect(b"e2e_client" in command, f"pid {row[0]} is {command}")
        expect(sum(map(int, world.held())) >= 33554432, f"{world.held()}")
    finally:
        subprocess.run([*PODMAN, "kill", "-s", "KILL", NAME], capture_output=True, check=False, timeout=60)
        container.wait(60)
    eventually(lambda: set(world.held()) == {"0"}, "the memory is back")


def main():
    why = why_not()
    if why:
        print(f"skipped: {why}")
        return 77
    folder = tempfile.mkdtemp(prefix="lgpu-podman-")
    world = World(pathlib.Path(sys.argv[2]).resolve(), folder)
    try:
        world.start()
        made = world.lgpu("create", "--managed", "--owner", str(OWNER), "--name", NAME, "-m", "64MiB")
        expect(made.returncode == 0, made.stderr)
        expect(world.lgpu("create", "--name", "other", "-m", "64MiB").returncode == 0, "another lease")
        spec = world.lgpu("env", NAME, "--format", "cdi")
        expect(spec.returncode == 0 and json.loads(spec.stdout)["kind"] == "lgpu.io/lease", spec.stderr)
        CDI.parent.mkdir(exist_ok=True)
        CDI.write_text(spec.stdout)
        for case in (root_and_others_have_the_lease_alone, a_restart_of_lgpud_is_survived,
                     processes_are_known_by_the_hosts_numbers):
            case(world)
            print(f"ok      {case.__name__}")
    finally:
        CDI.unlink(missing_ok=True)
        if world.daemon is not None:
            world.kill()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
