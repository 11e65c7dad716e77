#!/usr/bin/env python3
"""Checks that two builds of gptrain train the same bits.

    tools/compare/compare_builds.py BEFORE AFTER [--only NAME] [--steps 10] [--device cuda] [--keep FOLDER]

BEFORE and AFTER are two gptrain binaries, built and run on this machine. Each trains tiny models for every case below
(`--only`: cases whose name contains NAME), with ranks as threads of one process. Then every global tensor of the two
last checkpoints (weights, masters, moments) must have the same bytes, however it is split into files and slices, and
the losses and gradient norms of all steps must have the same digits. `--device cuda` needs binaries built for a
device, or gptrain_cuda_host, which is slow and should run fewer steps.

Exits with 0 if all cases agree, with 1 if one differs or fails.
"""
import argparse
import json
import math
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

GPT2 = {"norm": "layernorm", "positions": "learned", "activation": "gelu_tanh", "bias": True, "tied_head": True}
LLAMA = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False, "tied_head": False,
         "num_kv_heads": 2}
SIZES = {"num_layers": 3, "hidden_size": 48, "num_heads": 4, "vocab_size": 257, "sequence_length": 48, "init_std": 0.08}
TENSOR2 = {"parallel.tensor": 2}
DROPOUT = {"model.dropout": 0.1}
BLOCK = {"memory.recompute": "block"}
EVERY_2ND = {"memory.recompute": "every_nth", "memory.recompute_interval": 2}
BF16 = {"precision.compute": "bf16"}
PURE = {"precision.compute": "bf16-pure"}
QK_NORM = {"model.qk_norm": True}

# Name, model style, ranks, settings. Each rank has at least two micro-batches a step, so that gradients accumulate.
CASES = [
    ("gpt2-fp32", GPT2, 1, {}),
    ("gpt2-fp32-dropout-block", GPT2, 1, DROPOUT | BLOCK),
    ("gpt2-bf16-dropout", GPT2, 1, DROPOUT | BF16),
    ("gpt2-bf16-residual-fp32-window", GPT2, 1, BF16 | {"precision.residual": "fp32", "model.attention_window": 11}),
    ("gpt2-pure", GPT2, 1, PURE),
    ("gpt2-gelu-untied", GPT2, 1, {"model.activation": "gelu", "model.tied_head": False}),
    ("llama-fp32-documents", LLAMA, 1, {"data.mask_documents": True}),
    ("llama-bf16-every-nth-qknorm", LLAMA, 1, BF16 | EVERY_2ND | QK_NORM),
    ("llama-fp32-qknorm-z-loss", LLAMA, 1, QK_NORM | {"model.z_loss": 1e-3, "model.bias": True}),
    ("gpt2-tensor2", GPT2, 2, TENSOR2 | DROPOUT),
    ("gpt2-tensor2-sequence", GPT2, 2, TENSOR2 | {"parallel.sequence": True}),
    ("llama-tensor2-sequence-bf16-block", LLAMA, 2, TENSOR2 | {"parallel.sequence": True} | BF16 | BLOCK | QK_NORM),
    ("llama-tensor4-replicas", LLAMA, 4, {"parallel.tensor": 4} | QK_NORM | DROPOUT),
    ("gpt2-data3", GPT2, 3, {}),
    ("gpt2-data2-reduce-bf16", GPT2, 2, BF16 | {"precision.reduce": "bf16"}),
    ("gpt2-zero1-bf16", GPT2, 2, BF16 | {"parallel.zero": 1}),
    ("gpt2-zero2", GPT2, 3, {"parallel.zero": 2} | DROPOUT),
    ("gpt2-zero3-block", GPT2, 2, {"parallel.zero": 3} | BLOCK),
    ("llama-zero3-bf16-qknorm", LLAMA, 3, {"parallel.zero": 3} | BF16 | QK_NORM),
    ("llama-zero3-pure", LLAMA, 2, {"parallel.zero": 3} | PURE),
    ("gpt2-tensor2-data2", GPT2, 4, TENSOR2 | {"parallel.sequence": True} | EVERY_2ND),
    ("gpt2-tensor2-zero2", GPT2, 4, TENSOR2 | {"parallel.zero": 2} | BF16),
    ("llama-tensor2-sequence-zero3", LLAMA, 4, TENSOR2 | {"parallel.sequence": True, "parallel.zero": 3} | QK_NORM),
]

# Cases for devices with FP8 products. Sizes are multiples of 16.
FP8 = BF16 | {"precision.linears": "fp8", "model.hidden_size": 64, "model.ffn_hidden_size": 128}
DEVICE_CASES = [
    ("gpt2-fp8", GPT2, 1, FP8),
    ("gpt2-fp8-dropout-block", GPT2, 1, FP8 | DROPOUT | BLOCK),
    ("llama-fp8-tensor2-sequence-zero3", LLAMA, 4, FP8 | TENSOR2 | {"parallel.sequence": True, "parallel.zero": 3}),
    ("gpt2-fp16", GPT2, 1, {"precision.compute": "fp16"}),
]


