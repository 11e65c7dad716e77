#!/usr/bin/env python3
"""Parts of tools/gpu_check.sh that need more than a command: each adds rows to its table and exits with 1 on failure.

    each PROGRAM  runs every op of test_ops, or every case of a Catch2 program, in its own process
    sanitize PROGRAM  runs some cases of test_ops, of the ops in a training step, under compute-sanitizer
    kernels LOG   adds rows from the output of `test_ops --backend cuda --bench`
    library LOG   adds rows from the output of bench_gpu_library
    resume        checks that a run stopped and resumed ends with the same bits as one run from the start
    memory        checks that a run uses the planned memory, and no more after the first steps
    profile       prints the time of a step, op by op
    host          trains with optimizer state on the host, and in files: the losses of a run without, its steps, the rates
                  of the links
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench_gpu import add_arguments, fitting_micro_batches, prepare
from gpu_runs import (ALL_CASES, UNTIMED_STEPS, Case, Deadline, Rows, RunFailed, plan, run_gptrain, train_steps,
                      used_memory, usual_cases, write_config)

LEAST_COPY_SHARE = 85  # percent of the measured copy bandwidth
# The mark applies to operands of at least four times the L2 cache; 60 MB is an H200's, the largest except for B200's.
LEAST_BYTES = 4 * 60e6
LIMITS_LINE = re.compile(r"cuda, .*: copy ([\d.]+) GB/s, matrix product f32 (\d+) GFLOP/s, bf16 (\d+) GFLOP/s$")
BENCH_LINE = re.compile(r"(?P<title>.+?) +(?P<ms>[\d.]+) ms +(?P<rate>[\d.]+) (?P<unit>GFLOP/s|GB/s) +(?P<share>\d+)%$")

# Products of experts, and one product of as many rows.
EXPERTS = re.compile(r"grouped_(linear_\w+) \[E=\d+ R=\d+ of (\d+ in=\d+ out=\d+ bf16)\]")
BESIDE_EXPERTS = re.compile(r"(linear_\w+) \[beside experts, N=(\d+ in=\d+ out=\d+ bf16)\]")

AT_ONCE = 4  # processes on the device at a time
LONGEST_CASE_SECONDS = 60
SKIPPED = 77
# Share of an op's cases that runs under compute-sanitizer, one in N, at small sizes: it is a hundred times slower.
SANITIZED = {"linear_forward": 12, "linear_backward_input": 8, "linear_backward_weight": 10, "attention_forward": 12,
             "attention_backward": 12, "norm_forward": 8, "norm_backward": 8, "cross_entropy": 8, "quantize": 6,
             "scaled_product": 8, "embedding_backward": 4, "adamw": 6}
SANITIZER_FOUND = 99
# racecheck takes the barriers in the libraries' warp-group products for races, so it checks only kernels of our
# namespace. memcheck reports failing calls that the libraries handle themselves, so its API reports are off.
SANITIZER_LIMITS = {"racecheck": ["--kernel-name", "kns=gptrain"], "memcheck": ["--report-api-errors", "no"]}
STEADY_FROM_STEP = 4  # earlier steps choose algorithms and load modules
# Micro-batches of tools/gpu/gpu_roofline.py, with which a profile is compared.
RECKONED_MICRO_BATCHES = {"gpt2-124m-1024": 32, "gpt2-1.5b-1024": 16}
MEMORY_STEPS = 12
HOST_STEPS = 9
FILE_STEPS = 3  # a step reads and writes 24 bytes of each parameter
# Rows of a trace whose events are transfers, or the updates between them.
LANES_OF_PLACE = {"host": {"lane offload": "gradients to the host", "lane fetch": "weights to the device",
                           "lane update": "updates on the host"},
                  "disk": {"lane disk_read": "state read from files", "lane disk_write": "state written to files"}}
MEMORY_CASE = Case({"preset": "gpt2-124m", "sequence_length": 1024}, 65536, micro_tokens=(16384,))
# Dropout, several micro-batches and grouped queries, so that everything with state takes part.
RESUME_CASE = Case({"num_layers": 4, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 1000,
                    "sequence_length": 256, "norm": "rmsnorm", "positions": "rope", "activation": "swiglu",
                    "bias": False, "dropout": 0.1}, 2048, micro_tokens=(1024,))


def commands(program):
    """Returns {name: command that runs it alone}."""
    def names(*arguments):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]

    if program.name.startswith("test_ops"):
        return {op: [program, "--backend", "cuda", "--op", op] for op in names("--list-ops")}
    escapes = str.maketrans({character: "\\" + character for character in "\\,["})
    cases = names("--list-test-names-only") or names("--list-tests", "--verbosity", "quiet")  # Catch2 version 2, then 3
    return {name: [program, name.translate(escapes)] for name in cases}


def end_of_command(command, seconds, late):
    """Returns (True if it passed or cannot run here, its output). `late`: returned if it takes longer than that."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=max(seconds, 0.1), check=False)
    except subprocess.TimeoutExpired as over:
        printed = over.stdout or ""
        if isinstance(printed, bytes):
            printed = printed.decode(errors="replace")
        return late, f"{printed}ended after {seconds:.0f} s\n"
    return done.returncode in (0, SKIPPED), f"{done.stdout}exit {done.returncode}\n"


