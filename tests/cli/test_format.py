#!/usr/bin/env python3
"""Checks that clang-format would change no file of src, cuda and tests.

Run as test_format.py SOURCE_ROOT. Prints the files that it would change and the command that mends them. Exits with 77
(skipped) without clang-format 14, as other versions format otherwise, and where git does not list the files.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "14"
# Files that end in .inc are lists of numbers, whose lines the scripts that write them break.
SUFFIXES = {".cpp", ".h", ".cu", ".cuh"}
FAULT = re.compile(r"(?m)^(.+?):\d+:\d+: \w+: code should be clang-formatted")


def find_formatter():
    """Returns the name of the program, or None."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(name):
            printed = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            if re.search(rf"version {VERSION}\.", printed):
                return name
    return None


def listed_files(root):
    """Returns paths relative to `root`, new files included that git does not ignore, or None if git lists none."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "src", "cuda", "tests"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    paths = done.stdout.split("\0")
    return [path for path in paths if Path(path).suffix in SUFFIXES and (root / path).is_file()] or None


def unclean_files(formatter, root, files):
    done = subprocess.run([formatter, "--dry-run", "--ferror-limit=1", "--style=file", *files], cwd=root,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{formatter} ended with {done.returncode}: {done.stderr}")
    return sorted(set(FAULT.findall(done.stderr)))


def check_that_faults_are_found(formatter, root):
    """Ends the program if the check misses a file that is not clean, or blames one that is."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(root / ".clang-format", folder)
        (Path(folder) / "clean.cpp").write_text("int f() { return 0; }\n", encoding="utf-8")
        (Path(folder) / "unclean.cpp").write_text("int f(){\n    return 0;}\nint  g;\n", encoding="utf-8")
        found = unclean_files(formatter, folder, ["clean.cpp", "unclean.cpp"])
    if found != ["unclean.cpp"]:
        sys.exit(f"the check itself is wrong: found {found}, expected ['unclean.cpp']")


def main():
    root = Path(sys.argv[1]).resolve()
    formatter, files = find_formatter(), listed_files(root)
    if formatter is None:
        print(f"skipped: there is no clang-format {VERSION} (tools/setup.sh --tests installs it)")
        return 77
    if files is None:
        print(f"skipped: git lists no files in {root}")
        return 77
    check_that_faults_are_found(formatter, root)
    unclean = unclean_files(formatter, root, files)
    if not unclean:
        print(f"{len(files)} files are clean")
        return 0
    print(*unclean, sep="\n")
    print(f"{len(unclean)} of {len(files)} files are not clean; this mends them, in the root of the source tree:")
    print(f"{formatter} -i {' '.join(unclean)}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
