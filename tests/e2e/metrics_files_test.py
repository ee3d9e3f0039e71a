#!/usr/bin/env python3
"""The metrics of a running lgpud, the alert rules and the dashboard, as Prometheus' own tool sees them; and that
every metric is documented, and every one that is used exists.

metrics_files_test.py ROOT LGPUD LGPU"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request


def main():
    root, lgpud, lgpu = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    failures = []
    with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as name:
        directory = pathlib.Path(name)
        (directory / "lgpud.toml").write_text(f'[daemon]\nlock_dir = "{name}/locks"\nsocket_group = ""\n')
        daemon = subprocess.Popen(
            [lgpud, "--simulate", "2x64MiB", "--dir", f"{name}/run", "--config", f"{name}/lgpud.toml",
             "--http", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        try:
            for line in daemon.stderr:
                found = re.search(r"(http://\S+/metrics)", line)
                if found:
                    break
            subprocess.run([lgpu, "create", "-q", "--endpoint", f"{name}/run", "-m", "8MiB", "--name", "train"],
                           check=True, stdout=subprocess.DEVNULL)
            text = urllib.request.urlopen(found.group(1), timeout=20).read().decode()
        finally:
            daemon.terminate()
            daemon.communicate()
    metrics = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    if len(metrics) < 20:
        failures.append(f"only {len(metrics)} metrics: {sorted(metrics)}")

    page = (root / "docs/metrics.md").read_text()
    documented = set(re.findall(r"`(lgpu_[a-z_]+)[`{]", page))
    for metric in sorted(metrics - documented):
        failures.append(f"docs/metrics.md does not have {metric}")
    for metric in sorted(documented - metrics):
        failures.append(f"docs/metrics.md has {metric}, which there is not")

    suffixes = ("_bucket", "_sum", "_count")
    rules = root / "packaging/prometheus/lgpu-alerts.yml"
    dashboard = root / "packaging/grafana/lgpu.json"
    panels = json.loads(dashboard.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    for place, used in ((rules, rules.read_text()), (dashboard, "\n".join(expressions))):
        for metric in sorted(set(re.findall(r"\blgpu_[a-z_]+", used))):
            base = next((metric[:-len(s)] for s in suffixes if metric.endswith(s)), metric)
            if metric not in metrics and base not in metrics:
                failures.append(f"{place.name} uses {metric}, which there is not")
    if not expressions:
        failures.append("the dashboard asks for nothing")

    if shutil.which("promtool") is None:
        print("skipped in part: promtool is not installed (scripts/deps --ci installs it)")
    else:
        checks = [(["promtool", "check", "metrics"], text), (["promtool", "check", "rules", str(rules)], "")]
        # An expression of the dashboard is a rule like any other to the parser.
        as_rules = json.dumps({"groups": [{"name": "dashboard", "rules": [
            {"record": f"panel:{i}", "expr": re.sub(r"\$__rate_interval|\$__interval", "5m", expression)}
            for i, expression in enumerate(expressions)]}]})
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(as_rules)
            file.flush()
            checks.append((["promtool", "check", "rules", file.name], ""))
            for command, given in checks:
                run = subprocess.run(command, input=given, capture_output=True, text=True)
                print(" ".join(command[:3]), "->", run.returncode, (run.stdout + run.stderr).strip().replace("\n", " "))
                if run.returncode != 0:
                    failures.append(f"{' '.join(command)}: {run.stdout}{run.stderr}")
    print("\n".join(failures) if failures else f"{len(metrics)} metrics, {len(expressions)} expressions: ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
