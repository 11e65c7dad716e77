#!/usr/bin/env python3
"""Compares gptrain with PyTorch: the same weights, the same batches; loss, every gradient, 20 steps of AdamW.

Run as compare_torch.py [--gptrain FILE] [--case NAME]... [--write-golden], with PyTorch and transformers 5 installed.
Prints one table per comparison and ends with 1 if a bound does not hold.

The weights come from `gptrain checkpoint export`, the model from transformers' own class. Three runs of PyTorch:
  float64          the reference. transformers' RMSNorm and rotary embedding always compute in float32, so they are
                   replaced by modules that compute in float64.
  float32          transformers unchanged
  bf16 autocast    transformers unchanged, fp32 weights and residual stream
Requirements:
  fp32        each tensor's gradient is within 2e-5 of the reference, and at most twice as far from it as PyTorch's in
              float32; every loss of 20 steps is within 1e-5 of the reference and of PyTorch's
  bf16        (precision.residual fp32) each tensor's gradient, and the losses, are at most twice as far from the
              reference as bf16 autocast's
Distance is the L2 norm of the difference over that of the reference. For a tensor whose true gradient is zero (a key
bias without rotary embedding) the limit is twice the norm of PyTorch's. Gradients are compared at the initial weights
and after ten steps, when no bias is zero any more.

In bf16 the losses of 20 steps are compared step by step at the weights of gptrain's run; their distance is the root
mean square over the steps. If each run continued with its own weights, AdamW's first steps would amplify rounding:
PyTorch's distance would vary by a factor of ten between seeds, and twice as much would say little about a program.

gptrain's gradient is read as the first moment: with betas = [0, b2] and no clipping, the two are equal to the bit. In
a run whose schedule ends at learning rate 0, the last checkpoint holds the gradient and the weights at which it was
computed.

--write-golden writes the reference's losses to tests/golden for the test suite.
"""
import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
sys.dont_write_bytecode = True
sys.path.insert(0, str(GOLDEN))
import golden_run  # noqa: E402

STEPS = 20
MOVED_STEPS = 10  # gradients are compared a second time after these steps
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 2e-5  # of fp32
FACTOR = 2.0
ZERO_GRADIENT = 1e-12  # share of the norm over all tensors that float64 leaves of a zero gradient

GPT2 = {"norm": "layernorm", "positions": "learned", "activation": "gelu_tanh", "bias": True, "tied_head": True,
        "num_layers": 2, "hidden_size": 64, "num_heads": 4}
LLAMA = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False, "tied_head": False,
         "num_layers": 2, "hidden_size": 96, "num_heads": 6, "num_kv_heads": 2, "ffn_hidden_size": 200}
GEMMA = {**LLAMA, "activation": "geglu_tanh", "tied_head": True, "norm_eps": 1e-6, "norm_offset": True,
         "norm_after": True, "embedding_scale": math.sqrt(96), "attention_pattern": ["band:20", "dense"],
         "attention_scale": 1 / math.sqrt(20), "init_std": 0.08}
# Larger weights in some cases move activations and attention out of their linear range.
CASES = {
    "gpt2": {**GPT2, "init_std": 0.08},
    "gpt2-gelu-untied": {**GPT2, "activation": "gelu", "tied_head": False, "hidden_size": 60, "num_heads": 3},
    "llama-gqa": {**LLAMA, "z_loss": 1e-3},
    "llama-bias-tied": {**LLAMA, "bias": True, "tied_head": True, "num_kv_heads": 6, "rope_theta": 500.0,
                        "init_std": 0.08},
    "qwen3": {**LLAMA, "qk_norm": True, "norm_eps": 1e-6},
    "alternating": {**LLAMA, "attention_pattern": ["band:20", "dense"], "init_std": 0.08},
    "gpt-neo": {**GPT2, "qkv_bias": False, "attention_scale": 1.0, "attention_pattern": ["dense", "band:20"],
                "init_std": 0.08},
    "gemma2": {**GEMMA, "attention_softcap": 0.5, "logit_softcap": 3.0},
    "gemma3": {**GEMMA, "qk_norm": True, "rope_theta_pattern": [500.0, 1e4], "rope_scaling_pattern": ["none", "linear"],
               "rope_factor": 8.0},
    "mixtral": {**LLAMA, "ffn_hidden_size": 64, "moe": {"experts": 5, "top_k": 2, "aux_loss": 0.05, "z_loss": 0.01}},
    "qwen3-moe": {**LLAMA, "qk_norm": True, "norm_eps": 1e-6,
                  "moe": {"experts": 6, "top_k": 3, "ffn_hidden_size": 64, "first": 1, "renormalise": False,
                          "aux_loss": 0.02, "z_loss": 0}},
    "qwen2-moe": {**LLAMA, "qkv_bias": True, "norm_eps": 1e-6,
                  "moe": {"experts": 5, "top_k": 3, "ffn_hidden_size": 64, "shared": 1, "shared_ffn_hidden_size": 80,
                          "shared_gate": "sigmoid", "renormalise": False, "aux_loss": 0.02, "z_loss": 0.01}},
}


