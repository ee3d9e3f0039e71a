#!/usr/bin/env python3
"""Installs a wheel in a fresh environment and uses all of it from there: the module, lgpud and lgpu.

wheel_check.py WHEEL [PYTHON]"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import zipfile

MOST_BYTES = 16_000_000
# The newest versions of symbols that RHEL 9 and Amazon Linux 2023 have: glibc 2.34, the C++ library of GCC 11.
FLOOR = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11,)}
TESTS = pathlib.Path(__file__).resolve().parent


def clean_environment(folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LGPU_", "PYTHON"))}
    # No lgpu but that of the wheel.
    environment["PATH"] = f"{folder}/venv/bin:/usr/bin:/bin"
    environment["XDG_STATE_HOME"] = str(folder / "state")
    return environment


def use_daemon(folder, environment):
    runtime = str(folder / "run")
    daemon = subprocess.Popen(["lgpud", "--simulate", "2x64MiB", "--dir", runtime], stderr=subprocess.PIPE, text=True,
                              env=environment)
    try:
        log = []
        for line in daemon.stderr:
            log.append(line)
            if " ready: " in line:
                break
        else:
            raise SystemExit(f"lgpud of the wheel did not start:\n{''.join(log)}")
        threading.Thread(target=daemon.stderr.read, daemon=True).start()
        environment = {**environment, "LGPU_ENDPOINT": runtime}
        code = ("import lgpu, subprocess, sys\n"
                "with lgpu.Context(memory_limit='16MiB', lease_name='of-the-wheel') as ctx:\n"
                "    print((ctx.constant([[3.0]]) @ ctx.constant([[4.0]])).tolist())\n"
                "    print(subprocess.run([sys.executable, '-m', 'lgpu', 'ps'], capture_output=True, text=True).stdout)")
        out = subprocess.run(["python", "-c", code], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        assert "[[12.0]]" in out and "of-the-wheel" in out, out
        listed = subprocess.run(["lgpu", "ls"], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        assert "64.00MiB" in listed, listed
        examined = subprocess.run(["lgpu", "doctor"], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        assert re.search(r"^ok +self-test ", examined, re.MULTILINE), examined
        daemon.terminate()
        assert daemon.wait(30) == 0
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()


def check_licences(wheel):
    """Each library in the wheel has the copyright file of its Debian package there, and what that refers to."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        licences = {pathlib.PurePosixPath(name).name: archive.read(name) for name in names if ".dist-info/licenses/" in name}
        notice = archive.read("lgpu/licenses/NOTICE").decode()
    libraries = [name for name in names if name.startswith("lgpu.libs/") and not name.endswith("/")]
    assert libraries and licences, names
    missing = [name for name in re.findall(r"[a-z]+\.copyright", notice) if f"lgpu/licenses/{name}" not in names]
    packages = {"libcli11-dev", "libgrpc-dev", "libjs-dygraphs", "nlohmann-json3-dev"}
    for library in libraries:
        stem, end = re.fullmatch(r"lgpu\.libs/(.+)-[0-9a-f]{8}(\.so.*)", library).groups()
        found = subprocess.run(["dpkg-query", "--search", f"*/{stem}{end}"], check=True, stdout=subprocess.PIPE, text=True).stdout
        packages.add(found.split(":")[0])
    for package in sorted(packages):
        own = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_bytes()
        if licences.get(f"{package}.copyright") != own:
            missing.append(f"{package}.copyright")
        missing += [name for name in re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", own.decode()) if name not in licences]
    assert not missing, f"the wheel lacks these licences, or has others: {sorted(set(missing))}"


def check_symbols(wheel):
    """No file of the wheel asks for a symbol above the floor, and the wheel's name says so."""
    assert "-manylinux_2_34_" in wheel.name, wheel.name
    above, checked = [], set()
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for name in archive.namelist():
            if archive.read(name)[:4] != b"\x7fELF":
                continue
            checked.add(name)
            table = subprocess.run(["objdump", "-T", archive.extract(name, folder)], check=True, stdout=subprocess.PIPE, text=True).stdout
            for family, number in re.findall(r"\b(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)\b", table):
                if tuple(map(int, number.split("."))) > FLOOR[family]:
                    above.append(f"{name}: {family}_{number}")
    own = {"lib/liblgpu.so.0", "bin/lgpu", "bin/lgpud", "bin/lgpu-selftest", "client/driver/lib/libcuda.so.1",
           "client/driver/lib/libnvidia-ml.so.1", "client/driver/lib/liblgpu_redirect.so"}
    assert {f"lgpu/{name}" for name in own} <= checked, checked
    assert not above, f"above glibc 2.34 with the C++ library of GCC 11: {sorted(set(above))}"


def main():
    wheel = pathlib.Path(sys.argv[1]).resolve()
    assert wheel.stat().st_size <= MOST_BYTES, f"{wheel} has {wheel.stat().st_size} bytes; at most {MOST_BYTES} are wanted"
    check_licences(wheel)
    check_symbols(wheel)
    with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as name:
        folder = pathlib.Path(name)
        environment = clean_environment(folder)
        subprocess.run([*(sys.argv[2:] or ["python3"]), "-m", "venv", folder / "venv"], check=True)
        subprocess.run(["python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy==2.4.6", "ml_dtypes==0.6.0",
                        wheel], check=True, env=environment)
        # pip checks no hash: the files are what the wheel's record says.
        code = ("import base64, hashlib, importlib.metadata as m\n"
                "for file in m.files('lgpu'):\n"
                "    if file.hash: assert base64.urlsafe_b64encode(hashlib.sha256(file.read_binary()).digest()).rstrip(b'=')"
                ".decode() == file.hash.value, file")
        subprocess.run(["python", "-c", code], check=True, env=environment, cwd=folder)
        for test in ("api", "errors", "scopes"):
            subprocess.run(["python", TESTS / f"{test}_test.py"], check=True, env=environment, cwd=folder)
        use_daemon(folder, environment)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, used from a fresh environment")


if __name__ == "__main__":
    main()
