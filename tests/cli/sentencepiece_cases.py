"""Models of SentencePiece, in builds that have its library. Its Python package trained sentencepiece.model on the text
of the licence (BPE, 420 tokens, byte fallback, one user-defined symbol) and encoded some texts for sentencepiece.json.
"""
import json
import shutil
import unittest

from cli_case import DATA, SOURCE_ROOT, USAGE, CliCase, tiny_config


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
        self.assertIn("note: tokenizer.model goes along without tokenizer_config.json",
                      self.succeed("checkpoint", "export", "imported", "--hf", "back"))
        self.assertEqual(self.path("back/tokenizer.model").read_bytes(), self.path("s.model").read_bytes())

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

    def test_refusals(self):
        self.needs_library()
        content = self.path("s.model").read_bytes()
        self.path("cut.model").write_bytes(content[:-100])
        self.refuse(USAGE, "cut.model: no model that SentencePiece can read", "data", "tokenize", "--tokenizer",
                    "cut.model", "x")
        self.refuse(DATA, f"{self.known['size']} is no token of s.model", "data", "tokenize", "--tokenizer", "s.model",
                    "--decode", str(self.known["size"]))
        self.path("t.json").write_text('{"sentencepiece": "!"}', encoding="utf-8")
        self.refuse(USAGE, 't.json: member "sentencepiece" is no model in base64', "data", "tokenize", "--tokenizer",
                    "t.json", "x")