def run_config(model, **sections):
    """Returns a run config of 20 steps that exercises every part of the update: warm-up, a falling rate, weight decay,
    clipping at the start but not always."""
    config = {
        "model": {**model, "vocab_size": golden_run.VOCAB_SIZE, "sequence_length": golden_run.SEQUENCE_LENGTH},
        "data": {"train": [{"path": "corpus"}]},
        "batch": {"global": golden_run.SAMPLES, "micro": golden_run.SAMPLES // 2},
        "precision": {"compute": "fp32"},
        "optimizer": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0},
        "schedule": {"type": "cosine", "warmup_steps": 5, "min_lr": 3e-4},
        "memory": {"loss_chunk_tokens": 100},
        "run": {"steps": STEPS, "seed": 1, "out": "out"},
    }
    for name, values in sections.items():
        config[name] = {**config[name], **values}
    return config


def gradient_config(model, precision, steps, out):
    """Returns a run whose last checkpoint holds the weights after steps - 1 updates, and the gradient there as
    exp_avg."""
    config = run_config(model, precision=precision, optimizer={"betas": [0.0, 0.95], "clip_norm": 0},
                        run={"steps": steps, "out": out})
    config["schedule"] = {"type": "linear", "min_lr": 0}
    return config


def learning_rate(config, step):
    """Returns the rate of a linear warm-up, followed by a half cosine that reaches min_lr at the last step."""
    lr, schedule = config["optimizer"]["lr"], config["schedule"]
    warmup = schedule["warmup_steps"]
    if step < warmup:
        return lr * (step + 1) / warmup
    progress = (step - warmup) / (config["run"]["steps"] - 1 - warmup)
    return schedule["min_lr"] + (lr - schedule["min_lr"]) * 0.5 * (1 + math.cos(math.pi * progress))


class Rotary(torch.nn.Module):
    """Cosines and sines of the rotary embedding in float64. Gemma 3 has parameters by kind of layer."""

    def __init__(self, parameters, head_size):
        super().__init__()
        exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
        of_kinds = {None: parameters} if "rope_theta" in parameters else parameters
        self.frequencies = {kind: own["rope_theta"] ** -exponents / own.get("factor", 1.0)
                            for kind, own in of_kinds.items()}

    def forward(self, x, position_ids, layer_type=None):
        angles = position_ids[..., None].double() * self.frequencies[layer_type]
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class OffsetNorm(torch.nn.Module):
    """Gemma's RMSNorm in the dtype of its input."""

    def __init__(self, weight, eps):
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


def capped_attention(module, query, key, value, attention_mask, scaling, softcap, **_):
    """Gemma 2's attention, which transformers computes with a softmax in float32 whatever the dtype."""
    groups = module.num_key_value_groups
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + attention_mask
    inner = torch.float64 if query.dtype == torch.float64 else torch.float32
    weights = scores.softmax(-1, dtype=inner).to(query.dtype)
    return (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), weights


transformers.models.gemma2.modeling_gemma2.eager_attention_forward = capped_attention


def neo_attention(self, query, key, value, attention_mask=None):
    """GPT-Neo's attention in the dtype of its operands; transformers computes the scores in float32."""
    length = query.shape[-2]
    scores = (query @ key.transpose(-1, -2)).masked_fill(~self.bias[:, :, :length, :length], -math.inf)
    weights = scores.softmax(-1)
    return weights @ value, weights


