"""What the benches and checks on a GPU share: the shapes that are measured, running gptrain on them, rows of a table.

A run of the benches trains on a corpus of exactly one global batch, so every step is one epoch, and its batch is known
whatever the order of the samples: the losses of two programs that start from the same weights can be compared.
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
UNTIMED_STEPS = 3  # the first ones choose algorithms and fill caches
TIMED_STEPS = 8
MICRO_TOKENS = (65536, 32768, 16384, 8192)  # of a micro-batch, the largest first: few large products are faster
SPARE_BYTES = 4 << 30  # what context, modules and libraries take beside the arenas, with room
RATE_LINE = re.compile(r"this machine: .* (\d+) GFLOP/s in \w+ matrix products")


@dataclass(frozen=True)
class Case:
    model: dict
    global_tokens: int
    least_mfu: float | None = None  # the mark; None: there is none
    micro_tokens: tuple = MICRO_TOKENS
    linears: str = "bf16"
    beside: str | None = None  # the case of the same in bf16
    least_gain: float | None = None  # the mark: how many times as fast as that

    @property
    def length(self):
        return self.model["sequence_length"]

    @property
    def sequences(self):
        return self.global_tokens // self.length

    def micro_batches(self):
        """Sizes to try, in sequences, the largest first."""
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
# The same with FP8 linears.
FP8_CASES = {f"{name}-fp8": replace(case, least_mfu=None, linears="fp8", beside=name,
                                    least_gain=1.15 if name == "gpt2-1.5b-1024" else None)
             for name, case in CASES.items()}
# Small enough for a CPU: these check the scripts, and are never measured unless asked for.
SMOKE_CASES = {
    "smoke-gpt2": Case({"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 1000,
                        "sequence_length": 64}, 512, micro_tokens=(512, 256, 128)),
    "smoke-llama": Case({"num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 1000,
                         "sequence_length": 64, "norm": "rmsnorm", "positions": "rope", "activation": "swiglu",
                         "bias": False, "tied_head": False}, 512, micro_tokens=(512, 256, 128)),
}
ALL_CASES = CASES | FP8_CASES | SMOKE_CASES


def usual_cases():
    """What is measured unless somebody says otherwise, in the order of what is to be known first, should time run out;
    those in FP8 on GPUs that have it."""
    capability = ask_nvidia_smi("compute_cap")
    has_fp8 = capability is None or tuple(map(int, capability.split("."))) >= (8, 9)
    first = ["gpt2-124m-1024", "gpt2-1.5b-1024", "gpt2-1.5b-1024-fp8", "llama-1b-4096", "llama-1b-4096-fp8"]
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
    """The config file of a run that trains `case` on the folder's corpus; each section replaces keys of the default."""
    config = {
        "model": case.model,
        "data": {"train": [{"path": str(folder / "tokens")}]},
        "batch": {"global": case.sequences, "micro": micro},
        "precision": {"compute": "bf16"} | ({"linears": "fp8"} if case.linears == "fp8" else {}),
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
    """Every key of the case's model, as gptrain understands it. On a CPU, which has no FP8."""
    file = write_config(folder, replace(case, linears="bf16"), case.micro_batches()[-1], "cpu", "resolved")
    return json.loads(run_gptrain(gptrain, folder, "config", "show", file))["model"]


def write_corpus(folder, case, vocab):
    """One global batch of random tokens: neighbouring samples share one, so it is one token more."""
    write_tokens(folder / "tokens", case.global_tokens + 1, vocab)


def plan(gptrain, folder, file):
    """The dry run for a GPU: gptrain plans alike for all of them."""
    return json.loads(run_gptrain(gptrain, folder, "train", file, "--dry-run", "--json", "--target", "h200"))


def ask_nvidia_smi(field):
    """A field of the first GPU; None where there is no nvidia-smi, or it does not answer."""
    try:
        done = subprocess.run(["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=20, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else None


def used_memory():
    """Bytes of the GPU that are taken, by whomever; None: unknown."""
    mebibytes = ask_nvidia_smi("memory.used")
    return int(mebibytes) << 20 if mebibytes and mebibytes.isdigit() else None


def free_memory():
    mebibytes = ask_nvidia_smi("memory.free")
    return int(mebibytes) << 20 if mebibytes and mebibytes.isdigit() else None


def lines_of(stream):
    """A queue of the lines that a process prints there, then None."""
    lines = queue.Queue()

    def read():
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


@dataclass
class Trained:
    records: list  # of the steps
    matrix_rate: float | None  # that gptrain measured, FLOP/s
    printed: list


def train_steps(gptrain, file, steps, seconds, *arguments, after_step=lambda step: None, variables=None):
    """Trains that many steps and ends the run there, for one that ends by itself saves a checkpoint, which for a large
    model takes longer than the steps. Calls after_step(step) after each. Throws RunFailed if the steps are not done
    after `seconds`. `variables`: of the environment, beside those of this process."""
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
    """Lines of the table of tools/gpu_check.sh: name, figure, unit, mark, pass, fail, skipped or -, by tabs."""

    def __init__(self, file):
        self.file = file

    def add(self, name, figure, unit="", mark="", status="-"):
        if self.file:
            with open(self.file, "a", encoding="utf-8") as rows:
                rows.write("\t".join([name, figure, unit, mark, status]) + "\n")

    def no_figure(self, name, error, deadline):
        """Where something has failed, or there was no time for it, which is no fault: returns whether it was that."""
        late = deadline.left() <= 0
        print(f"{name}: {'skipped' if late else 'failed'}: {error}", flush=True)
        self.add(name, "", mark="no time was left" if late else " ".join(str(error).split())[:80],
                 status="skipped" if late else "fail")
        return late

    def at_least(self, name, figure, bound, unit, digits=2):
        """Returns whether the figure reaches its mark; without a mark it does."""
        if bound is None:
            self.add(name, f"{figure:.{digits}f}", unit)
            return True
        status = "pass" if figure >= bound else "fail"
        self.add(name, f"{figure:.{digits}f}", unit, f">= {bound:g}", status)
        return status == "pass"
