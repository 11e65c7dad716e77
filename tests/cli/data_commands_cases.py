"""Token files: `data pack`, `data inspect`, and training's messages about missing or damaged files."""
import json
import re
import struct
import unittest
from pathlib import Path

from cli_case import DATA, END_OF_DOCUMENT, CliCase, overrides, overwrite, tiny_config, unigram_entropy, write_tokens

TEXT = "Grüße, Welt!\nA second line.\n"


def tokens_of(prefix):
    data = Path(f"{prefix}.bin").read_bytes()
    return list(struct.unpack(f"<{len(data) // 2}H", data))


class Pack(CliCase):
    def pack(self, *inputs):
        return self.succeed("data", "pack", *inputs, "--out", "packed", "--tokenizer", "bytes")

    def test_text_becomes_its_bytes_and_an_end(self):
        self.path("a.txt").write_text(TEXT, encoding="utf-8")
        self.path("b.txt").write_text("b", encoding="utf-8")
        out = self.pack("a.txt", "b.txt")
        expected = [*TEXT.encode(), END_OF_DOCUMENT, ord("b"), END_OF_DOCUMENT]
        self.assertEqual(tokens_of(self.path("packed")), expected)
        self.assertIn(f"packed: 2 documents, {len(expected)} tokens", out)

    def test_each_line_of_jsonl_is_a_document(self):
        lines = [{"text": TEXT}, {"id": 7, "text": "two"}, {"text": ""}]
        self.path("a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
        self.assertIn("packed: 2 documents", self.pack("a.jsonl"))
        self.assertEqual(tokens_of(self.path("packed")),
                         [*TEXT.encode(), END_OF_DOCUMENT, *b"two", END_OF_DOCUMENT])

    def test_a_progress_bar_counts_the_input(self):
        self.path("a.txt").write_text("x" * 3_000_000, encoding="utf-8")
        result = self.run_gptrain("data", "pack", "a.txt", "--out", "packed", "--tokenizer", "bytes")
        self.assertEqual(result.code, 0)
        self.assertRegex(result.err, r"packing: .*2\.9 MiB")

    def test_inputs_that_cannot_be_packed(self):
        self.path("folder").mkdir()
        self.path("empty.txt").touch()
        for name, text in {
            "broken.jsonl": '{"text": "fine"}\n{"text": \n',
            "none.jsonl": '{"text": "fine"}\n\n{"body": "x"}\n',
            "number.jsonl": '{"text": 5}\n',
            "list.jsonl": '["text"]\n',
        }.items():
            self.path(name).write_text(text, encoding="utf-8")
        for name, messages in [
            ("absent.txt", ["cannot read absent.txt", "No such file or directory"]),
            ("folder", ["cannot read folder", "holds no file"]),
            ("empty.txt", ["nothing to pack", "empty.txt"]),
            ("broken.jsonl", "broken.jsonl, line 2: not valid JSON"),
            ("none.jsonl", 'none.jsonl, line 3: no member "text"'),
            ("number.jsonl", 'number.jsonl, line 1: member "text" is of type number, must be a string'),
            ("list.jsonl", 'list.jsonl, line 1: string where an object with a member "text" is needed'),
        ]:
            with self.subTest(name=name):
                self.refuse(DATA, messages, "data", "pack", name, "--out", "packed", "--tokenizer", "bytes")
                self.assertEqual(list(self.folder.glob("packed*")), [], "half-written output was left behind")

    def test_outputs_that_cannot_be_written(self):
        self.path("a.bin").write_text(TEXT, encoding="utf-8")
        self.path("run.json").touch()
        for prefix, messages in [("a", ["a.bin is an input", "choose another output prefix"]),
                                 ("run.json/x", ["cannot create the folder run.json", "Not a directory"])]:
            with self.subTest(prefix=prefix):
                self.refuse(DATA, messages, "data", "pack", "a.bin", "--out", prefix, "--tokenizer", "bytes")
        self.assertEqual(self.path("a.bin").read_text(encoding="utf-8"), TEXT)


class Inspect(CliCase):
    def test_counts_and_entropy(self):
        tokens = [1, 1, 1, 2, 2, 300, END_OF_DOCUMENT]
        write_tokens(self.path("few"), tokens, sequence_lengths=[3, 4])
        text = self.succeed("data", "inspect", "few")
        self.assertIn("few: 2 documents, 7 tokens of dtype u16", text)
        self.assertIn("largest id 300", text)
        self.assertIn(f"unigram entropy {unigram_entropy(tokens):.4f} nats", text)
        self.assertRegex(text, r"\n +1 +3 +42\.86%\n")

    def test_documents(self):
        self.path("a.jsonl").write_text('{"text": "first"}\n{"text": "tab\\tbell\\u0007"}\n', encoding="utf-8")
        self.run_gptrain("data", "pack", "a.jsonl", "--out", "packed", "--tokenizer", "bytes")
        self.assertEqual(self.succeed("data", "inspect", "packed", "--sample", "0"), "first\n")
        self.assertEqual(self.succeed("data", "inspect", "packed", "--sample", "1"), "tab\tbell\\x07\n")
        self.refuse(DATA, "packed has no document 2; its documents are 0 to 1", "data", "inspect", "packed",
                    "--sample", "2")


# Damage to a sound token file, and the message about it.
DAMAGES = {
    "no index": (lambda prefix: Path(f"{prefix}.idx").unlink(), "corpus.idx does not exist", "gptrain data pack"),
    "no tokens": (lambda prefix: Path(f"{prefix}.bin").unlink(), "corpus.bin does not exist", "gptrain data pack"),
    "truncated tokens": (lambda prefix: truncate(f"{prefix}.bin", 4001), "corpus.bin, byte 4001: the file ends here",
                         "reaches to byte 8000"),
    "longer tokens": (lambda prefix: append(f"{prefix}.bin", b"xx"), "corpus.bin, byte 8000:", "goes on to byte 8002"),
    "truncated index": (lambda prefix: truncate(f"{prefix}.idx", 40), "corpus.idx, byte", "truncated or damaged"),
    "index within header": (lambda prefix: truncate(f"{prefix}.idx", 20), "corpus.idx, byte 20: the file ends here",
                            "header"),
    "empty index": (lambda prefix: truncate(f"{prefix}.idx", 0), "corpus.idx, byte 0:", "MMIDIDX"),
    "no magic": (lambda prefix: overwrite(f"{prefix}.idx", 0, b"GGIDIDX"), "corpus.idx, byte 0:", "MMIDIDX"),
    "version": (lambda prefix: overwrite(f"{prefix}.idx", 9, b"\2"), "corpus.idx, byte 9: version 2",
                "only 1 is known"),
    "dtype": (lambda prefix: overwrite(f"{prefix}.idx", 17, b"\6"), "corpus.idx, byte 17: dtype code 6 (f64)",
              "must be u16 (code 8) or i32 (code 4)"),
    "huge count": (lambda prefix: overwrite(f"{prefix}.idx", 18, b"\xff" * 8), "corpus.idx, byte 18:",
                   "truncated or damaged"),
    "negative length": (lambda prefix: overwrite(f"{prefix}.idx", 34, struct.pack("<i", -1)), "corpus.idx, byte 34:",
                        "negative length -1"),
    "offset": (lambda prefix: overwrite(f"{prefix}.idx", 38, struct.pack("<q", 2)), "corpus.idx, byte 38:",
               "starts at 2"),
}


def truncate(path, size):
    with open(path, "r+b") as file:
        file.truncate(size)


def append(path, data):
    with open(path, "ab") as file:
        file.write(data)


class TrainingData(CliCase):
    def test_damaged_files(self):
        for name, (damage, *messages) in DAMAGES.items():
            with self.subTest(damage=name):
                config = self.write_run()
                damage(self.path("corpus"))
                for command in (["train", config], ["data", "inspect", "corpus"]):
                    self.refuse(DATA, messages, *command)

    def test_validation_data_are_checked_before_the_first_step(self):
        config = self.write_run(data={"validation": [{"path": "held"}]})
        self.refuse(DATA, "held.idx does not exist", "train", config)
        self.assertFalse((self.path("out") / "metrics.jsonl").exists())

    def test_one_of_several_sources(self):
        config = self.write_run(data={"train": [{"path": "corpus"}, {"path": "second", "weight": 2}]})
        self.refuse(DATA, "second.idx does not exist", "train", config)

    def test_sources_without_a_sample(self):
        for tokens, lengths, messages in [
            (range(16), None, ["corpus.bin: 16 tokens are too few", "model.sequence_length + 1 = 17 tokens"]),
            ([], [0], ["corpus.bin, byte 0: the file holds no tokens"]),
            ([], [], ["corpus.bin, byte 0: the file holds no tokens"]),
        ]:
            with self.subTest(tokens=len(tokens), lengths=lengths):
                write_tokens(self.path("corpus"), list(tokens), sequence_lengths=lengths)
                self.refuse(DATA, messages, "train", self.write_config(tiny_config()))
        write_tokens(self.path("corpus"), list(range(17)))
        self.train("run.json")

    def test_tokens_beyond_the_vocabulary(self):
        for dtype, token in [("H", 257), ("i", 257), ("i", -1), ("i", 2**31 - 1)]:
            with self.subTest(dtype=dtype, token=token):
                tokens = [1] * 17  # one sample, so that the first step reads the token
                tokens[12] = token
                write_tokens(self.path("corpus"), tokens, dtype)
                byte = 12 * struct.calcsize("<" + dtype)
                self.refuse(DATA, [f"corpus.bin, byte {byte}: token {token} at position 12",
                                   "outside the vocabulary of 257"], "train", self.write_config(tiny_config()))
                self.assertEqual(self.checkpoint_steps(), [])

    def test_tokens_of_i32_train_like_tokens_of_u16(self):
        config = self.write_run()
        self.train(config, *overrides("run.out=u16"))
        write_tokens(self.path("corpus"), tokens_of(self.path("corpus")), "i")
        self.train(config, *overrides("run.out=i32"))
        self.assert_same_steps(self.records("i32"), self.records("u16"))

    def test_weights_are_shares_of_the_samples(self):
        self.write_corpus("first")
        self.write_corpus("second")
        config = self.write_config(tiny_config(data={"train": [{"path": "first", "weight": 3}, {"path": "second"}]}))
        text = self.succeed("train", config, "--dry-run", *overrides("run.steps=1000"))
        shares = {name: (float(share), float(epochs))
                  for name, share, epochs in re.findall(r"(first|second) +([\d.]+)% +([\d.]+) epochs", text)}
        samples_per_epoch = (4000 - 1) // 16
        self.assertAlmostEqual(shares["first"][0], 75)
        self.assertAlmostEqual(shares["first"][1], 3000 / samples_per_epoch, delta=0.2)
        self.assertAlmostEqual(shares["second"][1], 1000 / samples_per_epoch, delta=0.2)


if __name__ == "__main__":
    unittest.main()
