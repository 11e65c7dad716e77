#!/usr/bin/env python3
"""Runs of many ranks that lose, stop or starve one of them: each ends in bounded time with one report, leaves nothing
behind, and resumes to the bits of an undisturbed run.

Run as test_ranks.py GPTRAIN HAS_MPI [--rounds N] [--seed N] [options of unittest].
"""
import argparse
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
import test_crash
from other_processes import MPIRUN_CRASHED, damage_memory
from rank_processes import RANKS, SLACK_SECONDS, Ranks, overrides
from test_crash import catches, read_safetensors, wait_for
from busy import slowness

STEPS = 18
SAVE_EVERY = 2
MESH = ("parallel.tensor=2", "parallel.zero=1", "batch.micro=1", "run.threads=1")
# Seconds for which a rank may be silent. mpirun and MPI start ranks slowly beside other tests.
# On a busy machine, ranks that live are silent for longer.
COMM_TIMEOUT_SECONDS = {mode: math.ceil(seconds * min(slowness(), 5)) for mode, seconds in (("threads", 2), ("tcp", 2), ("mpi", 8))}
NEVER_SECONDS = 60  # for tests in which no rank is lost
REPORT_SECONDS = 1
ANSWER_SECONDS = 5   # extra wait for rank 0's answer by ranks that still look for each other
DATA, CHECKPOINT, DEVICE, DIVERGED, REQUEUE = 3, 4, 5, 6, 75
# End of the report on a lost rank. A rank that is lost before its second beat (four beats a second) has reported only
# its start.
LAST_SEEN = r"last seen (at the start|(at|in|after) .*; (set-up|(step \d+; )?(step|validation|checkpoint)))"

options = test_crash.options


class RanksRun(test_crash.Run):
    """A run's folder as for one rank; the mesh comes from the command line."""

    def __init__(self, folder, corpus, mesh):
        super().__init__(folder, "fp32", corpus)
        self.mesh, self.save_every = mesh, SAVE_EVERY
        self.change(run={"steps": STEPS}, checkpoint={"every_steps": SAVE_EVERY},
                    comm={"timeout_seconds": NEVER_SECONDS})

    def change(self, **sections):
        config = json.loads(self.config_path.read_text(encoding="utf-8"))
        for name, values in sections.items():
            config[name] = {**config.get(name, {}), **values}
        self.config_path.write_text(json.dumps(config), encoding="utf-8")

    def command(self, *arguments, mesh=None):
        return [options.gptrain, "train", str(self.config_path), *arguments, *overrides(*(mesh or self.mesh))]

    def start_ranks(self, case, mode, *arguments, timeout=None, **prefix):
        timeout = overrides(f"comm.timeout_seconds={timeout or COMM_TIMEOUT_SECONDS[mode]}")
        return Ranks(case, mode, self.command("--resume", "latest", *timeout, *arguments), self.log, **prefix)

    def state(self, step=STEPS):
        return {path.name: read_safetensors(path) for path in self.checkpoint(step).glob("rank-*.safetensors")}


