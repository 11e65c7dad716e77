"""Weights that change hands: `checkpoint import`, `train --init-from`, and `checkpoint diff|average|verify
--deep|prune`."""
import fcntl
import json
import os
import re
import shutil
import struct
import unittest

from checkpoints_cases import RANK_FILE, CheckpointCase
from cli_case import CHECKPOINT, FINISHED, USAGE, overrides, overwrite


def weights_of(checkpoint):
    """Returns the F32 and U8 tensors of a checkpoint in one file, by name, as lists of numbers."""
    data = (checkpoint / RANK_FILE).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    del header["__metadata__"]
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        size, code = (1, "B") if entry["dtype"] == "U8" else (4, "f")
        tensors[name] = struct.unpack(f"<{(end - begin) // size}{code}", data[begin:end])
    return tensors


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def nearest_bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


class Upcycle(CheckpointCase):
    MOE = '{"experts": 4, "top_k": 2, "aux_loss": 0, "z_loss": 0}'

    def test_a_mixture_of_a_dense_model_begins_with_its_losses(self):
        dense = self.write_run(model={"bias": False, "hidden_size": 64, "num_heads": 4}, optimizer={"lr": 1e-12})
        self.train(dense, "--steps", 2, *overrides("run.out=dense", "optimizer.lr=1e-3"))
        out = self.succeed("checkpoint", "upcycle", "dense", "mixture", "--moe", self.MOE)
        self.assertRegex(out, r"^mixture: \d blocks? with 4 experts each, [\d,]+ parameters of [\d,]+; train CONFIG "
                              r"--init-from mixture starts a run from them\n$")
        self.assertIn(": sound\n", self.succeed("checkpoint", "verify", "mixture"))
        self.train(dense, "--steps", 2, "--init-from", "dense", *overrides("run.out=one"))
        self.train(dense, "--steps", 2, "--init-from", "mixture", *overrides("run.out=many", f"model.moe={self.MOE}"))
        for one, many in zip(self.records("one"), self.records("many"), strict=True):
            self.assertAlmostEqual(many["loss"] / one["loss"], 1, delta=1e-6)
        self.refuse(CHECKPOINT, "has 4 experts in a block already; only dense models become mixtures",
                    "checkpoint", "upcycle", "mixture", "again", "--moe", self.MOE)

    def test_what_is_refused(self):
        self.refuse(USAGE, "model.bias = true: must be false with model.moe", "checkpoint", "upcycle", "out", "mixture",
                    "--moe", self.MOE)
        dense = self.write_run(model={"bias": False, "hidden_size": 64, "num_heads": 4})
        self.train(dense, "--steps", 1, *overrides("run.out=dense"))
        for moe, message in {
                "{}": "--moe {}: has no experts",
                '{"experts": 4, "top_k": 2, "shared": 1}': '"shared": 1 would add an FFN',
                '{"experts": 4, "top_k": 2, "ffn_hidden_size": 32}': 'leave out "ffn_hidden_size"',
                '{"experts": 4, "top_k": 5}': "must be at most model.moe.experts = 4"}.items():
            with self.subTest(moe):
                self.refuse(USAGE, message, "checkpoint", "upcycle", "dense", "mixture", "--moe", moe)
                self.assertFalse(self.path("mixture").exists())
        out = self.succeed("checkpoint", "upcycle", "dense", "mixture", "--moe",
                           '{"experts": 4, "top_k": 1, "renormalise": false}')
        self.assertIn("note: the router's weights do not add up to 1", out)


