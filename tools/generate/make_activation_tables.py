#!/usr/bin/env python3
"""Prints src/ops/activation_tables.h: the best piecewise constant derivatives of GELU, exact and tanh form, with 4, 8
and 16 levels (few-bit activations, arXiv 2202.00441).

Best means the least integral of the squared difference over [-100, 100]. The derivative at -x is 1 minus that at x, so
only the half above 0 is searched. Dynamic programming over a grid finds the pieces; then each border moves to where
the derivative is the mean of the two adjacent levels, and each level to the mean of the derivative over its piece,
until nothing changes.
"""

import argparse
import math

LIMIT = 100.0
KINDS = ("gelu", "gelu_tanh")
BITS = (2, 3, 4)
C = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def value(kind, x):
    if kind == "gelu":
        return x * math.erfc(-x / math.sqrt(2)) / 2
    return x / 2 * (1 + math.tanh(C * (x + CUBIC * x**3)))


def slope(kind, x):
    if kind == "gelu":
        return math.erfc(-x / math.sqrt(2)) / 2 + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    t = math.tanh(C * (x + CUBIC * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t * t) * C * (1 + 3 * CUBIC * x * x)


def grid_of(fine, last=7.0):
    """Returns points from 0 to LIMIT: `fine` steps up to `last`, above which the derivative is 1 to 1e-9, and one step
    more."""
    return [last * i / fine for i in range(fine + 1)] + [LIMIT]


def sums_of(kind, points, parts=8):
    """Returns the integrals of the derivative and of its square from 0 to each point; of the square by Simpson's rule.
    """
    squares = [0.0]
    for a, b in zip(points, points[1:]):
        step = (b - a) / parts
        terms = [slope(kind, a + step * i) ** 2 for i in range(parts + 1)]
        squares.append(squares[-1] + step / 3 * (terms[0] + terms[-1] + 4 * sum(terms[1:-1:2]) + 2 * sum(terms[2:-1:2])))
    return [value(kind, x) - value(kind, 0.0) for x in points], squares


def cost_table(kind, points):
    """Returns cost(i, j): the integral of the squared difference from the mean, over [points[i], points[j]]."""
    firsts, squares = sums_of(kind, points)
    return lambda i, j: squares[j] - squares[i] - (firsts[j] - firsts[i]) ** 2 / (points[j] - points[i])


def best_by_programme(cost, num_points, pieces):
    """Returns the border indices of the cheapest cut of the grid into `pieces` pieces, and its cost."""
    end = num_points - 1
    costs = [cost(0, j) if j > 0 else 0.0 for j in range(num_points)]
    cuts = []
    for piece in range(1, pieces):
        cut = [0] * num_points
        new = [math.inf] * num_points
        for j in range(piece + 1, num_points):
            new[j], cut[j] = min((costs[i] + cost(i, j), i) for i in range(piece, j))
        costs = new
        cuts.append(cut)
    borders = [end]
    for cut in reversed(cuts):
        borders.append(cut[borders[-1]])
    return borders[:0:-1], costs[end]


def crossing(kind, level, low, high):
    """Returns the point between low and high where the derivative is `level`."""
    rises = slope(kind, high) > slope(kind, low)
    for _ in range(80):
        middle = (low + high) / 2
        if (slope(kind, middle) < level) == rises:
            low = middle
        else:
            high = middle
    return low


def settle(kind, borders, reach):
    """Returns the borders and levels of the best cut near this one."""
    for _ in range(2000):
        ends = [0.0, *borders, LIMIT]
        levels = [(value(kind, b) - value(kind, a)) / (b - a) for a, b in zip(ends, ends[1:])]
        moved = [crossing(kind, (a + b) / 2, max(x - reach, 0.0), x + reach) for x, a, b in zip(borders, levels, levels[1:])]
        change = max(abs(a - b) for a, b in zip(moved, borders))
        borders = moved
        if change < 1e-12:
            break
    return borders, levels


def best_steps(kind, bits):
    """Returns the borders above 0 and the levels between them, for the best 2^bits pieces."""
    fine = 280
    points = grid_of(fine)
    indices, _ = best_by_programme(cost_table(kind, points), len(points), 2 ** (bits - 1))
    return settle(kind, [points[i] for i in indices], 2 * points[1])


def literals(values):
    return ", ".join(f"{x:.7f}F" for x in values)


def header():
    lines = [
        "// The best piecewise constant derivatives of GELU; made by tools/generate/make_activation_tables.py, which says how.",
        "#pragma once",
        "// clang-format off",
        "",
        "namespace gptrain::inline ops::activation_tables {",
        "",
        "// Borders between the pieces above 0, half of all 2^bits pieces, and the derivative in each. Below 0 the derivative is",
        "// 1 minus that of the mirrored piece.",
    ]
    for kind in KINDS:
        for bits in BITS:
            borders, levels = best_steps(kind, bits)
            lines.append(f"inline constexpr float {kind}_borders_{bits}[] = {{{literals(borders)}}};")
            lines.append(f"inline constexpr float {kind}_levels_{bits}[] = {{{literals(levels)}}};")
    return "\n".join([*lines, "", "}  // namespace gptrain::ops::activation_tables", ""])


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print(wrapped(header()), end="")


def wrapped(text, width=120):
    """Breaks lines that are too long after a comma."""
    lines = []
    for line in text.split("\n"):
        while len(line) > width:
            cut = line.rindex(", ", 0, width) + 1
            lines.append(line[:cut])
            line = "    " + line[cut + 1:]
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
