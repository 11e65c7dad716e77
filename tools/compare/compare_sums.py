#!/usr/bin/env python3
"""Sums of gradients by PowerSGD in float64, from the formulas of arXiv 1905.13727, and by PyTorch's hook.

Run as compare_sums.py [--write], with PyTorch installed. Four processes pass PyTorch's powerSGD_hook the gradients of
some matrices for 20 steps, over gloo, and hold its sums against the formulas'. --write writes the latter to
tests/golden/powersgd.json, with which tests/unit/parallel/test_low_rank_sums.cpp compares gptrain. Ends with 1 if two
sums differ by more than 1e-9 of their norm.

Gradients are a function of matrix, rank, step and element: a sum of four products of vectors, which differ little
between ranks and steps, and noise. Each product is a fifth of the one before. Nearer sizes would let errors of rounding
grow from step to step: with halves, the formulas in float32 are 2.6e-3 from float64 after 20 steps, so 6e-6.
"""
import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "powersgd.json"
RANKS, STEPS, RANK = 4, 20, 2
SHAPES = [[108, 36], [36, 36], [144, 36], [36, 144]]
TOLERANCE = 1e-9
PORT = "29573"


def hashed(a, b, c, d):
    """Returns numbers in [-1, 1) without a pattern; `a` is a tensor of int64."""
    word = (a * 2654435761 + b * 40503 + c * 9973 + d * 7919) & 0xFFFFFFFF
    word = (word ^ (word >> 15)) * 2246822519 & 0xFFFFFFFF
    word = word ^ (word >> 13)
    return torch.where(word >= 1 << 31, word - (1 << 32), word).double() / (1 << 31)


def gradients(matrix, rank, step):
    rows, cols = SHAPES[matrix]
    sums = 0.02 * hashed(torch.arange(rows * cols), matrix + 100, rank, step).reshape(rows, cols)
    for k in range(4):
        size = 0.2 ** k * (1 + 0.3 * hashed(torch.tensor([k]), 77, rank, step))
        left = hashed(torch.arange(rows), matrix * 10 + k, 1, 0)
        sums += size * torch.outer(left, hashed(torch.arange(cols), matrix * 10 + k, 2, 0))
    return sums.float().double()


def first_factor(matrix):
    cols = SHAPES[matrix][1]
    return torch.stack([hashed(torch.arange(cols), matrix + 200, row, 5) for row in range(RANK)], 1).float().double()


def orthonormal(columns):
    columns = columns.clone()
    for i in range(columns.shape[1]):
        columns[:, i] /= columns[:, i].norm()
        for after in range(i + 1, columns.shape[1]):
            columns[:, after] -= (columns[:, after] @ columns[:, i]) * columns[:, i]
    return columns


def sums_by_formula(matrix):
    factor = first_factor(matrix)
    errors = [torch.zeros(SHAPES[matrix], dtype=torch.float64) for _ in range(RANKS)]
    found = []
    for step in range(STEPS):
        inputs = [gradients(matrix, rank, step) + errors[rank] for rank in range(RANKS)]
        left = orthonormal(sum(x @ orthonormal(factor) for x in inputs))
        factor = sum(x.T @ left for x in inputs)
        found.append(left @ factor.T)
        errors = [x - found[-1] / RANKS for x in inputs]
    return found


class Bucket:
    """The gradients of one matrix, as DistributedDataParallel would pass them."""

    def __init__(self, tensor):
        self.tensor = tensor

    def buffer(self):
        return self.tensor.view(-1)

    def index(self):
        return 0

    def gradients(self):
        return [self.tensor]

    def is_last(self):
        return True


def run_hook(rank, results):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for matrix, (rows, cols) in enumerate(SHAPES):
        state = power_sgd.PowerSGDState(process_group=None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
        state.iter = 2
        state.p_memory_dict[0] = torch.zeros(rows * RANK, dtype=torch.float64)
        state.q_memory_dict[0] = first_factor(matrix).reshape(-1).clone()
        for step in range(STEPS):
            mean = power_sgd.powerSGD_hook(state, Bucket(gradients(matrix, rank, step).clone())).wait()
            if rank == 0:
                results[matrix, step] = (mean.view(rows, cols) * RANKS).tolist()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(run_hook, (results,), RANKS)
        by_hook = {key: torch.tensor(value, dtype=torch.float64) for key, value in results.items()}
    largest, golden = 0.0, []
    for matrix, (rows, cols) in enumerate(SHAPES):
        found = sums_by_formula(matrix)
        for step in range(STEPS):
            largest = max(largest, ((found[step] - by_hook[matrix, step]).norm() / found[step].norm()).item())
        golden.append([{"norm": x.norm().item(),
                        "elements": [x[0, 0].item(), x[rows // 2, cols // 3].item(), x[rows - 1, cols - 1].item()]}
                       for x in found])
    print(f"{RANKS} processes, {STEPS} steps, rank {RANK}: largest difference from PyTorch {torch.__version__}'s "
          f"powerSGD_hook {largest:.1e}, allowed {TOLERANCE:.0e}")
    if write:
        GOLDEN.write_text(json.dumps({"ranks": RANKS, "rank": RANK, "shapes": SHAPES, "sums": golden}) + "\n",
                          encoding="utf-8")
    return int(largest > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
