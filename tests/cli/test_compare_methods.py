"""tools/compare/compare_methods.py makes every run once, compares in pairs, and continues after an interruption.

Run as test_compare_methods.py [options of unittest]. A stub replaces gptrain: for seed s the loss is 4 + s / 10, with
lion 1% more.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUB = """#!/usr/bin/env python3
import json, os, pathlib, sys
config = json.load(open(sys.argv[2]))
run = config["run"]
loss = (4 + run["seed"] / 10) * (1.01 if "optimizer.type=lion" in sys.argv else 1)
if "optimizer.type=onebit-adam" in sys.argv:
    assert "optimizer.freeze_step=4" in sys.argv
    loss += 0.03
if any("local_steps" in word for word in sys.argv):
    run["validate_every_steps"] = run["steps"]
    loss += 0.03 + run["seed"] / 1000
if os.environ.get("FAIL_SEED") == str(run["seed"]): sys.exit("no more")
out = pathlib.Path(run["out"])
out.mkdir()
with open(out / "metrics.jsonl", "w") as file:
    for step in range(1, run["steps"] + 1):
        record = {"step": step, "loss": 9}
        if step % run["validate_every_steps"] == 0: record["validation_loss"] = loss
        print(json.dumps(record), file=file)
"""


class CompareMethods(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.stub = self.folder / "gptrain"
        self.stub.write_text(STUB, encoding="utf-8")
        self.stub.chmod(0o755)

    def compare(self, *arguments, **environment):
        return subprocess.run([sys.executable, ROOT / "tools/compare/compare_methods.py", "train", "heldout",
                               "--gptrain", self.stub, "--out", self.folder / "out", "--steps", "20", *arguments],
                              capture_output=True, text=True, check=False, env={**os.environ, **environment})

    def test_pairs(self):
        stopped = self.compare("--seeds", "2", "--method", "lion", FAIL_SEED="2")
        self.assertEqual(stopped.returncode, 1)
        self.assertIn("adamw, seed 2: gptrain ended with 1: no more", stopped.stderr)
        done = self.compare("--seeds", "2", "--method", "lion")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "1 of 2: adamw, seed 2\n2 of 2: lion, seed 2\n")
        self.assertIn("| adamw | 4.1500 | 0.0707 | +0.00% | +0.00% +0.00% |\n", done.stdout)
        self.assertIn("| lion | 4.1915 | 0.0714 | +1.00% | +1.00% +1.00% |\n", done.stdout)
        page = (self.folder / "out/methods.html").read_text(encoding="utf-8")
        self.assertEqual(page.count("<svg "), 2)
        picture = xml.etree.ElementTree.parse(self.folder / "out/methods.svg").getroot()
        lines = picture.findall("{*}svg/{*}polyline")
        self.assertEqual(len(lines), 4)  # for each method, and its zero
        rows = [float(point.split(",")[1]) for point in lines[3].get("points").split()]
        zero = float(lines[2].get("points").split(",")[-1])
        self.assertTrue(all(row < zero for row in rows))  # the losses of lion are larger
        results = json.loads((self.folder / "out/results.json").read_text(encoding="utf-8"))
        self.assertEqual(results["losses"]["lion"]["1"][-1], [20, 4.1 * 1.01])

    def test_communication(self):
        done = self.compare("--seeds", "2", "--communication")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("four ranks, sums in int8: +0.0000 nats from four ranks, standard error 0.0000: within 0.02 and",
                     "four ranks, 1-bit Adam: +0.0300 nats from four ranks, standard error 0.0000: MORE THAN 0.02 and",
                     "four ranks, DiLoCo: +0.0315 nats from four ranks, standard error 0.0005: within 0.05 and"):
            self.assertIn(line, done.stdout)

    def test_other_data(self):
        self.assertEqual(self.compare("--seeds", "1", "--method", "lion").returncode, 0)
        refused = self.compare("--seeds", "1", "--steps", "40")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("is of other data or steps", refused.stderr)


if __name__ == "__main__":
    unittest.main()