def route(self, hidden_states):
    """A router in the dtype of its operands, at least float32; transformers has softmaxes in float32. Keeps the
    logits."""
    logits = torch.nn.functional.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
    self.logits = logits if logits.dtype == torch.float64 else logits.float()
    weights, experts = self.logits.softmax(-1).topk(self.top_k, -1)
    if getattr(self, "norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights.to(logits.dtype), experts


transformers.models.mixtral.modeling_mixtral.MixtralTopKRouter.forward = route
transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeTopKRouter.forward = route
transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeTopKRouter.forward = route


def routing_losses(model, moe):
    """Returns the losses of all routers of the last forward pass: for each layer, the mean over sequences of
    E sum_e f_e P_e, and the mean over tokens of logsumexp^2, each times its weight."""
    total = 0.0
    for module in model.modules():
        if not type(module).__name__.endswith("TopKRouter"):
            continue
        logits = module.logits.view(-1, golden_run.SEQUENCE_LENGTH, moe["experts"])
        chosen = logits.topk(moe["top_k"], -1).indices
        share = torch.nn.functional.one_hot(chosen, moe["experts"]).to(logits.dtype).mean((1, 2))
        balance = moe["experts"] * (share * logits.softmax(-1).mean(1)).sum(-1).mean()
        total = total + moe["aux_loss"] * balance + moe["z_loss"] * logits.logsumexp(-1).square().mean()
    return total


def in_float64(model):
    """Makes every computation of the model float64."""
    model = model.double()
    for module in model.modules():
        if type(module).__name__ == "GPTNeoSelfAttention":
            module._attn = neo_attention.__get__(module)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            kind = type(child).__name__
            if kind.startswith("Gemma") and kind.endswith("RMSNorm"):
                setattr(module, name, OffsetNorm(child.weight, child.eps))
            elif kind.endswith("RMSNorm"):
                norm = torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(module, name, norm)
            elif kind.endswith("RotaryEmbedding"):
                config = model.config
                head_size = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
                setattr(module, name, Rotary(config.rope_parameters, head_size))
    return model


def load_model(folder, dtype):
    eager = transformers.AutoConfig.from_pretrained(folder).model_type in ("gpt_neo", "gemma2")  # have no sdpa
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager" if eager else "sdpa", output_loading_info=True,
        experts_implementation="eager")
    wrong = {what: names for what, names in report.items() if names}
    if wrong:
        raise RuntimeError(f"{folder} does not fit {type(model).__name__}: {wrong}")
    model.train()  # no case has dropout
    return in_float64(model) if dtype == torch.float64 else model


def torch_adamw(groups, optimizer):
    return torch.optim.AdamW(groups, betas=optimizer["betas"], eps=optimizer["eps"])


class Run:
    """One of PyTorch's runs, from exported weights."""

    def __init__(self, folder, dtype, autocast, losses):
        """`losses`: the section `model` of the config, for losses beside the cross-entropy."""
        self.model = load_model(folder, dtype)
        self.autocast, self.z_loss, self.moe = autocast, losses.get("z_loss", 0.0), losses.get("moe")
        samples = torch.tensor(golden_run.corpus_samples())
        self.inputs, self.targets = samples[:, :-1], samples[:, 1:]

    def forward(self):
        """Returns the logits and their mean cross-entropy."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            logits = self.model(input_ids=self.inputs, use_cache=False).logits
        logits = logits.float() if self.autocast else logits
        logits = logits.flatten(0, 1)
        return logits, torch.nn.functional.cross_entropy(logits, self.targets.flatten())

    def loss(self):
        with torch.no_grad():
            return self.forward()[1].item()

    def backward(self):
        """Leaves the gradients in the model and returns the mean cross-entropy."""
        logits, loss = self.forward()
        self.model.zero_grad()
        more = routing_losses(self.model, self.moe) if self.moe else 0.0
        (loss + self.z_loss * logits.logsumexp(-1).square().mean() + more).backward()
        return loss.item()

    def gradients(self):
        return {name: parameter.grad for name, parameter in self.model.named_parameters()}

    def train(self, config, make_update=torch_adamw):
        """Trains the steps of `config`; returns losses and gradient norms. make_update(groups, config of the
        optimizer) makes PyTorch's optimizer; each group of parameters has its weight_decay."""
        optimizer = config["optimizer"]
        parameters = list(self.model.parameters())
        groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optimizer["weight_decay"]},
                  {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
        update = make_update(groups, optimizer)
        losses, norms = [], []
        for step in range(config["run"]["steps"]):
            losses.append(self.backward())
            norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in parameters))
            norms.append(norm)
            for p in parameters:
                p.grad *= min(1.0, optimizer["clip_norm"] / norm)
            for group in update.param_groups:
                group["lr"] = learning_rate(config, step)
            update.step()
        return losses, norms


