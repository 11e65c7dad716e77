#!/usr/bin/env python3
"""Weights that 0/1 Adam finds in float64, from the formulas of arXiv 2202.06009.

Run as zero_one_adam.py [--write], with PyTorch installed. Three ranks train the matrices of one block for 20 steps, of
which 5 update variances, 3 sum gradients as signs, and 12 are local, with 7 exchanges. Gradients are a function of
element, rank and step. --write writes the weights to tests/golden/zero-one-adam.json, with which
tests/unit/optim/test_zero_one_adam.cpp compares gptrain. Ends with 1 if a value is so close to 0 that rounding may turn
its sign.

As in gptrain, a code has a scale for every 128 neighbours, elements whose variance is 0 keep their weight, and decay
reads the weight of the last exchange.
"""
import argparse
import json
import sys
from pathlib import Path

import torch

sys.dont_write_bytecode = True
from compare_sums import hashed  # noqa: E402

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "zero-one-adam.json"
RANKS, STEPS, BLOCK, UNIT = 3, 20, 128, 1
RATE, BETA1, BETA2, EPS, DECAY = 1e-2, 0.9, 0.999, 1e-8, 0.1
VARIANCE_STEPS, FREEZE, EXCHANGES = [1, 2, 4, 6, 8], 8, [9, 10, 11, 12, 14, 16, 20]
TOO_NEAR = 1e-6
# First element and number of elements of the parts of coded matrices that lie in one rank's piece.
RUNS = [[1152, 3888], [5120, 640], [5760, 656], [6528, 4992], [11520, 192], [11776, 5184]]


class Signs:
    """Sums over ranks, as codes of 1 bit with errors that ranks and pieces keep."""

    def __init__(self, elements):
        self.worker = [torch.zeros(elements, dtype=torch.float64) for _ in range(RANKS)]
        self.server = torch.zeros(elements, dtype=torch.float64)
        self.nearest = 1.0

    def code(self, values):
        """Returns the coded values and their errors."""
        coded = torch.empty_like(values)
        for first in range(0, len(values), BLOCK):
            part = values[first:first + BLOCK]
            scale = part.square().mean().sqrt()
            near = part[part != 0].abs().min() if part.any() else scale  # exact zeros have no sign to lose
            self.nearest = min(self.nearest, (near / scale).item() if scale > 0 else 1.0)
            coded[first:first + BLOCK] = torch.where(part >= 0, scale, -scale)
        return coded, values - coded

    def sum(self, shares):
        total = 0
        for rank, share in enumerate(shares):
            coded, self.worker[rank] = self.code(share + self.worker[rank])
            total = total + coded
        coded, self.server = self.code(total + self.server)
        return coded


def gradients(run, step):
    """Returns each rank's share of the mean gradient of a run of elements."""
    elements = torch.arange(run[0], run[0] + run[1])
    sizes = (0.1 + (elements % 7).float()).double()
    late = (elements % 11 == 3) & (step <= FREEZE)  # no gradients before the variances freeze
    return [torch.where(late, 0.0, (hashed(elements, UNIT, rank, step).float() * sizes.float()).double())
            for rank in range(RANKS)]


def train(run):
    zeros = torch.zeros(run[1], dtype=torch.float64)
    weight, moment, variance, signs = zeros, zeros, zeros, Signs(run[1])
    nearest = 1.0
    for step in range(1, FREEZE + 1):
        shares = gradients(run, step)
        gradient = sum(shares) if step in VARIANCE_STEPS else signs.sum(shares)
        moment = BETA1 * moment + (1 - BETA1) * gradient
        if step in VARIANCE_STEPS:
            variance = BETA2 * variance + (1 - BETA2) * gradient.square()
        root = variance.sqrt() + EPS
        weight = weight - RATE * (torch.where(variance == 0, 0.0, moment / root) + DECAY * weight)
    nearest, signs = signs.nearest, Signs(run[1])
    moments, sums, rates, decayed = [moment] * RANKS, [zeros] * RANKS, 0.0, weight
    for step in range(FREEZE + 1, STEPS + 1):
        own = [RANKS * share for share in gradients(run, step)]
        moments = [BETA1 * m + (1 - BETA1) * g for m, g in zip(moments, own)]
        sums = [u + RATE * m for u, m in zip(sums, moments)]
        rates += RATE
        decayed = decayed - RATE * DECAY * decayed
        if step not in EXCHANGES:
            continue
        mean = signs.sum([torch.where(variance == 0, 0.0, u / RANKS) for u in sums])
        mean = torch.where(variance == 0, 0.0, mean)
        decayed = weight = decayed - mean / root
        moments, sums, rates = [mean / rates] * RANKS, [zeros] * RANKS, 0.0
    return weight, min(nearest, signs.nearest)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    found, nearest = [], 1.0
    for run in RUNS:
        weight, near = train(run)
        nearest = min(nearest, near)
        found.append({"run": run, "norm": weight.norm().item(),
                      "elements": [weight[0].item(), weight[run[1] // 2].item(), weight[-1].item()]})
    print(f"{STEPS} steps of {len(RUNS)} parts: the value nearest to 0 is {nearest:.1e} of its block's scale, allowed "
          f"{TOO_NEAR:.0e}")
    if write:
        GOLDEN.write_text(json.dumps({"ranks": RANKS, "steps": STEPS, "parts": found}) + "\n", encoding="utf-8")
    return int(nearest < TOO_NEAR)


if __name__ == "__main__":
    sys.exit(main())
