#!/usr/bin/env python3
"""Sums the results in meson's testlog.json files: lists failures, ends with "N passed, N failed, N skipped".

A failed build counts as one failed test, and so does a log that is missing or holds no test. Exits with 1 if anything
failed.
"""
import argparse
import json
import sys


def read_results(path):
    """Returns (name, result) of each test, or one artificial failure if there is none."""
    try:
        with open(path, encoding="utf-8") as log:
            tests = [json.loads(line) for line in log if line.strip()]
    except FileNotFoundError:
        tests = []
    if not tests:
        return [(path, "no test ran")]
    return [(f"{path}: {test['name']}", test["result"]) for test in tests]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failed-builds", type=int, default=0)
    parser.add_argument("logs", nargs="*")
    arguments = parser.parse_args()

    passed, skipped, failures = 0, 0, []
    for path in arguments.logs:
        for name, result in read_results(path):
            if result in ("OK", "EXPECTEDFAIL"):
                passed += 1
            elif result == "SKIP":
                skipped += 1
            else:
                failures.append(f"{name} ({result})")
    for failure in failures:
        print(f"failed: {failure}")
    if arguments.failed_builds:
        print(f"failed: {arguments.failed_builds} of the builds")
    failed = len(failures) + arguments.failed_builds
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
