"""PyTorch's twins of gptrain's models: plain modules that compute the same function, for benches on a GPU.

The layers have gptrain's layout (one product for queries, keys and values, one for gate and up), so that both run
products of the same shapes. compile_parts() compiles one block for all of them, and the head together with the loss.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from bench_torch import Model as Gpt2Model  # noqa: E402

PADDED_ROWS = 64  # vocabulary rows are padded to a multiple, which PyTorch's products need, as gptrain pads its own


class Twin(nn.Module):
    """Shared by the model families, which have `blocks`, `norm`, `embed` and `head_weight`."""

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.loss_of(x, targets)

    def loss_of(self, x, targets):
        logits = F.linear(self.norm(x), self.head_weight())
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def compile_parts(self):
        for block in self.blocks:
            block.compile(dynamic=False)
        self.loss_of = torch.compile(self.loss_of, dynamic=False)


class Gpt2(Twin, Gpt2Model):
    def __init__(self, model, vocab):
        Gpt2Model.__init__(self, model["num_layers"], model["hidden_size"], model["num_heads"], vocab,
                           model["sequence_length"])

    def embed(self, tokens):
        return self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]

    def head_weight(self):
        return self.tokens.weight


class LlamaBlock(nn.Module):
    def __init__(self, model, cosines, sines):
        super().__init__()
        hidden, ffn, eps = model["hidden_size"], model["ffn_hidden_size"], model["norm_eps"]
        self.heads, self.kv_heads = model["num_heads"], model["num_kv_heads"]
        self.head_size = hidden // self.heads
        self.norm1 = nn.RMSNorm(hidden, eps)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.head_size, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.norm2 = nn.RMSNorm(hidden, eps)
        self.ffn_in = nn.Linear(hidden, 2 * ffn, bias=False)
        self.ffn_out = nn.Linear(ffn, hidden, bias=False)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def rotated(self, x):
        first, second = x.float().chunk(2, dim=-1)
        cosines, sines = self.cosines[: x.shape[2]], self.sines[: x.shape[2]]
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)

    def forward(self, x):
        batch, length, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, -1, self.head_size).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        attention = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True,
                                                   enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, length, hidden))
        gate, up = self.ffn_in(self.norm2(x)).chunk(2, dim=-1)
        return x + self.ffn_out(F.silu(gate) * up)


class Llama(Twin):
    def __init__(self, model, vocab):
        super().__init__()
        half = model["hidden_size"] // model["num_heads"] // 2
        frequencies = model["rope_theta"] ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(model["sequence_length"], dtype=torch.float64)[:, None] * frequencies
        cosines, sines = angles.cos().float(), angles.sin().float()
        self.tokens = nn.Embedding(vocab, model["hidden_size"])
        self.blocks = nn.ModuleList(LlamaBlock(model, cosines, sines) for _ in range(model["num_layers"]))
        self.norm = nn.RMSNorm(model["hidden_size"], model["norm_eps"])
        self.head = nn.Linear(model["hidden_size"], vocab, bias=False)

    def embed(self, tokens):
        return self.tokens(tokens)

    def head_weight(self):
        return self.head.weight


GPT2_KEYS = {"norm": "layernorm", "positions": "learned", "activation": "gelu_tanh", "bias": True, "tied_head": True,
             "norm_eps": 1e-5}
LLAMA_KEYS = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False, "tied_head": False,
              "qk_norm": False}


def build_twin(model, device, pad):
    """Returns the twin of a model, given every key of gptrain's `model` section, with random weights drawn as in
    gptrain. `pad`: adds unused rows to the vocabulary."""
    def has(keys):
        return all(model[key] == value for key, value in keys.items())

    vocab = model["vocab_size"]
    if pad:
        vocab = -(-vocab // PADDED_ROWS) * PADDED_ROWS
    for family, keys in ((Gpt2, GPT2_KEYS), (Llama, LLAMA_KEYS)):
        if has(keys):
            with torch.device(device):
                twin = family(model, vocab)
            for parameter in twin.parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=model["init_std"])
            return twin
    raise ValueError("there is no twin for this kind of model")


def gpt2_sources(layers):
    """Returns {name in the twin: (names in transformers, True if they are transposed)}."""
    sources = {"tokens.weight": (["transformer.wte.weight"], False),
               "positions.weight": (["transformer.wpe.weight"], False)}
    parts = {"norm1": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj", "norm2": "ln_2", "ffn_in": "mlp.c_fc",
             "ffn_out": "mlp.c_proj"}
    for kind in ("weight", "bias"):
        sources[f"norm.{kind}"] = ([f"transformer.ln_f.{kind}"], False)
        for layer in range(layers):
            for own, theirs in parts.items():
                transposed = kind == "weight" and not own.startswith("norm")
                sources[f"blocks.{layer}.{own}.{kind}"] = ([f"transformer.h.{layer}.{theirs}.{kind}"], transposed)
    return sources


def llama_sources(layers):
    sources = {"tokens.weight": (["model.embed_tokens.weight"], False), "norm.weight": (["model.norm.weight"], False),
               "head.weight": (["lm_head.weight"], False)}
    parts = {"norm1": ["input_layernorm"], "qkv": [f"self_attn.{x}_proj" for x in "qkv"],
             "out": ["self_attn.o_proj"], "norm2": ["post_attention_layernorm"],
             "ffn_in": ["mlp.gate_proj", "mlp.up_proj"], "ffn_out": ["mlp.down_proj"]}
    for layer in range(layers):
        for own, theirs in parts.items():
            sources[f"blocks.{layer}.{own}.weight"] = (
                [f"model.layers.{layer}.{name}.weight" for name in theirs], False)
    return sources


def load_export(twin, folder):
    """Loads the weights that `gptrain checkpoint export` wrote: every parameter, and the whole export."""
    stored = load_file(f"{folder}/model.safetensors")
    sources = (gpt2_sources if isinstance(twin, Gpt2) else llama_sources)(len(twin.blocks))
    used = set()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            names, transposed = sources[name]
            value = torch.cat([stored[theirs] for theirs in names])
            value = value.T if transposed else value
            if value.shape != parameter.shape:
                raise ValueError(f"{name}: {tuple(value.shape)} in {folder}, {tuple(parameter.shape)} in the twin")
            parameter.copy_(value)
            used.update(names)
    if unused := set(stored) - used:
        raise ValueError(f"{folder}: the twin has no place for {sorted(unused)}")
