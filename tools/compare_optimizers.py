#!/usr/bin/env python3
"""Compares gptrain's optimizers with others': the same weights, the same batches, 20 steps in fp32.

Run as compare_optimizers.py [--gptrain FILE] [--case NAME]..., with PyTorch, transformers 5 and lion-pytorch installed.
Prints one line per comparison and ends with 1 if a bound does not hold.

The weights come from `gptrain checkpoint export`, the model from transformers' own class (tools/compare_torch.py). Its
20 steps are those of
  sgd, sgd-nesterov, sgd-plain   torch.optim.SGD with momentum, with Nesterov's, and without; weights decay before its
                                 step, decoupled (arXiv 1711.05101), for its own decay is a part of the gradient
  lion, lion-betas               lion-pytorch's Lion, the formula of arXiv 2302.06675
  lamb, lars                     plain forms of algorithm 2 of arXiv 1904.00962 and algorithm 1 of arXiv 1708.03888, with
                                 the norms of gptrain's tensors: queries, keys and values are one, gate and up are one
  muon, muon-plain               torch.optim.Muon with and without Nesterov for the matrices of blocks, made to multiply in
                                 the model's dtype where it would in bf16, and torch.optim.AdamW for the rest
with warm-up, a falling rate, weight decay of matrices only, and clipping. What must hold:
  every loss within 1e-5 of the reference in float64
  sgd, lamb, lars, muon: also of PyTorch's in float32; and each tensor's weights after 20 steps within 1e-5 of float64
  (the L2 norm of the difference over that of the reference)
  lion: the weights are at most twice as far from float64 as PyTorch's are in float32. A step is the sign of a sum,
  which rounding turns where the sum is all but zero. So PyTorch's own losses in float32 are up to 4e-5 from float64.
The keys' bias of a model without rotary embedding is left out: its true gradient is zero, and it changes no result.
"""
import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
import transformers
from lion_pytorch import Lion

ROOT = Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
from compare_torch import (FACTOR, STEPS, Report, Run, golden_run, paired, run_config,  # noqa: E402
                           stored_tensors)
from compare_torch import CASES as MODELS  # noqa: E402

WEIGHT_TOLERANCE = 1e-5


class DecayingSgd(torch.optim.SGD):
    """With decoupled weight decay, of each group's own `decay`."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * group["decay"])
        super().step()


def torch_sgd(groups, optimizer):
    groups = [{"params": group["params"], "decay": group["weight_decay"]} for group in groups]
    return DecayingSgd(groups, lr=optimizer["lr"], momentum=optimizer.get("momentum", 0.9),
                       nesterov=optimizer.get("nesterov", False))


def torch_lion(groups, optimizer):
    return Lion(groups, lr=optimizer["lr"], betas=optimizer.get("betas", (0.9, 0.99)))


def name_tensors(model):
    """Tells each parameter which of gptrain's tensors it is a part of."""
    for name, parameter in model.named_parameters():
        parameter.of_block_matrix = parameter.dim() == 2 and re.search(r"\b(h|layers)\.\d+\.", name) is not None
        parameter.tensor = re.sub(r"\b[qkv]_proj\b", "qkv", re.sub(r"\b(gate|up)_proj\b", "in", name))


def norm(parts):
    return torch.linalg.vector_norm(torch.cat([part.flatten() for part in parts]))


