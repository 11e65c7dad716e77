"""Shared by the golden losses and tools/compare/compare_torch.py: a corpus of known samples, and running gptrain on it.

A step takes all samples of the corpus, so every step is one epoch and its batch is known whatever the order of
samples; only the order of sums depends on it.
"""
import json
import subprocess

SEQUENCE_LENGTH = 64
SAMPLES = 32
VOCAB_SIZE = 257  # the tokenizer "bytes": 256 bytes and the end of a document
END_OF_DOCUMENT = 256


def corpus_text():
    """Returns all tokens except one of SAMPLES samples, as bytes: mostly counting upwards, with jumps, over every
    value."""
    state, value, text = 1, 0, bytearray()
    while len(text) < SAMPLES * SEQUENCE_LENGTH:
        state = (1664525 * state + 1013904223) % 2**32  # a linear congruential generator: the same everywhere
        value = (value + (1 if state >> 30 else state >> 8)) % 256
        text.append(value)
    return bytes(text)


def corpus_samples():
    """Returns lists of SEQUENCE_LENGTH + 1 tokens; neighbours share one."""
    tokens = [*corpus_text(), END_OF_DOCUMENT]
    return [tokens[first:first + SEQUENCE_LENGTH + 1] for first in range(0, len(tokens) - 1, SEQUENCE_LENGTH)]


def run_gptrain(gptrain, folder, *arguments):
    """Runs a gptrain that must succeed in `folder`; returns its standard output."""
    done = subprocess.run([gptrain, *map(str, arguments)], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"gptrain {' '.join(map(str, arguments))} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def write_corpus(gptrain, folder):
    """Writes the token file "corpus" in `folder`."""
    text = folder / "corpus.txt"
    text.write_bytes(corpus_text())
    run_gptrain(gptrain, folder, "data", "pack", text, "--out", "corpus", "--tokenizer", "bytes", "--format", "text")


def train(gptrain, folder, config):
    """Trains `config`, whose run.out is a new folder in `folder`, and returns the records of its steps."""
    out = folder / config["run"]["out"]
    file = folder / f"{out.name}.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    run_gptrain(gptrain, folder, "train", file)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
