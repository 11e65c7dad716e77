"""Runs on file systems that lack something, behind links, in folders that move, and under clocks that jump."""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from cli_case import (CHECKPOINT, EXECUTABLE, FINISHED, REQUEUE, TIMEOUT_SECONDS, USAGE, CliCase, overrides,
                      tiny_config)
from faults_cases import may_mount
from preload_case import PreloadCase

ENDLESS = overrides("run.steps=100000000", "checkpoint.every_steps=0")


class FaultyCase(PreloadCase):
    """Runs with the preload library of file_system.c."""
    source = "file_system.c"

    def environment(self, faults, folder):
        return {**os.environ, "LD_PRELOAD": str(self.library), "FAULTS": faults, "FOLDER": str(self.path(folder))}

    def run_with(self, faults, *arguments, folder="out", code=FINISHED):
        done = subprocess.run([EXECUTABLE, *map(str, arguments)], cwd=self.folder, env=self.environment(faults, folder),
                              capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, check=False)
        self.assertEqual(done.returncode, code, f"{faults} {arguments}: {done.stderr}")
        return done


class Lacking(FaultyCase):
    def test_no_locks_of_any_kind(self):
        error = self.run_with("locks", "train", self.write_run()).stderr
        self.assertIn("warning: run.out = out: its file system has no locks, so that nothing keeps a second run out", error)
        self.run_with("locks", "checkpoint", "average", "out", "out", "--out", "average")

    def test_no_mappings(self):
        config = self.write_run()
        self.train(config)
        for faults in ("shared", "mappings"):
            self.run_with(faults, "train", config, "--set", f"run.out={faults}")
            self.assert_same_checkpoint(self.checkpoint(6), self.checkpoint(6, faults))
            self.run_with(faults, "data", "inspect", "corpus")

    def test_no_syncing(self):
        self.path("a.txt").write_text("some text\n" * 400, encoding="utf-8")
        warning = r"warning: the file system of \S*%s/\S+ cannot sync files \(Invalid argument\): " % self.folder.name
        error = self.run_with("unsynced", "data", "pack", "a.txt", "--out", "packed", "--tokenizer", "bytes").stderr
        self.assertEqual(len(re.findall(warning, error)), 1, error)
        config = self.write_config(tiny_config(data={"train": [{"path": "packed"}]}))
        self.assertEqual(len(re.findall(warning, self.run_with("unsynced", "train", config).stderr)), 1)
        self.assertIn("sound", self.succeed("checkpoint", "verify", "out"))

    def test_status_that_cannot_be_had(self):
        """No search for the first folder that exists goes on for ever where the status even of / cannot be had."""
        self.train(self.write_run())
        target = self.path("deep/er/target")
        error = self.run_with("stat", "train", "run.json", "--set", f"run.out={target}", folder="deep", code=USAGE).stderr
        self.assertIn("run.out: cannot create ", error)
        for command in (["export", "out", "--hf", target], ["average", "out", "out", "--out", target]):
            self.run_with("stat", "checkpoint", *command, folder="deep", code=CHECKPOINT)

    def test_read_only_under_a_run(self):
        config = self.write_run()
        process = subprocess.Popen([EXECUTABLE, "train", config, *ENDLESS], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   env=self.environment("read_only", "out"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self._end, process)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        self.path("out.ro").touch()
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, CHECKPOINT, error)
        self.assertRegex(error, r"cannot write out/\S+: Read-only file system; the state after step \d+ is saved in .*out\.saved/checkpoints")
        [step] = self.checkpoint_steps("out.saved")
        self.train(config, "--resume", "latest", *overrides("run.out=out.saved", f"run.steps={step + 2}"))

    def test_a_server_that_does_not_answer(self):
        """A status that cannot be had for a while ends no run, and gives no folder up."""
        config = self.write_run()
        process = subprocess.Popen([EXECUTABLE, "train", config, *ENDLESS], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   env=self.environment("stale", "out"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(self._end, process)
        metrics = self.path("out/metrics.jsonl")
        self.wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
        self.path("out.off").touch()
        bytes_before = metrics.stat().st_size
        self.wait_until(lambda: metrics.stat().st_size > bytes_before + 4000, process)
        self.path("out.off").unlink()
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, REQUEUE, error)
        self.assertNotIn("warning: out", error)
        self.assertIn("warning: no checkpoint is saved for about ", error)
        self.assertEqual(len(self.checkpoint_steps()), 1)

    def test_errors_that_a_server_tells_late(self):
        """NFS tells of a failed write at fsync or close, drops the data, and tells it once."""
        config = self.write_run()
        self.train(config, *overrides("run.out=sound"))
        for fault in ("fsync", "close"):
            shutil.rmtree(self.path("out"), ignore_errors=True)
            error = self.run_with(fault, "train", config).stderr
            self.assertIn("it is tried again", error)
            self.assert_same_checkpoint(self.checkpoint(6), self.checkpoint(6, "sound"))
            self.assertIn("sound", self.succeed("checkpoint", "verify", "out"))
            for name in ("config.json", "run.json"):
                self.assertEqual(json.loads(self.path(f"out/{name}").read_text()).keys(),
                                 json.loads(self.path(f"sound/{name}").read_text()).keys())

    def test_short_reads_and_writes(self):
        text = self.path("home/a.txt")
        text.parent.mkdir()
        text.write_text("some words of a text\n" * 999, encoding="utf-8")
        config = self.write_config(tiny_config(data={"train": [{"path": "home/packed"}]}, run={"out": "home/out"}))
        for faults in ("none", "short"):
            for command in (["data", "pack", "home/a.txt", "--out", "home/packed", "--tokenizer", "bytes"],
                            ["train", config, "--steps", "3"], ["train", config, "--resume", "latest"]):
                self.run_with(faults, *command, folder="home")
            self.path("home/out").rename(self.path(faults))
        self.assert_same_checkpoint(self.checkpoint(6, "none"), self.checkpoint(6, "short"))

    def test_clocks_that_jump(self):
        config = self.write_run(checkpoint={"every_seconds": 3000, "keep_last": 9})
        self.train(config)
        self.run_with("clock", "train", config, "--set", "run.out=jumping")
        self.assert_same_steps(self.records("jumping"), self.records())
        self.assert_same_checkpoint(self.checkpoint(6), self.checkpoint(6, "jumping"))


class Folders(CliCase):
    def test_links_in_place_of_folders(self):
        config = self.write_run()
        for folder in ("disk/checkpoints", "disk/data", "real"):
            self.path(folder).mkdir(parents=True)
        for name in ("corpus.bin", "corpus.idx"):
            self.path(name).rename(self.path("disk/data") / name)
        self.path("data").symlink_to("disk/data")
        self.path("real/checkpoints").symlink_to(self.path("disk/checkpoints"))
        self.path("out").symlink_to("real")
        arguments = [config, *overrides('data.train=[{"path":"data/corpus"}]')]
        self.train(*arguments, "--steps", "3")
        self.checkpoint(3).rename(self.path("disk/third"))
        self.checkpoint(3).symlink_to(self.path("disk/third"))
        self.train(*arguments, "--resume", "latest")
        self.assertEqual(sorted(path.name for path in self.path("disk/checkpoints").iterdir()), ["step-00000003", "step-00000006"])
        self.assertTrue(self.path("out").is_symlink() and self.path("real/checkpoints").is_symlink())
        self.assertIn("sound", self.succeed("checkpoint", "verify", "out"))
        self.succeed("checkpoint", "prune", "out", "--keep-last", "1")
        self.assertEqual(self.checkpoint_steps(), [6])

    @unittest.skipUnless(may_mount(), "no mounting here")
    def test_automounted_folders(self):
        """Data and run lie on a file system that is unmounted whenever no process uses it."""
        config = self.write_run(data={"train": [{"path": "net/disk/corpus"}]}, run={"out": "net/disk/out"})
        for folder in ("net", "real/disk"):
            self.path(folder).mkdir(parents=True)
        for name in ("corpus.bin", "corpus.idx"):
            self.path(name).rename(self.path("real/disk") / name)
        commands = [["train", config, "--steps", "3"], ["train", config, "--resume"], ["checkpoint", "verify", "net/disk/out"],
                    ["data", "inspect", "net/disk/corpus"]]
        script = " && ".join(shlex.join([str(EXECUTABLE), *command]) for command in commands)
        done = subprocess.run(["unshare", "-m", sys.executable, Path(__file__).with_name("automount.py"), "net", "real", "sh", "-c",
                               script], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
        if done.returncode == 77:
            self.skipTest("no autofs in this kernel")
        self.assertEqual(done.returncode, FINISHED, done.stderr)
        self.assertIn("sound", done.stdout)
        self.assertRegex(done.stdout, r"\d+ mounts\n$")
        self.assertEqual(self.checkpoint_steps("real/disk/out"), [3, 6])

    def test_a_run_that_was_moved(self):
        config = self.write_run()
        self.train(config, "--steps", "3")
        self.path("elsewhere").mkdir()
        self.path("out").rename(self.path("elsewhere/moved"))
        self.train("elsewhere/moved/config.json", "--resume", "latest", *overrides("run.out=elsewhere/moved"))
        self.train(config, *overrides("run.out=whole"))
        self.assert_same_checkpoint(self.checkpoint(6, "elsewhere/moved"), self.checkpoint(6, "whole"))

    def test_links_that_lead_nowhere(self):
        """Files of a run stay in its folder, also when it goes on."""
        config = self.write_run()
        self.path("out").mkdir()
        names = [".lock", "metrics.jsonl", "config.json", "config.json.tmp", "run.json", "report.html",
                 "report.html.tmp", "tb"]
        for arguments in ([], ["--resume", "latest"]):
            for path in (self.path("out") / name for name in names):
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                path.symlink_to(self.path(f"stolen-{path.name}"))
            self.train(config, "--steps", "3", *arguments)
            self.assertEqual(list(self.folder.glob("stolen-*")), [])
            self.assertEqual([name for name in names if (self.path("out") / name).is_symlink()], [])
        self.assertEqual(self.checkpoint_steps(), [3, 6])

    def test_files_for_a_group(self):
        config = self.write_run()
        subprocess.run([EXECUTABLE, "train", config], cwd=self.folder, capture_output=True, check=True, umask=0o002)
        for path in [self.path("out"), *self.path("out").rglob("*")]:
            self.assertEqual(path.stat().st_mode & 0o777, 0o775 if path.is_dir() else 0o664, path)
