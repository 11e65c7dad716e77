#!/usr/bin/env python3
"""Runs of 20 steps with state on disk, resumed half-way, have the bytes of runs in memory.

Run as test_places.py GPTRAIN [--cases N] [--seed N] [options of unittest]. Without --cases all combinations of optimizer,
ZeRO stage, stages of the pipeline and precision are run.
"""
import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import test_crash
from test_crash import gptrain, read_safetensors, write_corpus

STEPS = 20
OPTIMIZERS = ("adamw", "adamw-8bit", "lion", "sgd", "adafactor", "muon", "lamb", "lars")
WITHOUT_GRADIENTS = ("adafactor", "muon")  # replace the gradients of all layers in memory
options = argparse.Namespace()


def state_of(out):
    """Returns all tensors of the last checkpoint, by file."""
    folder = out / f"checkpoints/step-{STEPS:08}"
    return {path.name: read_safetensors(path) for path in sorted(folder.glob("rank-*.safetensors"))}


class Places(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="gptrain-places-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        write_corpus(self.folder / "text", random.Random(3), 4000)
        packed = gptrain("data", "pack", self.folder / "text", "--tokenizer", "bytes", "--out", self.folder / "train")
        self.assertEqual(packed.returncode, 0, packed.stderr)

    def write_config(self, optimizer, zero, pipeline, precision):
        config = {"model": {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "vocab_size": 257,
                            "sequence_length": 24, "dropout": 0.1},
                  "data": {"train": [{"path": str(self.folder / "train")}]},
                  "batch": {"global": 8, "micro": 2},
                  "parallel": {"zero": zero, "pipeline": pipeline},
                  "precision": {"compute": precision},
                  "optimizer": {"type": optimizer, "lr": 2e-3, "clip_norm": 0.5},
                  "checkpoint": {"every_steps": STEPS // 2, "asynchronous": False},
                  "run": {"steps": STEPS, "seed": 11, "threads": 1, "device": "cpu"}}
        path = self.folder / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def train(self, config, pipeline, out, *arguments):
        done = gptrain("train", config, "--ranks", 2 * pipeline, "--set", f"run.out={out}", *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def on_disk(self, optimizer, zero):
        away = ["optimizer", *["parameters"] * (zero == 3),
                *["gradients"] * (zero >= 2 and optimizer not in WITHOUT_GRADIENTS)]
        settings = [f"memory.offload_{what}=disk" for what in away] + [f"memory.disk_path={self.folder}"]
        return [word for setting in settings for word in ("--set", setting)]

    def test_twenty_steps_and_a_resume(self):
        cases = list(itertools.product(OPTIMIZERS, range(4), (1, 2), ("fp32", "bf16")))
        if options.cases:
            cases = random.Random(options.seed).sample(cases, options.cases)
        for optimizer, zero, pipeline, precision in cases:
            with self.subTest(optimizer=optimizer, zero=zero, pipeline=pipeline, precision=precision):
                config = self.write_config(optimizer, zero, pipeline, precision)
                memory, disk = self.folder / "memory", self.folder / "disk"
                self.train(config, pipeline, memory)
                for arguments in (["--steps", STEPS // 2], ["--resume"]):
                    self.train(config, pipeline, disk, *self.on_disk(optimizer, zero), *arguments)
                expected, found = state_of(memory), state_of(disk)
                self.assertEqual(list(expected), list(found))
                self.assertEqual([name for name in expected if expected[name] != found[name]], [])
                self.assertGreater(sum(map(len, expected.values())), 0)
                for out in (memory, disk):
                    shutil.rmtree(out)
        print(f"{len(cases)} cases of {STEPS} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("gptrain")
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options, rest = parser.parse_known_args()
    test_crash.options = options
    unittest.main(argv=[sys.argv[0], *rest])
