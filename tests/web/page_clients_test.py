#!/usr/bin/env python3
"""The page's port and its clients without a browser: who may ask, who sees what, slow and many ones.
page_clients_test.py BUILD"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error

from page_daemon import PageDaemon

BUILD = sys.argv[1]
OTHER = 61302  # a uid without a name
READER = """
import json, sys, urllib.request
for path in sys.argv[2:]:
    try:
        print(json.dumps(json.load(urllib.request.urlopen(sys.argv[1] + path, timeout=30))))
    except urllib.error.HTTPError as error:
        print(json.dumps({"status": error.code}))
"""


def status(daemon, path, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    connection.putrequest("GET", path, skip_host=headers is not None and "Host" in headers)
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read() if path != "/api/v1/stream" or answer.status != 200 else b""
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def as_other_user(daemon, *paths):
    result = subprocess.run([sys.executable, "-c", READER, daemon.url, *paths], check=True, capture_output=True, text=True,
                            user=OTHER, group=OTHER)
    return [json.loads(line) for line in result.stdout.splitlines()]


def hosts_and_sites():
    with PageDaemon(BUILD) as daemon:
        for path in ("/", "/page.js", "/api/v1/stats", "/api/v1/stream", "/metrics"):
            assert status(daemon, path, {"Host": "evil.example"})[0] == 403, path
            assert status(daemon, path, {"Host": f"localhost:{daemon.port}"})[0] == 200, path
        code, headers, _ = status(daemon, "/api/v1/stats", {"Sec-Fetch-Site": "cross-site"})
        assert code == 403, code
        assert "Access-Control-Allow-Origin" not in headers, headers
        _, headers, body = status(daemon, "/")
        assert "script-src 'self'" in headers["Content-Security-Policy"], headers
        assert b"<script>" not in body and b"onclick" not in body, body
        for name in ("/dygraph.min.js", "/dygraphs.copyright", "/page.css", "/icon.svg"):
            assert status(daemon, name)[0] == 200, name
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
        connection.request("POST", "/api/v1/stats", body="x")
        assert connection.getresponse().status == 405


def tokens():
    token = "0123456789abcdef0123"
    with tempfile.NamedTemporaryFile("w", prefix="lgpu-", dir="/tmp", encoding="utf-8") as file:
        file.write(token)
        file.flush()
        with PageDaemon(BUILD, config=f'token_file = "{file.name}"') as daemon:
            for path in ("/api/v1/stats", "/api/v1/stream", "/metrics", "/api/v1/map?lease=x"):
                assert status(daemon, path)[0] == 401, path
            assert status(daemon, "/")[0] == 200  # the page asks for the token itself
            assert status(daemon, "/api/v1/stats", {"Authorization": f"Bearer {token}"})[0] == 200
            assert status(daemon, "/api/v1/stream", {"Authorization": f"Bearer {token}"})[0] == 200


def users():
    if os.geteuid() != 0:
        print("skipped: only root may become another user")
        return
    paths = ["/api/v1/version", "/api/v1/stats", "/api/v1/leases", "/api/v1/events", "/api/v1/timeline?gpu=0"]
    with PageDaemon(BUILD) as daemon:
        daemon.run("create", "-q", "-m", "64MiB", "--name", "of-root")
        lease = daemon.get("/api/v1/leases")["leases"][0]["id"]
        version, stats, leases, events, timeline = as_other_user(daemon, *paths)
        assert version["viewer"] == {"sees_all": False, "uid": OTHER, "user": str(OTHER)}, version
        assert stats["leases"] == [] and leases["leases"] == [] and timeline["leases"] == []
        assert len(stats["cards"]) == 1
        assert all("lease" not in event for event in events["events"]), events
        hidden = [f"/api/v1/placements?lease={lease}", f"/api/v1/map?lease={lease}"]
        assert [answer["status"] for answer in as_other_user(daemon, *hidden)] == [404, 404]
        assert as_other_user(daemon, f"/api/v1/timeline?lease={lease}")[0]["devices"] == []
        assert "of-root" not in json.dumps([stats, leases, events, timeline])
    with PageDaemon(BUILD, config="show_users = true") as daemon:
        daemon.run("create", "-q", "-m", "64MiB", "--name", "of-root")
        version, stats, _, _, _ = as_other_user(daemon, *paths)
        assert version["viewer"]["sees_all"] is True
        assert stats["leases"][0]["name"] == "of-root"


def open_stream(daemon):
    connection = socket.create_connection(("127.0.0.1", daemon.port), timeout=30)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection


def many_and_slow():
    with PageDaemon(BUILD) as daemon:
        # 600 connections of one user, none of which reads: some get a place, the others an answer.
        crowd = [open_stream(daemon) for _ in range(600)]
        start = time.monotonic()
        while time.monotonic() - start < 3:
            assert status(daemon, "/metrics")[0] in (200, 503)
            time.sleep(0.2)
        answers = {"200": 0, "503": 0}
        for connection in crowd:
            connection.settimeout(30)
            first = connection.recv(64)
            for code in answers:
                answers[code] += f" {code} ".encode() in first
        assert 32 <= answers["200"] <= 64, answers
        assert answers["503"] >= 400, answers
        for connection in crowd:
            connection.close()
        # Their places come back.
        for _ in range(600):
            if status(daemon, "/api/v1/stream")[0] == 200:
                break
            time.sleep(0.1)
        else:
            sys.exit("no place came back")


def answers_are_right():
    with PageDaemon(BUILD) as daemon:
        program = daemon.program()
        lease = program.must(f"open c lease_name=train limit={64 << 20}").split()[1]
        for i in range(8):
            program.must(f"alloc c t{i} {1 << 20}")
        program.must("free t3")
        program.must("work c 3")
        assert program.ask(f"alloc c big {1 << 30}").startswith("error RESOURCE_EXHAUSTED")
        # Idle memory goes back in the background, so that the answers are of one state only once that is over; the timeline
        # looks now and then.
        end = time.monotonic() + 45  # of the 60 seconds that it is asked for
        while True:
            time.sleep(0.2)
            try:
                memory = daemon.get(f"/api/v1/map?lease={lease}&device=0&width=500")
            except urllib.error.HTTPError as error:
                if error.code == 503 and time.monotonic() < end:
                    continue  # a slow program has not sent it in time
                raise
            mine, grpc = daemon.get("/api/v1/stats"), daemon.stats()
            for one in (mine, grpc):
                for moving in ("taken_at", "uptime_seconds"):
                    one.pop(moving)
            device = grpc["leases"][0]["devices"][0]
            timelines = daemon.get(f"/api/v1/timeline?lease={lease}&seconds=60&width=60")["devices"]
            if not timelines and time.monotonic() < end:
                continue  # it has not looked yet
            timeline = timelines[0]
            refusals = sum(count or 0 for count in timeline["refusals"])
            if (mine == grpc and memory["granted_bytes"] == device["held_bytes"] and refusals > 0 and
                    timeline["used_bytes"][-1] == device["used_bytes"]) or time.monotonic() > end:
                break
        assert mine == grpc, f"{mine}\n{grpc}"
        assert memory["used_bytes"] == device["used_bytes"], memory
        assert memory["granted_bytes"] == device["held_bytes"], memory
        assert memory["live_blocks"] == device["live_blocks"], memory
        assert timeline["used_bytes"][-1] == device["used_bytes"], timeline
        assert refusals == 1, timeline
        ops = daemon.get(f"/api/v1/placements?lease={lease}")["totals"]
        assert {op["op"] for op in ops} >= {"MatMul", "AddN"}, ops
        for wrong in ("map", "map?lease=none", "map?lease=train&device=7", "map?lease=train&width=wide",
                      "timeline?seconds=soon", "stream?after=x"):
            code = status(daemon, f"/api/v1/{wrong}")[0]
            assert code in (400, 404), f"{wrong}: {code}"
        program.must("close c")


def main():
    for test in (answers_are_right, hosts_and_sites, tokens, users, many_and_slow):
        test()
        print(f"ok: {test.__name__}")


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.url}: {error.code} {error.read().decode()}")
