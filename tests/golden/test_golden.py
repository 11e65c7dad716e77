#!/usr/bin/env python3
"""Compares gptrain's losses with PyTorch's in float64 (written by tools/compare/compare_torch.py --write-golden).

Run as test_golden.py GPTRAIN [--without-planted] FILE.json... Trains the config of each file in fp32 and in bf16, and
prints the largest differences; then trains with planted faults, which must be noticed, unless --without-planted is
given. ONEDNN_MAX_CPU_ISA in the environment caps the instruction set. The initial weights are gptrain's own, so the
losses are valid only as long as the initialisation does not change.
"""
import argparse
import copy
import json
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import golden_run  # noqa: E402

# In fp32, losses have the file's tolerance. Gradient norms are compared in the first steps only: AdamW amplifies
# rounding, and they show it sooner than the loss.
NORM_STEPS = 3
NORM_TOLERANCE = 1e-5  # relative; 1e-6 is observed
# In bf16 each run continues with its own weights, so later losses differ by rounding that AdamW has amplified.
MIXED_TOLERANCE = 5e-3  # 2e-3 is observed
MIXED = {"compute": "bf16", "residual": "fp32"}

# Changes of a config that the comparison must notice, each like a possible fault of the program.
PLANTED = {
    "gpt2": [("model", "activation", "gelu"), ("optimizer", "clip_norm", 0), ("optimizer", "weight_decay", 0.05)],
    "llama-gqa": [("model", "z_loss", 0), ("schedule", "warmup_steps", 4)],
    "llama-bias-tied": [("model", "rope_theta", 10000.0)],
    "qwen3": [("model", "norm_eps", 1e-5), ("optimizer", "eps", 1e-7), ("run", "seed", 2)],
    "alternating": [("model", "attention_pattern", ["band:19", "dense"])],
    "gpt-neo": [("model", "attention_scale", 0)],
    "gemma2": [("model", "logit_softcap", 3.1), ("model", "attention_softcap", 0.52)],
    "mixtral": [("model", "moe", {"experts": 5, "top_k": 2, "aux_loss": 0.05, "z_loss": 0})],
    "qwen3-moe": [("model", "moe", {"experts": 6, "top_k": 3, "ffn_hidden_size": 64, "first": 1, "renormalise": False,
                                    "aux_loss": 0, "z_loss": 0})],
    "qwen2-moe": [("model", "moe", {"experts": 5, "top_k": 3, "ffn_hidden_size": 64, "shared": 1,
                                    "shared_ffn_hidden_size": 80, "shared_gate": "none", "renormalise": False,
                                    "aux_loss": 0.02, "z_loss": 0.01})],
    "gemma3": [("model", "rope_theta_pattern", [500.0, 9000.0]), ("model", "embedding_scale", 9.7)],
}


class Golden:
    """Runs of one golden file."""

    def __init__(self, gptrain, file, folder):
        self.gptrain, self.name, self.folder = gptrain, file.stem, folder
        self.record = json.loads(file.read_text(encoding="utf-8"))
        self.runs = 0

    def train(self, changes=()):
        """Returns losses and gradient norms of the config with `changes` [(section, key, value)]."""
        config = copy.deepcopy(self.record["config"])
        for section, key, value in changes:
            config[section][key] = value
        self.runs += 1
        config["run"]["out"] = f"{self.name}-{self.runs}"
        records = golden_run.train(self.gptrain, self.folder, config)
        return [record["loss"] for record in records], [record["grad_norm"] for record in records]

    def loss_difference(self, losses):
        return max(abs(a - b) for a, b in zip(losses, self.record["losses"], strict=True))

    def norm_difference(self, norms):
        pairs = list(zip(norms, self.record["grad_norms"], strict=True))[:NORM_STEPS]
        return max(abs(a - b) / b for a, b in pairs)

    def faults(self):
        losses, norms = self.train()
        mixed, _ = self.train([("precision", key, word) for key, word in MIXED.items()])
        differences = [("fp32 losses", self.loss_difference(losses), self.record["tolerance"]),
                       ("fp32 gradient norms", self.norm_difference(norms), NORM_TOLERANCE),
                       ("bf16 losses", self.loss_difference(mixed), MIXED_TOLERANCE)]
        print(f"{self.name}: " + ", ".join(f"{what} {difference:.1e}" for what, difference, _ in differences))
        for what, difference, tolerance in differences:
            # The comparison is false for NaN, which is thus a fault.
            if not difference <= tolerance:
                yield f"{self.name}: {what} differ by {difference:.3g}, allowed {tolerance}"

    def planted_faults(self):
        """Checks that the comparison notices each planted fault."""
        for change in PLANTED.get(self.name, []):
            losses, _ = self.train([change])
            difference = self.loss_difference(losses)
            print(f"{self.name}, {'.'.join(change[:2])} = {change[2]}: fp32 losses {difference:.1e}")
            if difference <= self.record["tolerance"]:
                yield (f"{self.name}: {'.'.join(change[:2])} = {change[2]} is not noticed, it moves losses by "
                       f"{difference:.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain", type=lambda name: Path(name).resolve())
    parser.add_argument("--without-planted", action="store_true")
    parser.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    faults = []
    with tempfile.TemporaryDirectory(prefix="gptrain-golden-") as scratch:
        folder = Path(scratch)
        golden_run.write_corpus(arguments.gptrain, folder)
        for file in arguments.files:
            golden = Golden(arguments.gptrain, file, folder)
            faults += golden.faults()
            if not arguments.without_planted:
                faults += golden.planted_faults()
    print("\n".join(faults) or "the losses are PyTorch's")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
