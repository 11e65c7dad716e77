#!/usr/bin/env python3
"""Checks the machine code of the CUDA kernels as nvcc made it, without a GPU: nothing in local memory, tensor-core
instructions of attention, accesses of 16 bytes wherever rows are read, and sums in f64 that wait for each other.

    test_machine_code.py OBJECT...

Bounds are of sm_90. Where the build has no code for it, exits 77 (skipped).
"""
import re
import sys

from machine_code import Compressed, HMMA, LDG, SIZE_128, SIZE_64, STG, kernels_of

ARCHITECTURE = 90

# Longest chain of f64 additions that a thread may wait for. Kernels with a power in f64 take 47, once a block.
MOST_ADDITIONS = 32
POWERS = r"advance_moments|update(_rounding)?<(Averaged<)?AdafactorVectors"

# Kernels that may access local memory, and how often. Attention in f32: 50 accesses a tile (138 by patterns of several
# runs of keys) beside 1,024 fused multiply-adds of each product are 2%; with registers for all, one block would fit a
# multiprocessor where two do. By such patterns in 16 bits, the tiles and runs of a block wait there for the loop over
# keys: a tile of keys reads 12 to 16 numbers back beside 5,000 instructions.
LOCAL = {r"(forward|backward_\w+)<FmaEngine<\w+>, \d, false, \w+>": 50,
         r"(forward|backward_\w+)<FmaEngine<\w+>, \d, true, \w+>": 138,
         r"backward_\w+<MmaEngine<\w+>, \d, true, \w+>": 30,
         r"forward<MmaEngine<\w+>, \d, true, \w+>": 38}

# Kernels in which a trip of a loop adds in f64 to the sum of the trip before: the most additions of a thread, reckoned
# for the largest shapes of training (1.5B parameters, 16,384 tokens, 8 ranks).
CARRIED_SUMS = {
    r"chunk_norms": (16 + 5 + 8, "16 packs of a chunk, lanes, warps"),
    r"measure_chunks": (64 + 5 + 8, "64 elements of a chunk, lanes, warps; 8 blocks of a multiprocessor hide the wait"),
    r"segment_norms|add_chunks": (20 + 5 + 8, "a 256th of the 4,913 chunks of the largest tensor, lanes, warps"),
    r"sum_rows": (25 + 5 + 8, "a 256th of 6,400 columns, lanes, warps"),
    r"sum_columns": (400 + 16, "a 16th of 6,400 rows; 1,300 threads of a multiprocessor at a time hide the wait"),
    r"advance_moments": (25 + 5 + 8, "a 256th of 6,400 rows, lanes, warps"),
    r"decide_update": (580, "all tensors, in the order of the list, on which results rest: 6 us a step"),
    r"accumulate_loss": (16 + 5 + 5, "a 1,024th of 16,384 rows, lanes, warps"),
    r"cross_entropy": (5 + 16, "lanes, warps; with slices of the vocabulary the ranks"),
    r"add_partials|sum_chunks": (132 * 8 / 16, "a 16th of the blocks of rows"),
    r"reduce_ranks": (8, "the ranks"),
    r"balance_routers": (256, "the experts of a block, once a step and vector"),
    r"add_sums": (2 * 8, "two runs of queries of each of 8 sequences; norms have one row"),
    r"add_statistics": (256 + 10, "the chunks of 16,384 rows, halves of a block, or the runs of an expert"),
    r"sink_gradients": (512 + 5, "a 32nd of 16,384 rows, lanes; warps of other heads hide the wait"),
}

# Tensor-core instructions of 16 x 8 x 16: a tile of 64 x 64 x 64 takes 32 of a warp. Scores loop over the chunks of 64
# features, sums have each chunk's code by itself.
TENSOR_CORE = {
    r"forward<MmaEngine<\w+>, (\d)": lambda chunks: 32 + 32 * chunks,
    r"backward_keys<MmaEngine<\w+>, (\d)": lambda chunks: 64 + 64 * chunks,
    r"backward_queries<MmaEngine<\w+>, (\d)": lambda chunks: 64 + 32 * chunks,
    r"multiply_\w+<b?f(16)": lambda _: 64,  # experts: 64 x 128 x 64 by four warps
}

