#!/usr/bin/env python3
"""Measures the loss in quality by memory-saving methods and other updates: validation losses beside AdamW in bf16.

Run as compare_methods.py TRAIN HELDOUT --out FOLDER [--gptrain FILE] [--method NAME]... [--seeds N] [--steps N], with
the PREFIXes of token files (made as in src/data/README.md, "A run in words").

A model of about 3 M parameters is trained for 1,000 steps of 2,048 tokens with each method and seed. Runs of one seed
have the same initial weights and data, so losses are compared in pairs. FOLDER/results.json stores finished runs: an
interrupted call continues, and methods or seeds can be added. Prints a table in Markdown; writes FOLDER/methods.html
with the plots, and the plots alone to FOLDER/methods.svg.

With --communication, measures the methods that make ranks send less instead, and says of each whether its mean
difference from four ranks with plain sums is within its bound and two standard errors. `start_step` and `freeze_step` are a
tenth or a fifth of the steps.
"""
import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
import plots  # noqa: E402

BASE = "adamw"
METHODS = {
    BASE: [],
    # Changes only the order of sums: shows how far two runs of one seed differ by rounding.
    "adamw, sums in another order": ["batch.micro=2"],
    "fp32": ["precision.compute=fp32"],
    "bf16-pure": ["precision.compute=bf16-pure"],
    "adamw-8bit": ["optimizer.type=adamw-8bit"],
    "bf16-pure, adamw-8bit": ["precision.compute=bf16-pure", "optimizer.type=adamw-8bit"],
    "6 bytes a parameter": ["precision.compute=bf16-pure", "precision.gradients=bf16", "optimizer.type=adamw-8bit",
                            "batch.micro=2"],
    "gelu in 4 bits": ["memory.activation_bits=4"],
    "gelu in 3 bits": ["memory.activation_bits=3"],
    "gelu in 2 bits": ["memory.activation_bits=2"],
    "inputs in 8 bits": ["memory.saved_inputs=8"],
    **{f"projection by {kind}": [f'memory.linear_projection={{"kind": "{kind}", "share": 0.2}}']
       for kind in ("gauss", "rademacher", "dct", "rows")},
    "muon": ["optimizer.type=muon"],
    "lion": ["optimizer.type=lion", "optimizer.lr=3e-4", "schedule.min_lr=3e-5", "optimizer.weight_decay=1.0"],
    "adafactor": ["optimizer.type=adafactor", "optimizer.scale_parameter=false"],
    "lamb": ["optimizer.type=lamb"],
    "four ranks": [],
    "four ranks, sums in int8": ['comm.compression={"kind": "int8", "min_elements": 4096}'],
    "four ranks, sums in int4": ['comm.compression={"kind": "int4", "min_elements": 4096}'],
    "four ranks, sums of rank 4": ['comm.compression={"kind": "powersgd", "rank": 4, "start_step": TENTH, '
                                   '"min_elements": 4096}'],
    "four ranks, alternating factors": ['comm.compression={"kind": "powersgd", "rank": 4, "alternate": true, '
                                        '"start_step": TENTH, "min_elements": 4096}'],
    "four ranks, weights in int8": ["parallel.zero=3", "comm.weights=int8"],
    "four ranks, sums of one in 100": ['comm.compression={"kind": "topk", "share": 0.01, "start_step": TENTH, '
                                       '"min_elements": 4096}'],
    "four ranks, sums of sketches": ['comm.compression={"kind": "sketch", "share": 0.01, "start_step": TENTH, '
                                     '"min_elements": 4096}'],
    # The second moments' decay of AdamW: 0.999 alone, the default of these two, costs 0.1 nats in so short a run.
    "four ranks, 1-bit Adam": ["optimizer.type=onebit-adam", "optimizer.freeze_step=FIFTH",
                               "optimizer.betas=[0.9, 0.95]"],
    # Validates at the end only: weights are equal after exchanges alone.
    "four ranks, 0/1 Adam": ["optimizer.type=zero-one-adam", "optimizer.freeze_step=FIFTH",
                             "optimizer.betas=[0.9, 0.95]", "optimizer.local_scaler=FIFTH",
                             "run.validate_every_steps=0"],
    # Validates at the end only: weights are equal after averagings alone.
    "four ranks, DiLoCo": ['parallel.local_steps={"islands": 4, "every": 30, "start_step": FIFTH, "outer": "nesterov"}',
                           "run.validate_every_steps=0"],
}
PLAIN_SUMS = "four ranks"
RANKS = {name: 4 for name in METHODS if name.startswith(PLAIN_SUMS)}
# Largest mean differences from PLAIN_SUMS, in nats.
BOUNDS = {"four ranks, sums in int8": 0.02, "four ranks, sums in int4": 0.02, "four ranks, sums of rank 4": 0.02,
          "four ranks, sums of one in 100": 0.02, "four ranks, 1-bit Adam": 0.02, "four ranks, DiLoCo": 0.05}
POINTS = 10  # validations per run


