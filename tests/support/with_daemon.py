#!/usr/bin/env python3
"""Runs a command against an lgpud of its own with simulated GPUs, or with those that the driver has.

with_daemon.py --lgpud PATH [--simulate 2x1GiB | --driver] -- COMMAND...

The command finds the daemon in LGPU_ENDPOINT. The exit code is the command's; 125, and a line that starts
with "with_daemon:", if the daemon did not start, or did not stop cleanly.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading


def fail(text, log):
    sys.stderr.write(f"with_daemon: {text}\n{''.join(log)}")
    return 125


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lgpud", required=True)
    parser.add_argument("--simulate", default="2x1GiB")
    parser.add_argument("--driver", action="store_true")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()

    environment = dict(os.environ)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LGPU_LEASE", "LGPU_ENDPOINT"):
        environment.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as directory:
        runtime = os.path.join(directory, "run")
        gpus = ["--simulate", args.simulate]
        if args.driver:
            config = os.path.join(directory, "lgpud.toml")
            with open(config, "w", encoding="utf-8") as file:
                file.write(f'[daemon]\nlock_dir = "{directory}/locks"\n')
            gpus = ["--config", config]
        daemon = subprocess.Popen(
            [args.lgpud, *gpus, "--dir", runtime],
            stderr=subprocess.PIPE, text=True, env=dict(environment, XDG_STATE_HOME=directory))
        log = []
        settled = threading.Event()

        def read_log():
            for line in daemon.stderr:
                log.append(line)
                if " ready: " in line:
                    settled.set()
            settled.set()

        reader = threading.Thread(target=read_log, daemon=True)
        reader.start()
        try:
            if not settled.wait(60) or daemon.poll() is not None or not any(" ready: " in l for l in log):
                return fail("lgpud did not start", log)
            code = subprocess.run(args.command, env=dict(environment, LGPU_ENDPOINT=runtime)).returncode
            daemon.terminate()
            try:
                stopped = daemon.wait(60)
            except subprocess.TimeoutExpired:
                return fail("lgpud did not stop", log)
            return code if stopped == 0 else fail(f"lgpud ended with {stopped}", log)
        finally:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()


if __name__ == "__main__":
    sys.exit(main())
