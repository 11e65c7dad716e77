"""Formats of the inputs of `data pack`: the format is told from name and whole content, never guessed past a fault; JSON is
read as Python's json module reads it; compressed data end and go on as their own programs take them."""
import bz2
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import tarfile
import unittest
import zipfile
import zlib

from cli_case import DATA, EXECUTABLE, FINISHED, USAGE, CliCase, first_in_fast_suite, is_sanitized
from data_commands_cases import tokens_of

DOCUMENTS = [f"document {i}: naïve \"café\"\t日本" for i in range(6)]
LINES = [json.dumps({"id": i, "text": text}).encode() for i, text in enumerate(DOCUMENTS)]
JSONL = b"".join(line + b"\n" for line in LINES)
# A first record from which there is no text.
BAD_RECORDS = [b'{"text": null}', b'{"text": 3}', b'{"body": "x"}', b'["text"]', b'{"text": nul', b'{"text": "cut', b"{",
               b"not JSON", b'"text"', b"\xc3\xfe", b'{"text": "a"} "b"', b"null", b'{"data": [{"text": "a"}, {"text": "b"}]}']
COMPRESSIONS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


class FormatCase(CliCase):
    def write(self, name, content):
        self.path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    def run_pack(self, *inputs, stdin=b"", more=()):
        for path in self.folder.glob("packed*"):
            path.unlink()
        done = subprocess.run([EXECUTABLE, "data", "pack", *inputs, "--out", "packed", "--tokenizer", "bytes", *more],
                              cwd=self.folder, input=stdin, capture_output=True, timeout=100, check=False)
        return done.returncode, done.stderr.decode(errors="replace")

    def documents(self):
        tokens, documents = tokens_of(self.path("packed")), [[]]
        for token in tokens:
            if token == 256:
                documents.append([])
            else:
                documents[-1].append(token)
        self.assertEqual(documents.pop(), [])
        return [bytes(document).decode(errors="replace") for document in documents]

    def pack(self, *inputs, stdin=b"", more=()):
        code, error = self.run_pack(*inputs, stdin=stdin, more=more)
        self.assertEqual(code, FINISHED, f"{inputs}: {error}")
        return error

    def refuse_all(self, name, message, *more, stdin=b""):
        """Refused with and without --on-bad-line skip."""
        for options in ([], ["--on-bad-line", "skip"]):
            code, error = self.run_pack(name, stdin=stdin, more=[*more, *options])
            self.assertEqual(code, DATA, f"{name} {options}: {error}")
            self.assertIn(message, error)
            self.assertEqual(list(self.folder.glob("packed*")), [])


