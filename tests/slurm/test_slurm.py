#!/usr/bin/env python3
"""Runs the scripts of tools/slurm on a Slurm of seven nodes, started on this host, and disturbs them.

Run as test_slurm.py SOURCE_ROOT GPTRAIN [scenario]... After any disturbance a run's weights, moments and metrics must
equal those of an undisturbed run in the same layout, and no process may be left. Exits with 77 if there is no Slurm.
"""
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from cluster import Cluster, command_line, environment_of, reason_to_skip, wait_until

SKIPPED = 77
NODES = (4, 3)  # in the two partitions: two for a job, and others to move to
CPUS_PER_NODE = 4
PARALLEL_SCENARIOS = 4
WAIT_SECONDS = 120
REFERENCE_SECONDS = 300  # limit for a run that repeats the steps of many jobs, beside other tests
SAVE_EVERY = 25
ENDLESS = 1_000_000  # steps of a run until the scenario decides where it ends
REPRODUCIBLE = ("step", "loss", "grad_norm", "lr", "tokens", "samples", "skipped")
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1")
ONE_NODE = ("--cpus-per-task=2",)
# With 6 ranks on three nodes 5 train, with 4 on two nodes 2.
ELASTIC = ("--nodes=2-3", "--cpus-per-task=2")
ELASTIC_KEYS = ("--set", "parallel.elastic=true", "--set", "batch.global=20")


def check(holds, message):
    if not holds:
        raise AssertionError(message)


class TestBed:
    """Shared by all scenarios: cluster, program, data."""

    def __init__(self, root, source, program):
        self.root, self.source, self.program = root, source, program
        self.cluster = Cluster(root / "cluster", *NODES, CPUS_PER_NODE)
        (root / "text.txt").write_text(" ".join(str(number * number) for number in range(3000)))
        self.gptrain("data", "pack", root / "text.txt", "--out", root / "corpus", "--tokenizer", "bytes")
        self.transports = ["none"]

    def start(self):
        self.cluster.start()
        if self.cluster.has_pmix():
            self.transports.append("pmix")
        else:
            print("not run: the scenarios with srun --mpi=pmix, which starts nothing here")

    def gptrain(self, *arguments):
        subprocess.run([self.program, *map(str, arguments)], check=True, stdin=subprocess.DEVNULL,
                       capture_output=True, timeout=REFERENCE_SECONDS, env=self.cluster.environment)

    def config(self, out, steps, **checkpoint):
        return json.dumps({
            "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "vocab_size": 257, "sequence_length": 32,
                      "dropout": 0.1},
            "data": {"train": [{"path": str(self.root / "corpus")}]}, "batch": {"global": 8, "micro": 2},
            "parallel": {"zero": 1}, "optimizer": {"lr": 1e-3}, "comm": {"timeout_seconds": 20},
            "checkpoint": {"every_steps": SAVE_EVERY, **checkpoint},
            "run": {"steps": steps, "out": str(out), "threads": 1}})


