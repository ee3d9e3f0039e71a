#!/usr/bin/env python3
"""packaging/slurm with the real slurmctld and two slurmd of Debian's, a lgpud with simulated GPUs for each and two users.

slurm_test.py ROOT BUILD [CASE ...]   ends with 77 where it cannot run, and says why"""

import concurrent.futures
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import time
import traceback

from slurm_cluster import NODES, USERS, Cluster, eventually, missing

CASES = []


def case(function):
    CASES.append(function)
    return function


# In a job's script: it goes on once let_go has been called.
HELD = "until [ -e go.${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} ]; do sleep 0.1; done"


def let_go(cluster, job):
    (cluster.folder / "out" / f"go.{job}").touch()


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def running(cluster, job, node="n0"):
    """Waits for the job and its lease; (card, MiB) of the lease."""
    cluster.wait(job, "RUNNING")
    found = eventually(lambda: [lease for lease in cluster.leases() if lease[:2] == (node, f"slurm-{job}")], 60,
                       lambda: f"the lease of job {job} is on {node}: {cluster.leases()}; {cluster.job(job)[1]}")
    return found[0][2:]


def started(cluster, job):
    """Waits for the first words of the job's script: until then the prolog runs, or slurmd starts the script."""
    eventually(lambda: cluster.output(job), 120, lambda: f"job {job} has started its script: {cluster.job(job)[1]}")


@case
def the_lease_has_the_memory_that_slurm_allotted(cluster):
    job = cluster.submit("echo lease $LGPU_LEASE; lgpu verify; echo verify $?; touch done.$SLURM_JOB_ID; "
                         "while [ ! -e go ]; do sleep 0.1; done", "-w", "n0", "--gres=shard:100")
    other = cluster.submit("lgpu ls --query lease --format csv,noheader; lgpu verify; echo verify $?", "-w", "n0",
                           "--gres=shard:40", user=USERS[1])
    card, mib = running(cluster, job)
    expect(mib == 100, f"the limit is Slurm's: {mib}")
    record = cluster.job(job)[1]
    # gres.conf has the card with the higher number first.
    expect(f"GRES=shard:100(IDX:{1 - card})" in record, f"the lease's card {card} is Slurm's: {record}")
    cluster.wait(other, "COMPLETED")
    expect("verify 0" in cluster.output(other), cluster.output(other))
    expect(f"slurm-{job}" not in cluster.output(other), "a user sees their own leases")
    eventually((cluster.folder / "out" / f"done.{job}").exists, 60, "the job has verified its limit")
    (cluster.folder / "out/go").touch()
    cluster.wait(job, "COMPLETED")
    expect("verify 0" in cluster.output(job), cluster.output(job))
    (cluster.folder / "out/go").unlink()


@case
def the_lease_is_on_the_card_that_slurm_chose(cluster):
    # Only the second card of n1 is large enough, and gres.conf has it first.
    job = cluster.submit(f"{HELD}; lgpu verify", "-w", "n1", "--gres=shard:200")
    expect(running(cluster, job, "n1") == (1, 200), f"{cluster.leases()}")
    let_go(cluster, job)
    cluster.wait(job, "COMPLETED")


@case
def a_job_waits_for_freed_memory(cluster):
    first = [cluster.submit("sleep 300", "-w", "n0", "--gres=shard:200") for _ in range(2)]
    for job in first:
        running(cluster, job)
    expect({lease[2] for lease in cluster.leases()} == {0, 1}, f"each on a card of its own: {cluster.leases()}")
    waits = cluster.submit("lgpu verify", "-w", "n0", "--gres=shard:200", user=USERS[1])
    eventually(lambda: cluster.job(waits)[0].get("Reason") == "Resources", 60, "it waits for the memory")
    cluster.run("scancel", str(first[0]))
    cluster.wait(waits, "COMPLETED")
    cluster.run("scancel", str(first[1]))


@case
def a_killed_job_leaves_no_lease(cluster):
    job = cluster.submit("echo started; sleep 300", "-w", "n0", "--gres=shard:100")
    running(cluster, job)
    started(cluster, job)
    cluster.run("scancel", "-s", "KILL", "-f", str(job))
    cluster.wait(job, "CANCELLED", "FAILED")