class Recognition(FormatCase):
    def test_a_bad_first_record_does_not_decide(self):
        """Bad records of every kind, under names that tell the format, half of it, or nothing."""
        draw = random.Random(1)
        for record in BAD_RECORDS:
            suffix, compress = draw.choice(sorted(COMPRESSIONS.items()))
            names = ("a.jsonl" + suffix, "a.json" + suffix, "a" + suffix, "-")
            for name in first_in_fast_suite(1, draw.sample(names, len(names))):
                with self.subTest(record=record, name=name):
                    content = compress(record + b"\n" + JSONL)
                    if name != "-":
                        self.write(name, content)
                    code, error = self.run_pack(name, stdin=content if name == "-" else b"")
                    self.assertEqual(code, DATA, error)
                    self.assertIn(", line 1", error)
                    error = self.pack(name, stdin=content if name == "-" else b"", more=["--on-bad-line", "skip"])
                    self.assertEqual(self.documents(), DOCUMENTS)
                    self.assertIn("left out: 1 document that could not be read", error)
                    self.assertIn("as JSONL", error)

    def test_other_formats_are_named(self):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("a.jsonl", JSONL)
        tape = io.BytesIO()
        with tarfile.open(fileobj=tape, mode="w") as file:
            entry = tarfile.TarInfo("a.jsonl")
            entry.size = len(JSONL)
            file.addfile(entry, io.BytesIO(JSONL))
        old_tape = bytearray(tape.getvalue())  # the form of 1979, without "ustar" after the name of the link
        old_tape[257:265] = bytes(8)
        old_tape[148:156] = b"%06o\0 " % (sum(old_tape[:148]) + 8 * ord(" ") + sum(old_tape[156:512]))
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
        text = "Grüße, Welt!\n" * 20
        for name, content, message in [
                ("a.zip", archive.getvalue(), "a zip archive"), ("b", archive.getvalue(), "a zip archive"),
                ("a.tar", tape.getvalue(), "a tar archive"), ("a.tar.gz", gzip.compress(tape.getvalue()), "a tar archive"),
                ("r", bytes(old_tape), "a tar archive"), ("s.txt", bytes(old_tape), "a tar archive"),
                ("t.snappy", b"\x05\x10abcde", "snappy data by its name"), ("u", b"\x05\x10abcde", "the control character 0x05"),
                ("a.parquet", pointer, "a Git LFS pointer"), ("c.jsonl.gz", pointer, "a Git LFS pointer"),
                ("d", pointer, "a Git LFS pointer"), ("e.parquet", b"<html>", "no Parquet file, although its name says so"),
                ("empty.parquet", b"", "no Parquet file"),
                ("q.parquet", b"PARE" + bytes(50) + b"PARE", "an encrypted Parquet file"), ("a.feather", b"ARROW1\0\0" + bytes(50), "an Arrow file"),
                ("f.arrow", b"\xff\xff\xff\xff" + bytes(50), "an Arrow stream"), ("a.orc", b"ORC\n\1", "an ORC file"),
                ("a.txt", text.encode("utf-16"), "text in UTF-16"), ("b.txt", text.encode("utf-16-be"), "text in UTF-16"),
                ("c.txt", text.encode("utf-32"), "text in UTF-32"), ("b.jsonl", JSONL.decode().encode("utf-16"), "UTF-16"),
                ("a.lz4", b"\x04\x22\x4d\x18" + bytes(20), "lz4 data"), ("g.txt", b"a\0b", "a zero byte"),
                ("h", b"caf\xe9", "not UTF-8: byte 0xe9"), ("i.gz", gzip.compress(gzip.compress(JSONL)), "compressed twice"),
                ("j.jsonl.gz", JSONL, "is named as gzip data"), ("k.bz2", b"", "nothing to pack"),
                ("p.parquet", gzip.compress(JSONL), "p.parquet is gzip data, although its name says Parquet"),
                ("l.jsonl", json.dumps(json.loads(LINES[0]), indent=1), "values go over several lines"),
                ("m.json", "\n".join(json.dumps(json.loads(line), indent=1) for line in LINES), "over several lines"),
                ("n.json", b"[" + b",".join(LINES)[:-30], "closing quote"), ("o.pdf", b"%PDF-1.4", "a PDF file")]:
            with self.subTest(name=name):
                self.refuse_all(self.write(name, content), message)

    def test_a_record_that_looks_wide_makes_no_wide_text(self):
        """A damaged first record decides neither with a mark of UTF-16 nor with zeros; texts in UTF-16 have them everywhere."""
        for record in (b"\xff\xfe", b"\xfe\xff{}", b"\xff\xfe\0\0", b"\xff\xfe\0", "{'a': 1}".encode("utf-16"), b"\xff\xfe\xff"):
            with self.subTest(record=record):
                self.write("a.jsonl", record + b"\n" + JSONL)
                code, error = self.run_pack("a.jsonl")
                self.assertEqual(code, DATA, error)
                self.assertIn(", line 1", error)
                self.assertIn("left out: 1 document", self.pack("a.jsonl", more=["--on-bad-line", "skip"]))
                self.assertEqual(self.documents(), DOCUMENTS)
        for text in (JSONL.decode(), "\u4e0a\u3002\u4e0a\uff0c\u5317" * 99, "\u4e0a\n" * 99, "\u010a\u0141" * 99):
            for encoding in ("utf-16", "utf-16-be"):
                self.refuse_all(self.write("b.txt", ("\ufeff" * (encoding == "utf-16-be") + text).encode(encoding)), "text in UTF-16")

    def test_four_letters_make_no_binary_file(self):
        """Texts that begin with the letters of Parquet, or hold those of tar in their place."""
        for name, text in [("a.txt", "PARENTS should read.\n"), ("b.txt", "x" * 257 + "ustar seeds" + "y" * 300), ("c.txt", "PAR1 of it\n")]:
            for more in ([], ["--format", "text"]):
                self.pack(self.write(name, text), more=more)
                self.assertEqual(self.documents(), [text])

    def test_a_field_that_was_given_must_be_there(self):
        self.write("prose", "Once upon a time.\n")
        self.write("prose.txt", "Once upon a time.\n")
        self.refuse_all("prose", "neither JSONL, JSON, CSV nor Parquet", "--field", "body")
        self.refuse_all("-", "neither JSONL, JSON, CSV nor Parquet", "--field", "text", stdin=b"Once\nupon")
        self.assertIn("read: prose as one text", self.pack("prose"))
        self.assertIn("read: prose.txt as one text", self.pack("prose.txt", more=["--field", "body"]))
        self.write("bytes", bytes(range(256)))
        self.refuse_all("bytes", "a zero byte")
        self.pack("bytes", more=["--format", "text"])
        self.assertEqual(tokens_of(self.path("packed")), list(range(257)))

    def test_the_name_of_a_text_decides(self):
        """Prose that begins like JSON is a text; records in such a file are refused until --format names their format."""
        for name, prose in [("brace.txt", "{not JSON}\n"), ("a.md", "{% raw %}\n{}\n# A\n"), ("b.tex", "{\\bf x}\n{\\it y}\n"),
                            ("c.rst", "[1] A note.\n"), ("d.txt", 'Text, or:\n{"text": "x"}\nand so on.\n'), ("e.txt", "id, text\n")]:
            self.assertIn(f"read: {name} as one text", self.pack(self.write(name, prose), more=["--on-bad-line", "skip"]))
            self.assertEqual(self.documents(), [prose])
        for name, records, kind in [("f.txt", JSONL, "jsonl"), ("g.md", b"{\n" + JSONL, "jsonl"), ("h.text.gz", gzip.compress(JSONL), "jsonl"),
                                    ("i.txt", b"[" + b",\n".join(LINES) + b"]", "json"), ("j.txt", b"id\ttext\n1\tx\n", None)]:
            self.refuse_all(self.write(name, records), f"{name} is a text by its name and ")
            self.pack(name, more=["--format", "text"])
            self.assertEqual(len(self.documents()), 1)
            if kind is not None:
                self.pack(name, more=["--format", kind, "--on-bad-line", "skip"])
                self.assertEqual(self.documents(), DOCUMENTS)

    def test_tables(self):
        expected = ["one, two", "three"]
        self.write("a.tsv", "id\ttext\n1\tone, two\n2\tthree\n")
        self.write("b", "id\ttext\n1\tone, two\n2\tthree\n")
        self.refuse_all(self.write("twice.csv", "text,id,text\na,1,b\n"), 'line 1: two columns of the header are named "text"')
        self.write("c.csv", "\ufeffid,text\n1,\"one, two\"\n2,three\n")
        for name, format_name in [("a.tsv", "TSV"), ("b", "TSV"), ("c.csv", "CSV")]:
            self.assertIn(f"read: {name} as {format_name}", self.pack(name))
            self.assertEqual(self.documents(), expected)
        for name, delimiter, format_name in [("d.tsv", "\t", "TSV"), ("d.csv", ";", "CSV with ;"), ("e.csv", ",", "CSV")]:
            self.write(name, f"id{delimiter}text\n1{delimiter}one\n2\n")
            code, error = self.run_pack(name)
            self.assertEqual(code, DATA, error)
            self.assertIn(f"{name}, line 3: 1 field where the header has 2 (read as {format_name}: if that is wrong", error)

    def test_a_field_for_some_inputs(self):
        self.write("a.jsonl", '{"text": "of JSON"}\n')
        self.write("b.csv", "id,body\n1,of CSV\n")
        self.write("c.json", '[{"content": "of a list"}]')
        error = self.pack("a.jsonl", "b.csv", "c.json", more=["--field", "*.csv=body", "--field", "c.*=content"])
        self.assertEqual(self.documents(), ["of JSON", "of CSV", "of a list"])
        for line in ("read: a.jsonl as JSONL", "read: b.csv as CSV", "read: c.json as JSON"):
            self.assertIn(line, error)
        for words in (["*.tsv=body"], ["*.csv=body", "b*=body"]):
            self.refuse(USAGE, f"--field {words[-1]} applies to no input", "data", "pack", "a.jsonl", "b.csv", "--out", "x",
                        "--tokenizer", "bytes", *[argument for word in words for argument in ("--field", word)])
        self.write("d.jsonl", '{"other": "x"}\n')
        self.pack("d.jsonl", "b.csv", more=["--field", "*.csv=body", "--field", "other"])
        self.assertEqual(self.documents(), ["x", "of CSV"])
        for word in ("=x", "a=", ""):
            self.refuse(USAGE, "must be NAME or PATTERN=NAME", "data", "pack", "a.jsonl", "--field", word, "--out", "x",
                        "--tokenizer", "bytes")
        self.refuse(USAGE, "a second --field", "data", "pack", "a.jsonl", "--field", "a", "--field", "b", "--out", "x",
                    "--tokenizer", "bytes")

    def test_empty_documents_are_counted(self):
        self.write("a.jsonl", '{"text": "x"}\n{"text": ""}\n{"text": 3}\n{"text": ""}\n')
        error = self.pack("a.jsonl", more=["--on-bad-line", "skip"])
        self.assertIn("left out: 2 empty documents", error)
        self.assertIn("left out: 1 document that could not be read", error)

    def test_inputs_without_a_document_are_counted(self):
        for name, content in [("a.jsonl", b""), ("b.jsonl", b"\n \n"), ("c.csv", b"id,text\n"), ("d.json", b"[]"),
                              ("e.jsonl.gz", gzip.compress(b"")), ("f.jsonl", JSONL), ("g.jsonl", b'{"text": ""}\n'), ("h.jsonl", b"")]:
            self.write(name, content)
        error = self.pack("a.jsonl", "b.jsonl", "c.csv", "d.json", "e.jsonl.gz", "f.jsonl", "g.jsonl", "h.jsonl")
        self.assertIn("left out: 6 inputs without a document", error)
        for name in ("a.jsonl", "b.jsonl", "c.csv", "d.json", "e.jsonl.gz", "h.jsonl"):
            self.assertIn(f"left out: {name}: no document is in it", error)
        result = self.run_gptrain("data", "train-tokenizer", "f.jsonl", "h.jsonl", "--vocab-size", "257", "--out", "t.json")
        self.assertIn("left out: 1 input without a text", result.err)
        self.assertIn("0 merges", result.out)


