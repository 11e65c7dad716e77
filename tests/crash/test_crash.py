#!/usr/bin/env python3
"""Kills, stops and damages runs of a tiny model, then requires the bits of an undisturbed run.

Run as test_crash.py GPTRAIN [--rounds N] [--seed N] [options of unittest].
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from busy import slowness

# In the background of a script SIGINT is ignored, and the programs that are started here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

STEPS = 36
KEEP_LAST = 2
VALIDATE_EVERY = 5
PROCESS_TIMEOUT_SECONDS = 120 * slowness()

VARIANTS = {
    "fp32": {
        "model": {},
        "precision": {"compute": "fp32"},
        "checkpoint": {"every_steps": 1, "keep_last": KEEP_LAST},
    },
    "bf16": {
        "model": {"norm": "rmsnorm", "activation": "swiglu", "positions": "rope", "num_kv_heads": 1,
                  "tied_head": False},
        "precision": {"compute": "bf16", "residual": "fp32"},
        # Optimizer state, weights and gradients on disk: the last checkpoint stays valid however the run ends.
        "memory": {"recompute": "every_nth", "recompute_interval": 2, "offload_optimizer": "disk",
                   "offload_parameters": "disk", "offload_gradients": "disk", "disk_path": tempfile.gettempdir()},
        "checkpoint": {"every_steps": 3, "keep_last": KEEP_LAST, "asynchronous": False},
    },
}

# Fields of a step's record that describe the training; the rest are times and speeds.
REPRODUCIBLE = ("step", "loss", "grad_norm", "lr", "tokens", "samples", "skipped", "validation_loss")
COUNTERS = ("step", "samples", "updates", "skipped", "skipped_in_a_row", "seed", "world_size", "tensors")
RUN_FILES = re.compile(r"\.lock|checkpoints|(config\.json|run\.json|metrics\.jsonl|report\.html)(\.tmp)?|"
                       r"(metrics\.jsonl|report\.html|tb)\.old-\d+|tb")
STEP_FOLDER = re.compile(r"step-(\d{8,})")

# Waiting threads do not spin: many times faster on a busy machine, with the same results.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}

options = argparse.Namespace()


def write_corpus(path, random_numbers, num_words):
    vocabulary = ["".join(random_numbers.choices("abcdefghijklmnop", k=random_numbers.randint(1, 6)))
                  for _ in range(60)]
    path.write_text(" ".join(random_numbers.choices(vocabulary, k=num_words)), encoding="utf-8")


def gptrain(*arguments):
    """Runs GPTRAIN to its end."""
    return subprocess.run([options.gptrain, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=PROCESS_TIMEOUT_SECONDS, check=False, env=ENVIRONMENT)


def read_safetensors(path):
    """Returns {name: (dtype, shape, bytes)} of every entry."""
    content = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", content)
    data = content[8 + header_bytes:]
    tensors = {}
    for name, entry in json.loads(content[8:8 + header_bytes]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors


class Run:
    """A run's folder and its config."""

    def __init__(self, folder, variant, corpus):
        self.out = folder / "out"
        self.log = folder / "log.txt"
        self.config_path = folder / "config.json"
        folder.mkdir()
        config = dict(VARIANTS[variant])
        config["model"] = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "vocab_size": 257,
                           "sequence_length": 24, "dropout": 0.1, **config["model"]}
        config["data"] = {"train": [{"path": str(corpus / "train")}], "validation": [{"path": str(corpus / "heldout")}]}
        config["batch"] = {"global": 6, "micro": 2}
        config["optimizer"] = {"lr": 2e-3}
        config["schedule"] = {"type": "cosine", "warmup_steps": 4, "min_lr": 1e-4}
        config["run"] = {"steps": STEPS, "seed": 11, "out": str(self.out), "threads": 2,
                         "validate_every_steps": VALIDATE_EVERY, "validation_samples": 4}
        self.save_every = config["checkpoint"]["every_steps"]
        self.asynchronous = config["checkpoint"].get("asynchronous", True)
        self.config_path.write_text(json.dumps(config), encoding="utf-8")

    def train(self, *arguments):
        return gptrain("train", self.config_path, *arguments)

    def start(self):
        """Starts a process that resumes from the newest checkpoint, if there is one."""
        with self.log.open("w", encoding="utf-8") as log:
            return subprocess.Popen([options.gptrain, "train", str(self.config_path), "--resume", "latest"],
                                    stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT)

    def checkpoint_entries(self):
        try:
            return set(os.listdir(self.out / "checkpoints"))
        except FileNotFoundError:
            return set()

    def saved_steps(self):
        return sorted(int(match.group(1)) for match in map(STEP_FOLDER.fullmatch, self.checkpoint_entries()) if match)

    def newest_step(self):
        return max(self.saved_steps(), default=0)

    def checkpoint(self, step):
        return self.out / "checkpoints" / f"step-{step:08}"

    def temporaries(self):
        return {name for name in self.checkpoint_entries() if name.startswith(".tmp-")}

    def has_manifest_in_temporary(self):
        return any((self.out / "checkpoints" / name / "manifest.json").exists() for name in self.temporaries())

    def records(self):
        """Returns the reproducible part of metrics.jsonl, in order, with numbers as written.

        A killed or still running process may leave a partial last line."""
        path = self.out / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        records = [json.loads(line, parse_float=str, parse_int=str) for line in lines]
        return [{key: record[key] for key in REPRODUCIBLE if key in record} for record in records]

    def announced_step(self):
        """Returns the last step that the log reports as saved; 0: none."""
        log = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return max(map(int, re.findall(r"^checkpoint of step (\d+) saved in .*\n", log, re.MULTILINE)), default=0)

    def last_logged_step(self):
        return max((int(record["step"]) for record in self.records()), default=0)


