"""The leases of this node's lgpud, by the command `lgpu`."""

import json
import os
import subprocess

# Exit codes of lgpu.
ALREADY_EXISTS, UNREACHABLE = 73, 69
PATIENCE = 120  # seconds, for one call: more than every --wait below


class LeaseError(Exception):
    """lgpu refused or failed; the text is for people. `code`: its exit code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Leases:
    """Thread-safe: each call is a process."""

    def __init__(self, program="lgpu", endpoint="/run/lgpu", owner="0"):
        self._program, self._endpoint, self._owner = program, endpoint, owner
        # The driver looks at all cards.
        self._environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}

    def _run(self, *words):
        argv = [self._program, "--endpoint", self._endpoint, *words, "--json-errors"]
        try:
            result = subprocess.run(argv, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                    timeout=PATIENCE, check=False)
        except OSError as error:
            raise LeaseError(UNREACHABLE, f"{self._program} cannot be started: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise LeaseError(UNREACHABLE, f"lgpud has not answered `lgpu {words[0]}` within {PATIENCE} s") from error
        if result.returncode == 0:
            return result.stdout
        if result.returncode == UNREACHABLE:
            raise LeaseError(UNREACHABLE, f"lgpud does not answer on this node ({_message(result.stderr)})")
        raise LeaseError(result.returncode, _message(result.stderr) or f"lgpu {words[0]} ended with {result.returncode}")

    def snapshot(self):
        """(cards, leases), with the keys of `lgpu ls --json`."""
        found = json.loads(self._run("ls", "--json"))
        return found["cards"], found["leases"]

    def create(self, name, request_id, card_uuid, size, labels):
        """The lease that this request has made, now or before."""
        words = ["create", "-q", "--json", "--managed", "--owner", self._owner, "--name", name, "--request-id", request_id,
                 "--gpus", card_uuid, "--memory", str(size), "--guarantee", str(size), "--wait=10s"]
        for key, value in labels.items():
            words += ["--label", f"{key}={value}"]
        return json.loads(self._run(*words))

    def remove(self, *which):
        """Ends it, if it is there, and waits until its memory is back. `which`: an id, or "--request-id", ID."""
        self._run("rm", "-q", "--if-exists", "--wait=10s", *which)

    def cdi(self, lease_id):
        """The lease's specification for containers."""
        return json.loads(self._run("env", "-q", "--format", "cdi", lease_id))


def _message(stderr):
    for line in reversed(stderr.splitlines()):
        try:
            parts = json.loads(line)["message"].split("\n")
        except (ValueError, KeyError, TypeError):
            continue
        return _joined(parts)
    return stderr.strip()


def _joined(lines):
    """The lines of an error in one. Numbers have an indent of 2 and advice one of 2 or 7; a line with another indent of 4 or
    more goes on with the sentence before it."""
    text = ""
    for line in lines:
        part = line.strip()
        indent = len(line) - len(line.lstrip())
        goes_on = indent >= 4 and indent != 7
        if part:
            text += (" " if goes_on else "; ") * bool(text) + part
    return text