class SpecialTokens(FormatCase):
    def test_special_tokens_in_texts(self):
        """Texts with any number of special tokens anywhere: their ids, their count, and the documents left out."""
        draw = random.Random(5)
        self.write("plain.txt", "the quick brown fox " * 20)
        self.succeed("data", "train-tokenizer", "plain.txt", "--vocab-size", "280", "--out", "t.json", "--special", "<|endoftext|>",
                     "--special", "<|pad|>")
        def text():
            return "".join(draw.choice(["the ", "fox", "<|", "|>", "<|endoftext|>", "<|pad|>", "quick\n"])
                           for _ in range(draw.randrange(1, 8)))
        texts = [text() for _ in range(200)]
        found = sum(one.count("<|endoftext|>") + one.count("<|pad|>") for one in texts)
        plain = [one for one in texts if "<|endoftext|>" not in one and "<|pad|>" not in one]
        self.assertTrue(found > 100 and plain)
        self.write("a.jsonl", "".join(json.dumps({"text": one}) + "\n" for one in texts))
        ids = {}
        for choice, line in [("tokens", f"special tokens in texts: {found}, taken as tokens"),
                             ("text", f"special tokens in texts: {found}, taken as text"),
                             ("refuse", f"left out: {len(texts) - len(plain)} documents that could not be read")]:
            result = self.run_gptrain("data", "pack", "a.jsonl", "--out", choice, "--tokenizer", "t.json", "--on-bad-line", "skip",
                                      "--special-in-text", choice)
            self.assertEqual(result.code, FINISHED, result.err)
            self.assertIn(line, result.err)
            ids[choice] = tokens_of(self.path(choice))
        self.assertEqual(sum(token < 2 for token in ids["tokens"]), found)
        self.assertFalse(any(token < 2 for token in ids["text"] + ids["refuse"]))
        decoded = self.succeed("data", "tokenize", "--tokenizer", "t.json", "--decode", " ".join(map(str, ids["text"])))
        self.assertEqual(decoded, "".join(texts))
        self.assertEqual(self.succeed("data", "tokenize", "--tokenizer", "t.json", "--decode", " ".join(map(str, ids["refuse"]))),
                         "".join(plain))
        result = self.run_gptrain("data", "pack", "a.jsonl", "--out", "x", "--tokenizer", "t.json", "--special-in-text", "refuse")
        self.assertEqual(result.code, DATA)
        self.assertRegex(result.err, r"a.jsonl, line \d+: its text holds the special token <\|")


