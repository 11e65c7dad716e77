#!/usr/bin/env python3
"""Ranks in a slow network of the test's own (network.py): a collective takes the time that its bytes take.

Run as test_network.py COMM_RANKS [TEST...]. Exits with 77 (skipped) where the machine cannot make such a network.
"""
import socket
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from network import Network, address_of, enter_namespace

MBIT, DELAY = 100, 0.001
BYTES = 2 << 20
DEVICE = 5
HANG_SECONDS = 60
PORT = 2000  # all are free in a new namespace
RUNS = 8


class SlowNetwork(unittest.TestCase):
    def test_an_all_reduce_takes_what_its_bytes_and_steps_take(self):
        network = Network(MBIT, DELAY)
        # Each rank sends a half to be summed and a half of the sums, at the same time as the other rank. Sums wait
        # for 256 KiB at a time.
        steps = BYTES / 2 / (256 << 10) + 1
        expected = BYTES / network.payload_rate() + steps * DELAY
        # Other work on the machine only adds to a time, so the least of several runs counts.
        least = float("inf")
        for run in range(RUNS):
            for _ in range(2):
                network.start([COMM_RANKS, "time", str(BYTES)], 2, PORT + run)
            results = network.finish(HANG_SECONDS)
            self.assertEqual([code for code, *_ in results], [0, 0], results)
            least = min(least, float(results[0][1]))
            if least < 1.1 * expected:
                break
        print(f"an all-reduce of {BYTES} bytes took {1e3 * least:.1f} ms, expected {1e3 * expected:.1f} ms")
        self.assertAlmostEqual(least / expected, 1, delta=0.1)
        # A cut needs no run.
        with socket.create_server((address_of(1), PORT)) as listener:
            socket.create_connection(listener.getsockname()).close()
            network.cut(1)
            with self.assertRaises(OSError):
                socket.create_connection(listener.getsockname(), timeout=5)


def main():
    global COMM_RANKS
    enter_namespace()
    COMM_RANKS = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])


if __name__ == "__main__":
    main()
