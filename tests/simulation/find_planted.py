"""Plants the bugs of tests/simulation/planted, one by one, and has lgpu_simulation find each by fresh seeds.

usage: find_planted.py BUILD [--cpu-seconds S] [PATCH ...]
       find_planted.py --applies
BUILD is a build folder in which lgpu_simulation is built. A patch is applied to a copy of the one file that it names; the
object with that file is built as in BUILD, and linked in front of the libraries. Neither the tree nor BUILD changes.
Without PATCH: all. --applies builds nothing: it checks that each patch applies to the tree.
Exit code 0: every bug was found; 1: one was not found, or its patch does not apply any more."""

import argparse
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLANTED = ROOT / "tests/simulation/planted"


def apply(patch, folder):
    """A copy of the file that the patch names, with the bug."""
    names = re.findall(r"^\+\+\+ b/(\S+)$", patch.read_text(), re.MULTILINE)
    if len(names) != 1:
        sys.exit(f"{patch.name} names {len(names)} files; a planted patch changes one")
    copy = folder / names[0]
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / names[0], copy)
    done = subprocess.run(["patch", "--strip=1", "--batch", "--fuzz=0", "--directory", folder, "--input", patch],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{patch.name} does not apply any more:\n{done.stdout}")
    return ROOT / names[0], copy


def commands(build, target):
    done = subprocess.run(["ninja", "-C", build, "-t", "commands", target], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def source_with(command, build, file):
    """The source of a compilation that has the file, by itself or in a group of files."""
    words = shlex.split(command)
    if "-c" not in words:
        return None
    source = pathlib.Path(words[words.index("-c") + 1])
    if source == file:
        return source
    is_group = source.suffix == ".cxx" and source.is_relative_to(build)
    return source if is_group and f'#include "{file}"' in source.read_text().splitlines() else None


def compile_planted(build, target, file, copy):
    """The object of the file's copy, as the build makes it."""
    for command in commands(build, target):
        source = source_with(command, build, file)
        if source is None:
            continue
        planted = copy
        if source != file:
            planted = copy.parent / "group.cxx"
            planted.write_text(source.read_text().replace(f'"{file}"', f'"{copy}"'))
        words = shlex.split(command)
        words[words.index("-c") + 1] = str(planted)
        for flag, suffix in (("-o", ".o"), ("-MF", ".d")):
            words[words.index(flag) + 1] = str(copy) + suffix
        subprocess.run(words, cwd=build, check=True)
        return str(copy) + ".o"
    sys.exit(f"{target} has no object of {file}")


def link_planted(build, target, objects, program):
    """The target with the objects in front of the libraries, of which the linker then takes none that has the same."""
    command = commands(build, target)[-1]
    words = shlex.split(command.removeprefix(": && ").removesuffix(" && :"))
    out = words.index("-o")
    words[out:out + 2] = [*objects, "-o", str(program)]
    subprocess.run(words, cwd=build, check=True)


def plant(build, target, patch, folder):
    """The target with the patch's bug."""
    file, copy = apply(patch, folder)
    program = folder / pathlib.Path(target).name
    link_planted(build, target, [compile_planted(build, target, file, copy)], program)
    return program


def cpu_time():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def find(program, most_seconds):
    """The first failure and the CPU time until then; nothing: there was none."""
    started = cpu_time()
    while cpu_time() - started < most_seconds:
        run = subprocess.Popen([program, "--fresh", "5"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
        with run:
            failure = run.stderr.readline().strip()
            if failure:
                os.killpg(run.pid, signal.SIGKILL)  # it looks for the shortest prefix, which takes a while
        if failure:
            return failure, cpu_time() - started
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?")
    parser.add_argument("--applies", action="store_true")
    parser.add_argument("--cpu-seconds", type=float, default=60)
    parser.add_argument("patches", nargs="*")
    arguments = parser.parse_args()
    patches = [PLANTED / f"{name}.patch" for name in arguments.patches] or sorted(PLANTED.glob("*.patch"))
    if arguments.applies:
        for patch in patches:
            with tempfile.TemporaryDirectory() as folder:
                apply(patch, pathlib.Path(folder))
        return 0
    if arguments.build is None:
        parser.error("BUILD is missing: a build folder in which lgpu_simulation is built")
    build = pathlib.Path(arguments.build).resolve()
    failed = False
    for patch in patches:
        with tempfile.TemporaryDirectory() as folder:
            found = find(plant(build, "lgpu_simulation", patch, pathlib.Path(folder)), arguments.cpu_seconds)
        if found is None:
            print(f"{patch.stem}: NOT FOUND within {arguments.cpu_seconds:.0f} s of CPU time", flush=True)
            failed = True
        else:
            print(f"{patch.stem}: found after {found[1]:.1f} s of CPU time: {found[0]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
