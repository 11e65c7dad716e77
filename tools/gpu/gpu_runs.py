"""Shared by the benches and checks on a GPU: the measured shapes, running gptrain on them, rows of a table.

A bench run trains on a corpus of exactly one global batch, so every step is one epoch and its batch is known whatever
the order of samples. The losses of two programs that start from the same weights can thus be compared.
"""
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "golden")]
from bench_cpu import write_tokens  # noqa: E402
from golden_run import run_gptrain  # noqa: E402

OPTIMIZER = {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0}
UNTIMED_STEPS = 3  # earlier steps choose algorithms and fill caches
TIMED_STEPS = 8
MICRO_TOKENS = (65536, 32768, 16384, 8192)  # per micro-batch, largest first: few large products are faster
SPARE_BYTES = 4 << 30  # context, modules and libraries beside the arenas, generously
RATE_LINE = re.compile(r"this machine: .* (\d+) GFLOP/s in \w+ matrix products")


@dataclass(frozen=True)
class Case:
    model: dict
    global_tokens: int
    least_mfu: float | None = None  # mark; None: no mark
    micro_tokens: tuple = MICRO_TOKENS
    linears: str = "bf16"
    amax_history: int = 0  # steps of delayed scaling with FP8 linears
    beside: str | None = None  # name of the same case in bf16, or of a dense one
    least_gain: float | None = None  # mark: speed relative to `beside`

    @property
    def length(self):
        return self.model["sequence_length"]

    @property
    def sequences(self):
        return self.global_tokens // self.length

    def micro_batches(self):
        """Returns the sizes to try, in sequences, largest first."""
        sizes = sorted({min(tokens // self.length, self.sequences) for tokens in self.micro_tokens} - {0}, reverse=True)
        return [size for size in sizes if self.sequences % size == 0]


def gpt2(preset, length, global_tokens, least_mfu=None):
    return Case({"preset": f"gpt2-{preset}", "sequence_length": length}, global_tokens, least_mfu)


CASES = {
    "gpt2-124m-1024": gpt2("124m", 1024, 131072, 0.45),
    "gpt2-1.5b-1024": gpt2("1.5b", 1024, 65536, 0.60),
    "llama-1b-4096": Case({"preset": "llama-1b", "sequence_length": 4096}, 65536),
    "gpt2-350m-1024": gpt2("355m", 1024, 131072),
    "gpt2-774m-1024": gpt2("774m", 1024, 65536),
    "gpt2-124m-2048": gpt2("124m", 2048, 131072),
    "gpt2-1.5b-2048": gpt2("1.5b", 2048, 65536),
    "gpt2-350m-2048": gpt2("355m", 2048, 131072),
    "gpt2-774m-2048": gpt2("774m", 2048, 65536),
}
# The same cases with FP8 linears.
FP8_CASES = {f"{name}-fp8": replace(case, least_mfu=None, linears="fp8", beside=name,
                                    least_gain=1.15 if name == "gpt2-1.5b-1024" else None)
             for name, case in CASES.items()}
# And with delayed scales, as Transformer Engine has by default.
DELAYED_CASES = {f"{name}-delayed": replace(case, amax_history=1024) for name, case in FP8_CASES.items()}
# A mixture of experts, and the dense model that computes as much for a token.
MIXTURE_CASES = {
    "llama-160m-2048": Case({"preset": "llama-160m", "sequence_length": 2048}, 65536),
    "llama-160m-2048-experts": Case({"preset": "llama-160m", "sequence_length": 2048, "moe": {
        "experts": 8, "top_k": 2, "ffn_hidden_size": 1536}}, 65536, beside="llama-160m-2048"),
}
# Small enough for a CPU: they check the scripts and are measured only if asked for.
SMOKE_CASES = {
    "smoke-gpt2": Case({"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 1000,
                        "sequence_length": 64}, 512, micro_tokens=(512, 256, 128)),
    "smoke-llama": Case({"num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 1000,
                         "sequence_length": 64, "norm": "rmsnorm", "positions": "rope", "activation": "swiglu",
                         "bias": False, "tied_head": False}, 512, micro_tokens=(512, 256, 128)),
}
ALL_CASES = CASES | FP8_CASES | DELAYED_CASES | MIXTURE_CASES | SMOKE_CASES


def usual_cases():
    """Returns the cases measured by default, most important first, in case time runs out; FP8 cases on GPUs that have
    FP8."""
    capability = ask_nvidia_smi("compute_cap")
    has_fp8 = capability is None or tuple(map(int, capability.split("."))) >= (8, 9)
    first = ["gpt2-124m-1024", "gpt2-1.5b-1024", "gpt2-1.5b-1024-fp8", "gpt2-1.5b-1024-fp8-delayed", "llama-1b-4096",
             "llama-1b-4096-fp8"]
    return [name for name in dict.fromkeys([*first, *CASES, *FP8_CASES]) if has_fp8 or name in CASES]


class RunFailed(Exception):
    pass


class Deadline:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def check(self):
        if self.left() <= 0:
            raise RunFailed("no time was left")


def write_config(folder, case, micro, device, out, **sections):
    """Writes a run config that trains `case` on the folder's corpus; each section replaces keys of the default."""
    config = {
        "model": case.model,
        "data": {"train": [{"path": str(folder / "tokens")}]},
        "batch": {"global": case.sequences, "micro": micro},
        "precision": {"compute": "bf16"} | ({"linears": "fp8"} if case.linears == "fp8" else {}) | (
            {"amax_history": case.amax_history} if case.amax_history else {}),
        "optimizer": OPTIMIZER,
        "schedule": {"type": "constant"},
        "run": {"steps": 1000, "seed": 1, "out": str(folder / out), "device": device},
    }
    for name, values in sections.items():
        config[name] = config.get(name, {}) | values
    file = folder / f"{out}.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def resolved_model(gptrain, folder, case):
    """Returns every key of the case's model, as gptrain resolves it on a CPU, without FP8."""
    file = write_config(folder, replace(case, linears="bf16"), case.micro_batches()[-1], "cpu", "resolved")
    return json.loads(run_gptrain(gptrain, folder, "config", "show", file))["model"]


def write_corpus(folder, case, vocab):
    """Writes one global batch of random tokens, and one token more, which the last sample's targets need."""
    write_tokens(folder / "tokens", case.global_tokens + 1, vocab)


def plan(gptrain, folder, file):
    """Returns the dry run for a GPU; gptrain plans the same for all GPUs."""
    return json.loads(run_gptrain(gptrain, folder, "train", file, "--dry-run", "--json", "--target", "h200"))


def ask_nvidia_smi(field):
    """Returns a field of the first GPU; None without nvidia-smi or if it does not answer."""
    try:
        done = subprocess.run(["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=20, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else None


def used_memory():
    """Returns the bytes in use on the GPU, by all processes; None: unknown."""
    mebibytes = ask_nvidia_smi("memory.used")
    return int(mebibytes) << 20 if mebibytes and mebibytes.isdigit() else None


def free_memory():
    mebibytes = ask_nvidia_smi("memory.free")
    return int(mebibytes) << 20 if mebibytes and mebibytes.isdigit() else None


def lines_of(stream):
    """Returns a queue of the lines that a process prints, then None."""
    lines = queue.Queue()

    def read():
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


@dataclass
class Trained:
    records: list  # of each step
    matrix_rate: float | None  # measured by gptrain, FLOP/s
    printed: list


def train_steps(gptrain, file, steps, seconds, *arguments, after_step=lambda step: None, variables=None):
    """Trains `steps` steps and then ends the run: a run that ends by itself saves a checkpoint, which for a large
    model takes longer than the steps. Calls after_step(step) after each. Throws RunFailed if the steps are not done
    after `seconds`. `variables`: additional environment variables."""
    end = Deadline(seconds)
    process = subprocess.Popen([gptrain, "train", file, *map(str, arguments)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env=os.environ | (variables or {}))
    printed, rate, done = [], None, 0
    lines = lines_of(process.stdout)
    try:
        while done < steps:
            line = lines.get(timeout=max(end.left(), 0.01))
            if line is None:
                raise RunFailed(f"exit {process.wait()}: " + " ".join("".join(printed[-3:]).split()))
            printed.append(line)
            if match := RATE_LINE.match(line):
                rate = float(match.group(1)) * 1e9
            if line.startswith("step "):
                done += 1
                after_step(done)
    except queue.Empty:
        raise RunFailed(f"{done} of {steps} steps in {seconds:.0f} s") from None
    finally:
        process.kill()
        process.wait()
    out = Path(json.loads(file.read_text(encoding="utf-8"))["run"]["out"])
    with open(out / "metrics.jsonl", encoding="utf-8") as records:
        return Trained([json.loads(line) for line in records if line.endswith("\n")][:steps], rate, printed)


class Rows:
    """Writes lines of tools/gpu_check.sh's table, separated by tabs: name, figure, unit, mark, result (pass, fail,
    skipped, -)."""

    def __init__(self, file):
        self.file = file

    def add(self, name, figure, unit="", mark="", status="-"):
        if self.file:
            with open(self.file, "a", encoding="utf-8") as rows:
                rows.write("\t".join([name, figure, unit, mark, status]) + "\n")

    def no_figure(self, name, error, deadline):
        """Adds a row without a figure. Returns True if there was no time left, which is not a failure."""
        late = deadline.left() <= 0
        print(f"{name}: {'skipped' if late else 'failed'}: {error}", flush=True)
        self.add(name, "", mark="no time was left" if late else " ".join(str(error).split())[:80],
                 status="skipped" if late else "fail")
        return late

    def at_least(self, name, figure, bound, unit, digits=2):
        """Adds a figure; returns True if it reaches its mark or has none."""
        if bound is None:
            self.add(name, f"{figure:.{digits}f}", unit)
            return True
        status = "pass" if figure >= bound else "fail"
        self.add(name, f"{figure:.{digits}f}", unit, f">= {bound:g}", status)
        return status == "pass"
