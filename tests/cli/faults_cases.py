"""Faults under a run: its folder disappears, its disk fills, its data change."""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import unittest

from cli_case import (CHECKPOINT, DATA, DIVERGED, EXECUTABLE, FINISHED, TIMEOUT_SECONDS, USAGE, CliCase, not_of_some_cases,
                      overrides, overwrite, tiny_config, write_tokens)
from ports import free_port

ENDLESS = overrides("run.steps=100000000")
SECRET = "a secret of 32 bytes or so"
UNMOUNTED = "gptrain: run.out = out: is no longer the run's folder: that was unmounted, or a mount hides it; "

# Mounts $PLACE in its own namespace, starts ranks, and unmounts it at the first line of input.
MOUNTS = """
set -e
mkdir -p $PLACE
mount $MOUNT $PLACE
mkdir -p $(readlink -m out)
for rank in $RANKS; do
  RANK=$rank LOCAL_RANK=$rank timeout -s KILL $SECONDS_TO_LIVE "$@" >said-$rank 2>error-$rank &
  pids="$pids $!"
done
read -r
umount -l $PLACE
for pid in $pids; do
  code=0
  wait $pid || code=$?
  echo $code
done
"""


def may_mount():
    return subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True,
                          check=False).returncode == 0


def run_under_limit(case, limit, *arguments):
    """Runs a training, and limits the size of its files from step 1 on: a limit that is too low at the start is refused
    (limits_cases.py). Returns the exit code and standard error."""
    process = case.start(*arguments)
    case.wait_until(lambda: process.stdout.readline().startswith("step 1/"), process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    _, error = process.communicate(timeout=TIMEOUT_SECONDS)
    return process.returncode, error


class Folder(CliCase):
    """The folder run.out is changed under a run."""

    def run_until(self, *arguments, act):
        """Starts an endless run and calls act() once, after its third step; returns exit code and standard error."""
        process = self.start("train", self.write_run(checkpoint={"every_steps": 1000000}), *ENDLESS, *arguments)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        process.send_signal(signal.SIGSTOP)
        act()
        process.send_signal(signal.SIGCONT)
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)
        return process.returncode, error

    def saved_step(self, out):
        self.assertIn("sound", self.succeed("checkpoint", "verify", out))
        [step] = self.checkpoint_steps(out)
        return step

    def test_renamed(self):
        for ranks in ([], ["--ranks", "2"]):
            with self.subTest(ranks=ranks):
                shutil.rmtree(self.path("moved"), ignore_errors=True)
                code, error = self.run_until(*ranks, act=lambda: self.path("out").rename(self.path("moved")))
                self.assertEqual(code, CHECKPOINT, error)
                step = self.saved_step("moved")
                self.assertIn("gptrain: run.out = out: is no longer the run's folder, which is now ", error)
                self.assertIn(f"moved; the state after step {step} is saved in ", error)
                self.assertFalse(self.path("out").exists())
                self.assertEqual(self.records("moved")[-1]["step"], step)

    def test_removed(self):
        code, error = self.run_until(act=lambda: shutil.rmtree(self.path("out")))
        self.assertEqual(code, CHECKPOINT, error)
        self.assertIn(f"gptrain: run.out = out: was removed while the run wrote to it; the state after step "
                      f"{self.saved_step('out')} is saved in out/checkpoints\n", error)

    def test_replaced(self):
        def act():
            self.path("out").rename(self.path("gone"))
            shutil.rmtree(self.path("gone"))
            self.path("out").mkdir()
            self.path("out").joinpath("mine").touch()
        code, error = self.run_until(act=act)
        self.assertEqual(code, CHECKPOINT, error)
        self.saved_step("out.saved")
        self.assertEqual(os.listdir(self.path("out")), ["mine"])

    def ranks_until(self, act, size=2):
        """Starts the processes of an endless run and calls act() after three steps; returns exit codes and standard
        errors."""
        config = self.write_run(checkpoint={"every_steps": 1000000})
        ranks = [subprocess.Popen([EXECUTABLE, "train", config, *ENDLESS], cwd=self.folder, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
                 for variables in self.variables_of_ranks(size)]
        for rank in ranks:
            self.addCleanup(self._end, rank)
        self.wait_until(lambda: ranks[0].stdout.readline().startswith("step 3/"), ranks[0])
        act()
        errors = [rank.communicate(timeout=TIMEOUT_SECONDS)[1] for rank in ranks]
        return [rank.returncode for rank in ranks], errors

    @staticmethod
    def variables_of_ranks(size):
        port = str(free_port())
        return [{**os.environ, "GPTRAIN_SECRET": SECRET, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                 "WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]

    @staticmethod
    def remove_whole(folder):
        """Removes a folder although the run makes files in it meanwhile."""
        while folder.exists():
            shutil.rmtree(folder, ignore_errors=True)

    @not_of_some_cases
    def test_renamed_or_removed_under_processes(self):
        for act, where, message in [
            (lambda: self.path("out").rename(self.path("moved")), "moved", "is no longer the run's folder, which is now "),
            # A removal may be met half-way, when run.json or config.json is written.
            (lambda: self.remove_whole(self.path("out")), "out",
             r"was removed while the run wrote to it|gptrain: cannot (replace|open) out/\w+\.json: No such file or directory"),
        ]:
            with self.subTest(where=where):
                codes, errors = self.ranks_until(act)
                self.assertEqual(codes, [CHECKPOINT, CHECKPOINT], errors)
                self.assertRegex(errors[0], f"gptrain: run.out = out: {message}")
                self.assertRegex(errors[0], rf"the state after step {self.saved_step(where)} is saved in \S*{where}/checkpoints\n$")
                self.assertNotIn("gptrain:", errors[1])

    def unmounted(self, ranks, mount, place="out"):
        """Returns the folder to which an endless run says it saved when its mount was removed."""
        config = self.write_run(checkpoint={"every_steps": 1000000})
        said = self.path("said-0")
        said.unlink(missing_ok=True)
        variables = {**self.variables_of_ranks(ranks)[0], "MOUNT": mount, "PLACE": place,
                     "RANKS": " ".join(map(str, range(ranks))), "SECONDS_TO_LIVE": str(TIMEOUT_SECONDS)}
        shell = subprocess.Popen(["unshare", "-m", "bash", "-c", MOUNTS, "bash", EXECUTABLE, "train", config, *ENDLESS],
                                 cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, env=variables)
        self.addCleanup(self._end, shell)
        self.wait_until(lambda: said.exists() and "\nstep 3/" in said.read_text(encoding="utf-8"), shell)
        codes, error = shell.communicate("now\n", timeout=TIMEOUT_SECONDS)
        errors = [self.path(f"error-{rank}").read_text(encoding="utf-8") for rank in range(ranks)]
        self.assertEqual(codes.split(), [str(CHECKPOINT)] * ranks, errors + [error])
        self.assertIn(UNMOUNTED, errors[0])
        return errors[0].split(" is saved in ")[1].strip()

    @unittest.skipUnless(may_mount(), "no mounting here")
    @not_of_some_cases
    def test_unmounted(self):
        """State on an unmounted memory file system is lost with the run; state on a disk is there when it is mounted
        again."""
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                shutil.rmtree(self.path("out"), ignore_errors=True)
                self.assertEqual(self.unmounted(ranks, "-t tmpfs none"), "out/checkpoints")
                self.saved_step("out")
                for name in ("out", "disk"):
                    shutil.rmtree(self.path(name), ignore_errors=True)
                    self.path(name).mkdir()
                kind = subprocess.run(["stat", "-f", "-c", "%T", self.folder], capture_output=True, text=True, check=True)
                in_memory = kind.stdout.strip() in ("tmpfs", "ramfs")
                self.assertEqual(self.unmounted(ranks, "--bind disk"),
                                 "out/checkpoints" if in_memory else "that folder's checkpoints")
                self.saved_step("out" if in_memory else "disk")

    @unittest.skipUnless(may_mount(), "no mounting here")
    def test_a_link_to_what_was_unmounted(self):
        os.symlink("disk/out", self.path("out"))
        self.unmounted(1, "-t tmpfs none", place="disk")
        self.saved_step("out.saved")

    def test_a_disk_that_fills_at_a_line_of_metrics(self):
        """Limits the size of files so that the metrics do not fit and the small checkpoint does."""
        config = self.write_run(run={"steps": 100000})
        self.train(config, *overrides("run.out=sized", "run.steps=1"))
        largest = max(path.stat().st_size for path in self.checkpoint(1, "sized").iterdir())
        code, error = run_under_limit(self, largest + 4096, "train", config)
        self.assertEqual(code, CHECKPOINT, error[-500:])
        self.assertRegex(error, r"gptrain: cannot write \S+: File too large; the state after step \d+ is saved in "
                         r"out/checkpoints\n$")
        self.saved_step("out")


class FullDisk(CliCase):
    """Tests with a file size limit, which the system reports like a full disk, in other words."""
    LIMIT_BYTES = 8192

    def refuse_beyond_limit(self, code, *arguments):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (self.LIMIT_BYTES, self.LIMIT_BYTES))
        done = subprocess.run([EXECUTABLE, *arguments], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=TIMEOUT_SECONDS, check=False, preexec_fn=limit)
        error = done.stderr.decode()
        self.assertEqual(done.returncode, code, f"{arguments}: {error}")
        self.assertRegex(error, r"gptrain: (.*: )?cannot write \S+: File too large", f"{arguments}")

    def test_what_data_commands_write(self):
        """Any output that does not fit gives the same exit code."""
        words = " ".join(f"w{i * i % 9973}" for i in range(20000))
        self.path("a.txt").write_text(words, encoding="utf-8")
        self.succeed("data", "pack", "a.txt", "--out", "corpus", "--tokenizer", "bytes")
        for command in (["pack", "a.txt", "--out", "made", "--tokenizer", "bytes"],
                        ["train-tokenizer", "a.txt", "--vocab-size", "700", "--out", "tokenizer.json"],
                        ["convert", "corpus", "made.npy", "--to", "npy"],
                        ["join", "corpus", "--out", "made"]):
            with self.subTest(command=command[0]):
                self.refuse_beyond_limit(DATA, "data", *command)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["a.txt", "corpus.bin", "corpus.idx", "corpus.meta.json"])

    def test_what_a_run_saves_and_exports(self):
        config = self.write_run()
        code, error = run_under_limit(self, 4096, "train", config, *overrides("run.steps=100000"))
        self.assertEqual(code, CHECKPOINT, error)
        self.assertIn("File too large", error)
        self.assertEqual(self.checkpoint_steps(), [])
        self.train(config, "--resume")
        self.refuse_beyond_limit(CHECKPOINT, "checkpoint", "export", "out", "--hf", "exported")


class Reports(CliCase):
    """A run must not lose its state because another output cannot be written."""

    def test_a_trace_that_cannot_be_written(self):
        config = self.write_run()
        (self.path("out") / "trace-step3.json").mkdir(parents=True)
        self.refuse(CHECKPOINT, "cannot replace out/trace-step3.json: Is a directory; the state after step 3 is saved in ",
                    "train", config, "--profile-step", "3")
        self.assertEqual(self.checkpoint_steps(), [3])

    def test_a_page_that_cannot_be_written_hides_no_divergence(self):
        # Decay multiplies the weights by 1 - 10 * 10 each step, until they overflow.
        config = self.write_run(run={"steps": 100, "max_skipped_steps": 2}, optimizer={"lr": 10, "weight_decay": 10})
        (self.path("out") / "report.html.tmp").mkdir(parents=True)
        self.refuse(DIVERGED, "training diverged", "train", config)


class Metrics(CliCase):
    def test_lines_that_cannot_be_read_are_kept_aside(self):
        config = self.write_run()
        self.train(config, "--steps", "4")
        path = self.path("out") / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        damaged = [lines[1].replace(":", "\0", 1), "]", '{"loss": 1}']
        path.write_text("\n".join([lines[0], *damaged, lines[2], lines[3], '{"step": 5, "lo']), encoding="utf-8")
        result = self.run_gptrain("train", config, "--resume")
        self.assertEqual(result.code, FINISHED, result.err)
        self.assertIn("warning: out/metrics.jsonl: 3 lines cannot be read; kept in out/metrics.jsonl.unreadable\n",
                      result.err)
        self.assertEqual([record["step"] for record in self.records()], [1, 3, 4, 5, 6])
        self.assertEqual(path.with_name("metrics.jsonl.unreadable").read_text(encoding="utf-8").splitlines(), damaged)


class Data(CliCase):
    def pack(self, text="abcdefgh" * 1000):
        self.path("a.txt").write_text(text, encoding="utf-8")
        self.succeed("data", "pack", "a.txt", "--out", "made/in/here/corpus", "--tokenizer", "bytes")
        return self.path("made/in/here/corpus")

    def test_pack_makes_the_folder_and_the_checksums(self):
        prefix = self.pack()
        meta = json.loads(prefix.with_name("corpus.meta.json").read_text(encoding="utf-8"))
        self.assertEqual((meta["bytes"], meta["tokens"], meta["block_bytes"], len(meta["crc32c"])),
                         (16002, 8001, 2**26, 1))
        name = prefix.relative_to(self.folder)
        self.assertEqual(self.succeed("data", "verify", name), f"{name}: 1 document, 8,001 tokens: sound\n")
        prefix.with_name("corpus.meta.json").unlink()
        self.assertIn("no .meta.json with checksums", self.succeed("data", "verify", name))

    def test_a_bit_that_fell_over(self):
        prefix = self.pack()
        name = prefix.relative_to(self.folder)
        data = prefix.with_name("corpus.bin").read_bytes()
        overwrite(f"{prefix}.bin", 8000, bytes([data[8000] ^ 1]))
        said = f"{name}.bin, byte 0: the 16002 bytes from here on do not have the checksum in its .meta.json"
        config = self.write_config(tiny_config(data={"train": [{"path": str(name)}]}))
        for command in (["data", "verify", name], ["data", "inspect", name], ["train", config]):
            err = self.refuse(DATA, said, *command)
        # The samples of the block cannot be left out one by one.
        self.assertIn("; restore the file or pack it again, or set data.checksums = false", err)
        self.assertNotIn("skip_samples", err)
        self.train(config, *overrides("data.checksums=false"))

    def test_checksums_of_another_file(self):
        prefix = self.pack()
        meta = prefix.with_name("corpus.meta.json")
        text = meta.read_text(encoding="utf-8")
        name = prefix.relative_to(self.folder)
        for changed, message in [
            (text.replace("16002", "16004"), "has 16002 bytes, its .meta.json says 16004"),
            (text.replace("gptrain tokens", "x"), "corpus.meta.json cannot be used"),
            (text.replace('"crc32c": [', '"crc32c": ["00000000",'), "its number of blocks does not fit"),
            (text[:40], "corpus.meta.json cannot be used"), ("[" * 100_000, "nested deeper than 64 levels"),
            (text.replace("16002", "-1"), "corpus.meta.json cannot be used"),
        ]:
            meta.write_text(changed, encoding="utf-8")
            with self.subTest(changed=changed[:50]):
                self.assertNotIn("json.exception", self.refuse(DATA, message, "data", "verify", name))

    def test_a_file_cut_short_while_it_is_read(self):
        # The missing part of a page reads as zeros, missing pages give a signal.
        for num_tokens, kept_bytes in ((400_000, 4096), (1500, 100)):
            shutil.rmtree(self.path("out"), ignore_errors=True)
            self.write_corpus(num_tokens=num_tokens)
            process = self.start("train", self.write_config(tiny_config()), *ENDLESS)
            self.wait_until(lambda p=process: p.stdout.readline().startswith("step 3/"), process)
            os.truncate(self.path("corpus.bin"), kept_bytes)
            _, error = process.communicate(timeout=TIMEOUT_SECONDS)
            self.assertEqual(process.returncode, DATA, error)
            self.assertRegex(error, r"gptrain: step \d+: corpus\.bin, byte \d+: cannot be read: the file was cut short while it was open")
            self.assertEqual(len(self.checkpoint_steps()), 1)

    def test_the_index_of_a_multimodal_dataset(self):
        write_tokens(self.path("images"), list(range(60)), sequence_lengths=[20, 30, 10])
        with open(self.path("images.idx"), "ab") as file:
            file.write(struct.pack("<3b", 0, 1, 0))
        self.refuse(DATA, "the index of a multimodal dataset, with a mode for each of 3 sequences: gptrain trains on text",
                    "data", "inspect", "images")
        with open(self.path("images.idx"), "ab") as file:
            file.write(b"\0")
        self.refuse(DATA, "truncated or damaged", "data", "inspect", "images")


class InitialState(CliCase):
    def test_no_steps(self):
        config = self.write_run()
        self.assertIn("done: step 0", self.train(config, "--steps", "0"))
        self.assertEqual(self.checkpoint_steps(), [0])
        self.assertIn("sound", self.succeed("checkpoint", "verify", "out"))
        self.refuse(USAGE, "holds checkpoints", "train", config)
        self.assertIn("(step 0)", self.train(config, "--resume"))
        self.train(config, *overrides("run.out=whole"))
        self.assert_same_steps(self.records(), self.records("whole"))
        self.assert_same_checkpoint(self.checkpoint(6), self.checkpoint(6, "whole"))
