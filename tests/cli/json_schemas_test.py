#!/usr/bin/env python3
"""Every JSON that lgpu and the HTTP API write, by the schemas that are installed.

json_schemas_test.py ROOT BUILD [MACHINE]   MACHINE: tests/fake_cuda/fake_cuda_run.cc; without it no GPU's driver is asked"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

try:
    import jsonschema
except ImportError:
    print("skipped: Python's jsonschema is not there; scripts/deps --ci installs it")
    sys.exit(77)

ROOT, BUILD, MACHINE = (sys.argv[1:] + [""])[:3]
sys.path[:0] = [f"{ROOT}/tests/support", f"{ROOT}/tests/web"]

from json_schemas import load_schema, strict
from page_daemon import PageDaemon

FORMAT = re.compile(r"lgpu\.[a-z_]+/v[0-9]+")
MIB = 1 << 20


def check(condition, *told):
    if not condition:
        sys.exit("failed: " + " ".join(str(word) for word in told))


def until(ask, what):
    """The first answer that is not empty."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.05)
    sys.exit(f"failed: no {what} in two minutes")


def format_of(path):
    """The format of a file: lgpu.leases/v1 of lgpu.leases.v1.json."""
    name, version = re.fullmatch(r"(lgpu\.[a-z_]+)\.(v[0-9]+)\.json", os.path.basename(path)).groups()
    return f"{name}/{version}"


def formats_in(*patterns):
    """The formats that the files name."""
    found = set()
    for pattern in patterns:
        for path in glob.glob(f"{ROOT}/{pattern}", recursive=True):
            with open(path, encoding="utf-8") as file:
                found |= set(FORMAT.findall(file.read()))
    return found


class Schemas:
    """The schemas by the names of their formats, and which of them were used."""

    def __init__(self):
        paths = glob.glob(f"{ROOT}/packaging/schemas/*")
        self.files = {format_of(path): load_schema(os.path.dirname(path), os.path.basename(path)) for path in paths}
        self.strict = {name: jsonschema.Draft7Validator(strict(schema)) for name, schema in self.files.items()}
        self.used = set()

    def is_described(self, name, told):
        return self.strict[name].is_valid(told)

    def check(self, told, name, origin):
        check(name in self.strict, "no schema of", name, "which is in", origin)
        for schema in (jsonschema.Draft7Validator(self.files[name]), self.strict[name]):
            error = jsonschema.exceptions.best_match(schema.iter_errors(told))
            if error is not None:
                place = "/".join(str(step) for step in error.absolute_path)
                # Where one of several schemas may fit: the reasons of each.
                reasons = [reason.message[-300:] for reason in error.context or [error]]
                sys.exit(f"failed: {origin} is not as the schema of {name} says: {place}: {'; '.join(reasons)}")
        self.used.add(name)

    def check_whole(self, told, origin, is_inner=False):
        """`told` is of the format that it names, and so is each object inside that names one."""
        if isinstance(told, dict):
            check(is_inner or "schema" in told, "no schema is named in", origin)
            if "schema" in told:
                self.check(told, told["schema"], origin)
        parts = told.values() if isinstance(told, dict) else told if isinstance(told, list) else []
        for part in parts:
            self.check_whole(part, origin, is_inner=True)
        return told


