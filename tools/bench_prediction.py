#!/usr/bin/env python3
"""Compares predicted with measured steps on this machine: runs `gptrain bench device` and then ten configs, in turns.

Each turn measures a profile and then runs every config once, in a process each. A config's prediction is the median
over the turns' profiles; its measured step is the median over all steps except the first two of each run. If other
work shares the machine, these figures mostly describe that work; the shortest step is therefore shown beside the
prediction from the profile's quick runs alone, without its stretch. Then the timeline of a profiled step of each
config is compared with the simulated one: actions and their order must be the same. For actions that take at least a
thousandth of the step, the median error of their lengths is shown, by the profile and by its quick runs alone. Other
work on the machine lengthens a few actions of a step, which the median over several runs leaves out.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import NamedTuple

from bench_cpu import write_tokens

VOCABULARY = 4096


class Case(NamedTuple):
    name: str
    ranks: int
    overrides: dict


GPT = {"norm": "layernorm", "activation": "gelu_tanh", "positions": "learned"}
LLAMA = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rope", "bias": False, "tied_head": False}


def case(name, ranks, model, batch, compute, **parallel):
    hidden, layers, length, family = model
    micro, accumulation = batch
    data = ranks // (parallel.get("tensor", 1) * parallel.get("pipeline", 1))
    return Case(name, ranks, {
        "model": {"num_layers": layers, "hidden_size": hidden, "num_heads": hidden // 64, "sequence_length": length,
                  "vocab_size": VOCABULARY, **family},
        "batch": {"global": micro * accumulation * data, "micro": micro},
        "precision": {"compute": compute},
        "parallel": parallel,
    })


CASES = [
    case("gpt 128 wide", 1, (128, 4, 128, GPT), (8, 1), "fp32"),
    case("gpt 320 wide, bf16", 1, (320, 6, 256, GPT), (4, 1), "bf16"),
    case("llama 448 wide", 1, (448, 4, 256, LLAMA), (4, 1), "fp32"),
    case("gpt 768 wide, bf16", 1, (768, 4, 512, GPT), (2, 2), "bf16"),
    case("ZeRO 0", 2, (256, 4, 256, GPT), (4, 1), "fp32", zero=0),
    case("ZeRO 1, bf16", 2, (384, 4, 256, LLAMA), (4, 1), "bf16", zero=1),
    case("ZeRO 3", 2, (320, 4, 256, GPT), (4, 1), "fp32", zero=3),
    case("tensor parallel", 2, (512, 4, 256, GPT), (4, 1), "fp32", tensor=2),
    case("pipeline of 2", 2, (384, 4, 256, GPT), (2, 8), "fp32", pipeline=2),
    case("4 ranks, ZeRO 2", 4, (256, 4, 256, GPT), (4, 1), "fp32", zero=2),
]


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        write_tokens(folder / "corpus", 200_000, VOCABULARY)
        self.measured = {one.name: [] for one in CASES}
        self.predicted = {one.name: [] for one in CASES}
        self.quick = {one.name: [] for one in CASES}

    def gptrain(self, *arguments):
        done = subprocess.run([self.options.gptrain, *map(str, arguments)], cwd=self.folder, capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"gptrain {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    def write_config(self, one, steps):
        config = {**one.overrides, "data": {"train": [{"path": "corpus"}]}, "optimizer": {"lr": 1e-4},
                  "schedule": {"type": "constant"}, "log": {"every_steps": 1},
                  "run": {"steps": steps, "out": "out", "device": "cpu"}}
        (self.folder / "run.json").write_text(json.dumps(config), encoding="utf-8")
        return "run.json"

    def run(self, one):
        steps = self.options.steps + 2
        config = self.write_config(one, steps)
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        self.gptrain("train", config, "--ranks", one.ranks)
        lines = (self.folder / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        records = [record for record in map(json.loads, lines) if "step_seconds" in record]
        self.measured[one.name] += [record["step_seconds"] for record in records[2:]]

    def predict(self, one, profile, *arguments):
        config = self.write_config(one, self.options.steps + 2)
        text = self.gptrain("train", config, "--ranks", one.ranks, "--dry-run", "--json", "--target", profile,
                            *arguments)
        return json.loads(text)["step_seconds"]

    def turn(self, number):
        profile = f"machine-{number}.json"
        self.gptrain("bench", "device", "--out", profile, "--seconds", self.options.seconds)
        quick = json.loads((self.folder / profile).read_text(encoding="utf-8"))
        for share in quick["shares"].values():
            share["stretch"][0] = 1
        (self.folder / "quick.json").write_text(json.dumps(quick), encoding="utf-8")
        for one in CASES:
            self.run(one)
            self.predicted[one.name].append(self.predict(one, profile))
            self.quick[one.name].append(self.predict(one, "quick.json"))
        print(f"turn {number}: load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        return profile

    def actions(self, trace):
        """Returns the name and length of each action of rank 0."""
        events = json.loads((self.folder / trace).read_text(encoding="utf-8"))["traceEvents"]
        return [((event["name"], event["args"]["unit"], event["args"]["micro_batch"]), event["dur"])
                for event in events if event["ph"] == "X" and event["pid"] == 0 and event["tid"] == 0]

    def error_of_actions(self, one, profile):
        """Returns the median errors of the actions' predicted lengths, by the profile and by its quick runs. An
        action's measured length is the median over several runs' profiles."""
        step = self.options.steps
        planned, quick = [], []
        for actions, name in ((planned, profile), (quick, "quick.json")):
            self.predict(one, name, "--trace", "planned.json")
            actions += self.actions("planned.json")
        runs = []
        for _ in range(3):
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            self.gptrain("train", self.write_config(one, step), "--ranks", one.ranks, "--profile-step", step)
            runs.append(self.actions(f"out/trace-step{step}.json"))
            if [name for name, _ in runs[-1]] != [name for name, _ in planned]:
                sys.exit(f"{one.name}: the actions of the profile are not those of the simulation")
        lengths = [statistics.median(lengths) for lengths in zip(*[[length for _, length in run] for run in runs])]
        whole = sum(lengths)
        return [statistics.median(abs(expected - length) / length for (_, expected), length in zip(actions, lengths)
                                  if length > 1e-3 * whole) for actions in (planned, quick)]


def report(bench):
    print(f"{'milliseconds':<20}{'ranks':>6}{'predicted':>11}{'measured':>10}{'error':>8}"
          f"{'quick':>10}{'shortest':>10}{'error':>8}")
    errors, quick_errors = [], []
    for one in CASES:
        predicted, measured, quick = (statistics.median(values[one.name])
                                      for values in (bench.predicted, bench.measured, bench.quick))
        shortest = min(bench.measured[one.name])
        errors.append(predicted / measured - 1)
        quick_errors.append(quick / shortest - 1)
        print(f"{one.name:<20}{one.ranks:>6}{predicted * 1e3:>11.2f}{measured * 1e3:>10.2f}{errors[-1]:>+8.1%}"
              f"{quick * 1e3:>10.2f}{shortest * 1e3:>10.2f}{quick_errors[-1]:>+8.1%}")
    for what, values in (("predicted and measured", errors), ("quick and shortest", quick_errors)):
        print(f"{what}: median error {statistics.median(map(abs, values)):.1%}, largest {max(map(abs, values)):.1%}",
              flush=True)


def report_timelines(bench, profile):
    errors = []
    for one in CASES:
        errors.append(bench.error_of_actions(one, profile))
        print(f"{one.name:<20} the same actions in the same order, median error of their times {errors[-1][0]:.1%}, "
              f"quick {errors[-1][1]:.1%}", flush=True)
    predicted, quick = (statistics.median(of_kind) for of_kind in zip(*errors))
    print(f"median error of actions {predicted:.1%}, quick {quick:.1%}; load {os.getloadavg()[0]:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain", type=lambda path: pathlib.Path(path).resolve(), help="the executable")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="to measure the profile for, in each turn (60)")
    parser.add_argument("--steps", type=int, default=8, help="of each run that count (8)")
    parser.add_argument("--no-timelines", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gptrain-prediction-") as name:
        bench = Bench(options, pathlib.Path(name))
        for number in range(options.turns):
            profile = bench.turn(number)
        report(bench)
        if not options.no_timelines:
            report_timelines(bench, profile)


if __name__ == "__main__":
    main()
