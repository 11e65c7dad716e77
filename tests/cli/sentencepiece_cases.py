"""Models of SentencePiece, in builds that have its library. Its Python package trained sentencepiece.model on the text
of the licence (BPE, 420 tokens, byte fallback, one user-defined symbol) and encoded some texts for sentencepiece.json.
"""
import json
import random
import shutil
import struct
import unittest

from cli_case import DATA, FINISHED, SOURCE_ROOT, USAGE, CliCase, tiny_config


class SentencePiece(CliCase):
    def setUp(self):
        super().setUp()
        shutil.copy(SOURCE_ROOT / "tests/cli/sentencepiece.model", self.path("s.model"))
        self.known = json.loads((SOURCE_ROOT / "tests/cli/sentencepiece.json").read_text(encoding="utf-8"))

    def needs_library(self):
        result = self.run_gptrain("data", "tokenize", "--tokenizer", "s.model", "x")
        if "which this build cannot read: apt-get install libsentencepiece-dev" in result.err:
            self.assertEqual(result.code, USAGE)
            raise unittest.SkipTest("a build without the library of SentencePiece")

    def test_ids_are_those_of_the_library(self):
        self.needs_library()
        for text, ids, decoded in zip(self.known["texts"], self.known["ids"], self.known["decoded"], strict=True):
            with self.subTest(text=text):
                found = [] if not text else self.succeed("data", "tokenize", "--tokenizer", "s.model", text)
                if text:
                    line = found.splitlines()[0].removeprefix("ids:").split()
                    self.assertEqual([int(number) for number in line], ids)
                if ids:
                    self.assertEqual(self.succeed("data", "tokenize", "--tokenizer", "s.model", "--decode",
                                                  " ".join(map(str, ids))), decoded)

    def test_a_model_goes_through_hugging_face_and_back(self):
        self.needs_library()
        self.write_corpus()
        config = self.write_config(tiny_config(model={"vocab_size": 512}))
        self.succeed("train", config, "--steps", "0")
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        shutil.copy(self.path("s.model"), self.path("hf/tokenizer.model"))
        self.succeed("checkpoint", "import", "--hf", "hf", "imported")
        self.assertRegex(self.succeed("checkpoint", "inspect", "imported"), r"(?m)^tokenizer +vocabulary of 420, sha256 ")
        self.assertIn("note: tokenizer.model is exported without tokenizer_config.json",
                      self.succeed("checkpoint", "export", "imported", "--hf", "back"))
        self.assertEqual(self.path("back/tokenizer.model").read_bytes(), self.path("s.model").read_bytes())
        # Tokens that other files add to a SentencePiece model are refused, not left out in silence.
        self.path("hf/added_tokens.json").write_text('{"<new>": 420}', encoding="utf-8")
        self.assertIn('note: the tokenizer is not imported, name another in data.tokenizer or with --tokenizer: hf/added_tokens.json: "<new>" is '
                      "not in tokenizer.model, or has another id there, and a SentencePiece model takes no new tokens", self.succeed("checkpoint", "import", "--hf", "hf", "without"))
        self.path("hf/added_tokens.json").unlink()
        self.path("hf/tokenizer.json").symlink_to("nowhere")
        self.path("hf/tokenizer.model").unlink()
        self.assertIn("note: the tokenizer is not imported, name another in data.tokenizer or with --tokenizer: cannot read hf/tokenizer.json",
                      self.succeed("checkpoint", "import", "--hf", "hf", "nowhere"))

    def test_from_texts_to_words(self):
        self.needs_library()
        texts = [text for text in self.known["texts"] if text] * 30
        self.path("in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        self.succeed("data", "pack", "in.jsonl", "--out", "corpus", "--tokenizer", "s.model", "--append-eod")
        self.assertIn(f"{len(texts)} documents", self.succeed("data", "verify", "corpus"))
        self.assertEqual(self.succeed("data", "inspect", "corpus", "--sample", "0"), "the License\n")
        config = tiny_config()
        config["model"]["vocab_size"] = self.known["size"]
        config = self.write_config(config)
        self.path("s.model").unlink()  # its content is in PREFIX.meta.json and in the checkpoint
        self.train(config)
        self.assertTrue(self.succeed("generate", "--checkpoint", "out", "--prompt", "the License", "--tokens", "8")
                        .startswith("the License"))
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        self.assertEqual(self.path("hf/tokenizer.model").read_bytes(),
                         (SOURCE_ROOT / "tests/cli/sentencepiece.model").read_bytes())

    @staticmethod
    def field(number, content):
        """A field of bytes of a protocol buffer."""
        size, rest = b"", len(content)
        while rest > 0x7F:
            size += bytes([rest & 0x7F | 0x80])
            rest >>= 7
        return bytes([number << 3 | 2]) + size + bytes([rest]) + content

    def with_charsmap(self, units, texts=b"a\0"):
        """Returns the model with a charsmap that replaces each A by the first of `texts`. `units`: its Darts double array."""
        trie = struct.pack(f"<{len(units)}I", *units)
        charsmap = struct.pack("<I", len(trie)) + trie + texts
        return (SOURCE_ROOT / "tests/cli/sentencepiece.model").read_bytes() + self.field(3, self.field(2, charsmap))

    def test_an_end_token_in_texts(self):
        """A symbol of the user, and an ordinary piece: none is within a document unless tokens are asked for."""
        self.needs_library()
        for end, text in (("<sep>", "a<sep>b"), ("324", "License")):
            self.path("in.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in ("no such", text)), encoding="utf-8")
            number = 3 if end == "<sep>" else int(end)
            for way, documents in (("tokens", 2), ("text", 2), ("refuse", 1)):
                with self.subTest(end=end, way=way):
                    result = self.run_gptrain("data", "pack", "in.jsonl", "--out", "corpus", "--tokenizer", "s.model", "--end-token", end,
                                              "--special-in-text", way, "--on-bad-line", "skip")
                    self.assertEqual(result.code, FINISHED, result.err)
                    content = self.path("corpus.bin").read_bytes()
                    tokens = struct.unpack(f"<{len(content) // 2}H", content)
                    self.assertEqual(tokens.count(number), documents + (way == "tokens"))
                    self.assertIn(f"corpus: {documents} document", result.out)
                    self.assertEqual("special tokens in texts: 1" in result.err, way != "text", result.err)

    def test_damaged_tables_of_normalization(self):
        """Words of the trie with any values: the same ids, other ones, or a refusal; no signal."""
        self.needs_library()
        units = [0] * 512
        units[0] = 256 << 10                        # the root's children are at 256
        units[0x141] = 0x41 | 1 << 8 | 0x140 << 10  # A, with its value at 1
        units[1] = 1 << 31                          # the value: the text at 0
        tokenize = ["data", "tokenize", "--tokenizer", "c.model"]
        self.path("c.model").write_bytes(self.with_charsmap(units))
        self.assertEqual(self.succeed(*tokenize, "AxA").splitlines()[0],
                         self.succeed("data", "tokenize", "--tokenizer", "s.model", "axa").splitlines()[0])
        damage = "c.model: cannot be read as a SentencePiece model: the table of its normalization"
        for place, value in [(0, 0x3FFFFF << 10), (0, 512 << 10), (0x141, 0x41 | 1 << 8 | 0x3FFF << 10), (1, 1 << 31 | 2),
                             (1, 0xFFFFFFFF), (0x141, 0x341 | 0xFFFF << 10)]:
            self.path("c.model").write_bytes(self.with_charsmap([*units[:place], value, *units[place + 1:]]))
            self.refuse(USAGE, damage, *tokenize, "AxA")
        for model in (self.with_charsmap([]), self.with_charsmap(units, b""), self.with_charsmap(units, b"a"),
                      self.with_charsmap(units[:300])):
            self.path("c.model").write_bytes(model)
            self.refuse(USAGE, damage, *tokenize, "AxA")
        draw = random.Random(1)
        for _ in range(60):
            mutant = list(units)
            for place in (0, 1, 0x141, draw.randrange(512)):
                if draw.random() < 0.5:
                    mutant[place] = draw.choice([draw.getrandbits(32), mutant[place] ^ 1 << draw.randrange(32)])
            self.path("c.model").write_bytes(self.with_charsmap(mutant))
            self.assertIn(self.run_gptrain(*tokenize, "AxA").code, (FINISHED, USAGE), mutant)

    def test_faults_that_the_library_throws(self):
        self.needs_library()
        content = self.path("s.model").read_bytes()
        shutil.copy(SOURCE_ROOT / "tests/cli/empty_piece.model", self.path("e.model"))
        self.refuse(USAGE, "e.model: cannot be read as a SentencePiece model: it is damaged or another kind of file; fetch it again\n", "data", "tokenize", "--tokenizer", "e.model", "x")
        # A piece that says it is a byte, and is too short for one.
        self.path("b.model").write_bytes(content + self.field(1, b"\x0a\x01q\x15\0\0\0\0\x18\6"))
        self.assertIn(self.run_gptrain("data", "tokenize", "--tokenizer", "b.model", "x").code, (FINISHED, USAGE))

    def test_refusals(self):
        self.needs_library()
        content = self.path("s.model").read_bytes()
        self.path("cut.model").write_bytes(content[:-100])
        # Neither a cut file nor one whose token for unknown text has gone shows the library's own text.
        self.path("unk.model").write_bytes(content.replace(b"\x0a\x05<unk>\x15\0\0\0\0\x18\2", b"\x0a\x05<unk>\x15\0\0\0\0\x18\1", 1))
        for name in ("cut.model", "unk.model"):
            result = self.run_gptrain("data", "tokenize", "--tokenizer", name, "x")
            self.assertEqual((result.code, result.err), (USAGE, f"gptrain: {name}: cannot be read as a SentencePiece model: it is damaged "
                                                         "or another kind of file; fetch it again\n"))
        self.refuse(DATA, f"{self.known['size']} is no token of s.model", "data", "tokenize", "--tokenizer", "s.model",
                    "--decode", str(self.known["size"]))
        self.path("t.json").write_text('{"sentencepiece": "!"}', encoding="utf-8")
        self.refuse(USAGE, 't.json: member "sentencepiece" is no model in base64', "data", "tokenize", "--tokenizer",
                    "t.json", "x")