def each(options, rows):
    deadline, program = Deadline(options.seconds), options.file.resolve()
    runs = commands(program)
    if not runs:
        raise RunFailed(f"{program} names nothing to run")

    return run_each(runs, program.name, deadline, rows)


def run_each(runs, title, deadline, rows, late=False):
    """Runs {name: command}, several at once; adds a row for each that fails or has no time left. `late`: None if a
    command that takes too long is skipped, False if it fails."""
    def run(command):
        seconds = min(LONGEST_CASE_SECONDS, deadline.left())
        return end_of_command(command, seconds, late) if seconds > 0 else (None, "no time was left\n")

    all_sound = True
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, (sound, printed) in zip(runs, pool.map(run, runs.values()), strict=True):
            print(f"---- {name}\n{printed}", end="", flush=True)
            if not sound:
                status = "skipped" if sound is None else "fail"
                rows.add(f"{title}: {name}", "", mark=printed.splitlines()[-1], status=status)
                all_sound = all_sound and sound is None
    return all_sound


def sanitize(options, rows):
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("skipped: there is no compute-sanitizer")
        return None
    program = options.file.resolve()
    under_tool = [tool, "--tool", options.tool, "--error-exitcode", str(SANITIZER_FOUND),
                  *SANITIZER_LIMITS[options.tool], program, "--backend", "cuda", "--repeats", "1"]
    runs = {op: [*under_tool, "--op", op, "--every", str(every)] for op, every in SANITIZED.items()}
    return run_each(runs, options.tool, Deadline(options.seconds), rows, late=None)


def library(options, rows):
    """Reads lines "= name, figure, unit, mark, outcome", separated by tabs."""
    sound, found = True, False
    for line in options.file.read_text(encoding="utf-8").splitlines():
        fields = line[2:].split("\t")
        if not line.startswith("= ") or len(fields) != 5:
            continue
        rows.add(*fields)
        sound, found = sound and fields[4] != "fail", True
    return sound and found


def kernels(options, rows):
    """Adds rows: for memory-bound ops the share of the copy bandwidth, for bf16 products the best share per op, for
    attention with documents the time by cuDNN and by our own kernels, for products of experts their rate beside that of
    one product of as many rows."""
    products, experts, beside, sound = {}, {}, {}, True
    for line in options.file.read_text(encoding="utf-8").splitlines():
        if line.startswith("FAIL "):
            rows.add(line[len("FAIL "):], "", status="fail")
            sound = False
        if match := LIMITS_LINE.match(line):
            rows.add("copying memory, measured", match[1], "GB/s")
            rows.add("products in f32, measured", f"{float(match[2]) / 1e3:.1f}", "TFLOP/s")
            rows.add("products in bf16, measured", f"{float(match[3]) / 1e3:.1f}", "TFLOP/s")
        if not (match := BENCH_LINE.match(line)):
            continue
        title, share = match["title"], float(match["share"])
        if found := EXPERTS.fullmatch(title):
            experts[title] = (found.groups(), float(match["ms"]))
        elif found := BESIDE_EXPERTS.fullmatch(title):
            beside[found.groups()] = float(match["ms"])
        if match["unit"] == "GB/s":
            if float(match["rate"]) * 1e9 * float(match["ms"]) / 1e3 >= LEAST_BYTES:
                sound = rows.at_least(title, share, LEAST_COPY_SHARE, "% of copying", 0) and sound
        elif "documents" in title:
            rows.add(title, match["ms"], "ms")  # as time: a rate would count the work that documents save
        elif "bf16" in title:
            op = title.split(" [")[0]
            products[op] = max(products.get(op, (0, "")), (share, title))
    for share, title in products.values():
        rows.add(f"{title} (the best of its shapes)", f"{share:.0f}", "% of the rate")
    for title, (shape, milliseconds) in experts.items():
        if shape in beside:
            rows.add(title, f"{100 * beside[shape] / milliseconds:.0f}", "% of one product's rate")
    return sound


