#!/usr/bin/env python3
"""Times whole training steps of gptrain and of PyTorch on this CPU, side by side, and prints one table.

Run by tools/bench_cpu.sh. For each shape and precision, gptrain, PyTorch eager and PyTorch compiled take turns for
several rounds, in a new process each, so that a slowdown of the machine affects all three. A figure is the median over
all timed steps of all rounds; the ratio compares gptrain with the faster PyTorch. MFU is gptrain's: model FLOPs over
the matrix rate that it measures at its start.

--against names another gptrain binary, e.g. of an older commit. The two binaries then take turns, in alternating
order, and the table shows how much faster the first is: the median of the rounds' ratios, and the interval that holds
the true median with a probability of 90%.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Sequences, tokens, untimed steps, timed steps.
SHAPES = {"small": (4, 64, 3, 8), "long": (1, 1024, 2, 4), "large": (8, 1024, 1, 2)}
# Waiting threads spin as briefly as gptrain's: OpenMP's default makes PyTorch several times slower when other work
# shares the cores.
TORCH_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000"}


def write_tokens(prefix, count, vocab):
    """Writes a Megatron .bin/.idx pair with one document of random 16-bit tokens."""
    rng = random.Random(1)
    with open(f"{prefix}.bin", "wb") as file:
        file.write(struct.pack(f"<{count}H", *(rng.randrange(vocab) for _ in range(count))))
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 1, 2))
        file.write(struct.pack("<iqqq", count, 0, 0, 1))


def output_of(command, environment=None):
    """Returns the command's output; ends the program with the command's messages if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}error: {' '.join(command)} failed (exit {done.returncode})")
    return done.stdout


def train_124m(gptrain, folder, settings, *arguments):
    """Trains on the folder's tokens without saving; returns the output and the step records."""
    out = folder / "run"
    settings = {
        "data.train": json.dumps([{"path": str(folder / "tokens")}]),
        "data.validation": "[]",
        "checkpoint.every_steps": 0,
        "schedule.warmup_steps": 1,
        "run.out": json.dumps(str(out)),
    } | settings
    command = [gptrain, "train", str(HERE.parent / "configs/gpt2-124m.json"), *arguments]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    shutil.rmtree(out, ignore_errors=True)
    output = output_of(command)
    return output, [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def run_gptrain(gptrain, options, folder, shape, dtype):
    """Returns the seconds and the MFU of each timed step."""
    batch, length, untimed, timed = SHAPES[shape]
    _, records = train_124m(gptrain, folder, {
        "model.sequence_length": length,
        "batch.global": batch,
        "batch.micro": batch,
        "precision.compute": json.dumps(dtype),
        "run.threads": options.threads,
        "run.steps": untimed + timed,
    })
    return [r["step_seconds"] for r in records[untimed:]], [r["mfu"] for r in records[untimed:]]


def run_torch(options, shape, dtype, compiled):
    """Returns the seconds of each timed step."""
    batch, length, untimed, timed = SHAPES[shape]
    command = [options.python, str(HERE / "bench" / "bench_torch.py"), "--batch", str(batch), "--length", str(length)]
    command += ["--dtype", dtype, "--untimed", str(untimed), "--steps", str(timed), "--threads", str(options.threads)]
    command += ["--compile"] if compiled else []
    return json.loads(output_of(command, TORCH_ENVIRONMENT | os.environ).splitlines()[-1])["seconds"]


def measure(options, folder, shape, dtype):
    """Prints one row of the table."""
    batch, length = SHAPES[shape][:2]
    seconds = {"gptrain": [], "eager": [], "compiled": []}
    utilizations = []
    for _ in range(options.rounds):
        step_seconds, mfu = run_gptrain(options.gptrain, options, folder, shape, dtype)
        seconds["gptrain"] += step_seconds
        utilizations += mfu
        for contender in ("eager", "compiled"):
            seconds[contender] += run_torch(options, shape, dtype, contender == "compiled")
    median = {key: statistics.median(values) for key, values in seconds.items()}
    best = min(median["eager"], median["compiled"])
    return (f"B={batch} T={length:<7}{dtype:<7}" + "".join(f"{value * 1e3:>10.0f}" for value in median.values()) +
            f"{batch * length / median['gptrain']:>15.0f}{best / median['gptrain']:>8.2f}"
            f"{statistics.median(utilizations):>8.0%}{os.getloadavg()[0]:>7.1f}")


def interval_of_median(values):
    """Returns the order statistics between which the true median lies with a probability of at least 90%.

    The number of values below the true median is binomial, so no distribution of the values is assumed.
    """
    values = sorted(values)
    count = len(values)
    below = 0  # most values that can be left out at each end
    tail = 0.5**count
    while below + 1 < (count + 1) // 2:
        tail += math.comb(count, below + 1) * 0.5**count
        if 2 * tail > 0.1:
            break
        below += 1
    return values[below], values[count - 1 - below]


def compare(options, folder, shape, dtype):
    """Prints one row of the table that compares two gptrain binaries."""
    batch, length = SHAPES[shape][:2]
    programs = [options.gptrain, options.against]
    medians = {program: [] for program in programs}
    for turn in range(options.rounds):
        for program in programs[::-1 if turn % 2 else 1]:
            medians[program].append(statistics.median(run_gptrain(program, options, folder, shape, dtype)[0]))
    ratios = [other / own for own, other in zip(medians[options.gptrain], medians[options.against])]
    low, high = interval_of_median(ratios)
    return (f"B={batch} T={length:<7}{dtype:<7}" +
            "".join(f"{statistics.median(medians[program]) * 1e3:>10.0f}" for program in programs) +
            f"{statistics.median(ratios):>8.3f}{low:>8.3f} to {high:.3f}{os.getloadavg()[0]:>7.1f}")


def print_comparison(options):
    """Prints the table that compares two gptrain binaries."""
    print(f"GPT-2 124M, {options.threads} threads, forward + backward + update; milliseconds a step, medians of "
          f"{options.rounds} rounds of {options.gptrain} and {options.against}")
    print(f"{'shape':<11}{'dtype':<7}{'first':>10}{'against':>10}{'ratio':>8}{'90% interval':>17}{'load':>7}")
    with prepared_tokens() as folder:
        for shape in options.shapes:
            for dtype in options.dtypes:
                print(compare(options, folder, shape, dtype), flush=True)


@contextlib.contextmanager
def prepared_tokens():
    """Yields a temporary folder that holds the tokens."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokens(folder / "tokens", 1 << 18, 50257)
        yield folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gptrain", default="build/gptrain")
    parser.add_argument("--against", metavar="GPTRAIN", help="compare with this gptrain instead of PyTorch")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--dtypes", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    options = parser.parse_args()
    if options.against:
        print_comparison(options)
        return

    version = output_of([options.python, "-c", "import torch; print(torch.__version__)"]).strip()
    print(f"GPT-2 124M, {options.threads} threads, forward + backward + update, PyTorch {version}; milliseconds a "
          f"step, medians of {options.rounds} rounds")
    print(f"{'shape':<11}{'dtype':<7}{'gptrain':>10}{'eager':>10}{'compiled':>10}{'gptrain tok/s':>15}{'ratio':>8}"
          f"{'MFU':>8}{'load':>7}")
    with prepared_tokens() as folder:
        for shape in options.shapes:
            for dtype in options.dtypes:
                print(measure(options, folder, shape, dtype), flush=True)


if __name__ == "__main__":
    main()
