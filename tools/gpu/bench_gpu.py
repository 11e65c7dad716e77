#!/usr/bin/env python3
"""Times whole training steps of gptrain on one GPU: GPT-2 124M to 1.5B and a LLaMA of 1B, in bf16 and FP8.

For each shape, tries the micro-batches that fit by the dry run, largest first, until a smaller one is slower. A figure
is the median over the timed steps of the fastest micro-batch. MFU is model FLOPs over the matrix rate that gptrain
measures at its start. Memory is shown twice: the arenas that gptrain planned and allocated, and the GPU's own count
above its level before the run. tools/gpu/compare_torch_gpu.py prints the same beside PyTorch's.
"""
import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_runs import (ALL_CASES, ROOT, SPARE_BYTES, TIMED_STEPS, UNTIMED_STEPS, Deadline, Rows, RunFailed,
                      free_memory, plan, resolved_model, train_steps, used_memory, usual_cases, write_config,
                      write_corpus)

LONGEST_RUN_SECONDS = 150  # limit for one micro-batch: a run that hangs leaves time for the others


@dataclass
class Figures:
    micro: int
    seconds: float  # median per step
    mfu: float
    matrix_rate: float  # measured, FLOP/s
    model_flops: int  # per step
    arena_bytes: int
    total_bytes: int | None  # None: not reported by the GPU


def measure_micro(gptrain, folder, case, micro, device, seconds):
    """Returns the figures for one micro-batch size."""
    file = write_config(folder, case, micro, device, f"micro-{micro}")
    planned = plan(gptrain, folder, file)
    before, during = used_memory(), []
    steps = UNTIMED_STEPS + TIMED_STEPS

    def look(step):
        if step == steps:
            during.append(used_memory())

    run = train_steps(gptrain, file, steps, seconds, after_step=look)
    if run.matrix_rate is None:
        raise RunFailed("gptrain did not print the matrix rate")
    if any(record["skipped"] or record["loss"] is None for record in run.records):
        raise RunFailed("a loss is not finite")
    timed = run.records[UNTIMED_STEPS:]
    total = during[0] - before if None not in (before, *during) else None
    return Figures(micro, statistics.median(record["step_seconds"] for record in timed),
                   statistics.median(record["mfu"] for record in timed), run.matrix_rate,
                   planned["model_flops_per_step"], run.records[-1]["peak_bytes"], total)


def fitting_micro_batches(gptrain, folder, case, device):
    """Returns the micro-batches that fit in the free memory, largest first."""
    free = free_memory()
    fitting = []
    for micro in case.micro_batches():
        needed = plan(gptrain, folder, write_config(folder, case, micro, device, "plan"))["peak_bytes"] + SPARE_BYTES
        if free is None or needed <= free:
            fitting.append(micro)
    return fitting


def measure(gptrain, folder, case, device, deadline, reserve=0):
    """Returns the figures of the fastest micro-batch on the folder's corpus. Throws RunFailed if none ran. Tries
    another size only if that leaves `reserve` seconds: most of a run's time goes into drawing a large model's weights.
    """
    best, fault, longest = None, "no micro-batch fits", 0
    for micro in fitting_micro_batches(gptrain, folder, case, device):
        if best and deadline.left() - reserve < longest:
            break
        start = time.monotonic()
        try:
            seconds = min(deadline.left(), LONGEST_RUN_SECONDS)
            figures = measure_micro(gptrain, folder, case, micro, device, seconds)
        except RunFailed as error:
            fault = f"micro-batch {micro}: {error}"
            print(f"  gptrain, {fault}", file=sys.stderr)
            continue
        longest = max(longest, time.monotonic() - start)
        if best and figures.seconds >= best.seconds:
            break
        best = figures
    if best is None:
        raise RunFailed(fault)
    return best


def kept_figures(file):
    """Returns {case: figures} that an earlier run has measured."""
    if file is None or not file.is_file():
        return {}
    return {name: Figures(**figures) for name, figures in json.loads(file.read_text(encoding="utf-8")).items()}


def prepare(gptrain, folder, case):
    """Writes the case's corpus; returns its model section with every key."""
    model = resolved_model(gptrain, folder, case)
    write_corpus(folder, case, model["vocab_size"])
    return model


def in_gib(count):
    return "?" if count is None else f"{count / 2**30:.1f}"


def table_head():
    return (f"{'case':<16}{'micro':>6}{'ms':>9}{'tok/s':>10}{'MFU':>7}{'TFLOP/s measured':>18}{'arenas GiB':>12}"
            f"{'in all':>8}")


def table_row(name, case, figures):
    return (f"{name:<16}{figures.micro:>6}{figures.seconds * 1e3:>9.1f}{case.global_tokens / figures.seconds:>10.0f}"
            f"{figures.mfu:>7.1%}{figures.matrix_rate / 1e12:>18.1f}{in_gib(figures.arena_bytes):>12}"
            f"{in_gib(figures.total_bytes):>8}")


def add_rows(rows, name, case, figures, measured):
    """Adds the rows of a case; returns True if its marks are reached. measured: {case: figures} so far; gets this
    case's."""
    measured[name] = figures
    rows.add(f"{name}, step", f"{figures.seconds * 1e3:.1f}", "ms")
    rows.add(f"{name}, speed", f"{case.global_tokens / figures.seconds:.0f}", "tokens/s")
    mark = case.least_mfu and 100 * case.least_mfu
    sound = rows.at_least(f"{name}, MFU of the measured rate", 100 * figures.mfu, mark, "%", 1)
    if case.beside in measured:
        gain = measured[case.beside].seconds / figures.seconds
        sound = rows.at_least(f"{name}, times as fast as {case.beside}", gain, case.least_gain, "x") and sound
    return sound


def add_arguments(parser):
    parser.add_argument("--gptrain", type=Path, default=ROOT / "build-cuda" / "gptrain", help="the executable")
    parser.add_argument("--cases", nargs="+", choices=list(ALL_CASES), metavar="CASE", help=", ".join(ALL_CASES))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to check this script")
    parser.add_argument("--seconds", type=float, default=570, help="what is not measured by then is skipped (570)")
    parser.add_argument("--figures", type=Path, help="keeps measured figures in this file, for compare_torch_gpu.py")
    parser.add_argument("--rows", type=Path, help="adds rows of tools/gpu_check.sh's table to this file")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    gptrain, rows, deadline = options.gptrain.resolve(), Rows(options.rows), Deadline(options.seconds)
    sound, measured = True, {}
    print(table_head())
    for name in options.cases or usual_cases():
        case = ALL_CASES[name]
        with tempfile.TemporaryDirectory(prefix="gptrain-bench-") as scratch:
            try:
                deadline.check()
                prepare(gptrain, Path(scratch), case)
                figures = measure(gptrain, Path(scratch), case, options.device, deadline)
            except (RunFailed, RuntimeError) as error:
                sound = rows.no_figure(name, error, deadline) and sound
                continue
            print(table_row(name, case, figures), flush=True)
            sound = add_rows(rows, name, case, figures, measured) and sound
        if options.figures:
            options.figures.write_text(json.dumps({name: asdict(each) for name, each in measured.items()}),
                                       encoding="utf-8")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