def config(options, seed, out):
    return {
        "model": {"num_layers": 6, "hidden_size": 160, "num_heads": 5, "vocab_size": options.vocab_size,
                  "sequence_length": 256},
        "data": {"train": [{"path": str(options.train.resolve())}],
                 "validation": [{"path": str(options.heldout.resolve())}]},
        "batch": {"global": 8},
        "precision": {"compute": "bf16"},
        "optimizer": {"type": "adamw", "lr": 3e-3, "weight_decay": 0.1},
        "schedule": {"type": "cosine", "warmup_steps": options.steps // 10, "min_lr": 3e-4},
        "checkpoint": {"every_steps": 0},
        "run": {"steps": options.steps, "seed": seed, "out": str(out), "device": "cpu", "validation_samples": 256,
                "validate_every_steps": options.steps // POINTS},
    }


def trained(options, method, seed):
    """Trains and returns [[step, validation loss]]."""
    out = options.out / "run"
    shutil.rmtree(out, ignore_errors=True)
    file = options.out / "config.json"
    file.write_text(json.dumps(config(options, seed, out)), encoding="utf-8")
    settings = [setting.replace("TENTH", str(options.steps // 10)).replace("FIFTH", str(options.steps // 5))
                for setting in METHODS[method]]
    overrides = [argument for setting in settings for argument in ("--set", setting)]
    ranks = ["--ranks", str(RANKS[method])] if method in RANKS else []
    done = subprocess.run([options.gptrain, "train", file, *ranks, *overrides], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"compare_methods: {method}, seed {seed}: gptrain ended with {done.returncode}: {done.stderr}")
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [[record["step"], record["validation_loss"]] for record in records if "validation_loss" in record]


def load_results(file, key):
    """Returns {method: {seed: [[step, loss]]}}."""
    if not file.exists():
        return {}
    earlier = json.loads(file.read_text(encoding="utf-8"))
    if earlier["of"] != key:
        sys.exit(f"compare_methods: {file} is of other data or steps: {earlier['of']}; choose another --out")
    return earlier["losses"]


def table(results, methods, seeds):
    """Returns rows of cells: method, mean loss, mean difference from the base in percent, spread of the differences."""
    base = [results[BASE][seed][-1][1] for seed in seeds]
    rows = []
    for method in methods:
        losses = [results[method][seed][-1][1] for seed in seeds]
        differences = [100 * (loss / of_base - 1) for loss, of_base in zip(losses, base)]
        spread = f"{statistics.stdev(losses):.4f}" if len(losses) > 1 else "-"
        rows.append([method, f"{statistics.mean(losses):.4f}", spread, f"{statistics.mean(differences):+.2f}%",
                     " ".join(f"{value:+.2f}%" for value in differences)])
    return rows


def verdicts(results, methods, seeds):
    """Yields lines that tell whether methods are within their bounds."""
    for method in methods:
        if method not in BOUNDS or PLAIN_SUMS not in methods:
            continue
        differences = [results[method][seed][-1][1] - results[PLAIN_SUMS][seed][-1][1] for seed in seeds]
        error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0
        mean, most = statistics.mean(differences), BOUNDS[method] + 2 * error
        yield (f"{method}: {mean:+.4f} nats from {PLAIN_SUMS}, standard error {error:.4f}: "
               f"{'within' if mean <= most else 'MORE THAN'} {BOUNDS[method]} and two standard errors")


HEADER = ["method", "validation loss", "spread over seeds", f"from {BASE}", "by seed"]


def write_page(folder, results, methods, seeds, rows):
    def mean_course(method):
        courses = [results[method][seed] for seed in seeds]
        return [(points[0][0], statistics.mean(loss for _, loss in points)) for points in zip(*courses)]

    base = dict(mean_course(BASE))
    differences = {method: [(step, 100 * (loss / base[step] - 1)) for step, loss in mean_course(method)] for method in methods}
    last = max(base)
    drawings = []
    for method, color in zip(methods, plots.COLORS * len(methods)):
        values = [value for _, value in differences[method]] + [-1.0, 1.0]
        low, high = min(values), max(values)
        drawn = [([(0, 0), (last, 0)], "#999999", 1), (differences[method], color, 1)]
        marks = [(value, f"{value:+g}%") for value in plots.steps_between(low, high)]
        steps = [(step, step) for step in plots.steps_between(0, last)]
        drawings.append((method, plots.line_plot(drawn, (0, last), (low, high), steps, marks)))
    figures = [plots.figure(*drawing) for drawing in drawings]
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{cell}</th>" for cell in HEADER)
    parts = [f"<p>Validation loss after {last} steps, {len(seeds)} seeds, and how far it is from {BASE} on the way.</p>",
             f"<table><tr>{head}</tr>{cells}</table><div class=plots>{''.join(figures)}</div>"]
    (folder / "methods.html").write_text(plots.page("Methods beside plain AdamW in bf16", parts), encoding="utf-8")
    (folder / "methods.svg").write_text(plots.sheet(drawings), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gptrain", default="build/gptrain")
    parser.add_argument("--method", action="append", choices=[name for name in METHODS if name != BASE])
    parser.add_argument("--communication", action="store_true", help="the methods that make ranks send less")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--vocab-size", type=int, default=8000, help="of the tokenizer")
    options = parser.parse_args()
    if options.communication:
        options.method = [name for name in METHODS if name.startswith(PLAIN_SUMS)]
    methods = [BASE, *(options.method or [name for name in METHODS if name != BASE])]
    seeds = [str(seed) for seed in range(1, options.seeds + 1)]
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    key = {"train": str(options.train), "heldout": str(options.heldout), "steps": options.steps,
           "vocab_size": options.vocab_size}
    results = load_results(file, key)
    jobs = [(seed, method) for seed in seeds for method in methods if seed not in results.get(method, {})]
    for number, (seed, method) in enumerate(jobs):
        print(f"{number + 1} of {len(jobs)}: {method}, seed {seed}", file=sys.stderr, flush=True)
        results.setdefault(method, {})[seed] = trained(options, method, int(seed))
        file.write_text(json.dumps({"of": key, "losses": results}), encoding="utf-8")
    rows = table(results, methods, seeds)
    for row in [HEADER, ["---"] * len(HEADER), *rows]:
        print(f"| {' | '.join(row)} |")
    for line in verdicts(results, methods, seeds):
        print(line)
    write_page(options.out, results, methods, seeds, rows)


if __name__ == "__main__":
    main()
