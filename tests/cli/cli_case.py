"""Shared by the tests of the command line: running gptrain as a user does, token files, and a tiny run config."""
import json
import math
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import NamedTuple

EXECUTABLE = Path(os.environ.get("GPTRAIN", "build/gptrain")).resolve()
SOURCE_ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE_ROOT / "tests"))
from busy import slowness

# In the background of a script SIGINT is ignored, and the programs that are started here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

FINISHED, USAGE, DATA, CHECKPOINT, DEVICE, DIVERGED, MACHINE, REQUEUE = 0, 2, 3, 4, 5, 6, 7, 75

# Ids 0-255 are bytes, 256 ends a document.
BYTES_VOCABULARY = 257
END_OF_DOCUMENT = 256

# Generous: a sanitizer build on a busy machine is many times slower than a release build.
TIMEOUT_SECONDS = 120 * slowness()

TINY_MODEL = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "vocab_size": BYTES_VOCABULARY, "sequence_length": 16}


def tiny_config(**sections):
    """Returns the config of a model of some thousand parameters; `sections` update sections by name."""
    config = {
        "model": dict(TINY_MODEL),
        "data": {"train": [{"path": "corpus"}]},
        "batch": {"global": 4, "micro": 2},
        "optimizer": {"lr": 0.01},
        "run": {"steps": 6, "out": "out", "threads": 1},
    }
    for name, values in sections.items():
        config.setdefault(name, {}).update(values)
    return config


def large_config():
    """Returns the config of a model too large for one machine."""
    config = tiny_config(precision={"compute": "bf16"}, memory={"recompute": "block"})
    config["model"] = {"preset": "megatron-145.6b"}
    return config


def is_sanitized():
    """Returns True if the executable has a sanitizer, whose memory then counts as the process's."""
    return b"__asan_init" in EXECUTABLE.read_bytes()


def not_of_some_cases(case):
    """Skips a long test in the fast suite under sanitizers; the suite "whole" runs it."""
    return unittest.skipIf(os.environ.get("TEST_CASES") == "some", "long under a sanitizer")(case)


def of_whole_suite(case):
    """Skips a long test in the fast suite, in both builds; the suite "whole" runs it."""
    return unittest.skipIf("TEST_CASES" in os.environ, "long")(case)


def first_in_fast_suite(number, cases):
    """Returns the first `number` of the cases in the fast suite, all in the suite "whole"."""
    return cases[:number] if "TEST_CASES" in os.environ else cases


def overrides(*settings):
    """Returns `--set` arguments, one for each "key.path=value"."""
    return [argument for setting in settings for argument in ("--set", setting)]


def write_tokens(prefix, tokens, dtype="H", sequence_lengths=None):
    """Writes a token file as described in data/README.md; `dtype` is H (u16) or i (i32)."""
    lengths = [len(tokens)] if sequence_lengths is None else sequence_lengths
    size = struct.calcsize("<" + dtype)
    starts = [size * sum(lengths[:i]) for i in range(len(lengths))]
    code = {"H": 8, "i": 4}[dtype]
    boundaries = range(len(lengths) + 1)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(boundaries))
    index += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(starts)}q", *starts)
    index += struct.pack(f"<{len(boundaries)}q", *boundaries)
    Path(f"{prefix}.idx").write_bytes(index)
    Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{len(tokens)}{dtype}", *tokens))


def overwrite(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


class Result(NamedTuple):
    code: int
    out: str
    err: str


class CliCase(unittest.TestCase):
    """Gives each test a temporary folder, the working directory of every gptrain that it starts."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gptrain-cli-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def path(self, name):
        return self.folder / name

    def run_gptrain(self, *arguments):
        done = subprocess.run([EXECUTABLE, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def succeed(self, *arguments):
        """Runs a command that must succeed; returns its standard output."""
        result = self.run_gptrain(*arguments)
        self.assertEqual(result.code, FINISHED, f"{arguments}: {result.err}\n{result.out[-2000:]}")
        return result.out

    def refuse(self, code, messages, *arguments):
        """Checks the exit code and that standard error holds every one of `messages`; returns standard error."""
        result = self.run_gptrain(*arguments)
        self.assertEqual(result.code, code, f"{arguments}: {result.err}\n{result.out[-2000:]}")
        for message in [messages] if isinstance(messages, str) else messages:
            self.assertIn(message, result.err, f"{arguments}")
        return result.err

    def write_config(self, config, name="run.json"):
        text = config if isinstance(config, str) else json.dumps(config)
        self.path(name).write_text(text, encoding="utf-8")
        return name

    def write_corpus(self, prefix="corpus", num_tokens=4000, vocab_size=BYTES_VOCABULARY):
        """Writes learnable tokens: mostly counting upwards."""
        draw = random.Random(1)
        tokens = [0]
        while len(tokens) < num_tokens:
            tokens.append((tokens[-1] + draw.choice((1, 1, 1, 7))) % min(vocab_size, 64))
        write_tokens(self.path(prefix), tokens)

    def write_run(self, **sections):
        """Writes a corpus and a config that trains on it; returns the config's name."""
        self.write_corpus()
        return self.write_config(tiny_config(**sections))

    def train(self, *arguments):
        return self.succeed("train", *arguments)

    def records(self, out="out", key="loss"):
        """Returns the records of metrics.jsonl that have `key`, in file order."""
        lines = self.path(out).joinpath("metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if key in record]

    def checkpoint(self, step, out="out"):
        return self.path(out) / "checkpoints" / f"step-{step:08}"

    def checkpoint_steps(self, out="out"):
        return sorted(int(path.name[5:]) for path in (self.path(out) / "checkpoints").glob("step-????????"))

    def assert_same_steps(self, records, expected):
        """Checks that two runs logged the same steps with the same values, except for times and speeds."""
        def repeatable(record):
            return {key: record[key] for key in ("step", "loss", "grad_norm", "lr", "tokens", "samples", "skipped")}
        self.assertEqual([repeatable(record) for record in records], [repeatable(record) for record in expected])

    def assert_same_checkpoint(self, first, second):
        """Checks that two checkpoints hold the same bits."""
        name = "rank-00000.safetensors"
        self.assertEqual((first / name).read_bytes(), (second / name).read_bytes(), f"{first} and {second} differ")

    def start(self, *arguments):
        """Starts a gptrain beside the test; it is killed when the test ends, if not before."""
        process = subprocess.Popen([EXECUTABLE, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        self.addCleanup(self._end, process)
        return process

    @staticmethod
    def _end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def wait_until(self, condition, process):
        """Polls until `condition()` holds; fails if `process` ends first."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            self.assertIsNone(process.poll(), "gptrain ended too early")
            self.assertLess(time.monotonic(), deadline, "waited in vain")
            time.sleep(0.01)


def unigram_entropy(tokens):
    counts = [tokens.count(token) for token in set(tokens)]
    return -sum(count / len(tokens) * math.log(count / len(tokens)) for count in counts)
