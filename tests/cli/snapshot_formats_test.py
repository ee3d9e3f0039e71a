#!/usr/bin/env python3
"""The files of `lgpu snapshot`, read by those who they are for. Runs below with_daemon.py.

snapshot_formats_test.py LGPU CLIENT SCHEMA VIEWER   CLIENT: tests/e2e/client.cc; VIEWER: _memory_viz.py of PyTorch
                                                     (scripts/memory-viewer); without the file its part is left out"""

import csv
import importlib.util
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile

import jsonschema

MIB = 1 << 20


def check(condition, *told):
    if not condition:
        sys.exit("failed: " + " ".join(str(word) for word in told))


def ask(client, line):
    client.stdin.write(line + "\n")
    client.stdin.flush()
    answer = client.stdout.readline()
    check(answer.startswith("ok"), line, "->", answer)


def snapshot(lgpu, *words):
    return subprocess.run([lgpu, "snapshot", "drawn", *words], stdout=subprocess.PIPE, check=True).stdout


def check_json(text, schema):
    told = json.loads(text)
    jsonschema.validate(told, schema)
    broken = json.loads(text)
    broken["sessions"][0]["devices"][0]["blocks"][0]["bytes"] = 0
    try:
        jsonschema.validate(broken, schema)
        sys.exit("failed: the schema takes a block of 0 bytes")
    except jsonschema.ValidationError:
        pass
    device = told["sessions"][0]["devices"][0]
    live = [block for block in device["blocks"] if block["state"] == "live"]
    check(len(live) == device["live_blocks"] == 4, len(live), device["live_blocks"])
    check(sum(block["bytes"] for block in live) == device["used_bytes"], device)
    check(sum(block["requested_bytes"] for block in live) == device["requested_bytes"], device)
    end = 0
    for block in device["blocks"]:
        check(block["offset"] >= end, "blocks overlap or are in no order", block)
        end = block["offset"] + block["bytes"]
    return device, live


def check_pickle(data, device, live):
    told = pickle.loads(data)
    segments = told["segments"]
    check(len(told["device_traces"]) == 1, told["device_traces"])
    check(sum(segment["total_size"] for segment in segments) == sum(m["bytes"] for m in device["mappings"]))
    check(sum(segment["allocated_size"] for segment in segments) == device["used_bytes"])
    for segment in segments:
        check(sum(block["size"] for block in segment["blocks"]) == segment["total_size"], "holes", segment)
    active = [block for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]
    check([block["address"] for block in active] == [device["base_address"] + block["offset"] for block in live])
    check([block["requested_size"] for block in active] == [block["requested_bytes"] for block in live])
    return told


def check_viewer(told, path):
    """The loader's own summary, and the pages that it makes."""
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    viewer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(viewer)
    summary = viewer.segsum(told)
    check("total_allocated" in summary or "segments" in summary, summary)
    for segment in told["segments"]:
        active = sum(block["size"] for block in segment["blocks"] if block["state"].startswith("active_"))
        check(viewer.calc_active(segment) == active == segment["active_size"], segment)
    check(len(viewer.segment_plot(told)) > 1000 and len(viewer.trace_plot(told)) > 1000, "no pages")


def main():
    lgpu, client_path, schema_path, viewer = sys.argv[1:5]
    with open(schema_path, encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft7Validator.check_schema(schema)
    client = subprocess.Popen([client_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env=dict(os.environ, LGPU_ENDPOINT=os.environ["LGPU_ENDPOINT"]))
    try:
        ask(client, f"open c lease_name=drawn limit={64 * MIB}")
        for number in range(4):
            ask(client, f"alloc c t{number} {(number + 1) * MIB + 4}")
        device, live = check_json(snapshot(lgpu), schema)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "drawn.pickle")
            check(snapshot(lgpu, "--format", "pickle", "--device", "0", "-o", path) == b"")
            with open(path, "rb") as file:
                told = check_pickle(file.read(), device, live)
        rows = list(csv.DictReader(io.StringIO(snapshot(lgpu, "--format", "rmm-csv").decode())))
        check(list(rows[0]) == ["Thread", "Time", "Action", "Pointer", "Size", "Stream"], rows[0])
        check(sorted(int(row["Size"]) for row in rows) == sorted(block["requested_bytes"] for block in live), rows)
        check(subprocess.run([lgpu, "snapshot", "none"], stderr=subprocess.DEVNULL).returncode == 6)
        check(subprocess.run([lgpu, "snapshot", "drawn", "--device", "7"], stderr=subprocess.DEVNULL).returncode == 6)
    finally:
        client.kill()
        client.wait()
    if not os.path.exists(viewer):
        print(f"left out: PyTorch's memory viewer is not at {viewer}; scripts/memory-viewer fetches it")
        sys.exit(77)
    check_viewer(told, viewer)


if __name__ == "__main__":
    main()
