#!/usr/bin/env python3
"""Mutants of inputs of `data pack`: JSONL in each compression, Parquet, tokenizer.json, models of SentencePiece. No signal, no
hang, at most 512 MiB of memory except for a window that the file asks for and the message names, and every document is packed or counted.

Run as test_corpus_mutants.py GPTRAIN [--files N] [--seed N] [TEST...]
"""
import argparse
import bz2
import collections
import gzip
import json
import lzma
import os
import random
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True

DOCUMENTED = {0, 2, 3}
MOST_KIB = 512 << 10
SECONDS = 60
DATA_FOLDER = Path(__file__).resolve().parents[1] / "cli"
WORDS = ["the", "quick", "brown", "fox's", "12345", "naïve", "日本語", "\n\n", "\t", '"', "\\"]


def count_of(pattern, text):
    found = re.search(pattern, text)
    return int(found.group(1).replace(",", "")) if found else 0


def ends_are_whole(line):
    """Returns whether a line is JSON values in a row, as Python's json reads them."""
    text, at = line.decode(errors="replace"), 0
    try:
        while at < len(text):
            at = json.JSONDecoder().raw_decode(text, at)[1]
            at += len(text[at:]) - len(text[at:].lstrip(" \t\r\x1e\ufeff"))
    except ValueError:
        return False
    return True


def xxh64(content):
    """Returns XXH64 of a text of at least 32 bytes with seed 0, the checksum of zstd's frames (RFC 8878)."""
    bits = (1 << 64) - 1
    p1, p2, p3, p4, p5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5

    def turn(value, by):
        return (value << by | value >> (64 - by)) & bits

    def mix(lane, word):
        return turn((lane + word * p2) & bits, 31) * p1 & bits

    lanes = [(p1 + p2) & bits, p2, 0, -p1 & bits]
    whole = len(content) // 32 * 32
    for at in range(0, whole, 8):
        lanes[at // 8 % 4] = mix(lanes[at // 8 % 4], int.from_bytes(content[at:at + 8], "little"))
    code = sum(turn(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18))) & bits
    for lane in lanes:
        code = ((code ^ mix(0, lane)) * p1 + p4) & bits
    code = (code + len(content)) & bits
    at = whole
    for size, before, by, factor, add in ((8, lambda word: mix(0, word), 27, p1, p4), (4, lambda word: word * p1, 23, p2, p3),
                                          (1, lambda word: word * p5, 11, p1, 0)):
        while at + size <= len(content):
            code = (turn(code ^ before(int.from_bytes(content[at:at + size], "little")) & bits, by) * factor + add) & bits
            at += size
    code = (code ^ code >> 33) * p2 & bits
    code = (code ^ code >> 29) * p3 & bits
    return code ^ code >> 32