# Least number of loads and stores of 16 bytes in the kernels of a training step in bf16.
WIDE = {
    r"norm_forward<bf16, bf16, 8, 1>": (2, 2),  # x, branch; x, y
    r"norm_backward<bf16, bf16, 8, 1>": (3, 1),  # x, dy, residual; dx
    r"cross_entropy<bf16, bf16, 8, Uncapped>": (4, 2),  # two packs at once, both passes
    r"cross_entropy<float, float, 8, Uncapped>": (8, 4),
    r"embedding_forward<bf16, bf16, 8>": (2, 1),  # token, position
    r"sum_tokens<bf16, 8>": (8, 2),  # rows in flight; f32 sums
    r"update<AdamW, float, bf16, true>": (4, 3),  # gradient, master, both moments
    r"update_blocks<AdamW8bit, float, bf16, true>": (4, 2),  # twice gradient and master
    r"chunk_norms<float>": (1, 0),
    r"query_key_forward<bf16, 8, 1>": (2, 2),  # both halves of a head
    r"multiply_rows<bf16, true>": (24, 0),  # 12 packs of both operands, before the loop and in it
    r"multiply_rows<bf16, false>": (24, 0),
    r"multiply_weights<bf16>": (24, 0),
    r"forward<MmaEngine<bf16>, 1, false, bf16>": (12, 0),  # four packs each of queries, keys, values
}

# Most loads of 8 bytes: a segment's members are read once, not again behind each store.
SEGMENT_READS = {r"update(_rounding)?<|keep<": 16, r"update_blocks<": 16}


def faults_of(kernel):
    """Yields the bounds that a kernel breaks."""
    allowed = max((most for pattern, most in LOCAL.items() if re.match(pattern, kernel.name)), default=0)
    if kernel.local() > allowed:
        yield f"{kernel.local()} accesses to local memory, of spilled registers or a stack; {allowed} may be"
    if kernel.longest_sum() > MOST_ADDITIONS and not re.match(POWERS, kernel.name):
        yield f"{kernel.longest_sum()} f64 additions in a row, {MOST_ADDITIONS} may be"
    if kernel.carried_sums() and not any(re.match(pattern, kernel.name) for pattern in CARRIED_SUMS):
        yield "a loop's f64 additions wait for each other: reckon how many, and add it to CARRIED_SUMS"
    for pattern, count in TENSOR_CORE.items():
        found = re.match(pattern, kernel.name)
        if found and kernel.count(HMMA) != count(int(found.group(1))):
            yield f"{kernel.count(HMMA)} tensor-core instructions, {count(int(found.group(1)))} are expected"
    for pattern, (loads, stores) in WIDE.items():
        if kernel.name == pattern and (kernel.count(LDG, SIZE_128) < loads or kernel.count(STG, SIZE_128) < stores):
            yield (f"{kernel.count(LDG, SIZE_128)} loads and {kernel.count(STG, SIZE_128)} stores of 16 bytes, "
                   f"{loads} and {stores} are expected")
    for pattern, most in SEGMENT_READS.items():
        if re.match(pattern, kernel.name) and kernel.count(LDG, SIZE_64) > most:
            yield f"{kernel.count(LDG, SIZE_64)} loads of 8 bytes, {most} may be: a segment is read more than once"


def main(objects):
    try:
        kernels = kernels_of(objects, ARCHITECTURE)
    except Compressed as error:
        print(f"skipped: {error} holds compressed machine code")
        return 77
    if not kernels:
        print("skipped: the build has no machine code for sm_90")
        return 77
    faults = [f"{kernel.name}: {fault}" for kernel in kernels for fault in faults_of(kernel)]
    names = {kernel.name for kernel in kernels}
    faults += [f"{name}: there is no such kernel" for name in WIDE if name not in names]
    faults += [f"{pattern}: no kernel has such a sum" for pattern in CARRIED_SUMS
               if not any(re.match(pattern, kernel.name) and kernel.carried_sums() for kernel in kernels)]
    print("\n".join(faults) or f"{len(kernels)} kernels within their bounds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
