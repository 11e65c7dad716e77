#!/usr/bin/env python3
"""Asynchronous checkpoints from clones of working files, on images of XFS and Btrfs: bytes, kills, full disks.

Run as test_disk_clones.py GPTRAIN CORE LAYOUTS [options of unittest]; CORE and LAYOUTS are the test programs with cases
[.clones]. Needs root, loop devices, mkfs.xfs and mkfs.btrfs: exits with 77 without them.
"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import test_crash
from test_crash import gptrain, read_safetensors, wait_for, write_corpus

SKIPPED, CHECKPOINT = 77, 4
STEPS = 8
IMAGE_BYTES = 400 << 20  # mkfs.xfs makes no file system below 300 MB
FILE_SYSTEMS = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"], "ext4": ["mkfs.ext4", "-q"]}
IN_NAMESPACE = "GPTRAIN_CLONES_IN_NAMESPACE"
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"  # mkfs is not on the path of every user
options = argparse.Namespace()


def overrides(*settings):
    return [word for setting in settings for word in ("--set", setting)]


def obstacle():
    """Returns why this machine cannot mount the images; empty if it can."""
    for make, *_ in FILE_SYSTEMS.values():
        if shutil.which(make, path=PATH) is None:
            return f"{make} is missing (tools/setup.sh --tests)"
    with tempfile.TemporaryDirectory(prefix="gptrain-clones-") as folder:
        for kind in FILE_SYSTEMS:
            if why := mount(kind, Path(folder)):
                return why
            subprocess.run(["umount", Path(folder) / kind], check=False)
    return ""


def mount(kind, folder):
    """Mounts a new file system at folder/KIND; returns the reason if that fails."""
    image, place = folder / f"{kind}.img", folder / kind
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    for command in ([*FILE_SYSTEMS[kind], image], ["mount", "-o", "loop", image, place]):
        done = subprocess.run(command, env={**os.environ, "PATH": PATH}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{command[0]}: {done.stderr.strip()}"
    return ""


def states_of(out):
    """Returns the tensors of all checkpoints, by step and file."""
    return {folder.name: {path.name: read_safetensors(path) for path in sorted(folder.glob("rank-*.safetensors"))}
            for folder in sorted((out / "checkpoints").glob("step-*"))}


class Clones(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="gptrain-clones-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        for kind in FILE_SYSTEMS:
            self.assertEqual(mount(kind, self.folder), "")
            self.addCleanup(subprocess.run, ["umount", self.folder / kind], check=False)
        write_corpus(self.folder / "text", random.Random(3), 4000)
        packed = gptrain("data", "pack", self.folder / "text", "--tokenizer", "bytes", "--out", self.folder / "train")
        self.assertEqual(packed.returncode, 0, packed.stderr)
        config = {"model": {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "vocab_size": 257, "sequence_length": 24},
                  "data": {"train": [{"path": str(self.folder / "train")}]},
                  "batch": {"global": 8, "micro": 2},
                  "precision": {"compute": "bf16"},
                  "optimizer": {"lr": 2e-3},
                  "checkpoint": {"every_steps": 1, "keep_last": STEPS, "asynchronous": False},
                  "run": {"steps": STEPS, "seed": 11, "threads": 1, "device": "cpu"}}
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps(config), encoding="utf-8")

    def settings(self, kind, out, clones="always"):
        return overrides(f"run.out={self.folder / out}", "memory.offload_optimizer=disk", f"memory.disk_clones={clones}",
                         f"memory.disk_path={self.folder / kind}", "checkpoint.asynchronous=true")

    def train(self, *arguments, code=0):
        done = gptrain("train", self.config, *arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def assert_same_states(self, out, expected):
        found, wanted = states_of(self.folder / out), states_of(self.folder / expected)
        self.assertEqual(list(found), list(wanted))
        for step, files in wanted.items():
            self.assertEqual([name for name in files if files[name] != found[step][name]], [], step)

    def assert_free_again(self, kind, before):
        """No name is left, and no space is taken by files without a name."""
        self.assertEqual([path.name for path in (self.folder / kind).glob("gptrain*")], [])
        deadline = time.monotonic() + 60
        while shutil.disk_usage(self.folder / kind).used > before + (2 << 20) and time.monotonic() < deadline:
            os.sync()
            time.sleep(0.2)
        self.assertLessEqual(shutil.disk_usage(self.folder / kind).used, before + (2 << 20))

    def kinds(self):
        for kind in ("xfs", "btrfs"):
            with self.subTest(kind):
                yield kind

    def test_cases_of_the_programs(self):
        """The values of a clone stay when later steps write the files."""
        for kind in self.kinds():
            for program in (options.core, options.layouts):
                done = subprocess.run([program, "[.clones]"], env={**os.environ, "TMPDIR": str(self.folder / kind)},
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_bytes_of_synchronous_saves(self):
        for ranks, settings in ((1, ()),
                                (1, ("memory.offload_parameters=disk", "memory.offload_gradients=disk")),
                                (2, ("parallel.zero=3", "memory.offload_parameters=disk", "memory.offload_gradients=disk",
                                     "precision.compute=fp32")),
                                (2, ("parallel.zero=1", "memory.offload_optimizer_share=0.5", "optimizer.type=adamw-8bit"))):
            in_memory = [word for word in settings if "offload" not in word]
            name = f"whole-{ranks}-{len(settings)}"
            self.train("--ranks", ranks, *overrides(f"run.out={self.folder / name}", *in_memory))
            for kind in self.kinds():
                out = f"{kind}-{name}"
                before = shutil.disk_usage(self.folder / kind).used
                text = self.train("--ranks", ranks, *self.settings(kind, out, "auto"), *overrides(*settings), "--steps", 5)
                text += self.train("--ranks", ranks, *self.settings(kind, out), *overrides(*settings), "--resume")
                self.assertNotIn("to memory", text)
                self.assert_same_states(out, name)
                self.assert_free_again(kind, before)

    def test_the_dry_run_counts_disk_and_no_memory(self):
        for kind in self.kinds():
            plans = {clones: json.loads(self.train("--dry-run", "--json", *self.settings(kind, "out", clones)))
                     for clones in ("auto", "always", "never")}
            self.assertEqual(plans["auto"], plans["always"])
            cloned, copied = plans["always"], plans["never"]
            state = cloned["disk_moments_bytes"] + cloned["disk_master_bytes"]
            self.assertEqual(cloned["disk_snapshot_bytes"], state)
            self.assertNotIn("disk_snapshot_bytes", copied)
            # The memory has some blocks that are read, of at most the largest unit's size.
            self.assertLess(cloned["snapshot_bytes"] - (4 << 20), 4 * state)
            larger = overrides("model.hidden_size=1024", "model.num_heads=8")
            cloned, copied = (json.loads(self.train("--dry-run", "--json", *self.settings(kind, "out", clones), *larger))
                              for clones in ("always", "never"))
            self.assertEqual(cloned["snapshot_bytes"], (4 + 3 * 4) << 20)  # a buffer for writing, and a block of each column
            self.assertGreater(copied["snapshot_bytes"], 12 * cloned["total_parameters"])

    def test_kills_while_a_checkpoint_is_written(self):
        self.train(*overrides(f"run.out={self.folder / 'whole'}"))
        draw = random.Random(5)
        for kind in self.kinds():
            before = shutil.disk_usage(self.folder / kind).used
            checkpoints = self.folder / f"killed-{kind}" / "checkpoints"
            for _ in range(4):
                command = [options.gptrain, "train", self.config, *self.settings(kind, f"killed-{kind}"), "--resume", "latest"]
                with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
                    wait_for(process, lambda: any(checkpoints.glob(".tmp-*")))
                    time.sleep(draw.uniform(0, 0.01))
                    process.send_signal(signal.SIGKILL)
                for folder in checkpoints.glob("step-*"):
                    verified = gptrain("checkpoint", "verify", folder)
                    self.assertEqual(verified.returncode, 0, verified.stderr)
                self.assert_free_again(kind, before)
            self.train(*self.settings(kind, f"killed-{kind}"), "--resume", "latest")
            self.assertEqual(states_of(checkpoints.parent)[f"step-{STEPS:08}"],
                             states_of(self.folder / "whole")[f"step-{STEPS:08}"])

    def fill(self, kind, leaves=0):
        """Takes all space of a file system but `leaves` bytes, as far as it can be had."""
        with open(self.folder / kind / "full", "ab") as file:
            while (size := shutil.disk_usage(self.folder / kind).free - leaves) >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError:  # not all that is free is for data
                    leaves += max(size // 2, 4096)

    def test_a_full_disk(self):
        """Clones that have no room are refused at the start. A disk that fills later ends the run, not its checkpoints."""
        large = overrides("model.hidden_size=512", "model.num_heads=4")
        plan = json.loads(self.train("--dry-run", "--json", *self.settings("xfs", "out"), *large))
        state = plan["disk_snapshot_bytes"]
        for kind in self.kinds():
            self.fill(kind, state + state // 2)
            text = self.train(*self.settings(kind, f"full-{kind}"), *large, code=CHECKPOINT)
            self.assertIn("of clones of working files, beside these (memory.disk_clones = \"never\" takes none)", text)
            (self.folder / kind / "full").unlink()
            os.sync()
            self.train(*self.settings(kind, f"full-{kind}"), *large, "--steps", 2)
            command = [options.gptrain, "train", self.config, *self.settings(kind, f"full-{kind}"), *large, "--resume",
                       *overrides("run.steps=1000000", "checkpoint.keep_last=2")]
            log = self.folder / f"log-{kind}"
            with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
                wait_for(process, lambda: "step 3/" in log.read_text(encoding="utf-8"))
                # Takes the space of each clone that goes, too.
                wait_for(process, lambda: self.fill(kind))
            self.assertEqual(process.returncode, CHECKPOINT, log.read_text(encoding="utf-8"))
            self.assertRegex(log.read_text(encoding="utf-8"), r"cannot write the working file \S+ \(optimizer state of unit \d.*: No space left on device")
            (self.folder / kind / "full").unlink()
            os.sync()
            # Goes on from the last checkpoint, with the bytes of a run that was not disturbed.
            last = max(int(path.name[5:]) for path in (self.folder / f"full-{kind}/checkpoints").glob("step-*"))
            steps = overrides(f"run.steps={last + 2}")
            self.train(*self.settings(kind, f"full-{kind}"), *large, *steps, "--resume")
            self.train(*overrides(f"run.out={self.folder / 'whole'}-{kind}", "checkpoint.every_steps=0"), *large, *steps)
            step = f"step-{last + 2:08}"
            self.assertEqual(states_of(self.folder / f"full-{kind}")[step], states_of(self.folder / f"whole-{kind}")[step])

    def test_a_file_system_that_cannot(self):
        text = self.train(*self.settings("ext4", "refused"), code=CHECKPOINT)
        self.assertIn(f"memory.disk_clones: cannot clone a working file in {self.folder / 'ext4'}: ", text)
        self.assertIn("(\"auto\" copies the state to memory instead)", text)
        text = self.train(*self.settings("ext4", "copied", "auto"))
        self.assertIn("checkpoints copy the state on disk to memory: memory.disk_clones: cannot clone", text)
        both = overrides(f"memory.disk_path={self.folder / 'xfs'}:{self.folder / 'ext4'}")
        self.assertIn("cannot clone", self.train(*self.settings("xfs", "refused"), *both, code=CHECKPOINT))
        self.train(*overrides(f"run.out={self.folder / 'whole'}"))
        self.assert_same_states("copied", "whole")


def main():
    parser = argparse.ArgumentParser()
    for program in ("gptrain", "core", "layouts"):
        parser.add_argument(program)
    parser.parse_known_args(namespace=options)
    test_crash.options = options
    if IN_NAMESPACE not in os.environ:  # mounts in a namespace of their own end with this process, however it ends
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            print("skipped: only root may mount images of file systems")
            return SKIPPED
        os.execvpe("unshare", ["unshare", "-m", sys.executable, *sys.argv], {**os.environ, IN_NAMESPACE: "yes"})
    if why := obstacle():
        print(f"skipped: {why}")
        return SKIPPED
    _, rest = parser.parse_known_args()
    return 0 if unittest.main(argv=[sys.argv[0], *rest], exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
