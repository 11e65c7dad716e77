#!/usr/bin/env python3
"""Tests checkpoints written beside the steps: kills, power losses, slow and full disks, stops and other ends.

Run as test_asynchronous.py GPTRAIN HAS_MPI DISK [--rounds N] [--power N] [--seed N] [options of unittest]; DISK is the
preload library built from disk.cpp.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import time
import unittest

sys.dont_write_bytecode = True
import power_loss
import test_crash
import test_ranks
from test_crash import wait_for
from test_ranks import CHECKPOINT, DEVICE, DIVERGED, REQUEUE, STEPS, Ranks, RanksRun, overrides

SAVE_EVERY = 2
RANKS = 3
KILLS_OF_A_RUN = 4
TIMEOUT_SECONDS = 10  # a killed rank is noticed at once; a rank that starts slowly must not count as lost

options = test_crash.options


def mesh_of(ranks, zero):
    return (f"parallel.zero={zero if ranks > 1 else 0}", "batch.micro=2", "run.threads=1")


class AsynchronousTest(test_ranks.RanksTest):
    @classmethod
    def setUpClass(cls):
        cls.make_folder()
        cls.references = {}

    def run_of(self, name, ranks, zero):
        run = RanksRun(self.folder / name, self.folder, mesh_of(ranks, zero))
        run.change(comm={"timeout_seconds": TIMEOUT_SECONDS})
        return run

    def reference_of(self, ranks, zero):
        """Returns (run, seconds) of an undisturbed run with as many threads."""
        if (ranks, zero) not in self.references:
            run = self.run_of(f"reference-{ranks}-{zero}", ranks, zero)
            began = time.monotonic()
            done = run.train("--ranks", ranks, *overrides(*run.mesh))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.references[ranks, zero] = (run, time.monotonic() - began)
        return self.references[ranks, zero]

    def assert_same_as(self, run, reference):
        self.assertEqual(run.newest_step(), STEPS)
        state, expected = run.state(), reference.state()
        self.assertEqual([(file, name) for file, tensors in expected.items() for name in tensors
                          if state[file][name] != tensors[name]], [], "tensors that differ")
        self.assertEqual(run.records(), reference.records())
        self.assertEqual(run.temporaries(), set())

    def start(self, run, mode="threads", ranks=1, arguments=(), on_rank=None, **disk):
        """Starts or resumes a run; `disk`: DISK's variables, for all ranks or one."""
        before = ["env", f"LD_PRELOAD={options.disk}", f"DISK_FOLDER={run.out.parent}",
                  *(f"DISK_{name}={value}" for name, value in disk.items())] if disk else []
        command = run.command("--resume", "latest", *arguments)
        if on_rank is not None:
            return Ranks(self, mode, command, run.log, size=ranks, prefix=before, prefixed_rank=on_rank)
        return Ranks(self, mode, [*before, *command], run.log, size=ranks)