def transformers_place(name, model):
    """Returns [(label, transformers' name, rows of its tensor in gptrain's layout, rows of gptrain's tensor)] for a
    tensor, with queries, keys and values separate. Written independently of `checkpoint export`, which it checks."""
    gpt = model["positions"] == "learned"
    neo = gpt and not model.get("qkv_bias", True)
    kv_size = model["hidden_size"] // model["num_heads"] * model.get("num_kv_heads", model["num_heads"])
    outer = {"embedding.token": "transformer.wte.weight" if gpt else "model.embed_tokens.weight",
             "embedding.position": "transformer.wpe.weight",
             "head.norm.weight": "transformer.ln_f.weight" if gpt else "model.norm.weight",
             "head.norm.bias": "transformer.ln_f.bias", "head.weight": "lm_head.weight"}
    everything = slice(None)
    if name in outer:
        return [(name, outer[name], everything, everything)]
    _, layer, rest = name.split(".", 2)
    linear, kind = rest.rsplit(".", 1)
    prefix = f"transformer.h.{layer}." if gpt else f"model.layers.{layer}."
    sizes = {"attention.qkv": [("q", model["hidden_size"]), ("k", kv_size), ("v", kv_size)]}
    if not gpt:
        widths = {"ffn": model["ffn_hidden_size"], "shared": model.get("moe", {}).get("shared_ffn_hidden_size", 0)}
        sizes.update({f"{ffn}.in": [("gate", width), ("up", width)] for ffn, width in widths.items()})
    if linear == "router":
        return [(name, f"{prefix}mlp.gate.weight", everything, everything)]
    if linear.startswith("experts."):  # transformers keeps each kind of the experts' matrices as one tensor
        _, expert, place = linear.split(".")
        theirs = {"in": "gate_up_proj", "out": "down_proj"}[place]
        return [(name, f"{prefix}mlp.experts.{theirs}.{expert}", everything, everything)]
    whole = {"norm1": "ln_1", "norm2": "ln_2", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj",
             "ffn.in": "mlp.c_fc", "ffn.out": "mlp.c_proj"} if gpt else {
             "norm1": "input_layernorm", "norm2": "post_attention_layernorm", "attention.out": "self_attn.o_proj",
             "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm",
             "ffn.out": "mlp.down_proj", "attention.qkv": "self_attn.{}_proj", "ffn.in": "mlp.{}_proj",
             "shared.in": "mlp.shared_expert.{}_proj", "shared.out": "mlp.shared_expert.down_proj",
             "shared.gate": "mlp.shared_expert_gate"}
    if model.get("norm_after", False):
        whole.update({"norm1_after": "post_attention_layernorm", "norm2": "pre_feedforward_layernorm",
                      "norm2_after": "post_feedforward_layernorm"})
    if neo:
        whole.update({"attention.qkv": "attn.attention.{}_proj", "attention.out": "attn.attention.out_proj"})
    if linear not in sizes:
        return [(name, f"{prefix}{whole[linear]}.{kind}", everything, everything)]
    places, first = [], 0
    for part, size in sizes[linear]:
        rows = slice(first, first + size)
        theirs = f"{prefix}{whole[linear].format(part)}.{kind}"
        places.append((f"{name}[{part}]", theirs, rows if gpt and not neo else everything, rows))
        first += size
    return places


