#!/usr/bin/env python3
"""Estimates a training step on a GPU, op by op, in the format of `gptrain train --profile-step`, so that a profile can
be compared line by line. Prints the table in tests/bench/NOTES.md.

A product takes whole waves of tiles over the multiprocessors at a large product's rate, or the time of its memory
traffic if that is longer; every wave adds its start and end. The sum over the depth may be split, which moves the
parts once more. Memory-bound ops run at 85% of the copy rate. Kernels of a graph have gaps between them.
"""
import math
from dataclasses import dataclass

COPY_SHARE = 0.85
GAP_SECONDS = 1.0e-6
TILE_SECONDS = 1.0e-6  # per wave of tiles: filling the pipeline and storing the result, where nothing hides it
STEP_SECONDS = 0.1e-3  # step begin and readback
TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.9), (64, 256, 0.8), (64, 128, 0.7))  # size, share of the rate
SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
PEAK = 989e12  # bf16, by the data sheet


@dataclass(frozen=True)
class Device:
    name: str
    matrix_rate: float  # measured FLOP/s of a large bf16 product on random numbers
    copy_rate: float  # measured bytes/s, read plus written
    multiprocessors: int = 132
    attention_forward: float = 320e12  # executed FLOP/s, causal, heads of 64, T = 1024, as reported by others
    attention_backward: float = 200e12  # with fixed bits


@dataclass(frozen=True)
class Model:
    name: str
    layers: int
    hidden: int
    heads: int
    batch: int
    length: int = 1024
    vocabulary: int = 50304
    chunk: int = 8192  # rows of logits at a time

    @property
    def rows(self):
        return self.batch * self.length

    @property
    def parameters(self):
        h = self.hidden
        return self.layers * (12 * h * h + 13 * h) + (self.vocabulary + self.length) * h + 2 * h


DEVICES = (Device("H100", 798e12, 3.0e12), Device("H200", 788e12, 4.3e12))
MODELS = (Model("124M", 12, 768, 12, 32), Model("1.5B", 48, 1600, 25, 16))


def memory_seconds(device, traffic):
    return traffic / (COPY_SHARE * device.copy_rate)


def product_seconds(device, rows, cols, depth, traffic, splits=(1,)):
    """Returns the time with the fastest tile and split. `traffic`: bytes that the product moves in any case."""
    fastest = math.inf
    for down, across, share in TILES:
        for split in splits:
            tiles = math.ceil(rows / down) * math.ceil(cols / across) * split
            of_tile = 2 * down * across * math.ceil(depth / split / 64) * 64 / (share * device.matrix_rate /
                                                                              device.multiprocessors)
            parts = memory_seconds(device, (2 * split if split > 1 else 0) * rows * cols * 4)
            fastest = min(fastest, math.ceil(tiles / device.multiprocessors) * (of_tile + TILE_SECONDS) + parts)
    return max(fastest, memory_seconds(device, traffic))


def linears(device, model, name, inputs, outputs, rows=None):
    """Returns {op: seconds} of one linear. `rows`: rows in a chunk of the head; None: all rows."""
    n = rows or model.rows
    read = 2 * (n * inputs + n * outputs + inputs * outputs)
    saved = 2 * n * outputs if name == "ffn_in" else 0  # the pre-activation
    before = 2 * n * inputs if name == "ffn_out" else 0
    splits = SPLITS if inputs * outputs < 2 ** 23 else (1,)
    return {"linear_forward": product_seconds(device, n, outputs, inputs, read + saved),
            "linear_backward_input": product_seconds(device, n, inputs, outputs, read + before),
            "linear_backward_weight": product_seconds(device, outputs, inputs, n,
                                                      2 * n * (inputs + outputs) + 8 * inputs * outputs, splits)}


def step(device, model):
    """Returns {op: (calls, seconds)} of one micro-batch and the update."""
    n, h, layers = model.rows, model.hidden, model.layers
    of_rows = memory_seconds(device, 2 * n * h)  # one pass over the residual stream
    ops = {}

    def add(op, calls, seconds):
        before = ops.get(op, (0, 0.0))
        ops[op] = (before[0] + calls, before[1] + calls * seconds)

    for name, inputs, outputs in (("qkv", h, 3 * h), ("out", h, h), ("ffn_in", h, 4 * h), ("ffn_out", 4 * h, h)):
        for op, seconds in linears(device, model, name, inputs, outputs).items():
            add(op, layers, seconds)
    for op, seconds in linears(device, model, "head", h, model.vocabulary, min(model.chunk, n)).items():
        add(op, max(1, n // model.chunk), seconds)
    attention = 2 * n * model.length * h  # FLOPs of two causal products
    add("attention_forward", layers, attention / device.attention_forward)
    add("attention_backward", layers, 2.5 * attention / device.attention_backward)
    add("norm_forward", layers + 1, 2 * of_rows)
    add("norm_forward", layers, 4 * of_rows)  # with the residual
    add("norm_backward", 2 * layers + 1, 4 * of_rows)
    add("residual_add", layers, 3 * of_rows)
    add("cross_entropy", max(1, n // model.chunk), memory_seconds(device, 4 * min(model.chunk, n) * model.vocabulary))
    add("embedding_forward", 1, 2 * of_rows)
    add("embedding_backward", 1, 5 * of_rows)
    add("squared_norm", 1, memory_seconds(device, 4 * model.parameters))
    add("adamw", 1, memory_seconds(device, 30 * model.parameters))
    # Products with a bias gradient in their epilogue, and backward of attention and norms, are two or more kernels.
    kernels = sum(calls for calls, _ in ops.values()) + 7 * layers
    ops["gaps"] = (kernels, kernels * GAP_SECONDS + STEP_SECONDS)
    return ops


def model_flops(model):
    """Counts as gptrain does: 6 FLOPs per weight of a product, and causal attention."""
    weights = 12 * model.layers * model.hidden ** 2 + model.vocabulary * model.hidden
    return 6 * model.rows * (weights + model.layers * model.hidden * model.length)


def main():
    columns = [(model, device, step(device, model)) for model in MODELS for device in DEVICES]
    print("| op | calls, 124M / 1.5B | " + " | ".join(f"{model.name} B={model.batch} {device.name}"
                                                     for model, device, _ in columns) + " |")
    print("|---|---|" + "---|" * len(columns))
    for op in columns[0][2]:
        calls = " / ".join(str(columns[place][2][op][0]) for place in (0, 2))
        print(f"| {op} | {calls} | " + " | ".join(f"{ops[op][1] * 1e3:.2f}" for _, _, ops in columns) + " |")
    totals = [sum(seconds for _, seconds in ops.values()) for _, _, ops in columns]
    print("| step, ms | | " + " | ".join(f"{total * 1e3:.1f}" for total in totals) + " |")
    for title, rate in (("of 989 TFLOP/s", lambda device: PEAK), ("of the measured rate", lambda device:
                                                                  device.matrix_rate)):
        print(f"| model FLOPs, {title} | | " + " | ".join(
            f"{model_flops(model) / total / rate(device):.1%}"
            for (model, device, _), total in zip(columns, totals, strict=True)) + " |")


if __name__ == "__main__":
    main()
