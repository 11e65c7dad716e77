"""Runs within control groups that limit memory, processor time and threads."""
import os
import subprocess
import unittest
from pathlib import Path

from cli_case import EXECUTABLE, FINISHED, MACHINE, TIMEOUT_SECONDS, CliCase, overrides

ROOT = Path("/sys/fs/cgroup")


def make_group(controller, version_1, version_2):
    """Makes a control group with the given files of limits; returns its folder. Skips the test where there can be none."""
    try:
        root = ROOT / controller
        files = version_1
        if not (root / "cgroup.procs").exists():
            root, files = ROOT, version_2
            (root / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")
        group = root / f"gptrain-test-{os.getpid()}"
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
