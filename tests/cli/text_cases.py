"""From texts to a model that writes: tokenizers of data, checkpoints and `generate`, token files of other programs,
and mixtures."""
import json
import math
import random
import re
import shutil
import struct
import unittest
from pathlib import Path

from cli_case import CHECKPOINT, DATA, USAGE, CliCase, first_in_fast_suite, overrides, tiny_config

try:
    import numpy
except ImportError:
    numpy = None

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "naps"]


def texts(count, seed=1):
    """Returns texts that repeat the same words in the same order, from a random start."""
    draw = random.Random(seed)
    result = []
    for _ in range(count):
        first = draw.randrange(len(WORDS))
        result.append(" ".join((WORDS * 5)[first:first + draw.randint(8, 30)]))
    return result


class TextCase(CliCase):
    def setUp(self):
        super().setUp()
        self.write_jsonl("docs.jsonl", texts(200))
        self.succeed("data", "train-tokenizer", "docs.jsonl", "--vocab-size", "300", "--out", "t.json")
        self.size = len(json.loads(self.path("t.json").read_text(encoding="utf-8"))["model"]["vocab"])
        self.pack("docs.jsonl", "corpus")

    def write_jsonl(self, name, documents):
        self.path(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")

    def pack(self, name, prefix, *more, tokenizer="t.json"):
        self.succeed("data", "pack", name, "--out", prefix, "--tokenizer", tokenizer, "--append-eod", *more)

    def config(self, **sections):
        config = tiny_config(**sections)
        config["model"]["vocab_size"] = self.size
        return self.write_config(config)

    def meta(self, prefix="corpus"):
        return json.loads(self.path(f"{prefix}.meta.json").read_text(encoding="utf-8"))

    def tokens(self, prefix="corpus"):
        data = self.path(f"{prefix}.bin").read_bytes()
        return list(struct.unpack(f"<{len(data) // 2}H", data))

    def generate(self, *arguments, out="out"):
        return self.succeed("generate", "--checkpoint", out, "--tokens", "12", *arguments)


class EndToEnd(TextCase):
    def test_from_jsonl_to_words(self):
        self.write_jsonl("held.jsonl", texts(40, seed=2))
        self.pack("held.jsonl", "held")
        config = self.config(data={"validation": [{"path": "held"}]}, model={"hidden_size": 32},
                             run={"steps": 60, "sample_every_steps": 30, "sample_tokens": 8, "validation_samples": 8,
                                  "sample_prompt": "the quick"})
        self.assertRegex(self.succeed("data", "mix", config), r"corpus +[\d,]+ +100\.00% ")
        self.assertIn("100.00%", self.succeed("train", config, "--dry-run"))
        planned = json.loads(self.succeed("train", config, "--dry-run", "--json"))
        self.train(config, *overrides("run.out=whole"))
        taken = json.loads(self.path("whole/run.json").read_text(encoding="utf-8"))
        self.assertEqual(taken, {key: planned[key] for key in taken})
        self.assertGreater(taken["samples_bytes"], 0)
        classes = [key for key in taken if key.endswith("_bytes") and not key.startswith(("peak_", "host_"))]
        self.assertEqual(taken["peak_bytes"], sum(taken[key] for key in classes))
        self.train(config, "--steps", "30")
        self.train(config, "--resume")
        self.assert_same_checkpoint(self.checkpoint(60), self.checkpoint(60, "whole"))
        samples = [json.loads(line) for line in self.path("out/samples.jsonl").read_text(encoding="utf-8").splitlines()]
        self.assertEqual([sample["step"] for sample in samples], [30, 60])
        self.assertEqual(samples[1], {"step": 60, "prompt": "the quick", "text": samples[1]["text"]})
        self.assertIn(" brown fox jumps over", samples[1]["text"])
        self.assertEqual(self.path("whole/samples.jsonl").read_bytes(), self.path("out/samples.jsonl").read_bytes())
        page = self.path("out/report.html").read_text(encoding="utf-8")
        self.assertIn("<b>the quick</b> brown fox", page)
        self.assertIn("Validation bits per byte", page)
        self.assertFalse(self.path("out/.sampling").exists())
        text = self.generate("--prompt", "over the", "--temperature", "0")
        self.assertTrue(text.startswith("over the lazy dog and naps"), text)

        # Bits per byte is the loss of all targets divided by the bytes of their text.
        length, count = 16, 8
        pieces = json.loads(self.path("t.json").read_text(encoding="utf-8"))["model"]["vocab"]
        sizes = {index: len(piece) for piece, index in pieces.items()}  # ASCII: a character is a byte
        sizes[0] = 0  # <|endoftext|>
        targets = self.tokens("held")[1:count * length + 1]
        record = self.records(key="validation_loss")[-1]
        expected = record["validation_loss"] * count * length / math.log(2) / sum(sizes[token] for token in targets)
        self.assertAlmostEqual(record["bits_per_byte"], expected, places=9)

    def test_several_prompts(self):
        self.train(self.config(run={"steps": 4}))
        self.path("a.txt").write_text("the dog\n", encoding="utf-8")
        alone = self.generate("--prompt", "the dog")
        both = self.generate("--prompt", "the dog", "--prompt-file", "a.txt")
        first, second = re.fullmatch(r"--- prompt 1 of 2\n(.*)\n\n--- prompt 2 of 2\n(.*)\n", both, re.S).groups()
        self.assertEqual(first + "\n", alone)
        self.assertTrue(second.startswith("the dog") and second != first, both)
        self.assertEqual(self.generate("--prompt", "the dog", "--stream"), alone)
        self.assertEqual(self.generate("--prompt", "the dog", "--tokenizer", "t.json"), alone)
        self.assertEqual(self.generate("--prompt-file", "a.txt"), alone)
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        self.assertEqual(self.path("hf/tokenizer.json").read_bytes(), self.path("t.json").read_bytes())
        self.assertEqual(json.loads(self.path("hf/tokenizer_config.json").read_text())["eos_token"], "<|endoftext|>")
        self.assertEqual(json.loads(self.path("hf/config.json").read_text())["eos_token_id"], 0)
        self.assertEqual(json.loads(self.path("hf/generation_config.json").read_text()),
                         {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0})
        self.assertIn("GPT2LMHeadModel", self.succeed("checkpoint", "import", "--hf", "hf", "imported"))
        self.assertEqual(self.generate("--prompt", "the dog", out="imported"), alone)


class Samples(TextCase):
    def test_ranks_that_share_the_weights(self):
        for ranks, layout in first_in_fast_suite(3, [
                (4, ["tensor=2", "zero=3"]), (6, ["pipeline=3", "rank_order=tensor-pipeline-data", "zero=2"]),
                (2, ["pipeline=2", "layers_per_stage=[4,0]"]), (4, ["pipeline=2", "tensor=2"]), (2, ["pipeline=2"]),
                (2, ["pipeline=2", "pipeline_schedule=zero-bubble-v"])]):
            with self.subTest(layout=layout):
                self.write_on_ranks(ranks, [f"parallel.{setting}" for setting in layout])

    def write_on_ranks(self, ranks, layout):
        shutil.rmtree(self.path("out"), ignore_errors=True)
        settings = ["model.num_layers=4", "batch.global=12", "batch.micro=2", "run.steps=4", "run.sample_every_steps=2",
                    "run.sample_tokens=5", "checkpoint.every_steps=2", *layout]
        self.path("out/.sampling/left").mkdir(parents=True)
        out = self.train(self.config(), "--ranks", str(ranks), *overrides(*settings))
        self.assertIn("sample after step 4: ", out)
        samples = [json.loads(line) for line in self.path("out/samples.jsonl").read_text(encoding="utf-8").splitlines()]
        self.assertEqual([(sample["step"], sample["prompt"]) for sample in samples], [(2, ""), (4, "")])
        self.assertFalse(self.path("out/.sampling").exists())
        # The same models from their checkpoints: the one of step 2 was saved before its text was written.
        for sample in samples:
            text = self.succeed("generate", "--checkpoint", self.checkpoint(sample["step"]), "--prompt", "", "--tokens",
                                "5", "--seed", "1")
            self.assertEqual(text, sample["text"] + "\n")

    def test_a_model_of_bytes_writes_what_it_likes(self):
        self.write_corpus("bytes")
        config = tiny_config(data={"train": [{"path": "bytes"}]}, run={"steps": 1, "sample_every_steps": 1})
        self.train(self.write_config(config))
        sample = json.loads(self.path("out/samples.jsonl").read_text(encoding="utf-8"))
        self.assertGreater(len(sample["text"]), 10)


class TokenizerOfARun(TextCase):
    def test_is_told_by_the_data_and_kept_in_the_checkpoint(self):
        record = self.meta()["tokenizer"]
        text = self.path("t.json").read_text(encoding="utf-8")
        self.assertEqual((record["vocab_size"], record["end_token"], record["text"]), (self.size, 0, text))
        self.train(self.config(run={"steps": 2}))
        self.assertEqual((self.checkpoint(2) / "tokenizer.json").read_text(encoding="utf-8"), text)
        manifest = json.loads((self.checkpoint(2) / "manifest.json").read_text(encoding="utf-8"))
        self.assertEqual(manifest["tokenizer"], {"sha256": record["sha256"], "vocab_size": self.size, "end_token": 0,
                                                 "file": "tokenizer.json"})
        # The data of a resumed run need not name the tokenizer that the checkpoint has.
        self.path("corpus.meta.json").unlink()
        self.train("run.json", "--resume", *overrides("run.steps=4"))
        self.assertTrue((self.checkpoint(4) / "tokenizer.json").exists())
        (self.checkpoint(4) / "tokenizer.json").write_text(text.replace("the", "teh"), encoding="utf-8")
        for command in (["checkpoint", "verify", "out"], ["generate", "--checkpoint", "out", "--prompt", "x"]):
            self.refuse(CHECKPOINT, "tokenizer.json is damaged", *command)

    def test_other_shards_hold_only_the_hash(self):
        self.pack("docs.jsonl", "s", "--shards-of", "1000")
        self.assertEqual(self.meta("s-00000")["tokenizer"], self.meta()["tokenizer"])
        self.assertNotIn("text", self.meta("s-00001")["tokenizer"])
        config = self.config(data={"train": [{"path": "s-00001"}]}, run={"steps": 2})
        self.train(config)
        self.refuse(USAGE, f"holds no tokenizer for its vocabulary of {self.size}: name it with --tokenizer",
                    "generate", "--checkpoint", "out", "--prompt", "x")
        self.assertTrue(self.generate("--prompt", "fox", "--tokenizer", "t.json").startswith("fox"))
        self.refuse(USAGE, ["run.sample_every_steps = 1", "name it in data.tokenizer"], "train", config,
                    *overrides("run.sample_every_steps=1", "run.out=other"))
        self.train(config, *overrides("run.sample_every_steps=1", "run.out=other", "data.tokenizer=t.json"))

    def test_refusals(self):
        self.succeed("data", "train-tokenizer", "docs.jsonl", "--vocab-size", "270", "--out", "u.json")
        self.pack("docs.jsonl", "other", tokenizer="u.json")
        config = self.config(run={"steps": 2})
        for messages, settings in [
            (["tokens of different tokenizers cannot be read by one model", "the tokenizer of corpus (",
              "the tokenizer of other ("], ['data.train=[{"path": "corpus"}, {"path": "other"}]']),
            (["tokens of different tokenizers", "other"], ['data.validation=[{"path": "other"}]']),
            (["tokens of different tokenizers", "data.tokenizer = u.json"], ["data.tokenizer=u.json"]),
            ("cannot read absent.json", ["data.tokenizer=absent.json"]),
            (f"cannot read {'x' * 200}...", [f"data.tokenizer={'x' * 5000}"]),
            (f"model.vocab_size = 280: the tokenizer of corpus has {self.size} tokens; set model.vocab_size to "
             f"{self.size}", ["model.vocab_size=280"]),
        ]:
            with self.subTest(settings=settings):
                self.refuse(USAGE, messages, "train", config, *overrides(*settings))
                self.refuse(USAGE, messages, "train", config, "--dry-run", *overrides(*settings))
        self.assertFalse(self.path("out").exists())
        self.train(config)
        self.refuse(USAGE, ["tokens of different tokenizers", "the tokenizer of the checkpoint"], "train", config,
                    "--resume", *overrides("run.steps=4", 'data.train=[{"path": "other"}]'))
        self.refuse(USAGE, "--tokenizer u.json: is not the tokenizer that", "generate", "--checkpoint", "out",
                    "--prompt", "x", "--tokenizer", "u.json")
        self.path("latin").write_bytes(b"caf\xe9")
        self.refuse(USAGE, "a prompt is not UTF-8: byte 0xe9 at 3", "generate", "--checkpoint", "out",
                    "--prompt-file", "latin")
        self.refuse(USAGE, "cannot read nothing: No such file", "generate", "--checkpoint", "out", "--prompt-file",
                    "nothing")
        self.succeed("data", "pack", "docs.jsonl", "--out", "endless", "--tokenizer", "t.json")
        self.train(config, *overrides('data.train=[{"path": "endless"}]', "run.out=endless-run"))
        self.refuse(USAGE, "a prompt is empty, and the model's documents have no end token", "generate", "--checkpoint",
                    "endless-run", "--prompt", "")
        meta = self.meta()
        meta["tokenizer"]["sha256"] = "0" * 64
        self.path("corpus.meta.json").write_text(json.dumps(meta), encoding="utf-8")
        self.refuse(DATA, "its tokenizer does not have the hash beside it", "train", config, *overrides("run.out=new"))


class OtherFormats(TextCase):
    def convert(self, *arguments):
        return self.succeed("data", "convert", *arguments)

    def test_there_and_back(self):
        ids = self.tokens()
        narrow = {"npy": "a.npy", "llm.c": "a-llmc.bin", "nanogpt": "a-nano.bin"}
        for name, path in narrow.items():
            self.assertIn("note: the new file does not record the tokenizer of its tokens", self.convert("corpus", path, "--to", name))
        count = struct.pack("<I", len(ids))
        raw = self.path("corpus.bin").read_bytes()
        self.assertEqual(self.path("a-nano.bin").read_bytes(), raw)
        self.assertEqual(self.path("a-llmc.bin").read_bytes(),
                         struct.pack("<3i", 20240520, 1, len(ids)) + bytes(1012) + raw)
        self.assertEqual(self.path("a-llmc.bin").read_bytes()[8:12], count)
        if numpy is not None:
            self.assertEqual(numpy.load(self.path("a.npy")).tolist(), ids)
            numpy.save(self.path("numpy.npy"), numpy.array(ids, dtype=numpy.uint16))
            self.assertEqual(self.path("numpy.npy").read_bytes(), self.path("a.npy").read_bytes())
            numpy.save(self.path("wide.npy"), numpy.array(ids, dtype=numpy.uint32))
        else:
            header = "{'descr': '<u4', 'fortran_order': False, 'shape': (" + str(len(ids)) + ",), }"
            header = (header + " " * (21 - len(str(len(ids))))).ljust(117) + "\n"
            self.path("wide.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() +
                                              struct.pack(f"<{len(ids)}I", *ids))
        for source in narrow.values():
            for name in narrow:
                self.convert(source, "b", "--to", name)
                # Only its name identifies nanoGPT's format.
                path = "b" if name != "nanogpt" else self.path("b").rename(self.path("b.bin")).name
                self.convert(path, "c.bin", "--to", "nanogpt")
                self.assertEqual(self.path("c.bin").read_bytes(), raw, f"{source} by {name}")
            out = self.convert(source, "back", "--end-token", "0")
            self.assertIn("in 200 documents", out)
            for suffix in (".bin", ".idx"):
                self.assertEqual(self.path(f"back{suffix}").read_bytes(), self.path(f"corpus{suffix}").read_bytes())
        # Llama 3's format, with four-byte tokens.
        self.convert("wide.npy", "wide.bin", "--to", "llm.c")
        self.assertEqual(self.path("wide.bin").read_bytes(),
                         struct.pack("<3i", 20240801, 7, len(ids)) + bytes(1012) + struct.pack(f"<{len(ids)}I", *ids))
        self.convert("wide.bin", "indexed")
        self.convert("indexed", "wide2.npy")
        self.assertEqual(self.path("wide2.npy").read_bytes(), self.path("wide.npy").read_bytes())

    def test_every_direction_says_what_becomes_of_the_tokenizer(self):
        name_it = ": name it in data.tokenizer of a run's config\n"
        lost, unknown = "note: the new file does not record the tokenizer of its tokens" + name_it, "note: the tokenizer of these tokens is not known" + name_it
        self.assertIn(lost, self.convert("corpus", "a.npy"))
        for arguments in (["a.npy", "b.bin", "--to", "llm.c"], ["a.npy", "flat"], ["flat", "c.npy"]):
            self.assertIn(unknown, self.convert(*arguments))
        self.assertNotIn("note", self.succeed("data", "join", "corpus", "--out", "again"))
        self.assertIn("sha256", self.path("again.meta.json").read_text(encoding="utf-8"))
        for inputs in (["corpus", "flat"], ["b.bin", "a.npy"]):
            self.assertIn(unknown, self.succeed("data", "join", *inputs, "--out", "joined"))

    def test_as_sources_of_a_run(self):
        config = self.config(run={"steps": 3})
        self.train(config)
        self.convert("corpus", "a.npy")
        self.convert("corpus", "b.bin", "--to", "llm.c")
        self.convert("corpus", "c.bin", "--to", "nanogpt")
        for name in ("a.npy", "b.bin", "c.bin"):
            self.train(config, *overrides(f"data.train[0].path={name}", f"run.out={name}.out"))
            self.assert_same_steps(self.records(f"{name}.out"), self.records())
        self.assertIn("1 document, ", self.succeed("data", "inspect", "b.bin"))
        self.refuse(USAGE, ["data.mask_documents: b.bin has no index", "data convert --end-token"], "train", config,
                    *overrides("data.train[0].path=b.bin", "data.mask_documents=true", "run.out=masked"))

    def test_damaged_and_impossible(self):
        self.convert("corpus", "a.bin", "--to", "llm.c")
        self.convert("corpus", "a.npy")
        content = self.path("a.bin").read_bytes()
        array = self.path("a.npy").read_bytes()
        for name, data, messages in [
            ("x.bin", content[:1000], "byte 1000: the file ends within llm.c's header"),
            ("x.bin", content[:-2], "x.bin, byte 8: the header counts"),
            ("x.bin", content[:4] + b"\x02" + content[5:], "byte 4: version 2 of llm.c's format, but only 1 is known"),
            ("x.bin", b"abc", "3 bytes are no whole number of u16 tokens"),
            ("x.bin", b"", "the file holds no tokens"),
            ("x.tokens", b"abcd", "no token file of llm.c, no .npy, and not the .bin of nanoGPT"),
            ("x.npy", array[:-2], "x.npy, byte 10: the array must have one dimension"),
            ("x.npy", array.replace(b"<u2", b"<f2"), "the array must be of numpy.uint16"),
            ("x.npy", b"\x93NUMPY\2" + array[7:], "only version 1 of numpy's format"),
            ("x.npy", array[:8] + b"\xff\xff" + array[10:100], "behind the file's end"),
            ("corpus.bin", None, "corpus.bin: belongs to the index beside it; name both by their PREFIX, corpus"),
        ]:
            with self.subTest(messages=messages):
                if data is not None:
                    self.path(name).write_bytes(data)
                self.refuse(DATA, messages, "data", "inspect", name)
        for code, messages, arguments in [
            (USAGE, "a .bin may be llm.c's or nanoGPT's", ["corpus", "y.bin"]),
            (USAGE, "is in Megatron's format already", ["corpus", "y"]),
            (USAGE, "the format npy keeps no boundaries of documents", ["corpus", "y.npy", "--end-token", "0"]),
            (USAGE, "would be overwritten", ["a.npy", "a.npy"]),
            (DATA, "absent.idx does not exist", ["absent", "y.npy"]),
        ]:
            self.refuse(code, messages, "data", "convert", *arguments)
        self.path("big.bin").write_bytes(struct.pack("<3i", 20240801, 7, 2) + bytes(1012) +
                                         struct.pack("<2I", 1, 70000))
        self.refuse(DATA, "token 70000 does not fit into 16 bits", "data", "convert", "big.bin", "y.bin", "--to",
                    "nanogpt")
        self.assertEqual(list(self.folder.glob("y*")), [])


class Looking(TextCase):
    def test_inspect_knows_the_tokenizer(self):
        text = self.succeed("data", "inspect", "corpus")
        for pattern in [r'(?m)^ +\d+ +[\d,]+ +\d+\.\d\d%  " fox"$', r"(?m)^rarest$",
                        r"\d+ of the tokenizer's \d+ tokens never occur", r"(?m)^ +letters +[\d,]+ +8\d\.\d\d%$",
                        r"[\d,]+ bytes of text, \d\.\d{3} a token"]:
            self.assertRegex(text, pattern)
        total = sum(len(document) for document in texts(200))
        self.assertIn(f"{total:,} bytes of text", text)
        self.assertEqual(self.succeed("data", "inspect", "corpus", "--sample", "3"), texts(200)[3] + "<|endoftext|>\n")
        self.path("corpus.meta.json").unlink()
        self.assertNotIn("bytes of text", self.succeed("data", "inspect", "corpus"))
        self.assertEqual(self.succeed("data", "inspect", "corpus", "--tokenizer", "t.json"), text)
        self.pack("docs.jsonl", "bytes", tokenizer="bytes")
        self.refuse(USAGE, "--tokenizer: bytes was packed with another tokenizer", "data", "inspect", "bytes", "--tokenizer",
                    "t.json")

    def test_join_is_what_one_pack_makes(self):
        self.path("in").mkdir()
        documents = texts(60)
        for i in range(3):
            self.write_jsonl(f"in/{i}.jsonl", documents[20 * i:20 * i + 20])
        for part in (1, 2):
            self.pack("in", f"part{part}", "--part", f"{part}/2")
        out = self.succeed("data", "join", "part1", "part2.idx", "--out", "all")
        self.assertIn("all: 60 documents", out)
        self.write_jsonl("reordered.jsonl", documents[:20] + documents[40:] + documents[20:40])
        self.pack("reordered.jsonl", "whole")
        for suffix in (".bin", ".idx", ".meta.json"):
            self.assertEqual(self.path(f"all{suffix}").read_bytes(), self.path(f"whole{suffix}").read_bytes())
        self.pack("docs.jsonl", "bytes", tokenizer="bytes")
        self.succeed("data", "convert", "corpus", "flat.npy")
        self.assertIn("1 document", self.succeed("data", "join", "flat.npy", "--out", "flat"))
        self.assertEqual(self.path("flat.bin").read_bytes(), self.path("corpus.bin").read_bytes())
        for messages, arguments in [("different tokenizers", ["part1", "bytes"]),
                                    ("would be overwritten", ["all", "part1"])]:
            self.refuse(USAGE, messages, "data", "join", *arguments, "--out", "all")


class Mixtures(TextCase):
    def setUp(self):
        super().setUp()
        self.write_jsonl("few.jsonl", texts(20, seed=5))
        self.pack("few.jsonl", "few")
        self.two = self.config(data={"train": [{"path": "corpus"}, {"path": "few"}]}, run={"steps": 40})

    def shares(self, *settings):
        """Returns for each source: asked, got, epochs and first repeat, by `data mix`."""
        out = self.succeed("data", "mix", self.two, *overrides(*settings))
        rows = [line.split() for line in out.splitlines()[1:3]]
        return {row[0]: (float(row[2].rstrip("%")), float(row[3].rstrip("%")), float(row[5]), " ".join(row[6:]))
                for row in rows}

    def test_weights_by_size(self):
        ratio = len(self.tokens()) / len(self.tokens("few"))
        even = self.shares()
        self.assertEqual((even["corpus"][0], even["few"][0]), (50, 50))
        self.assertRegex(even["few"][3], r"^step \d+$")
        by_size = self.shares("data.temperature=1")
        self.assertAlmostEqual(by_size["corpus"][0], 100 * ratio / (ratio + 1), delta=1.5)
        softer = self.shares("data.temperature=2")
        self.assertAlmostEqual(softer["corpus"][0], 100 * ratio ** 0.5 / (ratio ** 0.5 + 1), delta=1.5)
        twice = self.shares('data.train=[{"path": "corpus", "epochs": 1}, {"path": "few", "epochs": 2}]',
                            "run.steps=16384")
        self.assertAlmostEqual(twice["few"][2] / twice["corpus"][2], 2, delta=0.01)

    def test_a_source_told_by_its_tokens(self):
        told = 'data.train=[{"path": "corpus"}, {"path": "nowhere", "tokens": 1000000}]'
        self.assertRegex(self.succeed("data", "mix", self.two, *overrides(told)), r"\nnowhere +1,000,000 +50\.00% ")
        plan = json.loads(self.succeed("train", self.two, "--dry-run", "--json", *overrides(told)))
        self.assertGreater(plan["sources"][1]["epochs"], 0)
        self.refuse(USAGE, "data.train[1].tokens = 1000000: only `data mix` and dry runs", "train", self.two,
                    *overrides(told))

    def test_phases_and_a_resume_across_them(self):
        phases = ['data.phases=[{"until_step": 4, "weights": [1, 0]}, {"until_step": 8, "weights": [0, 1]}]',
                  "run.steps=10"]
        self.assertEqual(self.shares(*phases[:1], "run.steps=4")["few"][2], 0)
        self.assertEqual(self.shares(*phases[:1], "run.steps=8")["few"][1], 50)
        self.train(self.two, *overrides(*phases, "run.out=whole"))
        self.train(self.two, "--steps", "6", *overrides(*phases))
        self.train(self.two, "--resume", *overrides(*phases))
        self.assert_same_checkpoint(self.checkpoint(10), self.checkpoint(10, "whole"))
        self.assertIn("  data.phases: ", self.train(self.two, "--resume", *overrides("run.steps=12")))
        for messages, setting in [
            ("data.phases[0].weights = [1.0]: must hold a weight for each of the 2 sources",
             'data.phases=[{"until_step": 4, "weights": [1]}]'),
            ("data.phases[0].weights = [0.0,0.0]: must not all be 0",
             'data.phases=[{"until_step": 4, "weights": [0, 0]}]'),
            ("data.phases[1].until_step = 4: must be greater than 4",
             'data.phases=[{"until_step": 4, "weights": [0, 1]}, {"until_step": 4, "weights": [1, 0]}]'),
            ("data.phases[0] = 3: must be an object with until_step and weights", "data.phases=[3]"),
            ("data.train[0].epochs: must be given, as other sources have it",
             'data.train=[{"path": "corpus"}, {"path": "few", "epochs": 2}]'),
            ("data.train[0].epochs = 2: is another way to give the weight",
             'data.train=[{"path": "corpus", "epochs": 2, "weight": 1}]'),
            ("data.validation[0].epochs = 2: unknown key", 'data.validation=[{"path": "few", "epochs": 2}]'),
        ]:
            self.refuse(USAGE, messages, "config", "check", self.two, *overrides(setting))

    def test_caps(self):
        caps = 'data.train=[{"path": "corpus"}, {"path": "few", "max_epochs": 1}]'
        row = self.shares(caps)["few"]
        self.assertAlmostEqual(row[2], 1, delta=0.01)
        self.assertEqual(row[3], "-")
        both = 'data.train=[{"path": "corpus", "max_epochs": 1}, {"path": "few", "max_epochs": 1}]'
        error = self.refuse(USAGE, "run.steps = 4000: every source of data.train has been seen max_epochs times after",
                            "train", self.two, *overrides(both, "run.steps=4000"))
        last = int(re.search(r"set run.steps to (\d+)", error).group(1))
        result = self.run_gptrain("data", "mix", self.two, "--steps", str(last + 1), *overrides(both))
        self.assertIn(f"after step {last} every source has been seen max_epochs times, so train refuses this run", result.err)
        self.assertEqual(self.run_gptrain("data", "mix", self.two, "--steps", str(last), *overrides(both)).err, "")
        result = self.run_gptrain("data", "mix", self.two, "--steps", "2000")
        self.assertRegex(result.err, r"warning: few is seen \d+\.\d times; beyond about 4")


if __name__ == "__main__":
    unittest.main()
