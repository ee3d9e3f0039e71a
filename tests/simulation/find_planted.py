"""Plants the bugs of tests/simulation/planted into a copy of the tree, one by one, and has lgpu_simulation find them.

usage: find_planted.py ROOT FOLDER [--cpu-seconds S] [PATCH ...]
FOLDER gets the copy and its build; a later run goes on with them. Without PATCH: all.
Exit code 0: every bug was found; 1: one was not found, or its patch does not apply any more."""

import argparse
import filecmp
import pathlib
import resource
import shutil
import subprocess
import sys


def copy_tree(root, tree):
    """The files of the tree as they are, without what git ignores. Files that did not change keep their times."""
    files = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
                           capture_output=True, text=True, check=True).stdout
    for name in files.splitlines():
        source, target = pathlib.Path(root) / name, tree / name
        if not source.is_file() or (target.is_file() and filecmp.cmp(source, target, shallow=False)):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def build(tree):
    folder = tree / "build"
    if not (folder / "build.ninja").exists():
        subprocess.run(["cmake", "-S", tree, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        "-DLGPU_CUDA=OFF", "-DLGPU_BENCHMARKS=OFF", "-DLGPU_EXAMPLES=OFF"],
                       check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder, "lgpu_simulation"], check=True, stdout=subprocess.DEVNULL)
    return folder / "tests/simulation/lgpu_simulation"


def cpu_time():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def find(program, most_seconds):
    """The first failure and the CPU time until then; nothing: there was none."""
    started = cpu_time()
    while cpu_time() - started < most_seconds:
        run = subprocess.run([program, "--fresh", "5"], capture_output=True, text=True)
        if run.returncode != 0:
            return run.stderr.splitlines()[0] if run.stderr else "no text", cpu_time() - started
    return None


def patch(tree, file, reverse=False):
    command = ["patch", "--strip=1", "--batch", "--fuzz=0", "--directory", tree, "--input", file]
    return subprocess.run(command + (["--reverse"] if reverse else []), capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("folder")
    parser.add_argument("--cpu-seconds", type=float, default=60)
    parser.add_argument("patches", nargs="*")
    arguments = parser.parse_args()
    planted = pathlib.Path(arguments.root).resolve() / "tests/simulation/planted"
    files = [planted / f"{name}.patch" for name in arguments.patches] or sorted(planted.glob("*.patch"))
    tree = pathlib.Path(arguments.folder).resolve() / "tree"
    copy_tree(arguments.root, tree)
    failed = False
    for file in files:
        applied = patch(tree, file)
        if applied.returncode != 0:
            sys.exit(f"{file.name} does not apply any more:\n{applied.stdout}")
        try:
            found = find(build(tree), arguments.cpu_seconds)
        finally:
            patch(tree, file, reverse=True)
        if found is None:
            print(f"{file.stem}: NOT FOUND within {arguments.cpu_seconds:.0f} s of CPU time", flush=True)
            failed = True
        else:
            print(f"{file.stem}: found after {found[1]:.1f} s of CPU time: {found[0]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
