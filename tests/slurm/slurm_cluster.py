"""A Slurm of Debian's with two nodes on this machine and a lgpud with simulated GPUs for each: everything in one folder,
on ports of its own, with a munged of its own. Root only."""

import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import time

NODES = ("n0", "n1")
# Two users of Debian's that own nothing: (name, uid).
USERS = ("games", "sync")
PROGRAMS = ("slurmctld", "slurmd", "munged", "scontrol", "sbatch", "srun", "squeue", "scancel", "setpriv")


def missing():
    """Why no cluster can be started here; nothing where one can."""
    if os.geteuid() != 0:
        return "only root can start a slurmd that runs jobs of several users"
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"not installed: {', '.join(absent)} (scripts/deps --ci)" if absent else None


def free_ports(count):
    """Below the ports that the kernel gives to connections: a restarted daemon has to get its own again."""
    ports = []
    for port in range(20000 + os.getpid() % 8000, 32000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError(f"no {count} free ports")


def eventually(condition, seconds, what):
    """Waits until the condition holds, and gives its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.1)


class Cluster:
    CARDS = {"n0": (256, 256), "n1": (128, 256)}  # MiB, by minor number

    def __init__(self, root, build, folder):
        self.root, self.build = pathlib.Path(root), pathlib.Path(build)
        self.folder = pathlib.Path(folder)
        self.folder.chmod(0o755)
        self.processes = {}
        self.reconfigured = 0.0
        self.environment = {
            "PATH": f"{self.folder}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SLURM_CONF": f"{self.folder}/etc/slurm.conf", "HOME": str(self.folder), "LANG": "C.UTF-8"}

    # --- set up

    def write_files(self):
        for name in ("etc", "bin", "state", "log", "munge", "out", "lgpu"):
            (self.folder / name).mkdir()
        (self.folder / "out").chmod(0o1777)
        (self.folder / "lgpu").chmod(0o755)
        (self.folder / "munge").chmod(0o755)
        for program in ("lgpu", "lgpu-selftest"):
            (self.folder / "bin" / program).symlink_to(self.build / "cli" / program)
        etc = self.folder / "etc"
        for file in (self.root / "packaging/slurm").iterdir():
            if file.is_file():
                shutil.copy(file, etc / file.name)
        # Two nodes of one machine: the node's name is the name of its lgpud's directory.
        (etc / "lgpu-slurm.conf").write_text(
            f"LGPU_ENDPOINT={self.folder}/lgpu/$SLURMD_NODENAME\nPATH={self.environment['PATH']}\n"
            f"export PATH SLURM_CONF={etc}/slurm.conf\n")
        self.build_option(etc)
        self.control_port, *ports = free_ports(1 + len(NODES))
        gres = []
        for node in NODES:
            for card in (1, 0):  # not in the order of the GPUs' indices
                file = self.folder / f"nvidia{card}"  # a device file, of the null device: slurmd asks for one
                if not file.exists():
                    os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(1, 3))
                gres.append(f"NodeName={node} Name=gpu Type=sim File={file}")
                gres.append(f"NodeName={node} Name=shard Count={self.CARDS[node][card]} File={file}")
        (etc / "gres.conf").write_text("\n".join(gres) + "\n")
        nodes = "\n".join(
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=512 "
            f"Gres=gpu:sim:2,shard:{sum(self.CARDS[node])} State=UNKNOWN" for node, port in zip(NODES, ports))
        (etc / "slurm.conf").write_text(f"""ClusterName=lgpu
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={self.control_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmctldLogFile={self.folder}/log/slurmctld
SlurmdLogFile={self.folder}/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,defer=0
GresTypes=gpu,shard
PrologFlags=Alloc
Prolog={etc}/lgpu-prolog
Epilog={etc}/lgpu-epilog
TaskProlog={etc}/lgpu-taskprolog
JobSubmitPlugins=lua
CliFilterPlugins=lua
JobRequeue=1
KillWait=2
UnkillableStepTimeout=30
SlurmctldTimeout=30
SlurmdTimeout=10
MessageTimeout=10
BatchStartTimeout=1
ReturnToService=2
MinJobAge=600
RequeueExit=0
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""".replace("RequeueExit=0\n", ""))

    def build_option(self, etc):
        """The plugin behind --gpu-memory, where a compiler and Slurm's header are."""
        plugin = self.folder / "spank_lgpu.so"
        self.has_option = shutil.which("gcc") is not None and pathlib.Path("/usr/include/slurm/spank.h").exists()
        if self.has_option:
            subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", plugin, etc / "spank_lgpu.c"], check=True)
            sample = (etc / "plugstack.conf.sample").read_text()
            (etc / "plugstack.conf").write_text(sample.replace("/usr/lib/slurm/spank_lgpu.so", str(plugin)))

    def launch(self, name, argv, **more):
        log = open(self.folder / "log" / f"{name}.out", "ab")
        self.processes[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                env=self.environment, start_new_session=True, **more)
        return self.processes[name]

    def start_lgpud(self, node):
        config = self.folder / f"lgpud-{node}.toml"
        config.write_text(f'[daemon]\nstate_dir = "{self.folder}/lgpu-state-{node}"\n'
                          f'lock_dir = "{self.folder}/lgpu-locks-{node}"\nsocket_group = ""\nsocket_mode = 0o666\n'
                          # On n1 users may make leases of their own.
                          + ('[caps.users."*"]\nleases = 0\n' if node == "n0" else ""))
        (self.folder / "lgpu" / node).mkdir(exist_ok=True)
        (self.folder / "lgpu" / node).chmod(0o755)
        self.launch(f"lgpud-{node}", [str(self.build / "daemon/lgpud"), "--dir", f"{self.folder}/lgpu/{node}",
                                      "--simulate", ",".join(f"1x{mib}MiB" for mib in self.CARDS[node]), "--config", str(config)])
        eventually(lambda: self.lgpu(node, "ls").returncode == 0, 60, f"lgpud of {node} answers")

    def start_slurmd(self, node):
        self.launch(f"slurmd-{node}", ["slurmd", "-D", "-N", node])

    def start_slurmctld(self):
        self.launch("slurmctld", ["slurmctld", "-D", "-i"])

    def start(self):
        self.write_files()
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munge = self.folder / "munge"
        self.launch("munged", ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket",
                               f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
                               "--num-threads=2"])
        eventually((munge / "socket").exists, 60, "munged has its socket")
        for node in NODES:
            self.start_lgpud(node)
        self.start_slurmctld()
        for node in NODES:
            self.start_slurmd(node)
        eventually(self.all_idle, 120, "both nodes are idle")

    def stop(self):
        for name in [*[f"slurmd-{node}" for node in NODES], "slurmctld", *[f"lgpud-{node}" for node in NODES], "munged"]:
            process = self.processes.pop(name, None)
            if process is None or process.poll() is not None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def end(self, name):
        """As a service manager does: slurmctld writes its state down."""
        process = self.processes.pop(name)
        process.terminate()
        process.wait(60)

    def reconfigure(self, name):
        """The daemon reads its configuration again; a slurmd registers with slurmctld. At most once a second."""
        if time.monotonic() - self.reconfigured > 1:
            self.processes[name].send_signal(signal.SIGHUP)
            self.reconfigured = time.monotonic()

    # --- ask

    def run(self, *words, user=None, check=True, timeout=60):
        argv = list(words)
        if user is not None:
            argv = ["setpriv", "--reuid", user, "--regid", user if user == "games" else "nogroup", "--init-groups", *argv]
        result = subprocess.run(argv, env=self.environment, cwd=self.folder / "out", capture_output=True, text=True,
                                timeout=timeout, check=False)
        if check and result.returncode != 0:
            raise AssertionError(f"{' '.join(words)}: {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    def lgpu(self, node, *words):
        return self.run("lgpu", "--endpoint", f"{self.folder}/lgpu/{node}", *words, check=False)

    def leases(self):
        """(node, name, card index, MiB) of every lease."""
        found = []
        for node in NODES:
            rows = self.lgpu(node, "ls", "--query", "lease,gpu.minor,limit", "--format", "csv,noheader,nounits").stdout
            for row in rows.splitlines():
                name, minor, limit = row.split(",")
                found.append((node, name, int(minor), int(limit) >> 20))
        return found

    def lease_id(self, node, name):
        """Of the lease that has the name now; None: there is none."""
        leases = json.loads(self.lgpu(node, "ls", "--json").stdout)["leases"]
        return next((lease["id"] for lease in leases if lease["name"] == name), None)

    def held(self):
        total = 0
        for node in NODES:
            rows = self.lgpu(node, "ls", "--query", "gpu.promised", "--format", "csv,noheader,nounits").stdout.split()
            total += sum(int(row) for row in rows)
        return total

    def all_idle(self):
        states = self.run("sinfo", "-h", "-N", "-o", "%N %t", check=False).stdout.split("\n")
        return [state for state in states if state] == [f"{node} idle" for node in NODES]

    def job(self, job):
        """The fields of `scontrol show job`."""
        text = self.run("scontrol", "-d", "-o", "show", "job", str(job), check=False).stdout
        for record in text.splitlines():
            if record.startswith(f"JobId={job} ") or f"JobId={job} " in record[:40]:
                return dict(part.split("=", 1) for part in record.split(" ") if "=" in part), record
        return {}, ""

    def state(self, job):
        return self.job(job)[0].get("JobState")

    def submit(self, script, *flags, user=USERS[0], check=True):
        """The job's number."""
        result = self.run("sbatch", "--parsable", "-o", "%j.out", "-e", "%j.out", "-n", "1", *flags, "--wrap", script, user=user,
                          check=check)
        return int(result.stdout.strip().split(";")[0]) if result.returncode == 0 else result

    def output(self, job):
        file = self.folder / "out" / f"{job}.out"
        return file.read_text() if file.exists() else ""

    def wait(self, job, *states, seconds=120, meanwhile=lambda: None):
        """Waits until the job is in one of the states, doing something `meanwhile`; at most until it has ended in another one."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

        def reached():
            meanwhile()
            state = self.state(job)
            return state if state in (*states, *ended) else None

        found = eventually(reached, seconds, lambda: f"job {job} is {' or '.join(states)}: {self.job(job)[1]}")
        if found not in states:
            raise AssertionError(f"job {job} is not {' or '.join(states)}: {self.job(job)[1]}\n{self.output(job)}")

    def kill_processes_of(self, job):
        """slurmstepd and all that it started, as the end of a node does."""
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                environment, command = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
                here = str(self.folder).encode() in environment
                if here and (f"SLURM_JOB_ID={job}\0".encode() in environment or
                             command.startswith(f"slurmstepd: [{job}.".encode())):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue  # it has ended meanwhile

    def nothing_left(self, seconds=120):
        """No lease, no promised memory, both nodes idle."""
        eventually(lambda: not self.leases() and self.held() == 0, seconds, lambda: f"no lease is left: {self.leases()}")
        eventually(self.all_idle, seconds, "both nodes are idle")

    def logs(self):
        text = ""
        for file in sorted((self.folder / "log").iterdir()):
            lines = file.read_text(errors="replace").splitlines()
            text += f"--- {file.name}\n" + "\n".join(lines[-25:]) + "\n"
        return text
