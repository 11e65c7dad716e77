#!/usr/bin/env python3
"""Drives the gptrain executable as a user does: messages, exit codes and files of every command and every fault.

Run as test_cli.py EXECUTABLE [--sanitized | TEST...]; a TEST is a name as unittest has it, such as
training_cases.Signals.
"""
import os
import sys
import unittest
from pathlib import Path

MODULES = ["command_line", "config_commands", "data_commands", "dry_run", "training", "checkpoints",
           "learned", "ranks", "streams", "hostile_files", "faults", "second_nets", "tokenizer", "text",
           "best_fit", "parquet", "weights"]
# Where they look is at numbers of runs that are long under a sanitizer; what those run of the program, the tests of
# layouts run under one, too.
OF_NUMBERS = ["learned", "ranks", "second_nets", "best_fit"]


def main():
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit("usage: test_cli.py EXECUTABLE [--sanitized | TEST...]")
    os.environ["GPTRAIN"] = str(Path(sys.argv[1]).resolve())
    names = sys.argv[2:]
    if names in ([], ["--sanitized"]):
        names = [f"{module}_cases" for module in MODULES if not names or module not in OF_NUMBERS]
    tests = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=1).run(tests)
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
