"""The leases of a daemon, as the command `lgpu ls` has them."""

from __future__ import annotations

import json
import os
import subprocess
from html import escape
from typing import Any, Optional

from lgpu import errors
from lgpu.__main__ import program

# By the exit codes of the command.
_BY_EXIT = {4: errors.PermissionDeniedError, 69: errors.UnavailableError, 2: errors.InvalidArgumentError}


class Leases(list[dict[str, Any]]):
    """Leases with the keys of `lgpu ls --json`; a table in a notebook."""

    def _repr_html_(self) -> str:
        from lgpu._core import format_bytes
        rows = []
        for lease in self:
            for device in lease["devices"]:
                cells = [lease["name"] or lease["id"], lease["owner"]["user"], device["name"].rsplit("/device:", 1)[-1],
                         *(format_bytes(device[f"{key}_bytes"]) for key in ("used", "held", "memory_limit"))]
                rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
        head = "".join(f"<th>{name}</th>" for name in ("lease", "owner", "device", "used", "held", "limit"))
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def leases(endpoint: Optional[str] = None) -> Leases:
    """The leases of the daemon at endpoint, or of the one that a Context would find, by the command lgpu."""
    environment = dict(os.environ)
    if endpoint is not None:
        if not isinstance(endpoint, str):
            raise TypeError(f"endpoint is {endpoint!r}; it is a text, or None")
        environment["LGPU_ENDPOINT"] = endpoint
    try:
        command = program("lgpu")
    except SystemExit as error:
        raise errors.NotFoundError(str(error)) from None
    done = subprocess.run([command, "ls", "--json"], capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return Leases(json.loads(done.stdout)["leases"])
    raise _BY_EXIT.get(done.returncode, errors.Error)(_message_of(done.stderr))


def _message_of(stderr: str) -> str:
    """The message of an error that the command printed: an object of JSON on the last line, with --json."""
    text = stderr.strip()
    try:
        return str(json.loads(text.splitlines()[-1])["message"])
    except (ValueError, KeyError, IndexError, TypeError):
        return text
