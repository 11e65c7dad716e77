"""Runs within control groups that limit memory, processor time and threads."""
import ctypes
import filecmp
import json
import os
import re
import statistics
import struct
import subprocess
import time
import unittest
from pathlib import Path

from cli_case import EXECUTABLE, FINISHED, MACHINE, TIMEOUT_SECONDS, CliCase, overrides
from ports import free_port

ROOT = Path("/sys/fs/cgroup")
LONG_TOKENS = int(os.environ.get("LONG_TOKENS", "8192"))
LONG_SECONDS = TIMEOUT_SECONDS * (LONG_TOKENS // 8192) ** 2
# 73: with masters and moments of 4 GiB, in 1 GiB of memory.
AWAY_LAYERS = int(os.environ.get("AWAY_LAYERS", "2"))


def make_group(controller, version_1, version_2, name=""):
    """Makes a control group with the given files of limits; returns its folder. Skips the test where there can be none."""
    try:
        root = ROOT / controller
        files = version_1
        if not (root / "cgroup.procs").exists():
            root, files = ROOT, version_2
            (root / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")
        group = root / f"gptrain-test-{os.getpid()}{name}"
        group.mkdir()
        for name, value in files.items():
            (group / name).write_text(value, encoding="ascii")
        return group
    except OSError as error:
        raise unittest.SkipTest(f"no control group of {controller} can be made: {error}") from error


class ControlGroups(CliCase):
    def run_in(self, group, *arguments):
        """Returns exit code and output of a process in the group, which ends with it."""
        try:
            done = subprocess.run([EXECUTABLE, *arguments], cwd=self.folder, capture_output=True, text=True, check=False,
                                  timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL,
                                  preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii"))
        finally:
            group.rmdir()
        return done.returncode, done.stdout + done.stderr

    def test_memory(self):
        limit = str(512 << 20)
        group = make_group("memory", {"memory.limit_in_bytes": limit}, {"memory.max": limit})
        code, text = self.run_in(group, "train", self.write_run(), *overrides("model.hidden_size=1024", "model.num_layers=4"))
        self.assertEqual(code, MACHINE, text)
        self.assertIn("are missing on this-machine", text)

    def run_in_groups(self, ranks, limit, *arguments):
        """Returns exit codes and outputs of ranks that are processes, each in a group of its own with a limit of memory."""
        groups, started = [], []
        port = str(free_port())
        try:
            for rank in range(ranks):
                groups.append(make_group("memory", {"memory.limit_in_bytes": str(limit)}, {"memory.max": str(limit)}, f"-{rank}"))
                variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                enter = (groups[-1] / "cgroup.procs").write_text
                started.append(subprocess.Popen(
                    [EXECUTABLE, *arguments], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                    stderr=subprocess.STDOUT, env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                    preexec_fn=lambda enter=enter: enter(str(os.getpid()), encoding="ascii")))
            outputs = [process.communicate(timeout=LONG_SECONDS)[0] for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            for group in groups:
                group.rmdir()
        return [process.returncode for process in started], outputs

    def test_sequences_too_long_for_one_rank(self):
        """Four ranks train on sequences that one rank has no memory for, resume, and validate as one rank does."""
        config = self.write_run(
            model={"num_layers": 2, "hidden_size": 128, "num_heads": 2, "sequence_length": LONG_TOKENS, "positions": "rope"},
            batch={"global": 1, "micro": 1}, run={"steps": 1})
        self.write_corpus(num_tokens=4 * LONG_TOKENS)
        shared = overrides("parallel.context=4")

        def planned(ranks, *more):
            plan = json.loads(self.succeed("train", config, "--ranks", ranks, "--dry-run", "--json", *more))
            return plan["peak_bytes"]

        alone, of_four = planned(1), planned(4, *shared)
        limit = (alone + of_four) // 2
        print(f"{LONG_TOKENS} tokens: {alone} bytes planned for one rank, {of_four} for each of four, limit {limit}")
        codes, texts = self.run_in_groups(1, limit, "train", config, *overrides("run.out=alone"))
        self.assertEqual(codes, [MACHINE], texts)
        self.assertIn("are missing on this-machine", texts[0])
        for steps in (1, 2):
            resumed = ["--resume"] if steps > 1 else []
            codes, texts = self.run_in_groups(4, limit, "train", config, *resumed, *shared, *overrides(f"run.steps={steps}"))
            self.assertEqual(codes, [FINISHED] * 4, texts)
            self.assertIn(f"done: step {steps}", texts[0])
        self.assertEqual([record["step"] for record in self.records()], [1, 2])
        shorter = overrides("model.sequence_length=1024", 'data.validation=[{"path": "corpus"}]', "run.validation_samples=4")
        found = []
        for ranks, more in ((1, []), (4, shared)):
            out = f"shorter-{ranks}"
            codes, texts = self.run_in_groups(ranks, limit, "train", config, "--init-from", "out", *shorter, *more,
                                          *overrides(f"run.out={out}"))
            self.assertEqual(codes, [FINISHED] * ranks, texts)
            found.append(self.records(out, "validation_loss")[-1]["validation_loss"])
        self.assertAlmostEqual(found[1] / found[0], 1, delta=1e-5)

    def test_cores(self):
        group = make_group("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "90000"}, {"cpu.max": "90000 100000"})
        code, text = self.run_in(group, "train", self.write_run(), *overrides("run.threads=0", "run.steps=1"))
        self.assertEqual(code, FINISHED, text)
        self.assertIn("this machine: 1 thread,", text)

    def test_threads(self):
        """No number of threads that a group allows ends a command by a library's message."""
        config = self.write_run()
        self.train(config)
        machine = ["bench", "device", "--seconds", "0.01", "--out", "machine.json"]
        for command, most in ((["train", config], 1), (["train", config], 2), (["train", config, *overrides("run.threads=2")], 2),
                              (["generate", "--checkpoint", "out", "--prompt", "x"], 1), (machine, 1)):
            group = make_group("pids", {"pids.max": str(most)}, {"pids.max": str(most)})
            code, text = self.run_in(group, *command, *(overrides("run.out=other") if command[0] == "train" else ()))
            with self.subTest(command=command, most=most):
                # On one core some commands need no second thread.
                self.assertIn(code, (MACHINE,) if command[0] == "train" else (MACHINE, FINISHED), text)
                if code == MACHINE:
                    self.assertIn("cannot start the thread that ", text)


def refuse_io_uring():
    """Lets io_uring_setup fail in this process, as container runtimes do."""
    load, jump_if_equal, leave = 0x20, 0x15, 0x06
    io_uring_setup, refused, allowed = 425, 0x00050001, 0x7FFF0000
    rules = [(load, 0, 0, 0), (jump_if_equal, 0, 1, io_uring_setup), (leave, 0, 0, refused), (leave, 0, 0, allowed)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
    library = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    if library.prctl(no_new_privileges, 1, 0, 0, 0) != 0 or library.prctl(set_seccomp, by_filter, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no filter of system calls")


class LittleMemory(CliCase):
    """All state lies on disk, and the process has less memory than that takes."""

    def run_watched(self, limit, before, *arguments):
        """Returns the most anonymous memory and the most threads of a run in a control group."""
        group = make_group("memory", {"memory.limit_in_bytes": str(limit)}, {"memory.max": str(limit)})

        def enter():
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            before()

        most = {"RssAnon": 0, "Threads": 0}
        try:
            with (self.folder / "output").open("w+", encoding="utf-8") as output:
                run = subprocess.Popen([EXECUTABLE, "train", *arguments], cwd=self.folder, stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, preexec_fn=enter)
                while run.poll() is None:
                    status = Path(f"/proc/{run.pid}/status").read_text(encoding="ascii")
                    for name, value in re.findall(r"^(RssAnon|Threads):\s+(\d+)", status, re.MULTILINE):
                        most[name] = max(most[name], int(value))
                    time.sleep(0.02)
                output.seek(0)
                self.assertEqual(run.returncode, FINISHED, output.read())
        finally:
            group.rmdir()
        return most["RssAnon"] << 10, most["Threads"]

    def test_a_model_larger_than_the_memory(self):
        is_large = AWAY_LAYERS > 2
        steps = 20 if is_large else 2
        config = self.write_run(
            model={"num_layers": AWAY_LAYERS, "hidden_size": 640, "num_heads": 10, "sequence_length": 64},
            batch={"global": 1, "micro": 1}, run={"steps": steps}, precision={"compute": "bf16"})
        (self.folder / "drive").mkdir()
        settings = overrides("memory.recompute=block", "memory.disk_path=drive", "memory.offload_optimizer=disk", "memory.disk_units=3",
                             "memory.offload_parameters=disk", "memory.offload_gradients=disk")
        forecast = []
        if is_large:
            self.succeed("bench", "device", "--seconds", "30", "--out", "machine.json")
            self.succeed("bench", "storage", "drive", "--into", "machine.json")
            forecast = ["--target", "machine.json"]
        plan = json.loads(self.succeed("train", config, "--dry-run", "--json", *settings, *forecast))
        limit = 1 << 30 if is_large else plan["peak_bytes"] + (256 << 20)
        away = plan["disk_master_bytes"] + plan["disk_moments_bytes"]
        print(f"{plan['peak_bytes']} bytes of memory planned, masters and moments {away}, limit {limit}")
        threads = []
        for out, before in (("uring", lambda: None), ("threads", refuse_io_uring)):
            memory, num_threads = self.run_watched(limit, before, config, *settings, *overrides(f"run.out={out}"))
            threads.append(num_threads)
            seconds = statistics.median(record["step_seconds"] for record in self.records(out)[1:])
            print(f"{out}: {memory} bytes of anonymous memory, {memory / plan['peak_bytes'] - 1:+.1%}; step {seconds:.2f} s, "
                  f"predicted {plan.get('step_seconds', 0):.2f}")
            if is_large:
                self.assertLessEqual(memory, 1.03 * plan["peak_bytes"])
                self.assertLessEqual(abs(seconds / plan["step_seconds"] - 1), 0.2)
        self.assertGreaterEqual(threads[1], 16, "io_uring is refused, so threads read and write")
        parts = sorted(path.name for path in self.checkpoint(steps, "uring").glob("rank-*.safetensors"))
        self.assertEqual(filecmp.cmpfiles(self.checkpoint(steps, "threads"), self.checkpoint(steps, "uring"), parts, False),
                         (parts, [], []), "files that are the same, that differ, that cannot be read")
        self.assertGreater(len(parts), 0)
        if is_large:
            self.assertGreaterEqual(away, 4 << 30)
