#!/usr/bin/env python3
"""An ordinary user installs a wheel by pip and limits a program that knows nothing of lgpu, on a machine with one fake GPU and
no other lgpu.

wheel_user_check.py WHEEL FAKE_CUDA [ROOT]   FAKE_CUDA: the folder of a build with fake_cuda_run and the fake driver's lib;
  ROOT: the folder of a bare system with python3 and python3-venv, in which all of it is done, by
  root in namespaces of its own (unshare --mount --pid --fork)

Root becomes another user for that, by the system's Python: the wheel has to fit it."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

NOBODY = 65534
LIMIT = 256 << 20

# What the user runs; it uses the driver alone.
PROGRAM = f"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
call("cuInit", 0)
device, total, context, pointer = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
assert total.value == {LIMIT}, total.value
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t({LIMIT} // 2))
beyond = cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t({LIMIT}))
assert beyond == 2, beyond
print("limited")
"""


def run(*words, code=0):
    """What the command prints; it has to end with this exit code."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == code, f"{' '.join(words)}\nexit code {done.returncode}, not {code}\n{done.stdout}"
    return done.stdout


def start_daemon(program, folder):
    """The fake GPU is on other fake machines, too: this one has locks of its own."""
    config = folder / "lgpud.toml"
    config.write_text(f'[daemon]\nlock_dir = "{folder}/locks"\n', encoding="utf-8")
    daemon = subprocess.Popen([program, "--config", config], stderr=subprocess.PIPE, text=True)
    log = []
    for line in daemon.stderr:
        log.append(line)
        if " ready: " in line:
            threading.Thread(target=daemon.stderr.read, daemon=True).start()
            return daemon
    raise SystemExit(f"{program} did not start:\n{''.join(log)}")


def session(wheel, folder):
    """All that the user does, in the folder."""
    assert not shutil.which("lgpu") and not shutil.which("lgpud"), "PATH has an lgpu already"
    run(sys.executable, "-m", "venv", "env")
    python, lgpu = str(folder / "env/bin/python"), str(folder / "env/bin/lgpu")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", str(wheel))
    # Without the libraries that the fake driver brings along.
    for program in ("lgpu", "lgpud"):
        run("env", "-u", "LD_LIBRARY_PATH", str(folder / "env/bin" / program), "--version")

    # Without a daemon the error names the wheel's own.
    refused = run(lgpu, "run", "-m", str(LIMIT), "--", python, "-c", PROGRAM, code=125)
    (own,) = folder.glob("env/lib/python3*/site-packages/lgpu/bin/lgpud")
    assert f"try: {own} " in refused, refused

    daemon = start_daemon(own, folder)
    try:
        limited = run(lgpu, "run", "--require-attach", "-m", str(LIMIT), "--", python, "-c", PROGRAM)
        assert "limited\n" in limited, limited
        run(lgpu, "run", "-m", "64MiB", "--", lgpu, "verify", "--driver")
        checks = {line.split()[1]: line for line in run(lgpu, "doctor").splitlines() if line[:4] in ("ok  ", "warn", "fail", "skip")}
        for name in ("driver-shim", "self-test"):
            assert checks.get(name, "").startswith("ok "), checks
        daemon.terminate()
        assert daemon.wait(60) == 0
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()


def bring_libraries(files, root, folder):
    """Copies what the fake machine is linked to, and `root` lacks, beside the fake driver."""
    for file in files:
        needed = subprocess.run(["ldd", file], check=True, stdout=subprocess.PIPE, text=True).stdout
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", needed, re.MULTILINE):
            if not any((root / place / name).exists() for place in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64")):
                shutil.copy(path, folder)


def main():
    wheel, fake = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    root = pathlib.Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else None
    as_root = os.geteuid() == 0
    inside = root or pathlib.Path("/")
    if root:
        subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    with tempfile.TemporaryDirectory(prefix="lgpu-", dir=inside / "tmp") as name:
        folder = pathlib.Path(name)
        # The source tree may be closed to the user.
        shutil.copytree(fake / "lib", folder / "driver")
        if root:
            bring_libraries([fake / "fake_cuda_run", fake / "lib/libcuda.so.1", fake / "lib/libnvidia-ml.so.1"], root, folder / "driver")
        for file in (wheel, fake / "fake_cuda_run", pathlib.Path(__file__)):
            shutil.copy(file, folder)
        (folder / "run").mkdir(mode=0o700)
        if as_root:
            for path in (folder, folder / "run"):
                os.chown(path, NOBODY, NOBODY)
        there = pathlib.Path("/") / folder.relative_to(inside)
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(there), "XDG_RUNTIME_DIR": f"{there}/run",
                       "LD_LIBRARY_PATH": f"{there}/driver"}
        become = []
        if as_root:
            become = ["/usr/sbin/chroot", f"--userspec={NOBODY}:{NOBODY}", "--groups=", inside]
        python = "/usr/bin/python3" if as_root else sys.executable
        subprocess.run([*become, "/usr/bin/env", "-C", there, there / "fake_cuda_run", "--cards", "1", "--memory", "1GiB", "--rules", "off",
                        "--", python, there / pathlib.Path(__file__).name, "--session", there / wheel.name],
                       check=True, cwd=folder, env=environment)
    print(f"{wheel.name}: limits an unmodified program of an ordinary user on a fake GPU"
          + (", in a bare system" if root else ""))


if __name__ == "__main__":
    if sys.argv[1] == "--session":
        session(pathlib.Path(sys.argv[2]), pathlib.Path.cwd())
    else:
        main()
