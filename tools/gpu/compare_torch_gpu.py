#!/usr/bin/env python3
"""Compares gptrain with PyTorch on one GPU: the speed of whole training steps, and the losses from the same weights.

Run as compare_torch_gpu.py [--gptrain FILE] [--cases CASE...] [--python PYTHON-WITH-TORCH]. Exits with 1 if a mark is
missed.

Speed: both train the same shapes on the same global batch with the same optimizer, one after the other on the same
GPU, each with its fastest micro-batch. PyTorch uses the fastest settings that tools/gpu/bench_torch_gpu.py finds:
torch.compile or eager, bf16 weights with fp32 masters or autocast, attention by cuDNN or FlashAttention, fused AdamW,
the vocabulary padded. Figures are medians over steps. The ratio is PyTorch's time over gptrain's, and must be at least
1; MFU refers to the matrix rate that gptrain measures. (tools/compare/compare_torch.py compares every gradient, on a
CPU.)

Losses: both start from the weights of `gptrain checkpoint export` and train on the same batches.
  fp32   every loss within 1e-5 of PyTorch's, relative
  bf16   the losses' distance from PyTorch's in fp32 (root mean square, relative) is at most twice that of PyTorch's
         own bf16 losses, or 1e-4 if these happen to be closer: each run continues with its own weights
"""
import argparse
import json
import math
import queue
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench_gpu import add_arguments, add_rows, in_gib, kept_figures, measure, prepare
from gpu_runs import (ALL_CASES, OPTIMIZER, SMOKE_CASES, TIMED_STEPS, UNTIMED_STEPS, Case, Deadline, Rows, RunFailed,
                      lines_of, run_gptrain, train_steps, usual_cases, write_config)

HERE = Path(__file__).resolve().parent
LOSS_STEPS = 10
LOSS_CASES = {
    "gpt2-124m": Case({"preset": "gpt2-124m", "sequence_length": 1024}, 8192, micro_tokens=(4096,)),
    "llama-160m": Case({"preset": "llama-160m", "sequence_length": 1024}, 8192, micro_tokens=(4096,)),
} | SMOKE_CASES
TORCH_WEIGHTS = ("fp32", "autocast", "master")
FP32_TOLERANCE = 1e-5
BF16_FACTOR = 2.0
BF16_FLOOR = 1e-4


