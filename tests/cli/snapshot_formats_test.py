#!/usr/bin/env python3
"""The files of `lgpu snapshot` and `lgpu trace`, read by those who they are for. Runs below with_daemon.py.

snapshot_formats_test.py LGPU CLIENT SCHEMAS VIEWER   CLIENT: tests/e2e/client.cc; SCHEMAS: a folder; VIEWER: _memory_viz.py of
                                                      PyTorch (scripts/memory-viewer); without it its part is left out"""

import csv
import importlib.util
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time

import jsonschema

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

from json_schemas import load_schema, strict

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


def kept_ops(lgpu):
    shown = subprocess.run([lgpu, "placements", "drawn", "--json", "--records", "0"], stdout=subprocess.PIPE, check=True)
    return json.loads(shown.stdout)["records"]


def check_trace(lgpu, client, schema, folder):
    """The kept ops, each once; then those that run while the trace is made, with the memory beside them."""
    ask(client, "work c 3")
    end = time.monotonic() + 60
    # Each round ends with AddN.
    while [record["op"] for record in kept_ops(lgpu)].count("AddN") < 3 and time.monotonic() < end:
        time.sleep(0.02)
    told = json.loads(subprocess.run([lgpu, "trace", "drawn"], stdout=subprocess.PIPE, check=True).stdout)
    jsonschema.validate(told, schema)
    broken = json.loads(json.dumps(told))
    next(event for event in broken["traceEvents"] if event["ph"] == "X")["dur"] = -1
    try:
        jsonschema.validate(broken, schema)
        sys.exit("failed: the schema takes an op of less than no time")
    except jsonschema.ValidationError:
        pass
    boxes = [event for event in told["traceEvents"] if event["ph"] == "X"]
    ops = [event for event in boxes if event["cat"] == "op"]
    copies = [event for event in boxes if event["cat"] == "copy"]
    check(copies and all(event["args"]["bytes"] > 0 for event in copies), "no copies")
    check({event["name"] for event in copies} >= {"copy CPU:0 to GPU:0"}, copies)
    check(told["otherData"]["missing_copies"] == "0", told["otherData"])
    records = kept_ops(lgpu)
    check(sorted(event["args"]["sequence"] for event in ops) == sorted(record["sequence"] for record in records))
    check(sorted(event["name"] for event in ops) == sorted(record["op"] for record in records), ops)
    lanes = {(event["pid"], event["tid"]) for event in told["traceEvents"]
             if event["ph"] == "M" and event["name"] == "thread_name"}
    for lane in {(event["pid"], event["tid"]) for event in boxes}:
        check(lane in lanes, "a lane has no name", lane)
        ends = 0
        for event in sorted((e for e in boxes if (e["pid"], e["tid"]) == lane), key=lambda e: e["ts"]):
            check(event["ts"] >= ends, "ops of a lane overlap", event)
            ends = event["ts"] + event["dur"]
    check({event["name"] for event in told["traceEvents"] if event["ph"] == "i"} >= {"lease_created", "session_attached"})

    path = os.path.join(folder, "drawn.trace.json")
    with subprocess.Popen([lgpu, "trace", "drawn", "--duration", "3s", "-o", path]) as tracing:
        # How soon it begins to look is its own affair, so the program goes on taking memory until it has ended.
        for number in range(300):
            ask(client, f"alloc c more{number} {MIB // 8}")
            ask(client, "work c")
            try:
                tracing.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        check(tracing.wait(60) == 0)
    with open(path, encoding="utf-8") as file:
        longer = json.load(file)
    jsonschema.validate(longer, schema)
    check(len([event for event in longer["traceEvents"] if event.get("cat") == "op"]) > len(ops), "no new op")
    used = [event["args"]["used_bytes"] for event in longer["traceEvents"] if event["ph"] == "C"]
    check(len(used) > 2 and used[-1] > used[0], used)


def check_failed_writes(lgpu, folder):
    """A file that cannot be written whole stays as it was, and nothing is left beside it."""
    path = os.path.join(folder, "kept.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("old")
    before = sorted(os.listdir(folder))
    # The program may write no file of more than so many blocks of 512 bytes.
    limited = 'trap "" XFSZ; ulimit -f 0; exec "$0" snapshot drawn -o "$1"'
    failed = subprocess.run(["/bin/sh", "-c", limited, lgpu, path], stderr=subprocess.PIPE, text=True)
    check(failed.returncode != 0 and "cannot write" in failed.stderr, failed)
    with open(path, encoding="utf-8") as file:
        check(file.read() == "old", "the old file is gone")
    check(sorted(os.listdir(folder)) == before, os.listdir(folder))
    link = os.path.join(folder, "link.json")
    os.symlink(path, link)
    subprocess.run([lgpu, "snapshot", "drawn", "-o", link], check=True)
    check(os.path.islink(link))
    with open(path, encoding="utf-8") as file:
        check(json.load(file)["schema"] == "lgpu.memory_snapshot/v1")
    subprocess.run([lgpu, "snapshot", "drawn", "-o", "/dev/null"], check=True)
    check(not os.path.isfile("/dev/null"))


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
    lgpu, client_path, schemas, viewer = sys.argv[1:5]
    schema = strict(load_schema(schemas, "lgpu.memory_snapshot.v1.json"))
    trace_schema = strict(load_schema(schemas, "lgpu.trace.v1.json"))
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
            check_failed_writes(lgpu, folder)
        rows = list(csv.DictReader(io.StringIO(snapshot(lgpu, "--format", "rmm-csv").decode())))
        check(list(rows[0]) == ["Thread", "Time", "Action", "Pointer", "Size", "Stream"], rows[0])
        check(sorted(int(row["Size"]) for row in rows) == sorted(block["requested_bytes"] for block in live), rows)
        check(subprocess.run([lgpu, "snapshot", "none"], stderr=subprocess.DEVNULL).returncode == 6)
        check(subprocess.run([lgpu, "snapshot", "drawn", "--device", "7"], stderr=subprocess.DEVNULL).returncode == 6)
        check(subprocess.run([lgpu, "trace", "none"], stderr=subprocess.DEVNULL).returncode == 6)
        check(subprocess.run([lgpu, "trace", "drawn", "--duration", "soon"], stderr=subprocess.DEVNULL).returncode == 2)
        with tempfile.TemporaryDirectory() as folder:
            check_trace(lgpu, client, trace_schema, folder)
    finally:
        client.kill()
        client.wait()
    if not os.path.exists(viewer):
        print(f"left out: PyTorch's memory viewer is not at {viewer}; scripts/memory-viewer fetches it")
        sys.exit(77)
    check_viewer(told, viewer)


if __name__ == "__main__":
    main()
