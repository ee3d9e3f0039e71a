#!/usr/bin/env python3
"""lgpu-hook alone, on roots that no honest image has: nothing outside of the root is touched, and nothing waits.

hook_test.py HOOK   as root; ends with 77 where it cannot run, and says why"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

HOOK = pathlib.Path(sys.argv[1]).resolve()
LIBRARIES = "usr/lib/x86_64-linux-gnu" if os.uname().machine == "x86_64" else "usr/lib/aarch64-linux-gnu"
CASES = []


def case(function):
    CASES.append(function)
    return function


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


class Image:
    """A root with a lease's folder, and a bundle that names it. `outside` lies on the machine beside it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.root, self.outside = self.folder / "root", self.folder / "outside"
        self.libraries = self.root / LIBRARIES
        for made in (self.libraries, self.root / "etc", self.root / "run/lgpu", self.outside):
            made.mkdir(parents=True)
        (self.root / "run/lgpu/session.sock").touch()
        self.lease = self.root / "run/lgpu"  # as if it were mounted
        self.environment = []
        self.mounts = []

    def place_library(self, path):
        """Any library: the hook does not look into a driver."""
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pathlib.Path("/", LIBRARIES, "libm.so.6"), path)

    def cover(self, look="true", before="true", **state):
        """(exit code, stderr, output of `look` after the hook, in its mount namespace). `before` runs there first; `state`: more of
        the container's state."""
        config = {"root": {"path": str(self.root)}, "process": {"env": self.environment},
                  "mounts": [{"destination": each} for each in self.mounts]}
        (self.folder / "config.json").write_text(json.dumps(config))
        (self.folder / "state").write_text(json.dumps({"bundle": str(self.folder), **state}))
        script = f'{before} || exit 9; "{HOOK}" cover l-1 GPU-1 {self.lease} < {self.folder}/state || exit $?; cd {self.root}; {look}'
        result = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", script], capture_output=True, text=True,
                                check=False, timeout=60)
        expect(not list(self.outside.iterdir()), f"the hook wrote outside of the root: {list(self.outside.iterdir())}")
        return result.returncode, result.stderr, result.stdout

    def covered(self, path):
        code, text, found = self.cover(f'grep -ac "LGPU_LEASE=l-1" "{path}" || true')
        expect(code == 0, text)
        return found.strip() != "0"

    def refused(self, **keywords):
        code, text, _ = self.cover(**keywords)
        expect(code == 1 and text.startswith("lgpu-hook: ") and text.count("\n") == 1, f"{code} {text}")
        return text


