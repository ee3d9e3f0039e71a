#!/usr/bin/env python3
"""Runs scripts/gpu-check-run on the fake driver, with the programs of a build in place of a bundle's.

gpu_check_test.py ROOT BUILD steps|python
steps: the order, the choice of steps, and the reports of runs that are killed or have no time.
python: the steps that need Python, with this one, which has numpy and numba-cuda."""

import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time

ROOT, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
PROGRAMS = ["daemon/lgpud", "cli/lgpu", "cli/lgpu-selftest", "tools/gpu_probe", "tests/contract/cuda_backend_test",
            "tests/e2e/e2e_cuda_tests_concurrent", "tests/e2e/e2e_client", "tests/kernels/kernels_cuda_test"]
PATIENCE = 240


class Bundle:
    def __init__(self, folder):
        self.folder = folder
        self.token = secrets.token_hex(8)
        (folder / "bin").mkdir()
        for program in PROGRAMS:
            (folder / "bin" / pathlib.Path(program).name).symlink_to(BUILD / program)
        for part in ("ledger", "report.sh", "steps.sh"):
            (folder / f"gpu-check-{part}").symlink_to(ROOT / "scripts" / f"gpu-check-{part}")
        for client in ("hard_life", "has_package", "workloads"):
            (folder / f"{client}.py").symlink_to(ROOT / "tests/unmodified" / f"{client}.py")
        shutil.copy(ROOT / "scripts/gpu-check-run", folder / "run")

    def start(self, *words, machine=(), environment=None):
        self.report = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        run = [BUILD / "tests/fake_cuda/fake_cuda_run", "--cards", "1", "--memory", "2GiB", *machine, "--"]
        return subprocess.Popen([*run, self.folder / "run", *words, self.report], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "LGPU_GPU_CHECK_FAKE": "1", "LGPU_GPU_CHECK_PYTHON": sys.executable,
                                     "GPU_CHECK_TEST": self.token, **(environment or {})})

    def run(self, *words, **options):
        """The exit code, the verdicts, and the last line of the report; without a report what was printed."""
        process = self.start(*words, **options)
        output, _ = process.communicate()
        if not list(self.report.glob("*.json")):
            return process.returncode, {}, output
        written = self.read()
        assert written["ended"], written
        return process.returncode, written["verdicts"], self.last_line()

    def read(self):
        (file,) = self.report.glob("*.json")
        written = json.loads(file.read_text())
        written["verdicts"] = {name: step["verdict"] for name, step in written["steps"].items()}
        return written

    def markdown(self):
        (file,) = self.report.glob("*.md")
        return file.read_text()

    def last_line(self):
        return self.markdown().splitlines()[-1]

    def log(self, name):
        (file,) = self.report.glob(f"*/{name}.log")
        return file.read_text()

    def kill_when_running(self, step, *words, **options):
        """Kills the script, and it alone, when the step has begun; then everything that it has left."""
        process = self.start(*words, **options)
        deadline = time.monotonic() + PATIENCE
        while not list(self.report.glob("*.json")) or self.read()["verdicts"][step] != "running":
            assert process.poll() is None and time.monotonic() < deadline, f"{step} never began"
            time.sleep(0.02)
        (script,) = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(script), signal.SIGKILL)
        process.communicate()
        self.kill_leftovers()
        return self.read()

    def kill_leftovers(self):
        for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"GPU_CHECK_TEST={self.token}".encode() in environ.read_bytes():
                    os.kill(int(environ.parent.name), signal.SIGKILL)
            except OSError:
                pass


def killed_in_the_first_step(bundle):
    written = bundle.kill_when_running("kernels", machine=["--hold", "kernels"])
    assert not written["ended"] and written["gpu"] == "Fake GPU" and written["driver"], written
    verdicts = written["verdicts"]
    assert verdicts.pop("kernels") == "running" and set(verdicts.values()) == {"not reached"}, verdicts
    assert bundle.last_line() == "The run has not ended; kernels was running: 0 passed, 0 failed, 0 skipped"


def killed_in_a_later_step(bundle):
    written = bundle.kill_when_running("e2e", "--skip", "kernels")
    verdicts = written["verdicts"]
    assert [verdicts[name] for name in ("kernels", "contract", "ledger", "doctor")] == [
        "left out", "passed", "passed", "not reached"], verdicts
    assert verdicts["e2e"] in ("running", "passed"), verdicts  # it may have ended before it was killed
    assert "[  PASSED  ]" in bundle.log("contract") and "2 programs" in bundle.log("ledger")
    assert "| ledger | passed |" in bundle.markdown() and "2 programs" in bundle.markdown()


def no_time(bundle):
    """A step that never ends, and one after it."""
    code, verdicts, last = bundle.run("--seconds", "4", "--only", "kernels,contract", machine=["--hold", "kernels"])
    assert code == 1 and last == "0 passed, 0 failed, 0 skipped, 2 not run", (code, last)
    assert verdicts["kernels"].startswith("not run: no time"), verdicts
    assert verdicts["contract"] == "not run: no time", verdicts


def a_daemon_that_hangs(bundle):
    """In its start and at its end, as in a driver; so does the command that asks it."""
    for program, script in (("lgpud", "trap '' TERM\nwhile :; do sleep 1; done"), ("lgpu", "exec sleep 1000")):
        path = bundle.folder / "bin" / program
        path.unlink()
        path.write_text(f"#!/bin/bash\n[[ ${{1:-}} != --version ]] || exit 0\n{script}\n")
        path.chmod(0o755)
    code, verdicts, last = bundle.run("--seconds", "5", "--only", "doctor,verify")
    assert code == 1 and last == "0 passed, 0 failed, 0 skipped, 2 not run", (code, last, verdicts)


