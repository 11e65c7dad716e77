#!/usr/bin/env python3
"""Passes small models of transformers' classes through gptrain and back, and trains them in both.

Run as compare_hf.py [--gptrain FILE] [--case NAME]..., with PyTorch and transformers 5 installed. For each model, with
random weights, biases and norms included:
  checkpoint import, checkpoint export   every tensor has the same bytes again, in fp32 (one file and several) and
                                         bf16; fp16 becomes the same numbers in fp32
  logits                                 from the exported folder are within 1e-5 of the original's
  train --init-from                      20 steps of AdamW, every loss within 1e-5 of transformers' in float32
Exits with 1 if one of these does not hold.
"""
import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tools" / "compare"), str(ROOT / "tests" / "golden")]
import compare_torch  # noqa: E402
import golden_run  # noqa: E402

TOLERANCE = 1e-5
LLAMA = {"num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 200, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": golden_run.SEQUENCE_LENGTH,
         "vocab_size": golden_run.VOCAB_SIZE, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
GPT2 = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": golden_run.SEQUENCE_LENGTH,
        "vocab_size": golden_run.VOCAB_SIZE, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0,
        "bos_token_id": None, "eos_token_id": None}
GPT_NEO = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": golden_run.VOCAB_SIZE, "window_size": 20,
           "attention_types": [[["global", "local"], 1]], "max_position_embeddings": golden_run.SEQUENCE_LENGTH,
           "bos_token_id": None, "eos_token_id": None}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
GEMMA = {**LLAMA, "head_dim": 24, "query_pre_attn_scalar": 20, "sliding_window": 20,
         "layer_types": ["sliding_attention", "full_attention"]}