def paired(stored, theirs, model):
    """Returns {label: (gptrain's, transformers')}, both [out, in]; `stored` is gptrain's tensors by name."""
    pairs = {}
    for name, tensor in list(theirs.items()):
        if tensor.dim() == 3:
            theirs = {**theirs, **{f"{name}.{i}": part for i, part in enumerate(tensor)}}
    gpt2 = model["positions"] == "learned" and model.get("qkv_bias", True)
    for name, ours in stored.items():
        for label, hf_name, hf_rows, rows in transformers_place(name, model):
            other = theirs[hf_name]
            conv1d = gpt2 and hf_name.startswith("transformer.h.") and other.dim() == 2
            pairs[label] = (ours[rows], (other.T if conv1d else other)[hf_rows])
    return pairs


def stored_tensors(checkpoint, kind):
    tensors = load_file(checkpoint / "rank-00000.safetensors")
    return {name.removeprefix(kind + "/"): tensor for name, tensor in tensors.items() if name.startswith(kind + "/")}


class Report:
    def __init__(self):
        self.faults = []

    def check(self, holds, what):
        if not holds:
            self.faults.append(what)
        return "" if holds else "  MISSED"

    def gradients(self, title, reference, torch_run, ours, model, limit):
        """Prints a table of each tensor's distance from the reference, which may be at most `limit`."""
        print(f"\n{title}\n{'tensor':<36}{'elements':>9}{'norm':>11}{'gptrain':>11}{'PyTorch':>11}{'ratio':>7}")
        expected, theirs = paired(ours, reference, model), paired(ours, torch_run, model)
        total = math.sqrt(sum(g.square().sum().item() for g in reference.values()))
        worst = farthest = 0.0
        for label, (own, exact) in expected.items():
            norm = exact.norm().item()
            scale = 1.0 if norm < ZERO_GRADIENT * total else norm
            own_error = (own.double() - exact).norm().item() / scale
            torch_error = (theirs[label][1].double() - exact).norm().item() / scale
            ratio = own_error / torch_error if torch_error else math.inf if own_error else 0.0
            worst, farthest = max(worst, ratio), max(farthest, own_error)
            holds = ratio <= FACTOR and own_error <= limit
            missed = self.check(holds, f"{title}: {label}: {own_error:.3g} against {torch_error:.3g}")
            print(f"{label:<36}{exact.numel():>9}{norm:>11.3e}{own_error:>11.2e}{torch_error:>11.2e}{ratio:>7.2f}"
                  f"{missed}")
        print(f"largest ratio {worst:.2f}, allowed {FACTOR}; largest distance {farthest:.2e}, allowed {limit}")

    def equal(self, what, own, other):
        """Checks that two lists of losses agree to LOSS_TOLERANCE."""
        worst = max(abs(a - b) for a, b in zip(own, other, strict=True))
        missed = self.check(worst <= LOSS_TOLERANCE, f"{what}: {worst:.3g}")
        print(f"{what}: largest difference {worst:.2e}, allowed {LOSS_TOLERANCE}{missed}")

    def as_close(self, what, own, other, reference):
        """Checks that losses are at most FACTOR times as far from the reference as PyTorch's."""
        def distance(losses):
            return math.sqrt(sum((a - b)**2 for a, b in zip(losses, reference, strict=True)) / len(reference))
        ratio = distance(own) / distance(other)
        missed = self.check(ratio <= FACTOR, f"{what}: ratio {ratio:.3g}")
        print(f"{what}: gptrain {distance(own):.2e}, PyTorch {distance(other):.2e}, ratio {ratio:.2f}{missed}")


PRECISIONS = {"fp32": {"compute": "fp32"}, "bf16": {"compute": "bf16", "residual": "fp32"}}


def compare_gradients(report, gptrain, folder, name, model, precision):
    for steps in (0, MOVED_STEPS):
        out = f"{name}-{precision}-{steps}"
        config = gradient_config(model, PRECISIONS[precision], steps + 1, out)
        golden_run.train(gptrain, folder, config)
        checkpoint = folder / out / "checkpoints" / f"step-{steps + 1:08}"
        exported = folder / f"{out}-hf"
        golden_run.run_gptrain(gptrain, folder, "checkpoint", "export", checkpoint, "--hf", exported)
        reference = Run(exported, torch.float64, False, model)
        other = Run(exported, torch.float32, precision == "bf16", model)
        weights = dict(other.model.named_parameters())
        for label, (own, theirs) in paired(stored_tensors(checkpoint, "weight"), weights, model).items():
            if not torch.equal(own, theirs):
                raise RuntimeError(f"{exported}: {label} is not what the checkpoint holds")
        reference.backward()
        other.backward()
        where = f"after {steps} steps" if steps else "at the initial weights"
        report.gradients(f"{name}, {precision}: gradients {where}", reference.gradients(), other.gradients(),
                         stored_tensors(checkpoint, "exp_avg"), model,
                         GRADIENT_TOLERANCE if precision == "fp32" else math.inf)


