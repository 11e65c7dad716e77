#!/usr/bin/env python3
"""Speed of gptrain's tokenizer beside tiktoken and Hugging Face tokenizers, on one thread each, in processor time.

    V/bin/python tools/bench_tokenizer.py GPTRAIN TEXT [--vocab-size 50257]      (V as of compare_tokenizers.py)

Trains one vocabulary with both trainers and encodes up to 20 MB of TEXT with all three. Of gptrain the time of the
whole command `data pack` counts, less that of packing one word: reading JSONL, encoding and writing.
"""
import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
import tiktoken  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import compare_tokenizers as reference  # noqa: E402


def processor_seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def child_seconds(*command):
    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime
    start = spent()
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    return spent() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain")
    parser.add_argument("text")
    parser.add_argument("--vocab-size", type=int, default=50257)
    arguments = parser.parse_args()
    text = Path(arguments.text).read_bytes().decode(errors="replace")
    documents = [text[i:i + 10_000] for i in range(0, min(len(text), 20_000_000), 10_000)]
    megabytes = sum(len(document.encode()) for document in documents) / 1e6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in (("docs.jsonl", documents), ("word.jsonl", ["word"])):
            (folder / file).write_text("".join(json.dumps({"text": one}) + "\n" for one in content), encoding="utf-8")
        trained = processor_seconds(lambda: reference.reference_tokenizer("gpt2", None, documents,
                                                                          arguments.vocab_size))
        own = folder / "tokenizer.json"
        ours = child_seconds(arguments.gptrain, "data", "train-tokenizer", folder / "docs.jsonl", "--vocab-size",
                             arguments.vocab_size, "--out", own, "--threads", 1)
        print(f"training {arguments.vocab_size:,} tokens on {megabytes:.1f} MB: tokenizers {trained:.1f} s, "
              f"gptrain {ours:.1f} s")
        tokenizer = Tokenizer.from_file(str(own))
        characters = reference.byte_of_character()
        ranks = {bytes(characters[c] for c in token): rank - 1 for token, rank in tokenizer.get_vocab().items()
                 if token != "<|endoftext|>"}
        encoding = tiktoken.Encoding("x", pat_str=reference.GPT2, mergeable_ranks=ranks, special_tokens={})
        speeds = {"tiktoken": megabytes / processor_seconds(lambda: [encoding.encode_ordinary(d) for d in documents]),
                  "tokenizers": megabytes / processor_seconds(lambda: [tokenizer.encode(d) for d in documents])}
        pack = [arguments.gptrain, "data", "pack", "--tokenizer", own, "--threads", 1, "--out", folder / "out"]
        speeds["gptrain"] = megabytes / (child_seconds(*pack, folder / "docs.jsonl") -
                                         child_seconds(*pack, folder / "word.jsonl"))
    for program, speed in speeds.items():
        print(f"encoding with {program}: {speed:.1f} MB/s, gptrain is {speeds['gptrain'] / speed:.1f} times as fast")


if __name__ == "__main__":
    main()