def resume(options, rows, folder):
    prepare(options.gptrain, folder, RESUME_CASE)

    def train(out, *arguments):
        file = write_config(folder, RESUME_CASE, 4, options.device, out, run={"steps": 12},
                            schedule={"type": "cosine", "min_lr": 1e-5})
        run_gptrain(options.gptrain, folder, "train", file, *arguments)
        return folder / out / "checkpoints" / "step-00000012" / "rank-00000.safetensors"

    whole = train("whole").read_bytes()
    sound = True
    again = train("again").read_bytes()
    train("stopped", "--steps", 6)
    resumed = train("stopped", "--resume", "latest").read_bytes()
    for what, other in (("the same run again", again), ("stopped at step 6 and resumed", resumed)):
        same = other == whole
        rows.add(f"weights and moments, {what}", "same" if same else "different", "bits", "same",
                 "pass" if same else "fail")
        sound = sound and same
    return sound


def memory(options, rows, folder):
    case = MEMORY_CASE
    prepare(options.gptrain, folder, case)
    file = write_config(folder, case, case.micro_batches()[0], options.device, "memory")
    planned = plan(options.gptrain, folder, file)
    before, samples = used_memory(), []
    run = train_steps(options.gptrain, file, MEMORY_STEPS, options.seconds,
                      after_step=lambda step: samples.append(used_memory()))
    taken = json.loads((folder / "memory" / "run.json").read_text(encoding="utf-8"))
    wrong = {key: (planned[key], value) for key, value in taken.items() if planned[key] != value}
    for key, (expected, value) in wrong.items():
        print(f"{key}: {expected} planned, {value} taken")
    arenas = run.records[-1]["peak_bytes"]
    rows.add("arenas of 124M, micro-batch 16", f"{arenas / 2**20:.1f}", "MiB", f"{planned['peak_bytes'] / 2**20:.1f}",
             "fail" if wrong else "pass")
    if None in (before, *samples):
        rows.add("memory beside the arenas", "", mark="nvidia-smi does not say", status="skipped")
        return not wrong
    rows.add("memory beside the arenas (context, modules, libraries)", f"{(samples[-1] - before - arenas) / 2**20:.0f}",
             "MiB")
    file, eager = write_config(folder, case, case.micro_batches()[0], options.device, "all-kernels"), []
    train_steps(options.gptrain, file, STEADY_FROM_STEP, options.seconds, variables={"CUDA_MODULE_LOADING": "EAGER"},
                after_step=lambda step: eager.append(used_memory()))
    beside = ((eager[-1] or 0) - before - arenas) >> 20
    rows.add("memory beside the arenas, kernels loaded at the start", f"{beside}", "MiB", "as of several ranks")
    late = samples[STEADY_FROM_STEP - 1:]
    print("taken after each step, MiB:", *(sample >> 20 for sample in samples))
    growth = (max(late) - min(late)) >> 20
    rows.add(f"memory from step {STEADY_FROM_STEP} on, change", f"{growth}", "MiB", "0", "fail" if growth else "pass")
    return not wrong and growth == 0


def rates_of_lanes(rows, folder, step, place):
    """Adds the rate of each lane of the place in a step's trace. Returns False if one has no events."""
    trace = json.loads((folder / place / f"trace-step{step}.json").read_text(encoding="utf-8"))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    lanes = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    sound = True
    for lane, what in LANES_OF_PLACE[place].items():
        own = [event for event in events if lanes[event["tid"]] == lane]
        seconds = sum(event["dur"] for event in own) * 1e-6
        rate = sum(event["args"]["bytes_moved"] for event in own) / max(seconds, 1e-9)
        rows.add(f"{what} ({seconds * 1e3:.1f} ms)", f"{rate / 1e9:.1f}", "GB/s", status="pass" if own else "fail")
        sound = sound and bool(own)
    return sound