@case
def a_killed_slurmstepd_leaves_no_lease(cluster):
    job = cluster.submit("echo started; sleep 300", "-w", "n0", "--gres=shard:100", "--no-requeue")
    running(cluster, job)
    started(cluster, job)
    cluster.kill_processes_of(job)
    # Slurm looks for such jobs when a slurmd registers: now and then, or after a reconfiguration.
    cluster.wait(job, "FAILED", "CANCELLED", "NODE_FAIL", seconds=240, meanwhile=lambda: cluster.reconfigure("slurmd-n0"))


@case
def a_requeued_job_gets_a_new_lease(cluster):
    job = cluster.submit("lgpu verify; echo verify $? restart ${SLURM_RESTART_COUNT:-0}; sleep 300", "-w", "n0", "--gres=shard:100",
                         "--requeue", "--open-mode=append")
    running(cluster, job)
    first = cluster.lease_id("n0", f"slurm-{job}")
    cluster.run("scontrol", "requeue", str(job))
    eventually(lambda: cluster.lease_id("n0", f"slurm-{job}") not in (None, first), 120,
               lambda: f"another lease has the first one's place: {cluster.job(job)[1]}")
    running(cluster, job)
    eventually(lambda: "verify 0 restart 1" in cluster.output(job), 60, lambda: f"the limit holds again: {cluster.output(job)}")
    cluster.run("scancel", str(job))


@case
def more_than_a_card_is_refused_at_submit(cluster):
    refused = cluster.submit("true", "--gres=shard:257", check=False)
    expect("258 MiB of GPU memory fit on no card: the largest has 256 MiB" in refused.stderr, refused.stderr)
    refused = cluster.submit("true", "--gres=shard:1K", check=False)
    expect("1024 MiB of GPU memory fit on no card" in refused.stderr, refused.stderr)
    odd = cluster.submit("sleep 300", "-w", "n0", "--gres=shard:99")
    expect(running(cluster, odd)[1] == 100, "chunks have 2 MiB")
    refused = cluster.run("scontrol", "update", f"JobId={odd}", "Gres=shard:400", user=USERS[0], check=False)
    expect(refused.returncode != 0, "a job cannot grow beyond a card either")
    cluster.run("scancel", str(odd))


@case
def a_gres_conf_without_sizes_is_reported(cluster):
    gres, log = cluster.folder / "etc/gres.conf", cluster.folder / "log/slurmctld"
    lines = gres.read_text()
    text = "the GPU memory of jobs is not checked at submission: "

    def submit(*flags):
        return cluster.run("sbatch", "--parsable", "-o", "%j.out", "-n", "1", *flags, "--wrap", "true", user=USERS[0])

    without_files = "".join(f"{line.split(' File=')[0]}\n" if "Name=shard" in line else f"{line}\n" for line in lines.splitlines())
    in_a_comment = without_files + "# Name=shard Count=4096 File=/dev/nvidia0\n"
    try:
        for content, reason in ((None, "No such file"), (without_files, "has no line Name=shard"), (in_a_comment, "has no line Name=shard")):
            if content is None:
                gres.unlink()
            else:
                gres.write_text(content)
            for _ in range(2):
                submitted = submit("--gres=shard:400")
                expect("the GPU memory of this job is not checked" in submitted.stderr, f"{reason}: {submitted.stderr}")
                job = int(submitted.stdout)
                expect(cluster.state(job) == "PENDING", f"no card is large enough: {cluster.job(job)[1]}")
                cluster.run("scancel", str(job))
            expect(f"gres.conf{':' if content is None else ''} {reason}" in log.read_text().split(text)[-1], f"the log: {reason}")
        expect(log.read_text().count(text) == 2, "the log has each reason once")
        plain = submit()
        expect(plain.stderr == "", f"a job without shards gets no message: {plain.stderr}")
        cluster.wait(int(plain.stdout), "COMPLETED")
    finally:
        gres.write_text(lines)
    refused = cluster.submit("true", "--gres=shard:400", check=False)
    expect("400 MiB of GPU memory fit on no card" in refused.stderr, "the check is made again")


