#!/usr/bin/env python3
"""Makes the packages in a bare Debian, installs them and removes them again, as README.md says.

packages_test.py SOURCE ROOT PACKAGES NEWER PROGRAMS [--same-compiler]   as root, in namespaces of its own (unshare --mount
  --pid --fork). ROOT: a folder with a Debian 12 of debootstrap's, which this changes; PACKAGES, NEWER: folders with packages
  that were made on this machine, in NEWER of a later version; PROGRAMS: the folder of demo_worker

First PACKAGES are installed in ROOT as it is, so that a dependency that they do not name is missing. Then the blocks of
README.md that are fenced as ```console install are run in their order: lines that begin with "# " as root, with "anna$ " or
"ben$ " as that user. No systemd runs in there: a systemctl of this test starts lgpud as the unit says, with the unit's
capabilities.

`scripts/packages` in ROOT finds this user's ccache. With --same-compiler, where ROOT compiles with another version of a
package than this machine, so that ccache would have nothing, PACKAGES are taken for those that it makes."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

SYSTEMCTL = r"""#!/bin/bash
# Starts and stops lgpud as its unit says.
unit=/usr/lib/systemd/system/lgpud.service
value() { sed -n "s/^$1=//p" "$unit"; }
stop() {
  [ -e /tmp/lgpud.pid ] || return 0
  kill "$(cat /tmp/lgpud.pid)" && while kill -0 "$(cat /tmp/lgpud.pid)" 2>/dev/null; do sleep 0.02; done
  rm -f /tmp/lgpud.pid
}
start() {
  # As systemd makes RuntimeDirectory=: for root's group.
  mkdir -p /run/lgpu && chown root:root /run/lgpu && chmod 0750 /run/lgpu
  : >/tmp/lgpud.log
  caps=$(value CapabilityBoundingSet | tr A-Z a-z | sed 's/cap_/+/g; s/ /,/g')
  setsid setpriv --no-new-privs --bounding-set "-all,$caps" --inh-caps=-all "$(value ExecStart)" </dev/null >/dev/null 2>/tmp/lgpud.log &
  echo $! >/tmp/lgpud.pid
  until grep -q " ready: " /tmp/lgpud.log; do
    kill -0 "$(cat /tmp/lgpud.pid)" 2>/dev/null || { rm -f /tmp/lgpud.pid; exit 1; }
    sleep 0.02
  done
}
for word; do
  shift
  case "$word" in -*) ;; *) set -- "$@" "$word" ;; esac
done
condition() { "$(value ExecStart)" --check-gpus 2>/tmp/lgpud.log || { echo skipped >>/tmp/lgpud.log; exit 0; }; }
case "$1 $2" in
  "is-enabled lgpud"*) [ -e "/etc/systemd/system/multi-user.target.wants/$2" ] && echo enabled ;;
  "is-active lgpud"*) [ -e /tmp/lgpud.pid ] ;;
  "start lgpud"*) condition; start ;;
  "restart lgpud"*) condition; stop; start ;;
  "stop lgpud"*) stop ;;
