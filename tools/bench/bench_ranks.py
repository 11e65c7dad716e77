#!/usr/bin/env python3
"""Times two ranks of one thread against one rank of two threads, and the time that ranks wait for each other.

GPT-2 124M, bf16, ZeRO 1, ranks as threads of one process. First figure: speed at T=256 and a global batch of 64; the
two layouts take turns for several rounds, in a new process each; medians over all steps except the first of each.
Second figure: exposed communication of one step at T=64 and a global batch of 2, where little work hides it: the time
that rank 0 waits for others in that step's profile. Third figure: speed of two pipeline stages of one thread against
one rank of two threads, with 16 micro-batches, beside the step time simulated with a profile of this machine that is
measured first.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bench_cpu import train_124m, write_tokens  # noqa: E402


def train(options, folder, ranks, threads, length, batch, micro, steps, *arguments):
    """Returns a run's output and its step records."""
    return train_124m(options.gptrain, folder, {
        "model.sequence_length": length,
        "batch.global": batch,
        "batch.micro": micro,
        "parallel.zero": 1 if ranks > 1 else 0,
        "precision.compute": '"bf16"',
        "precision.reduce": json.dumps(options.reduce),
        "run.threads": threads,
        "run.steps": steps,
    }, "--ranks", str(ranks), *arguments)


def measure_speed(options, folder):
    seconds = {"1 rank of 2 threads": [], "2 ranks of 1 thread": []}
    for _ in range(options.rounds):
        for ranks, times in zip((1, 2), seconds.values()):
            _, records = train(options, folder, ranks, 2 // ranks, 256, 64, options.micro, options.steps + 1)
            times += [record["step_seconds"] for record in records[1:]]  # the first step sets things up
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name}: {median * 1e3:8.0f} ms a step, {64 * 256 / median:8.0f} tokens/s")
    one, two = medians.values()
    print(f"two ranks reach {one / two:.1%} of one")


def measure_exposed(options, folder):
    steps = 6
    print(f"\nglobal batch 2, T=64, step {steps}:")
    output, _ = train(options, folder, 2, 1, 64, 2, 1, steps, "--profile-step", str(steps))
    print(output[output.index("profile of step"):])


def planned_seconds(options, folder, profile, ranks, overrides):
    """Returns a step's seconds as the dry run simulates it with this machine's profile."""
    arguments = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    config = folder / "planned.json"
    config.write_text(json.dumps({
        "model": {"preset": "gpt2-124m"}, "data": {"train": [{"path": "tokens"}]}, "batch": {"global": 16, "micro": 1},
        "optimizer": {"lr": 1e-4}, "run": {"steps": 1, "out": "none", "device": "cpu"}}), encoding="utf-8")
    plan = subprocess.run([options.gptrain, "train", config, "--dry-run", "--json", "--target", profile, "--ranks",
                           str(ranks), *arguments], check=True, capture_output=True, text=True)
    return json.loads(plan.stdout)["step_seconds"]


def measure_stages(options, folder):
    overrides = {"model.sequence_length": 256, "batch.global": 16, "batch.micro": 1, "precision.compute": '"bf16"'}
    staged = {**overrides, "parallel.pipeline": 2, "parallel.pipeline_schedule": json.dumps(options.schedule)}
    configs = {"1 rank of 2 threads": (1, {**overrides, "run.threads": 2}),
               "2 stages of 1 thread": (2, {**staged, "run.threads": 1})}
    profile = folder / "machine.json"
    subprocess.run([options.gptrain, "bench", "device", "--out", profile], check=True, stdout=subprocess.DEVNULL)
    seconds = {name: [] for name in configs}
    for _ in range(options.pairs):
        for name, (ranks, config) in configs.items():
            _, records = train_124m(options.gptrain, folder, {**config, "run.steps": options.steps + 1},
                                    "--ranks", str(ranks))
            seconds[name].append(statistics.median(record["step_seconds"] for record in records[1:]))
    print(f"\n16 micro-batches, T=256, {options.schedule}, {options.pairs} alternated pairs:")
    for name, (ranks, config) in configs.items():
        measured, planned = statistics.median(seconds[name]), planned_seconds(options, folder, profile, ranks, config)
        print(f"{name}: {measured * 1e3:8.0f} ms a step, simulated {planned * 1e3:8.0f} ms ({measured / planned - 1:+.1%})")
    ratio = statistics.median(one / two for one, two in zip(*seconds.values()))
    print(f"two stages reach {ratio:.1%} of one rank (median of the pairs)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gptrain", default="build/gptrain")
    parser.add_argument("--micro", type=int, default=8, help="sequences of a micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=9, help="of runs of one rank and of two stages")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of each run")
    parser.add_argument("--reduce", choices=["fp32", "bf16"], default="fp32", help="dtype of the gradients' sums")
    parser.add_argument("--schedule", default="1f1b", help="of the two stages")
    options = parser.parse_args()
    if not pathlib.Path(options.gptrain).is_file():
        sys.exit(f"{options.gptrain} is not there: build it first, or name it with --gptrain")

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokens(folder / "tokens", 1 << 18, 50257)
        measure_speed(options, folder)
        measure_exposed(options, folder)
        measure_stages(options, folder)


if __name__ == "__main__":
    main()
