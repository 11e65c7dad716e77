#!/usr/bin/env python3
"""Checks that with model.mup a step has the same effect in every width: the coordinate check of arXiv 2203.03466.

Run as mup_check.py [--program FILE] [--family gpt2|llama] [--widths W,W,..] [--steps N] [--lr X] [--out PAGE.html],
where --program is `coordinates` of a build with tests.

Trains small models of several widths for a few steps on one batch, with model.mup at the smallest width and without
it, and measures how far the steps move the activations. The slope of a line is that of log2(distance) over
log2(width). With muP it is near zero: a learning rate has the same effect in every width. Prints the slopes, writes a
page with the plots, and exits with 1 if a slope with muP exceeds the bound.
"""
import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
import plots  # noqa: E402

# Bounds of slopes with muP, at widths that a check can afford. Scores have a wider bound: they are products of moved
# and unmoved activations, whose alignment takes more steps to show.
BOUND, BOUND_OF_SCORES = 0.3, 0.6
NAMES = ("embedding", "queries", "scores", "attention", "ffn", "residual stream", "logits")


def bound_of(name):
    return BOUND_OF_SCORES if name == "scores" else BOUND


def moved(program, family, width, steps, overrides):
    """Returns {name: [distance after each step]}."""
    done = subprocess.run([program, family, str(width), str(steps), *overrides], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"mup_check: {program} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)["moved"]


def slope(widths, values):
    """Returns the slope of the least-squares line through (log2 width, log2 value)."""
    xs, ys = [math.log2(width) for width in widths], [math.log2(value) for value in values]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)


def check(program, family, widths, steps, lr):
    """Returns {with muP: {name: ([[distance by width] by step], slope after the last step)}}."""
    result = {}
    for mup in (True, False):
        overrides = [f"optimizer.lr={lr}", f"model.mup={widths[0] if mup else 0}"]
        runs = [moved(program, family, width, steps, overrides) for width in widths]
        by_name = {name: [[run[name][step] for run in runs] for step in range(steps)] for name in NAMES}
        result[mup] = {name: (lines, slope(widths, lines[-1])) for name, lines in by_name.items()}
    return result


def plot(widths, lines, low, high):
    """Draws a line for each step, the last one darkest."""
    drawn = [([(math.log2(width), math.log2(value)) for width, value in zip(widths, values)], plots.COLORS[0],
              0.3 + 0.7 * (i + 1) / len(lines)) for i, values in enumerate(lines)]
    exponents = range(math.ceil(low), math.floor(high) + 1, max(1, round((high - low) / 4)))
    return plots.line_plot(drawn, (math.log2(widths[0]), math.log2(widths[-1])), (low, high),
                           [(math.log2(width), width) for width in widths],
                           [(exponent, f"{2.0 ** exponent:.3g}") for exponent in exponents])


def page(family, widths, lr, result):
    values = [value for by_name in result.values() for lines, _ in by_name.values() for line in lines for value in line]
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    parts = [f"<p>How far the first steps move the activations of a {family} model (root mean square), by its width; "
             f"learning rate {lr:g}, a line for each step, the last one darkest.</p>"]
    for mup, by_name in result.items():
        figures = [plots.figure(f"{name}: slope {last:+.2f}", plot(widths, lines, low, high))
                   for name, (lines, last) in by_name.items()]
        parts.append(f"<h2>{'With' if mup else 'Without'} model.mup</h2><div class=plots>{''.join(figures)}</div>")
    return plots.page("muP: coordinate check", parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--program", default="build/tests/parity/coordinates")
    parser.add_argument("--family", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--widths", default="64,128,256,512")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    widths = [int(width) for width in options.widths.split(",")]
    result = check(options.program, options.family, widths, options.steps, options.lr)
    print(f"{'slope after the last step':26}{'with muP':>10}{'without':>10}")
    for name in NAMES:
        print(f"{name:26}{result[True][name][1]:>+10.2f}{result[False][name][1]:>+10.2f}")
    if options.out:
        options.out.write_text(page(options.family, widths, options.lr, result), encoding="utf-8")
        print(f"plots: {options.out}")
    beyond = [name for name in NAMES if abs(result[True][name][1]) > bound_of(name)]
    print(f"slopes with muP may be {BOUND}, of scores {BOUND_OF_SCORES}; beyond: {', '.join(beyond) or 'none'}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
