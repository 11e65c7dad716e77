#!/usr/bin/env python3
"""Trains PyTorch's twin of a gptrain model on one GPU and times it: the other side of tools/gpu/compare_torch_gpu.py.

    --search: searches PyTorch's fastest settings for one global batch and prints one JSON object per trial. First the
    micro-batches, largest first, until a smaller one is slower. Then, at the fastest so far: the other attention, the
    other weights, the model compiled whole instead of block by block, and last the fastest without compiling. The
    caller may end it early and take the best so far.

    --losses: trains from exported weights without compiling, once for each of the named weights, and prints the
    losses, one JSON object per run.

Weights: "autocast" is fp32 weights under bf16 autocast; "master" is bf16 weights with fp32 gradient sums and master
weights, as gptrain has; "fp32" is fp32 throughout. AdamW is fused and works on fp32 weights.
Attention: scaled_dot_product_attention, preferring cuDNN or FlashAttention ("flash"), with the others as fallback.
"""
import argparse
import contextlib
import dataclasses
import gc
import json
import math
import statistics
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

import torch  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from torch_twin import build_twin, load_export  # noqa: E402

ATTENTION = {
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}


@dataclasses.dataclass(frozen=True)
class Setting:
    weights: str  # autocast, master, fp32
    compiled: str  # no, blocks, whole
    attention: str  # cudnn, flash
    micro: int


class Trainer:
    """A twin, its optimizer, and fp32 master weights if the twin's are bf16."""

    def __init__(self, twin, setting, optimizer):
        self.parameters = list(twin.parameters())
        self.optimized = self.parameters
        if setting.weights == "master":
            self.optimized = [p.detach().float().clone() for p in self.parameters]
            for parameter in self.parameters:
                parameter.data = parameter.data.to(torch.bfloat16)
        self.clip_norm = optimizer["clip_norm"]
        groups = [{"params": [p for p in self.optimized if p.dim() == 2], "weight_decay": optimizer["weight_decay"]},
                  {"params": [p for p in self.optimized if p.dim() < 2], "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=optimizer["lr"], betas=optimizer["betas"], eps=optimizer["eps"],
                                       fused=True)

    def collect(self):
        """Adds the bf16 gradients of a micro-batch to the fp32 ones after its backward."""
        if self.optimized is self.parameters:
            return
        gradients = [p.grad for p in self.parameters]
        if self.optimized[0].grad is None:
            for master, gradient in zip(self.optimized, gradients, strict=True):
                master.grad = gradient.float()
        else:
            torch._foreach_add_([p.grad for p in self.optimized], gradients)
        for parameter in self.parameters:
            parameter.grad = None

    def update(self):
        torch.nn.utils.clip_grad_norm_(self.optimized, self.clip_norm)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        if self.optimized is not self.parameters:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.optimized)


class Bench:
    """One global batch, as tools/gpu/gpu_runs.py writes it, and the training steps on it."""

    def __init__(self, options):
        config = json.loads(options.config.read_text(encoding="utf-8"))
        self.model, self.optimizer = config["model"], config["optimizer"]
        self.device, self.export = options.device, options.export
        self.untimed, self.timed = options.untimed, options.steps
        length, count = self.model["sequence_length"], config["batch"]["global"]
        data = bytearray(Path(config["data"]["train"][0]["path"] + ".bin").read_bytes())
        tokens = torch.frombuffer(data, dtype=torch.uint16).to(torch.int64)
        self.inputs = tokens[: count * length].view(count, length).to(self.device)
        self.targets = tokens[1 : count * length + 1].view(count, length).to(self.device)

    def step(self, forward, trainer, setting):
        """Runs one global batch and one update; returns the loss as a tensor."""
        accumulation = len(self.inputs) // setting.micro
        total = torch.zeros((), device=self.device)
        for first in range(0, len(self.inputs), setting.micro):
            part = slice(first, first + setting.micro)
            with torch.autocast(self.device, torch.bfloat16, enabled=setting.weights == "autocast"):
                loss = forward(self.inputs[part], self.targets[part]) / accumulation
            loss.backward()
            trainer.collect()
            total += loss.detach().float()
        trainer.update()
        return total

    def train(self, setting):
        """Returns losses and seconds of each step, and the GPU's peak bytes."""
        torch.manual_seed(1)
        twin = build_twin(self.model, self.device, pad=self.export is None)
        if self.export:
            load_export(twin, self.export)
        trainer = Trainer(twin, setting, self.optimizer)
        if setting.compiled == "blocks":
            twin.compile_parts()
        forward = torch.compile(twin, dynamic=False) if setting.compiled == "whole" else twin
        on_gpu = self.device == "cuda"
        attention = sdpa_kernel(ATTENTION[setting.attention], set_priority=True) if on_gpu else contextlib.nullcontext()
        losses, seconds = [], []
        with attention:
            for _ in range(self.untimed + self.timed):
                start = time.perf_counter()
                losses.append(self.step(forward, trainer, setting).item())  # item() waits for the GPU
                if on_gpu:
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
        return losses, seconds, torch.cuda.max_memory_reserved() if on_gpu else 0


def clean_up():
    """Frees the memory left by an earlier trial."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def trial(bench, setting):
    """Prints a trial's result and returns the seconds of a step; infinity if it failed."""
    result = dataclasses.asdict(setting) | {"torch": torch.__version__}
    try:
        losses, seconds, result["peak_bytes"] = bench.train(setting)
        result |= {"losses": losses, "seconds": statistics.median(seconds[bench.untimed:])}
        if not all(map(math.isfinite, losses)):
            result["error"] = "a loss is not finite"
    except Exception as error:  # any part of PyTorch may fail: the other settings are still tried
        result["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:200]
    print(json.dumps(result), flush=True)
    clean_up()
    return math.inf if "error" in result else result["seconds"]


def fastest_micro(bench, setting, micros):
    """Returns (seconds, setting) with the fastest micro-batch: largest first, until a smaller one is slower."""
    best = (math.inf, setting)
    for micro in micros:
        chosen = dataclasses.replace(setting, micro=micro)
        seconds = trial(bench, chosen)
        if math.isfinite(best[0]) and seconds >= best[0]:
            break
        best = min(best, (seconds, chosen), key=lambda pair: pair[0])
    return best


def search(bench, micros):
    best = fastest_micro(bench, Setting("master", "blocks", "cudnn", micros[0]), micros)
    for change in ({"attention": "flash"}, {"weights": "autocast"}, {"compiled": "whole"}):
        chosen = dataclasses.replace(best[1], **change)
        seconds = trial(bench, chosen)
        best = min(best, (seconds, chosen), key=lambda pair: pair[0])
    # Without fused kernels more is saved for backward; smaller micro-batches are tried if it does not fit.
    smaller = [micro for micro in micros if micro <= best[1].micro]
    fastest_micro(bench, dataclasses.replace(best[1], compiled="no"), smaller)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="what `gptrain config show` prints")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--untimed", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--export", type=Path, help="weights from `gptrain checkpoint export`; else random ones")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--search", type=int, nargs="+", metavar="MICRO", help="micro-batches, the largest first")
    what.add_argument("--losses", nargs="+", choices=["fp32", "autocast", "master"], metavar="WEIGHTS")
    options = parser.parse_args()
    bench = Bench(options)
    if options.search:
        search(bench, options.search)
    else:
        micro = json.loads(options.config.read_text(encoding="utf-8"))["batch"]["micro"]
        for weights in options.losses:
            trial(bench, Setting(weights, "no", "flash", micro))


if __name__ == "__main__":
    main()