esac
"""

# Files that a package's removal may change: apt's own notes, logs, caches that are made anew, and this test's files.
NOT_COMPARED = re.compile(r"/(proc|sys|dev|tmp|run/systemd|packages|ccache|wheels|root/\.cache)(/|$)|/var/(lib/(apt|dpkg)|cache|log)(/|$)|"
                          r"/etc/ld\.so\.cache$|/usr/local/bin/(systemctl|demo_worker)$|/home/")


# What the compiler reads, beside itself: of one version here and in ROOT, or ccache has nothing.
COMPILED_WITH = ["g++-12", "libstdc++-12-dev", "libc6-dev", "libgrpc++-dev", "libprotobuf-dev", "libabsl-dev", "libboost1.74-dev",
                 "libspdlog-dev", "libcli11-dev", "libcpp-httplib-dev", "nlohmann-json3-dev"]


class Machine:
    def __init__(self, root):
        self.root = root
        self.folder = "/packages"  # root's
        self.options = []  # of env, for root's commands

    def inside(self, path):
        """A path of the machine's, as seen from here."""
        return self.root / path.lstrip("/")

    def run(self, command, user="root", check=False, timeout=600):
        """(what it prints, its exit code)"""
        done = subprocess.run(self.words(command, user), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=timeout)
        if check and done.returncode != 0:
            raise RuntimeError(f"{user}: {command}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout, done.returncode

    def words(self, command, user):
        words = ["chroot", str(self.root), "/usr/bin/env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                 "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", f"HOME={pathlib.Path.home()}"]
        if user != "root":
            words += ["runuser", "-u", user, "--", "env", f"HOME=/home/{user}"]
        else:
            words += ["env", *self.options]
        return words + ["bash", "-c", f"cd {self.folder if user == 'root' else '/tmp'}; {command}"]

    def start(self, command, user):
        return subprocess.Popen(self.words(f"exec {command} >/tmp/program.log 2>&1", user), stdin=subprocess.DEVNULL)

    def files(self):
        found = set()
        for folder, folders, files in os.walk(self.root):
            inside = "/" + str(pathlib.Path(folder).relative_to(self.root)).lstrip(".")
            folders[:] = [name for name in folders if not NOT_COMPARED.search(f"{inside.rstrip('/')}/{name}")]
            for name in folders + files:
                path = f"{inside.rstrip('/')}/{name}"
                if not NOT_COMPARED.search(path):
                    found.add(path)
        return found

    def users(self):
        return {name: (self.root / "etc" / name).read_text(encoding="utf-8") for name in ("passwd", "group")}


def install_blocks(text):
    """[(user, command, expected lines)]"""
    commands = []
    for block in re.findall(r"^```console install\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            prompt = re.match(r"(# |anna\$ |ben\$ )(.*)", line)
            if prompt:
                user = prompt.group(1).rstrip("$# ") or "root"
                commands.append((user, prompt.group(2), []))
            else:
                commands[-1][2].append(line)
    return commands


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def copy_tree(machine, source):
    """The files of a clone, for root; where they are here, so that ccache finds groups of files, which name theirs by the whole
    path."""
    machine.folder = str(source)
    tree = machine.inside(machine.folder)
    tree.mkdir(parents=True)
    listed = subprocess.run(["git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                            capture_output=True).stdout
    packed = subprocess.run(["tar", "-C", source, "--null", "-T", "-", "--ignore-failed-read", "-c"], input=listed, check=True,
                            capture_output=True).stdout
    subprocess.run(["tar", "-C", tree, "--no-same-owner", "-x"], input=packed, check=True)


def offer_what_is_there(machine):
    """What a build takes from a network or from the compiler's cache comes from this machine: options of env."""
    cache = subprocess.run(["ccache", "--get-config", "cache_dir"], check=True, capture_output=True, text=True).stdout.strip()
    pathlib.Path(cache).mkdir(parents=True, exist_ok=True)
    (machine.root / "ccache").mkdir()
    subprocess.run(["mount", "--bind", cache, machine.root / "ccache"], check=True)
    # As the gates before built it, in the same language: ccache tells compilers' messages apart by it.
    options = ["-u", "LC_ALL", "CCACHE_DIR=/ccache", "LGPU_CONFIGURE_FLAGS=-DLGPU_WERROR=ON"]
    options += [f"{name}={os.environ[name]}" for name in ("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES") if name in os.environ]
    if any((machine.root / "wheels").glob("*.whl")):
        options += ["PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels"]
    return options


def other_versions(machine):
    """The packages that files are compiled with, where ROOT has another version than this machine."""
    query = ["dpkg-query", "-W", "-f", "${Package} ${Version}\\n", *COMPILED_WITH]
    here = subprocess.run(query, check=False, capture_output=True, text=True).stdout.splitlines()
    there = subprocess.run(["chroot", str(machine.root), *query], check=False, capture_output=True, text=True).stdout.splitlines()
    return sorted(set(here) ^ set(there))


def make_packages(machine, command, packages, same_compiler):
    """README.md's `scripts/packages`."""
    if same_compiler:
        machine.run("scripts/deps --packages", check=True, timeout=3600)
        differing = other_versions(machine)
        if differing:
            print(f"packages were not made in the bare Debian, for ccache would have nothing there: {', '.join(differing)}")
            shutil.copytree(packages, machine.inside(machine.folder) / "build/packages")
            return
    printed, code = machine.run(command, timeout=4 * 3600)
    expect(code == 0, f"README.md: {command} in a bare Debian:\n" + "\n".join(printed.splitlines()[-40:]))
    made = {package.name for package in (machine.inside(machine.folder) / "build/packages").glob("*.deb")}
    wanted = {package.name for package in packages.glob("*.deb")}
    expect(made == wanted, f"README.md: {command} in a bare Debian makes {sorted(made)}, and here {sorted(wanted)}")


def try_archive(machine, archive, source):
    """The archive brings what a bare Debian lacks, and needs no newer glibc than it says."""
    machine.run(f"mkdir /tmp/archive && tar -C /tmp/archive --strip-components=1 -xzf /packages/{archive.name}", check=True)
    out, _ = machine.run("/tmp/archive/bin/lgpud --version", check=True)
    expect(out.startswith("lgpud "), out)
    out, code = machine.run("/tmp/archive/bin/lgpud --simulate 1x64MiB --dir /tmp/archive/run 2>/tmp/archive/log & "
                            "until grep -q ' ready: ' /tmp/archive/log; do sleep 0.05; done; "
                            "/tmp/archive/bin/lgpu --endpoint /tmp/archive/run run -q -m 8MiB -- "
                            "/tmp/archive/bin/lgpu verify; code=$?; kill %1; wait; exit $code")
    expect(code == 0 and "The limit holds." in out, out)
    words = (source / "docs/install.md").read_text(encoding="utf-8")
    promised = re.search(r"lgpu-VERSION-Linux.*glibc (2\.\d+)", words).group(1)
    needed = set()
    for folder, _, files in os.walk(machine.root / "tmp/archive"):
        for name in files:
            symbols = subprocess.run(["readelf", "-V", f"{folder}/{name}"], capture_output=True, text=True, check=False)
            needed.update(re.findall(r"GLIBC_(2\.\d+)\b", symbols.stdout))
    newest = max(needed, key=lambda version: int(version.split(".")[1]))
    expect(newest == promised, f"docs/install.md promises glibc {promised}; the archive needs {newest}")
    shutil.rmtree(machine.root / "tmp/archive")
    shutil.rmtree(machine.root / "run/lock/lgpu")


def try_shim(machine, package, source):
    """The files that programs of older images load need no newer glibc than the page says."""
    machine.run(f"dpkg-deb -x /packages/{package.name} /tmp/shim", check=True)
    folder = next((machine.root / "tmp/shim").rglob("liblgpu_redirect.so")).parent
    done = subprocess.run([sys.executable, str(source / "tests/driver/shim_files_test.py"), str(source), str(folder)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    expect(done.returncode == 0, f"{package.name}: {done.stdout}")
    promised = re.search(r"glibc older than (2\.\d+)", (source / "docs/containers.md").read_text(encoding="utf-8")).group(1)
    depends, _ = machine.run(f"dpkg-deb -f /packages/{package.name} Depends", check=True)
    expect(f"libc6 (>= {promised})" in depends, f"{package.name} depends on {depends}, and the page says glibc {promised}")
    shutil.rmtree(machine.root / "tmp/shim")


PYTHON = """
import lgpu, numpy
with lgpu.Context(memory_limit="16MiB", endpoint="local:1x64MiB") as ctx:
    print((ctx.constant([[3.0]]) @ ctx.constant([[4.0]])).tolist(), numpy.from_dlpack(ctx.constant([1.0])).tolist())
    ctx.memory().free(ctx.memory().allocate("1MiB"))
    try: ctx.fill([8 << 20], 1.0)
    except MemoryError as error: print(error.refusal["reason"])
"""


def try_python(machine):
    """The package for Debian's own Python."""
    machine.run("apt-get update")  # without a network what was fetched before is enough
    machine.run("apt-get install -y ./python3-lgpu_*.deb ./liblgpu0_*.deb", check=True)
    (machine.root / "tmp/program.py").write_text(PYTHON, encoding="utf-8")
    out, code = machine.run("python3 /tmp/program.py", "anna")
    expect((out, code) == ("[[12.0]] [1.0]\nlimit\n", 0), out)
    out, code = machine.run("python3 -m lgpu --version", "anna")
    expect(code == 1 and "install the package lgpu of the system" in out, out)
    machine.run("python3 -c 'import lgpu.config'", check=True)  # as root, which could write into the package's folder
    machine.run("apt-get purge -y --auto-remove python3-lgpu liblgpu0", check=True)
    left = [str(path) for path in (machine.root / "usr/lib").rglob("*lgpu*")]
    expect(not left, f"python3-lgpu is purged, and left behind: {left}")


def try_image_build(machine):
    """Where no systemd runs the service is enabled all the same, and stays as the administrator of the image left it."""
    link = machine.root / "etc/systemd/system/multi-user.target.wants/lgpud.service"
    install = "apt-get install -y ./lgpud_*.deb ./lgpu_*.deb ./lgpu-driver-shim_*.deb ./liblgpu0_*.deb"
    machine.run(install, check=True)
    expect(link.is_symlink(), "in an image build lgpud.service is not enabled")
    out, code = machine.run("lgpud --check-gpus")
    expect(code == 9 and "no usable GPU" in out and "lgpud --simulate" in out, f"lgpud --check-gpus: {code}: {out}")
    out, code = machine.run("lgpu version", "anna")
    expect("lgpu" in out and "error while loading" not in out, f"lgpu version: {code}: {out}")
    link.unlink()
    machine.run(f"{install} --reinstall", check=True)
    expect(not link.is_symlink(), "the upgrade enables a service that the administrator has disabled")
    machine.run("apt-get purge -y --auto-remove lgpud lgpu lgpu-driver-shim liblgpu0", check=True)


def upgrade(machine, newer):
    """Over a program that holds memory: it goes on, with its lease."""
    worker = machine.start("demo_worker --name work --mode preallocate --memory 64MiB --seconds 1800 --until /tmp/stop", "anna")
    def held():
        out, _ = machine.run("lgpu ls --lease work --query held,sessions --format=csv,noheader,nounits", "anna")
        return out.strip()
    for _ in range(600):
        if held() == f"{64 << 20},1":
            break
        subprocess.run(["sleep", "0.05"], check=True)
    expect(held() == f"{64 << 20},1",
           f"before the upgrade: {held()}\n{(machine.root / 'tmp/program.log').read_text(encoding='utf-8')}")
    packages = machine.inside(machine.folder)
    for package in packages.glob("*.deb"):
        package.unlink()
    for package in newer.glob("*.deb"):
        shutil.copy(package, packages)
    machine.run("apt-get install -y ./lgpud_*.deb ./lgpu_*.deb ./lgpu-driver-shim_*.deb ./liblgpu0_*.deb", check=True)
    out, _ = machine.run("dpkg-query -W -f '${Version}' lgpud", check=True)
    expect(out != "" and (newer / f"lgpud_{out}_amd64.deb").exists(), f"lgpud is {out}")
    ops = "lgpu placements work --json | grep -o '\"records_total\":[0-9]*' | cut -d: -f2"
    before = int(machine.run(ops, "anna", check=True)[0] or 0)
    for _ in range(600):
        if int(machine.run(ops, "anna", check=True)[0] or 0) > before:
            break
        subprocess.run(["sleep", "0.05"], check=True)
    else:
        raise AssertionError("after the upgrade the program's ops do not come any more")
    expect(worker.poll() is None, "the program has ended with the upgrade")
    expect(held() == f"{64 << 20},1", f"after the upgrade: {held()}")
    (machine.root / "tmp/stop").touch()
    expect(worker.wait(120) == 0, f"the program ended with {worker.returncode}")


def main():
    source, root, packages, newer, programs = (pathlib.Path(word).resolve() for word in sys.argv[1:6])
    same_compiler = sys.argv[6:] == ["--same-compiler"]
    spec = importlib.util.spec_from_file_location("docs_test", source / "tests/docs_test.py")
    docs_test = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs_test)
    machine = Machine(root)
    subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
    shutil.copytree(packages, root / "packages")
    shutil.copy(programs / "demo_worker", root / "usr/local/bin")
    machine.run("useradd -m anna; useradd -m ben", check=True)
    try_archive(machine, next(packages.glob("*.tar.gz")), source)
    try_shim(machine, next(packages.glob("lgpu-driver-shim_*.deb")), source)
    if any(packages.glob("python3-lgpu_*.deb")):
        try_python(machine)
    files = machine.files()
    try_image_build(machine)
    left = machine.files() - files
    expect(not left, f"purged in an image build, and left behind: {sorted(left)[:20]}")
    (root / "usr/local/bin/systemctl").write_text(SYSTEMCTL, encoding="utf-8")
    (root / "usr/local/bin/systemctl").chmod(0o755)
    (root / "run/systemd/system").mkdir(parents=True)

    commands = install_blocks((source / "README.md").read_text(encoding="utf-8"))
    expect(commands[:2] == [("root", "scripts/packages", ["..."]), ("root", "cd build/packages", [])],
           f"README.md's Install begins with {commands[:2]}")
    copy_tree(machine, source)
    machine.options = offer_what_is_there(machine)
    make_packages(machine, commands[0][1], packages, same_compiler)
    machine.options = []
    machine.folder += "/build/packages"
    files, users = machine.files(), machine.users()
    expect({user for user, _, _ in commands} == {"root", "anna", "ben"}, "README.md has lines of root, anna and ben")
    expect(any("exit code 75" in expected for _, _, expected in commands), "README.md shows a refusal")
    failures = []
    for user, command, expected in commands[2:]:
        if command.startswith("apt-get purge"):
            upgrade(machine, newer)
        printed = machine.run(command, user)[0].splitlines()
        if not docs_test.matches(expected, printed):
            failures.append("\n".join([f"README.md: {user}: {command}", "  the page says:"] + expected +
                                      ["  it printed:"] + printed))
    left = machine.files() - files
    missing = files - machine.files()
    expect(not failures, "\n".join(failures))
    expect(not left and not missing, f"purged, and left behind: {sorted(left)[:20]}, gone: {sorted(missing)[:20]}")
    expect(machine.users() == users, "users or groups differ after the purge")
    print(f"{len(commands)} lines of README.md run by root, anna and ben; upgraded under a program; nothing left behind")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as failure:
        print(failure)
        sys.exit(1)