MOE = {**LLAMA, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "rms_norm_eps": 1e-6}
CASES = {
    "gpt2": ("GPT2", GPT2),
    "gpt2-gelu-untied": ("GPT2", {**GPT2, "activation_function": "gelu", "tie_word_embeddings": False, "n_inner": 100}),
    "llama": ("Llama", {**LLAMA, "num_key_value_heads": 6}),
    "llama-bias-tied": ("Llama", {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama3-angles": ("Llama", {**LLAMA, "head_dim": 24, "rope_parameters": LLAMA3}),
    "linear-angles": ("Llama", {**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("Mistral", {**LLAMA, "sliding_window": None}),
    "mistral-window": ("Mistral", {**LLAMA, "sliding_window": 20, "head_dim": 24}),
    "qwen2": ("Qwen2", {**LLAMA, "tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {**LLAMA, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}),
    "qwen2-some-windows": ("Qwen2", {**LLAMA, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {**LLAMA, "head_dim": 32}),
    "qwen3-alternating": ("Qwen3", {**LLAMA, "head_dim": 24, "use_sliding_window": True, "sliding_window": 20,
                                    "layer_types": ["sliding_attention", "full_attention"]}),
    "ministral": ("Ministral", {**LLAMA, "head_dim": 24, "sliding_window": 20,
                                "layer_types": ["full_attention", "sliding_attention"]}),
    "gpt-neo": ("GPTNeo", GPT_NEO),
    "gemma2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}),
    "gemma3": ("Gemma3", {**GEMMA, "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}}}),
    "mixtral": ("Mixtral", {**MOE, "num_local_experts": 5, "intermediate_size": 64}),
    "qwen2-moe": ("Qwen2Moe", {**MOE, "num_experts": 6, "shared_expert_intermediate_size": 80}),
    "qwen3-moe": ("Qwen3Moe", {**MOE, "num_experts": 6, "head_dim": 24, "decoder_sparse_step": 2,
                               "norm_topk_prob": True}),
    "gpt2-unscaled": ("GPT2", {**GPT2, "scale_attn_weights": False}),
    "qwen3-llama3-angles": ("Qwen3", {**LLAMA, "head_dim": 24, "rope_parameters": LLAMA3}),
}


def random_model(kind, keys):
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")(**keys)
    torch.manual_seed(3)
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model = getattr(transformers, f"{kind}{suffix}")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and name.endswith("weight") and not kind.startswith("Gemma")
            parameter.normal_(0.0, 0.08).add_(1.0 if norm else 0.0)
    return model.eval()


def tensors_of(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def same(what, tensors, expected):
    """Returns one line if the tensors differ from the expected ones in any bit."""
    if tensors.keys() != expected.keys():
        return [f"{what}: {sorted(tensors.keys() ^ expected.keys())} are in one of the two only"]
    different = [name for name, tensor in tensors.items()
                 if tensor.dtype != expected[name].dtype or not torch.equal(tensor, expected[name])]
    return [f"{what}: {different} differ"] if different else []


def there_and_back(gptrain, folder, source, dtype):
    """Imports and exports the folder `source`; returns the resulting tensors."""
    made, back = f"{source}-imported", f"{source}-back"
    golden_run.run_gptrain(gptrain, folder, "checkpoint", "import", "--hf", source, made)
    golden_run.run_gptrain(gptrain, folder, "checkpoint", "export", made, "--hf", back, "--dtype", dtype)
    return tensors_of(folder / back)


def logits_of(folder):
    model = compare_torch.load_model(folder, torch.float32).eval()
    inputs = torch.tensor(golden_run.corpus_samples())[:8, :-1]
    with torch.no_grad():
        return model(input_ids=inputs, use_cache=False).logits


def losses_of_gptrain(gptrain, folder, name, config):
    file = folder / f"{name}.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    golden_run.run_gptrain(gptrain, folder, "train", file, "--init-from", f"{name}-imported")
    lines = (folder / config["run"]["out"] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def compare(gptrain, folder, name, kind, keys):
    model = random_model(kind, keys)
    model.save_pretrained(folder / name)
    expected = tensors_of(folder / name)
    faults = same("fp32", there_and_back(gptrain, folder, name, "fp32"), expected)
    model.save_pretrained(folder / f"{name}-parts", max_shard_size="60KB")
    parts = len(list((folder / f"{name}-parts").glob("*.safetensors")))
    faults += [] if parts > 1 else ["not in several files"]
    faults += same("several files", there_and_back(gptrain, folder, f"{name}-parts", "fp32"), expected)
    for dtype, back in ((torch.bfloat16, "bf16"), (torch.float16, "fp32")):
        source = f"{name}-{str(dtype).removeprefix('torch.')}"
        random_model(kind, keys).to(dtype).save_pretrained(folder / source)
        narrow = {tensor: values.to(torch.bfloat16 if back == "bf16" else torch.float32)
                  for tensor, values in tensors_of(folder / source).items()}
        faults += same(source, there_and_back(gptrain, folder, source, back), narrow)

    logits = (logits_of(folder / name) - logits_of(folder / f"{name}-back")).abs().max().item()
    section = json.loads((folder / f"{name}-imported" / "model.json").read_text(encoding="utf-8"))["model"]
    config = compare_torch.run_config({}, run={"out": f"{name}-run"})
    config["model"] = section
    theirs, _ = compare_torch.Run(folder / name, torch.float32, False, section).train(config)
    ours = losses_of_gptrain(gptrain, folder, name, config)
    first = abs(ours[0] - theirs[0])
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    print(f"{name}: {len(expected)} tensors; logits {logits:.1e}; losses {theirs[0]:.4f} to {theirs[-1]:.4f}, first "
          f"{first:.1e}, {len(ours)} steps {worst:.1e}", flush=True)
    faults += [f"logits differ by {logits:.2e}"] if logits > TOLERANCE else []
    faults += [f"losses differ by {worst:.2e}"] if worst > TOLERANCE else []
    for fault in faults:
        print(f"{name}: {fault}", flush=True)
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gptrain", type=Path, default=ROOT / "build" / "gptrain")
    parser.add_argument("--case", action="append", choices=CASES)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    faults = []
    with tempfile.TemporaryDirectory(prefix="gptrain-hf-") as folder:
        golden_run.write_corpus(arguments.gptrain.resolve(), Path(folder))
        for name in arguments.case or CASES:
            faults += compare(arguments.gptrain.resolve(), Path(folder), name, *CASES[name])
    print(f"{len(faults)} faults" if faults else "everything holds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
