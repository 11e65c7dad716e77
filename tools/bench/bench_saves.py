#!/usr/bin/env python3
"""Times steps during which a checkpoint is written against other steps, and the loop's wait for the snapshot copy.

GPT-2 124M, T=256, run.threads 1 so that a core is free, a checkpoint every 4 steps. A step counts as during a save if
it begins before the checkpoint is durable; the first steps, which set things up, do not count. The share of the
machine that other processes use is printed with the figures.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bench_cpu import train_124m, write_tokens  # noqa: E402

EVERY = 4
FIRST_COUNTED = 2 * EVERY  # the first save touches its memory for the first time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gptrain", default="build/gptrain")
    parser.add_argument("--saves", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--folder", help="where the run and its checkpoints lie; default: the system's for temporary files")
    options = parser.parse_args()
    if not pathlib.Path(options.gptrain).is_file():
        sys.exit(f"{options.gptrain} is not there: build it first, or name it with --gptrain")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        write_tokens(folder / "tokens", 1 << 18, 50257)
        before = os.getloadavg()[0]
        _, records = train_124m(options.gptrain, folder, {
            "model.sequence_length": 256,
            "batch.global": options.batch,
            "batch.micro": min(4, options.batch),
            "precision.compute": json.dumps(options.precision),
            "run.threads": 1,
            "run.steps": FIRST_COUNTED + EVERY * (options.saves + 1) - 1,  # the last save ends before the run does
            "checkpoint.every_steps": EVERY,
            "checkpoint.keep_last": 1,
        })
    beside, without, costs, durable = [], [], [], []
    left = 0.0  # seconds until the last checkpoint is durable
    for record in records:
        counts = record["step"] > FIRST_COUNTED
        if counts:
            (beside if left > 0 else without).append(record["step_seconds"])
        left -= record["step_seconds"]
        if "checkpoint_cost_seconds" in record:
            saved = next((later["checkpoint_durable_seconds"] for later in records
                          if later["step"] > record["step"] and "checkpoint_durable_seconds" in later), None)
            if saved is None:
                break  # the save at the end of the run
            left = saved - record["checkpoint_cost_seconds"]
            if counts:
                costs.append(record["checkpoint_cost_seconds"])
                durable.append(saved)
    ratio = statistics.median(beside) / statistics.median(without)
    print(f"{len(beside)} steps beside {len(costs)} saves: {statistics.median(beside) * 1e3:.0f} ms (median)")
    print(f"{len(without)} steps without: {statistics.median(without) * 1e3:.0f} ms; ratio {ratio:.3f}")
    print(f"copy: {statistics.median(costs) * 1e3:.0f} ms, most {max(costs) * 1e3:.0f} ms; "
          f"durable after {statistics.median(durable):.2f} s, most {max(durable):.2f} s")
    print(f"load of the machine before and after: {before:.1f}, {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
