#!/usr/bin/env python3
"""Prints the table of tools/gpu/kernel_report.sh. The folder holds ptxas's output (.txt), machine code (.sass), and the
launches of programs on the host harness (.launches): t for the ops' tests, any other letter for the step of that mark.
"""
import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Limits of a multiprocessor of compute capability 9.0 (and 8.0, except for shared memory).
REGISTERS, THREADS, BLOCKS, WARPS = 65536, 2048, 32, 64
SHARED_BYTES = 228 << 10
MARKS, TESTS = "G8L", "t"
SHARED_OF_A_BLOCK = 1024  # reserved by the system in each block
REGISTERS_OF_A_WARP = 256  # registers are allocated in multiples of this


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.splitlines(), strict=True))


def short(name):
    """Shortens a kernel's name: no return type, namespaces or parameters."""
    name = re.sub(r"\(anonymous namespace\)::|gptrain::(base::|ops::|cuda::)?|^void ", "", name)
    depth = 0
    for place, character in enumerate(name):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "(" and depth == 0:
            return name[:place]
    return name


def read_ptxas(folder):
    """Returns {mangled name: {file, registers, stack, spills, static shared bytes}}."""
    kernels = {}
    for file in sorted(folder.glob("*.txt")):
        current = None
        for line in file.read_text(encoding="utf-8").splitlines():
            if found := re.search(r"Compiling entry function '(\S+)'", line):
                current = kernels[found[1]] = {"file": file.stem, "shared": 0}
            elif current is None:
                continue
            elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
                current |= {"stack": int(found[1]), "spills": int(found[2]) + int(found[3])}
            elif found := re.search(r"Used (\d+) registers", line):
                shared = re.search(r"(\d+) bytes smem", line)
                current |= {"registers": int(found[1]), "shared": int(shared[1]) if shared else 0}
    return {name: kernel for name, kernel in kernels.items() if "registers" in kernel}


def read_local_instructions(folder):
    """Returns {mangled name: number of instructions that access local memory}; {} without machine code."""
    counts = {}
    for file in folder.glob("*.sass"):
        current = None
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if found := re.search(r"Function : (\S+)", line):
                current = found[1]
                counts[current] = 0
            elif current and re.search(r"\b(LDL|STL)\b", line):
                counts[current] += 1
    return counts


def read_symbols(program):
    """Returns {offset in the program: demangled name}."""
    listed = subprocess.run(["nm", "-C", program], capture_output=True, text=True, check=True).stdout
    return {int(place, 16): name for place, name in re.findall(r"(?m)^([0-9a-f]+) \w (.*)$", listed)}


def read_launches(files, program):
    """Returns {demangled kernel name: {mark: {(threads, shared bytes)}}}."""
    launches = defaultdict(lambda: defaultdict(set))
    symbols = read_symbols(program) if files else {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            place, _, threads, shared = line.split()
            launches[symbols[int(place, 16)]][file.stem].add((int(threads), int(shared)))
    return launches


def blocks_per_multiprocessor(kernel, threads, shared):
    warps = -(-threads // 32)
    of_a_warp = -(-kernel["registers"] * 32 // REGISTERS_OF_A_WARP) * REGISTERS_OF_A_WARP
    by_registers = REGISTERS // of_a_warp // warps
    by_shared = SHARED_BYTES // (kernel["shared"] + shared + SHARED_OF_A_BLOCK)
    return min(BLOCKS, THREADS // threads, WARPS // warps, by_registers, by_shared)


def shapes_of(name, of_steps, of_tests):
    """Returns [(marks, (threads, shared bytes))]: all shapes in steps, else the largest in the tests, else an unknown
    one."""
    if marks := of_steps.get(name):
        shapes = sorted({shape for shapes in marks.values() for shape in shapes})
        return [("".join(mark for mark in MARKS if shape in marks.get(mark, ())), shape) for shape in shapes]
    if marks := of_tests.get(name):
        return [(TESTS, max(marks[TESTS]))]
    return [("", None)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", required=True, help="the program that ran the steps")
    parser.add_argument("--tests", required=True, help="the program that ran the ops' tests")
    options = parser.parse_args()
    folder = options.folder
    kernels, local = read_ptxas(folder), read_local_instructions(folder)
    names = demangled(list(kernels))
    files = sorted(folder.glob("*.launches"))
    of_steps = read_launches([file for file in files if file.stem != TESTS], options.steps)
    of_tests = read_launches([file for file in files if file.stem == TESTS], options.tests)
    print(f"{'step':<5}{'registers':>9}{'stack':>7}{'spills':>7}{'local':>7}{'threads':>8}{'shared':>8}{'blocks':>7}  "
          "kernel")
    for mangled, kernel in sorted(kernels.items(), key=lambda item: (item[1]["file"], names[item[0]])):
        name = names[mangled]
        for marks, shape in shapes_of(name, of_steps, of_tests):
            threads, shared = shape or ("-", kernel["shared"])
            blocks = blocks_per_multiprocessor(kernel, *shape) if shape else "-"
            print(f"{marks:<5}{kernel['registers']:>9}{kernel['stack']:>7}{kernel['spills']:>7}"
                  f"{local.get(mangled, '-'):>7}{threads:>8}{shared:>8}{blocks:>7}  {kernel['file']}: {short(name)}")
    if unknown := (set(of_steps) | set(of_tests)) - set(names.values()):
        sys.exit("launched, but not compiled: " + "; ".join(sorted(unknown)))
    step = [kernel for mangled, kernel in kernels.items() if names[mangled] in of_steps]
    idle = [name for name in names.values() if name not in of_steps and name not in of_tests]
    print(f"{len(kernels)} kernels, {len(step)} of a step, of which {sum(k['stack'] > 0 for k in step)} have a stack; "
          f"{len(idle)} that were not launched")


if __name__ == "__main__":
    main()