@case
def only_tasks_with_shards_wait_for_lgpud(cluster):
    # A double of lgpu says that lgpud does not answer, and one of sleep takes no time.
    doubles = cluster.folder / "doubles"
    doubles.mkdir()
    tries = doubles / "tries"
    for name, text in (("lgpu", f"echo try >> {tries}\nexit 69\n"), ("sleep", "")):
        (doubles / name).write_text(f"#!/bin/sh\n{text}")
        (doubles / name).chmod(0o755)
    prolog = str(cluster.root.resolve() / "packaging/slurm/lgpu-taskprolog")
    for variables, count, code in ((["SLURM_JOB_GPUS=0", "SLURM_SHARDS_ON_NODE=100"], 20, 1), (["SLURM_JOB_GPUS=0"], 1, 0), ([], 0, 0)):
        tries.write_text("")
        result = cluster.run("env", f"PATH={doubles}:/usr/bin:/bin", "SLURM_JOB_ID=1", *variables, prolog, check=False)
        expect(len(tries.read_text().splitlines()) == count, f"{variables}: {tries.read_text()}")
        expect(result.returncode == code, f"{variables}: {result}")
        expect(("print lgpu: this task has no lease" in result.stdout) == (code == 1), f"{variables}: {result}")


@case
def the_samples_fit_together(cluster):
    sample = cluster.root / "packaging/slurm"
    etc = cluster.folder / "samples"
    etc.mkdir()
    node = "NodeName=node[0-3] "
    lines = [line.removeprefix("# ") for line in (sample / "slurm.conf.sample").read_text().splitlines()]
    (etc / "slurm.conf").write_text("ClusterName=samples\nSlurmctldHost=localhost\n" + "\n".join(
        line.replace("...", "NodeHostname=localhost CPUs=1") for line in lines if "=" in line and " " not in line or line.startswith(node)))
    gres = (sample / "gres.conf.sample").read_text()
    for card in range(8):
        file = etc / f"nvidia{card}"
        os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # of the null device
        gres = gres.replace(f"/dev/nvidia{card}", str(file))
    (etc / "gres.conf").write_text(gres)
    read = cluster.run("slurmd", "-f", str(etc / "slurm.conf"), "-N", "node1", "-G")
    found = read.stdout + read.stderr
    expect(found.count("Name=gpu Type=nvidia_h200") == 8 and found.count("Name=shard") == 8, found)


@case
def each_component_of_a_heterogeneous_job_has_a_lease(cluster):
    job = cluster.submit("sleep 300", "-w", "n0", "--gres=shard:100", ":", "-n", "1", "-w", "n1", "--gres=shard:40")
    wanted = [("n0", f"slurm-{job}", 100), ("n1", f"slurm-{job + 1}", 40)]
    eventually(lambda: [(node, name, mib) for node, name, _, mib in cluster.leases()] == wanted, 120,
               lambda: f"{cluster.leases()}; {cluster.run('squeue').stdout}; {cluster.job(job)[1]}")
    cluster.run("scancel", str(job))
    eventually(lambda: not cluster.leases(), 120, lambda: f"{cluster.leases()}")


@case
def a_job_goes_back_when_squeue_does_not_name_its_part(cluster):
    # This squeue fails in the prolog alone: slurmd sets SLURMD_NODENAME there.
    squeue = cluster.folder / "bin/squeue"
    squeue.write_text(f'#!/bin/sh\n[ -z "$SLURMD_NODENAME" ] || exit 1\nexec {shutil.which("squeue")} "$@"\n')
    squeue.chmod(0o755)
    try:
        job = cluster.submit("sleep 300", "-w", "n0", "--gres=shard:100", ":", "-n", "1", "-w", "n1", "--gres=shard:40")
        eventually(lambda: "does not tell which part" in cluster.job(job)[0].get("Comment", "") + cluster.job(job)[1], 120,
                   lambda: f"the comment is there: {cluster.job(job)[1]}")
        eventually(lambda: cluster.state(job) == "PENDING", 120, lambda: cluster.job(job)[1])
        expect("held" not in cluster.job(job)[0]["Reason"], f"it is not held: {cluster.job(job)[1]}")
        cluster.run("scancel", str(job))
    finally:
        squeue.unlink()