class InitFrom(CheckpointCase):
    def test_a_new_run_with_old_weights(self):
        out = self.train(self.config, "--init-from", "out", *overrides("run.out=new", "run.seed=7", "optimizer.lr=0.002"),
                         "--steps", "0")
        self.assertIn("starting at step 0 (seed 7)\n", out)
        self.assertIn("with the weights of out/checkpoints/step-00000006 (step 6 of its run)\n", out)
        before, after = weights_of(self.checkpoint(6)), weights_of(self.checkpoint(0, "new"))
        for name, values in after.items():
            self.assertEqual(values, before[name] if name.startswith("weight/") else (0.0,) * len(values), name)
        # The run resumes from its own checkpoint, whatever it started from.
        out = self.train(self.config, "--init-from", "out", "--resume",
                         *overrides("run.out=new", "run.seed=7", "optimizer.lr=0.002"))
        self.assertIn("resumed from new/checkpoints/step-00000000 (step 0)\n", out)
        self.assertNotIn("with the weights", out)
        self.assertEqual([record["step"] for record in self.records("new")], list(range(1, 7)))
        self.assertLess(self.records("new")[0]["loss"], self.records()[0]["loss"] - 0.05)

    def test_any_layout_starts_alike(self):
        settings = ["model.vocab_size=300", "run.steps=2"]
        self.train(self.config, "--init-from", "out", *overrides("run.out=one", *settings))
        for number, layout in enumerate((["parallel.zero=3"], ["parallel.tensor=2"])):
            self.train(self.config, "--init-from", "out", "--ranks", 2,
                       *overrides(f"run.out=two{number}", *settings, *layout))
            for one, two in zip(self.records("one"), self.records(f"two{number}"), strict=True):
                self.assertAlmostEqual(one["loss"], two["loss"], places=5)

    def test_a_larger_vocabulary_has_new_rows_as_drawn(self):
        out = self.train(self.config, "--init-from", "out", "--steps", "0",
                         *overrides("run.out=new", "model.vocab_size=300"))
        self.assertIn("  model.vocab_size: 257 in the checkpoint, 300 in the config\n", out)
        self.train(self.config, "--steps", "0", *overrides("run.out=drawn", "model.vocab_size=300"))
        name = "weight/embedding.token"
        before, after = weights_of(self.checkpoint(6))[name], weights_of(self.checkpoint(0, "new"))[name]
        drawn = weights_of(self.checkpoint(0, "drawn"))[name]
        self.assertEqual(after[:len(before)], before)
        self.assertEqual(after[len(before):], drawn[len(before):])
        self.assertNotEqual(after[len(before):], (0.0,) * (len(drawn) - len(before)))

    def test_weights_of_bf16_alone_from_those_of_fp32_and_back(self):
        pure = ["precision.compute=bf16-pure", "run.steps=2"]
        for layout in ([], ["--ranks", "2", *overrides("parallel.zero=3")]):
            name = f"pure{len(layout)}"
            out = self.train(self.config, "--init-from", "out", *overrides(f"run.out={name}", *pure), "--steps", "0", *layout)
            self.assertIn("  weights: fp32 in the checkpoint, rounded to bf16 for precision.compute = bf16-pure\n", out)
        before = weights_of(self.checkpoint(6))
        out = self.train(self.config, "--init-from", "pure0", *overrides("run.out=back"), "--steps", "0")
        self.assertNotIn("rounded", out)
        after = weights_of(self.checkpoint(0, "back"))
        for name, values in after.items():
            if not name.startswith("weight/"):
                continue
            is_norm = "norm" in name
            for value, exact in zip(values, before[name], strict=True):
                self.assertEqual(value, exact if is_norm else nearest_bf16(exact), name)
        self.succeed("checkpoint", "diff", "pure0", "pure4")
        self.assertIn("48 of 48", self.succeed("checkpoint", "diff", "pure0", "pure4"))
        self.train(self.config, "--resume", *overrides("run.out=pure0", *pure))
        self.assertLess(self.records("pure0")[0]["loss"], self.records()[0]["loss"] - 0.05)

    def test_another_model_is_refused(self):
        self.refuse(USAGE, ["cannot start from the weights of out/checkpoints/step-00000006 with this config:\n",
                            "model.hidden_size: 8 in the checkpoint, 16 in the config",
                            "model.vocab_size: 257 in the checkpoint, 200 in the config"],
                    "train", self.config, "--init-from", "out",
                    *overrides("run.out=new", "model.hidden_size=16", "model.vocab_size=200"))
        self.assertFalse(self.path("new").exists())
        self.refuse(USAGE, "model.sequence_length: 16 in the checkpoint", "train", self.config, "--init-from", "out",
                    *overrides("run.out=new", "model.sequence_length=8"))
        self.refuse(CHECKPOINT, "absent: neither a checkpoint", "train", self.config, "--init-from", "absent",
                    *overrides("run.out=new"))
        # Only the loaded data are read: the weights, not the moments, of which the last one is damaged.
        self.damage_data(6)
        self.train(self.config, "--init-from", "out", *overrides("run.out=new"), "--steps", "0")
        data = (self.checkpoint(6) / RANK_FILE).read_bytes()
        length = int.from_bytes(data[:8], "little")
        begin = 8 + length + json.loads(data[8:8 + length])["weight/embedding.token"]["data_offsets"][0]
        overwrite(self.checkpoint(6) / RANK_FILE, begin, bytes([data[begin] ^ 1]))
        self.refuse(CHECKPOINT, [RANK_FILE, "is damaged", "weight/embedding.token"], "train", self.config, "--init-from",
                    "out", *overrides("run.out=further"))
        self.assertFalse(self.path("further").exists())


