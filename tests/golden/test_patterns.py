#!/usr/bin/env python3
"""Compares ten steps by strided, columns and fixed attention with PyTorch's in float64 (tools/compare/compare_patterns.py).

Run as test_patterns.py GPTRAIN patterns.json. Samples have several documents, and query heads share keys. Losses are
within 1e-5 of the reference; the first moment of each tensor after a step is within 2e-5, relative, in the L2 norm. A
planted fault must be noticed: another pattern.
"""
import json
import math
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import pattern_run  # noqa: E402

LOSS_TOLERANCE = 1e-5
MOMENT_TOLERANCE = 2e-5


def distances(gptrain, folder, settings, golden):
    """Returns the largest difference of losses, and the largest relative distance of first moments."""
    losses, checkpoint = pattern_run.train(gptrain, folder, settings)
    moments = pattern_run.stored_values(checkpoint, "exp_avg")
    if sorted(moments) != sorted(golden["moments"]):
        raise RuntimeError(f"the tensors are {sorted(moments)}")
    farthest = 0.0
    for name, exact in golden["moments"].items():
        sums = pattern_run.signed_sums(name, moments[name])
        square = sum((a - b)**2 for a, b in zip(sums, exact["signed_sums"], strict=True)) / len(sums)
        farthest = max(farthest, math.sqrt(square) / exact["norm"])
    return max(abs(a - b) for a, b in zip(losses, golden["losses"], strict=True)), farthest


def main():
    gptrain, file = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    record = json.loads(file.read_text(encoding="utf-8"))
    faults = []
    with tempfile.TemporaryDirectory(prefix="gptrain-patterns-") as scratch:
        folder = Path(scratch)
        pattern_run.write_corpus(gptrain, folder)
        for pattern in pattern_run.PATTERNS:
            loss, moment = distances(gptrain, folder, pattern_run.config(pattern), record["patterns"][pattern])
            print(f"{pattern}: losses {loss:.1e}, first moments {moment:.1e}")
            # The comparison is false for NaN, which is thus a fault.
            if not (loss <= LOSS_TOLERANCE and moment <= MOMENT_TOLERANCE):
                faults.append(f"{pattern}: losses differ by {loss:.3g}, first moments by {moment:.3g}")
        planted = pattern_run.config("fixed:16,3")
        loss, moment = distances(gptrain, folder, planted, record["patterns"]["fixed:16,4"])
        print(f"fixed:16,3 for fixed:16,4: losses {loss:.1e}, first moments {moment:.1e}")
        if loss <= LOSS_TOLERANCE or moment <= MOMENT_TOLERANCE:
            faults.append("another pattern is not noticed")
    print("\n".join(faults) or "the steps are PyTorch's")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
