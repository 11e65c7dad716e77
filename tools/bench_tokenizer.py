#!/usr/bin/env python3
"""Measures the speed of gptrain's tokenizer beside tiktoken and Hugging Face tokenizers.

    V/bin/python tools/bench_tokenizer.py GPTRAIN FOLDER [--part encode|train] [--before OTHER]   (V: see compare_tokenizers.py)

The first run creates a corpus in FOLDER: 100 MB of text from the Collaborative International Dictionary of English and
the pages of Debian's documentation packages listed below, without markup (apt-get downloads packages that are not in
FOLDER/packages).

encode: 20 MB of English in documents of 10 KB, with a vocabulary of 50,257, one thread each; processor time. For
gptrain, the whole `data pack` command (reading JSONL, encoding, writing) counts, less the time to pack one word. Then
the elapsed time of `data pack` for the whole corpus, with one and with two encoding threads.
train: 32,000 tokens from the whole corpus, with one and with two threads, each trainer in its own process: elapsed and
processor time and peak memory. Then gptrain's peak memory for the same corpus repeated three times, which has the same
words.
--before OTHER, another build of gptrain: only `data pack` by both in turn, of the 20 MB ten times as bytes and once with
the vocabulary of 50,257, one thread; processor time, less that of packing one word.
"""
import argparse
import gzip
import html
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "compare"))

PACKAGES = ["dict-gcide", "perl-doc", "postgresql-doc-15", "git-doc", "python3.11-doc", "linux-doc-6.1"]
CORPUS_BYTES, ENCODED_BYTES, DOCUMENT_CHARACTERS = 100_000_000, 20_000_000, 10_000
ENCODE_VOCABULARY, TRAIN_VOCABULARY = 50_257, 32_000
PAGES = re.compile(r"\.(html?|txt|pod|rst|[1-9][a-z]*)(\.gz)?$")
NOT_TEXT = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def run(*command, **options):
    return subprocess.run([*map(str, command)], check=True, **options)


def pages_of(package, folder):
    """Returns the texts of a package's pages."""
    found = sorted(folder.glob(f"{package}_*.deb"))
    if not found:
        run("apt-get", "-q", "download", package, cwd=folder, stdout=subprocess.DEVNULL)
        found = sorted(folder.glob(f"{package}_*.deb"))
    with tempfile.TemporaryDirectory() as unpacked:
        run("dpkg-deb", "-x", found[0], unpacked)
        if package == "dict-gcide":
            import prepare_corpus
            archive = Path(unpacked, "usr/share/dictd/gcide.dict.dz").read_bytes()
            yield from prepare_corpus.gcide_entries(gzip.decompress(archive).decode(errors="replace"))
            return
        for path in sorted(Path(unpacked).rglob("*")):
            if path.is_symlink() or not path.is_file() or not PAGES.search(path.name):
                continue
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace")
            if ".htm" in path.name:
                text = html.unescape(NOT_TEXT.sub("", text))
            yield text


def make_corpus(folder):
    """Returns the path of FOLDER/corpus.jsonl, one document a line; creates it if missing."""
    path = folder / "corpus.jsonl"
    if path.exists():
        return path
    (folder / "packages").mkdir(parents=True, exist_ok=True)
    size = 0
    with path.with_suffix(".part").open("w", encoding="utf-8") as file:
        for package in PACKAGES:
            before = size
            for text in pages_of(package, folder / "packages"):
                if size < CORPUS_BYTES:
                    size += len(text.encode())
                    file.write(json.dumps({"text": text}) + "\n")
            print(f"{package}: {(size - before) / 1e6:.1f} MB", flush=True)
    path.with_suffix(".part").rename(path)
    return path


def texts_of(path):
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def write_documents(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def measured(*command, **environment):
    """Runs a command; returns its elapsed and processor seconds and its peak memory in MB."""
    start = time.monotonic()
    with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env=os.environ | environment) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{command[0]} ended with {child.returncode}")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def best(times, work):
    return min(work() for _ in range(times))