class Import(CheckpointCase):
    def test_a_run_from_a_folder_of_transformers(self):
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        out = self.succeed("checkpoint", "import", "--hf", "hf", "imported")
        self.assertIn("imported: GPT2LMHeadModel, 16 tensors, 3,072 parameters; ", out)
        self.assertEqual(sorted(path.name for path in self.path("imported").iterdir()), ["checkpoints", "model.json"])
        model = json.loads(self.path("imported/model.json").read_text(encoding="utf-8"))["model"]
        self.assertEqual((model["hidden_size"], model["residual_dropout"]), (8, 0.1))
        config = json.loads(self.path(self.config).read_text(encoding="utf-8"))
        config["model"] = model
        self.train(self.write_config(config, "tuned.json"), "--init-from", "imported", *overrides("run.out=tuned"),
                   "--steps", "0")
        before, after = weights_of(self.checkpoint(6)), weights_of(self.checkpoint(0, "tuned"))
        for name in filter(lambda name: name.startswith("weight/"), before):
            self.assertEqual(after[name], before[name])

    def test_weights_of_fp16_go_back_as_they_came(self):
        self.succeed("checkpoint", "export", "out", "--hf", "hf", "--dtype", "fp16")
        self.assertEqual(json.loads(self.path("hf/config.json").read_text(encoding="utf-8"))["torch_dtype"], "float16")
        self.succeed("checkpoint", "import", "--hf", "hf", "imported")
        self.assertIn("in fp16 (", self.succeed("checkpoint", "export", "imported", "--hf", "back", "--dtype", "fp16"))
        for name in ("model.safetensors", "config.json"):
            self.assertEqual(self.path(f"back/{name}").read_bytes(), self.path(f"hf/{name}").read_bytes())
        self.assertIn(b'"F16"', self.path("hf/model.safetensors").read_bytes()[:4000])

    def test_files_of_tokenizers_that_stay_behind_are_named(self):
        note = "note: no tokenizer is exported: the checkpoint does not know that of its data; copy its tokenizer.json there\n"
        self.assertIn(note, self.succeed("checkpoint", "export", "out", "--hf", "hf"))
        for name in ("tokenizer_config.json", "chat_template.jinja", "vocab.txt"):
            self.path("hf", ).joinpath(name).write_text("{}", encoding="utf-8")
        out = self.succeed("checkpoint", "import", "--hf", "hf", "imported")
        self.assertIn("note: not imported: vocab.txt, tokenizer_config.json, chat_template.jinja, which a checkpoint does not "
                      "hold; an export writes its own\n", out)
        self.assertIn("note: no tokenizer is imported: the folder holds none; name one in data.tokenizer, and in generate --tokenizer\n", out)

    def test_what_becomes_of_a_tokenizer(self):
        """An import carries the tokenizer over or says how to name one, and so does a run from the imported weights."""
        self.path("in.txt").write_text("the quick brown fox " * 20, encoding="utf-8")
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        for vocabulary, note in (("270", "the tokenizer is not imported: it has 270 tokens, the model 257; a run from its weights may "
                                         "have the larger model.vocab_size"), ("257", "")):
            self.succeed("data", "train-tokenizer", "in.txt", "--vocab-size", vocabulary, "--out", "hf/tokenizer.json")
            out = self.succeed("checkpoint", "import", "--hf", "hf", f"with{vocabulary}")
            self.assertEqual([line for line in out.splitlines() if line.startswith("note: ")][:1], [f"note: {note}"] if note else [])
        self.path("hf/tokenizer.json").write_text('{"model": {"type": "WordPiece"}}', encoding="utf-8")
        self.assertIn("note: the tokenizer is not imported, name another in data.tokenizer or with --tokenizer: hf/tokenizer.json",
                      self.succeed("checkpoint", "import", "--hf", "hf", "without"))
        start = ("train", self.config, "--init-from", "with257", "--steps", "0")
        name = "with257/checkpoints/step-00000000/tokenizer.json"
        note = f"note: the tokenizer of the data is not known; data.tokenizer = {name} is that of the weights\n"
        self.assertIn(note, self.succeed(*start, *overrides("run.out=new")))
        self.assertNotIn("note", self.succeed(*start, *overrides("run.out=named", f"data.tokenizer={name}")))
        self.assertIn("vocabulary of 257", self.succeed("checkpoint", "inspect", "named"))

    def test_what_is_refused(self):
        self.refuse(CHECKPOINT, "cannot open absent/config.json", "checkpoint", "import", "--hf", "absent", "imported")
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        self.path("taken").mkdir()
        self.refuse(USAGE, "OUT taken: already exists", "checkpoint", "import", "--hf", "hf", "taken")
        self.refuse(USAGE, "--precision", "checkpoint", "import", "--hf", "hf", "imported", "--precision", "fp8")
        file = self.path("hf/config.json")
        file.write_text(file.read_text(encoding="utf-8").replace("gelu_new", "relu"), encoding="utf-8")
        self.refuse(CHECKPOINT, ["hf/config.json cannot be imported:", 'activation_function = "relu"'],
                    "checkpoint", "import", "--hf", "hf", "imported")
        self.assertFalse(self.path("imported").exists())