class CorpusMutants(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gptrain-corpora-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.draw = random.Random(SEED)
        self.codes, self.most_kib, self.most_seconds = collections.Counter(), 0, 0
        self.addCleanup(self.report)

    def report(self):
        """Prints exit codes, memory and time of the runs of a test; a hang or a signal has an exit code of its own."""
        print(f"{self._testMethodName}: {self.codes.total():,} runs, exit codes {dict(sorted(self.codes.items()))}, at most "
              f"{self.most_kib / 1024:.0f} MiB and {self.most_seconds:.1f} s", flush=True)

    def run_gptrain(self, *arguments):
        """Returns the exit code, the output, and the process's own peak memory."""
        log = self.folder / "log"
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.chdir(self.folder)
            os.execv("/usr/bin/env", ["env", "timeout", str(SECONDS), str(GPTRAIN), *map(str, arguments)])
        _, status, usage = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        self.codes[code] += 1
        self.most_kib = max(self.most_kib, usage.ru_maxrss)
        self.most_seconds = max(self.most_seconds, time.monotonic() - start)
        return code, log.read_text(errors="replace"), usage.ru_maxrss

    def mutant(self, content):
        bytes_ = bytearray(content)
        for _ in range(self.draw.choice((1, 1, 2, 4))):
            at = self.draw.randrange(len(bytes_) + 1)
            kind = self.draw.randrange(6)
            if kind == 0 and at < len(bytes_):
                bytes_[at] ^= 1 << self.draw.randrange(8)
            elif kind == 1 and at < len(bytes_):
                bytes_[at] = self.draw.choice((0, 0x7F, 0x80, 0xFF, self.draw.randrange(256)))
            elif kind == 2:
                del bytes_[at:at + self.draw.choice((1, 2, 20))]
            elif kind == 3:
                bytes_[at:at] = self.draw.choice((b"\0" * 8, b"\xff" * 5, b"\n", b'"', b"{", b"\\ud800", b"1e999", b"NaN", b"\xef\xbb\xbf"))
            elif kind == 4:
                start = self.draw.randrange(len(bytes_) + 1)
                bytes_[at:at] = bytes_[start:start + self.draw.randrange(200)]
            elif self.draw.random() < 0.3:
                del bytes_[at:]
        return bytes(bytes_)

    def pack(self, name, tokenizer="bytes"):
        code, text, kib = self.run_gptrain("data", "pack", name, "--out", "out", "--tokenizer", tokenizer, "--on-bad-line", "skip")
        kept = self.folder / "kept"
        (self.folder / name).rename(kept)  # for whoever looks into a failure
        self.assertIn(code, DOCUMENTED, f"seed {SEED}: {text}")
        self.assertNotIn("internal error", text)
        if "window takes" not in text:
            self.assertLess(kib, MOST_KIB, text)
        counted = count_of(r": ([\d,]+) documents?, ", text)
        counted += count_of(r"left out: ([\d,]+) documents? that could", text) + count_of(r"left out: ([\d,]+) empty", text)
        return code, counted, text

    def test_jsonl(self):
        lines = [json.dumps({"id": i, "text": " ".join(self.draw.choice(WORDS) for _ in range(self.draw.randrange(30)))},
                            ensure_ascii=i % 2 == 0) for i in range(120)]
        content = "".join(line + "\n" for line in lines).encode()
        packed = 0
        for _ in range(FILES):
            mutant = self.mutant(content)
            (self.folder / "a.jsonl").write_bytes(mutant)
            code, counted, text = self.pack("a.jsonl")
            packed += code == 0
            if code == 0:
                lines = [line for line in mutant.split(b"\n") if line.replace(b"\xef\xbb\xbf", b"").strip(b" \t\r\x1e")]
                # Lines that were joined by a change have several records.
                least = sum(max(1, line.count(b'{"id": ')) if ends_are_whole(line) else 1 for line in lines)
                self.assertGreaterEqual(counted, least, text)
                # Text between two records counts as one more.
                self.assertLessEqual(counted, sum(1 + 2 * line.count(b"{") + line.count(b"[") for line in lines), text)
        self.assertGreater(packed, FILES // 2)

    def test_compressed_jsonl(self):
        content = "".join(json.dumps({"text": f"document {i} " + "x" * (i % 40)}) + "\n" for i in range(120)).encode()
        compared = 0
        for suffix, compress in ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", self.zstd),
                                 (".zst", self.zstd_without_checksums)):
            sound = compress(content)
            for _ in range(FILES):
                mutant = self.mutant(sound)
                (self.folder / ("a.jsonl" + suffix)).write_bytes(mutant)
                code, counted, text = self.pack("a.jsonl" + suffix)
                # Members that are there twice are read twice. Without checksums the content may be another one.
                if code == 0 and compress != self.zstd_without_checksums:
                    self.assertEqual(counted % 120, 0, text)
                elif code == 0 and (other := self.content_of_frames(mutant)) is not None:
                    (self.folder / "a.jsonl").write_bytes(other)
                    self.assertEqual(self.pack("a.jsonl")[:2], (0, counted), text)
                    compared += 1
        self.assertGreater(compared, 0)

    @staticmethod
    def zstd(content):
        """Returns a frame of one raw block, with its checksum."""
        block = (1 | len(content) << 3).to_bytes(3, "little") + content
        return b"\x28\xb5\x2f\xfd\x04\x58" + block + (xxh64(content) & 0xFFFFFFFF).to_bytes(4, "little")

    @staticmethod
    def zstd_without_checksums(content):
        """Returns two frames of one raw block each."""
        half = len(content) // 2
        return b"".join(b"\x28\xb5\x2f\xfd\0\x58" + (1 | len(part) << 3).to_bytes(3, "little") + part
                        for part in (content[:half], content[half:]))

    @staticmethod
    def content_of_frames(frames):
        """Returns the content of zstd's frames without checksums, of raw blocks and repeated bytes; None for other forms."""
        content, at = b"", 0
        while at < len(frames):
            if frames[at:at + 5] != b"\x28\xb5\x2f\xfd\0":
                return None
            at, is_last = at + 6, False
            while not is_last:
                header = int.from_bytes(frames[at:at + 3], "little")
                is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
                if kind > 1 or at + 3 > len(frames):
                    return None
                content += frames[at + 3:at + 3 + size] if kind == 0 else frames[at + 3:at + 4] * size
                at += 3 + (size if kind == 0 else 1)
        return content

    def test_parquet(self):
        (self.folder / "s.parquet").write_bytes((DATA_FOLDER / "nulls.parquet").read_bytes())
        code, text, _ = self.run_gptrain("data", "pack", "s.parquet", "--out", "out", "--tokenizer", "bytes", "--on-bad-line", "skip")
        if "which this build cannot read" in text:
            self.skipTest("a build without Arrow's library")
        self.assertEqual(code, 0, text)
        for name, rows in (("nulls", 3), ("rows", 1500)):
            sound = (DATA_FOLDER / f"{name}.parquet").read_bytes()
            footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
            for number in range(FILES // 2):
                # Half of the mutants in the footer, which has no checksum.
                mutant = self.mutant(sound) if number % 2 else sound[:footer] + self.mutant(sound[footer:-8]) + sound[-8:]
                (self.folder / "a.parquet").write_bytes(mutant)
                code, counted, text = self.pack("a.parquet")
                if code == 0:
                    self.assertEqual(counted, rows, text)

    def test_parquet_with_checksums(self):
        """A change in the bodies of pages is never read as another text."""
        sound = (DATA_FOLDER / "checksums.parquet").read_bytes()
        begin, end = sound.index(b"document 0") - 4, sound.index(b"document 39") + len(b"document 39 of the corpus")
        for _ in range(FILES // 2):
            damaged = bytearray(sound)
            for _ in range(self.draw.choice((1, 1, 2, 5))):
                damaged[self.draw.randrange(begin, end)] ^= 1 << self.draw.randrange(8)
            if damaged == sound:
                continue
            (self.folder / "a.parquet").write_bytes(damaged)
            code, _, text = self.pack("a.parquet")
            if "which this build cannot read" in text:
                self.skipTest("a build without Arrow's library")
            self.assertEqual(code, 3, text)
            self.assertIn("a.parquet: the Parquet data cannot be read", text)

    def check_tokenizers(self, sound, name):
        for _ in range(FILES):
            (self.folder / name).write_bytes(self.mutant(sound))
            code, text, kib = self.run_gptrain("data", "tokenize", "--tokenizer", name, "the License's\n\n1234 naïve 日本語")
            self.assertIn(code, DOCUMENTED, text)
            self.assertNotIn("internal error", text)
            self.assertNotRegex(text, r"json\.exception|Internal: |\.cc\b|\.h:\d", "the text of a library")
            self.assertLess(kib, MOST_KIB, text)

    def test_tokenizer_json(self):
        (self.folder / "in.txt").write_text(" ".join(WORDS * 50))
        code, text, _ = self.run_gptrain("data", "train-tokenizer", "in.txt", "--vocab-size", "300", "--out", "t.json")
        self.assertEqual(code, 0, text)
        self.check_tokenizers((self.folder / "t.json").read_bytes(), "m.json")

    def test_sentencepiece(self):
        self.check_tokenizers((DATA_FOLDER / "sentencepiece.model").read_bytes(), "m.model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("gptrain", type=Path)
    parser.add_argument("--files", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("tests", nargs="*")
    arguments = parser.parse_intermixed_args()
    GPTRAIN, FILES, SEED = arguments.gptrain.resolve(), arguments.files, arguments.seed
    unittest.main(argv=[sys.argv[0], *arguments.tests])