@case
def every_file_of_the_driver_is_covered_wherever_it_is_mounted(image):
    places = [LIBRARIES + "/libcuda.so.580.65.06", "usr/local/cuda-12.4/compat/libcuda.so.550.1", "opt/a/libcuda.so.1",
              "opt/b/libcuda.so", "opt/c/libcuda.so.1", "srv/libcuda.so.1"]
    for place in places:
        image.place_library(image.root / place)
    image.environment = ["LD_LIBRARY_PATH=relative:/opt/a:/usr/lib"]
    (image.root / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n")
    (image.root / "etc/ld.so.conf.d").mkdir()
    (image.root / "etc/ld.so.conf.d/x.conf").write_text("# a comment\n/opt/b\n")
    image.mounts = ["/proc", "/opt/c", "/srv/libcuda.so.1"]
    for place in places:
        expect(image.covered(place), f"{place} is open")
    code, text, found = image.cover("findmnt -rno OPTIONS -T usr/lib/lgpu/cover; ls usr/lib/lgpu/cover")
    expect(code == 0 and found.startswith("ro,nosuid,nodev") and found.split()[1:] == list("123456"), f"{text} {found}")


@case
def a_library_of_two_names_is_covered_once(image):
    image.place_library(image.libraries / "libcuda.so.580.1")
    for name in ("libcuda.so.1", "libcuda.so"):
        (image.libraries / name).symlink_to("libcuda.so.580.1")
    code, text, found = image.cover("ls usr/lib/lgpu/cover")
    expect(code == 0 and found.split() == ["1"], f"{text} {found}")


@case
def links_out_of_the_root_end_in_it(image):
    image.place_library(image.folder / "machine/libcuda.so.1")
    (image.libraries / "libcuda.so.1").symlink_to(image.folder / "machine/libcuda.so.1")
    (image.libraries / "libcuda.so").symlink_to("../" * 30 + str(image.folder / "machine/libcuda.so.1"))
    (image.root / "usr/lib64").symlink_to(image.folder / "machine")
    expect("has no libcuda.so.1" in image.refused(), "the machine's driver was taken for the container's")
    image.place_library(image.libraries / "libcuda.so.580.1")
    (image.root / "usr/lib/lgpu").symlink_to(image.outside)
    expect("cannot make the folder /usr/lib/lgpu in the container" in image.refused(), "a link in place of the folder")


@case
def what_is_no_regular_file_is_not_opened(image):
    image.place_library(image.libraries / "libcuda.so.580.1")
    for place in ("usr/lib/libcuda.so.1", "usr/lib/libc.so.6", "etc/ld.so.conf", LIBRARIES + "/libnvidia-ml.so.1"):
        os.mkfifo(image.root / place)
    (image.root / "usr/lib/libcuda.so.2").mkdir()
    (image.root / "usr/lib/libcuda.so.3").symlink_to("libcuda.so.3")
    (image.root / "usr/lib/libcuda.so.4").symlink_to("/proc/self/exe")
    os.mknod(image.root / "usr/lib/libcuda.so.5", 0o20600, os.makedev(10, 130))  # a watchdog: opening it starts it
    expect(image.covered(LIBRARIES + "/libcuda.so.580.1"), "the driver's file is open")


@case
def damaged_libraries_end_in_one_sentence_or_are_covered(image):
    shim = (HOOK.parent / "lib/libcuda.so.1").read_bytes()
    good = image.libraries / "libcuda.so.580.1"
    image.place_library(good)
    odd = image.libraries / "libcuda.so.1"
    for bytes_ in (b"", b"\x7fELF", b"\x7fELF\x02" + b"\xff" * 5000, shim[:64], shim[:4096], shim[:200000],
                   shim[:32] + b"\xff" * 8 + shim[40:], shim[:54] + b"\xff" * 4 + shim[58:]):
        odd.write_bytes(bytes_)
        code, text, _ = image.cover()
        expect(code in (0, 1) and text.count("\n") <= 1, f"{code} {text}")
    odd.write_bytes(shim[:4096])
    os.truncate(odd, 1 << 40)
    code, text, _ = image.cover()
    expect(code in (0, 1) and text.count("\n") <= 1, f"{code} {text}")


@case
def a_configuration_that_includes_itself_ends(image):
    image.place_library(image.libraries / "libcuda.so.580.1")
    folder = image.root / "etc/ld.so.conf.d"
    folder.mkdir()
    for i in range(100):
        (folder / f"{i}.conf").write_text("include /etc/ld.so.conf.d/*.conf\n" * 100)
    (image.root / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n")
    expect(image.covered(LIBRARIES + "/libcuda.so.580.1"), "the driver's file is open")
    (folder / "0.conf").write_text("".join(f"/opt/{i}\n" for i in range(5000)))
    expect("folders of libraries, above" in image.refused(), "5000 folders")


@case
def a_user_namespace_that_cannot_read_the_bundle_is_enough(image):
    place = f"{LIBRARIES}/libcuda.so.580.1"
    image.place_library(image.root / place)
    for folder, _, files in os.walk(image.root):
        for each in (folder, *(os.path.join(folder, file) for file in files)):
            os.chown(each, 61301, 61301)
    image.folder.chmod(0o711)
    (image.folder / "bundle").mkdir(mode=0o700)
    (image.folder / "state").write_text(json.dumps({"bundle": str(image.folder / "bundle")}))
    script = f'cd {image.root} && "{HOOK}" cover l-1 GPU-1 /nowhere < {image.folder}/state && grep -ac LGPU_LEASE=l-1 {place}'
    result = subprocess.run(["setpriv", "--reuid", "61301", "--regid", "61301", "--clear-groups", "unshare", "--map-root-user",
                             "--mount", "--propagation", "private", "sh", "-c", script], capture_output=True, text=True, check=False,
                            timeout=60)
    expect(result.returncode == 0 and result.stdout.strip() != "0", f"{result.stdout}{result.stderr}")


@case
def a_runtime_that_says_the_root_in_the_state_is_enough(image):
    place = f"{LIBRARIES}/libcuda.so.580.1"
    image.place_library(image.root / place)
    code, text, found = image.cover(f"grep -ac LGPU_LEASE=l-1 {place}", bundle="/nowhere", root=str(image.root))
    expect(code == 0 and found.strip() != "0", f"{text} {found}")


@case
def a_root_that_is_read_only_already_is_covered_where_the_runtime_has_made_the_folder(image):
    place = f"{LIBRARIES}/libcuda.so.580.1"
    image.place_library(image.root / place)
    read_only = f"mount --bind {image.root} {image.root} && mount -o remount,bind,ro {image.root}"
    expect("cannot make the folder /usr/lib/lgpu in the container" in image.refused(before=read_only), "no folder")
    (image.root / "usr/lib/lgpu/cover").mkdir(parents=True)
    code, text, found = image.cover(f"grep -ac LGPU_LEASE=l-1 {place}", before=read_only)
    expect(code == 0 and found.strip() != "0", f"{text} {found}")


@case
def the_machines_log_has_the_reason_too(image):
    log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    log.bind(str(image.folder / "log"))
    text = image.refused(before=f"mount -t tmpfs none /dev && ln -s {image.folder}/log /dev/log")
    log.settimeout(60)
    expect(log.recv(4096) == b"<27>" + text.encode(), text)


@case
def too_many_drivers_are_refused(image):
    for i in range(65):
        image.place_library(image.libraries / f"libcuda.so.{i}")
    expect("more than 64 files of NVIDIA's driver" in image.refused(), "65 drivers")


@case
def a_c_library_that_is_too_old_is_refused(image):
    image.place_library(image.libraries / "libcuda.so.580.1")
    libc = pathlib.Path("/", LIBRARIES, "libc.so.6").read_bytes()
    (image.libraries / "libc.so.6").write_bytes(libc)
    expect(image.covered(LIBRARIES + "/libcuda.so.580.1"), "this machine's is new enough")
    (image.libraries / "libc.so.6").write_bytes(libc.replace(b"\0GLIBC_2.28\0", b"\0GLIBC_2.0x\0"))
    expect("is older than glibc 2.28" in image.refused(), "an old one")


@case
def a_lease_whose_folder_has_no_socket_is_refused(image):
    image.place_library(image.libraries / "libcuda.so.580.1")
    (image.root / "run/lgpu/session.sock").unlink()
    expect("lease l-1 is gone" in image.refused(), "no socket")


@case
def another_folder_in_place_of_the_leases_is_refused(image):
    image.place_library(image.libraries / "libcuda.so.580.1")
    image.mounts = ["/run/lgpu", "/run/lgpu/session.sock"]
    expect("another lease, or a volume, mounted at /run/lgpu" in image.refused(), "a mount in the folder")
    image.mounts, image.lease = ["/run/lgpu"], image.folder / "lease"
    image.lease.mkdir()
    (image.lease / "session.sock").touch()
    expect("another lease, or a volume, mounted at /run/lgpu" in image.refused(), "another folder")
    (image.root / "run/lgpu/session.sock").unlink()
    expect("another lease, or a volume, mounted at /run/lgpu" in image.refused(), "an empty folder")


@case
def without_a_container_there_is_a_sentence(image):
    for state in ("", "[]", "{", '{"bundle": 3}', '{"bundle": "/nowhere"}'):
        result = subprocess.run([HOOK, "cover", "l-1", "GPU-1", "/nowhere"], input=state, capture_output=True, text=True, check=False, cwd="/",
                                timeout=60)
        expect(result.returncode == 1 and result.stderr.startswith("lgpu-hook: ") and image, f"{state}: {result.stderr}")
    result = subprocess.run([HOOK, "check"], capture_output=True, text=True, check=False, timeout=60)
    expect(result.returncode == 0 and "can limit containers" in result.stdout, result.stderr)
    for words, code in ((["--help"], 0), ([], 2), (["cover", "l-1"], 2)):
        result = subprocess.run([HOOK, *words], capture_output=True, text=True, check=False, timeout=60)
        expect(result.returncode == code and "Usage: lgpu-hook cover" in result.stdout + result.stderr, f"{words}: {result}")


def main():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        print("skipped: only root makes mount namespaces")
        return 77
    for each in CASES:
        folder = tempfile.mkdtemp(prefix="lgpu-hook-")
        try:
            each(Image(folder))
            print(f"ok      {each.__name__}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
