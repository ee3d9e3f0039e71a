"""Plants the bugs of tests/simulation/planted, one by one, and has lgpu_simulation find each by fresh seeds.

usage: find_planted.py BUILD [--cpu-seconds S] [PATCH ...]
       find_planted.py BUILD --tests PROGRAM [--tests PROGRAM ...] [PATCH ...]
       find_planted.py --applies
BUILD is a build folder in which lgpu_simulation is built. A patch is applied to a copy of the one file that it names; the
object with that file is built as in BUILD, and linked in front of the libraries. Neither the tree nor BUILD changes.
Without PATCH: all. --tests runs these test programs of BUILD with the bug, to show that no test of theirs finds it; a program
without the file is left out. --applies builds nothing: it checks that each patch applies to the tree.
Exit code 0: every bug was found, or no test failed; 1: one was not found, a test failed, or a patch does not apply any more."""

import argparse
import json
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
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


def is_linked(command, link_command):
    """Whether the library of this compilation is in the program; otherwise a program has it that is built before."""
    library = re.search(r" -o \S*CMakeFiles/([^/]+)\.dir/", command)
    return f"lib{library[1]}.a" in link_command


def compile_planted(build, target, file, copy):
    """The object of the file's copy, as the build makes it; nothing: the target does not have the file."""
    *compilations, link_command = commands(build, target)
    for command in compilations:
        source = source_with(command, build, file)
        if source is None or not is_linked(command, link_command):
            continue
        planted = copy
        if source != file:
            planted = copy.parent / "group.cxx"
            planted.write_text(source.read_text().replace(f'"{file}"', f'"{copy}"'))
        words = shlex.split(command)
        words[words.index("-c") + 1] = str(planted)
        for flag, suffix in (("-o", ".o"), ("-MF", ".d")):
            words[words.index(flag) + 1] = str(copy) + suffix
        if not pathlib.Path(f"{copy}.o").exists():  # of another target
            subprocess.run(words, cwd=build, check=True)
        return f"{copy}.o"
    return None


def link_planted(build, target, objects, program):
    """The target with the objects in front of the libraries, of which the linker then takes none that has the same."""
    command = commands(build, target)[-1]
    words = shlex.split(command.removeprefix(": && ").removesuffix(" && :"))
    out = words.index("-o")
    words[out:out + 2] = [*objects, "-o", str(program)]
    subprocess.run(words, cwd=build, check=True)


def plant(build, target, patch, folder):
    """The target with the patch's bug; nothing: the target does not have the file."""
    file, copy = apply(patch, folder)
    item = compile_planted(build, target, file, copy)
    if item is None:
        return None
    program = folder / pathlib.Path(target).name
    link_planted(build, target, [item], program)
    return program


def cpu_time():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def find(program, most_seconds):
    """The first failure and the CPU time until then; nothing: there was none."""
    started = cpu_time()
    while cpu_time() - started < most_seconds:
        # With a number of strikes, which no seed comes to, a failed run does not look for its shortest prefix.
        run = subprocess.run([program, "--seed", str(random.randrange(10**9)), "--strikes", str(10**9)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            return (run.stderr.splitlines() or [f"it ends with {run.returncode}"])[0], cpu_time() - started
    return None


def tests_of(build, program):
    """Name, arguments and properties of each test of the program."""
    told = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True)
    return [(test["name"], test["command"][1:], {entry["name"]: entry["value"] for entry in test["properties"]})
            for test in json.loads(told.stdout)["tests"] if pathlib.Path(test.get("command", [""])[0]).name == program]


def run_test(build, program, name, arguments, properties):
    """Whether the test succeeds with this file as its program."""
    environment = os.environ | {"LGPU_CONFIG_DIR": str(ROOT / "tests/no-configuration")}
    environment |= dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", ()))
    print(f"running {name}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run([program, *arguments], cwd=properties.get("WORKING_DIRECTORY", build), env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=5 * properties.get("TIMEOUT", 120))
    except subprocess.TimeoutExpired as late:
        print(f"{name} did not end within {late.timeout:.0f} s", file=sys.stderr)
        return False
    if done.returncode != 0:
        sys.stderr.write(done.stdout.decode(errors="replace")[-4000:])
        print(f"{name} ends with {done.returncode}", file=sys.stderr)
    return done.returncode == 0


def is_found(build, patch, most_seconds):
    with tempfile.TemporaryDirectory() as folder:
        program = plant(build, "lgpu_simulation", patch, pathlib.Path(folder))
        if program is None:
            sys.exit(f"{patch.stem}: lgpu_simulation does not have its file")
        found = find(program, most_seconds)
    if found is None:
        print(f"{patch.stem}: NOT FOUND within {most_seconds:.0f} s of CPU time", flush=True)
        return False
    print(f"{patch.stem}: found after {found[1]:.1f} s of CPU time: {found[0]}", flush=True)
    return True


def passes_tests(build, patch, targets):
    passed, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for target in targets:
            program = plant(build, target, patch, pathlib.Path(folder))
            for test in tests_of(build, target) if program else ():
                (passed if run_test(build, program, *test) else failed).append(test[0])
    text = f"fails {' '.join(failed)}" if failed else f"passes {' '.join(passed)}" if passed else "is in none of the programs"
    print(f"{patch.stem}: {text}", flush=True)
    return not failed and bool(passed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?")
    parser.add_argument("--applies", action="store_true")
    parser.add_argument("--cpu-seconds", type=float, default=60)
    parser.add_argument("--tests", action="append")
    parser.add_argument("patches", nargs="*")
    arguments = parser.parse_intermixed_args()
    patches = [PLANTED / f"{name}.patch" for name in arguments.patches] or sorted(PLANTED.glob("*.patch"))
    if arguments.applies:
        for patch in patches:
            with tempfile.TemporaryDirectory() as folder:
                apply(patch, pathlib.Path(folder))
        return 0
    if arguments.build is None:
        parser.error("BUILD is missing: a build folder in which lgpu_simulation is built")
    build = pathlib.Path(arguments.build).resolve()
    good = [passes_tests(build, patch, arguments.tests) if arguments.tests else is_found(build, patch, arguments.cpu_seconds)
            for patch in patches]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
