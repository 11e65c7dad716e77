"""Runs within control groups that limit memory, processor time and threads."""
import json
import os
import subprocess
import unittest
from pathlib import Path

from cli_case import EXECUTABLE, FINISHED, MACHINE, TIMEOUT_SECONDS, CliCase, overrides
from ports import free_port

ROOT = Path("/sys/fs/cgroup")
LONG_TOKENS = int(os.environ.get("LONG_TOKENS", "8192"))
LONG_SECONDS = TIMEOUT_SECONDS * (LONG_TOKENS // 8192) ** 2


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

    def run_apart(self, ranks, limit, *arguments):
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
        codes, texts = self.run_apart(1, limit, "train", config, *overrides("run.out=alone"))
        self.assertEqual(codes, [MACHINE], texts)
        self.assertIn("are missing on this-machine", texts[0])
        for steps in (1, 2):
            resumed = ["--resume"] if steps > 1 else []
            codes, texts = self.run_apart(4, limit, "train", config, *resumed, *shared, *overrides(f"run.steps={steps}"))
            self.assertEqual(codes, [FINISHED] * 4, texts)
            self.assertIn(f"done: step {steps}", texts[0])
        self.assertEqual([record["step"] for record in self.records()], [1, 2])
        shorter = overrides("model.sequence_length=1024", 'data.validation=[{"path": "corpus"}]', "run.validation_samples=4")
        found = []
        for ranks, more in ((1, []), (4, shared)):
            out = f"shorter-{ranks}"
            codes, texts = self.run_apart(ranks, limit, "train", config, "--init-from", "out", *shorter, *more,
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