class Job:
    """A run of two ranks, and its Slurm job."""

    def __init__(self, bed, name, script, transport="none", steps=ENDLESS):
        self.bed, self.cluster, self.script, self.transport = bed, bed.cluster, script, transport
        self.folder = bed.root / name
        self.folder.mkdir()
        self.out = self.folder / "out"
        self.layouts = None  # (training ranks, last step) for each layout of a job whose ranks change
        self.end_at(steps)

    def end_at(self, steps):
        self.steps = steps
        written = self.folder / "config.new"
        written.write_text(self.bed.config(self.out, steps))
        written.replace(self.folder / "config.json")

    def end_soon(self):
        """Lets the run end some steps from now, at a multiple of SAVE_EVERY."""
        self.end_at((self.step() // SAVE_EVERY + 3) * SAVE_EVERY)

    def submit(self, *options, arguments=(), **variables):
        variables = {"GPTRAIN": str(self.bed.program), "GPTRAIN_MPI": self.transport, **variables}
        script = self.bed.source / "tools" / "slurm" / f"{self.script}.sbatch"
        self.id = self.cluster.run("sbatch", "--parsable", *options, script, "config.json", *arguments,
                                   folder=self.folder, **variables).strip()

    def log(self):
        path = self.folder / f"gptrain-{self.id}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def told(self):
        """Returns the log with only the first and last line of each series of steps and their checkpoints."""
        lines = self.log().splitlines()
        of_step = [re.match("step|checkpoint of step|the checkpoint of step", line) for line in lines]
        inside = [all(of_step[max(0, at - 1):at + 2]) for at in range(len(lines))]
        return "\n".join(line for line, hidden in zip(lines, inside) if not hidden)[-5000:]

    def field(self, name):
        return re.search(rf"\b{name}=(\S*)", self.cluster.run("scontrol", "show", "job", self.id)).group(1)

    def signal(self, *options):
        self.cluster.run("scancel", *options, self.id)

    def limit_to(self, minutes):
        """Sets the time limit to between `minutes` and one minute more from now."""
        hours, past, _ = map(int, self.field("RunTime").split(":"))
        self.cluster.run("scontrol", "update", f"jobid={self.id}", f"timelimit={60 * hours + past + minutes + 1}")

    def nodes(self):
        return self.cluster.run("scontrol", "show", "hostnames", self.field("NodeList")).split()

    def records(self):
        path = self.out / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [{key: record.get(key) for key in REPRODUCIBLE} for record in map(json.loads, lines)]

    def step(self):
        return max((record["step"] for record in self.records()), default=0)

    def saved(self):
        names = [path.name for path in (self.out / "checkpoints").glob("step-*")]
        return max((int(name[5:]) for name in names if name[5:].isdigit()), default=0)

    def wait_for(self, condition, what):
        try:
            return wait_until(condition, f"{what} (job {self.id})", WAIT_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def wait_for_step(self, step):
        self.wait_for(lambda: self.step() >= step, f"at step {step}")

    def wait_for_text(self, pattern):
        return self.wait_for(lambda: re.search(pattern, self.log()), f"'{pattern}' in the log")

    def rank_process(self, rank):
        ranks = [process for process in self.cluster.processes(self.id)
                 if environment_of(process).get("SLURM_PROCID") == str(rank)
                 and os.readlink(f"/proc/{process}/exe") == str(self.bed.program)]
        check(len(ranks) == 1, f"job {self.id} has {len(ranks)} processes of rank {rank}")
        return ranks[0]

    def wait_for_end(self, state, exit_code=None):
        self.wait_for(lambda: not self.cluster.run("squeue", "--noheader", f"--job={self.id}").strip(), "ended")
        seen = self.field("JobState")
        check(seen == state, f"job {self.id} ended as {seen}, not {state}:\n{self.told()}")
        if exit_code is not None:
            check(self.field("ExitCode") == f"{exit_code}:0", f"job {self.id}: ExitCode {self.field('ExitCode')}")
        left = list(map(command_line, self.cluster.processes(self.id)))
        check(not left, f"job {self.id} left processes: {left}")

    def resumed_at(self):
        return re.findall(r"^resumed from .* \(step (\d+)\)", self.log(), re.MULTILINE)

    def check_nothing_lost(self):
        """Checks after a stop that the run was saved where it stopped and went on from there."""
        stops = re.findall(r"^stopped by .* after step (\d+); the state is saved", self.log(), re.MULTILINE)
        starts = self.resumed_at()
        check(starts and starts == stops[:len(starts)], f"stopped after {stops}, resumed at {starts}")


def finish(bed, name, script, options, transport, arguments=()):
    job = Job(bed, name, script, transport, steps=3 * SAVE_EVERY)
    job.submit(*options, arguments=arguments)
    job.wait_for_end("COMPLETED", 0)
    return [job]


def detected_transport(bed, name):
    """By default, the scripts use MPI if it is available."""
    job = Job(bed, name, "several-nodes", "")
    job.submit(*TWO_NODES)
    job.wait_for_step(1)
    environment = environment_of(job.rank_process(0))
    check(("PMIX_RANK" in environment) == ("pmix" in bed.transports), "another transport than the best was taken")
    job.signal("--signal=USR1")
    job.wait_for_end("FAILED", 75)
    return []


def time_limit(bed, name, transport):
    job = Job(bed, name, "preemptible", transport)
    job.submit(*TWO_NODES, "--time=60", "--signal=USR1@80")
    # Slurm checks its limits every 30 s and signals up to 30 s early; a signal before the ranks run is lost.
    job.wait_for_step(10)
    job.limit_to(1)
    job.wait_for_text("exit 75: queued again")
    check(re.search("stopped by (SIGUSR1|a signal to another rank) after step", job.log()),
          "the run was not stopped by USR1")
    job.end_soon()
    job.wait_for_end("COMPLETED", 0)
    job.check_nothing_lost()
    check(int(job.field("Restarts")) >= 1, "the job was not queued again")
    check("restart 0\n" in job.log() and "restart 1\n" in job.log(), "the log of the first life is lost")
    return [job]


def cancelled(bed, name, script, options, transport, arguments=()):
    """scancel ends the job for good, with everything saved; the same command continues the run."""
    job = Job(bed, name, script, transport)
    job.submit(*options, arguments=arguments)
    job.wait_for_step(10)
    job.signal()
    job.wait_for_end("CANCELLED")
    # The ranks may have agreed to stop before the signal reached the rank that reports it.
    check(re.search("stopped by (SIGTERM|a signal to another rank) after step", job.log()) and
          "queued again" not in job.log(), job.told())
    check(job.saved() == job.step(), f"step {job.step()} was done, and {job.saved()} saved")
    stopped_at = job.step()
    job.end_soon()
    job.submit(*options, arguments=arguments)
    job.wait_for_end("COMPLETED", 0)
    check(f"(step {stopped_at})" in job.log(), "the second job did not go on from the first")
    return [job]


def preempted(bed, name, transport):
    """A SIGTERM to the batch shell alone is passed on."""
    job = Job(bed, name, "preemptible", transport)
    job.submit(*TWO_NODES)
    job.wait_for_step(10)
    job.signal("--batch", "--signal=TERM")
    job.wait_for_text("exit 75: queued again")
    job.end_soon()
    job.wait_for_end("COMPLETED", 0)
    job.check_nothing_lost()
    return [job]


def killed_rank(bed, name, transport):
    job = Job(bed, name, "preemptible", transport)
    job.submit(*TWO_NODES)
    job.wait_for(job.saved, "with a checkpoint")
    saved = job.saved()
    os.kill(job.rank_process(1), signal.SIGKILL)
    job.wait_for_text("queued again")
    check("1 of 2 ranks lost" in job.log() and "rank 1 (" in job.log(), job.told())
    job.end_soon()
    job.wait_for_end("COMPLETED", 0)
    resumed = int(re.search(r"^resumed from .* \(step (\d+)\)", job.log(), re.MULTILINE).group(1))
    check(resumed >= saved >= SAVE_EVERY and resumed % SAVE_EVERY == 0, f"saved {saved}, resumed {resumed}")
    return [job]


def killed_too_often(bed, name, transport):
    job = Job(bed, name, "preemptible", transport)
    job.submit(*TWO_NODES, MAX_RESTARTS="0")
    job.wait_for_step(2)
    os.kill(job.rank_process(0), signal.SIGKILL)
    job.wait_for_end("FAILED")
    check(job.field("ExitCode") in ("5:0", "137:0"), f"ExitCode {job.field('ExitCode')}")
    return []


def lost_at_a_step(bed, name):
    """A program that is lost at once is not queued again, one that is lost at a step a second time neither."""
    jobs = []
    for kind, lines, restarts in (("before the first step", "", 0), ("at the same step", "echo 'step 7/9 | loss 1'", 1),
                                  ("at another step", 'echo "step $((SLURM_RESTART_COUNT + 1))/9 | loss 1"', 2)):
        job = Job(bed, f"{name} {kind}", "preemptible")
        program = job.folder / "program"
        program.write_text(f"#!/bin/sh\n{lines}\nexit 5\n")
        program.chmod(0o755)
        job.submit("--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", GPTRAIN=str(program), MAX_RESTARTS="2")
        jobs.append((job, restarts))
    for job, restarts in jobs:
        job.wait_for_end("FAILED", 5)
        check(job.field("Restarts") == str(restarts), f"{job.folder.name}: {job.field('Restarts')} restarts:\n{job.told()}")
        check(job.log().count(": queued again") == restarts, job.told())
    return []


def faulty_config(bed, name):
    for script, options in (("preemptible", TWO_NODES), ("several-nodes", TWO_NODES), ("one-node", ONE_NODE)):
        job = Job(bed, f"{name} {script}", script)
        job.submit(*options, arguments=("--set", "model.num_heads=5"))
        job.wait_for_end("FAILED", 2)
        check("model.num_heads = 5: must divide" in job.log(), job.told())
    return []


def drained_node(bed, name, transport):
    """A draining node: its run goes on, and moves to other nodes when told to."""
    job = Job(bed, name, "preemptible", transport)
    job.submit(*TWO_NODES)
    job.wait_for_step(5)
    drained = job.nodes()[-1]
    job.cluster.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=test")
    try:
        job.wait_for_step(job.step() + 10)
        job.signal("--signal=USR1")
        job.wait_for_text("exit 75: queued again")
        job.end_soon()
        job.wait_for_end("COMPLETED", 0)
        check(drained not in job.nodes(), f"the job came back to {drained}")
    finally:
        job.cluster.run("scontrol", "update", f"nodename={drained}", "state=resume")
    job.check_nothing_lost()
    return [job]


def lost_node(bed, name, transport):
    """Slurm ends and requeues the jobs of a lost node. One job moves to two of the remaining nodes; the other uses all
    that remain, and later all nodes again."""
    job, elastic = Job(bed, name, "preemptible", transport), Job(bed, f"{name}, elastic", "preemptible", "none")
    elastic.submit(*ELASTIC, "--partition=unsafe", arguments=ELASTIC_KEYS, RANKS_PER_NODE="2")
    job.submit(*TWO_NODES, "--partition=unsafe")
    for one in (job, elastic):
        one.wait_for(one.saved, "with a checkpoint")
    saved, lost = job.saved(), job.nodes()[-1]
    job.cluster.run("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
    for one in (job, elastic):
        one.wait_for(lambda one=one: one.field("Restarts") == "1", "queued again")
    job.end_soon()
    job.wait_for_end("COMPLETED", 0)
    check(lost not in job.nodes(), f"the job came back to {lost}")
    resumed = int(re.search(r"^resumed from .* \(step (\d+)\)", job.log(), re.MULTILINE).group(1))
    check(resumed >= saved, f"saved {saved}, resumed {resumed}")
    return [job, goes_on_with_more_nodes(elastic, lost)]


def goes_on_with_more_nodes(job, node):
    """Checks the elastic job after the loss of a node and after its return."""
    job.wait_for_text("elastic: data ranks 5 -> 2, batch.accumulation 2 -> 5; batch.global stays 20")
    check("elastic: 2 of 4 ranks train, ranks 2 to 3 idle; " in job.log(), job.told())
    resumed = int(job.resumed_at()[-1])
    job.wait_for_step(resumed + 5)
    job.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    job.signal("--signal=USR1")
    job.wait_for_text("exit 75: queued again")
    job.end_soon()
    job.wait_for_end("COMPLETED", 0)
    check("elastic: data ranks 2 -> 5, batch.accumulation 5 -> 2; batch.global stays 20" in job.log(), job.told())
    check(job.log().count("elastic: 5 of 6 ranks train, rank 5 idles; ") == 2, job.told())
    starts = list(map(int, job.resumed_at()))
    job.layouts = list(zip((5, 2, 5), (*starts, job.steps)))
    check(len(starts) == 2, f"resumed at {starts}")
    return job


def scenarios(transports):
    """Returns {name: (function, arguments)}, the longest first."""
    best = transports[-1]
    listed = {"time limit": (time_limit, best), "lost node": (lost_node, best), "faulty config": (faulty_config,),
              "one node, threads": (finish, "one-node", ONE_NODE, "none", ("--ranks", "2")),
              "one node, scancel": (cancelled, "one-node", ONE_NODE, "none", ("--ranks", "2")),
              "detected transport": (detected_transport,)}
    for transport in transports:
        listed |= {f"several nodes, {transport}": (finish, "several-nodes", TWO_NODES, transport),
                   f"killed rank, {transport}": (killed_rank, transport)}
    listed |= {"scancel": (cancelled, "several-nodes", TWO_NODES, best),
               "scancel of preemptible": (cancelled, "preemptible", TWO_NODES, "none"),
               "preempted": (preempted, best), "killed too often": (killed_too_often, "none"),
               "lost at a step": (lost_at_a_step,),
               "drained node": (drained_node, "none")}
    return listed


def compare_with_undisturbed(bed, jobs):
    for job in jobs:
        if job.layouts:
            compare_with_configured(bed, job)
    compare_two_ranks(bed, [job for job in jobs if not job.layouts])


def compare_with_configured(bed, job):
    """Compares the job with a run of threads that has the same ranks in the same steps."""
    reference = Job(bed, f"{job.folder.name} by hand", "one-node", steps=job.steps)
    done = 0
    for ranks, end in job.layouts:
        bed.gptrain("train", reference.folder / "config.json", "--ranks", ranks, "--resume", "--steps", end - done,
                      "--set", "batch.global=20")
        done = end
    compare(job, reference)


def compare(job, reference):
    where = f"{job.folder.name}, step {job.steps}"
    check(job.records() == reference.records()[:job.steps], f"{where}: the metrics are not those of {reference.folder.name}")
    checkpoints = [run.out / "checkpoints" / f"step-{job.steps:08}" for run in (job, reference)]
    tensors = [{path.name: path.read_bytes() for path in folder.glob("*.safetensors")} for folder in checkpoints]
    check(len(tensors[0]) == (job.layouts[-1][0] if job.layouts else 2), f"{where}: {len(tensors[0])} files")
    check(tensors[0] == tensors[1], f"{where}: weights and moments are not those of {reference.folder.name}")


def compare_two_ranks(bed, jobs):
    """Compares all jobs with one uninterrupted run of two threads."""
    if not jobs:
        return
    reference = Job(bed, "undisturbed", "one-node", steps=max(job.steps for job in jobs))
    config = bed.config(reference.out, reference.steps, keep_every=SAVE_EVERY)
    (reference.folder / "config.json").write_text(config)
    bed.gptrain("train", reference.folder / "config.json", "--ranks", "2")
    for job in jobs:
        compare(job, reference)


def play(bed, chosen):
    """Returns the runs to compare, and the number of failures."""
    def timed(name):
        function, *arguments = chosen[name]
        began = time.monotonic()
        try:
            return function(bed, name, *arguments), f"ok      {name}, {time.monotonic() - began:.1f} s"
        except Exception:  # a fault of any kind fails this scenario only
            return None, f"FAILED  {name}\n{traceback.format_exc()}"

    jobs, failures = [], 0
    with concurrent.futures.ThreadPoolExecutor(PARALLEL_SCENARIOS) as pool:
        for runs, message in pool.map(timed, chosen):
            print(message, flush=True)
            jobs += runs or []
            failures += runs is None
    return jobs, failures


def end_when_told_to(bed):
    """Cleans up when the test itself hits its time limit."""
    def end(number, _):
        bed.cluster.stop()
        shutil.rmtree(bed.root, ignore_errors=True)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def main():
    source, program, names = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:]
    if reason := reason_to_skip():
        print(f"skipped: {reason}")
        return SKIPPED
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        bed = TestBed(Path(scratch), source, program)
        end_when_told_to(bed)
        try:
            bed.start()
            chosen = {name: scenario for name, scenario in scenarios(bed.transports).items()
                      if name in names or not names}
            jobs, failures = play(bed, chosen)
            if jobs:
                compare_with_undisturbed(bed, jobs)
        finally:
            left = bed.cluster.stop()
        check(not left, f"processes were left: {left}")
        print(f"{len(jobs)} runs have the bits of an undisturbed one; {failures} scenarios failed")
        return 1 if failures or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
