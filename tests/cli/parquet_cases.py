"""`data pack` of Parquet files, in builds with Arrow's library. pyarrow wrote the files:
rows.parquet has columns id, text and tags (lists), 1500 rows in groups of 700, 2 MB of text, zstd;
nulls.parquet has text = "one", null, "three" and raw = b"\\xff", b"x", b"y";
checksums.parquet has 40 texts in one page, with write_page_checksum."""
import os
import resource
import shutil
import struct
import unittest

from cli_case import DATA, SOURCE_ROOT, USAGE, CliCase

TEXTS = [f"row {i}: " + "naïve café 日本 " * (i % 150) + "end" for i in range(1500)]


class Parquet(CliCase):
    def setUp(self):
        super().setUp()
        for name in ("rows", "nulls"):
            shutil.copy(SOURCE_ROOT / f"tests/cli/{name}.parquet", self.path(f"{name}.parquet"))

    def needs_arrow(self):
        result = self.run_gptrain("data", "pack", "rows.parquet", "--out", "probe", "--tokenizer", "bytes")
        if "which this build cannot read: tools/setup.sh --parquet" in result.err:
            self.assertEqual(result.code, USAGE)
            raise unittest.SkipTest("a build without Arrow's library")

    def pack(self, *arguments, out="out"):
        self.succeed("data", "pack", *arguments, "--out", out, "--tokenizer", "bytes")
        tokens = struct.unpack(f"<{self.path(f'{out}.bin').stat().st_size // 2}H", self.path(f"{out}.bin").read_bytes())
        documents, at = [], 0
        while at < len(tokens):
            end = tokens.index(256, at)
            documents.append(bytes(tokens[at:end]))
            at = end + 1
        return documents

    def test_rows_are_documents(self):
        self.needs_arrow()
        self.assertEqual(self.pack("rows.parquet"), [text.encode() for text in TEXTS])
        self.assertEqual(self.pack("rows.parquet", "nulls.parquet", "--field", "text", "--on-bad-line", "skip"),
                         [text.encode() for text in [*TEXTS, "one", "three"]])
        self.refuse(DATA, "nulls.parquet, row 1: not UTF-8: byte 0xff (--replace-invalid puts", "data", "pack", "nulls.parquet", "--field",
                    "raw", "--out", "out", "--tokenizer", "bytes")
        self.assertEqual(self.pack("nulls.parquet", "--field", "raw", "--replace-invalid"), ["\ufffd".encode(), b"x", b"y"])
        self.assertEqual(self.pack("nulls.parquet", "--field", "raw", "--on-bad-line", "skip"), [b"x", b"y"])
        self.succeed("data", "train-tokenizer", "rows.parquet", "--vocab-size", "300", "--out", "t.json")
        # Rates count bytes of text, not the file's compressed ones.
        result = self.run_gptrain("data", "pack", "rows.parquet", "--out", "out", "--tokenizer", "bytes")
        self.assertRegex(result.err, r"packing: .* of text, ")

    def test_shards_that_go_on(self):
        self.needs_arrow()
        good, bad = (f'{{"text": "{text}"}}\n{{"text": {end}}}\n' for text, end in (("a", '"b"'), ("a", "333")))
        options = ["data", "pack", "rows.parquet", "last.jsonl", "--tokenizer", "bytes", "--out", "out", "--shards-of"]
        for shard_tokens in (300_000, 1_500_000):
            with self.subTest(shard_tokens=shard_tokens):
                for path in self.folder.glob("out*"):
                    path.unlink()
                self.path("last.jsonl").write_text(good, encoding="utf-8")
                self.succeed(*options, str(shard_tokens))
                expected = {path.name: path.read_bytes() for path in self.folder.glob("out-*")}
                self.assertGreater(len(expected), 3)
                for path in self.folder.glob("out*"):
                    path.unlink()
                # Ends after the last whole shard; the repaired input then counts as unchanged.
                self.path("last.jsonl").write_text(bad, encoding="utf-8")
                times = self.path("last.jsonl").stat()
                self.refuse(DATA, "last.jsonl, line 2", *options, str(shard_tokens))
                self.assertLess(len(list(self.folder.glob("out-*"))), len(expected))
                self.path("last.jsonl").write_text(good, encoding="utf-8")
                os.utime(self.path("last.jsonl"), ns=(times.st_atime_ns, times.st_mtime_ns))
                self.succeed(*options, str(shard_tokens), "--resume")
                self.assertEqual({path.name: path.read_bytes() for path in self.folder.glob("out-*")}, expected)

    def test_refusals(self):
        self.needs_arrow()
        content = self.path("rows.parquet").read_bytes()
        self.path("cut.parquet").write_bytes(content[:-700])
        self.path("wrong.parquet").write_bytes(content[:1500] + bytes(300) + content[1800:])
        for name, field, messages in [
                ("nulls.parquet", "text", "nulls.parquet, row 2: no text: null"),
                ("rows.parquet", "body", ['has no column "body"', "id, text, tags"]),
                ("rows.parquet", "id", 'column "id" is of type INT64, must be one of strings'),
                ("rows.parquet", "tags.list.element", "is a list of BYTE_ARRAY"),
                ("cut.parquet", "text", "cut.parquet: the Parquet data cannot be read: their end is missing"),
                ("wrong.parquet", "text", "wrong.parquet: the Parquet data cannot be read")]:
            with self.subTest(name=name, field=field):
                self.refuse(DATA, messages, "data", "pack", name, "--field", field, "--out", "bad", "--tokenizer",
                            "bytes")
                self.assertEqual(list(self.folder.glob("bad*")), [])

    def test_rows_that_the_footer_loses(self):
        """Each number of rows and of values in the footer, changed: the file is refused, or gives every row."""
        self.needs_arrow()
        content = self.path("rows.parquet").read_bytes()
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        refused = 0
        for number, others in ((b"\xf8\x0a", (b"\x80\x00", b"\xf6\x0a", b"\x81\x00")), (b"\xb8\x17", (b"\xf8\x0a", b"\xb6\x17"))):
            at = content.find(number, footer)
            self.assertGreater(at, 0)
            while at >= 0:
                for other in others:
                    self.path("damaged.parquet").write_bytes(content[:at] + other + content[at + 2:])
                    result = self.run_gptrain("data", "pack", "damaged.parquet", "--out", "out", "--tokenizer", "bytes",
                                              "--on-bad-line", "skip")
                    if result.code == DATA:
                        self.assertIn("damaged.parquet: the Parquet data cannot be read", result.err)
                        refused += 1
                    else:
                        self.assertEqual(result.code, 0, result.err)
                        self.assertIn("1,500 documents", result.out)
                at = content.find(number, at + 1)
        self.assertGreater(refused, 6)

    def test_a_page_that_says_it_is_large(self):
        """large_page.parquet has a page header that says 2^31 - 1 bytes."""
        self.needs_arrow()
        shutil.copy(SOURCE_ROOT / "tests/cli/large_page.parquet", self.path("large_page.parquet"))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.refuse(DATA, "more than its column", "data", "pack", "large_page.parquet", "--out", "out", "--tokenizer", "bytes")
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, max(before + 1, 512 << 10))

    def test_checksums_of_pages(self):
        """checksums.parquet has 40 rows and a checksum of their page: a change of any bit of the page is refused."""
        self.needs_arrow()
        content = (SOURCE_ROOT / "tests/cli/checksums.parquet").read_bytes()
        shutil.copy(SOURCE_ROOT / "tests/cli/checksums.parquet", self.path("sound.parquet"))
        self.assertEqual(self.pack("sound.parquet"), [f"document {i} of the corpus".encode() for i in range(40)])
        first, last = content.index(b"document 0"), content.index(b"document 39")
        for at in (first, first + 9, (first + last) // 2, last + 10):
            damaged = bytearray(content)
            damaged[at] ^= 1
            self.path("damaged.parquet").write_bytes(damaged)
            self.refuse(DATA, "damaged.parquet: the Parquet data cannot be read", "data", "pack", "damaged.parquet", "--out", "out",
                        "--tokenizer", "bytes", "--on-bad-line", "skip")
