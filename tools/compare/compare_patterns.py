#!/usr/bin/env python3
"""Writes tests/golden/patterns.json: ten steps by patterns of attention in PyTorch, in float64.

Run as compare_patterns.py [--gptrain FILE], with PyTorch and transformers 5 installed. The initial weights are those of
gptrain's run, whose schedule has no other influence. The model and its masks are written from their definitions.
"""
import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import torch

sys.dont_write_bytecode = True
import compare_torch  # noqa: E402
from compare_torch import GOLDEN, ROOT  # noqa: E402  (finds the folder of pattern_run)
import golden_run  # noqa: E402
import pattern_run  # noqa: E402


def sees(pattern, head, query, key):
    """Returns whether a query sees a key of its document that is not behind it."""
    kind, sizes = pattern.split(":")
    if kind == "columns":
        return (query - key) % int(sizes) == 0
    if kind == "strided":
        return query - key < int(sizes) or (query - key) % int(sizes) == 0
    length, columns = sizes.split(",")
    columns, _, sets = columns.partition("/")
    length, columns = int(length), int(columns)
    end = length - head % int(sets or 1) * columns
    return query // length == key // length or end - columns <= key % length < end


def masks(pattern, documents):
    """Returns [sample][head][query][key]."""
    length, heads = pattern_run.SEQUENCE_LENGTH, pattern_run.MODEL["num_heads"]
    allowed = torch.tensor([[[k <= q and sees(pattern, h, q, k) for k in range(length)] for q in range(length)]
                            for h in range(heads)])
    same = documents[:, :, None] == documents[:, None, :]
    return allowed[None] & same[:, None]


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + pattern_run.MODEL["norm_eps"]) * weight


def rotated(x):
    """Applies the rotary embedding to [sample][head][token][feature]."""
    half = x.shape[-1] // 2
    frequencies = pattern_run.MODEL["rope_theta"] ** -(torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


def attention(x, weights, layer, mask):
    heads, kv_heads = pattern_run.MODEL["num_heads"], pattern_run.MODEL["num_kv_heads"]
    size = x.shape[-1] // heads
    projected = (x @ weights[f"{layer}.attention.qkv.weight"].T).unflatten(-1, (-1, size)).transpose(1, 2)
    q, k, v = projected.split([heads, kv_heads, kv_heads], 1)
    k, v = (part.repeat_interleave(heads // kv_heads, 1) for part in (rotated(k), v))
    scores = (rotated(q) @ k.transpose(2, 3) / math.sqrt(size)).masked_fill(~mask, -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return mixed @ weights[f"{layer}.attention.out.weight"].T


def loss_of(weights, inputs, targets, mask):
    x = weights["embedding.token"][inputs]
    layers = sorted({name.rsplit(".norm1.", 1)[0] for name in weights if ".norm1." in name})
    for layer in layers:
        x = x + attention(norm(x, weights[f"{layer}.norm1.weight"]), weights, layer, mask)
        gate, up = (norm(x, weights[f"{layer}.norm2.weight"]) @ weights[f"{layer}.ffn.in.weight"].T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ weights[f"{layer}.ffn.out.weight"].T
    logits = norm(x, weights["head.norm.weight"]) @ weights["head.weight"].T
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def reference(initial, settings, pattern):
    """Returns the record of a pattern: losses, and the first moments after a step."""
    weights = {name: tensor.double().requires_grad_() for name, tensor in initial.items()}
    tokens, documents = (torch.tensor(part) for part in zip(*pattern_run.samples()))
    inputs, targets, mask = tokens[:, :-1], tokens[:, 1:], masks(pattern, documents[:, :-1])
    optimizer, values = settings["optimizer"], list(weights.values())
    update = compare_torch.torch_adamw([{"params": [p for p in values if p.dim() >= 2],
                                         "weight_decay": optimizer["weight_decay"]},
                                        {"params": [p for p in values if p.dim() == 1], "weight_decay": 0.0}],
                                       optimizer)
    losses, moments = [], {}
    for step in range(pattern_run.STEPS):
        loss = loss_of(weights, inputs, targets, mask)
        losses.append(loss.item())
        update.zero_grad()
        loss.backward()
        total = math.sqrt(sum(p.grad.square().sum().item() for p in values))
        for p in values:
            p.grad *= min(1.0, optimizer["clip_norm"] / total)
        for group in update.param_groups:
            group["lr"] = compare_torch.learning_rate(settings, step)
        update.step()
        for name, p in weights.items() if step == 0 else ():
            moment = update.state[p]["exp_avg"]
            moments[name] = {"norm": moment.norm().item(),
                             "signed_sums": pattern_run.signed_sums(name, moment.flatten().tolist())}
    return {"losses": losses, "moments": moments}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gptrain", type=Path, default=ROOT / "build" / "gptrain", help="the executable")
    gptrain = parser.parse_args().gptrain.resolve()
    record = {"made_by": "tools/compare/compare_patterns.py", "torch": torch.__version__.split("+")[0],
              "dtype": "float64", "patterns": {}}
    with tempfile.TemporaryDirectory(prefix="gptrain-patterns-") as scratch:
        folder = Path(scratch)
        pattern_run.write_corpus(gptrain, folder)
        for pattern in pattern_run.PATTERNS:
            settings = pattern_run.config(pattern)
            still = {**settings, "schedule": {"type": "linear", "min_lr": 0},
                     "run": {**settings["run"], "steps": 1, "out": settings["run"]["out"] + "-still"}}
            golden_run.train(gptrain, folder, still)  # at a learning rate of 0
            checkpoint = folder / still["run"]["out"] / "checkpoints" / "step-00000001"
            record["patterns"][pattern] = reference(compare_torch.stored_tensors(checkpoint, "weight"), settings,
                                                    pattern)
    (GOLDEN / "patterns.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