@case
def texts_of_the_user_cannot_fake_slurms_record(cluster):
    # Each name claims more shards than Slurm allotted.
    fake = "Nodes=n0 CPU_IDs=0 Mem=0 GRES=shard:200(IDX:0)"
    for name in (f"a name {fake}", f"Restarts=7 JOB_GRES=shard:200 {fake} JobId=1"):
        job = cluster.submit("sleep 300", "-w", "n0", "--gres=shard:100", "--job-name", name, "--comment", fake)
        expect(running(cluster, job)[1] == 100, f"{name}: {cluster.leases()}")
        cluster.run("scancel", str(job))
        cluster.wait(job, "CANCELLED")
    array = cluster.submit("sleep 300", "-w", "n0", "--gres=shard:100", "--array=0-1", "--job-name", f"JobId=1 {fake}")
    eventually(lambda: [lease[3] for lease in cluster.leases()] == [100, 100], 120, lambda: f"{cluster.leases()}")
    cluster.run("scancel", str(array))
    eventually(lambda: not cluster.leases(), 120, lambda: f"{cluster.leases()}")
    lines = f"x\n   JOB_GRES=shard:200\n     {fake}\n\nJobId=1 y"
    job = cluster.submit("sleep 300", "-w", "n0", "--gres=shard:100", "--job-name", lines, "--no-requeue")
    state = ["squeue", "-h", "-j", str(job), "-t", "all", "-o", "%T"]
    eventually(lambda: cluster.run(*state).stdout == "CANCELLED\n", 120, "the job of that name does not start")
    expect("its name, account or a path has a line break" in cluster.run("scontrol", "show", "job", str(job)).stdout, "the comment")
    expect(not cluster.leases(), f"the text of a user makes no lease: {cluster.leases()}")
    held = cluster.submit("true", "-w", "n0", "--gres=shard:100", "--job-name", "two\nlines\nJobId=2", "--requeue")
    reason = ["squeue", "-h", "-j", str(held), "-o", "%T %r"]
    eventually(lambda: "held" in cluster.run(*reason).stdout.lower(), 120, lambda: f"it is held: {cluster.run(*reason).stdout}")
    cluster.run("scancel", str(held))


@case
def a_user_cannot_raise_the_jobs_limit(cluster):
    job = cluster.submit("""
        lgpu resize $LGPU_LEASE -m 200MiB; echo resize $?
        lgpu rm slurm-$SLURM_JOB_ID; echo rm $?
        lgpu create -m 200MiB --name more; echo create $?
        lgpu create -m 200MiB --managed; echo managed $?
        lgpu run -m 200MiB -- true; echo run $?
        LGPU_LEASE=l-00000000 CUDA_VISIBLE_DEVICES=0 srun -n 1 sh -c 'lgpu verify && echo $LGPU_LEASE'; echo verify $?
        """, "-w", "n0", "--gres=shard:100", "--export=ALL,LGPU_LEASE=l-11111111")
    cluster.wait(job, "COMPLETED")
    output = cluster.output(job)
    for line in ("resize 4", "rm 4", "create 2", "managed 4", "run 125", "verify 0"):
        expect(line in output.splitlines(), f"{line}: {output}")


@case
def a_users_lease_of_the_same_name_does_not_block_the_jobs_lease(cluster):
    first = cluster.submit("true", "-w", "n1", "--gres=shard:2")
    cluster.wait(first, "COMPLETED")
    taken = [f"slurm-{first + ahead}" for ahead in (1, 2)]
    endpoint = f"{cluster.folder}/lgpu/n1"
    for name in taken:
        cluster.run("lgpu", "--endpoint", endpoint, "create", "--name", name, "-m", "200MiB", user=USERS[0])
    job = cluster.submit("lgpu verify; echo verify $?; lgpu inspect $LGPU_LEASE", "-w", "n1", "--gres=shard:100")
    cluster.wait(job, "COMPLETED")
    expect(f"slurm-{job}" == taken[0], f"the name was taken: {taken} {job}")
    expect("verify 0" in cluster.output(job) and "only root resizes" in cluster.output(job), cluster.output(job))
    eventually(lambda: {lease[1] for lease in cluster.leases()} == set(taken), 60, "the job's lease alone has ended")
    cluster.run("lgpu", "--endpoint", endpoint, "rm", *taken, user=USERS[0])


