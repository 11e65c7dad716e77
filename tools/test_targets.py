#!/usr/bin/env python3
"""Prints the targets that `ninja` must build for the tests of some suites, one a line.

Run as test_targets.py needed|all BUILD SUITE...; BUILD is a build folder of Meson. all: also the targets that are built by
default. Ninja's own `all` would have those of every suite.
"""
import json
import os
import subprocess
import sys


def introspect(build, what):
    return json.loads(subprocess.run(["meson", "introspect", what, build], check=True, capture_output=True, text=True).stdout)


def main():
    if len(sys.argv) < 4 or sys.argv[1] not in ("needed", "all"):
        sys.exit("usage: test_targets.py needed|all BUILD SUITE...")
    with_defaults, build, suites = sys.argv[1] == "all", sys.argv[2], set(sys.argv[3:])
    needed = set()
    for test in introspect(build, "--tests"):
        # A suite's name has the project's as prefix: gptrain:fast.
        if suites & {suite.split(":")[-1] for suite in test["suite"]}:
            needed |= set(test["depends"])
    for target in introspect(build, "--targets"):
        if target["id"] in needed or with_defaults and target["build_by_default"]:
            for file in target["filename"]:
                print(os.path.relpath(file, build))


if __name__ == "__main__":
    main()
