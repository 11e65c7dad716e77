#!/usr/bin/env python3
"""Runs the cases of a Catch2 program in several processes at once: ranks that are threads wait more than they compute.

Run as cases_at_once.py PROGRAM [FILTER...]. Prints the output of every process as it ends. Exits with 1 if a case
failed, with 77 if one was skipped, else with 0.
"""
import concurrent.futures
import os
import re
import subprocess
import sys

SKIPPED = 77
CASES_PER_PROCESS = 4


def names_of(program, filters):
    """Returns the names of the cases that match the filters, in the order of the program."""
    # Catch2 version 2 exits with the number of names; version 3 does not know the first option.
    for options in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):
        found = subprocess.run([program, *options, *filters], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        names = [line.strip() for line in found.stdout.splitlines() if line.strip()]
        if found.returncode in (0, min(len(names), 255)):
            break
    if not names or found.returncode not in (0, min(len(names), 255)):
        sys.exit(f"{program}: no case matches {' '.join(filters) or 'an empty filter'}")
    return names


def filter_of(name):
    return '"' + re.sub(r'([\\"\[\],*])', r"\\\1", name) + '"'


def run(program, names):
    """Runs the cases. Returns their output, and the exit status."""
    ended = subprocess.run([program, ",".join(map(filter_of, names))], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, errors="replace")
    ran = re.search(r"test cases: *(\d+)|\((?:\d+ assertions? )?in (\d+) test cases?\)", ended.stdout)
    number = int(ran.group(1) or ran.group(2)) if ran else 0
    if number != len(names):
        return f"{ended.stdout}\n{number} of {len(names)} cases ran: {names}\n", ended.returncode or 1
    return ended.stdout, ended.returncode


def main():
    program, filters = sys.argv[1], sys.argv[2:]
    names = names_of(program, filters)
    parts = [names[i:i + CASES_PER_PROCESS] for i in range(0, len(names), CASES_PER_PROCESS)]
    statuses = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for printed, status in pool.map(lambda part: run(program, part), parts):
            print(printed, end="", flush=True)
            statuses.append(status)
    failed = [status for status in statuses if status not in (0, SKIPPED)]
    if failed:
        sys.exit(f"{len(failed)} of {len(parts)} processes failed")
    sys.exit(SKIPPED if SKIPPED in statuses else 0)


if __name__ == "__main__":
    main()