class RanksTest(unittest.TestCase):
    MESH = MESH
    maxDiff = 2000

    @classmethod
    def make_folder(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="gptrain-ranks-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name, num_words in (("train", 2000), ("heldout", 200)):
            text = cls.folder / f"{name}.txt"
            test_crash.write_corpus(text, random.Random(f"{options.seed} {name}"), num_words)
            packed = test_crash.gptrain("data", "pack", text, "--out", cls.folder / name, "--tokenizer", "bytes")
            if packed.returncode != 0:
                raise RuntimeError(f"data pack: {packed.stderr}")

    @classmethod
    def setUpClass(cls):
        cls.make_folder()
        cls.reference = cls.new_run("reference")
        began = time.monotonic()
        done = cls.reference.train("--ranks", RANKS, *overrides(*cls.MESH))
        if done.returncode != 0:
            raise RuntimeError(f"train: {done.stderr}")
        cls.seconds = time.monotonic() - began

    @classmethod
    def new_run(cls, name):
        return RanksRun(cls.folder / name, cls.folder, cls.MESH)

    def assert_within(self, seconds, allowed, output=""):
        """Checks a duration, for which a busy machine is allowed longer."""
        self.assertLess(seconds, allowed * slowness(), output)

    @staticmethod
    def modes(*names):
        """Returns the modes that are available here."""
        has_mpi = options.has_mpi == "yes" and shutil.which("mpirun")
        return [mode for mode in names if mode != "mpi" or has_mpi]

    def assert_same_run(self, run):
        self.assertEqual(run.newest_step(), STEPS)
        state, expected = run.state(), self.reference.state()
        self.assertEqual(len(expected), RANKS)
        self.assertEqual({file: sorted(tensors) for file, tensors in state.items()},
                         {file: sorted(tensors) for file, tensors in expected.items()})
        self.assertEqual([(file, name) for file, tensors in expected.items() for name in tensors
                          if state[file][name] != tensors[name]], [], "tensors that differ")
        self.assertEqual(run.records(), self.reference.records())
        self.assertEqual(run.temporaries(), set())

    def assert_sound(self, run):
        """Checks that every complete checkpoint is sound."""
        for step in run.saved_steps():
            verified = test_crash.gptrain("checkpoint", "verify", run.checkpoint(step))
            self.assertEqual(verified.returncode, 0, verified.stderr)

    def finish(self, run, mode):
        ranks = run.start_ranks(self, mode, timeout=NEVER_SECONDS)
        self.assertEqual(set(ranks.wait()), {0}, ranks.output())
        self.assert_same_run(run)
        self.assertEqual(ranks.left(), [])


class Reference(RanksTest):
    def test_every_transport_has_its_bits(self):
        for mode in self.modes("tcp", "mpi"):
            run = self.new_run(mode)
            self.finish(run, mode)
            self.check_memory(run, "--world-size")
        self.check_memory(self.reference, "--ranks")

    def check_memory(self, run, ranks):
        """Checks that the memory used is the dry run's, including processes' receive memory."""
        planned = test_crash.gptrain(*run.command("--dry-run", "--json", ranks, RANKS)[1:])
        self.assertEqual(planned.returncode, 0, planned.stderr)
        taken = json.loads((run.out / "run.json").read_text(encoding="utf-8"))
        self.assertEqual(taken, {key: json.loads(planned.stdout)[key] for key in taken})
        self.assertEqual(taken["communication_bytes"], 0 if ranks == "--ranks" else (RANKS + 2) << 18)

    def test_files_are_written_by_one_rank(self):
        self.assertEqual(sorted(os.listdir(self.reference.checkpoint(STEPS))),
                         ["manifest.json", *(f"rank-{rank:05}.safetensors" for rank in range(RANKS))])
        self.assertEqual([int(record["step"]) for record in test_crash.steps_only(self.reference.records())],
                         list(range(1, STEPS + 1)))
        self.assertEqual(len(os.listdir(self.reference.out / "tb")), 1)


class Loss(RanksTest):
    """A rank is lost."""

    def kill_one(self, run, mode, killer, victim):
        """Kills a rank; returns False if the run ended first."""
        before = run.newest_step()
        ranks = run.start_ranks(self, mode)
        ranks.await_ranks()
        moment = killer.wait(ranks, run)
        killed = moment is not None and ranks.send(victim, signal.SIGKILL)
        began = time.monotonic()
        codes = ranks.wait()
        seconds = time.monotonic() - began
        output = ranks.output()
        self.assertEqual(ranks.left(), [])
        self.assert_sound(run)
        self.assertGreaterEqual(run.newest_step(), before, "a checkpoint is lost")
        self.assertGreaterEqual(run.newest_step(), run.announced_step(), "what was announced as saved is lost")
        if not killed or set(codes) == {0}:
            self.assertEqual(set(codes), {0}, output)
            return False
        self.check_end(mode, victim, codes, output)
        # Ranks that had not met yet wait for all to come. Leftovers of an earlier kill look like a save.
        started = f"{RANKS} ranks: " in output
        meeting = 0 if started else COMM_TIMEOUT_SECONDS[mode] + ANSWER_SECONDS
        self.assert_within(seconds, meeting + REPORT_SECONDS + SLACK_SECONDS, output)
        # A rank that is no longer needed is not missed.
        if started and mode != "threads" and "\ndone: " not in output:
            # mpirun ends the other ranks of a killed one, on a busy machine before one of them has reported.
            lost, by = ("[123]", "[0-3]") if mode == "mpi" else ("1", int(victim == 0))
            self.assertRegex(output, rf"{lost} of {RANKS} ranks lost; rank {by} \(.+\) ends the run")
            self.assertRegex(output, rf"  rank {victim} \(.+\) is gone; {LAST_SEEN}\n")
        killer.count(moment, run)
        return True

    def check_end(self, mode, victim, codes, output):
        if mode == "mpi":
            # mpirun's own code for a killed rank, unless the report and its abort come first.
            self.assertIn(codes, ([128 + signal.SIGKILL], [DEVICE], [MPIRUN_CRASHED]), output)
        elif mode == "threads":
            self.assertEqual(codes, [-signal.SIGKILL], output)
        else:
            self.assertEqual(codes[victim], -signal.SIGKILL, output)
            # A rank that needed nothing more from the others may have finished.
            self.assertLessEqual(set(codes[:victim] + codes[victim + 1:]), {DEVICE, 0}, output)

    def test_killed_at_any_moment(self):
        for mode in self.modes("threads", "tcp", "mpi"):
            numbers = random.Random(f"{options.seed} {mode}")
            killer = test_crash.Killer(numbers, self.seconds / 2, self.seconds / (2 * STEPS))
            num_runs = 0
            while sum(killer.kills.values()) < options.rounds:
                self.assertLess(num_runs, 3 * options.rounds + 5, "the runs end before they can be killed")
                run = self.new_run(f"killed-{mode}-{num_runs}")
                num_runs += 1
                while sum(killer.kills.values()) < options.rounds:
                    if not self.kill_one(run, mode, killer, 0 if mode == "threads" else numbers.randrange(RANKS)):
                        break
                self.finish(run, mode)
            print(f"{mode}: killed by moment: {killer.kills}, while saving: {killer.kills_with_temporary}")

    def stop_one(self, mode, victim, condition):
        run = self.new_run(f"stopped-{mode}-{victim}")
        ranks = run.start_ranks(self, mode)
        ranks.await_ranks()
        self.assertTrue(wait_for(ranks, lambda: condition(run)), ranks.output())
        began = time.monotonic()
        self.assertTrue(ranks.send(victim, signal.SIGSTOP))
        # If the others end first, the report is in the output as well.
        wait_for(ranks, lambda: "ranks lost" in ranks.output())
        self.assert_within(time.monotonic() - began, COMM_TIMEOUT_SECONDS[mode] + REPORT_SECONDS, ranks.output())
        codes = ranks.wait(left_out=victim if mode == "tcp" else None)
        seconds = time.monotonic() - began
        self.assertLessEqual(set(codes), {DEVICE, MPIRUN_CRASHED if mode == "mpi" else DEVICE}, ranks.output())
        self.assert_within(seconds, COMM_TIMEOUT_SECONDS[mode] + REPORT_SECONDS + SLACK_SECONDS)
        self.assertRegex(ranks.output(),
                         rf"  rank {victim} \(.+\) is silent for more than {COMM_TIMEOUT_SECONDS[mode]} s "
                         rf"\(comm.timeout_seconds\); {LAST_SEEN}\n")
        if mode == "tcp":
            ranks.send(victim, signal.SIGCONT)
            self.assertEqual(ranks.wait()[victim], DEVICE, ranks.output())
        self.assertEqual(ranks.left(), [])
        self.assert_sound(run)
        self.finish(run, mode)
        return seconds

    def test_stopped(self):
        moments = {0: lambda run: run.last_logged_step() >= 3,
                   2: lambda run: run.newest_step() > 1 and run.temporaries()}
        victims = {"tcp": [0, 2], "mpi": [2]}
        for mode in self.modes(*victims):
            seconds = [self.stop_one(mode, victim, moments[victim]) for victim in victims[mode]]
            print(f"{mode}: ended {', '.join(f'{time:.1f} s' for time in seconds)} after a rank was stopped")


class Signals(RanksTest):
    """A request to stop."""

    def stop(self, run, mode, rank, number, condition, *arguments):
        ranks = run.start_ranks(self, mode, *arguments)
        ids = ranks.await_ranks()
        for process in ids.values():
            self.assertTrue(wait_for(ranks, lambda p=process: self.can_stop(p)))
        self.assertTrue(wait_for(ranks, lambda: condition(run)), ranks.output())
        for each in range(len(ids)) if rank is None else [rank]:
            ranks.send(each, number)
        codes = ranks.wait()
        output = ranks.output()
        self.assertEqual(set(codes), {REQUEUE}, output)
        self.assertEqual(ranks.left(), [])
        step = run.newest_step()
        self.assertEqual(re.findall(r"stopped by (.+) after step (\d+);", output),
                         [("a signal to another rank" if rank else number.name, str(step))], output)
        self.assertEqual(run.last_logged_step(), step, "a stop saves every step that was done")
        self.assertEqual(run.temporaries(), set())
        self.assert_sound(run)
        return step

    @staticmethod
    def can_stop(process_id):
        try:
            return catches(argparse.Namespace(pid=process_id), signal.SIGUSR1)
        except OSError:
            return False

    def test_one_rank_and_all_ranks(self):
        after = {"tcp": [(2, signal.SIGTERM), (None, signal.SIGINT)], "mpi": [(1, signal.SIGUSR1), (3, signal.SIGTERM)],
                 "threads": [(0, signal.SIGTERM)]}
        for mode in self.modes(*after):
            run = self.new_run(f"signalled-{mode}")
            for rank, number in after[mode]:
                before = run.newest_step()
                step = self.stop(run, mode, rank, number, lambda r, b=before: r.last_logged_step() >= b + 3)
                self.assertLess(step, STEPS)
            self.finish(run, mode)

    def test_during_the_set_up(self):
        run = self.new_run("signalled-early")
        # Rank 0 locks the folder after the ranks have met. A rank that is stopped before ends alone.
        have_met = lambda r: (r.out / ".lock").exists()
        self.assertLess(self.stop(run, "tcp", 1, signal.SIGTERM, have_met), STEPS)
        self.finish(run, "tcp")

    def test_during_validation(self):
        run = self.new_run("signalled-in-validation")
        long = overrides("run.validate_every_steps=4", "run.validation_samples=1000000")
        step = self.stop(run, "tcp", 3, signal.SIGUSR1, lambda r: r.last_logged_step() == 4, *long)
        self.assertEqual(step, 4)
        self.assertEqual(test_crash.validations(run.records()), {})
        ranks = run.start_ranks(self, "tcp", *overrides("run.validate_every_steps=4"))
        self.assertEqual(set(ranks.wait()), {0}, ranks.output())
        self.assertEqual(list(test_crash.validations(run.records()))[0], "4", "the validation is not made up for")
        self.assertEqual(run.state(), self.reference.state())

    def test_a_second_signal_ends_at_once(self):
        run = self.new_run("signalled-twice")
        ranks = run.start_ranks(self, "tcp")
        self.assertTrue(wait_for(ranks, lambda: run.last_logged_step() >= 2))
        ranks.send(1, signal.SIGSTOP)  # no step ends
        ranks.send(2, signal.SIGTERM)
        self.assertTrue(test_crash.interrupt_until_it_ends(ranks.processes[2]))
        ranks.send(1, signal.SIGCONT)
        codes = ranks.wait()
        self.assertEqual(codes.pop(2), 128 + signal.SIGINT)
        self.assertEqual(set(codes), {DEVICE}, ranks.output())
        self.assertRegex(ranks.output(), r"  rank 2 \(.+\) is gone")
        self.finish(run, "tcp")


class Faults(RanksTest):
    """A fault on a single rank is reported once, by rank 0, and ends all with its exit code."""

    def check_refusal(self, ranks, code, *messages):
        began = time.monotonic()
        self.assertLessEqual(set(ranks.wait()), {code, MPIRUN_CRASHED if ranks.mode == "mpi" else code}, ranks.output())
        self.assert_within(time.monotonic() - began, COMM_TIMEOUT_SECONDS[ranks.mode] + ANSWER_SECONDS + SLACK_SECONDS)
        output = ranks.output()
        for message in messages:
            self.assertRegex(output, message)
        self.assertEqual(len(re.findall(r"^gptrain: ", output, re.MULTILINE)), 1, output)
        if ranks.mode == "tcp":
            # On a busy machine, ranks say after five seconds for whom they wait.
            texts = [re.sub(r"(?m)^rank \d+ .* waits for rank .*\n", "", log.read_text(encoding="utf-8")) for log in ranks.logs[1:]]
            self.assertEqual(texts, [""] * (RANKS - 1))
        self.assertEqual(ranks.left(), [])

    def test_memory_that_changes(self):
        """Changes the memory of one rank in the middle of the run; its replica has the right weights."""
        mesh = ("parallel.tensor=2", "batch.micro=1", "run.threads=1")
        # Steps too small to change any weight except zeros, so that the weight's bytes can be found in memory.
        still = overrides("optimizer.lr=1e-30", "schedule.min_lr=1e-30", "comm.compare_every_steps=5",
                          "run.steps=1000000", "run.validate_every_steps=0", "checkpoint.every_steps=1000")
        run = self.new_run("damaged-memory")
        first = run.train("--ranks", RANKS, "--steps", 1, *overrides(*mesh), *still)
        self.assertEqual(first.returncode, 0, first.stderr)
        # The replicas are ranks 0 and 2; one of them writes the weight.
        files = [read_safetensors(run.checkpoint(1) / f"rank-{rank:05}.safetensors") for rank in (0, 2)]
        name = "weight/blocks.1.ffn.in.weight@0,0"
        [weights] = [file[name][2][:256] for file in files if name in file]
        ranks = Ranks(self, "tcp", [*run.command("--resume", "latest", mesh=mesh), *still], run.log)
        self.assertTrue(wait_for(ranks, lambda: run.last_logged_step() >= 7), ranks.output())
        self.assertGreater(damage_memory(ranks.await_ranks()[2], weights), 0)
        self.check_refusal(ranks, DEVICE,
                           r"gptrain: after step \d*[05] the weights of rank 2 on .+ differ from those of rank 0 on .+, "
                           r"which should be the same: memory or network at fault; go on from a checkpoint with "
                           r"--resume latest")
        self.assertEqual(run.newest_step(), 1, "what is damaged is not saved")

    def test_a_rank_whose_output_nobody_takes(self):
        run = self.new_run("unread")
        closed = ("bash", "-c", 'exec "$0" "$@" > >(true)')
        ranks = run.start_ranks(self, "tcp", prefix=closed, prefixed_rank=0)
        self.assertEqual(ranks.wait(), [0] * RANKS, ranks.output())
        self.assertIn("the run goes on without its lines", ranks.output())
        self.assertEqual(run.newest_step(), STEPS)

    def test_a_part_that_cannot_be_written(self):
        """A part that cannot be written, as on a full disk."""
        run = self.new_run("full-disk")
        self.assertEqual(run.train("--ranks", RANKS, "--steps", 5, *overrides(*MESH)).returncode, 0)
        # A limit that is too low at the start is refused (tests/cli/limits_cases.py).
        ranks = run.start_ranks(self, "tcp", *overrides("run.steps=100000", "checkpoint.every_steps=200"))
        while ranks.processes[0].poll() is None and "step 6/" not in run.log.read_text(encoding="utf-8"):
            time.sleep(0.01)
        resource.prlimit(ranks.processes[2].pid, resource.RLIMIT_FSIZE, (4096, 4096))
        self.check_refusal(ranks, CHECKPOINT,
                           r"gptrain: run\.out = .*: the checkpoint of step \d+ could not be saved: rank 2 \(.+\): "
                           r"cannot write .*/rank-00002\.safetensors: File too large; the state after step \d+ "
                           r"cannot be saved: rank 2 ")
        self.assertEqual((run.newest_step(), run.temporaries()), (5, set()))
        self.finish(run, "tcp")

    def test_a_damaged_part_and_a_missing_one(self):
        run = self.new_run("damaged")
        self.assertEqual(run.train("--ranks", RANKS, "--steps", 9, *overrides(*MESH)).returncode, 0)
        older, newest = run.saved_steps()
        damaged = run.checkpoint(newest) / "rank-00003.safetensors"
        content = bytearray(damaged.read_bytes())
        content[-100] ^= 4
        damaged.write_bytes(content)
        hint = rf"the checkpoint before it: {re.escape(str(run.checkpoint(older)))} \(--resume DIR"
        self.check_refusal(run.start_ranks(self, "tcp"), CHECKPOINT, re.escape(str(damaged)), hint)
        damaged.unlink()
        self.check_refusal(run.start_ranks(self, "tcp"), CHECKPOINT, re.escape(str(damaged)), hint)
        resumed = Ranks(self, "tcp", run.command("--resume", str(run.checkpoint(older))), run.log)
        self.assertEqual(set(resumed.wait()), {0}, resumed.output())
        self.assertEqual(run.state(), self.reference.state())

    def test_other_data_on_one_rank(self):
        run = self.new_run("other-data")
        other = self.folder / "elsewhere"
        other.mkdir()
        run.change(data={"train": [{"path": "train"}], "validation": [{"path": "heldout"}]})
        moved = {"prefix": ["bash", "-c", f"cd {other}; exec \"$0\" \"$@\""], "prefixed_rank": 3}
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.check_refusal(run.start_ranks(self, "tcp", **moved), DATA, r"gptrain: rank 3 \(.+\): train.idx does not")
        for name in ("train", "heldout"):
            for suffix in ("bin", "idx"):
                shutil.copy(self.folder / f"{name}.{suffix}", other)
        content = bytearray((other / "train.bin").read_bytes())
        content[::2] = bytes(byte ^ 1 for byte in content[::2])
        (other / "train.bin").write_bytes(content)
        self.check_refusal(run.start_ranks(self, "tcp", **moved), DEVICE,
                           r"gptrain: rank 3 \(.+\) has other data than rank 0 \(.+\):\n +training data: \d+ tokens")
        self.assertFalse((run.out / "metrics.jsonl").exists())

    def test_another_checkpoint_on_one_rank(self):
        run = self.new_run("other-checkpoint")
        run.change(run={"out": "out"})  # relative to wherever a rank is started
        (other := self.folder / "elsewhere else").mkdir()
        self.addCleanup(os.chdir, os.getcwd())
        for folder, seed in ((other, 12), (run.out.parent, 11)):
            os.chdir(folder)
            done = run.train("--ranks", RANKS, "--steps", 2, *overrides(*MESH, f"run.seed={seed}"))
            self.assertEqual(done.returncode, 0, done.stderr)
        moved = ["bash", "-c", f"cd '{other}'; exec \"$0\" \"$@\""]
        self.check_refusal(run.start_ranks(self, "tcp", prefix=moved, prefixed_rank=3), CHECKPOINT,
                           r"gptrain: out/checkpoints/step-00000002 is of step 2, checksum \w+ on rank 3 \(.+\), of step "
                           r"2, checksum \w+ on rank 0 \(.+\): all ranks must see the same folder\n")

    def test_a_config_that_no_rank_can_use(self):
        for mode in self.modes("tcp", "mpi"):
            run = self.new_run(f"config-{mode}")
            self.check_refusal(run.start_ranks(self, mode, *overrides("run.steps=-1")), 2, r"run\.steps = -1")
            command = [*run.command(mesh=("batch.micro=1", "parallel.tensor=2")), "--ranks", "2"]
            self.check_refusal(Ranks(self, mode, command, run.log), 2, "--ranks 2 starts threads, but there are 4")
            self.assertFalse(run.out.exists())

    def test_another_command_on_one_rank(self):
        run = self.new_run("other-command")
        changed = 'exec "$0" "$@" --steps 3 --set optimizer.lr=0.5'
        self.check_refusal(run.start_ranks(self, "tcp", prefix=["bash", "-c", changed], prefixed_rank=3), DEVICE,
                           r"gptrain: the ranks of this run do not fit together:\n +rank 3 \(.+\): config "
                           r"optimizer\.lr = 0\.5, --steps 3; rank 0 \(.+\): optimizer\.lr = [^,\n]+\n")
        self.assertFalse(run.out.exists())

    def test_a_mesh_that_does_not_divide(self):
        run = self.new_run("mesh")
        command = run.command(mesh=("batch.micro=1", "parallel.tensor=3", "model.hidden_size=36", "model.num_heads=3"))
        self.check_refusal(Ranks(self, "tcp", command, run.log), 2, "4 ranks do not divide into model replicas")

    def test_a_folder_that_is_taken_or_cannot_be_made(self):
        run = self.new_run("taken")
        running = run.start_ranks(self, "tcp", *overrides("run.steps=1000000"))
        self.assertTrue(wait_for(running, lambda: run.last_logged_step() >= 1))
        second = Ranks(self, "tcp", run.command("--resume", "latest"), run.log.with_name("second"))
        self.check_refusal(second, 2, "another gptrain is running in this folder")
        running.send(0, signal.SIGTERM)
        self.assertEqual(set(running.wait()), {REQUEUE})
        self.check_refusal(Ranks(self, "tcp", run.command(*overrides("run.out=/dev/null/x")), run.log), 2,
                           "run.out: cannot create /dev/null/x")

    def test_divergence(self):
        exploding = overrides("optimizer.lr=10", "schedule.min_lr=9", "optimizer.weight_decay=10",
                              "run.max_skipped_steps=2", "run.steps=200")
        for mode in self.modes("threads", "tcp", "mpi"):
            ranks = self.new_run(f"diverged-{mode}").start_ranks(self, mode, *exploding)
            self.check_refusal(ranks, DIVERGED, "gptrain: training diverged: .* for 3 steps in a row")

    def test_a_rank_that_does_not_come(self):
        run = self.new_run("missing")
        ranks = run.start_ranks(self, "tcp", prefix=["true"], prefixed_rank=1)
        codes = ranks.wait()
        self.assertEqual(codes, [DEVICE, 0, DEVICE, DEVICE], ranks.output())
        self.assertRegex(ranks.output(), r"(?m)^gptrain: of 4 ranks, rank 1 did not come within "
                                          rf"{COMM_TIMEOUT_SECONDS['tcp']} s \(comm.timeout_seconds\)")


class OtherMesh(RanksTest):
    """A run that resumes with another mesh."""

    MESHES = {
        1: ("batch.micro=2", "run.threads=2"),
        3: ("parallel.zero=3", "batch.micro=2", "run.threads=1"),
        6: ("parallel.tensor=2", "parallel.zero=2", "parallel.sequence=true", "batch.micro=1", "run.threads=1"),
    }

    def test_losses_go_on(self):
        first = self.new_run("first-mesh")
        self.assertEqual(first.train("--ranks", RANKS, "--steps", 7, *overrides(*MESH)).returncode, 0)
        expected = {int(record["step"]): record for record in test_crash.steps_only(self.reference.records())}
        for ranks, mesh in self.MESHES.items():
            with self.subTest(ranks=ranks):
                run = self.new_run(f"mesh-{ranks}")
                shutil.copytree(first.out, run.out)
                done = run.train("--resume", "latest", "--ranks", ranks, "--steps", 5, *overrides(*mesh))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("(step 7)", done.stdout)
                records = {int(record["step"]): record for record in test_crash.steps_only(run.records())}
                self.assertEqual(sorted(records), list(range(1, 13)))
                for step in range(8, 13):
                    self.assertAlmostEqual(float(records[step]["loss"]) / float(expected[step]["loss"]), 1, delta=1e-5)
                    self.assertAlmostEqual(float(records[step]["grad_norm"]) / float(expected[step]["grad_norm"]), 1,
                                           delta=1e-4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain", type=os.path.abspath, help="the executable")
    parser.add_argument("has_mpi", choices=["yes", "no"], help="whether the executable was built with MPI")
    parser.add_argument("--rounds", type=int, default=4, help="how often each kind is killed (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: %(default)s)")
    _, rest = parser.parse_known_args(namespace=options)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
