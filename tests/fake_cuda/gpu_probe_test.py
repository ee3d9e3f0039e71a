#!/usr/bin/env python3
"""Runs every experiment of gpu_probe against the fake driver: gpu_probe_test.py FAKE_CUDA_RUN GPU_PROBE"""

import json
import subprocess
import sys
import tempfile


def ask(run, probe, machine, words):
    with tempfile.NamedTemporaryFile() as file:
        done = subprocess.run([run, "--cards", "1", "--memory", "512MiB", *machine, "--", probe, "--quick", "--out",
                               file.name, *words], capture_output=True, text=True, timeout=240, check=False)
        with open(file.name, encoding="utf-8") as written:
            return done.returncode, json.load(written)


def faults(run, probe, expect):
    """A driver that fails or hangs costs what it was asked for, and is never good news."""
    _, out = ask(run, probe, ["--fail", "cuLaunchKernel=700"], ["e8"])
    expect("a fill that never ran", out["e8"]["after_release"] == {
        "answer": "not known", "why": "fill 90: error cuLaunchKernel gave CUDA_ERROR_ILLEGAL_ADDRESS (700)"})
    code, out = ask(run, probe, ["--hold", "kernels"], ["--limit", "10", "e3", "e10"])
    expect("a kernel that hangs", code == 1 and "longer than 10 s" in out["e3"]["failed"])
    expect("what comes after it", "201" in out["e10"]["map_without_context"])
    _, out = ask(run, probe, ["--fail", "nvmlDeviceGetMemoryInfo=999"], ["e1", "e5"])
    expect("no figures of NVML", out["e1"]["used_before"] is None and
           all(case["nvml_free_ms"] is None and case["create_again"] == "ok" for case in out["e5"]["cases"]))


def sizes_at_run_time(run, probe, expect):
    """What a driver takes without being asked is measured where it is taken."""
    _, out = ask(run, probe, ["--first-create", "8MiB"], ["e1"])
    expect("the first create without a context", out["e1"]["beyond_payload"] == 8 * 2**20)
    expect("the second create without a context",
           out["e1"]["second_create"] == "ok" and out["e1"]["beyond_second_payload"] == 0)
    _, out = ask(run, probe, ["--context", "20MiB", "--first-module", "6MiB"], ["e9"])
    expect("a context and its first module", [out["e9"][step]["bytes"] for step in ("primary_context", "module")] ==
           [20 * 2**20, 6 * 2**20])
    _, out = ask(run, probe, ["--nvml-late", "1"], ["e9"])
    expect("figures that are one reading late",
           [out["e9"][step]["bytes"] for step in ("primary_context", "module", "chunk", "map")] ==
           [0, 16 * 2**20, 0, 2 * 2**20])


def only_the_machine(run, probe, expect):
    """about and --used say what the machine has, without an experiment."""
    code, out = ask(run, probe, [], ["about"])
    expect("about", code == 0 and list(out) == ["about"] and out["about"]["gpu"] == "Fake GPU")
    for machine, wanted in (([], (0, "0\n")), (["--fail", "nvmlDeviceGetMemoryInfo=999"], (1, ""))):
        used = subprocess.run([run, "--cards", "1", *machine, "--", probe, "--used", out["about"]["uuid"]],
                              capture_output=True, text=True, timeout=240, check=False)
        expect(f"--used {machine}", (used.returncode, used.stdout) == wanted)


def main():
    run, probe = sys.argv[1:]
    done = subprocess.run([run, "--cards", "1", "--memory", "512MiB", "--", probe, "--quick", "all"],
                          capture_output=True, text=True, timeout=240, check=False)
    # 3: some experiments break the driver's rules, and the fake says so.
    if done.returncode not in (0, 3):
        print(done.stdout, done.stderr)
        return 1
    out = json.loads(done.stdout)
    wrong = []

    def expect(what, ok):
        if not ok:
            wrong.append(what)

    names = [f"e{i}" for i in range(1, 17)]
    expect("all experiments", [name for name in names if name in out] == names)
    expect("date, gpu, driver", all(out["about"].get(key) for key in ("date", "gpu", "driver")))
    expect("e1", out["e1"]["beyond_payload"] == 0 and out["e1"]["beyond_second_payload"] == 0 and
           out["e1"]["nvml_process"] == "not listed")
    expect("e3", out["e3"]["pattern"] == {"same": 1} and out["e3"]["pattern_after_keeper_closed"] == {"same": 1})
    expect("e4", out["e4"]["pattern"] == {"same": 1})
    expect("e5", all(case["create_again"] == "ok" for case in out["e5"]["cases"]))
    expect("e6", out["e6"]["2MiB"]["first"]["create_us"] > 0)
    expect("e7", out["e7"]["descriptors"]["count"] > 0)
    for case in ("after_release", "after_sigkill"):
        expect(f"e8 {case}", out["e8"][case]["answer"] == "cleared" and out["e8"][case]["searched"] > 400 * 2**20)
    expect("e9", out["e9"]["primary_context"]["bytes"] == 16 * 2**20)
    expect("e10", "201" in out["e10"]["map_without_context"])
    expect("e11", out["e11"]["unmap_after_the_work"] == "ok" and "700" in str(out["e11"]["the_stream_then"]))
    expect("e12", out["e12"]['"0"']["devices"] == 1 and "no CUDA devices" in out["e12"]['"0,0"'])
    old_toolkit = "without green contexts" in str(out["e14"]["8"]["made"])
    expect("e14", old_toolkit or (out["e14"]["8"]["made"] == {"multiprocessors": 8} and
                                  out["e14"]["64"]["alone"]["fills_per_ms"] > 0))
    for case in ("allocated", "exportable", "imported"):
        found = out["e16"][case]
        expect(f"e16 {case}", found["pattern"] == {"same": 1} and found["used_at_the_end"] == found["used_before"] and
               not found["answer_while_suspended"] and found["nvml_process_then"] == "not listed")
    expect("e16 memory while suspended", out["e16"]["allocated"]["used_then"] == 0)
    without_room = out["e16"]["without_room"]
    expect("e16 without room", "Restore gave 2" in without_room["restore_without_room"] and
           "Restore gave 304" in without_room["restore"])
    faults(run, probe, expect)
    sizes_at_run_time(run, probe, expect)
    only_the_machine(run, probe, expect)
    for what in wrong:
        print("not as the fake driver has it:", what)
    if wrong:
        print(done.stdout)
    print(f"{len(names)} experiments ran")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