@case
def arrays_and_steps_share_cards_and_leases(cluster):
    array = cluster.submit(f"lgpu verify; echo verify $?; {HELD}", "-w", "n0", "--gres=shard:120", "--array=0-3")
    eventually(lambda: len(cluster.leases()) == 4, 120, lambda: f"four leases: {cluster.leases()}")
    cards = [lease[2] for lease in cluster.leases()]
    expect(sorted(cards) == [0, 0, 1, 1], f"two on a card: {cluster.leases()}")
    expect({lease[3] for lease in cluster.leases()} == {120}, f"{cluster.leases()}")
    let_go(cluster, array)
    steps = cluster.submit("srun -n 2 sh -c 'echo lease $LGPU_LEASE'; srun -n 1 --gres=shard:32 sh -c 'echo lease $LGPU_LEASE'; "
                           "srun -n 1 lgpu verify; echo verify $?", "-w", "n1", "-n", "2", "--gres=shard:64")
    cluster.wait(steps, "COMPLETED")
    leases = [line for line in cluster.output(steps).splitlines() if line.startswith("lease l-")]
    expect(len(leases) == 3 and len(set(leases)) == 1, f"the tasks of both steps are in the job's lease: {cluster.output(steps)}")
    expect("verify 0" in cluster.output(steps), cluster.output(steps))
    direct = cluster.run("srun", "-n", "1", "-w", "n1", "--gres=shard:50", "sh", "-c", "lgpu verify && echo $LGPU_LEASE", user=USERS[1])
    expect("\nl-" in direct.stdout, direct.stdout)
    eventually(lambda: not cluster.leases(), 120, lambda: f"all have ended: {cluster.leases()} of {array}")


@case
def a_job_on_two_nodes_has_a_lease_on_each(cluster):
    job = cluster.submit("srun sh -c 'lgpu verify > /dev/null && echo verified on $SLURMD_NODENAME'", "-N", "2", "-n", "2",
                         "--gres=shard:60", user=USERS[1])
    cluster.wait(job, "COMPLETED")
    expect(sorted(cluster.output(job).split("\n")) == ["", "verified on n0", "verified on n1"], cluster.output(job))


@case
def the_option_gpu_memory_asks_for_shards(cluster):
    if not cluster.has_option:
        print("        the_option_gpu_memory_asks_for_shards was left out: no gcc, or no slurm/spank.h (libslurm-dev)")
        return
    job = cluster.submit(f"{HELD}; srun -n 1 lgpu verify; echo verify $?", "-w", "n0", "--gpu-memory=128MiB")
    expect(running(cluster, job)[1] == 128, f"{cluster.leases()}")
    let_go(cluster, job)
    cluster.wait(job, "COMPLETED")
    expect("verify 0" in cluster.output(job), cluster.output(job))
    for size, text in (("1G", "1024 MiB of GPU memory fit on no card"), ("8T", "--gpu-memory=8T is not a size"),
                       ("0G", "--gpu-memory=0G is not a size")):
        refused = cluster.submit("true", f"--gpu-memory={size}", check=False)
        expect(not isinstance(refused, int) and text in refused.stderr, f"{size}: {refused}")
    twice = cluster.submit("true", "--gpu-memory=8M", "--gres=shard:8", check=False)
    expect(not isinstance(twice, int) and "leave one of them out" in twice.stderr, f"{twice}")


