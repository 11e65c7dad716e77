#!/usr/bin/env python3
"""The table of tools/kernel_report.sh: kernel_table.py FOLDER HARNESS, where the folder holds what ptxas printed (.txt),
machine code (.sass) and the harness' launches (.launches)."""
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Of a multiprocessor of compute capability 9.0 (and 8.0, but for shared memory).
REGISTERS, THREADS, BLOCKS, WARPS = 65536, 2048, 32, 64
SHARED_BYTES = 228 << 10
SHARED_OF_A_BLOCK = 1024  # that the system takes of each
REGISTERS_OF_A_WARP = 256  # are given in multiples of so many


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.splitlines(), strict=True))


def short(name):
    """Without return type, namespaces and parameters, which nobody needs to tell kernels apart."""
    name = re.sub(r"\(anonymous namespace\)::|gptrain::|^void ", "", name)
    depth = 0
    for place, character in enumerate(name):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "(" and depth == 0:
            return name[:place]
    return name


def read_ptxas(folder):
    """{mangled: {file, registers, stack, spills, static shared bytes}}"""
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
    """{mangled: instructions that read or write local memory}; empty without machine code"""
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


def read_launches(folder, harness):
    """{kernel as demangled: {mark: {(threads, shared bytes)}}}"""
    launches = defaultdict(lambda: defaultdict(set))
    files = list(folder.glob("*.launches"))
    if not files:
        return launches
    symbols = {}
    for line in subprocess.run(["nm", "-C", harness], capture_output=True, text=True, check=True).stdout.splitlines():
        if found := re.match(r"([0-9a-f]+) \w (.*)", line):
            symbols[int(found[1], 16)] = found[2]
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


def main():
    folder, harness = Path(sys.argv[1]), sys.argv[2]
    kernels, local = read_ptxas(folder), read_local_instructions(folder)
    names, launches = demangled(list(kernels)), read_launches(folder, harness)
    matched = set()
    print(f"{'step':<5}{'registers':>9}{'stack':>7}{'spills':>7}{'local':>7}{'threads':>8}{'shared':>8}{'blocks':>7}  "
          "kernel")
    for mangled, kernel in sorted(kernels.items(), key=lambda item: (item[1]["file"], names[item[0]])):
        name = names[mangled]
        marks = launches.get(name, {})
        matched.add(name)
        shapes = sorted({shape for shapes in marks.values() for shape in shapes}) or [None]
        for shape in shapes:
            seen = "".join(mark for mark in "G8L" if shape in marks.get(mark, ()))
            threads, shared = shape or ("-", kernel["shared"])
            blocks = blocks_per_multiprocessor(kernel, *shape) if shape else "-"
            print(f"{seen:<5}{kernel['registers']:>9}{kernel['stack']:>7}{kernel['spills']:>7}"
                  f"{local.get(mangled, '-'):>7}{threads:>8}{shared:>8}{blocks:>7}  {kernel['file']}: {short(name)}")
    if unknown := set(launches) - matched:
        sys.exit("launched, but not compiled: " + "; ".join(sorted(unknown)))
    of_step = [kernel for mangled, kernel in kernels.items() if names[mangled] in launches]
    print(f"{len(kernels)} kernels, {len(of_step)} of a step, of which {sum(k['stack'] > 0 for k in of_step)} have a "
          "stack")


if __name__ == "__main__":
    main()
