#!/usr/bin/env python3
"""lgpu-hook with a real docker: each form of a container is limited, and is shown open without the lease's device first.

docker_test.py ROOT BUILD [CASE ...]   ends with 77 where no docker answers that reads CDI files, and says why

docker's daemon has to see this machine's files at their own paths. The world and the driver are limit_test.py's; the image is made
of the program and of the libraries that it loads."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys

from limit_test import CARD, DRIVER, LIBRARIES, LIMITED, NAME, OPEN, ROOT, libraries_of, run, small_root
from podman_test import eventually, expect

IMAGE = f"{NAME}:latest"
LEASE = f"lgpu.io/lease={NAME}"
LIMITS = ["--ulimit", "nofile=1024:1024", "--network", "none"]
SILENT_CARD = ["env", "-i", "LGPU_FAKE_CUDA=/fake/state"]
CASES = []


def case(function):
    CASES.append(function)
    return function


def docker(*words, **how):
    return subprocess.run(["docker", *words], **{"capture_output": True, "text": True, "check": False, "timeout": 120, **how})


def why_not():
    if os.geteuid() != 0:
        return "only root mounts a lease's directory into a container"
    if shutil.which("docker") is None:
        return "docker is not installed"
    said = docker("info", "--format", "{{.ServerVersion}} {{json .CDISpecDirs}}")
    words = said.stdout.split(maxsplit=1)
    if said.returncode != 0 or len(words) != 2:
        return f"no docker daemon answers: {said.stderr.strip()}"
    folders = json.loads(words[1]) if words[1].startswith("[") else []
    return None if "/etc/cdi" in folders else f"docker {words[0]} reads no CDI files of /etc/cdi"


def make_image(world):
    above = world.folder / "image"
    root = small_root(world, above, 0)
    for program in ("/usr/bin/env", "/bin/sh", "/usr/bin/sleep"):
        for file in (program, *libraries_of(program)):
            (root / file[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, root / file[1:])
    subprocess.run(["tar", "-cf", above / "image.tar", "-C", root, "."], check=True, timeout=60)
    made = docker("import", str(above / "image.tar"), IMAGE)
    expect(made.returncode == 0, made.stderr)


def command(*flags, devices=(CARD, LEASE)):
    return ["run", "--rm", *LIMITS, *(word for device in devices for word in ("--device", device)), *flags]


def both(world, words=None, *flags):
    """The program's output is that of an open one without the lease's device, and of a limited one with it, in either order."""
    for devices, wanted in (((CARD,), OPEN), ((CARD, LEASE), LIMITED), ((LEASE, CARD), LIMITED)):
        result = docker(*command(*flags, devices=devices), IMAGE, *(words or map(str, world.program())))
        expect(result.stdout.strip() == wanted, f"{devices} {words} {flags}: {result.stdout}{result.stderr}")


def refused(*flags, devices=(CARD, LEASE)):
    result = docker(*command(*flags, devices=devices), IMAGE, "true")
    expect(result.returncode != 0, "the container was started")
    return result.stderr


@contextlib.contextmanager
def holding(world, *flags):
    """A container with 40 MiB."""
    name = f"{NAME}-holds"
    container = subprocess.Popen(["docker", *command("-i", "--name", name, *flags), IMAGE, *map(str, world.program("--hold"))],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        answer = container.stdout.readline().strip()
        expect(answer == "40 MiB: 0", f"{answer}{'' if answer else container.communicate(timeout=60)[1]}")
        yield container, name
    finally:
        docker("kill", name)
        container.communicate(timeout=60)


@case
def each_form_of_a_program_is_limited(world):
    program = [str(word) for word in world.program()]
    both(world)
    both(world, [*program, DRIVER])
    both(world, [*SILENT_CARD, *program])
    both(world, [*program, "deep:libcuda.so.1"])
    both(world, None, "-e", f"LD_LIBRARY_PATH={LIBRARIES}", "-e", "LD_PRELOAD=libnvidia-ml.so.1", "-e", "LGPU_SHIM=off", "-e",
         "LGPU_LEASE=l-00000000", "-e", "LGPU_ENDPOINT=/nowhere")


@case
def each_form_of_a_container_is_limited(world):
    both(world, None, "--user", "4711", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    # docker makes the mounts of a CDI file read-only too, and the fake card has to be written.
    both(world, ["env", "LGPU_FAKE_CUDA=/card/state", *map(str, world.program())], "--read-only", "-v", f"{world.folder}/card:/card",
         "-v", "/proc:/card/proc")
    for compat in ("/usr/local/cuda-13.0/compat", "/opt/mounted"):
        both(world, [str(world.program()[0]), f"{compat}/libcuda.so.1"], "-v", f"{world.fake}:{compat}:ro")


@case
def one_device_has_the_cards_edits_too(world):
    world.write_lease(NAME, "--with", CARD)
    result = docker(*command(devices=(LEASE,)), IMAGE, *map(str, world.program()))
    expect(result.stdout.strip() == LIMITED, result.stdout + result.stderr)
    world.write_lease(NAME)


@case
def docker_exec_is_limited_and_a_kill_gives_the_memory_back(world):
    with holding(world) as (_, name):
        for before in ([], SILENT_CARD):
            result = docker("exec", "-e", "LGPU_FAKE_CUDA=/fake/state", name, *before, *map(str, world.program()))
            expect(result.stdout.strip() == LIMITED, result.stdout + result.stderr)
        expect(sum(map(int, world.held())) >= 40 << 20, f"{world.held()}")
    eventually(lambda: set(world.held()) == {"0"}, "the memory of a killed container is back")


@case
def a_restart_of_lgpud_is_survived(world):
    with holding(world) as (container, _):
        world.kill()
        world.start()
        answers = [world.more(container) for _ in range(8)]
        expect(answers[:6] == ["4 MiB: 0"] * 6 and answers[6:] == ["4 MiB: 2"] * 2, f"{answers}")


@case
def what_would_not_be_limited_is_not_started(world):
    expect("the container has no libcuda.so.1, so nothing would limit it" in refused(devices=(LEASE,)), "no card")
    expect("another lease, or a volume, mounted at /run/lgpu" in refused(devices=(CARD, LEASE, f"{LEASE}-second")), "two leases")
    said = refused("-v", f"{world.folder}:/run/lgpu")
    expect("another lease, or a volume, mounted at /run/lgpu" in said, said)


@case
def a_container_that_is_started_again_is_limited_again(world):
    name = f"{NAME}-again"
    made = docker("create", *command("--name", name)[2:], IMAGE, *map(str, world.program()))
    expect(made.returncode == 0, made.stderr)
    try:
        for _ in range(2):
            result = docker("start", "--attach", name)
            expect(result.stdout.strip() == LIMITED, result.stdout + result.stderr)
    finally:
        docker("rm", name)


@case
def the_pages_compose_file_for_docker_is_limited(world):
    compose = next((words for words in (["docker", "compose"], ["docker-compose"])
                    if shutil.which(words[0]) and subprocess.run([*words, "version"], capture_output=True, check=False).returncode == 0), None)
    if compose is None:
        print("        without docker compose: the next case looks at nothing")
        return
    page = (ROOT / "docs/containers.md").read_text(encoding="utf-8")
    text = re.search(r"```yaml\n(services:   # docker compose\n.*?)```", page, re.S).group(1)
    text = text.replace("nvidia.com/gpu=all", CARD).replace("lgpu.io/lease=train", LEASE)
    more = {"image": IMAGE, "command": [str(word) for word in world.program()], "network_mode": "none"}
    folder = world.folder / "compose"
    folder.mkdir()
    (folder / "compose.yaml").write_text(text + "".join(f"    {key}: {json.dumps(value)}\n" for key, value in more.items()))
    result = subprocess.run([*compose, "up", "--no-log-prefix"], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    subprocess.run([*compose, "down"], cwd=folder, capture_output=True, check=False, timeout=120)
    expect(f"{LIMITED}\n" in result.stdout, result.stdout + result.stderr)


def with_image(each):
    """The image is made in the world of the first case."""
    def run_with(world):
        if docker("image", "inspect", IMAGE).returncode != 0:
            make_image(world)
        each(world)
    run_with.__name__ = each.__name__
    return run_with


if __name__ == "__main__":
    reason = why_not()
    try:
        sys.exit(run([with_image(each) for each in CASES], reason))
    finally:
        if reason is None:
            docker("rmi", "--force", IMAGE)