def in_files(options, rows, folder, case, micro, left, losses):
    """Trains a few steps with optimizer state in files. Returns False if they differ from those without."""
    name = "optimizer state in files"
    (folder / "drive").mkdir()
    file = write_config(folder, case, micro, options.device, "disk",
                        memory={"offload_optimizer": "disk", "disk_path": str(folder / "drive")})
    deadline = Deadline(left)
    try:
        run = train_steps(options.gptrain, file, FILE_STEPS, left, "--profile-step", FILE_STEPS - 1)
    except RunFailed as error:
        return rows.no_figure(name, error, deadline)
    same = [record["loss"] for record in run.records[:FILE_STEPS]] == losses[:FILE_STEPS]
    rows.add(f"losses with {name}", "same" if same else "different", "bits", "same", "pass" if same else "fail")
    return rates_of_lanes(rows, folder, FILE_STEPS - 1, "disk") and same


def host(options, rows, folder):
    case = ALL_CASES[(options.cases or ["gpt2-1.5b-1024"])[0]]
    deadline = Deadline(options.seconds)
    prepare(options.gptrain, folder, case)
    micro = case.micro_batches()[-1]
    runs = {}
    for place in ("none", "host"):
        file = write_config(folder, case, micro, options.device, place, memory={"offload_optimizer": place})
        # The profile is printed after its step: one more step makes sure that it is there.
        runs[place] = train_steps(options.gptrain, file, HOST_STEPS, deadline.left(), "--profile-step", HOST_STEPS - 1)
        steady = sorted(record["step_seconds"] for record in runs[place].records[UNTIMED_STEPS:HOST_STEPS - 2])
        rows.add(f"a step with memory.offload_optimizer={place}, micro-batch {micro}",
                 f"{steady[len(steady) // 2] * 1e3:.1f}", "ms")
    losses = {place: [record["loss"] for record in run.records] for place, run in runs.items()}
    same = losses["none"] == losses["host"]
    rows.add("losses with optimizer state on the host", "same" if same else "different", "bits", "same",
             "pass" if same else "fail")
    same = rates_of_lanes(rows, folder, HOST_STEPS - 1, "host") and same
    return in_files(options, rows, folder, case, micro, deadline.left(), losses["none"]) and same


def profile(options, rows, folder):
    deadline = Deadline(options.seconds)
    for name in options.cases or usual_cases():
        case = ALL_CASES[name]
        deadline.check()
        prepare(options.gptrain, folder, case)
        fitting = fitting_micro_batches(options.gptrain, folder, case, options.device)
        if not fitting:
            raise RunFailed(f"{name}: no micro-batch fits")
        reckoned = RECKONED_MICRO_BATCHES.get(name)
        micro = reckoned if reckoned in fitting else fitting[0]
        file = write_config(folder, case, micro, options.device, name, batch={"global": micro})
        # The table is printed after its step: one more step makes sure that it is there.
        run = train_steps(options.gptrain, file, 7, deadline.left(), "--profile-step", 6)
        table = "".join(run.printed)
        if "profile of step" not in table:
            raise RunFailed(f"{name}: gptrain printed no profile")
        print(f"{name}, one micro-batch of {micro}\n{table[table.index('profile of step'):]}")
        rows.add(f"{name}, one micro-batch of {micro}, a step (op by op: the log)",
                 f"{run.records[6]['step_seconds'] * 1e3:.1f}", "ms")
        shutil.rmtree(folder / name)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["each", "sanitize", "kernels", "library", "resume", "memory", "profile",
                                         "host"])
    parser.add_argument("file", nargs="?", type=Path, help="the program of each and sanitize, the log of the others")
    parser.add_argument("--tool", choices=["memcheck", "racecheck"], default="memcheck", help="of sanitize")
    add_arguments(parser)
    options = parser.parse_args()
    options.gptrain = options.gptrain.resolve()
    rows = Rows(options.rows)
    of_files = {"each": each, "sanitize": sanitize, "kernels": kernels, "library": library}
    parts = {"resume": resume, "memory": memory, "profile": profile, "host": host}
    try:
        if options.part in of_files:
            sound = of_files[options.part](options, rows)
            return SKIPPED if sound is None else 0 if sound else 1
        with tempfile.TemporaryDirectory(prefix="gptrain-check-") as scratch:
            return 0 if parts[options.part](options, rows, Path(scratch)) else 1
    except (RunFailed, RuntimeError) as error:
        print(f"{options.part}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