class TensorScaled(torch.optim.Optimizer):
    """update(group, parts) with the parts of one tensor after the other."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            tensors = {}
            for parameter in group["params"]:
                tensors.setdefault(parameter.tensor, []).append(parameter)
            for parts in tensors.values():
                self.update(group, parts)


class Lamb(TensorScaled):
    def update(self, group, parts):
        b1, b2 = group["betas"]
        steps = []
        for p in parts:
            state = self.state[p]
            if not state:
                state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
            state["t"] += 1
            state["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
            state["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            m, v = state["m"] / (1 - b1**state["t"]), state["v"] / (1 - b2**state["t"])
            steps.append(m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p)
        trust = norm(parts) / norm(steps) if parts[0].dim() == 2 else 1.0
        for p, step in zip(parts, steps, strict=True):
            p.sub_(group["lr"] * trust * step)


class Lars(TensorScaled):
    def update(self, group, parts):
        decay, trust = group["weight_decay"], 1.0
        if parts[0].dim() == 2:
            weights = norm(parts)
            trust = group["trust_coefficient"] * weights / (norm([p.grad for p in parts]) + decay * weights)
        for p in parts:
            state = self.state[p]
            if not state:
                state["v"] = torch.zeros_like(p)
            state["v"].mul_(group["momentum"]).add_(group["lr"] * trust * (p.grad + decay * p))
            p.sub_(state["v"])


def torch_lamb(groups, optimizer):
    return Lamb(groups, {"lr": 0, "betas": optimizer["betas"], "eps": optimizer.get("eps", 1e-6)})


def torch_lars(groups, optimizer):
    return Lars(groups, {"lr": 0, "momentum": optimizer.get("momentum", 0.9),
                         "trust_coefficient": optimizer.get("trust_coefficient", 0.001)})


class WideMuon(torch.optim.Muon):
    """Its Newton-Schulz iteration casts to bf16, whatever the dtype of the gradient. Here that is the gradient's."""

    def step(self):
        with mock.patch.object(torch, "bfloat16", self.param_groups[0]["params"][0].dtype):
            super().step()


class MuonBesideAdamW:
    """torch.optim.Muon for the matrices of blocks, torch.optim.AdamW for the rest. Queries, keys and values that are one
    parameter are three for Muon."""

    def __init__(self, groups, optimizer):
        self.views = []  # (part of a parameter, the parameter, columns)
        muon = [{**group, "params": [part for p in group["params"] if p.of_block_matrix for part in self.parts_of(p)]}
                for group in groups]
        rest = [{**group, "params": [p for p in group["params"] if not p.of_block_matrix]} for group in groups]
        self.optimizers = [WideMuon([group for group in muon if group["params"]], lr=optimizer["lr"],
                                    momentum=optimizer.get("momentum", 0.95),
                                    nesterov=optimizer.get("nesterov", True), adjust_lr_fn="match_rms_adamw"),
                           torch.optim.AdamW(rest, lr=optimizer["lr"], betas=(0.9, 0.95), eps=optimizer["eps"])]
        self.param_groups = [group for part in self.optimizers for group in part.param_groups]

    def parts_of(self, parameter):
        if not parameter.tensor.endswith("c_attn.weight"):
            return [parameter]
        parts = []
        for columns in torch.arange(parameter.shape[1]).chunk(3):
            parts.append(torch.nn.Parameter(parameter.data[:, columns[0]:columns[-1] + 1]))
            self.views.append((parts[-1], parameter, columns))
        return parts

    def step(self):
        for part, parameter, columns in self.views:
            part.grad = parameter.grad[:, columns]
        for optimizer in self.optimizers:
            optimizer.step()