class Outputs:
    """Asks lgpu and the HTTP API of one daemon, and checks all answers."""

    def __init__(self, daemon, schemas):
        self.daemon = daemon
        self.schemas = schemas
        self.verbs = set()
        self.paths = set()
        self.command = [daemon.lgpu, "--endpoint", f"{daemon.folder.name}/run", "--timeout", "60s", "--json"]

    def run(self, words, code, more=None):
        self.verbs.add(words[0])
        result = subprocess.run([*self.command, *words], capture_output=True, text=True, env=dict(os.environ, **more or {}))
        check(result.returncode in code, words, "ended with", result.returncode, result.stderr)
        return result

    def lines(self, *words, code=(0,)):
        """The objects that the verb prints."""
        lines = self.run(words, code).stdout.splitlines()
        check(lines, words, "printed nothing")
        return [self.schemas.check_whole(json.loads(line), f"lgpu {' '.join(words)}") for line in lines]

    def one(self, *words, code=(0,)):
        told = self.lines(*words, code=code)
        check(len(told) == 1, words, "printed", len(told), "lines")
        return told[0]

    def error(self, code, *words, more=None):
        """The one error of a verb that fails; notes may be around it."""
        result = self.run(words, (code,), more)
        errors = [line for line in result.stderr.splitlines() if line.startswith("{")]
        check(len(errors) == 1, words, "has not one error", result.stderr)
        told = self.schemas.check_whole(json.loads(errors[0]), f"the error of lgpu {' '.join(words)}")
        check(told["schema"] == "lgpu.error/v1" and told["exit_code"] == code, told)
        return told

    def get(self, path, status=200):
        """An answer of the HTTP API; None: it has another status, and is an error as it should be."""
        self.paths.add(re.match(r"\w*", path).group())
        try:
            with urllib.request.urlopen(f"{self.daemon.url}/api/v1/{path}", timeout=60) as answer:
                got, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            got, body = error.code, error.read()
        told = self.schemas.check_whole(json.loads(body), f"/api/v1/{path}")
        check((told["schema"] == "lgpu.error/v1") == (got != 200), path, got, told)
        return told if got == status else None


def check_files(schemas):
    """Each format has a file, each file is of a format, and equal names inside mean equal things."""
    written = formats_in(*(f"{folder}/**/*.{kind}" for folder in ("cli", "daemon", "proto") for kind in ("h", "cc")))
    check(written == set(schemas.files), "these have a schema or are written, not both:", written ^ set(schemas.files))
    documented = formats_in("docs/**/*.md", "README.md", "CHANGELOG.md")
    check(documented <= set(schemas.files), "documented, without a schema:", documented - set(schemas.files))
    definitions = {}
    for name, schema in schemas.files.items():
        check(schema["title"] == name and schema["description"], name)
        check(f'"schema": {{"const": "{name}"}}' in json.dumps(schema), "the schema of", name, "does not name it")
        check('"additionalProperties": false' not in json.dumps(schema), name, "takes no member of a later version")
        if name in ("lgpu.memory_snapshot/v1", "lgpu.trace/v1"):
            continue  # snapshots have definitions of their own
        for key, part in schema.get("definitions", {}).items():
            check(definitions.setdefault(key, part) == part, "two definitions of", key, "one in the schema of", name)


def check_strictness(schemas, snapshot):
    """The test would notice what is new, missing or of another type."""
    name = snapshot["schema"]
    for change in ({"surprise": 1}, {"uptime_seconds": "1"}, {"grants_total": -1}, {"accounting": "rough"}):
        check(not schemas.is_described(name, {**snapshot, **change}), "the schema of", name, "takes", change)
    for key in snapshot:
        check(not schemas.is_described(name, {k: v for k, v in snapshot.items() if k != key}), key, "may be missing")
    # A reader with this file can read later versions.
    jsonschema.validate({**snapshot, "surprise": 1}, schemas.files[name])


def check_plain_verbs(out):
    """What needs no program."""
    verbs = {verb["name"] for verb in out.one("help")["verbs"]}
    out.one("version")
    for shell in ("bash", "zsh", "fish"):
        out.one("completion", shell)
    out.one("slurm", "gres")
    out.one("explain", "MatMul")
    check(out.one("explain", "AddV2", "-i", "float[2,3]@GPU:0", "-i", "float[2,3]@CPU:0")["copies"], "no copies")
    check("error" in out.one("explain", "MatMul", "--hard", "--device", "GPU:3"), "no error")
    out.one("create", "-m", "8MiB", "--gpus", "0", "--name", "plain", "--idle-after", "1h")
    out.one("resize", "plain", "-m", "16MiB")
    check(out.one("suspend", "plain")["suspended"], "not suspended")
    check(out.one("inspect", "plain")["suspension"]["in_host_memory"], "not in host memory")
    check(not out.one("resume", "plain")["suspended"], "still suspended")
    out.one("env", "plain")
    check(out.one("verify", "--lease", "plain")["holds"], "the limit does not hold")
    # Whether the machine is all right is not asked here.
    out.one("doctor", code=(0, 1))
    if os.geteuid() == 0:
        managed = out.one("create", "-m", "8MiB", "--name", "managed", "--managed", "--label", "job=7", "--ttl", "1h")
        check(managed["labels"] and managed["time_left_seconds"], managed)
        out.one("inspect", "managed")
        out.one("rm", "managed")
    return verbs


