"""Shared by test_patterns.py and tools/compare/compare_patterns.py: runs of a small model by patterns of attention, on a
corpus of known documents.

A step takes all samples of the corpus, so its batch is known whatever the order of samples. First moments are compared
by sums with random signs: the mean square of such a sum of a difference is the square of the difference's L2 norm.
"""
import array
import json
import random

import golden_run

PATTERNS = ["strided:16", "columns:8", "fixed:16,4", "fixed:16,3/2"]
SEQUENCE_LENGTH = 120  # no multiple of 64 or 16
SAMPLES = 8
STEPS = 10
SIGNED_SUMS = 24

MODEL = {"norm": "rmsnorm", "norm_eps": 1e-5, "positions": "rope", "rope_theta": 500.0, "activation": "swiglu",
         "bias": False, "tied_head": False, "num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2,
         "ffn_hidden_size": 48, "init_std": 0.12, "vocab_size": golden_run.VOCAB_SIZE,
         "sequence_length": SEQUENCE_LENGTH}


def documents():
    """Returns documents of 3 to 200 tokens, each with its end."""
    draw, left, result = random.Random(5), SAMPLES * SEQUENCE_LENGTH + 1, []
    while left > 0:
        size = min(left, draw.randrange(3, 200))
        size = left if left - size < 3 else size
        start = draw.randrange(26)
        letters = [ord("a") + (start + i * (1 + size % 3)) % 26 for i in range(size - 1)]
        result.append([*letters, golden_run.END_OF_DOCUMENT])
        left -= size
    return result


def samples():
    """Returns [(SEQUENCE_LENGTH + 1 tokens, their documents)]; neighbours share a token."""
    numbered = [(token, i) for i, tokens in enumerate(documents()) for token in tokens]
    return [tuple(zip(*numbered[first:first + SEQUENCE_LENGTH + 1]))
            for first in range(0, len(numbered) - 1, SEQUENCE_LENGTH)]


def write_corpus(gptrain, folder):
    """Writes the token file "corpus" in `folder`."""
    lines = [json.dumps({"text": bytes(tokens[:-1]).decode()}) for tokens in documents()]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    golden_run.run_gptrain(gptrain, folder, "data", "pack", "corpus.jsonl", "--out", "corpus", "--tokenizer", "bytes")


def config(pattern):
    """Returns a run config that keeps the checkpoint of its first step."""
    return {
        "model": {**MODEL, "attention_pattern": [pattern]},
        "data": {"train": [{"path": "corpus"}], "mask_documents": True},
        "batch": {"global": SAMPLES, "micro": SAMPLES // 2},
        "precision": {"compute": "fp32"},
        "optimizer": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0},
        "schedule": {"type": "cosine", "warmup_steps": 3, "min_lr": 3e-4},
        "checkpoint": {"every_steps": 1, "keep_last": STEPS},
        "run": {"steps": STEPS, "seed": 1, "out": "".join(c if c.isalnum() else "-" for c in pattern)},
    }


def train(gptrain, folder, settings):
    """Trains a config. Returns losses by step, and the folder of the first step's checkpoint."""
    losses = [record["loss"] for record in golden_run.train(gptrain, folder, settings)]
    return losses, folder / settings["run"]["out"] / "checkpoints" / "step-00000001"


def stored_values(checkpoint, kind):
    """Returns {name: values} of a checkpoint of one rank."""
    data = (checkpoint / "rank-00000.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    values = {}
    for name, tensor in json.loads(data[8:8 + size]).items():
        if name.startswith(kind + "/") and tensor["dtype"] == "F32":
            first, end = tensor["data_offsets"]
            values[name.removeprefix(kind + "/")] = array.array("f", data[8 + size + first:8 + size + end])
    return values


def signed_sums(name, values):
    """Returns sums of the values with signs that follow from the name."""
    draw, sums = random.Random(name), []
    for _ in range(SIGNED_SUMS):
        signs = f"{draw.getrandbits(len(values)):0{len(values)}b}"
        sums.append(2 * sum(value for value, sign in zip(values, signs) if sign == "1") - sum(values))
    return sums