SGD = {"type": "sgd", "lr": 0.2, "weight_decay": 0.1, "clip_norm": 1.0}
LION = {"type": "lion", "lr": 1e-3, "weight_decay": 0.3, "clip_norm": 1.0}
LAMB = {"type": "lamb", "lr": 1e-2, "betas": [0.9, 0.999], "weight_decay": 0.1, "clip_norm": 1.0}
LARS = {"type": "lars", "lr": 0.2, "trust_coefficient": 0.02, "weight_decay": 0.01, "clip_norm": 1.0}
MUON = {"type": "muon", "lr": 1e-3, "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0}
# The optimizer of the config, and what makes PyTorch's.
OPTIMIZERS = {
    "sgd": (SGD, torch_sgd),
    "sgd-nesterov": ({**SGD, "momentum": 0.8, "nesterov": True}, torch_sgd),
    "sgd-plain": ({**SGD, "momentum": 0.0}, torch_sgd),
    "lion": (LION, torch_lion),
    "lion-betas": ({**LION, "betas": [0.95, 0.98]}, torch_lion),
    "lamb": (LAMB, torch_lamb),
    "lars": (LARS, torch_lars),
    "muon": (MUON, MuonBesideAdamW),
    "muon-plain": ({**MUON, "momentum": 0.9, "nesterov": False}, MuonBesideAdamW),
}


def largest_distance(pairs):
    """(distance, label) of the weights that are furthest from the reference, of {label: (weights, reference)}."""
    return max(((own.double() - exact).norm().item() / exact.norm().item(), label)
               for label, (own, exact) in pairs.items())


def export_initial(gptrain, folder, case, config):
    """The Hugging Face folder of the weights that `config` begins with; all optimizers share it."""
    initial = folder / f"{case}-initial-hf"
    if not initial.exists():
        out = f"{case}-initial"
        file = folder / f"{out}.json"
        file.write_text(json.dumps({**config, "run": {**config["run"], "out": out}}), encoding="utf-8")
        golden_run.run_gptrain(gptrain, folder, "train", file, "--steps", 0)
        golden_run.run_gptrain(gptrain, folder, "checkpoint", "export", out, "--hf", initial)
    return initial


def compare(report, gptrain, folder, name, case):
    optimizer, make = OPTIMIZERS[name]
    model, out = MODELS[case], f"{case}-{name}"
    config = {**run_config(model, schedule={"min_lr": optimizer["lr"] / 10}, run={"out": out}), "optimizer": optimizer}
    initial = export_initial(gptrain, folder, case, config)
    losses = [record["loss"] for record in golden_run.train(gptrain, folder, config)]
    exact, single = (Run(initial, dtype, False, model.get("z_loss", 0.0)) for dtype in (torch.float64, torch.float32))
    for run in (exact, single):
        name_tensors(run.model)
    expected, theirs = exact.train(config, make)[0], single.train(config, make)[0]
    print(f"\n{case}, {name}: {STEPS} steps, loss {expected[0]:.6f} to {expected[-1]:.6f}")
    report.equal(f"{case}, {name}: losses against float64", losses, expected)
    if optimizer["type"] != "lion":
        report.equal(f"{case}, {name}: losses against PyTorch's in float32", losses, theirs)

    stored = stored_tensors(folder / out / "checkpoints" / f"step-{STEPS:08}", "weight")
    references = {label: pair for label, pair in paired(stored, dict(exact.model.named_parameters()), model).items()
                  if model["positions"] != "learned" or not label.endswith("qkv.bias[k]")}
    others = paired(stored, dict(single.model.named_parameters()), model)
    own, label = largest_distance(references)
    other, _ = largest_distance({label: (others[label][1], pair[1]) for label, pair in references.items()})
    allowed = max(FACTOR * other, WEIGHT_TOLERANCE) if optimizer["type"] == "lion" else WEIGHT_TOLERANCE
    missed = report.check(own <= allowed, f"{case}, {name}: weights {own:.3g}, allowed {allowed:.3g}")
    print(f"{case}, {name}: weights {own:.2e} ({label}) from float64, PyTorch's {other:.2e}, allowed {allowed:.2e}"
          f"{missed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gptrain", type=Path, default=ROOT / "build" / "gptrain", help="the executable")
    parser.add_argument("--case", action="append", choices=sorted(OPTIMIZERS), help="only this one; may be repeated")
    arguments = parser.parse_args()
    gptrain = arguments.gptrain.resolve()
    transformers.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {gptrain}")
    report = Report()
    with tempfile.TemporaryDirectory(prefix="gptrain-optimizers-") as scratch:
        folder = Path(scratch)
        golden_run.write_corpus(gptrain, folder)
        for name in arguments.case or OPTIMIZERS:
            for case in ("gpt2", "llama-gqa"):
                compare(report, gptrain, folder, name, case)
    print(f"\n{len(report.faults)} bounds missed" if report.faults else "\nevery bound holds")
    print("\n".join(report.faults))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
