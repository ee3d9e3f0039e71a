#!/usr/bin/env python3
"""The compose files of docs/containers.md give a service the devices that the page's commands give a container.

compose_test.py ROOT   a container of each: docker_test.py, where a docker answers"""

import pathlib
import re
import sys

import yaml


def compose_files(page):
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.S)]


def devices_of(service):
    """In the order of the file. Two keys have them, and a file has one of the two."""
    reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
    for each in reserved:
        if each["driver"] != "cdi" or not each["capabilities"]:
            raise AssertionError(f"docker takes CDI devices by their driver and with capabilities: {each}")
    return service.get("devices", []) + [name for each in reserved for name in each["device_ids"]]


def main():
    page = (pathlib.Path(sys.argv[1]) / "docs/containers.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(?:podman|docker) run (.*)$", page, re.M)
    files = compose_files(page)
    if len(commands) != 2 or len(files) != 2:
        raise AssertionError(f"{len(commands)} commands and {len(files)} compose files")
    for command in commands:
        for file in files:
            (service,) = file["services"].values()
            if devices_of(service) != re.findall(r"--device (\S+)", command):
                raise AssertionError(f"{service} differs from {command}")
    print("ok      compose files give the devices of the commands")
    return 0


if __name__ == "__main__":
    sys.exit(main())
