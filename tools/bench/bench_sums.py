#!/usr/bin/env python3
"""Draws the times of four ways to sum over size and ranks, measured over TCP in a slow network of the test's own.

Run as bench_sums.py GPTRAIN [--out FILE.svg] [options]. Ranks are processes that send --mbit each, --delay seconds late
(tests/comm/network.py), and run `gptrain bench comm --algorithm all`. Lines are measured; faint lines are the
formulas' (src/comm/sum_algorithms.h) with the latency and rate of the sends that were measured. Prints the times, and
how far the formulas are from them. Exits with 77 where the machine cannot make such a network.
"""
import argparse
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "compare"), str(ROOT / "tests" / "comm")]
sys.dont_write_bytecode = True
import plots  # noqa: E402
from network import Network, address_of, enter_namespace  # noqa: E402

UNITS = {"B": 1, "KiB": 1024, "MiB": 1024 ** 2}
WAYS = ("everyone", "manager", "ring", "halving-doubling")


def measure(options, network, number, ranks):
    """Returns {(way, bytes): (seconds, seconds by the formula)}."""
    for rank in range(ranks):
        command = [options.gptrain, "bench", "comm", "--algorithm", "all", "--max-bytes", str(options.max_bytes),
                   "--seconds", "0.05", "--interface", address_of(rank)]
        network.start(command, ranks, 2000 + number)
    times = {}
    for code, text, errors in network.finish(600):
        if code != 0:
            sys.exit(errors)
        for words in (line.split() for line in text.splitlines()):
            if words and words[0] in WAYS:
                times[words[0], round(float(words[1]) * UNITS[words[2]])] = (float(words[3]) / 1e6, float(words[6]) / 1e6)
    return times


def logarithmic(points):
    return [(math.log10(x), math.log10(y)) for x, y in points]


def drawing(caption, lines, marks):
    """lines: [(measured points, points of the formula)], in seconds; marks: [(x, text)]."""
    drawn = [(logarithmic(points), color, opacity) for pair, color in zip(lines, plots.COLORS)
             for points, opacity in zip(pair, (1, 0.35))]
    x = [point[0] for points, _, _ in drawn for point in points]
    y = [point[1] for points, _, _ in drawn for point in points]
    y_marks = [(power, f"{10.0 ** power:g} s") for power in range(math.ceil(min(y)), math.floor(max(y)) + 1)]
    return caption, plots.line_plot(drawn, (min(x), max(x)), (min(y), max(y)),
                                    [(math.log10(mark), text) for mark, text in marks], y_marks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--mbit", type=int, default=100, help="of each rank")
    parser.add_argument("--delay", type=float, default=0.001, help="seconds")
    parser.add_argument("--max-bytes", type=int, default=1 << 20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 6, 8])
    options = parser.parse_args()
    enter_namespace()
    options.gptrain = str(pathlib.Path(options.gptrain).resolve())
    network = Network(options.mbit, options.delay)
    times = {}
    for number, ranks in enumerate(options.ranks):
        for (way, size), pair in measure(options, network, number, ranks).items():
            times[way, size, ranks] = pair
            print(f"{way:<18}{size:>10}{ranks:>4}{pair[0]:>12.5f}{pair[1]:>12.5f}", flush=True)
    errors = [abs(formula / measured - 1) for measured, formula in times.values()]
    print(f"formulas off by {100 * statistics.median(errors):.0f}% (median), {100 * max(errors):.0f}% at most")
    sizes = sorted({size for _, size, _ in times})
    most = max(options.ranks)
    def line(keys):
        return [[(x, times[key][part]) for x, key in keys] for part in (0, 1)]
    drawings = [drawing(f"{most} ranks, by size", [line([(size, (way, size, most)) for size in sizes]) for way in WAYS],
                        [(size, f"{size // 1024} KiB") for size in sizes[::2]])]
    drawings += [drawing(f"{size // 1024} KiB, by ranks",
                         [line([(ranks, (way, size, ranks)) for ranks in options.ranks]) for way in WAYS],
                         [(ranks, str(ranks)) for ranks in options.ranks]) for size in (sizes[0], sizes[-1])]
    if options.out:
        options.out.write_text(plots.sheet(drawings), encoding="utf-8")


if __name__ == "__main__":
    main()