def start_torch(options, config, *arguments):
    command = [options.python, str(HERE / "bench_torch_gpu.py"), "--config", str(config), "--device", options.device]
    # A file, not a pipe: PyTorch's compiler processes may keep it open for a while after PyTorch has ended.
    faults = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
    process = subprocess.Popen([*command, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=faults, text=True)
    return process, faults


def trials_of(started, seconds):
    """Returns the trials that PyTorch's side prints within `seconds`, then ends it."""
    process, faults = started
    deadline, trials = Deadline(seconds), []
    lines = lines_of(process.stdout)
    try:
        while (line := lines.get(timeout=max(deadline.left(), 0.01))) is not None:
            trials.append(json.loads(line))
            print(f"  PyTorch: {describe(trials[-1])}", file=sys.stderr, flush=True)
    except queue.Empty:
        print(f"  PyTorch: ended after {seconds:.0f} s", file=sys.stderr)
    finally:
        process.kill()
        process.wait()
    sound = [trial for trial in trials if "error" not in trial]
    if not sound:
        faults.seek(0)
        why = trials[0]["error"] if trials else " ".join("".join(faults.readlines()[-3:]).split())
        raise RunFailed(f"PyTorch: {why or 'no trial was done in time'}")
    return sound


def describe(trial):
    setting = f"{trial['weights']}, compiled {trial['compiled']}, {trial['attention']}, micro {trial['micro']}"
    outcome = trial.get("error") or f"{trial['seconds'] * 1e3:.1f} ms"
    return f"{setting}: {outcome}"


def shown_config(gptrain, folder, file):
    """Writes a config with every key to its own file; returns its path."""
    shown = folder / f"{file.stem}-shown.json"
    shown.write_text(run_gptrain(gptrain, folder, "config", "show", file), encoding="utf-8")
    return shown


def measure_torch(gptrain, options, folder, case, seconds):
    """Returns (the fastest trial, the fastest without compiling or None)."""
    micros = case.micro_batches()
    file = write_config(folder, replace(case, linears="bf16"), micros[0], "cpu", "torch")
    config = shown_config(gptrain, folder, file)
    trials = trials_of(start_torch(options, config, "--untimed", UNTIMED_STEPS, "--steps", TIMED_STEPS, "--search",
                                   *micros), seconds)
    eager = [trial for trial in trials if trial["compiled"] == "no"]
    fastest = min(trials, key=lambda trial: trial["seconds"])
    return fastest, min(eager, key=lambda trial: trial["seconds"], default=None)


SPEED_HEAD = (f"{'case':<16}{'micro':>6}{'ms':>9}{'tok/s':>9}{'MFU':>7}{'arenas':>8}{'in all':>8} |{'micro':>6}"
              f"{'ms':>9}{'MFU':>7}{'GiB':>7}{'eager ms':>10} |{'ratio':>6}  PyTorch's fastest")


def speed_row(name, case, own, torch, eager):
    torch_mfu = own.model_flops / torch["seconds"] / own.matrix_rate
    eager_text = f"{eager['seconds'] * 1e3:.1f}" if eager else "-"
    return (f"{name:<16}{own.micro:>6}{own.seconds * 1e3:>9.1f}{case.global_tokens / own.seconds:>9.0f}{own.mfu:>7.1%}"
            f"{in_gib(own.arena_bytes):>8}{in_gib(own.total_bytes):>8} |{torch['micro']:>6}"
            f"{torch['seconds'] * 1e3:>9.1f}{torch_mfu:>7.1%}{in_gib(torch['peak_bytes']):>7}{eager_text:>10} |"
            f"{torch['seconds'] / own.seconds:>6.2f}  {torch['weights']}, compiled {torch['compiled']}, "
            f"{torch['attention']}")


def compare_speed(gptrain, options, rows, folder, name, deadline, measured, of_torch):
    """Returns the row of the table, and True if the marks are reached. measured, of_torch: {case: measurement} so far;
    get this case's. An FP8 case uses PyTorch's measurement of the same case in bf16."""
    case = ALL_CASES[name]
    if "moe" in case.model:
        raise RunFailed("the model in PyTorch has no experts")
    prepare(gptrain, folder, case)
    own, sound = kept_figures(options.figures).get(name), True
    if own is None:
        reserve = 0 if case.beside in of_torch else options.torch_seconds
        own = measure(gptrain, folder, case, options.device, deadline, reserve)
        sound = add_rows(rows, name, case, own, measured)
    twin = case.beside or name
    if twin not in of_torch:
        of_torch[twin] = measure_torch(gptrain, options, folder, case, min(options.torch_seconds, deadline.left()))
        rows.add(f"{twin}, PyTorch's step", f"{of_torch[twin][0]['seconds'] * 1e3:.1f}", "ms")
    torch, eager = of_torch[twin]
    sound = rows.at_least(f"{name}, PyTorch's time over gptrain's", torch["seconds"] / own.seconds, 1.0, "x") and sound
    return speed_row(name, case, own, torch, eager), sound


def compare_all_speeds(gptrain, options, rows, deadline):
    """Prints the table as it grows; returns True if all marks are reached."""
    print(f"{'':<16}{'gptrain':>47} |{'PyTorch':>39} |\n{SPEED_HEAD}", flush=True)
    all_sound, measured, of_torch = True, {}, {}
    for name in options.cases or usual_cases():
        with tempfile.TemporaryDirectory(prefix="gptrain-torch-") as scratch:
            try:
                deadline.check()
                line, sound = compare_speed(gptrain, options, rows, Path(scratch), name, deadline, measured,
                                            of_torch)
                print(line, flush=True)
            except (RunFailed, RuntimeError) as error:
                sound = rows.no_figure(f"{name}, speed beside PyTorch's", error, deadline)
        all_sound = all_sound and sound
    return all_sound


def initial_export(gptrain, options, folder, case):
    """Returns the folder of the initial weights: one step at learning rate 0 leaves them unchanged."""
    file = write_config(folder, case, case.micro_batches()[0], options.device, "initial",
                        schedule={"type": "linear", "min_lr": 0}, run={"steps": 1})
    run_gptrain(gptrain, folder, "train", file)
    exported = folder / "initial-hf"
    run_gptrain(gptrain, folder, "checkpoint", "export", folder / "initial" / "checkpoints" / "step-00000001", "--hf",
                exported)
    return exported


def losses_of_both(gptrain, options, folder, case, deadline):
    """Returns {"gptrain fp32", "gptrain bf16", "torch fp32", ..: the losses of LOSS_STEPS steps}."""
    prepare(gptrain, folder, case)
    exported = initial_export(gptrain, options, folder, case)
    losses = {}
    for precision in ("fp32", "bf16"):
        file = write_config(folder, case, case.micro_batches()[0], options.device, precision,
                            precision={"compute": precision})
        run = train_steps(gptrain, file, LOSS_STEPS, deadline.left())
        losses[f"gptrain {precision}"] = [record["loss"] for record in run.records]
    shown = shown_config(gptrain, folder, file)
    process = start_torch(options, shown, "--export", exported, "--untimed", 0, "--steps", LOSS_STEPS, "--losses",
                          *TORCH_WEIGHTS)
    for run in trials_of(process, deadline.left()):
        losses[f"torch {run['weights']}"] = run["losses"]
    if missing := [weights for weights in TORCH_WEIGHTS if f"torch {weights}" not in losses]:
        raise RunFailed(f"PyTorch did not train with weights {' and '.join(missing)}")
    return losses


def distance(losses, reference):
    """Returns the root mean square of the relative differences."""
    return math.sqrt(sum((a / b - 1)**2 for a, b in zip(losses, reference, strict=True)) / len(reference))


def check_losses(rows, name, losses):
    """Prints the losses side by side with their limits; returns True if these hold."""
    print(f"\n{name}: losses from the same weights, learning rate {OPTIMIZER['lr']}")
    print(f"{'step':>4}" + "".join(f"{who:>16}" for who in losses))
    for step in range(LOSS_STEPS):
        print(f"{step + 1:>4}" + "".join(f"{values[step]:>16.6f}" for values in losses.values()))
    exact = losses["torch fp32"]
    worst = max(abs(a / b - 1) for a, b in zip(losses["gptrain fp32"], exact, strict=True))
    own = distance(losses["gptrain bf16"], exact)
    other = min(distance(losses["torch autocast"], exact), distance(losses["torch master"], exact))
    allowed = max(BF16_FACTOR * other, BF16_FLOOR)
    checks = [("fp32 losses beside PyTorch's, worst", worst, FP32_TOLERANCE),
              ("bf16 losses from PyTorch's in fp32", own, allowed)]
    for what, figure, bound in checks:
        status = "pass" if figure <= bound else "fail"
        print(f"{what}: {figure:.2e}, allowed {bound:.2e} {'' if figure <= bound else '  MISSED'}")
        rows.add(f"{name}, {what}", f"{figure:.2e}", "relative", f"<= {bound:.1e}", status)
    print(f"bf16 losses of PyTorch from its own in fp32: {other:.2e}")
    return worst <= FP32_TOLERANCE and own <= allowed


def compare_all_losses(gptrain, options, rows, deadline):
    all_sound = True
    for name in options.loss_cases:
        with tempfile.TemporaryDirectory(prefix="gptrain-torch-") as scratch:
            try:
                deadline.check()
                losses = losses_of_both(gptrain, options, Path(scratch), LOSS_CASES[name], deadline)
                sound = check_losses(rows, name, losses)
            except (RunFailed, RuntimeError) as error:
                sound = rows.no_figure(f"{name}, losses beside PyTorch's", error, deadline)
        all_sound = all_sound and sound
    return all_sound


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--torch-seconds", type=float, default=150, help="the most that PyTorch's search takes (150)")
    parser.add_argument("--loss-cases", nargs="*", choices=list(LOSS_CASES), default=["gpt2-124m", "llama-160m"],
                        metavar="CASE", help=", ".join(LOSS_CASES))
    options = parser.parse_args()
    gptrain, rows, deadline = options.gptrain.resolve(), Rows(options.rows), Deadline(options.seconds)
    sound = compare_all_speeds(gptrain, options, rows, deadline)
    sound = compare_all_losses(gptrain, options, rows, deadline) and sound
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
