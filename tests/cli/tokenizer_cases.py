"""`data train-tokenizer`, `data tokenize`, and `data pack` with tokenizers, formats, threads, shards and kills."""
import base64
import gzip
import json
import lzma
import os
import random
import re
import signal
import struct
import subprocess
import time
import unittest
from pathlib import Path

from cli_case import DATA, EXECUTABLE, SOURCE_ROOT, USAGE, CliCase, is_sanitized, not_of_some_cases, tiny_config

WORDS = ["the", "quick", "brown", "fox's", "jumps", "over", "12345", "lazy", "dogs", "naïve", "日本語", "\n\n", "  x"]


def documents(count, seed=1):
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 60))) for _ in range(count)]


def bytes_of(prefix):
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


class TokenizerCase(CliCase):
    def setUp(self):
        super().setUp()
        self.write_jsonl("docs.jsonl", documents(300))
        self.succeed("data", "train-tokenizer", "docs.jsonl", "--vocab-size", "400", "--out", "t.json", "--pattern",
                     "llama3")
        # The text runs out of pairs earlier.
        self.size = len(json.loads(self.path("t.json").read_text(encoding="utf-8"))["model"]["vocab"])
        self.assertTrue(257 < self.size < 400, self.size)

    def write_jsonl(self, name, texts):
        self.path(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")

    def pack(self, *inputs, out="out", more=()):
        self.succeed("data", "pack", *inputs, "--out", out, "--tokenizer", "t.json", *more)
        return bytes_of(self.path(out))

    def documents_of(self, prefix="out"):
        tokens, index = bytes_of(self.path(prefix))
        count, = struct.unpack_from("<Q", index, 18)
        at, result = 0, []
        for length in struct.unpack_from(f"<{count}i", index, 34):
            ids = struct.unpack_from(f"<{length}H", tokens, at)
            at += 2 * length
            ids = " ".join(map(str, ids))
            result.append(self.succeed("data", "tokenize", "--tokenizer", "t.json", "--decode", ids))
        return result


class Tokenize(TokenizerCase):
    def test_there_and_back(self):
        text = "the fox's 12345 日本語"
        out = self.succeed("data", "tokenize", "--tokenizer", "t.json", text)
        ids = out.splitlines()[0].removeprefix("ids: ")
        self.assertEqual(self.succeed("data", "tokenize", "--tokenizer", "t.json", "--decode", ids), text)
        self.assertIn(f"{len(ids.split())} tokens of {self.size}", out)
        self.assertIn('"the" " fox" "\'s"', out)
        self.assertIn("ids: 0\n", self.succeed("data", "tokenize", "--tokenizer", "t.json", "<|endoftext|>"))

    def test_refusals(self):
        for messages, arguments in [
            (["cannot read gpt2: No such file", 'src/data/README.md, "Tokens of a published model"'], ["--tokenizer", "gpt2", "x"]),
            ("--pattern is for rank files", ["--tokenizer", "t.json", "--pattern", "gpt2", "x"]),
            ("--decode: x is not an id", ["--tokenizer", "t.json", "--decode", "x"]),
        ]:
            self.refuse(USAGE, messages, "data", "tokenize", *arguments)
        self.refuse(DATA, f"{self.size} is no token of t.json", "data", "tokenize", "--tokenizer", "t.json", "--decode",
                    str(self.size))
        self.refuse(USAGE, "has no room for 256 bytes and 2 special tokens", "data", "train-tokenizer", "docs.jsonl",
                    "--vocab-size", "257", "--out", "u.json", "--special", "<a>", "<b>")
        self.path("folder").mkdir()
        self.refuse(USAGE, "the folder holds neither tokenizer.json nor vocab.json", "data", "tokenize", "--tokenizer",
                    "folder", "x")

    def test_the_default_pattern_is_that_of_the_page(self):
        page = (SOURCE_ROOT / "src/data/README.md").read_text(encoding="utf-8")
        default = re.search(r"\| `--pattern` \| .*`(\w+)` \(the default\)", page)[1]
        self.write_jsonl("docs.jsonl", ["it'S 12345 IT'S"] * 9)
        for name, more in (("default", []), (default, ["--pattern", default]), ("gpt4", ["--pattern", "gpt4"])):
            self.succeed("data", "train-tokenizer", "docs.jsonl", "--vocab-size", "300", "--out", f"{name}.json", *more)
        texts = [self.path(f"{name}.json").read_bytes() for name in ("default", default, "gpt4")]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_a_folder_of_gpt2(self):
        model = json.loads(self.path("t.json").read_text(encoding="utf-8"))["model"]
        self.path("gpt2").mkdir()
        self.path("gpt2/vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
        lines = ["#version: 0.2", *(f"{left} {right}" for left, right in model["merges"])]
        self.path("gpt2/merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        outputs = {self.succeed("data", "tokenize", "--tokenizer", name, "the lazy<|endoftext|>")
                   for name in ("t.json", "gpt2")}
        self.assertEqual(len(outputs), 1)


class Folders(TokenizerCase):
    def setUp(self):
        super().setUp()
        self.path("m").mkdir()
        self.path("m/tokenizer.json").write_bytes(self.path("t.json").read_bytes())

    def ids(self, text, tokenizer="m"):
        line = self.succeed("data", "tokenize", "--tokenizer", tokenizer, text).splitlines()[0]
        return [int(number) for number in line.removeprefix("ids:").split()]

    def write(self, name, content):
        self.path("m/" + name).write_text(json.dumps(content), encoding="utf-8")

    def test_tokens_that_other_files_add(self):
        """Each file that adds tokens, alone and with the others, to a folder of each kind."""
        before = self.ids("the <|im|> fox")
        added = {"added_tokens.json": {"<|im|>": self.size},
                 "tokenizer_config.json": {"added_tokens_decoder": {str(self.size): {"content": "<|im|>", "special": True}}}}
        vocabulary = json.loads(self.path("t.json").read_text(encoding="utf-8"))["model"]
        for kind in ("tokenizer.json", "vocab.json"):
            if kind == "vocab.json":
                self.path("m/tokenizer.json").unlink()
                self.write("vocab.json", vocabulary["vocab"])
                self.path("m/merges.txt").write_text("".join(" ".join(pair) + "\n" for pair in vocabulary["merges"]), encoding="utf-8")
            for names in ([], ["added_tokens.json"], ["tokenizer_config.json"], list(added)):
                for name in added:
                    self.path("m/" + name).unlink(missing_ok=True)
                for name in names:
                    self.write(name, added[name])
                with self.subTest(kind=kind, names=names):
                    found = self.ids("the <|im|> fox")
                    self.assertEqual(self.size in found, bool(names))
                    if not names and kind == "tokenizer.json":
                        self.assertEqual(found, before)
                    elif names:
                        self.assertLess(len(found), len(before))
            # A special token of the map is one of the vocabulary, which is then found as a whole.
            self.write("special_tokens_map.json", {"eos_token": {"content": "<|im|>"}, "additional_special_tokens": ["<|endoftext|>"]})
            self.assertIn(0, self.ids("the<|endoftext|>"))
            self.write("special_tokens_map.json", {"pad_token": "<pad>"})
            result = self.run_gptrain("data", "tokenize", "--tokenizer", "m", "a<pad>b")
            self.assertIn("m/special_tokens_map.json: <pad> is no token of the vocabulary, and is added with the id ", result.err)
            self.write("special_tokens_map.json", {"pad_token": "<pad>", "additional_special_tokens": ["<one>", "<two>"]})
            ids = self.run_gptrain("data", "tokenize", "--tokenizer", "m", "<pad><one><two>").out.split("\n")[0].split()[1:]
            self.assertEqual([int(i) - int(ids[0]) for i in ids], [0, 1, 2])
            self.path("m/special_tokens_map.json").unlink()
            self.write("added_tokens.json", {"<|endoftext|>": 7})
            self.refuse(USAGE, "m/added_tokens.json: <|endoftext|> has the id 7 here, but 0 in the vocabulary", "data", "tokenize",
                        "--tokenizer", "m", "x")

    def test_flags_and_names_of_other_files(self):
        """As in transformers 5.24: flags of named tokens do not replace those of tokenizer.json, flags of added_tokens_decoder do."""
        root = json.loads(self.path("m/tokenizer.json").read_text(encoding="utf-8"))
        end = root["added_tokens"][0]["content"]
        text = f"the {end} fox"
        before = self.ids(text)
        flags = {"content": end, "lstrip": True, "rstrip": True, "normalized": False, "single_word": False}
        for name, content in [("special_tokens_map.json", {"bos_token": flags}),
                              ("tokenizer_config.json", {"bos_token": flags | {"__type": "AddedToken"}})]:
            self.write(name, content)
            self.assertEqual(self.ids(text), before, name)
            self.path("m/" + name).unlink()
        self.write("tokenizer_config.json", {"added_tokens_decoder": {str(root["added_tokens"][0]["id"]): flags | {"special": True}}})
        self.assertLess(len(self.ids(text)), len(before))
        for content, message in [({"split_special_tokens": True}, "split_special_tokens is true"),
                                 ({"image_token": "<|im|>"}, "<|im|> is named as a special token"),
                                 ({"model_specific_special_tokens": {"image_token": "<|im|>"}}, "<|im|> is named as a special token")]:
            self.write("tokenizer_config.json", content)
            self.refuse(USAGE, f"m/tokenizer_config.json: {message}", "data", "tokenize", "--tokenizer", "m", "x")
        self.write("tokenizer_config.json", {"image_token": end})
        self.assertEqual(self.ids(text), before)
        root["added_tokens"].append(root["added_tokens"][0] | {"rstrip": True})
        self.write("tokenizer.json", root)
        self.refuse(USAGE, [f'"{end}" once more, with other flags', "keep the one that is meant"], "data", "tokenize", "--tokenizer", "m", "x")

    def test_scores_are_rounded_as_the_reference_rounds_them(self):
        """Splits of equal score: serde_json reads -3.7041191976630445 as -3.704119197663045, which decides between them."""
        pieces = [["<unk>", 0.0], ["a", -3.0], ["aa", -3.7041191976630445], ["aaa", -5.342198135152211], ["aaaa", -5.826456428185615]]
        self.write("tokenizer.json", {"added_tokens": [], "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": pieces}})
        self.assertEqual(self.ids("a" * 14), [4, 4, 4, 2])

    def test_a_tokenizer_goes_through_a_checkpoint(self):
        """Tokens that other files add go with it, under their ids; an end token that is an ordinary piece is no special one."""
        self.write_corpus()
        self.succeed("train", self.write_config(tiny_config(model={"vocab_size": 600})), "--steps", "0")
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        vocabulary = json.loads(self.path("t.json").read_text(encoding="utf-8"))["model"]
        self.path("m/tokenizer.json").unlink()
        self.write("vocab.json", vocabulary["vocab"])
        self.path("m/merges.txt").write_text("".join(" ".join(pair) + "\n" for pair in vocabulary["merges"]), encoding="utf-8")
        self.write("added_tokens.json", {"<|x|>": self.size, "<|y|>": 555})
        for file in self.path("hf").iterdir():
            file.rename(self.path("m") / file.name)
        config = json.loads(self.path("m/config.json").read_text(encoding="utf-8"))
        for number, (end, name) in enumerate([(555, "<|y|>"), (self.size - 1, None)]):
            self.write("config.json", config | {"eos_token_id": end})
            self.succeed("checkpoint", "import", "--hf", "m", f"imported{number}")
            note = self.succeed("checkpoint", "export", f"imported{number}", "--hf", f"back{number}")
            self.assertEqual("an ordinary piece" in note, name is None, note)
            back = {file: json.loads(self.path(f"back{number}/{file}.json").read_text(encoding="utf-8"))
                    for file in ("tokenizer", "tokenizer_config", "generation_config")}
            self.assertEqual(back["tokenizer"]["model"]["vocab"]["<|y|>"], 555)  # where the tokenizers library finds its id
            self.assertEqual((back["tokenizer_config"].get("eos_token"), back["generation_config"]["eos_token_id"]), (name, end))
            text = "the <|y|> fox<|x|> 日本語<|endoftext|>"
            self.assertEqual(self.ids(text, f"back{number}"), self.ids(text))

    def test_merges_that_are_missing(self):
        vocabulary = json.loads(self.path("t.json").read_text(encoding="utf-8"))["model"]
        self.path("m/tokenizer.json").unlink()
        self.write("vocab.json", vocabulary["vocab"] | {f"x{i}": 1000 + i for i in range(400)})
        self.path("m/merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
        self.refuse(USAGE, ["m/merges.txt has 0 merges, too few", "fetch it again"], "data", "tokenize", "--tokenizer", "m", "x")

    def test_files_that_are_cut(self):
        """Each file of JSON in a folder, cut: the fault in plain words, and its place."""
        for name, content, message in [
                ("special_tokens_map.json", '{"pad_token":\n "<pad', 'line 2, column 2: the string that begins here has no closing quote'),
                ("tokenizer_config.json", '{"a": {\n "b": [1', "line 2, column 9: the text ends before ] closes what was opened"),
                ("added_tokens.json", '{"a": 1', "line 1, column 8: the text ends before } closes what was opened"),
                ("tokenizer.json", '{"model": NaN}', "line 1, column 11: NaN is no value here"),
                ("vocab.json", '{"a": 0,', "line 1, column 9: the text ends where a member must follow")]:
            if name == "vocab.json":
                self.path("m/tokenizer.json").unlink()
                self.path("m/merges.txt").write_text("a b\n", encoding="utf-8")
            self.path("m/" + name).write_text(content, encoding="utf-8")
            result = self.run_gptrain("data", "tokenize", "--tokenizer", "m", "x")
            self.assertEqual(result.code, USAGE)
            self.assertIn(f"m/{name}: not valid JSON: {message}; the text there: ", result.err)
            self.assertNotIn("json.exception", result.err)
            self.path("m/" + name).write_text("{}", encoding="utf-8")

    def write_ranks(self, name, count):
        """Writes a rank file of all tokens of one byte, then of two, then some of three; returns the tokens."""
        bytes_ = [bytes([first]) for first in range(256)]
        pairs = [first + second for first in bytes_ for second in bytes_]
        ranks = (bytes_ + pairs + [first + pair for first in (b"\xe6", b"\xe5", b"\xe4") for pair in pairs])[:count]
        lines = (b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks))
        self.path(name).write_bytes(b"".join(lines))
        return ranks

    @not_of_some_cases
    def test_the_files_of_published_models(self):
        """The table of src/data/README.md: every file that it names is taken, and rank files have the sizes that it says."""
        page = (SOURCE_ROOT / "src/data/README.md").read_text(encoding="utf-8").split("### Tokens of a published model")[1].split("###")[0]
        rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
        named = {name for row in rows for name in re.findall(r"`([\w.]+\.(?:json|txt|model|tiktoken))`", row[1])}
        vocabulary = json.loads(self.path("t.json").read_text(encoding="utf-8"))["model"]
        ranks = {"r50k_base.tiktoken": (50256, "GPT-2"), "cl100k_base.tiktoken": (100256, "GPT-4,"), "qwen.tiktoken": (151643, "Qwen 2"),
                 "o200k_base.tiktoken": (199998, "GPT-4,"), "tiktoken.model": (163584, "Kimi K2")}
        self.assertEqual(named - {"tokenizer_config.json"}, {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", *ranks})
        self.path("m/tokenizer.json").rename(self.path("m/vocab.json"))
        self.write("vocab.json", vocabulary["vocab"])
        self.path("m/merges.txt").write_text("".join(" ".join(pair) + "\n" for pair in vocabulary["merges"]), encoding="utf-8")
        self.assertEqual(self.ids("the lazy"), self.ids("the lazy", "t.json"))
        for name, (count, family) in (ranks | {"tokenizer.model": (128000, "Llama 3")}).items():
            with self.subTest(name=name):
                self.write_ranks(name, count)
                found = int(re.search(r"tokens? of (\d+)", self.succeed("data", "tokenize", "--tokenizer", name, "ab"))[1])
                row = next(row for row in rows if row[0].startswith("| " + family))
                self.assertIn(str(found if name != "qwen.tiktoken" else count), row[2])

    @not_of_some_cases
    def test_a_folder_of_kimi(self):
        """Ranks as many as Kimi K2's have its pattern, and the special tokens that the folder's config names."""
        self.path("m/tokenizer.json").unlink()
        ranks = self.write_ranks("m/tiktoken.model", 163584)
        added = {"163586": {"content": "<|im_end|>", "special": True}}
        self.write("tokenizer_config.json", {"added_tokens_decoder": added})
        # A run of Han characters is parted from the letters before and behind it.
        self.assertEqual(self.ids("x日y<|im_end|>"), [ord("x"), ranks.index("日".encode()), ord("y"), 163586])

    def test_the_end_of_a_document_by_name(self):
        for name, end in (("fox", None), (str(self.size - 1), self.size - 1), ("<|endoftext|>", 0)):
            end = self.ids("fox")[0] if end is None else end
            self.write_jsonl("a.jsonl", ["the", "dogs"])
            self.succeed("data", "pack", "a.jsonl", "--tokenizer", "t.json", "--end-token", name, "--out", "e")
            tokens = struct.unpack(f"<{self.path('e.bin').stat().st_size // 2}H", self.path("e.bin").read_bytes())
            self.assertEqual(tokens[-1], end)
            self.assertEqual(json.loads(self.path("e.meta.json").read_text(encoding="utf-8"))["tokenizer"]["end_token"], end)
        for name in ("<|nope|>", str(self.size), "-1"):
            self.refuse(USAGE, f"--end-token {name}: is no token of t.json", "data", "pack", "a.jsonl", "--tokenizer", "t.json",
                        f"--end-token={name}", "--out", "e")
        self.refuse(USAGE, "the tokenizer of a model is a file of its folder", "data", "tokenize", "--tokenizer", "gpt2", "x")


class Formats(TokenizerCase):
    def test_every_format_gives_the_same_documents(self):
        texts = documents(20)
        self.write_jsonl("a.jsonl", texts)
        expected = self.pack("a.jsonl")
        self.assertEqual(self.documents_of(), texts)
        content = self.path("a.jsonl").read_bytes()
        self.path("list.json").write_text(json.dumps([{"text": text} for text in texts], indent=1), encoding="utf-8")
        self.path("table.csv").write_text(
            "id,text\n" + "".join('7,"{}"\r\n'.format(text.replace('"', '""')) for text in texts), encoding="utf-8")
        # Formats are recognised by content, not by name.
        self.path("gzip.of.two").write_bytes(gzip.compress(content[:500]) + gzip.compress(content[500:]))
        self.path("xz").write_bytes(lzma.compress(content))
        for name in ("list.json", "table.csv", "gzip.of.two", "xz"):
            with self.subTest(name=name):
                self.assertEqual(self.pack(name, out="other"), expected)
        self.path("sub/.hidden").mkdir(parents=True)
        self.path("sub/.hidden/x").write_text("not read", encoding="utf-8")
        half = content.index(b"\n", len(content) // 2) + 1
        self.path("sub/1").write_bytes(content[:half])
        self.path("sub/2").write_bytes(content[half:])
        self.assertEqual(self.pack("sub", out="other"), expected)
        self.assertEqual(self.pack("sub/[12]", out="other"), expected)
        done = subprocess.run([EXECUTABLE, "data", "pack", "-", "--out", "other", "--tokenizer", "t.json"],
                              cwd=self.folder, input=content, capture_output=True, check=True)
        self.assertIn(b"20 documents", done.stdout)
        self.assertEqual(bytes_of(self.path("other")), expected)

    def test_damaged_inputs(self):
        content = gzip.compress(self.path("docs.jsonl").read_bytes())
        self.path("cut.gz").write_bytes(content[:-20])
        self.path("wrong.gz").write_bytes(content[:30] + bytes(100) + content[130:])
        self.path("no.csv").write_text("id,body\n1,x\n", encoding="utf-8")
        self.path("latin.txt").write_bytes(b"one\ntwo\n\xe9\n")
        for name, messages in [("cut.gz", ["cut.gz: the compressed data", "truncated?"]),
                               ("wrong.gz", "wrong.gz: the compressed data cannot be read"),
                               ("no.csv", 'no.csv, line 1: the header has no column "text"'),
                               ("latin.txt", "latin.txt, line 3: not UTF-8: byte 0xe9"), ("x*", "no file matches")]:
            with self.subTest(name=name):
                self.refuse(DATA, messages, "data", "pack", name, "--out", "bad", "--tokenizer", "t.json")
                self.assertEqual(list(self.folder.glob("bad*")), [])
        self.pack("latin.txt", more=["--replace-invalid"])
        self.assertEqual(self.documents_of(), ["one\ntwo\n\ufffd\n"])

    def test_bad_lines_are_shown_and_left_out_where_asked(self):
        lines = ['{"text": "good"}', "{", '{"text": 3}', '{"text": "\\ud800 lone"}', '{"text": "\\udc00"}',
                 '{"text": "also good"}']
        self.path("in.jsonl").write_text("\n".join(lines), encoding="utf-8")
        self.refuse(DATA, "in.jsonl, line 2: not valid JSON", "data", "pack", "in.jsonl", "--out", "out", "--tokenizer",
                    "t.json")
        result = self.run_gptrain("data", "pack", "in.jsonl", "--out", "out", "--tokenizer", "t.json", "--on-bad-line",
                                  "skip")
        self.assertEqual(result.code, 0, result.err)
        for message in ("in.jsonl, line 2: not valid JSON", "line 3: member", "line 4: not valid JSON",
                        "line 5: not valid JSON", "4 documents that could not be read"):
            self.assertIn(message, result.err)
        self.assertEqual(self.documents_of(), ["good", "also good"])


class Packing(TokenizerCase):
    def test_end_tokens(self):
        self.write_jsonl("a.jsonl", ["the", "", "fox"])
        tokens, _ = self.pack("a.jsonl", more=["--append-eod"])
        self.assertEqual(tokens[-2:], b"\0\0")  # <|endoftext|> has the id 0
        self.assertEqual(len(self.documents_of()), 2)

    def test_a_long_text_does_not_depend_on_threads_or_blocks(self):
        text = " ".join(documents(9000))
        self.assertGreater(len(text), 1 << 20)
        self.path("a.txt").write_text(text, encoding="utf-8")
        self.write_jsonl("a.jsonl", [text])
        expected = self.pack("a.jsonl")
        for threads in ("1", "2", "4"):
            self.assertEqual(self.pack("a.txt", more=["--threads", threads]), expected)

    def test_shards_of_an_earlier_pack_do_not_stay(self):
        pack = ["data", "pack", "docs.jsonl", "--out", "s/out", "--tokenizer", "t.json"]
        self.succeed(*pack, "--shards-of", "500")
        many = sorted(path.name for path in self.path("s").glob("out-*"))
        self.assertGreater(len(many), 9)
        others = ["out-1.idx", "out-00001.txt", "out-00001", "outer-00001.idx", "out.idx"]
        for name in others:
            self.path(f"s/{name}").touch()
        self.write_jsonl("bad.jsonl", ["good"])
        with self.path("bad.jsonl").open("a", encoding="utf-8") as file:
            file.write("{")
        self.refuse(DATA, "bad.jsonl, line 2: not valid JSON", "data", "pack", "bad.jsonl", *pack[3:], "--shards-of",
                    "500")
        kept = {path.name for path in self.path("s").glob("out-*")} - set(others)
        self.assertEqual(sorted(kept), many)
        result = self.run_gptrain(*pack, "--shards-of", "4000")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn(f"removed: {len(many) // 3 - 1} shards of an earlier pack", result.err)
        few = [path.name for path in self.path("s").glob("out-*.idx") if path.name not in others]
        self.assertIn(f"in {len(few)} shards", result.out)
        self.assertLess(len(few), 5)
        for name in others:
            self.assertTrue(self.path(f"s/{name}").exists(), name)
        self.succeed("data", "join", *(f"s/{name}" for name in sorted(few)), "--out", "joined")
        self.assertEqual(bytes_of(self.path("joined")), self.pack("docs.jsonl"))

    def test_parts_take_every_nth_file(self):
        for i in range(5):
            self.path(f"{i}.txt").write_text(f"text {i}", encoding="utf-8")
        self.pack(*(f"{i}.txt" for i in range(5)), more=["--part", "2/3"])
        self.assertEqual(self.documents_of(), ["text 1", "text 4"])
        self.refuse(USAGE, "part 2/2: no input is left for this part of 1 file", "data", "pack", "0.txt", "--out", "x",
                    "--tokenizer", "bytes", "--part", "2/2")
        self.refuse(USAGE, "4/3 is not I/N", "data", "pack", "0.txt", "--out", "x", "--tokenizer", "bytes", "--part",
                    "4/3")

    @unittest.skipIf(is_sanitized(), "a sanitizer's own memory counts as the process's")
    def test_memory_does_not_grow_with_the_input(self):
        text = " ".join(documents(3000)) + " "
        for name, block in [("big.jsonl.gz", json.dumps({"text": text}) + "\n"), ("big.txt.gz", text)]:
            with gzip.open(self.path(name), "wb", compresslevel=1) as file:
                for _ in range(250_000_000 // len(block)):
                    file.write(block.encode())
            with subprocess.Popen([EXECUTABLE, "data", "pack", name, "--out", "big", "--tokenizer", "t.json", "--threads",
                                   "4"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
                error = process.stderr.read()
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0, error)
            self.assertLess(usage.ru_maxrss * 1024, 230e6)  # 16 MB of them for each thread's cache

    @not_of_some_cases
    def test_a_killed_pack_goes_on(self):
        self.write_jsonl("big.jsonl", documents(20000))
        self.path("big.gz").write_bytes(gzip.compress(self.path("big.jsonl").read_bytes(), 1))
        command = ["data", "pack", "big.gz", "big.jsonl", "--tokenizer", "t.json", "--shards-of", "200000",
                   "--append-eod"]
        self.succeed(*command, "--out", "whole")
        names = sorted(path.name.removeprefix("whole") for path in self.folder.glob("whole-*"))
        self.assertGreater(len(names), 10)
        killed = 0
        for moment in range(20):
            for path in self.folder.glob("k*"):
                path.unlink()
            process = subprocess.Popen([EXECUTABLE, *command, "--out", "k", "--threads", str(moment % 4 + 1)],
                                       cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wanted = moment * len(names) // 40
            while process.poll() is None and len(list(self.folder.glob("k-*.idx"))) < wanted:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            self.succeed(*command, "--out", "k", "--resume")
            self.assertEqual(sorted(path.name.removeprefix("k") for path in self.folder.glob("k-*")), names)
            for name in names:
                self.assertEqual(self.path(f"k{name}").read_bytes(), self.path(f"whole{name}").read_bytes(), name)
        self.assertGreater(killed, 5)
        self.assertIn("already finished", self.succeed(*command, "--out", "k", "--resume"))
        others = ["300000" if argument == "200000" else argument for argument in command]
        self.refuse(USAGE, "--resume: k was begun with another --shards-of; give the same inputs", *others, "--out", "k", "--resume")
        self.refuse(USAGE, "the standard input cannot be read a second time", "data", "pack", "-", "--out", "k",
                    "--tokenizer", "bytes", "--resume")

    def test_a_pack_does_not_go_on_behind_what_is_not_whole(self):
        """Every file that a killed pack has left, gone, emptied, cut, or with one byte changed."""
        self.write_jsonl("big.jsonl", documents(15000) + [333])
        times = self.path("big.jsonl").stat()
        command = ["data", "pack", "big.jsonl", "--tokenizer", "t.json", "--shards-of", "100000", "--append-eod", "--out", "k"]
        self.refuse(DATA, "big.jsonl, line 15001", *command)
        self.write_jsonl("big.jsonl", documents(15000) + ["b"])
        os.utime(self.path("big.jsonl"), ns=(times.st_atime_ns, times.st_mtime_ns))
        left = {path.name: path.read_bytes() for path in self.folder.glob("k*")}
        self.assertGreater(len(left), 6)
        draw = random.Random(1)
        for name, content in sorted(left.items()):
            at = draw.randrange(len(content))
            damages = [None, b"", content[:-3], content[:at] + bytes([content[at] ^ 1]) + content[at + 1:]]
            if name == "k.pack.json":
                damages = [damages[1], content.replace(b'"shards": ', b'"shards": 1'), content.replace(b'"tokens": ', b'"tokens": 1'),
                           content.replace(b'"offset": ', b'"offset": 1')]
            for damage in damages:
                self.path(name).unlink()
                if damage is not None:
                    self.path(name).write_bytes(damage)
                with self.subTest(name=name, damage=damage if damage is None else len(damage)):
                    self.refuse(DATA, "k", *command, "--resume")
                self.path(name).write_bytes(content)
        self.succeed(*command, "--resume")
        # So is a pack whose place is lost; one that left no second shard begins anew, and says so.
        state = self.path("k.pack.json").read_bytes()
        self.path("k.pack.json").unlink()
        self.refuse(DATA, ["k.pack.json, which records how far", "is missing, although k-00001.idx is there"], *command,
                    "--resume")
        note = "note: --resume: there is no n.pack.json; packing starts at the beginning"
        self.assertIn(note, self.run_gptrain(*command[:-1], "n", "--resume").err)
        self.path("k.pack.json").write_bytes(state)
        # A finished pack is refused as well.
        self.path("k-00001.bin").unlink()
        self.refuse(DATA, ["k-00001.bin", "restore this shard, or start anew without --resume"], *command, "--resume")

    def test_inputs_without_an_end(self):
        self.path("folder").mkdir()
        for name in ("vocab.json", "merges.txt"):
            self.path("folder/" + name).symlink_to("/dev/zero")
        limit = "is larger than"
        self.refuse(USAGE, ["folder/vocab.json", limit], "data", "tokenize", "--tokenizer", "folder", "x")
        self.refuse(USAGE, ["/dev/zero", limit], "data", "tokenize", "--tokenizer", "/dev/zero", "x")
        with open("/dev/zero", "rb") as zeros:
            done = subprocess.run([EXECUTABLE, "data", "tokenize", "--tokenizer", "bytes", "-"], stdin=zeros,
                                  capture_output=True, timeout=100, check=False)
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"the standard input is larger than 64.0 MiB", done.stderr)


if __name__ == "__main__":
    unittest.main()