def chosen_steps(bundle):
    code, verdicts, last = bundle.run("--only", "ver*,doctor", "--skip", "verify-driver")
    assert code == 0 and last == "2 passed, 0 failed, 0 skipped", (code, last)
    assert {name for name, verdict in verdicts.items() if verdict != "left out"} == {"doctor", "verify"}, verdicts
    for words, text in ((["--only", "kernel"], 'there is no step "kernel"'), (["--skip", "e2e,x*"], 'there is no step "x*"'),
                        (["--seconds", "soon"], "is no number of seconds"), (["--fast"], "unknown argument")):
        process = bundle.start(*words)
        output, _ = process.communicate()
        assert process.returncode == 2 and text in output, (words, process.returncode, output)


def order(bundle):
    steps = subprocess.run([bundle.folder / "run", "--steps"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    worth = ["kernels", "contract", "ledger", "e2e", "verify-driver", "runtime", "torch", "torch-expandable", "torch-async", "jax", "cupy",
             "numba", "triton", "adaptor-torch", "memory", "own-kernel", "bench", "kernels-bench", "probe", "suspend"]
    assert [step for step in steps if step in worth] == worth and steps[0] == "kernels" and steps[-1] == "suspend", steps


def figures_that_are_missing(bundle):
    """A ledger that cannot be compared is a failure."""
    code, verdicts, last = bundle.run("--only", "ledger", machine=["--fail", "nvmlDeviceGetMemoryInfo=999"])
    assert code == 1 and verdicts["ledger"] == "failed (1)" and last == "0 passed, 1 failed, 0 skipped", (code, verdicts["ledger"], last)


def verdicts_of_logs(bundle):
    def judge(name, code, text, limit=60, seconds=60):
        (bundle.folder / f"{name}.log").write_text(text)
        return subprocess.run(["bash", "-c", f'logs={bundle.folder}; source {ROOT}/scripts/gpu-check-steps.sh; judge {name} {code} {limit} {seconds}'],
                              check=True, stdout=subprocess.PIPE, text=True).stdout
    summary = "========= COMPUTE-SANITIZER\ncudaMemGetInfo: ...\n========= ERROR SUMMARY: {} errors\n"
    assert judge("compute-sanitizer", 0, summary.format(0)) == "passed"
    assert judge("compute-sanitizer", 0, summary.format(10)).startswith("failed")
    assert judge("compute-sanitizer", 0, "========= COMPUTE-SANITIZER\n").startswith("failed")
    assert judge("compute-sanitizer", 1, summary.format(0)) == "failed (1)"
    assert judge("bench", 0, "no figure\n") == "failed (errors, or no figures)"
    assert judge("e2e", 124, "") == "failed (124)"
    assert judge("e2e", 124, "", seconds=7) == "not run: no time to the end (7 s)"


def programs_that_know_nothing(bundle):
    code, verdicts, last = bundle.run("--only", "numba,two,killed,restart,jax", machine=["--rules", "off"])
    assert code == 0 and last == "4 passed, 0 failed, 1 skipped", (code, last, verdicts, bundle.markdown())
    assert all(verdicts[name] == "passed" for name in ("numba", "two", "killed", "restart")), verdicts


def a_package_that_does_not_import(bundle):
    folder = bundle.folder / "broken"
    for package in ("numba", "numba_cuda"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("raise ImportError('broken')\n")
    code, verdicts, _ = bundle.run("--only", "numba", machine=["--rules", "off"], environment={"PYTHONPATH": str(folder)})
    assert code == 1 and verdicts["numba"].startswith("failed"), verdicts


def packages_that_are_missing(bundle):
    def ask(name, version=None):
        folder = pathlib.Path(tempfile.mkdtemp(dir=bundle.folder))
        if version is not None:
            (folder / "torch").mkdir()
            (folder / "torch/__init__.py").write_text("raise ImportError('it is not imported')\n")
            (folder / "torch/version.py").write_text(f"cuda = {version}\n")
        done = subprocess.run([sys.executable, bundle.folder / "has_package.py", name], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": str(folder)}, check=False)
        return done.returncode, done.stdout
    code, reason = ask("rmm")
    assert code == 77 and reason.endswith(" has no rmm\n"), reason
    assert ask("torch", "'13.0'") == (0, "")
    assert ask("training", "None") == (77, "torch is built without CUDA\n")


def the_module(bundle):
    code, verdicts, last = bundle.run("--only", "module,adaptor-numba")
    assert code == 1 and verdicts["module"] == "failed: the bundle was made without the Python package", verdicts
    assert last == "0 passed, 1 failed, 1 skipped", last
    package = bundle.folder / "python/lgpu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}").write_text("no library")
    code, verdicts, _ = bundle.run("--only", "module,adaptor-numba")
    assert code == 1 and verdicts["module"] == "failed (1)", verdicts
    assert verdicts["adaptor-numba"] == "skipped: the module does not import", verdicts
    if sys.version_info < (3, 12):
        next(package.glob("_core*")).rename(package / "_core.abi3.so")
        code, verdicts, _ = bundle.run("--only", "module")
        assert code == 0 and verdicts["module"].endswith("is older than 3.12"), verdicts


CASES = {"steps": [order, verdicts_of_logs, chosen_steps, no_time, a_daemon_that_hangs, killed_in_the_first_step, killed_in_a_later_step, figures_that_are_missing],
         "python": [packages_that_are_missing, the_module, a_package_that_does_not_import, programs_that_know_nothing]}


def main():
    for case in CASES[sys.argv[3]]:
        with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as folder:
            bundle = Bundle(pathlib.Path(folder))
            try:
                case(bundle)
            finally:
                bundle.kill_leftovers()
        print(case.__name__, "ok", flush=True)


if __name__ == "__main__":
    main()