class NewFolders(CheckpointCase):
    def test_two_processes_do_not_write_one_folder(self):
        self.path(".tmp-made").mkdir()
        self.path(".tmp-made/half").write_text("x", encoding="utf-8")
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        commands = {"--hf": ["checkpoint", "export", "out", "--hf", "made"],
                    "OUT": ["checkpoint", "import", "--hf", "hf", "made"],
                    "--out": ["checkpoint", "average", "out", "--out", "made"]}
        held = os.open(self.path(".tmp-made"), os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        for option, command in commands.items():
            self.refuse(USAGE, f"{option} made: another gptrain is writing this folder", *command)
        self.assertTrue(self.path(".tmp-made/half").exists())
        os.close(held)
        # Leftovers of a killed process do not count.
        self.succeed(*commands["--hf"])
        self.assertEqual(sorted(path.name for path in self.path("made").iterdir()), ["config.json", "model.safetensors"])
        self.assertFalse(self.path(".tmp-made").exists())

    def test_a_folder_that_cannot_be_written_is_refused_before_any_work(self):
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        self.damage_data(6)  # found when it is read
        for command in (["export", "out", "--hf"], ["import", "--hf", "hf"], ["average", "out", "--out"]):
            self.refuse(CHECKPOINT, "cannot create /proc/made", "checkpoint", *command, "/proc/made/deep")
            self.refuse(CHECKPOINT, "cannot create run.json/.tmp-made: Not a directory", "checkpoint", *command, "run.json/made")
            self.refuse(USAGE, "is empty", "checkpoint", *command, "")

    def test_a_refusal_leaves_nothing(self):
        self.path("empty").mkdir()
        self.refuse(CHECKPOINT, "config.json", "checkpoint", "import", "--hf", "empty", "new/made")
        self.assertFalse(self.path("new").exists())


def rewrite_manifest(checkpoint, pattern, replacement):
    """Replaces the first match in the manifest and updates its checksum."""
    file = checkpoint / "manifest.json"
    text = re.sub(pattern, replacement, file.read_text(encoding="utf-8"), count=1)
    covered = text[:text.rindex(",")]
    file.write_text(f'{covered},\n  "crc32c": "{crc32c(covered.encode()):08x}"\n}}\n', encoding="utf-8")


def rewrite_tensor(checkpoint, name, numbers):
    """Replaces the numbers of an F32 tensor and updates the checksums."""
    header = (checkpoint / RANK_FILE).read_bytes()
    length = int.from_bytes(header[:8], "little")
    begin, end = json.loads(header[8:8 + length])[name]["data_offsets"]
    data = struct.pack(f"<{(end - begin) // 4}f", *numbers)
    overwrite(checkpoint / RANK_FILE, 8 + length + begin, data)
    rewrite_manifest(checkpoint, f'("{re.escape(name)}": )"[0-9a-f]{{8}}"', rf'\g<1>"{crc32c(data):08x}"')


class Compare(CheckpointCase):
    def test_diff(self):
        out = self.succeed("checkpoint", "diff", self.checkpoint(4), "out")
        a, b = weights_of(self.checkpoint(4)), weights_of(self.checkpoint(6))
        name = "weight/head.norm.bias"
        line = next(line for line in out.splitlines() if line.startswith(name))
        largest = max(abs(x - y) for x, y in zip(a[name], b[name], strict=True))
        self.assertAlmostEqual(float(line.split()[3]) / largest, 1, places=4)
        self.assertIn("0 of 48 tensors have the same numbers\n", out)
        self.assertEqual(self.succeed("checkpoint", "diff", "out", "out"), "48 of 48 tensors have the same numbers\n")
        self.train(self.config, "--init-from", "out", "--steps", "0", *overrides("run.out=new", "model.vocab_size=300"))
        self.assertRegex(self.succeed("checkpoint", "diff", "out", "new"),
                         r"weight/embedding\.token +\[257, 8\] against \[300, 8\]\n")

    def test_diff_of_what_is_no_number(self):
        """A NaN in the first element does not hide differences after it."""
        shutil.copytree(self.path("out"), self.path("copy"))
        rewrite_tensor(self.checkpoint(6, "copy"), "weight/head.norm.bias", [float("nan"), *[5.0] * 7])
        for pair in (("out", "copy"), ("copy", "out")):
            self.assertRegex(self.succeed("checkpoint", "diff", *pair),
                             r"(?m)^weight/head\.norm\.bias +largest difference nan +relative norm nan$")
        self.assertIn("48 of 48", self.succeed("checkpoint", "diff", "copy", "copy"))

    def test_average(self):
        self.succeed("checkpoint", "average", self.checkpoint(2), self.checkpoint(6), "--out", "mean")
        self.succeed("checkpoint", "average", "--shares", "0.25,0.75", self.checkpoint(2), self.checkpoint(6), "--out",
                     "shares")
        a, b = weights_of(self.checkpoint(2)), weights_of(self.checkpoint(6))
        for folder, share in (("mean", 0.5), ("shares", 0.25)):
            made = weights_of(self.checkpoint(6, folder))
            self.assertEqual(set(made), {name for name in a if name.startswith("weight/")})
            for name, values in made.items():
                for value, x, y in zip(values, a[name], b[name], strict=True):
                    self.assertAlmostEqual(value, share * x + (1 - share) * y, delta=1e-7 * max(1, abs(value)))
        self.succeed("generate", "--checkpoint", "mean", "--prompt", "a", "--tokens", 2)
        self.refuse(CHECKPOINT, "holds only weights: start a run from them with train --init-from", "train", self.config,
                    "--resume", "mean", *overrides("run.out=further"))
        self.refuse(USAGE, "--shares: nan is not a finite number", "checkpoint", "average", "--shares", "nan", "out",
                    "--out", "more")
        for shares, fault in (("0,0", "all are 0"), ("3,-3", "-3 is negative"), ("-0.0,0", "all are 0"), ("2,-1", "-1 is negative"),
                              ("1,inf", "inf is not a finite number"), ("1,1e999", "")):
            error = self.refuse(USAGE, f"--shares: {fault}" if fault else "--shares", "checkpoint", "average", f"--shares={shares}",
                                "out", "mean", "--out", "more")
            self.assertEqual(len(error.splitlines()), 1, error)
        self.refuse(CHECKPOINT, "every number of the weighted sum is 0 in f32", "checkpoint", "average", "--shares", "1e-60,1e-60",
                    self.checkpoint(2), self.checkpoint(6), "--out", "more")
        twice = self.run_gptrain("checkpoint", "average", "--shares", "1,1", self.checkpoint(2), self.checkpoint(6), "--out", "twice")
        self.assertEqual((twice.code, twice.err), (0, "warning: --shares add up to 2, not to 1: the weights are 2 times a mean\n"))
        self.refuse(USAGE, "--shares gives 1 numbers for 2 checkpoints", "checkpoint", "average", "--shares", "1", "out",
                    "mean", "--out", "more")
        self.refuse(USAGE, "--out mean: already exists", "checkpoint", "average", "out", "--out", "mean")
        self.train(self.config, *overrides("run.out=other", "model.num_layers=2", "run.steps=1"))
        self.refuse(USAGE, ["is of another model than", "model.num_layers: 1 in the checkpoint, 2"],
                    "checkpoint", "average", "out", "other", "--out", "more")
        self.assertFalse(self.path("more").exists())

    def test_tokenizers_that_differ_have_no_average(self):
        for step, digit in ((2, "a"), (4, "b"), (6, "b")):
            rewrite_manifest(self.checkpoint(step), r'\n  "tensors"',
                             f'\n  "tokenizer": {{"sha256": "{digit * 64}", "vocab_size": 257}},\n  "tensors"')
        self.succeed("checkpoint", "average", self.checkpoint(4), self.checkpoint(6), "--out", "mean")
        self.refuse(USAGE, "step-00000004 has another tokenizer than", "checkpoint", "average", self.checkpoint(2),
                    self.checkpoint(4), "--out", "more")
        self.assertFalse(self.path("more").exists())
        self.assertIn("note: no tokenizer is exported: the checkpoint has only its hash; copy its tokenizer.json there\n",
                      self.succeed("checkpoint", "export", "out", "--hf", "hf"))

    def test_what_fp16_does_not_hold_is_refused(self):
        rewrite_tensor(self.checkpoint(6), "weight/head.norm.bias", [65519.0, -65504.0, *[0.0] * 6])
        self.succeed("checkpoint", "export", "out", "--hf", "hf", "--dtype", "fp16")
        rewrite_tensor(self.checkpoint(6), "weight/head.norm.bias", [-65520.0, *[0.0] * 7])
        self.refuse(USAGE, '--dtype fp16: "transformer.ln_f.bias" holds -65520, and fp16 ends at 65504; choose bf16 or fp32',
                    "checkpoint", "export", "out", "--hf", "more", "--dtype", "fp16")
        self.assertFalse(self.path("more").exists())

    def test_deep(self):
        out = self.succeed("checkpoint", "verify", "--deep", "out")
        values = weights_of(self.checkpoint(6))["weight/embedding.token"]
        line = next(line for line in out.splitlines() if line.startswith("weight/embedding.token")).split()
        self.assertAlmostEqual(float(line[1]), sum(x * x for x in values) ** 0.5, places=4)
        self.assertAlmostEqual(float(line[2]), max(map(abs, values)), places=5)
        self.assertTrue(out.endswith("out/checkpoints/step-00000006: sound\n"), out)

    def test_prune_counts_sound_ones_alone(self):
        self.damage_manifest(6)
        result = self.run_gptrain("checkpoint", "prune", "out", "--keep-last", "1")
        self.assertEqual((result.code, result.out), (FINISHED, "out: 1 checkpoint removed, 2 kept\n"))
        self.assertEqual(result.err, "warning: out/checkpoints/step-00000006 is damaged: it is neither "
                         "counted nor removed; remove it yourself\n")
        self.assertEqual(self.checkpoint_steps(), [4, 6])

    def test_prune_removes_what_was_set_aside(self):
        folder = self.path("out") / "checkpoints"
        for name in ("step-00000008.abandoned", "step-00000008.abandoned-2", "step-00000008.abandoned-", "best.abandoned"):
            shutil.copytree(self.checkpoint(6), folder / name)
        out = self.succeed("checkpoint", "prune", "out", "--keep-last", "3")
        self.assertEqual(out, "out: 0 checkpoints removed, 3 kept\nout: 2 checkpoints removed that a resume had set aside\n")
        self.assertEqual(sorted(path.name for path in folder.glob("*abandoned*")),
                         ["best.abandoned", "step-00000008.abandoned-"])
        shutil.copytree(self.checkpoint(6), folder / "step-00000008.abandoned")
        held = os.open(self.path("out/.lock"), os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        self.refuse(USAGE, "another gptrain is running in this folder", "checkpoint", "prune", "out", "--keep-last", "1")
        os.close(held)
        self.assertTrue((folder / "step-00000008.abandoned").exists())

    def test_prune(self):
        out = self.succeed("checkpoint", "prune", "out", "--keep-last", "1", "--keep-every", "4")
        self.assertEqual(out, "out: 1 checkpoint removed, 2 kept\n")
        self.assertEqual(self.checkpoint_steps(), [4, 6])
        self.refuse(USAGE, "--keep-last", "checkpoint", "prune", "out")
        self.refuse(CHECKPOINT, "absent: holds no checkpoints", "checkpoint", "prune", "absent", "--keep-last", "1")
        self.train(self.config, "--resume", *overrides("run.steps=7"))


if __name__ == "__main__":
    unittest.main()
