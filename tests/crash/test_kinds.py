#!/usr/bin/env python3
"""Runs of every kind are killed, by one rank or by all of them, at any moment: each goes on to the bits of an undisturbed run.

Run as test_kinds.py GPTRAIN HAS_MPI [--rounds N] [--kinds NAME,...] [--modes NAME,...] [--seed N] [options of unittest]; N:
kills of all kinds together, spread evenly over kinds and ways to carry messages.
"""
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import test_crash
import test_ranks
from busy import slowness
from test_ranks import DEVICE, MPIRUN_CRASHED, SLACK_SECONDS, Ranks, RanksRun, overrides

STEPS = 12
# A killed rank is noticed at once. A rank that starts slowly must not count as lost.
TIMEOUT_SECONDS = math.ceil(10 * min(slowness(), 6))
MODES = ("threads", "tcp", "mpi")
FOUR_LAYERS = {"num_layers": 4, "tied_head": False}
DISK = {"offload_optimizer": "disk", "disk_path": tempfile.gettempdir()}
TWO_SOURCES = [{"path": "train", "weight": 3}, {"path": "fitted", "weight": 1}]

# Sections of the config that a kind changes; "ranks": how many, or from which each start draws.
KINDS = {
    "zero-3": {"parallel": {"zero": 3}, "precision": {"compute": "bf16"}},
    "zero-2-tensor": {"parallel": {"tensor": 2, "sequence": True, "zero": 2}, "batch": {"micro": 2}},
    "zero-bubble": {"parallel": {"pipeline": 4, "pipeline_schedule": "zero-bubble"}, "model": FOUR_LAYERS},
    "interleaved": {"parallel": {"pipeline": 2, "pipeline_schedule": "interleaved", "zero": 1}, "model": FOUR_LAYERS},
    "zero-bubble-v": {"parallel": {"pipeline": 2, "pipeline_schedule": "zero-bubble-v", "zero": 2}, "model": FOUR_LAYERS,
                      "optimizer": {"type": "muon"}},
    "context": {"parallel": {"context": 2, "zero": 1}, "model": {"positions": "rope", "attention_pattern": ["dense", "band:8"]}},
    "experts": {"parallel": {"expert": 2, "expert_overflow": "drop"}, "model": {"bias": False, "moe": {"experts": 4, "top_k": 2}}},
    "disk": {"parallel": {"zero": 3}, "memory": {**DISK, "offload_parameters": "disk", "offload_gradients": "disk"}},
    "disk-pipeline": {"parallel": {"pipeline": 2}, "memory": DISK, "model": FOUR_LAYERS},
    "mixture-in-phases": {"data": {"train": TWO_SOURCES, "mask_documents": True, "phases": [
        {"until_step": 4, "weights": [1, 0]}, {"until_step": 9, "weights": [1, 1]}]}, "parallel": {"zero": 2}},
    "local-steps": {"parallel": {"local_steps": {"islands": 2, "every": 2, "outer": "nesterov"}}, "run": {"validate_every_steps": 4}},
    "int8-sums": {"comm": {"compression": {"kind": "int8", "min_elements": 1}}},
    "topk": {"comm": {"compression": {"kind": "topk", "min_elements": 1, "share": 0.1}}},
    "sketch": {"comm": {"compression": {"kind": "sketch", "min_elements": 1, "share": 0.04}}},
    "powersgd": {"comm": {"compression": {"kind": "powersgd", "min_elements": 1, "rank": 1}}},
    "powersgd-alternate": {"comm": {"compression": {"kind": "powersgd", "min_elements": 1, "rank": 1, "alternate": True}}},
    "int8-weights": {"parallel": {"zero": 3}, "precision": {"compute": "bf16"}, "comm": {"weights": "int8"}},
    "elastic": {"parallel": {"elastic": True, "zero": 1}, "batch": {"global": 12}, "ranks": (2, 3, 4, 5)},
    "elastic-pipeline": {"parallel": {"elastic": True, "pipeline": 2}, "batch": {"global": 12}, "ranks": (2, 4, 5),
                         "data": {"train": TWO_SOURCES}},
}

options = test_crash.options