@case
def whole_cards_and_shares_exclude_each_other(cluster):
    share = cluster.submit("sleep 300", "-w", "n0", "--gres=shard:100")
    running(cluster, share)
    whole = cluster.submit("echo lease ${LGPU_LEASE:-none}", "-w", "n0", "--gres=gpu:2")
    eventually(lambda: cluster.job(whole)[0].get("Reason") == "Resources", 60, "both cards are not free")
    cluster.run("scancel", str(share))
    cluster.wait(whole, "COMPLETED")
    expect(cluster.output(whole) == "lease none\n", "whole cards have no lease")


@case
def a_job_and_its_lease_survive_restarts_of_the_daemons(cluster):
    job = cluster.submit("echo started; while [ ! -e again ]; do sleep 0.1; done; lgpu verify; echo verify $?", "-w", "n0",
                         "--gres=shard:100")
    running(cluster, job)
    started(cluster, job)  # a slurmd that is killed in a prolog forgets the job
    lease = [each for each in cluster.leases() if each[1] == f"slurm-{job}"]
    cluster.kill("slurmd-n0")
    cluster.kill("lgpud-n0")
    cluster.end("slurmctld")
    cluster.start_lgpud("n0")
    cluster.start_slurmctld()
    cluster.start_slurmd("n0")
    eventually(lambda: cluster.state(job) == "RUNNING", 60, "slurmctld has the job again")
    expect([each for each in cluster.leases() if each[1] == f"slurm-{job}"] == lease, "the lease is there again")
    (cluster.folder / "out/again").touch()
    cluster.wait(job, "COMPLETED")
    expect("verify 0" in cluster.output(job), cluster.output(job))


@case
def a_failed_node_comes_back_clean(cluster):
    job = cluster.submit("lgpu verify; echo verify $?; sleep 300", "-w", "n1", "--gres=shard:100", "--requeue",
                         "--open-mode=append")
    running(cluster, job, "n1")
    eventually(lambda: "verify 0" in cluster.output(job), 60, lambda: f"the limit holds: {cluster.output(job)}")
    cluster.kill("slurmd-n1")
    cluster.kill_processes_of(job)
    cluster.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    cluster.wait(job, "PENDING")
    expect(len(cluster.leases()) == 1, f"no epilog has run: {cluster.leases()}")
    cluster.start_slurmd("n1")
    # By ReturnToService=2 the node is up when slurmd has registered; State=RESUME would be an error from then on.
    eventually(lambda: "DOWN" not in cluster.run("scontrol", "-o", "show", "node", "n1").stdout, 60, "the node is up again")
    eventually(lambda: cluster.output(job).count("verify 0") == 2, 60,
               lambda: f"its next run has a lease of its own: {cluster.output(job)} {cluster.job(job)[1]}")
    expect(len(cluster.leases()) == 1, f"{cluster.leases()}")
    cluster.run("scancel", str(job))


@case
def the_sweep_ends_leases_that_no_epilog_ended(cluster):
    stays, gone = (cluster.submit("echo started; sleep 300", "-w", "n0", "--gres=shard:100") for _ in range(2))
    for job in (stays, gone):
        running(cluster, job)
        started(cluster, job)
    cluster.kill("lgpud-n0")
    cluster.run("scancel", str(gone))
    cluster.wait(gone, "CANCELLED")
    eventually(lambda: "COMPLETING" not in cluster.run("squeue", "-h", "-o", "%T").stdout, 120, "the epilog has ended")
    cluster.start_lgpud("n0")
    expect(len(cluster.leases()) == 2, f"its epilog found no lgpud: {cluster.leases()}")
    sweep = str(cluster.folder / "etc/lgpu-sweep")
    cluster.end("slurmctld")
    cluster.run(sweep, "n0")
    expect(len(cluster.leases()) == 2, "the sweep ends no lease while slurmctld does not answer")
    cluster.start_slurmctld()
    eventually(lambda: cluster.state(stays) == "RUNNING", 60, "slurmctld answers")
    cluster.run(sweep, "n0")
    expect([lease[1] for lease in cluster.leases()] == [f"slurm-{stays}"], f"{cluster.leases()}")
    cluster.run("scancel", str(stays))


