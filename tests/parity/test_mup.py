"""With model.mup a step moves the activations equally far in every width; tools/compare/mup_check.py shows it.

Run as test_mup.py COORDINATES [options of unittest].
"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "compare"))
import mup_check  # noqa: E402

WIDTHS = (32, 64, 128, 256)


class Mup(unittest.TestCase):
    def test_coordinates(self):
        for family in ("gpt2", "llama"):
            with self.subTest(family=family):
                result = mup_check.check(PROGRAM, family, WIDTHS, 4, 0.01)
                for name, (_, slope) in result[True].items():
                    self.assertLess(abs(slope), mup_check.bound_of(name), name)
                self.assertGreater(result[False]["logits"][1], 0.5)

    def test_scores(self):
        """At the base width muP changes only the scale of scores."""
        plain, mup = (mup_check.moved(PROGRAM, "gpt2", 32, 1, [f"model.mup={base}"]) for base in (0, 32))
        self.assertEqual(plain["embedding"], mup_check.moved(PROGRAM, "gpt2", 32, 1, [])["embedding"])
        self.assertNotEqual(plain["scores"], mup["scores"])

    def test_page(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "mup.html"
            done = subprocess.run([sys.executable, ROOT / "tools/compare/mup_check.py", "--program", PROGRAM,
                                   "--widths", "32,64,128", "--steps", "2", "--out", out],
                                  capture_output=True, text=True, check=False)
            self.assertIn(done.returncode, (0, 1), done.stderr)
            self.assertIn(f"plots: {out}\n", done.stdout)
            text = out.read_text(encoding="utf-8")
            self.assertEqual(text.count("<svg "), 2 * len(mup_check.NAMES))
            self.assertEqual(text.count("<polyline "), 2 * 2 * len(mup_check.NAMES))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
