#!/usr/bin/env python3
"""Drives the gptrain executable as a user does: messages, exit codes and files of every command and every fault.

Run as test_cli.py EXECUTABLE [--without MODULE,...] [MODULE | TEST...]. A TEST is a unittest name such as
training_cases.Signals; training is short for training_cases. Default: all modules. Exits with 77 if this machine can run
none of them.
"""
import argparse
import os
import sys
import unittest
from pathlib import Path

SKIPPED = 77
MODULES = ["command_line", "help", "config_commands", "data_commands", "dry_run", "recomputation", "training",
           "checkpoints", "learned", "ranks", "streams", "hostile_files", "faults", "second_nets", "tokenizer",
           "formats", "inputs", "token_sets", "text", "best_fit", "parquet", "sentencepiece", "weights", "ema", "optimizer",
           "rollback", "plan", "machine", "elastic", "resume", "mishap", "limits", "file_system", "traffic", "disk",
           "control_group"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("executable")
    parser.add_argument("--without", type=lambda text: text.split(",") if text else [], default=[], metavar="MODULE,...")
    parser.add_argument("names", nargs="*", metavar="MODULE | TEST")
    arguments = parser.parse_intermixed_args()
    if not os.access(arguments.executable, os.X_OK):
        parser.error(f"{arguments.executable} cannot be executed")
    for module in arguments.without:
        if module not in MODULES:
            parser.error(f"{module} is no module")
    files = {path.name.removesuffix("_cases.py") for path in Path(__file__).parent.glob("*_cases.py")}
    if files != set(MODULES):
        parser.error(f"MODULES and the files *_cases.py differ in {sorted(files ^ set(MODULES))}")
    os.environ["GPTRAIN"] = str(Path(arguments.executable).resolve())
    names = [f"{name}_cases" if name in MODULES else name for name in arguments.names or MODULES
             if name not in arguments.without]
    tests = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=1).run(tests)
    if result.wasSuccessful() and 0 < result.testsRun == len(result.skipped):
        return SKIPPED
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