class PythonJson(FormatCase):
    def value(self, draw, depth):
        kind = draw.randrange(10 if depth < 4 else 8)
        if kind < 3:
            return draw.choice([0, -1, 10**30, -10**29, 1e300, 1e-300, 0.1, float("nan"), float("inf"), float("-inf"), 2**64,
                                draw.random(), 1.5e22])
        if kind < 6:
            return self.text(draw)
        if kind < 8:
            return draw.choice([None, True, False, "", [], {}])
        if kind < 9:
            return [self.value(draw, depth + 1) for _ in range(draw.randrange(4))]
        return {self.text(draw): self.value(draw, depth + 1) for _ in range(draw.randrange(4))}

    @staticmethod
    def text(draw):
        return "".join(draw.choice(["a", " ", '"', "\\", "\n", "\t", "\0", "\x7f", "é", "日", "\U0001f600", "\u2028", "/",
                                    "text", "\b", "\ufeff", "0"]) for _ in range(draw.randrange(1, 12)))

    def test_what_python_writes_is_read(self):
        draw = random.Random(2)
        lines, expected = [], []
        for _ in range(1000):
            members = [(self.text(draw) + "'", self.value(draw, 0)) for _ in range(draw.randrange(4))]
            texts = [self.text(draw) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
            members += [("text", text) for text in texts]
            draw.shuffle(members)
            ascii_only = draw.random() < 0.5
            pairs = [f"{json.dumps(key, ensure_ascii=ascii_only)}: {json.dumps(value, ensure_ascii=ascii_only)}"
                     for key, value in members]
            lines.append("{" + ", ".join(pairs) + "}")
            expected.append(json.loads(lines[-1])["text"])
        # A byte order mark begins the file, and another one the file that was joined to it.
        self.write("a.jsonl", "\ufeff" + "\n".join(lines[:500]) + "\n\ufeff" + "\n".join(lines[500:]))
        self.pack("a.jsonl")
        self.assertEqual(self.documents(), expected)
        self.write("a.json", "\ufeff[" + ",\n".join(lines) + "]")
        self.pack("a.json")
        self.assertEqual(self.documents(), expected)

    def test_half_of_a_character(self):
        for text in ('"x\\ud800y"', '"\\udc00\\ud800"', '"\\ud83d\\ude00 \\ud83d"', '"\\ud800\\u0041"'):
            self.write("a.jsonl", '{"id": "\\ud800", "text": ' + text + "}\n")
            self.refuse(DATA, ["line 1", "half of a character (--replace-invalid"], "data", "pack", "a.jsonl", "--out", "x",
                        "--tokenizer", "bytes")
            self.pack("a.jsonl", more=["--replace-invalid"])
            expected = json.loads(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            self.assertEqual(self.documents(), [expected])
        self.write("b.jsonl", '{"id": "\\ud800", "text": "whole"}\n')
        self.pack("b.jsonl")
        self.assertEqual(self.documents(), ["whole"])

    def test_faults_are_told_in_plain_words(self):
        """The line and the column of a change that makes JSON invalid, whatever it is."""
        for text, message in [
                ('{"text": "a" "b": 1}', "column 14: a comma or } must follow a value; the text there: {\"text\": \"a\" \"b\": 1}"),
                ('{"text": "é", x}', "column 15: a member must begin with its name in double quotes"),
                ("{'text': 'a'}", "column 2: a member must begin with its name"), ('{"text" "a"}', "column 9: a colon must follow"),
                ('{"text": "a",}', "column 14: nothing follows the comma"), ('{"text": \'a\'}', "strings must be in double quotes"),
                ('{"text": "a\tb"}', "a string holds a control character"), ('{"text": "\\x"}', "no such escape"),
                ('{"text": "a"', "column 13: the text ends before } closes"), ('{"text": 01}', "a number begins with 0"),
                ('{"text": "a"} x', "column 15: there is text after the end of the JSON value"), ('{"text": tru}', "no value begins like this"),
                ('{"text": "\\u12"}', "four hexadecimal digits must follow"), ('{"text": 1.}', "a digit is missing"),
                ('{"text": ' + "[" * 1001, "nested deeper than 1000 levels"), ('{"text": "abc', "has no closing quote")]:
            with self.subTest(text=text):
                self.write("a.jsonl", '{"text": "fine"}\n\n' + text + "\n")
                self.refuse(DATA, ["a.jsonl, line 3: not valid JSON: column ", message], "data", "pack", "a.jsonl", "--out", "x",
                            "--tokenizer", "bytes")
        self.write("a.json", "[" + LINES[0].decode() + ",\n{\"text\": 'b'}]")
        self.refuse(DATA, "a.json, line 2: not valid JSON: column 10: strings must be in double quotes", "data", "pack", "a.json",
                    "--out", "x", "--tokenizer", "bytes")

    def test_damage_is_as_python_sees_it(self):
        """Mutants of lines: those that Python reads give the same text, those that it refuses are counted."""
        draw = random.Random(3)
        lines, expected = [], []
        for _ in range(1500):
            line = json.dumps({"n": self.value(draw, 2), "text": self.text(draw)}).encode()
            at = draw.randrange(len(line))
            mutant = line[:at] + draw.choice([b"", b'"', b"\\", b"{", b",", b"1", b"-", b"\t", b"\xff", b"e"]) + line[at + 1:]
            lines.append(mutant)
            try:
                text = json.loads(mutant)["text"]
                text.encode()
                expected.append(text)
            except (ValueError, KeyError, TypeError, AttributeError):
                pass
        expected = [text for text in expected if isinstance(text, str) and text]
        self.write("a.jsonl", b"\n".join(lines) + b"\n" + JSONL)
        error = self.pack("a.jsonl", more=["--on-bad-line", "skip"])
        self.assertEqual(self.documents(), expected + DOCUMENTS)
        self.assertIn(f"left out: {len(lines) - len(expected):,} documents that could not be read", error)


class Compression(FormatCase):
    def test_members_and_what_lies_between(self):
        draw = random.Random(4)
        for suffix, compress in COMPRESSIONS.items():
            if not suffix:
                continue
            for _ in range(4):
                ends = sorted(draw.sample(range(1, len(JSONL)), 3))
                members = [JSONL[a:b] for a, b in zip([0, *ends], [*ends, len(JSONL)])]
                padding = [bytes(4 * draw.choice([0, 1, 128, 70_000])) for _ in members]
                self.write("a.jsonl" + suffix, b"".join(compress(member) + zeros for member, zeros in zip(members, padding)))
                self.pack("a.jsonl" + suffix)
                self.assertEqual(self.documents(), DOCUMENTS)
            self.refuse_all(self.write("b.jsonl" + suffix, compress(JSONL) + b"rest of another file"), "cannot be read")
            self.refuse_all(self.write("c.jsonl" + suffix, compress(JSONL) + compress(JSONL)[:-9]), "cannot be read")

    @staticmethod
    def raw_zstd(content, window=None):
        """A frame of one raw block; `window` is the byte that says how much memory it takes."""
        header = b"\x28\xb5\x2f\xfd" + (bytes([0, window]) if window is not None else bytes([0x20, min(len(content), 255)]))
        return header + (1 | len(content) << 3).to_bytes(3, "little") + content

    def test_frames_of_zstd(self):
        skipped = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
        half = len(LINES[0]) + 1
        content = skipped + self.raw_zstd(JSONL[:half]) + skipped + self.raw_zstd(JSONL[half:], window=0x20) + skipped
        self.pack(self.write("a.jsonl.zst", content))
        self.assertEqual(self.documents(), DOCUMENTS)
        # A window of 256 MiB, which a file of zstd --long=28 asks for, is told; also where it cannot be had.
        error = self.pack(self.write("b.jsonl.zst", self.raw_zstd(JSONL, window=18 << 3)))
        self.assertEqual(self.documents(), DOCUMENTS)
        self.assertEqual(error.count("note: b.jsonl.zst: its zstd window takes 256 MiB of memory\n"), 1)
        if not is_sanitized():
            self.write("b.jsonl.zst", self.raw_zstd(JSONL, window=20 << 3))
            limited = subprocess.run(["bash", "-c", 'ulimit -v 1000000 && exec "$@"', "limited", EXECUTABLE, "data", "pack", "b.jsonl.zst",
                                      "--out", "x", "--tokenizer", "bytes", "--threads", "1"], cwd=self.folder, capture_output=True,
                                     timeout=100, check=False)
            self.assertEqual(limited.returncode, DATA)
            self.assertIn(b"b.jsonl.zst: 1.0 GiB of memory for its zstd window cannot be allocated: free memory, or", limited.stderr)
        # One of 3.75 TiB is no machine's, also where its header lies in two reads of the file.
        far = (1 << 18) - 8 - 4
        content = b"\x5a\x2a\x4d\x18" + far.to_bytes(4, "little") + bytes(far) + self.raw_zstd(JSONL, window=0xff)
        self.refuse_all(self.write("d.jsonl.zst", content), "its zstd window takes 3.8 TiB of memory")
        self.refuse_all(self.write("c.jsonl.zst", self.raw_zstd(JSONL, window=0xff)), "its zstd window takes 3.8 TiB of memory")
        error = self.run_pack(self.write("e.jsonl.zst", b"\x28\xb5\x2f\xfd\x21\x07\x03\x19\0\0{}\n"))[1]
        self.assertIn("e.jsonl.zst: the compressed data cannot be read: they need the dictionary of zstd -D", error)

    @unittest.skipIf(is_sanitized(), "a sanitizer takes more memory than the limit")
    def test_memory_of_xz(self):
        """A dictionary of 4 GiB where there is less: memory is missing, and nothing is damaged."""
        content = bytearray(lzma.compress(JSONL))
        size = 4 * (content[12] + 1)
        content[content.index(b"\x21\x01", 12) + 2] = 40
        content[12 + size - 4:12 + size] = zlib.crc32(content[12:12 + size - 4]).to_bytes(4, "little")
        self.write("a.jsonl.xz", bytes(content))
        done = subprocess.run(["bash", "-c", 'ulimit -v 1000000 && exec "$@"', "limited", EXECUTABLE, "data", "pack", "a.jsonl.xz",
                               "--out", "x", "--tokenizer", "bytes", "--threads", "1"], cwd=self.folder, capture_output=True,
                              timeout=100, check=False)
        self.assertEqual(done.returncode, DATA)
        self.assertIn(b"a.jsonl.xz: this process cannot get the memory that its header asks for, 4.0 GiB", done.stderr)


class Folders(FormatCase):
    def test_an_output_is_no_input(self):
        self.write("a.txt", "the quick fox")
        self.refuse(DATA, "a.txt is an input and would be overwritten", "data", "train-tokenizer", "a.txt", "--vocab-size", "257",
                    "--out", "a.txt")
        self.assertEqual(self.path("a.txt").read_text(), "the quick fox")

    def test_entries_that_are_no_files(self):
        self.path("in").mkdir()
        self.path("other").mkdir()
        self.write("b.txt", "linked")
        self.write("in/a.txt", "own")
        self.path("in/b.txt").symlink_to("../b.txt")
        self.path("in/c").symlink_to("../other")
        os.mkfifo(self.path("in/d"))
        error = self.pack("in")
        self.assertEqual(self.documents(), ["own", "linked"])
        self.assertIn("left out: below in, 2 of links to folders, pipes and devices; the first is in/c\n", error)
        self.path("in/e.txt").symlink_to("missing")
        self.refuse_all("in", "cannot read in/e.txt: the link leads to no file that can be read")

    def test_tokens_that_lost_their_index(self):
        self.pack(self.write("a.txt", "some text"))
        self.path("packed.idx").unlink()
        for command in ("verify", "inspect"):
            self.refuse(DATA, "packed.bin: its index packed.idx is missing", "data", command, "packed.bin")


if __name__ == "__main__":
    unittest.main()