def check_errors(out):
    check(out.error(6, "rm", "none")["code"] == "NOT_FOUND")
    out.error(2, "no-such-verb")
    out.verbs.remove("no-such-verb")
    out.error(2, "create", "-m", "8TiB")
    out.error(1, "verify", "--driver", "--lease", "plain")
    out.error(127, "run", "-m", "8MiB", "--", "/no/such/program")
    out.error(127, "exec", "plain", "--", "/no/such/program")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/error.json"
        out.error(6, "resize", "none", "-m", "8MiB", more={"LGPU_ERROR_FILE": path})
        with open(path, encoding="utf-8") as file:
            out.schemas.check_whole(json.load(file), "the file of LGPU_ERROR_FILE")
    check(out.get("no-such-path", 404), "no answer for a path that is not there")
    out.paths.remove("no")
    check(out.get("events?after=x", 400) and out.get("placements?lease=none", 404) and out.get("map", 400), "wrong status")


def check_waiting(out):
    """A full GPU: a refusal, and a request in its queue."""
    # Programs of before may not have given back all memory yet.
    out.one("create", "--preallocate", "--gpus", "1", "-m", "256MiB", "--name", "full", "--wait")
    refused = out.error(75, "create", "--preallocate", "--gpus", "1", "-m", "8MiB")
    check(refused["refusal"]["holders"], refused)
    check(not out.get("queue")["requests"], "a request waits")
    words = ["create", "--preallocate", "--gpus", "1", "-m", "8MiB", "--name", "waits", "--wait"]
    with subprocess.Popen([*out.command, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as waiting:
        try:
            until(lambda: out.get("queue")["requests"], "request in the queue")
            check(any(card["queue"] for card in out.one("ls")["cards"]), "no queue in ls")
            out.lines("rm", "full", "--wait")
            out.schemas.check_whole(json.loads(waiting.communicate()[0]), "lgpu create --wait")
        finally:
            waiting.kill()
    out.lines("rm", "waits")


def check_program(out):
    """A program with blocks, ops, copies and a refusal."""
    program = out.daemon.program()
    program.must(f"open c lease_name=train limit={32 * MIB}")
    program.must(f"alloc c weights {MIB + 4}")
    program.must("work c 3")
    check(program.ask(f"alloc c more {64 * MIB}").startswith("error"), "the limit does not hold")
    # The daemon reads ops and copies of a program now and then.
    until(lambda: len(out.one("placements", "train")["copies"]) > 2, "copies")
    until(lambda: len(out.one("placements", "train")["records"]) > 5, "ops")
    snapshot = out.one("ls")
    check(out.one("top")["leases"] and out.one("ps")["sessions"] and out.one("ls", "--by-user")["users"], "no program")
    lease = out.one("inspect", "train")
    check(lease["sessions"] and lease["events"] and "last_op_at" in lease, lease)
    check(out.one("inspect", "0")["schema"] == "lgpu.card/v1", "no card")
    check([event for event in out.lines("events") if "refusal" in event], "no refusal")
    check(out.one("snapshot", "train")["sessions"][0]["devices"][0]["blocks"], "no blocks")
    out.schemas.check(json.loads(out.run(("trace", "train"), (0,)).stdout), "lgpu.trace/v1", "lgpu trace")
    check_followed(out)
    check_api(out, lease["id"])
    check(out.one("trim", "train")["sessions"], "trim asked no program")
    removed = out.one("rm", "train", "--kill")
    check(removed["terminated"] or removed["killed"], removed)
    return snapshot


def check_followed(out):
    words = ["placements", "train", "--follow"]
    with subprocess.Popen([*out.command, *words], stdout=subprocess.PIPE, text=True) as following:
        wanted = {"lgpu.placement/v1", "lgpu.copy/v1"}
        try:
            while wanted:
                line = out.schemas.check_whole(json.loads(following.stdout.readline()), "lgpu placements --follow")
                wanted.discard(line["schema"])
        finally:
            following.kill()


def timeline(out, query):
    """A timeline with something in it; None: the daemon, which looks every second, has not seen it yet."""
    told = out.get(f"timeline?{query}")
    return told if told.get("leases") or told.get("devices") else None


def check_api(out, lease):
    for path in ("stats", "snapshot", "cards", "leases", "version", "events"):
        check(out.get(path), path, "has no answer")
    check(out.get("placements?lease=train")["records"], "no ops")
    # A map is an error where its program does not answer within 2 seconds.
    check(until(lambda: out.get(f"map?lease={lease}&device=0"), "map")["cells"], "no cells")
    check("card" in until(lambda: timeline(out, "gpu=0"), "lease in a GPU's timeline"), "no card")
    check("lease" in until(lambda: timeline(out, f"lease={lease}"), "timeline of a lease"), "no lease")
    check(not timeline(out, "gpu=77") and not timeline(out, "lease=none"), "a timeline of nothing")
    wanted = {"stats", "events"}
    out.paths.add("stream")
    with urllib.request.urlopen(f"{out.daemon.url}/api/v1/stream", timeout=120) as stream:
        kind = ""
        while wanted:
            line = stream.readline().decode()
            check(line, "the stream has ended")
            if line.startswith("event: "):
                kind = line.removeprefix("event: ").strip()
            if line.startswith("data: "):
                out.schemas.check_whole(json.loads(line.removeprefix("data: ")), f"{kind} of the stream")
                wanted.discard(kind)


def check_driver(schemas):
    """`lgpu verify --driver` needs a GPU's driver. The result is what cannot be produced without one, and why."""
    if not MACHINE:
        return {"lgpu.driver_verification/v1": "it needs a GPU, and the fake driver is not built or cannot be used here"}
    script = '"$0" create -q -m 64MiB --name whole >/dev/null && exec "$0" verify --driver --lease whole --json'
    in_machine = [MACHINE, "--cards", "1", "--memory", "1GiB", "--rules", "off", "--"]
    with_daemon = [sys.executable, f"{ROOT}/tests/support/with_daemon.py", "--lgpud", f"{BUILD}/daemon/lgpud", "--driver", "--"]
    result = subprocess.run([*in_machine, *with_daemon, "/bin/sh", "-c", script, f"{BUILD}/cli/lgpu"],
                            capture_output=True, text=True)
    check(result.returncode == 0, "lgpu verify --driver", result.stdout, result.stderr)
    schemas.check_whole(json.loads(result.stdout), "lgpu verify --driver")
    return {}


def main():
    for name in ("LGPU_LEASE", "LGPU_ENDPOINT", "LGPU_ERROR_FILE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        os.environ.pop(name, None)
    schemas = Schemas()
    check_files(schemas)
    with PageDaemon(BUILD, simulate="2x256MiB") as daemon:
        out = Outputs(daemon, schemas)
        verbs = check_plain_verbs(out)
        check_errors(out)
        check_waiting(out)
        snapshot = check_program(out)
    check_strictness(schemas, snapshot)
    check(out.verbs == verbs, "not tried, or no verbs:", out.verbs ^ verbs)
    with open(f"{ROOT}/daemon/http/http_api.cc", encoding="utf-8") as file:
        paths = set(re.findall(r'"/api/v1/(\w+)"', file.read()))
    check(out.paths == paths, "not asked, or no paths:", out.paths ^ paths)
    not_here = check_driver(schemas)
    for name, why in not_here.items():
        print(f"not produced here: {name}: {why}")
    check(schemas.used | set(not_here) == set(schemas.files), "never produced:", set(schemas.files) - schemas.used)
    print(f"{len(schemas.used)} formats are as their schemas say")


if __name__ == "__main__":
    main()
