"""A lgpud with its page, and programs on it, for the tests and for scripts/pictures."""

import json
import os
import re
import subprocess
import tempfile
import threading
import urllib.request


class PageDaemon:
    """Serves from a folder of its own until `with` ends. `config`: more lines of lgpud.toml."""

    def __init__(self, build, simulate="1x1GiB", config=""):
        self.lgpud = f"{build}/daemon/lgpud"
        self.lgpu = f"{build}/cli/lgpu"
        self.client = f"{build}/tests/e2e/e2e_client"
        self.simulate = simulate
        self.config = config
        self.programs = []

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp")
        name = self.folder.name
        os.chmod(name, 0o755)
        with open(f"{name}/lgpud.toml", "w", encoding="utf-8") as file:
            file.write(f'[daemon]\nlock_dir = "{name}/locks"\nstate_dir = "{name}/state"\nsocket_group = ""\n'
                       f'[http]\nlisten = "0"\n{self.config.replace("FOLDER", name)}\n')
        self.start()
        return self

    def start(self):
        name = self.folder.name
        self.process = subprocess.Popen(
            [self.lgpud, "--simulate", self.simulate, "--dir", f"{name}/run", "--config", f"{name}/lgpud.toml"],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"shows its page at (http://\S+)/", line)
            if found:
                self.url = found.group(1)
                # A full pipe would stop lgpud.
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return
        raise RuntimeError("lgpud did not start")

    def __exit__(self, *_):
        for program in self.programs:
            program.kill()
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def run(self, *words):
        return subprocess.run([self.lgpu, "--endpoint", f"{self.folder.name}/run", *words], check=True, text=True,
                              capture_output=True).stdout

    def stats(self):
        """The statistics by gRPC."""
        return json.loads(self.run("ls", "--json"))

    def get(self, path, headers=None):
        request = urllib.request.Request(self.url + path, headers=headers or {})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def program(self):
        """A program of the library; see tests/e2e/client.cc for what it can be asked."""
        self.programs.append(Program(self))
        return self.programs[-1]


class Program:
    def __init__(self, daemon):
        environment = dict(os.environ, LGPU_ENDPOINT=f"{daemon.folder.name}/run")
        environment.pop("LGPU_LEASE", None)
        self.process = subprocess.Popen([daemon.client], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL, env=environment)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def must(self, line):
        answer = self.ask(line)
        if not answer.startswith("ok"):
            raise RuntimeError(f"{line}: {answer}")
        return answer

    def kill(self):
        self.process.kill()
        self.process.communicate()
