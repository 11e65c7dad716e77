#!/usr/bin/env python3
"""The whole attack with one seed: runs of every kind killed in every phase, damaged files of every kind, hostile strings, failing calls.

Run as attack.py GPTRAIN SHORT_WRITES HAS_MPI [--seed N] [--kills N] [--files N]. Prints a line for each part, and ends with
the number of parts that found a fault.
"""
import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain")
    parser.add_argument("short_writes")
    parser.add_argument("has_mpi", choices=("yes", "no"))
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--kills", type=int, default=200, help="of one rank, and of many (default: %(default)s)")
    parser.add_argument("--files", type=int, default=300, help="damaged ones of each kind (default: %(default)s)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    seeded, kinds_of_run_files, kinds_of_profiles, kinds_of_other_files = ["--seed", seed], 6, 3, 3
    # test_ranks.py kills as often with each way to carry messages.
    parts = {
        "kills of one rank": ["crash/test_crash.py", options.gptrain, "--rounds", options.kills, *seeded],
        "kills of one of many ranks": ["crash/test_ranks.py", options.gptrain, options.has_mpi, "--rounds", options.kills // 3 + 1,
                                       *seeded, "Loss.test_killed_at_any_moment"],
        "kills of runs of every kind": ["crash/test_kinds.py", options.gptrain, options.has_mpi, "--rounds", options.kills, *seeded],
        "damaged files of runs": ["fuzz/test_mutants.py", options.gptrain, options.short_writes, *seeded,
                                  "--files", kinds_of_run_files * options.files, "Files"],
        "values below right checksums": ["fuzz/test_mutants.py", options.gptrain, options.short_writes, *seeded,
                                         "--others", 2 * options.files, "SealedFiles"],
        "other damaged files": ["fuzz/test_mutants.py", options.gptrain, options.short_writes, *seeded,
                                "--others", kinds_of_other_files * options.files, "OtherFiles"],
        "mutants of configs": ["fuzz/test_mutants.py", options.gptrain, options.short_writes, *seeded,
                               "--configs", options.files, "Configs"],
        "damaged profiles": ["fuzz/test_mutants.py", options.gptrain, options.short_writes, *seeded,
                             "--files", kinds_of_profiles * options.files, "Profiles"],
        "damaged files of corpora": ["fuzz/test_corpus_mutants.py", options.gptrain, *seeded, "--files", options.files],
        "hostile strings": ["fuzz/test_strings.py", options.gptrain, *seeded],
    }
    print(f"seed {seed}")
    faults = 0
    for name, (script, *arguments) in parts.items():
        began = time.monotonic()
        done = subprocess.run([sys.executable, TESTS / script, *map(str, arguments)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
        print(f"{'ok    ' if done.returncode == 0 else 'FAULT '} {name}, {time.monotonic() - began:.0f} s", flush=True)
        faults += done.returncode != 0
        print("\n".join(done.stdout.splitlines()[-40 if done.returncode else -6:]), flush=True)
    print(f"{faults} of {len(parts)} parts found a fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
