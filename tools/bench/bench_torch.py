#!/usr/bin/env python3
"""Times PyTorch's training step of GPT-2 on the CPU: the other side of tools/bench_cpu.sh.

The model is plain (bf16 autocast, scaled_dot_product_attention, tied head, fused AdamW over fp32 weights), without
dropout, on random tokens. Prints one JSON object: the seconds of each timed step.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.ffn_in = nn.Linear(hidden, 4 * hidden)
        self.ffn_out = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(hidden, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.ffn_out(F.gelu(self.ffn_in(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, layers, hidden, heads, vocab, length):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], required=True)
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--untimed", type=int, default=2, help="steps before them, which warm up and compile")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=50257)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Model(options.layers, options.hidden, options.heads, options.vocab, options.length)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model) if options.compile else model
    shape = (options.batch, options.length + 1)
    seconds = []
    for step in range(options.untimed + options.steps):
        data = torch.randint(options.vocab, shape)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = forward(data[:, :-1].contiguous(), data[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if step >= options.untimed:
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"torch": torch.__version__, "seconds": seconds}))


if __name__ == "__main__":
    main()
