#!/usr/bin/env python3
"""Runs over pipeline stages: processes have the bits of threads; a stage that is lost, stopped or cannot read its data
ends all of them, and the run resumes to the bits of an undisturbed one.

Run as test_stages.py GPTRAIN HAS_MPI [options of unittest].
"""
import os
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True
import test_ranks
from other_processes import MPIRUN_CRASHED
from test_crash import steps_only, wait_for
from test_ranks import (COMM_TIMEOUT_SECONDS, DATA, DEVICE, LAST_SEEN, RANKS, REPORT_SECONDS, SLACK_SECONDS, Ranks,
                        overrides)

MODEL = ("model.num_layers=4", "batch.micro=1", "run.threads=1")
MIDDLE = 2  # of four stages
SEEN_AT_STAGE = rf"(last seen at the start|{LAST_SEEN}; stage {MIDDLE}(, micro-batch \d+)?)\n"


class Stages(test_ranks.RanksTest):
    MESH = ("parallel.pipeline=4", "parallel.pipeline_schedule=zero-bubble", *MODEL)
    MESHES = (
        ("parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble-v", "parallel.zero=2", "model.tied_head=false"),
        ("parallel.pipeline=2", "parallel.tensor=2"),
    )

    def at_step(self, run, ranks, step=3):
        self.assertTrue(wait_for(ranks, lambda: run.last_logged_step() >= step), ranks.output())

    def test_processes_have_the_bits_of_threads(self):
        for mode in self.modes("tcp", "mpi"):
            self.finish(self.new_run(f"bits-{mode}"), mode)
        for number, mesh in enumerate(self.MESHES):
            states = {}
            for mode in self.modes("threads", "tcp", "mpi"):
                run = self.new_run(f"mesh-{number}-{mode}")
                command = run.command(mesh=(*mesh, *MODEL, "run.steps=2", "checkpoint.every_steps=0",
                                            "schedule.warmup_steps=1"))
                ranks = Ranks(self, mode, command, run.log)
                self.assertEqual(set(ranks.wait()), {0}, ranks.output())
                states[mode] = (run.state(2), run.records())
            for mode, state in states.items():
                self.assertTrue(state == states["threads"], f"{mode} {mesh}: other bits than those of threads")

    def test_a_stage_that_is_killed(self):
        for mode in self.modes("tcp", "mpi"):
            run = self.new_run(f"killed-{mode}")
            ranks = run.start_ranks(self, mode)
            ranks.await_ranks()
            self.at_step(run, ranks)
            self.assertTrue(ranks.send(MIDDLE, signal.SIGKILL))
            began = time.monotonic()
            codes = ranks.wait()
            self.assert_within(time.monotonic() - began, REPORT_SECONDS + SLACK_SECONDS)
            output = ranks.output()
            if mode == "tcp":
                self.assertEqual(codes[MIDDLE], -signal.SIGKILL, output)
                self.assertEqual(set(codes[:MIDDLE] + codes[MIDDLE + 1:]), {DEVICE}, output)
            else:
                self.assertIn(codes, ([128 + signal.SIGKILL], [DEVICE], [MPIRUN_CRASHED]), output)
            self.assertRegex(output, rf"1 of {RANKS} ranks lost; rank 0 \(.+\) ends the run")
            self.assertRegex(output, rf"  rank {MIDDLE} \(.+\) is gone; {SEEN_AT_STAGE}")
            self.assertEqual(ranks.left(), [])
            self.finish(run, mode)

    def test_a_stage_that_is_stopped(self):
        for mode in self.modes("tcp", "mpi"):
            run = self.new_run(f"stopped-{mode}")
            ranks = run.start_ranks(self, mode)
            ranks.await_ranks()
            self.at_step(run, ranks)
            began = time.monotonic()
            self.assertTrue(ranks.send(MIDDLE, signal.SIGSTOP))
            codes = ranks.wait(left_out=MIDDLE if mode == "tcp" else None)
            self.assert_within(time.monotonic() - began, COMM_TIMEOUT_SECONDS[mode] + REPORT_SECONDS + SLACK_SECONDS)
            self.assertLessEqual(set(codes), {DEVICE, MPIRUN_CRASHED if mode == "mpi" else DEVICE}, ranks.output())
            self.assertRegex(ranks.output(), rf"  rank {MIDDLE} \(.+\) is silent for more than {COMM_TIMEOUT_SECONDS[mode]} s "
                                             rf"\(comm.timeout_seconds\); {SEEN_AT_STAGE}")
            if mode == "tcp":
                ranks.send(MIDDLE, signal.SIGCONT)
                self.assertEqual(ranks.wait()[MIDDLE], DEVICE, ranks.output())
            self.assertEqual(ranks.left(), [])
            self.finish(run, mode)

    def test_data_that_a_stage_cannot_read(self):
        """Fails in the middle of a step; all ranks agree that the step is void, save the state before it, and end."""
        for victim in (0, MIDDLE):
            run = self.new_run(f"unread-{victim}")
            here, other = run.out.parent, self.folder / f"elsewhere-{victim}"
            other.mkdir()
            for folder in (here, other):
                for path in self.folder.glob("*.*"):
                    if path.name.startswith(("train.", "heldout.")):
                        shutil.copy(path, folder)
            run.change(data={"train": [{"path": "train"}], "validation": [{"path": "heldout"}]},
                       run={"steps": 1000000}, checkpoint={"every_steps": 1000})
            self.addCleanup(os.chdir, os.getcwd())
            os.chdir(here)
            prefix = ["bash", "-c", f"cd {other}; exec \"$0\" \"$@\""]
            ranks = run.start_ranks(self, "tcp", prefix=prefix, prefixed_rank=victim)
            self.at_step(run, ranks)
            began = time.monotonic()
            os.truncate(other / "train.bin", 0)
            codes = ranks.wait()
            self.assert_within(time.monotonic() - began, COMM_TIMEOUT_SECONDS["tcp"] + SLACK_SECONDS)
            output = ranks.output()
            self.assertEqual(codes, [DATA] * RANKS, output)
            self.assertRegex(output, r"train\.bin, byte \d+: cannot be read: the file was cut short while it was open")
            self.assertRegex(output, r"the state after step \d+ is saved; go on with --resume latest")
            self.assertEqual(ranks.left(), [])


class OtherStages(test_ranks.RanksTest):
    """A run that resumes with another pipeline, or without one."""

    MESH = ("parallel.pipeline=4", "model.tied_head=false", *MODEL)
    MESHES = (
        (1, ()),
        (2, ("parallel.pipeline=2", "parallel.pipeline_schedule=interleaved", "parallel.virtual_stages=2")),
        (3, ("parallel.pipeline=3", "parallel.layers_per_stage=[0,3,1]")),
        (2, ("parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble-v", "memory.recompute=block")),
    )

    def test_bits_go_on(self):
        first = self.new_run("first-stages")
        self.assertEqual(first.train("--ranks", RANKS, "--steps", 7, *overrides(*self.MESH)).returncode, 0)
        for number, (size, mesh) in enumerate(self.MESHES):
            with self.subTest(ranks=size, mesh=mesh):
                run = self.new_run(f"stages-{number}")
                shutil.copytree(first.out, run.out)
                done = run.train("--resume", "latest", "--ranks", size,
                                 *overrides("model.tied_head=false", *MODEL, *mesh))
                self.assertEqual(done.returncode, 0, done.stderr)
                # The run that ended at step 7 has one more validation.
                self.assertEqual(steps_only(run.records()), steps_only(self.reference.records()))


if __name__ == "__main__":
    test_ranks.main()