class Kinds(test_ranks.RanksTest):
    @classmethod
    def setUpClass(cls):
        cls.make_folder()
        documents = cls.folder / "documents.jsonl"
        draw = random.Random(f"{options.seed} documents")
        documents.write_text("".join(json.dumps({"text": "".join(draw.choices("abcdefgh ", k=draw.randint(1, 40)))}) + "\n"
                                     for _ in range(300)), encoding="utf-8")
        packed = test_crash.gptrain("data", "pack", documents, "--out", cls.folder / "fitted", "--tokenizer", "bytes",
                                    "--best-fit", 24)
        if packed.returncode != 0:
            raise RuntimeError(f"data pack: {packed.stderr}")
        cls.references = {}

    def run_of(self, name, kind):
        run = RanksRun(self.folder / name, self.folder, ())
        sections = {key: dict(value) for key, value in KINDS[kind].items() if key != "ranks"}
        for source in sections.get("data", {}).get("train", ()):
            source["path"] = str(self.folder / os.path.basename(source["path"]))
        run.change(batch={"global": 8, "micro": 1}, run={"steps": STEPS, "threads": 1}, comm={"timeout_seconds": TIMEOUT_SECONDS})
        run.change(**sections)
        return run

    def start(self, run, kind, mode, ranks):
        return Ranks(self, mode, run.command("--resume", "latest"), run.log, size=ranks)

    def reference_of(self, kind):
        """Returns (run, seconds) of an undisturbed run as threads."""
        if kind not in self.references:
            run = self.run_of(f"reference-{kind}", kind)
            began = time.monotonic()
            ranks = self.start(run, kind, "threads", KINDS[kind].get("ranks", (4,))[-1])
            self.assertEqual(ranks.wait(), [0], ranks.output())
            self.references[kind] = (run, time.monotonic() - began)
        return self.references[kind]

    def kill(self, run, kind, mode, killer, draw):
        """Starts the run and kills one rank or all of them; returns False if it ended first."""
        before, size = run.newest_step(), draw.choice(KINDS[kind].get("ranks", (4,)))
        ranks = self.start(run, kind, mode, size)
        ranks.await_ranks()
        moment = killer.wait(ranks, run)
        victims = list(range(size)) if draw.random() < 0.3 else [draw.randrange(size)]
        if mode == "threads":
            victims = [0]
        killed = moment is not None and any([ranks.send(victim, signal.SIGKILL) for victim in victims])
        began = time.monotonic()
        codes, output = ranks.wait(), ranks.output()
        self.assert_within(time.monotonic() - began, TIMEOUT_SECONDS + SLACK_SECONDS, output)
        # mpirun ends with 1 if a rank that is done ends without the killed ones.
        of_mpirun = {1} if "\ndone: " in output and "exiting improperly" in output else set()
        self.assertLessEqual(set(codes), {0, DEVICE, -signal.SIGKILL, 128 + signal.SIGKILL, MPIRUN_CRASHED, *of_mpirun}, output)
        self.assertNotRegex(output, "internal error|Sanitizer|terminate called")
        self.assertEqual(ranks.left(), [])
        for step in run.saved_steps():
            verified = test_crash.gptrain("checkpoint", "verify", run.checkpoint(step))
            self.assertEqual(verified.returncode, 0, verified.stderr)
        self.assertGreaterEqual(run.newest_step(), max(before, run.announced_step()), "a checkpoint is lost")
        if not killed or set(codes) == {0}:
            self.assertEqual(set(codes), {0}, output)
            return False
        killer.count(moment, run)
        return True

    def finish(self, run, kind, mode):
        ranks = self.start(run, kind, mode, KINDS[kind].get("ranks", (4,))[-1])
        self.assertEqual(set(ranks.wait()), {0}, ranks.output())
        reference, _ = self.reference_of(kind)
        self.assertEqual((run.newest_step(), run.temporaries()), (STEPS, set()))
        records, expected = run.records(), reference.records()
        if "ranks" not in KINDS[kind]:
            state, sound = run.state(STEPS), reference.state(STEPS)
            self.assertEqual(state.keys(), sound.keys())
            self.assertEqual([(file, name) for file, tensors in sound.items() for name in tensors
                              if state[file][name] != tensors[name]], [], "tensors that differ")
            self.assertEqual(records, expected)
            return
        # Other ranks sum in another order.
        self.assertEqual([record.keys() for record in records], [record.keys() for record in expected])
        for ours, theirs in zip(records, expected):
            for key, value in theirs.items():
                if key in ("loss", "grad_norm", "validation_loss"):
                    self.assertAlmostEqual(float(ours[key]) / float(value), 1, delta=1e-4)
                else:
                    self.assertEqual(ours[key], value)

    def test_killed_at_any_moment(self):
        names = options.kinds.split(",") if options.kinds else list(KINDS)
        modes = self.modes(*(options.modes.split(",") if options.modes else MODES))
        pairs = [(kind, mode) for kind in names for mode in modes]
        draw = random.Random(options.seed)
        draw.shuffle(pairs)
        left = options.rounds
        for number, (kind, mode) in enumerate(pairs[:left]):
            share = -(-left // (min(len(pairs), options.rounds) - number))
            with self.subTest(kind=kind, mode=mode):
                self.kill_kind(kind, mode, share, draw)
            left -= share

    def kill_kind(self, kind, mode, num_kills, draw):
        _, seconds = self.reference_of(kind)
        killer = test_crash.Killer(draw, seconds / 2, seconds / (2 * STEPS))
        num_runs = 0
        while sum(killer.kills.values()) < num_kills:
            self.assertLess(num_runs, 3 * num_kills + 5, "the runs end before they can be killed")
            run = self.run_of(f"{kind}-{mode}-{num_runs}", kind)
            num_runs += 1
            while sum(killer.kills.values()) < num_kills:
                if not self.kill(run, kind, mode, killer, draw):
                    break
            self.finish(run, kind, mode)
            shutil.rmtree(run.out)
        print(f"{kind}, {mode}: killed by moment: {killer.kills}, while saving: {killer.kills_with_temporary}", flush=True)


if __name__ == "__main__":
    options.kinds = options.modes = ""
    arguments = sys.argv[1:]
    for name in ("kinds", "modes"):
        if f"--{name}" in arguments:
            at = arguments.index(f"--{name}")
            setattr(options, name, arguments[at + 1])
            del arguments[at:at + 2]
    sys.argv[1:] = arguments
    test_ranks.main()