def config_of(model, settings, steps, device, out):
    config = {
        "model": SIZES | model, "data": {"train": [{"path": "corpus"}]}, "batch": {"global": 12, "micro": 2},
        "precision": {"compute": "fp32"}, "optimizer": {"lr": 3e-3, "weight_decay": 0.1, "clip_norm": 1.0},
        "schedule": {"warmup_steps": 2}, "memory": {"loss_chunk_tokens": 40},
        "run": {"steps": steps, "seed": 3, "out": out, "threads": 1, "device": device}}
    for path, value in settings.items():
        section, key = path.split(".")
        config.setdefault(section, {})[key] = value
    return config


def run(gptrain, folder, *arguments):
    done = subprocess.run([gptrain, *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{gptrain} {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}{done.stdout}")


def write_corpus(gptrain, folder):
    """Writes documents of varying lengths, mostly counting upwards."""
    state, value, lines = 1, 0, []
    for _ in range(400):
        state = (1664525 * state + 1013904223) % 2**32
        line = bytearray()
        for _ in range(3 + (state >> 26)):
            state = (1664525 * state + 1013904223) % 2**32
            value = (value + (1 if state >> 30 else state >> 8)) % 90
            line.append(33 + value)
        lines.append(json.dumps({"text": line.decode()}))
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run(gptrain, folder, "data", "pack", "corpus.jsonl", "--out", "corpus", "--tokenizer", "bytes")


def copy_box(tensor, global_shape, offset, shape, data, width):
    """Copies a box's bytes to its position in the global tensor."""
    if len(global_shape) == 1:
        tensor[offset[0] * width:(offset[0] + shape[0]) * width] = data
        return
    row = shape[1] * width
    for i in range(shape[0]):
        start = ((offset[0] + i) * global_shape[1] + offset[1]) * width
        tensor[start:start + row] = data[i * row:(i + 1) * row]


def read_checkpoint(folder):
    """Returns the global tensors by name: (dtype, shape, bytes)."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        places = header.pop("__metadata__")
        for key, entry in header.items():
            place = json.loads(places[key])
            begin, end = (8 + length + o for o in entry["data_offsets"])
            width = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "U8": 1, "I8": 1}[entry["dtype"]]
            shape = place["global_shape"]
            name = place["tensor"]
            if name not in tensors:
                tensors[name] = (entry["dtype"], shape, bytearray(math.prod(shape) * width))
            copy_box(tensors[name][2], shape, place["offset"], entry["shape"], data[begin:end], width)
    return tensors


def result_of(gptrain, folder, name, case, arguments):
    """Returns the tensors of the last checkpoint, and each step's loss and gradient norm."""
    _, model, ranks, settings = case
    if not (folder / name / "checkpoints").exists():
        config = config_of(model, settings, arguments.steps, arguments.device, name)
        (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
        run(gptrain, folder, "train", f"{name}.json", *(["--ranks", str(ranks)] if ranks > 1 else []))
    newest = sorted((folder / name / "checkpoints").glob("step-*"))[-1]
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if "loss" in record]
    return read_checkpoint(newest), [(r.get("step"), r["loss"], r.get("grad_norm")) for r in records]


def difference(before, after):
    """Describes the first difference; None if there is none."""
    for name in sorted(before[0].keys() | after[0].keys()):
        if name not in before[0] or name not in after[0]:
            return f"{name} is in one checkpoint only"
        a, b = before[0][name], after[0][name]
        if a[:2] != b[:2]:
            return f"{name}: {a[:2]} and {b[:2]}"
        if a[2] != b[2]:
            width = len(a[2]) // max(1, math.prod(a[1]))
            differing = sum(a[2][i:i + width] != b[2][i:i + width] for i in range(0, len(a[2]), width))
            return f"{name}: {differing} of {math.prod(a[1])} elements differ"
    if before[1] != after[1]:
        return next(f"step {x} and {y}" for x, y in zip(before[1], after[1]) if x != y)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER",
                        help="works there; what BEFORE has trained there before is not trained again")
    arguments = parser.parse_args()
    binaries = [str(binary.resolve()) for binary in (arguments.before, arguments.after)]
    faults = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_corpus(binaries[0], folder)
        for case in CASES + (DEVICE_CASES if arguments.device == "cuda" else []):
            if arguments.only not in case[0]:
                continue
            try:
                shutil.rmtree(folder / f"{case[0]}-after", ignore_errors=True)
                results = [result_of(binary, folder, f"{case[0]}-{which}", case, arguments)
                           for which, binary in zip(("before", "after"), binaries)]
                fault = difference(*results)
                count = len(results[0][0])
            except RuntimeError as error:
                fault, count = str(error), 0
            faults += fault is not None
            print(f"{case[0]:36} {f'{count} tensors, the same bits' if fault is None else fault}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