def bench_encode(gptrain, corpus, folder):
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    import tiktoken
    from tokenizers import Tokenizer
    import compare_tokenizers as reference
    text = "\n".join(texts_of(corpus))[:ENCODED_BYTES]
    documents = [text[i:i + DOCUMENT_CHARACTERS] for i in range(0, len(text), DOCUMENT_CHARACTERS)]
    megabytes = sum(len(document.encode()) for document in documents) / 1e6
    files = {name: write_documents(folder / f"{name}.jsonl", content)
             for name, content in (("documents", documents), ("word", ["word"]))} | {"corpus": corpus}
    own = folder / "tokenizer.json"
    run(gptrain, "data", "train-tokenizer", files["documents"], "--vocab-size", ENCODE_VOCABULARY, "--out", own,
        capture_output=True)
    tokenizer = Tokenizer.from_file(str(own))
    encoding = tiktoken.Encoding("x", pat_str=reference.GPT2, mergeable_ranks=reference.ranks_of(tokenizer),
                                 special_tokens={})

    def seconds(work):
        start = time.process_time()
        work()
        return time.process_time() - start

    def pack(file, threads, which):
        return best(3, lambda: measured(gptrain, "data", "pack", files[file], "--tokenizer", own, "--threads", threads,
                                        "--out", folder / "out")[which])

    speeds = {
        "tiktoken": best(2, lambda: seconds(lambda: [encoding.encode_ordinary(text) for text in documents])),
        "tokenizers": best(2, lambda: seconds(lambda: [tokenizer.encode(text) for text in documents])),
        "tokenizers, encode_batch_fast": best(2, lambda: seconds(lambda: tokenizer.encode_batch_fast(documents))),
        "gptrain": pack("documents", 1, 1) - pack("word", 1, 1)}
    speeds = {program: megabytes / spent for program, spent in speeds.items()}
    for program, speed in speeds.items():
        print(f"encoding {megabytes:.1f} MB with {program}: {speed:.1f} MB/s, gptrain is "
              f"{speeds['gptrain'] / speed:.1f} times as fast", flush=True)
    one, two = (pack("corpus", threads, 0) - pack("word", threads, 0) for threads in (1, 2))
    print(f"data pack of the whole corpus, elapsed: {one:.2f} s with one thread that encodes, {two:.2f} s with two: "
          f"{one / two:.2f} times as fast")


def bench_before(gptrain, corpus, folder, before):
    turns, byte_copies = 9, 10
    text = "\n".join(texts_of(corpus))[:ENCODED_BYTES]
    texts = [text[i:i + DOCUMENT_CHARACTERS] for i in range(0, len(text), DOCUMENT_CHARACTERS)]
    documents = write_documents(folder / "documents.jsonl", texts)
    own = folder / "tokenizer.json"
    run(gptrain, "data", "train-tokenizer", documents, "--vocab-size", ENCODE_VOCABULARY, "--out", own, capture_output=True)
    word = write_documents(folder / "word.jsonl", ["word"])
    for tokenizer, input_ in (("bytes", write_documents(folder / "copies.jsonl", texts * byte_copies)), (own, documents)):
        def seconds_of(program, file, tokenizer=tokenizer):
            return measured(program, "data", "pack", file, "--tokenizer", tokenizer, "--threads", 1, "--out", folder / "out")[1]

        spent = {before: [], gptrain: []}
        for _ in range(turns):
            for program, seconds in spent.items():
                seconds.append(seconds_of(program, input_) - seconds_of(program, word))
        for program, seconds in spent.items():
            print(f"data pack of {input_.stat().st_size / 1e6:.1f} MB of JSONL, {Path(tokenizer).stem}, {program}: least "
                  f"{min(seconds):.3f} s, median {statistics.median(seconds):.3f} s of {turns} turns", flush=True)


def train_reference(corpus):
    import compare_tokenizers as reference
    reference.reference_tokenizer("gpt2", None, texts_of(corpus), TRAIN_VOCABULARY)


def bench_train(gptrain, corpus, folder):
    megabytes = sum(len(text.encode()) for text in texts_of(corpus)) / 1e6
    command = [gptrain, "data", "train-tokenizer", "--vocab-size", TRAIN_VOCABULARY, "--out", folder / "own.json"]
    for threads in (1, 2):
        figures = {"tokenizers": measured(sys.executable, __file__, "", corpus, "--reference",
                                          RAYON_NUM_THREADS=str(threads)),
                   "gptrain": best(2, lambda: measured(*command, corpus, "--threads", threads))}
        for program, (elapsed, processor, memory) in figures.items():
            print(f"training {TRAIN_VOCABULARY:,} tokens on {megabytes:.1f} MB, {threads} thread(s), {program}: "
                  f"{elapsed:.1f} s, processor {processor:.1f} s, {memory:.0f} MB", flush=True)
        print(f"gptrain takes {figures['gptrain'][0] / figures['tokenizers'][0]:.2f} of the time", flush=True)
    copies = [shutil.copy(corpus, folder / f"copy-{number}.jsonl") for number in range(3)]
    memory = measured(*command, *copies, "--threads", 1)[2]
    print(f"gptrain on the same three times: {memory:.0f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=["encode", "train"], action="append", help="only this; default: both")
    parser.add_argument("--before", help="another build of gptrain")
    parser.add_argument("--reference", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reference:  # runs in the separate process; FOLDER is then the corpus
        return train_reference(arguments.folder)
    corpus = make_corpus(arguments.folder)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.before:
            return bench_before(arguments.gptrain, corpus, Path(folder), arguments.before)
        for part in arguments.part or ["encode", "train"]:
            {"encode": bench_encode, "train": bench_train}[part](arguments.gptrain, corpus, Path(folder))


if __name__ == "__main__":
    main()
