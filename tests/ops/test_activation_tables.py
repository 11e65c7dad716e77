#!/usr/bin/env python3
"""Tests the tables of few-bit derivatives: the source has the tables that the tool makes, they agree with the
published ones, and the tool's dynamic programming agrees with trying all cuts."""

import importlib.util
import itertools
import pathlib
import random
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("tables", ROOT / "tools" / "generate" / "make_activation_tables.py")
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


class Tables(unittest.TestCase):
    def test_the_source_holds_what_the_tool_makes(self):
        self.assertEqual((ROOT / "src/ops/activation_tables.h").read_text(), tables.wrapped(tables.header()))

    def test_they_are_those_of_the_paper(self):
        # arXiv 2202.00441, GELU: the borders and levels of 4 pieces, the borders of 8.
        borders, levels = tables.best_steps("gelu", 2)
        self.near(borders, [0.4536])
        self.near([1 - level for level in reversed(levels)] + levels, [-0.0015, 0.3251, 0.6749, 1.0015])
        borders, _ = tables.best_steps("gelu", 3)
        self.near(borders, [0.3261, 0.7102, 2.4145])
        self.near(borders, [0.3258, 0.71, 2.4166])

    def near(self, values, published):
        self.assertEqual(len(values), len(published))
        for value, other in zip(values, published):
            self.assertLess(abs(value - other), 2e-3)

    def test_the_programme_finds_the_best_of_all_cuts(self):
        for kind in tables.KINDS:
            points = tables.grid_of(11)
            cost = tables.cost_table(kind, points)
            for pieces in (2, 3, 4):
                ends = lambda cut: [0, *cut, len(points) - 1]
                of_cut = lambda cut: sum(cost(a, b) for a, b in itertools.pairwise(ends(cut)))
                best = min(itertools.combinations(range(1, len(points) - 1), pieces - 1), key=of_cut)
                found, found_cost = tables.best_by_programme(cost, len(points), pieces)
                self.assertEqual(found, list(best))
                self.assertAlmostEqual(found_cost, of_cut(best), places=12)

    def test_no_cut_nearby_is_better(self):
        draw = random.Random(1)
        for kind in tables.KINDS:
            for bits in tables.BITS:
                borders, levels = tables.best_steps(kind, bits)
                least = self.squares(kind, borders, levels)
                for _ in range(20):
                    moved = [b * (1 + draw.uniform(-0.02, 0.02)) for b in borders]
                    self.assertLessEqual(least, self.squares(kind, moved, levels) + 1e-9)
                    other = [level + draw.uniform(-0.01, 0.01) for level in levels]
                    self.assertLessEqual(least, self.squares(kind, borders, other) + 1e-9)

    def squares(self, kind, borders, levels, step=1 / 400):
        """Returns the integral of the squared difference; above 8 the derivative is 1."""
        total = (tables.LIMIT - 8) * (levels[-1] - 1) ** 2
        for i in range(round(8 / step)):
            x = (i + 0.5) * step
            level = levels[sum(x > border for border in borders)]
            total += step * (tables.slope(kind, x) - level) ** 2
        return total


if __name__ == "__main__":
    sys.exit(unittest.main())
