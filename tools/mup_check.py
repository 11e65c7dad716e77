#!/usr/bin/env python3
"""Whether model.mup keeps what a step does the same in every width: the coordinate check of arXiv 2203.03466.

Run as mup_check.py [--program FILE] [--family gpt2|llama] [--widths W,W,..] [--steps N] [--lr X] [--out PAGE.html]
with the program `coordinates` of a build with tests.

Trains small models of several widths for a few steps on one batch, with model.mup at the smallest width and without it,
and looks at how far the steps move the activations. The slope of a line is that of log2(distance) over log2(width): near
zero with muP, so that what a learning rate does is the same in every width. Prints the slopes, writes a page with the
plots, and ends with 1 if a slope with muP is beyond the bound.
"""
import argparse
import html
import json
import math
import subprocess
import sys
from pathlib import Path

# Of slopes with muP: what is left of them at widths that a check can afford. Scores are products of what has moved with
# what has not: how these go together takes more steps to show.
BOUND, BOUND_OF_SCORES = 0.3, 0.6
NAMES = ("embedding", "queries", "scores", "attention", "ffn", "residual stream", "logits")
STYLE = """body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em;
  color: #222; background: #fff; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(17em, 1fr)); gap: 1em; }
figure { margin: 0; } figcaption { font-weight: 600; }
svg { width: 100%; height: auto; } text { font-size: 11px; fill: #555; }
.frame { fill: none; stroke: #bbb; } polyline { fill: none; stroke-width: 2; stroke: #2563a8; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; } text { fill: #aaa; }
  .frame { stroke: #555; } polyline { stroke: #7ab4f0; } }"""


def bound_of(name):
    return BOUND_OF_SCORES if name == "scores" else BOUND


def moved(program, family, width, steps, overrides):
    """{name: [distance after each step]}"""
    done = subprocess.run([program, family, str(width), str(steps), *overrides], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"mup_check: {program} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)["moved"]


def slope(widths, values):
    """Of the straight line through (log2 width, log2 value), by least squares."""
    xs, ys = [math.log2(width) for width in widths], [math.log2(value) for value in values]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)


def check(program, family, widths, steps, lr):
    """{with muP: {name: ([[distance by width] by step], slope after the last step)}}"""
    result = {}
    for mup in (True, False):
        overrides = [f"optimizer.lr={lr}", f"model.mup={widths[0] if mup else 0}"]
        runs = [moved(program, family, width, steps, overrides) for width in widths]
        by_name = {name: [[run[name][step] for run in runs] for step in range(steps)] for name in NAMES}
        result[mup] = {name: (lines, slope(widths, lines[-1])) for name, lines in by_name.items()}
    return result


def plot(widths, lines, low, high):
    """SVG: a line for each step, the later the thicker."""
    left, top, right, bottom = 40, 8, 292, 150
    span = math.log2(widths[-1] / widths[0])

    def place(width, value):
        x = left + (right - left) * math.log2(width / widths[0]) / span
        y = bottom - (bottom - top) * (math.log2(value) - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<rect class="frame" x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"/>']
    for i, values in enumerate(lines):
        points = " ".join(place(width, value) for width, value in zip(widths, values))
        parts.append(f'<polyline points="{points}" opacity="{0.3 + 0.7 * (i + 1) / len(lines):.2f}"/>')
    for exponent in range(math.ceil(low), math.floor(high) + 1, max(1, round((high - low) / 4))):
        y = bottom - (bottom - top) * (exponent - low) / (high - low)
        parts.append(f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{2.0 ** exponent:.3g}</text>')
    for width in widths:
        x = left + (right - left) * math.log2(width / widths[0]) / span
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{width}</text>')
    return f'<svg viewBox="0 0 300 170" role="img">{"".join(parts)}</svg>'


def page(family, widths, lr, result):
    values = [value for by_name in result.values() for lines, _ in by_name.values() for line in lines for value in line]
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
             f"<title>muP: coordinate check</title><style>{STYLE}</style><h1>muP: coordinate check</h1>"
             f"<p>How far the first steps move the activations of a {html.escape(family)} model (root mean square), by its "
             f"width; learning rate {lr:g}, a line for each step, the last one darkest.</p>"]
    for mup, by_name in result.items():
        parts.append(f"<h2>{'With' if mup else 'Without'} model.mup</h2><div class=plots>")
        for name, (lines, last) in by_name.items():
            parts.append(f"<figure><figcaption>{name}: slope {last:+.2f}</figcaption>{plot(widths, lines, low, high)}</figure>")
        parts.append("</div>")
    return "\n".join(parts)


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