class Kills(AsynchronousTest):
    """Kills one rank with SIGKILL at any moment."""

    def layouts(self):
        return [(1, "threads", 0), *((RANKS, mode, zero) for zero in range(4) for mode in self.modes("threads", "tcp", "mpi"))]

    def kill(self, run, mode, ranks, seconds, draw):
        """Returns True if the run ended before; and True if a checkpoint was being written."""
        before = run.newest_step()
        delay_ms = draw.choice([0, 20, 60])
        disk = {"DELAY_MS": delay_ms} if delay_ms else {}
        started = self.start(run, mode, ranks, **disk)
        started.await_ranks()
        stepping = draw.random() < 0.8 and wait_for(started, lambda: run.last_logged_step() > before)
        time.sleep(draw.uniform(0, (0.1 if stepping else seconds) + delay_ms / 1000 * STEPS / SAVE_EVERY))
        killed = started.send(0 if mode == "threads" else draw.randrange(ranks), signal.SIGKILL)
        codes = started.wait()
        self.assertEqual(started.left(), [])
        output = started.output()
        self.assert_sound(run)
        self.assertGreaterEqual(run.newest_step(), max(before, run.announced_step()), f"a checkpoint is lost\n{output}")
        # At most two saves have begun and are incomplete: one waits for the other's copy.
        logged = run.last_logged_step()
        self.assertGreaterEqual(run.newest_step(), (logged - 1) // SAVE_EVERY * SAVE_EVERY - SAVE_EVERY, output)
        self.assertLessEqual(len(run.temporaries()), 1)
        if not killed or set(codes) == {0}:
            self.assertEqual(set(codes), {0}, output)
            return True, False
        return False, bool(run.temporaries())

    def test_at_any_moment(self):
        draw = random.Random(f"{options.seed} kills")
        layouts = self.layouts()
        kills = while_saving = runs = 0
        while kills < options.rounds:
            self.assertLess(runs, 3 * options.rounds + 5, "the runs end before they can be killed")
            # Takes a stride, so that few rounds cover every ZeRO stage and every kind of rank.
            ranks, mode, zero = layouts[5 * runs % len(layouts)]
            reference, seconds = self.reference_of(ranks, zero)
            run = self.run_of(f"killed-{runs}", ranks, zero)
            runs += 1
            for _ in range(min(KILLS_OF_A_RUN, -(-options.rounds // len(layouts)), options.rounds - kills)):
                finished, saving = self.kill(run, mode, ranks, seconds, draw)
                if finished:
                    break
                kills, while_saving = kills + 1, while_saving + saving
            finished = self.start(run, mode, ranks)
            self.assertEqual(set(finished.wait()), {0}, finished.output())
            self.assert_same_as(run, reference)
            shutil.rmtree(run.out.parent)
        print(f"{kills} kills of {runs} runs, {while_saving} while a checkpoint was written")
        if kills >= 20:
            self.assertGreater(while_saving, 0, "no kill fell into saving")


class PowerLoss(AsynchronousTest):
    """Unsynced data are lost, or half of them."""

    def test_at_any_moment(self):
        draw = random.Random(f"{options.seed} power")
        for part, (ranks, settings) in enumerate([(1, ("checkpoint.every_steps=1",)), (RANKS, ()),
                                                  (1, ("checkpoint.asynchronous=false",))]):
            losses = options.power // 3 + (1 if part < options.power % 3 else 0)
            run = self.run_of(f"power-{part}", ranks, 0)
            self.lose_power(run, ranks, lambda _, these=settings: these, losses, draw)

    def test_with_working_files(self):
        """State, weights and gradients lie in working files, whose names a loss may leave."""
        on_disk = [f"memory.offload_{what}=disk" for what in ("optimizer", "parameters", "gradients")]
        self.lose_power(self.run_of("power-working", 1, 0), 1,
                        lambda run: ("checkpoint.asynchronous=false", *on_disk, f"memory.disk_path={run.out.parent}"),
                        options.power, random.Random(f"{options.seed} working files"))

    def lose_power(self, run, ranks, settings_of, losses, draw):
        reference, _ = self.reference_of(ranks, 0)
        log = self.folder / f"changes-{run.out.parent.name}"
        done = self.start(run, "threads", ranks, overrides(*settings_of(run)), LOG=log)
        self.assertEqual(done.wait(), [0], done.output())
        changes = power_loss.read_changes(log)
        for number, point in enumerate(sorted(draw.randint(0, len(changes)) for _ in range(losses))):
            lost = self.run_of(f"lost-{run.out.parent.name}-{number}", ranks, 0)
            self.lose(changes[:point], run, lost, draw)
            done = self.start(lost, "threads", ranks, overrides(*settings_of(lost)))
            self.assertEqual(done.wait(), [0], done.output())
            self.assert_same_as(lost, reference)

    def lose(self, changes, run, lost, draw):
        """Puts the files of a run with these changes that a loss leaves into the folder of `lost`."""
        disk = power_loss.Disk(run.out.parent)
        for change in changes:
            disk.play(*change)
        target = lost.out.parent / "left"
        disk.write_what_is_left(target, draw)
        for entry in target.iterdir():
            shutil.move(entry, lost.out.parent)
        announced = max(map(int, re.findall(r"^checkpoint of step (\d+) saved in", disk.said, re.MULTILINE)), default=0)
        self.assertGreaterEqual(lost.newest_step(), announced, "what was announced as saved is lost")
        self.assertGreaterEqual(self.last_whole_record(lost), lost.newest_step(), "a checkpoint is ahead of its metrics")
        self.assert_sound(lost)

    @staticmethod
    def last_whole_record(run):
        """Returns the last whole record: the last line may be cut off or end in zeros. Returns none if the run has not
        begun."""
        path = run.out / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return max((json.loads(line)["step"] for line in lines if not line.startswith(b"\0")), default=0)

    def test_a_save_without_a_sync_is_noticed(self):
        """The check notices the loss if a file, or its folder, is not synced."""
        run = self.run_of("unsynced", 1, 0)
        log = self.folder / "changes-unsynced"
        done = self.start(run, LOG=log)
        self.assertEqual(done.wait(), [0], done.output())
        changes = power_loss.read_changes(log)
        for name in (".safetensors", "/checkpoints"):
            opened = {second for _, first, second, _ in changes if first.endswith(name)}
            disk = power_loss.Disk(run.out.parent)
            for change in changes:
                if change[0] != "sync" or change[1] not in opened:
                    disk.play(*change)
            self.assertIn(f"checkpoint of step {STEPS} saved", disk.said)
            self.assertTrue(any(self.is_lost(disk, draw, name) for draw in range(5)), f"{name} need not be synced")

    def is_lost(self, disk, draw, name):
        target = self.folder / f"unsynced-{draw}{name.replace('/', '-')}"
        disk.write_what_is_left(target, random.Random(draw))
        lost = RanksRun(target / "config", self.folder, mesh_of(1, 0))
        shutil.move(target / "out", lost.out)
        verified = test_crash.gptrain("checkpoint", "verify", lost.checkpoint(STEPS))
        return verified.returncode != 0


class SlowDisk(AsynchronousTest):
    DELAYS_MS = (300, 1500, 6000)  # on a busy machine the steps between two saves may take longer than the first

    def test_steps_go_on_and_the_next_save_waits(self):
        for mode, ranks in (("threads", 1), *((mode, RANKS) for mode in self.modes("threads", "tcp", "mpi"))):
            with self.subTest(mode=mode, ranks=ranks):
                for delay in self.DELAYS_MS:
                    run = self.run_of(f"slow-{mode}-{ranks}-{delay}", ranks, 1)
                    done = self.start(run, mode, ranks, DELAY_MS=delay)
                    self.assertEqual(set(done.wait()), {0}, done.output())
                    lines = run.log.read_text(encoding="utf-8").splitlines()
                    place = self.places_of(lines)
                    steps = range(SAVE_EVERY, STEPS - SAVE_EVERY, SAVE_EVERY)
                    costs = self.costs_of(self.records_of(run))
                    if (all((f"{step + SAVE_EVERY}", "waited", f"{step}") in place for step in steps)
                            and costs[SAVE_EVERY] < delay / 2000 < costs[2 * SAVE_EVERY]):
                        break
                for step in steps:
                    after = step + SAVE_EVERY
                    self.assertLess(place[f"{step + 1}",], place[f"{step}", "saved"], lines)
                    self.assertLess(place[f"{step}", "saved"], place[f"{after}", "waited", f"{step}"], lines)
                self.check_times(run, delay / 1000)

    @staticmethod
    def places_of(lines):
        """Returns the number of the line that tells of each step, save and wait."""
        place = {}
        for number, line in enumerate(lines):
            found = re.match(r"step (\d+)/|checkpoint of step (\d+) (saved)|the checkpoint of step (\d+) (waited) \S+ \w*s "
                             r"for that of step (\d+), which was still being written$", line)
            if found:
                place[tuple(filter(None, found.groups()))] = number
        return place

    @staticmethod
    def records_of(run):
        records = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        return {record["step"]: record for record in records if "loss" in record}

    @staticmethod
    def costs_of(records):
        return {step: record["checkpoint_cost_seconds"] for step, record in records.items()
                if "checkpoint_cost_seconds" in record}

    def check_times(self, run, delay):
        records = self.records_of(run)
        costs = self.costs_of(records)
        self.assertEqual(sorted(costs), list(range(SAVE_EVERY, STEPS, SAVE_EVERY)))
        self.assertLess(costs[SAVE_EVERY], delay / 2, "the step waits for more than the copy")
        self.assertGreater(costs[2 * SAVE_EVERY], delay / 2, "the save does not wait for the one before")
        durable = [record["checkpoint_durable_seconds"] for record in records.values()
                   if "checkpoint_durable_seconds" in record]
        self.assertGreaterEqual(min(durable), delay)
        self.assertIn(" | checkpoint cost ", run.log.read_text(encoding="utf-8"))

    def test_by_the_clock(self):
        """All ranks save after the same steps, whatever their clocks."""
        every = overrides("checkpoint.every_steps=0", "checkpoint.every_seconds=0.2", "checkpoint.keep_last=1000",
                          "run.steps=300", "run.validate_every_steps=0")
        for mode, asynchronous in (("threads", "true"), *((mode, "false") for mode in self.modes("tcp", "mpi"))):
            with self.subTest(mode=mode):
                run = self.run_of(f"clock-{mode}", RANKS, 1)
                began = time.monotonic()
                ranks = self.start(run, mode, RANKS, (*every, *overrides(f"checkpoint.asynchronous={asynchronous}")))
                self.assertEqual(set(ranks.wait()), {0}, ranks.output())
                seconds = time.monotonic() - began
                saved = run.saved_steps()
                self.assertEqual(saved[-1], 300)
                steps = sum(json.loads(line).get("step_seconds", 0)
                            for line in (run.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
                self.assertLessEqual(len(saved), seconds / 0.2 + 2)
                self.assertGreaterEqual(len(saved), min(steps / 0.2 / 3, 2), saved)
                self.assert_sound(run)


class Ends(AsynchronousTest):
    """A run that ends while a checkpoint is written."""

    def until_it_saves(self, run, ranks, step):
        self.assertTrue(wait_for(ranks, lambda: run.newest_step() >= step - SAVE_EVERY and run.temporaries()
                                 and run.last_logged_step() > step), ranks.output())

    def test_stopped(self):
        for mode, ranks in (("threads", 1), *((mode, RANKS) for mode in self.modes("tcp", "mpi"))):
            with self.subTest(mode=mode):
                run = self.run_of(f"stopped-{mode}", ranks, 2)
                started = self.start(run, mode, ranks, overrides("run.steps=100000"), DELAY_MS=400)
                started.await_ranks()
                self.until_it_saves(run, started, 4)
                started.send(ranks - 1, signal.SIGUSR1)
                self.assertEqual(set(started.wait()), {REQUEUE}, started.output())
                step = run.newest_step()
                self.assertEqual((run.last_logged_step(), run.announced_step(), run.temporaries()), (step, step, set()))
                self.assert_sound(run)

    def test_a_disk_that_fills(self):
        for mode, ranks, full in (("threads", 1, None), *((mode, RANKS, 2) for mode in self.modes("tcp"))):
            with self.subTest(mode=mode):
                run = self.run_of(f"full-{mode}", ranks, 1)
                started = self.start(run, mode, ranks, on_rank=full if mode == "tcp" else None, FULL="tmp-step-00000004")
                self.assertEqual(set(started.wait()), {CHECKPOINT}, started.output())
                where = r"rank 2 \(.+\): " if ranks > 1 else ""
                self.assertRegex(started.output(), rf"gptrain: run\.out = \S+: the checkpoint of step 4 could not be saved: {where}"
                                                   r"cannot write \S+/\.tmp-step-00000004/rank-\d+\.safetensors: No space left on "
                                                   rf"device; the state after step {run.newest_step()} is saved in ")
                self.assertEqual(len(re.findall(r"^gptrain: ", started.output(), re.MULTILINE)), 1, started.output())
                self.assertGreater(run.newest_step(), 4)
                self.assertEqual((run.announced_step(), run.temporaries()), (run.newest_step(), set()))
                # Noticed at the latest when the next save begins; the ranks agree in the step after it.
                self.assertLessEqual(run.last_logged_step(), 4 + SAVE_EVERY + 1)
                finished = self.start(run, mode, ranks)
                self.assertEqual(set(finished.wait()), {0}, finished.output())
                self.assert_same_as(run, self.reference_of(ranks, 1)[0])

    def test_a_folder_that_is_removed(self):
        for mode, ranks in (("threads", 1), ("tcp", RANKS)):
            with self.subTest(mode=mode):
                run = self.run_of(f"removed-{mode}", ranks, 0)
                started = self.start(run, mode, ranks, overrides("run.steps=100000"), DELAY_MS=1000)
                self.until_it_saves(run, started, 4)
                for rank in range(len(started.processes)):  # so that no rank sees an intermediate state
                    started.send(rank, signal.SIGSTOP)
                while run.out.exists():  # they stop soon, not at once
                    shutil.rmtree(run.out, ignore_errors=True)
                for rank in range(len(started.processes)):
                    started.send(rank, signal.SIGCONT)
                self.assertEqual(set(started.wait()), {CHECKPOINT}, started.output())
                self.assertRegex(started.output(), r"gptrain: run\.out = .*: was removed while the run wrote to it; the state "
                                                   rf"after step {run.newest_step()} is saved in ")
                self.assert_sound(run)

    def test_divergence(self):
        run = self.run_of("diverged", 1, 0)
        exploding = overrides("optimizer.lr=10", "schedule.min_lr=9", "optimizer.weight_decay=10", "run.max_skipped_steps=1",
                              "run.steps=200", "checkpoint.every_steps=1")
        started = self.start(run, arguments=exploding, DELAY_MS=300)
        self.assertEqual(started.wait(), [DIVERGED], started.output())
        self.assertRegex(started.output(), "gptrain: training diverged: .* the last checkpoint in .* is untouched")
        self.assertGreater(run.newest_step(), 0)
        self.assertEqual((run.announced_step(), run.temporaries()), (run.newest_step(), set()))
        self.assert_sound(run)

    def test_an_error_on_one_rank(self):
        """A peer is lost while all write: the previous checkpoint stays the newest."""
        run = self.run_of("lost", RANKS, 1)
        started = self.start(run, "tcp", RANKS, overrides("run.steps=100000"), DELAY_MS=1500)
        self.until_it_saves(run, started, 4)
        before = run.newest_step()
        started.send(1, signal.SIGKILL)
        self.assertLessEqual(set(started.wait()), {DEVICE, -signal.SIGKILL}, started.output())
        self.assertEqual((run.newest_step(), run.announced_step()), (before, before))
        self.assert_sound(run)


class Memory(AsynchronousTest):
    def test_the_copy_is_planned(self):
        for ranks, zero in ((1, 0), (RANKS, 1)):
            run = self.reference_of(ranks, zero)[0]
            planned = test_crash.gptrain(*run.command("--dry-run", "--json", "--ranks", ranks)[1:])
            self.assertEqual(planned.returncode, 0, planned.stderr)
            planned = json.loads(planned.stdout)
            taken = json.loads((run.out / "run.json").read_text(encoding="utf-8"))
            self.assertEqual(taken, {key: planned[key] for key in taken})
            self.assertGreaterEqual(taken["snapshot_bytes"] * ranks, planned["checkpoint_bytes"])
            for setting in ("checkpoint.asynchronous=false", "checkpoint.every_steps=0"):
                without = test_crash.gptrain(*run.command("--dry-run", "--json", "--ranks", ranks, "--set", setting)[1:])
                self.assertEqual(json.loads(without.stdout)["peak_bytes"], planned["peak_bytes"] - planned["snapshot_bytes"])

    def test_a_profile_shows_the_copy(self):
        run = self.run_of("profile", 1, 0)
        done = run.train("--profile-step", 4, "--steps", 5)
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = json.loads((run.out / "trace-step4.json").read_text(encoding="utf-8"))["traceEvents"]
        moved = sum(event["args"]["bytes_moved"] for event in trace if event.get("name") == "save_copy")
        state = sum(len(data) for _, _, data in run.state(5)["rank-00000.safetensors"].values())
        self.assertGreaterEqual(moved, state)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain", type=os.path.abspath, help="the executable")
    parser.add_argument("has_mpi", choices=["yes", "no"], help="whether the executable was built with MPI")
    parser.add_argument("disk", type=os.path.abspath, help="the preload library")
    parser.add_argument("--rounds", type=int, default=8, help="how often runs are killed (default: %(default)s)")
    parser.add_argument("--power", type=int, default=6, help="how often the power is lost (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: %(default)s)")
    _, rest = parser.parse_known_args(namespace=options)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
