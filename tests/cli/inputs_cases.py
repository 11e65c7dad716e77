"""Inputs of `data pack` that are no texts, or begin or end in an odd way: token files, archives, marks, quotes, joined streams."""
import bz2
import gzip
import json
import lzma
import os
import random
import struct
import subprocess
import unittest
import zipfile

from cli_case import CHECKPOINT, DATA, EXECUTABLE, FINISHED, USAGE, is_sanitized, tiny_config, write_tokens
from formats_cases import FormatCase

AGAIN = "it is not packed again: name it in data.train, or join token files with `gptrain data join`"


class Tokens(FormatCase):
    def test_files_of_tokens_are_named(self):
        """Token files of each writer, of wide and narrow vocabularies, short and long: none is taken for UTF-16."""
        draw = random.Random(1)
        for size, largest in ((40, 50_000), (5000, 50_000), (5000, 257), (3000, 128_000)):
            ids = [draw.randrange(largest) for _ in range(size)]
            width = "H" if largest <= 1 << 16 else "I"
            bare = struct.pack(f"<{size}{width}", *ids)
            magic = (20240520, 1) if width == "H" else (20240801, 7)
            write_tokens(self.path("ours"), ids, {"H": "H", "I": "i"}[width])
            self.succeed("data", "convert", "ours", "flat.npy")
            array = self.path("flat.npy").read_bytes()
            for name, content, message in [
                    ("ours.bin", None, "a token file with an index: it is not packed again: name its PREFIX, ours, in data.train"),
                    ("ours.idx", None, "the index of a token file"), ("bare.bin", bare, "a token file by its name"),
                    ("bare.bin.gz", gzip.compress(bare), "a token file by its name"),
                    ("set_000001.bin", struct.pack("<3i", *magic, size) + bytes(1012) + bare, "a token file of llm.c: " + AGAIN),
                    ("set", struct.pack("<3i", *magic, size) + bytes(1012) + bare, "a token file of llm.c"),
                    ("bare.npy", bare, "a numpy file by its name: " + AGAIN), ("array.npy", array, "a numpy file: " + AGAIN),
                    ("array.bin", array, "a numpy file: " + AGAIN)]:
                with self.subTest(name=name, size=size, largest=largest):
                    if content is not None:
                        self.write(name, content)
                    self.refuse_all(name, f"{name} is {message}")
            self.refuse_all("ours", "cannot read ours: it is the PREFIX of a token file: " + AGAIN)
        # Without a name, ids below 256 and letters in UTF-16 are the same bytes.
        self.refuse_all(self.write("ids", "Once upon a time.".encode("utf-16-le")), "text in UTF-16LE, or a token file: convert a text to UTF-8")
        self.refuse_all(self.write("wide", "Once upon a time.".encode("utf-16-be")), "text in UTF-16BE: convert it to UTF-8 with: iconv -f UTF-16BE")
        self.refuse_all(self.write("marked.bin", "Once upon a time.".encode("utf-16")), "text in UTF-16: ")
        self.assertIn("as one text", self.pack(self.write("prose.bin", "Once upon a time.\n")))

    def test_archives_of_programs_are_named(self):
        for names, kind in [(["[Content_Types].xml", "word/document.xml"], "a Word file"), (["_rels/.rels"], "a zip archive"),
                            (["[Content_Types].xml", "xl/workbook.xml"], "an Excel file"), (["arr_0.npy"], "a numpy archive"),
                            (["archive/data.pkl"], "a PyTorch file"), (["a.txt"], "a zip archive")]:
            with zipfile.ZipFile(self.path("a"), "w") as archive:
                for name in names:
                    archive.writestr(name, "x" * 50)
            self.refuse_all("a", f"a is {kind}: ")
        for suffix, kind in ((".docx", "a Word file"), (".XLSX", "an Excel file"), (".npz", "a numpy archive"), (".epub", "an EPUB book")):
            self.path("a").rename(self.path("a" + suffix))
            self.refuse_all("a" + suffix, f"a{suffix} is {kind}: ")
            self.path("a" + suffix).rename(self.path("a"))
        self.refuse_all(self.write("b.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)), "of the old form")
        self.refuse_all(self.write("c.bin", b"\x80\x04\x95" + bytes(60)), "a pickle")


class Ends(FormatCase):
    def test_a_byte_order_mark(self):
        """Dropped at the start of an input, also where that has a second block or is compressed; kept elsewhere."""
        for text in ("Once", "", "a\ufeffb\n\ufeffc", "\ufeffd", "word " * 300_000):
            for name, content in [("a.txt", text.encode("utf-8-sig")), ("b", text.encode("utf-8-sig")),
                                  ("c.txt.gz", gzip.compress(text.encode("utf-8-sig"), 1))]:
                code, error = self.run_pack(self.write(name, content))
                if not text:
                    self.assertEqual(code, DATA)
                    self.assertIn("nothing to pack", error)
                    continue
                self.assertEqual(code, FINISHED, error)
                self.assertTrue(self.documents() == [text], f"{name}: {text[:20]!r}")
        self.pack("a.txt", more=["--format", "text"])
        self.assertTrue(self.documents() == [text])
        self.write("d.txt", "\ufeffone two")
        self.write("e.txt", "one two")
        for name in ("d", "e"):
            self.succeed("data", "train-tokenizer", name + ".txt", "--vocab-size", "262", "--out", name + ".json")
        self.assertEqual(self.path("d.json").read_bytes(), self.path("e.json").read_bytes())

    def test_other_data_behind_a_stream(self):
        text = b'{"text": "abc"}\n'
        kinds = {"gzip": gzip.compress(text), "xz": lzma.compress(text), "bzip2": bz2.compress(text),
                 "zstd": b"\x28\xb5\x2f\xfd\x20\x10" + (1 | len(text) << 3).to_bytes(3, "little") + text}
        draw = random.Random(2)
        for kind, stream in kinds.items():
            for other, content in [*kinds.items(), ("other", text), ("other", b"\x1f"), ("other", os.urandom(3) + b"z" * 40)]:
                zeros = bytes(draw.choice([0, 4]))
                self.write("a.jsonl", stream + stream + zeros + content)
                if other == kind:
                    self.pack("a.jsonl")
                    self.assertEqual(self.documents(), ["abc"] * 3)
                    continue
                at = 2 * len(stream) + len(zeros)
                self.refuse_all("a.jsonl", f"a.jsonl: the compressed data cannot be read beyond byte {at}, where {kind} data end and "
                                           f"{other} data begin: make a file of each part (head -c {at}, tail -c +{at + 1})")

    def test_quotes_of_tables(self):
        """Quotes mean the same between tabs as between commas: as Python's csv module reads them."""
        for suffix, sign in (("tsv", "\t"), ("csv", ","), ("psv", "|")):
            rows = [('"a ""b"" c"', 'a "b" c'), ('say "hi" you', 'say "hi" you'), ('5" nail', '5" nail'),
                    (f'"x{sign}y\nz"', f"x{sign}y\nz"), ('""""', '"'), ('"a" b', "a b")]
            self.write(f"a.{suffix}", f"id{sign}text\n" + "".join(f"{i}{sign}{cell}\n" for i, (cell, _) in enumerate(rows)))
            self.pack(f"a.{suffix}")
            self.assertEqual(self.documents(), [text for _, text in rows])
            self.refuse_all(self.write(f"b.{suffix}", f'id{sign}text\n1{sign}x\n2{sign}"y\n3{sign}z\n'),
                            f"b.{suffix}, line 3: the double quote that opens a field here is not closed")

    def test_columns_that_a_table_has(self):
        self.refuse_all(self.write("a.csv", "id,body,,long name\n1,x,y,z\n"), 'no column "text" (name another with --field); its columns are '
                                                                           'id, body, "", long name')
        self.refuse_all(self.write("b.tsv", "\t".join(f"c{i}" for i in range(50)) + "\n"), "c18, c19 and 30 more")
        for content in ("", "\n\nid,text\n1,x\n"):
            self.refuse_all(self.write("c.csv", content), "its columns are none: the line is empty")

    def test_a_pipe(self):
        os.mkfifo(self.path("pipe"))
        self.refuse(DATA, "cannot read pipe: it is a pipe: redirect it to the standard input (<pipe), and name - as the input", "data", "pack",
                    "pipe", "--tokenizer", "bytes", "--out", "x")


class Options(FormatCase):
    def test_threads(self):
        """A number that no machine of this kind can use is refused; other numbers start no more threads than there are blocks."""
        self.write("a.txt", "the quick fox\n")
        self.write("b.jsonl", json.dumps({"text": "x" * 700}) + "\n" + (json.dumps({"text": "the fox " * 90}) + "\n") * 9000)
        most = max(64, 4 * len(os.sched_getaffinity(0)))
        commands = {"pack": ["data", "pack", "--tokenizer", "bytes", "--out"], "train": ["data", "train-tokenizer", "--vocab-size", "260", "--out"]}
        for name, command in commands.items():
            for number in ("0", "-1", "x", str(most + 1), "1000", "99999999999999999999"):
                result = self.refuse(USAGE, f"--threads: {number} is not a whole number from 1 to ", *command, "x", "a.txt", "--threads", number)
            written = []
            for number in ("1", "2", "64"):
                self.succeed(*command, name + number, "b.jsonl", "a.txt", "--threads", number)
                written.append([path.read_bytes() for path in sorted(self.folder.glob(name + number + "*")) if path.suffix in (".bin", ".idx", "")])
            self.assertEqual(written, written[:1] * 3)

    @unittest.skipIf(is_sanitized(), "a sanitizer takes more memory than the limit")
    def test_small_inputs_start_few_threads(self):
        """The stacks of 64 threads do not fit into this limit."""
        self.write("a.txt", "the quick fox\n")
        for command in (["pack", "a.txt", "--tokenizer", "bytes"], ["train-tokenizer", "a.txt", "--vocab-size", "257"]):
            done = subprocess.run(["bash", "-c", 'ulimit -v 600000 && exec "$@"', "limited", EXECUTABLE, "data", *command, "--out", "x",
                                   "--threads", "64"], cwd=self.folder, capture_output=True, timeout=100, check=False)
            self.assertEqual(done.returncode, FINISHED, done.stderr)

    def test_an_empty_output(self):
        write_tokens(self.path("t"), [1, 2, 3])
        for command in (["pack", "t.bin", "--tokenizer", "bytes", "--out", ""], ["train-tokenizer", "a", "--vocab-size", "300", "--out", ""],
                        ["join", "t", "--out", ""], ["convert", "t", ""]):
            self.refuse(USAGE, [": is empty", "OUT" if command[0] == "convert" else "--out"], "data", *command)

    def test_a_folder_of_transformers_as_a_checkpoint(self):
        self.path("hf").mkdir()
        self.write("hf/config.json", '{"model_type": "gpt2"}')
        message = "hf is a Hugging Face folder (config.json), not a checkpoint: import it with: gptrain checkpoint import --hf hf OUT"
        self.refuse(CHECKPOINT, message, "generate", "--checkpoint", "hf", "--prompt", "x")
        self.path("hf/config.json").unlink()
        self.refuse(CHECKPOINT, "neither a checkpoint", "generate", "--checkpoint", "hf", "--prompt", "x")


class Sets(FormatCase):
    def test_gaps_of_numbered_files(self):
        """One of llm.c's files that is missing between others, whatever the first number and the way to name them."""
        draw = random.Random(3)
        for suffix in (".bin", ".npy"):
            for first in (0, 1, 4):
                folder = f"d{first}{suffix}"
                self.path(folder).mkdir()
                names = [f"{folder}/web_train_{number:06}{suffix}" for number in range(first, first + 5)]
                write_tokens(self.path("t"), [draw.randrange(60) for _ in range(40)])
                for name in names:
                    self.succeed("data", "convert", "t", name, *(["--to", "llm.c"] if suffix == ".bin" else []))
                ways = (folder, f"{folder}/web_train_*", f"{folder}/*{suffix}", f"{folder}/web_train")
                for way in ways:
                    self.assertIn("200 tokens", self.succeed("data", "inspect", way))
                gone = draw.randrange(1, 4)
                self.path(names[gone]).unlink()
                config = self.write_config(tiny_config(data={"train": [{"path": ways[3]}]}))
                message = f"{names[gone]} is missing, although {names[gone - 1]} and {names[gone + 1]} are there"
                for way in ways:
                    self.refuse(DATA, message, "data", "verify", way)
                self.refuse(DATA, message, "data", "mix", config)
                # Files that a pattern does not name are not missed.
                self.assertIn("80 tokens", self.succeed("data", "inspect", f"{folder}/web_train_*[{first + gone - 1}{first + gone + 1}]{suffix}"))
        self.path("dates").mkdir()
        for date in ("202401", "202403", "010224", "010324", "090124"):
            self.succeed("data", "convert", "t", f"dates/news_{date}.npy")
        self.assertIn("200 tokens", self.succeed("data", "inspect", "dates"))

    def test_more_than_ten_thousand_numbered_files(self):
        self.path("many").mkdir()
        write_tokens(self.path("t"), range(40))
        for number in (9999, 10000, 10001):
            self.succeed("data", "convert", "t", f"many/web_{number:06}.npy")
        for way in ("many", "many/web"):
            self.assertIn("120 tokens", self.succeed("data", "inspect", way))
        self.path("many/web_010000.npy").unlink()
        for way in ("many", "many/web"):
            self.refuse(DATA, "many/web_010000.npy is missing, although many/web_009999.npy and many/web_010001.npy are",
                        "data", "verify", way)

    def test_a_set_of_two_tokenizers(self):
        self.write("a.txt", "the quick fox")
        self.path("d").mkdir()
        self.succeed("data", "train-tokenizer", "a.txt", "--vocab-size", "260", "--out", "t.json")
        for name, tokenizer in (("one", "bytes"), ("three", "bytes"), ("two", "t.json")):
            self.succeed("data", "pack", "a.txt", "--tokenizer", tokenizer, "--out", f"d/{name}")
        result = self.run_gptrain("data", "verify", "d")
        self.assertEqual(result.code, FINISHED)
        self.assertIn("warning: d/three and d/two were packed with different tokenizers: as one source, a run refuses them", result.err)
        self.path("d/two.idx").unlink()
        self.path("d/two.bin").unlink()
        self.assertNotIn("warning", self.run_gptrain("data", "verify", "d").err)


class TokenizerFiles(FormatCase):
    def test_merges_that_are_cut(self):
        """A merges.txt that ends anywhere within a line is refused with its line."""
        plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
        vocabulary = {chr(code): i for i, code in enumerate([*sorted(plain), *range(256, 512 - len(plain))])}
        merges = [f"{left} {right}" for left, right in ("ab", "bc", "cd", "de")]
        for left, right in [merge.split() for merge in merges] + [("ab", "cd")]:
            vocabulary[left + right] = len(vocabulary)
        self.path("m").mkdir()
        self.write("m/vocab.json", json.dumps(vocabulary))
        content = "#version: 0.2\n" + "\n".join([*merges, "ab cd"])
        self.write("m/merges.txt", content + "\n")
        self.assertIn("ids: 260\n", self.succeed("data", "tokenize", "--tokenizer", "m", "abcd"))
        for length in range(len(content) - 4, len(content)):
            self.write("m/merges.txt", content[:length])
            self.refuse(USAGE, "m/merges.txt, line 6: \"" + content[:length].rsplit("\n")[-1] + "\" is no ", "data", "tokenize", "--tokenizer",
                        "m", "abcd")
            self.assertIn("and the file ends there, without a line end: it was cut", self.run_gptrain("data", "tokenize", "--tokenizer", "m", "a").err)
        self.write("m/merges.txt", content.replace("b c", "b c d"))
        self.refuse(USAGE, 'm/merges.txt, line 3: "b c d" is no pair of tokens with a space between them\n', "data", "tokenize", "--tokenizer", "m", "a")

    def test_models_are_named_before_their_parts(self):
        for model, parts, kind in [({"type": "WordPiece", "vocab": {}}, "Bert", "WordPiece"), ({"type": "WordLevel", "vocab": {}}, "Whitespace", "WordLevel"),
                                   ({"vocab": {}, "max_input_chars_per_word": 100}, "Bert", "WordPiece")]:
            self.write("t.json", json.dumps({"model": model, "normalizer": {"type": parts + "Normalizer"}, "pre_tokenizer": {"type": parts}}))
            self.refuse(USAGE, f't.json: model.type is "{kind}", which gptrain does not support', "data", "tokenize", "--tokenizer", "t.json", "x")

    def test_ids_that_are_none(self):
        self.path("m").mkdir()
        self.write("m/vocab.json", "{}")
        for number in ("-1", "1.5", "x", ""):
            self.write("m/tokenizer_config.json", json.dumps({"added_tokens_decoder": {number: {"content": "x"}}}))
            self.refuse(USAGE, f'the id "{number}", which is not a whole number of at least 0', "data", "tokenize", "--tokenizer", "m", "x")


if __name__ == "__main__":
    unittest.main()
