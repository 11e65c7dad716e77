#!/usr/bin/env python3
"""Each broken kernel must be caught by the host harness or by the sanitizer for its kind of fault."""
import os
import subprocess
import sys
import unittest

PLAIN, TSAN, ASAN = sys.argv[1:4]
SEEDS = range(1, 6)


def run(executable, kernel, seed):
    env = dict(os.environ, TSAN_OPTIONS="halt_on_error=1", ASAN_OPTIONS="detect_leaks=0")
    done = subprocess.run([executable, kernel, str(seed)], env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


class Harness(unittest.TestCase):
    def expect(self, executable, kernel, text):
        for seed in SEEDS:
            with self.subTest(kernel=kernel, seed=seed):
                code, out = run(executable, kernel, seed)
                self.assertNotEqual(code, 0, out)
                self.assertIn(text, out)

    def test_a_sound_kernel_passes_everywhere(self):
        for executable in (PLAIN, TSAN, ASAN):
            for seed in SEEDS:
                self.assertEqual(run(executable, "none", seed), (0, "sum 600\n"))

    def test_threads_that_do_not_meet(self):
        for executable in (PLAIN, TSAN, ASAN):
            self.expect(executable, "leaves", "has left while others wait here")
            self.expect(executable, "elsewhere", "waits elsewhere")
            self.expect(executable, "shuffle", "kernels.cpp:")
            self.expect(executable, "lane", "a lane that its mask leaves out")

    def test_races(self):
        self.expect(TSAN, "barrier", "data race")
        self.expect(TSAN, "reuse", "data race")
        self.expect(TSAN, "warp_barrier", "data race")

    def test_out_of_bounds(self):
        self.expect(ASAN, "global", "heap-buffer-overflow")
        self.expect(ASAN, "shared_memory", "heap-buffer-overflow")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