@case
def a_node_without_lgpud_gives_the_job_back(cluster):
    cluster.kill("lgpud-n1")
    job = cluster.submit("lgpu verify; echo verify $?", "-w", "n1", "--gres=shard:100")
    eventually(lambda: "Comment=lgpu on n1: no lease of 100MiB: " in cluster.job(job)[1], 120,
               lambda: f"the comment says why: {cluster.job(job)[1]}")
    cluster.wait(job, "PENDING")
    expect("DRAIN" not in cluster.run("scontrol", "-o", "show", "node", "n1").stdout, "the prolog drains no node")
    sweep = str(cluster.folder / "etc/lgpu-sweep")
    cluster.run(sweep, "n1")
    expect("Reason=lgpu: lgpud does not answer" in cluster.run("scontrol", "-o", "show", "node", "n1").stdout, "the sweep drains")
    cluster.start_lgpud("n1")
    cluster.run(sweep, "n1")
    expect("DRAIN" not in cluster.run("scontrol", "-o", "show", "node", "n1").stdout, "and undrains")
    cluster.wait(job, "COMPLETED", seconds=150)
    expect("verify 0" in cluster.output(job), cluster.output(job))


@case
def a_job_goes_back_when_the_card_has_no_memory_for_it(cluster):
    endpoint = ("lgpu", "--endpoint", f"{cluster.folder}/lgpu/n1")
    # Slurm does not know of this lease, which is on the card of 256 MiB.
    cluster.run(*endpoint, "create", "--name", "taken", "-m", "200MiB", "--guarantee", "200MiB", user=USERS[0])
    job = cluster.submit("lgpu verify; echo verify $?", "-w", "n1", "--gres=shard:200", user=USERS[1])
    eventually(lambda: "Comment=lgpu on n1: no lease of 200MiB: not enough memory" in cluster.job(job)[1], 120,
               lambda: f"the comment says why: {cluster.job(job)[1]}")
    cluster.wait(job, "PENDING")
    cluster.run(*endpoint, "rm", "taken", user=USERS[0])
    cluster.wait(job, "COMPLETED", seconds=150)
    expect("verify 0" in cluster.output(job), cluster.output(job))


@case
def prolog_and_epilog_may_run_twice(cluster):
    job = cluster.submit("sleep 300", "-w", "n0", "--gres=shard:100")
    card, _ = running(cluster, job)
    before = cluster.leases()
    environment = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "5", "SLURM_JOB_GPUS": str(1 - card), "SLURMD_NODENAME": "n0"}
    again = ["env", *[f"{key}={value}" for key, value in environment.items()]]
    cluster.run(*again, str(cluster.folder / "etc/lgpu-prolog"))
    expect(cluster.leases() == before, f"{cluster.leases()}")
    cluster.run("scancel", str(job))
    with concurrent.futures.ThreadPoolExecutor() as pool:  # beside slurmd's own
        for ended in [pool.submit(cluster.run, *again, str(cluster.folder / "etc/lgpu-epilog")) for _ in range(2)]:
            ended.result()
    cluster.wait(job, "CANCELLED")


def main():
    why = missing()
    if why:
        print(f"skipped: {why}")
        return 77
    root, build, wanted = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    folder = tempfile.mkdtemp(prefix="lgpu-slurm-")
    cluster = Cluster(root, build, folder)
    failed = []
    try:
        cluster.start()
        for function in CASES:
            if wanted and function.__name__ not in wanted:
                continue
            started = time.monotonic()
            try:
                function(cluster)
                cluster.nothing_left()
                print(f"ok      {function.__name__} ({time.monotonic() - started:.0f} s)", flush=True)
            except Exception:  # prints the failure with the logs; the next cases do not run
                failed.append(function.__name__)
                print(f"FAILED  {function.__name__}\n{traceback.format_exc()}\n{cluster.logs()}", flush=True)
                cluster.run("scancel", "--state=RUNNING", check=False)
                break
    except Exception:
        failed.append("start")
        print(f"FAILED  start\n{traceback.format_exc()}\n{cluster.logs()}")
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    expect(len(NODES) == 2, "two nodes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