def compare_steps(report, gptrain, folder, name, model, golden):
    initial = folder / f"{name}-fp32-0-hf"  # left by compare_gradients
    config = run_config(model, run={"out": f"{name}-fp32-steps"})
    exact, norms = Run(initial, torch.float64, False, model).train(config)
    single, _ = Run(initial, torch.float32, False, model).train(config)
    records = golden_run.train(gptrain, folder, config)
    print(f"\n{name}: {STEPS} steps, loss {exact[0]:.6f} to {exact[-1]:.6f}")
    for step, record in enumerate(records):
        expected = learning_rate(config, step)
        if abs(record["lr"] - expected) > 1e-6 * expected:
            raise RuntimeError(f"{name}: step {step}: learning rate {record['lr']}, not {expected}")
    losses = [record["loss"] for record in records]
    report.equal(f"{name}, fp32: losses against float64", losses, exact)
    report.equal(f"{name}, fp32: losses against PyTorch's in float32", losses, single)
    if golden:
        record = {"made_by": "tools/compare/compare_torch.py --write-golden", "torch": torch.__version__.split("+")[0],
                  "transformers": transformers.__version__, "dtype": "float64", "tolerance": LOSS_TOLERANCE,
                  "config": {**config, "run": {**config["run"], "out": name}}, "losses": exact, "grad_norms": norms}
        (GOLDEN / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def compare_mixed_losses(report, gptrain, folder, name, model):
    """Compares, in bf16, every loss of gptrain's 20 steps with PyTorch's at the weights before that step."""
    out = f"{name}-bf16-steps"
    config = run_config(model, precision=PRECISIONS["bf16"], run={"out": out})
    config["checkpoint"] = {"every_steps": 1, "keep_last": STEPS}
    own = [record["loss"] for record in golden_run.train(gptrain, folder, config)]
    exact, mixed = [], []
    for step in range(STEPS):
        exported = folder / f"{name}-fp32-0-hf"  # left by compare_gradients: the initial weights
        if step > 0:
            exported = folder / f"{out}-hf-{step}"
            checkpoint = folder / out / "checkpoints" / f"step-{step:08}"
            golden_run.run_gptrain(gptrain, folder, "checkpoint", "export", checkpoint, "--hf", exported)
        exact.append(Run(exported, torch.float64, False, {}).loss())
        mixed.append(Run(exported, torch.float32, True, {}).loss())
    report.as_close(f"{name}, bf16: losses", own, mixed, exact)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gptrain", type=Path, default=ROOT / "build" / "gptrain", help="the executable")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this case; may be repeated")
    parser.add_argument("--write-golden", action="store_true", help="write tests/golden/*.json")
    arguments = parser.parse_args()
    gptrain = arguments.gptrain.resolve()
    transformers.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {gptrain}")
    report = Report()
    with tempfile.TemporaryDirectory(prefix="gptrain-torch-") as scratch:
        folder = Path(scratch)
        golden_run.write_corpus(gptrain, folder)
        for name in arguments.case or CASES:
            # In bf16 a token of a mixture may choose other experts than in float64, which moves their gradients.
            for precision in ["fp32"] if "moe" in CASES[name] else PRECISIONS:
                compare_gradients(report, gptrain, folder, name, CASES[name], precision)
            compare_steps(report, gptrain, folder, name, CASES[name], arguments.write_golden)
            if "moe" not in CASES[name]:
                compare_mixed_losses(report, gptrain, folder, name, CASES[name])
    print(f"\n{len(report.faults)} bounds missed" if report.faults else "\nevery bound holds")
    print("\n".join(report.faults))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
