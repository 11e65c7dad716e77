#!/usr/bin/env python3
"""Prints the targets that `ninja` must build for the tests of some suites, one a line.

Run as test_targets.py BUILD SUITE...; BUILD is a build folder of Meson.
"""
import json
import os
import subprocess
import sys


def introspect(build, what):
    return json.loads(subprocess.run(["meson", "introspect", what, build], check=True, capture_output=True, text=True).stdout)


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: test_targets.py BUILD SUITE...")
    build, suites = sys.argv[1], set(sys.argv[2:])
    needed = set()
    for test in introspect(build, "--tests"):
        # A suite's name has the project's as prefix: gptrain:fast.
        if suites & {suite.split(":")[-1] for suite in test["suite"]}:
            needed |= set(test["depends"])
    for target in introspect(build, "--targets"):
        if target["id"] in needed:
            for file in target["filename"]:
                print(os.path.relpath(file, build))


if __name__ == "__main__":
    main()