def validations(records):
    return {record["step"]: record["validation_loss"] for record in records if "validation_loss" in record}


def steps_only(records):
    return [record for record in records if "loss" in record]


def wait_for(process, condition):
    """Waits for a condition; returns False if the process ends first."""
    deadline = time.monotonic() + PROCESS_TIMEOUT_SECONDS
    while not condition():
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            process.kill()
            raise TimeoutError(f"process {process.pid} neither ends nor does what was waited for")
        time.sleep(20e-6)
    return True


def interrupt_until_it_ends(process):
    deadline = time.monotonic() + PROCESS_TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    return process.poll() is not None


def catches(process, number):
    """Returns True if the process has a handler for signal NUMBER."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught.group(1), 16) >> (number - 1) & 1)


class Killer:
    """Kills a process at a random kind of moment."""

    def __init__(self, random_numbers, startup_seconds, step_seconds):
        self.random = random_numbers
        self.startup_seconds = startup_seconds
        self.step_seconds = step_seconds  # saving included
        self.kills = {moment: 0 for moment in ("startup", "step", "saving", "manifest", "published")}
        self.kills_with_temporary = 0
        self.moments = []  # still to come before kinds repeat

    def wait(self, process, run):
        """Waits for the moment and returns it; None if the process ended first."""
        if not self.moments:
            self.moments = self.random.sample(list(self.kills), k=len(self.kills))
        moment = self.moments.pop()
        if moment == "startup":
            time.sleep(self.random.uniform(0, self.startup_seconds))
        elif not wait_for(process, self._condition(moment, run)):
            return None
        elif moment == "step" or self.random.random() < 0.5:
            time.sleep(self.random.uniform(0, self.step_seconds * (4 if moment == "step" else 1)))
        return moment

    def count(self, moment, run):
        """Counts a kill at that moment."""
        self.kills[moment] += 1
        self.kills_with_temporary += bool(run.temporaries())

    def kill(self, process, run):
        """Kills the process; returns False if it ended first."""
        moment = self.wait(process, run)
        if moment is None:
            return False
        process.kill()
        if process.wait(PROCESS_TIMEOUT_SECONDS) != -signal.SIGKILL:
            return False
        self.count(moment, run)
        return True

    def _condition(self, moment, run):
        first_step = run.newest_step() + self.random.randint(1, 2 * run.save_every)
        return {
            "step": lambda: run.log.stat().st_size > 0,
            "saving": lambda: run.newest_step() >= first_step - run.save_every and run.temporaries(),
            "manifest": lambda: run.newest_step() >= first_step - run.save_every and run.has_manifest_in_temporary(),
            "published": lambda: run.newest_step() >= first_step,
        }[moment]


class CrashTest(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="gptrain-crash-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        random_numbers = random.Random(options.seed)
        for name, num_words in (("train", 2000), ("heldout", 200)):
            text = cls.folder / f"{name}.txt"
            write_corpus(text, random_numbers, num_words)
            packed = gptrain("data", "pack", text, "--out", cls.folder / name, "--tokenizer", "bytes")
            if packed.returncode != 0:
                raise RuntimeError(f"data pack: {packed.stderr}")
        cls.references = {}
        cls.startup_seconds = 0
        cls.step_seconds = 0
        for variant in VARIANTS:
            run = Run(cls.folder / f"reference-{variant}", variant, cls.folder)
            start = time.monotonic()
            process = run.start()
            wait_for(process, lambda r=run: r.log.stat().st_size > 0)
            stepping = time.monotonic()
            if process.wait(PROCESS_TIMEOUT_SECONDS) != 0:
                raise RuntimeError(f"train: {run.log.read_text(encoding='utf-8')}")
            cls.startup_seconds = max(cls.startup_seconds, stepping - start)
            cls.step_seconds = max(cls.step_seconds, (time.monotonic() - stepping) / STEPS)
            cls.references[variant] = run

    def new_run(self, name, variant):
        return Run(self.folder / name, variant, self.folder)

    def assert_same_state(self, run, variant):
        """Checks that the last checkpoint has the reference's bits."""
        reference = self.references[variant]
        self.assertEqual(run.newest_step(), STEPS)
        ours, theirs = run.checkpoint(STEPS), reference.checkpoint(STEPS)
        manifests = [json.loads((path / "manifest.json").read_text(encoding="utf-8")) for path in (ours, theirs)]
        self.assertEqual(*({counter: manifest[counter] for counter in COUNTERS} for manifest in manifests))
        tensors, expected = (read_safetensors(path / "rank-00000.safetensors") for path in (ours, theirs))
        self.assertEqual(tensors.keys(), expected.keys())
        self.assertEqual({name.split("/")[0] for name in expected}, {"weight", "exp_avg", "exp_avg_sq"})
        self.assertEqual([name for name in expected if tensors[name] != expected[name]], [], "tensors that differ")

    def assert_same_run(self, run, variant):
        """Checks that checkpoint, metrics and folders are the reference's."""
        self.assert_same_state(run, variant)
        self.assertEqual(run.records(), self.references[variant].records())
        self.assertEqual(run.temporaries(), set())
        # A stop saves a checkpoint of its own, so the last but one may differ.
        self.assertEqual(run.newest_step(), STEPS)
        self.assertEqual(len(run.saved_steps()), len(self.references[variant].saved_steps()))
        self.assertTrue((run.out / "report.html").exists(), "no report.html")

    def assert_complete(self, run, step):
        checkpoint = run.checkpoint(step)
        self.assertEqual(sorted(os.listdir(checkpoint)), ["manifest.json", "rank-00000.safetensors"])
        verified = gptrain("checkpoint", "verify", checkpoint)
        self.assertEqual(verified.returncode, 0, verified.stderr)
        self.assertIn(checkpoint.name, verified.stdout)

    def test_reference_is_what_the_others_need(self):
        for variant, run in self.references.items():
            records = run.records()
            self.assertEqual([int(record["step"]) for record in steps_only(records)], list(range(1, STEPS + 1)))
            expected = [step for step in range(1, STEPS + 1) if step % VALIDATE_EVERY == 0 or step == STEPS]
            self.assertEqual([int(step) for step in validations(records)], expected)
            losses = {record["loss"] for record in steps_only(records)}
            self.assertEqual(len(losses), STEPS, f"{variant}: the model does not change")
            self.assertEqual(len(run.saved_steps()), KEEP_LAST)
            self.assert_complete(run, STEPS)

    def check_after_kill(self, run, resumed_from, entries_before):
        """Checks that the newest checkpoint is sound, and that this crash explains everything lost or left over."""
        if not run.out.exists():
            return
        for name in os.listdir(run.out):
            self.assertRegex(name, f"^({RUN_FILES.pattern})$", "an unexpected file in the run's folder")
        temporaries = run.temporaries()
        for name in run.checkpoint_entries() - temporaries:
            self.assertRegex(name, f"^{STEP_FOLDER.pattern}$", "an unexpected entry beside the checkpoints")
        saved = run.saved_steps()
        for step in saved:
            self.assert_complete(run, step)
        # A step starts only after the preceding save and its clean-up; if saves run beside the steps, after the one
        # before that.
        last = run.last_logged_step()
        saves_complete = (last - 1) // run.save_every - (1 if run.asynchronous else 0)
        last_due = max(saves_complete * run.save_every, 0)
        self.assertGreaterEqual(run.newest_step(), max(resumed_from, last_due), f"too much is lost of {last} steps")
        self.assertGreaterEqual(run.newest_step(), run.announced_step(), "what was announced as saved is lost")
        if last_due > resumed_from:
            entries_before = set()
        new_temporaries = temporaries - entries_before
        self.assertLessEqual(len(new_temporaries), 1, f"{new_temporaries}: more than the one being written or deleted")
        num_before = sum(1 for name in entries_before if STEP_FOLDER.fullmatch(name))
        self.assertLessEqual(len(saved), max(num_before, KEEP_LAST) + 1, saved)

    def kill_until_finished(self, run, killer, num_kills):
        """Resumes and kills until the run is finished or the killer has made NUM_KILLS."""
        # Looks like the leftover of an old crash, of a step that this run does not reach.
        leftover = run.out / "checkpoints" / f".tmp-step-{STEPS + 1:08}"
        leftover.mkdir(parents=True)
        (leftover / "rank-00000.safetensors").write_bytes(b"half a fi")
        while sum(killer.kills.values()) < num_kills:
            resumed_from, entries = run.newest_step(), run.checkpoint_entries()
            process = run.start()
            if not killer.kill(process, run):
                self.assertEqual(process.returncode, 0, run.log.read_text(encoding="utf-8"))
                return
            self.check_after_kill(run, resumed_from, entries)
        finished = run.train("--resume", "latest")
        self.assertEqual(finished.returncode, 0, finished.stderr)

    def kill_many_times(self, variant, num_kills):
        killer = Killer(random.Random(f"{options.seed} {variant}"), self.startup_seconds, self.step_seconds)
        num_runs = 0
        while sum(killer.kills.values()) < num_kills:
            self.assertLess(num_runs, num_kills, "the runs end before they can be killed")
            run = self.new_run(f"killed-{variant}-{num_runs}", variant)
            self.kill_until_finished(run, killer, num_kills)
            self.assert_same_run(run, variant)
            num_runs += 1
        print(f"{variant}: {num_runs} runs, killed by moment: {killer.kills}")
        # A few kills may all miss a save.
        if num_kills >= 10:
            self.assertGreater(killer.kills_with_temporary, 0, "no kill fell into saving")

    def test_kill_at_any_moment_saving_every_step(self):
        self.kill_many_times("fp32", options.rounds - options.rounds // 2)

    def test_kill_at_any_moment_saving_every_third_step(self):
        self.kill_many_times("bf16", options.rounds // 2)

    def test_kill_after_the_last_checkpoint(self):
        """All steps are done and saved: the next process still leaves a complete finished run."""
        run = self.new_run("killed-at-the-end", "fp32")
        process = run.start()
        self.assertTrue(wait_for(process, lambda: run.newest_step() == STEPS))
        process.kill()
        process.wait(PROCESS_TIMEOUT_SECONDS)
        finished = run.train("--resume", "latest")
        self.assertEqual(finished.returncode, 0, finished.stderr)
        self.assertIn(f"step {STEPS} of {STEPS} is done", finished.stdout)
        self.assert_same_run(run, "fp32")

    def test_start_over_is_refused_once_something_is_saved(self):
        run = self.new_run("started-over", "fp32")
        self.assertEqual(run.train("--steps", 3).returncode, 0)
        before = run.records()
        again = run.train()
        self.assertEqual(again.returncode, 2)
        self.assertIn("--resume latest", again.stderr)
        self.assertEqual((run.saved_steps(), run.records()), ([2, 3], before))

    def test_stop_by_signal_at_any_moment(self):
        random_numbers = random.Random(options.seed)
        num_stops = 0
        for number in range(options.rounds):
            variant = list(VARIANTS)[number % len(VARIANTS)]
            run = self.new_run(f"stopped-{number}", variant)
            while self.stop_once(run, random_numbers):
                num_stops += 1
            self.assert_same_run(run, variant)
            if num_stops >= options.rounds // 3:
                break
        self.assertGreaterEqual(num_stops, options.rounds // 3, "most runs end before they can be stopped")

    def stop_once(self, run, random_numbers):
        """Stops the run; returns False if it finished first."""
        stop = random_numbers.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
        process = run.start()
        self.assertTrue(wait_for(process, lambda: catches(process, stop)))
        before = run.last_logged_step()
        if random_numbers.random() < 0.8:  # the others may come before the first step, without progress
            wait_for(process, lambda: run.last_logged_step() != before)
        time.sleep(random_numbers.uniform(0, self.step_seconds * 12))
        process.send_signal(stop)
        code = process.wait(PROCESS_TIMEOUT_SECONDS)
        log = run.log.read_text(encoding="utf-8")
        self.assertIn(code, (0, 75), log)
        self.assertEqual(run.temporaries(), set())
        if code == 0:
            self.assertEqual(run.newest_step(), STEPS)
            return False
        step = run.newest_step()
        self.assertIn(f"stopped by {stop.name} after step {step};", log)
        self.assertEqual(run.last_logged_step(), step, "a stop saves every step that was done")
        self.assert_complete(run, step)
        return True

    def test_second_signal_ends_at_once(self):
        """Signals that wait for a stopped process arrive together, SIGINT first: one request. A later SIGINT ends it."""
        run = self.new_run("stopped-twice", "fp32")
        codes = []
        for _ in range(5):
            process = run.start()
            self.assertTrue(wait_for(process, lambda p=process: catches(p, signal.SIGUSR1)))
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
                process.send_signal(number)
            self.assertTrue(interrupt_until_it_ends(process))
            codes.append(process.wait(PROCESS_TIMEOUT_SECONDS))
        self.assertLessEqual(set(codes), {75, 128 + signal.SIGINT})
        self.assertEqual(run.train("--resume", "latest").returncode, 0)
        self.assert_same_run(run, "fp32")

    def test_stop_by_steps_and_changed_settings(self):
        """The frequency of logs, validations and saves does not affect the bits."""
        for variant, reference in self.references.items():
            with self.subTest(variant=variant):
                run = self.new_run(f"changed-{variant}", variant)
                parts = [["--steps", 7],
                         ["--steps", 6, "--set", "log.every_steps=3", "--set", "checkpoint.every_steps=0"],
                         ["--steps", 1, "--set", "run.validate_every_steps=2", "--set", "checkpoint.keep_last=1"],
                         ["--set", "log.every_steps=4", "--set", "checkpoint.every_steps=7"]]
                for part in parts:
                    done = run.train("--resume", "latest", *part)
                    self.assertEqual(done.returncode, 0, done.stderr)
                self.assert_same_state(run, variant)
                expected = {record["step"]: record for record in steps_only(reference.records())}
                logged = [*range(1, 8), 9, 12, 13, 14, *range(16, STEPS + 1, 4)]
                self.assertEqual(steps_only(run.records()), [expected[str(step)] for step in logged])
                validated = validations(run.records())
                self.assertEqual([int(step) for step in validated], [5, 7, 10, 13, 14, 15, 20, 25, 30, 35, STEPS])
                for step, loss in validations(reference.records()).items():
                    self.assertEqual(validated[step], loss)

    def test_damaged_checkpoint(self):
        """A damaged checkpoint is neither used nor skipped silently; the previous one is used on request, and gives
        the same bits."""
        random_numbers = random.Random(options.seed)
        data, manifest = "rank-00000.safetensors", "manifest.json"
        for number, (name, where) in enumerate([(data, 0.001), (data, 0.9), (manifest, 0.3), (manifest, 0.99)]):
            variant = list(VARIANTS)[number % len(VARIANTS)]
            with self.subTest(file=name, place=where, variant=variant):
                run = self.new_run(f"damaged-{number}", variant)
                self.assertEqual(run.train("--steps", 13).returncode, 0)
                older, newest = run.saved_steps()
                damaged = run.checkpoint(newest) / name
                content = bytearray(damaged.read_bytes())
                content[int(where * len(content))] ^= 1 << random_numbers.randrange(8)
                damaged.write_bytes(content)
                self.check_older_is_used_when_asked(run, older, newest, name)
                self.assert_same_state(run, variant)
                # The stop at step 13 validated, but that record was dropped with everything after the older checkpoint.
                self.assertEqual(run.records(), self.references[variant].records())

    def check_older_is_used_when_asked(self, run, older, newest, damaged_name):
        records = run.records()
        refused = run.train("--resume", "latest")
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn(str(run.checkpoint(newest) / damaged_name), refused.stderr)
        self.assertIn(f"the checkpoint before it: {run.checkpoint(older)} (--resume DIR", refused.stderr)
        self.assertEqual((run.saved_steps(), run.records()), ([older, newest], records), "the refusal changed the run")
        resumed = run.train("--resume", run.checkpoint(older))
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        aside = f"{run.checkpoint(newest).name}.abandoned"
        self.assertIn(aside, resumed.stdout)
        self.assertNotIn(aside, run.checkpoint_entries(), "the run has come to its step again")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain", type=os.path.abspath, help="the executable")
    parser.add_argument("--rounds", type=int, default=30, help="how often runs are killed (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: %(default)s)")
    _, rest = parser.parse_known_args(namespace=options)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
