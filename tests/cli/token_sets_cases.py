"""Sources that are sets of token files: the shards of a pack, a folder, a pattern, shards of llm.c; and `data join` of them."""
import json
import random
import re
import shutil
import struct
import unittest

from cli_case import DATA, FINISHED, SOURCE_ROOT, USAGE, CliCase, not_of_some_cases, overrides, tiny_config, write_tokens


class TokenSets(CliCase):
    def write_set(self, folder, draw, flat=False):
        """Shards of any sizes, some too short for a sample; their tokens."""
        self.path(folder).mkdir()
        shards = []
        for size in [draw.choice([1, 16, 17, 40, 400]) for _ in range(draw.randint(2, 6))] + [500]:
            tokens = [draw.randrange(64) for _ in range(size)]
            shards.append(tokens)
            if flat:
                header = struct.pack("<3i", 20240520, 1, size) + bytes(1012)
                self.path(f"{folder}/shard_train_{len(shards):06d}.bin").write_bytes(header + struct.pack(f"<{size}H", *tokens))
            else:
                write_tokens(self.path(f"{folder}/set-{len(shards) - 1:05}"), tokens)
        return shards

    def samples(self, path):
        config = tiny_config(data={"train": [{"path": path, "weight": 1}]}, batch={"global": 2, "micro": 1})
        return self.succeed("data", "mix", self.write_config(config))

    @not_of_some_cases
    def test_a_set_is_one_source_under_every_name(self):
        draw = random.Random(1)
        for number in range(4):
            folder, flat = f"d{number}", number % 2 == 1
            shards = self.write_set(folder, draw, flat)
            total = sum(map(len, shards))
            names = [folder, f"{folder}/*"] + ([f"{folder}/shard_train_*.bin"] if flat else
                                               [f"{folder}/set", f"{folder}/set-*", f"{folder}/set-0000[0-9]", f"{folder}/set-*.bin"])
            weights = []
            for name in names:
                with self.subTest(name=name):
                    report = self.samples(name)
                    self.assertRegex(report, rf" {total:,} ")
                    out = f"out-{number}-{len(weights)}"
                    self.train("run.json", *overrides("run.steps=3", f"run.out={out}"))
                    weights.append((self.checkpoint(3, out) / "rank-00000.safetensors").read_bytes())
            self.assertEqual(len(set(weights)), 1, folder)
            joined = self.succeed("data", "join", folder, "--out", f"joined{number}")
            self.assertIn(f"{total:,} tokens from {len(shards)} token files", joined)
            content = self.path(f"joined{number}.bin").read_bytes()
            self.assertEqual(content, struct.pack(f"<{total}H", *[token for tokens in shards for token in tokens]))
            # As a shell spells out the pattern: parts of one file count once.
            parts = sorted(str(path.relative_to(self.folder)) for path in self.path(folder).iterdir())
            self.succeed("data", "join", *parts, "--out", f"parts{number}")
            self.assertEqual(self.path(f"parts{number}.bin").read_bytes(), content)

    def swap(self, one, other):
        for suffix in (".bin", ".idx", ".meta.json"):
            self.path(one + suffix).rename(self.path("aside"))
            self.path(other + suffix).rename(self.path(one + suffix))
            self.path("aside").rename(self.path(other + suffix))

    def test_shards_of_a_pack(self):
        draw = random.Random(2)
        texts = [" ".join(draw.choice(["the", "fox", "naps"]) for _ in range(draw.randrange(3, 60))) for _ in range(100)]
        self.path("a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        self.succeed("data", "pack", "a.jsonl", "--tokenizer", "bytes", "--shards-of", "2000", "--out", "s")
        self.train(self.write_config(tiny_config(data={"train": [{"path": "s"}]}, run={"steps": 2, "sample_every_steps": 1,
                                                                                      "sample_tokens": 4})))
        self.assertIn("s: all ", self.succeed("data", "verify", "s"))
        self.swap("s-00001", "s-00002")
        self.refuse(DATA, "s: each shard is sound, but they are not those", "data", "verify", "s")
        self.swap("s-00001", "s-00002")
        count = len(list(self.folder.glob("s-*.idx")))
        for suffix in (".bin", ".idx", ".meta.json"):
            shutil.copy(self.path("s-00001" + suffix), self.path(f"s-{count:05}" + suffix))
        for name in ("s", "s-*"):
            self.refuse(DATA, f"s-{count:05} is there, and s.pack.json counts {count} shards", "data", "verify", name)
        for suffix in (".bin", ".idx", ".meta.json"):
            self.path(f"s-{count:05}" + suffix).unlink()
        self.succeed("data", "join", "s", "--out", "s")
        for name in ("s", "s*"):
            self.refuse(DATA, "both s.idx and its shards from s-00000.idx on are there", "data", "verify", name)
        for suffix in (".bin", ".idx", ".meta.json"):
            self.path("s" + suffix).unlink()
        self.path("s-00001.idx").unlink()
        self.refuse(DATA, "s-00001.idx is missing, although there is a later shard, s-00002", "train", "run.json", "--resume",
                    *overrides("run.steps=3"))
        self.path("s-00000.idx").unlink()
        self.refuse(DATA, "s-00000.idx is missing, although s.pack.json counts", "train", "run.json", "--resume", *overrides("run.steps=3"))

    def test_texts_as_data(self):
        """A file of texts as a data path: the message says how to make token files of it."""
        for name in ("a.jsonl", "a.jsonl.gz", "a.txt", "a.csv", "a.parquet", "a"):
            self.path(name).write_bytes(b'{"text": "ab"}\n' * 9)
            config = self.write_config(tiny_config(data={"train": [{"path": name}]}))
            for command in (["train"], ["data", "mix"]):
                self.refuse(DATA, [f"{name}: no token file", "`gptrain data pack` makes token files of texts"], *command, config)

    def test_phases_as_the_page_writes_them(self):
        """The page's example: all samples of the first steps are of the first source, later a quarter are of the second."""
        page = (SOURCE_ROOT / "data/README.md").read_text(encoding="utf-8")
        phases = json.loads("{" + re.search(r'`("phases": \[.*?\])`', page)[1] + "}")["phases"]
        for name in ("one", "two"):
            write_tokens(self.path(name), [5] * 40_000)
        sources = [{"path": "one", "weight": 1}, {"path": "two", "weight": 1}]
        shares = []
        for until in [phase["until_step"] for phase in phases]:
            config = tiny_config(data={"train": sources, "phases": phases}, batch={"global": 2, "micro": 1}, run={"steps": until})
            table = self.succeed("data", "mix", self.write_config(config))
            tokens = [int(re.search(rf"\n{name}\s.*%\s+([\d,]+) ", table)[1].replace(",", "")) for name in ("one", "two")]
            shares.append(tokens[1] / sum(tokens))
        weights = phases[1]["weights"]
        later = (phases[1]["until_step"] - phases[0]["until_step"]) / phases[1]["until_step"]
        self.assertEqual(shares[0], 0)
        self.assertAlmostEqual(shares[1], later * weights[1] / sum(weights), delta=0.001)

    def test_a_file_of_two_sources(self):
        """tests/unit/data/test_repeated_inputs.cpp has the other ways to name a file twice."""
        self.write_set("d", random.Random(6))
        self.write_config(tiny_config(data={"train": [{"path": "d"}, {"path": "d/set-00001"}]}, run={"steps": 1}))
        warning = "a token file is in the data twice, and its samples come more often than others: d/set-00001.bin of data.train[1]"
        for command in (["data", "mix", "run.json"], ["train", "run.json", "--dry-run"], ["train", "run.json"]):
            result = self.run_gptrain(*command)
            self.assertEqual((result.code, (result.out + result.err).count(warning)), (FINISHED, 1), result)

    def test_a_set_that_is_another_one_on_resume(self):
        """tests/unit/data/test_token_set.cpp has all kinds of changes."""
        self.write_set("d", random.Random(4))
        config = self.write_config(tiny_config(data={"train": [{"path": "d"}]}, run={"steps": 2}))
        self.train(config)
        more = ("train", config, "--resume", *overrides("run.steps=3"))
        first, hidden = self.path("d/set-00000.bin"), self.path("d/.away")
        first.rename(hidden)
        index = self.path("d/set-00000.idx").rename(self.path("d/.index"))
        self.refuse(DATA, ["the training data are not those that the run was trained on", "data.train[0] now: d: "], *more)
        hidden.rename(first)
        index.rename(self.path("d/set-00000.idx"))
        write_tokens(self.path("d/more"), [5] * 400)
        self.refuse(DATA, "the training data are not those that the run was trained on", *more)
        self.assertIn("data.train[0]: d: ", self.succeed(*more, "--accept-changes", "data"))

    def test_the_vocabulary_of_every_shard(self):
        self.path("a.jsonl").write_text('{"text": "ab"}\n' * 100, encoding="utf-8")
        self.succeed("data", "pack", "a.jsonl", "--tokenizer", "bytes", "--shards-of", "100", "--out", "s")
        config = self.write_config(tiny_config(model={"vocab_size": 200}, data={"train": [{"path": "s"}]}))
        self.refuse(USAGE, ["s-00000", "200"], "config", "check", config)


class Widths(CliCase):
    def write_widths(self, size, largest):
        draw = random.Random(3)
        ids = [draw.randrange(largest) for _ in range(size)]
        for name in ("wide.bin", "ids.dat"):
            self.path(name).write_bytes(struct.pack(f"<{size}I", *ids))
        self.path("narrow.bin").write_bytes(struct.pack(f"<{size}H", *[token % 60_000 for token in ids]))
        return ids

    def test_tokens_without_a_header(self):
        """Files of u32 under the name of one of u16: a warning, once, and --dtype gives the ids; none for sound u16."""
        for size, largest in ((40, 50_000), (20_000, 150_000)):
            ids = self.write_widths(size, largest)
            result = self.run_gptrain("data", "inspect", "wide.bin")
            self.assertEqual((result.code, result.err.count("warning: wide.bin is read as u16")), (0, 1), result.err)
            self.assertNotIn("warning", self.run_gptrain("data", "inspect", "narrow.bin").err)
            for name in ("wide.bin", "ids.dat"):
                for command in (["convert", name, "out"], ["join", name, "--out", "out"]):
                    self.assertNotIn("warning", self.run_gptrain("data", *command, "--dtype", "u32").err)
                    self.assertEqual(self.path("out.bin").read_bytes(), struct.pack(f"<{size}i", *ids))
                self.assertIn(f"{size:,} tokens", self.succeed("data", "inspect", name, "--dtype", "u32"))
                self.refuse(DATA, f"token {max(ids)} ", "data", "verify", name, "--dtype", "u32", "--vocabulary", max(ids))
            self.succeed("data", "convert", "narrow.bin", "out", "--dtype", "u16")
            self.assertEqual(self.path("out.bin").read_bytes(), self.path("narrow.bin").read_bytes())
        # A header says the type, whatever the name.
        self.succeed("data", "convert", "narrow.bin", "a.npy")
        self.path("a.npy").rename(self.path("a.tokens"))
        self.assertIn(f"{size:,} tokens", self.succeed("data", "inspect", "a.tokens"))
        self.refuse(USAGE, "a.tokens has a header that says its type", "data", "convert", "a.tokens", "out", "--dtype", "u32")
        self.refuse(USAGE, "out.idx says the type of its tokens", "data", "inspect", "out", "--dtype", "u32")
        self.path("odd.bin").write_bytes(bytes(6))
        self.refuse(DATA, "6 bytes are no whole number of tokens of", "data", "convert", "odd.bin", "out", "--dtype", "u32")

    def test_other_widths(self):
        """A warning for each type other than that of the reading, with a remedy."""
        ids = [i * 7919 % 120_000 for i in range(80)]
        for name, content, remedy, more in [("i64.bin", struct.pack("<80q", *ids), '"<i8"', []),
                                            ("i64.bin", struct.pack("<80q", *ids), '"<i8"', ["--dtype", "u32"]),
                                            ("big.bin", struct.pack(">80I", *ids), '">u4"', []),
                                            ("u32.bin", struct.pack("<80I", *ids), "--dtype u32", []),
                                            ("u32.bin", struct.pack("<80I", *ids), None, ["--dtype", "u32"]),
                                            ("u16.bin", struct.pack("<80H", *[i % 60_000 for i in ids]), None, [])]:
            self.path(name).write_bytes(content)
            result = self.run_gptrain("data", "inspect", name, *more)
            self.assertEqual("warning: " in result.err, remedy is not None, result.err)
            self.assertIn(remedy or "", result.err)

    def test_a_source_of_a_run(self):
        self.write_widths(4000, 200)
        config = self.write_config(tiny_config(data={"train": [{"path": "wide.bin"}]}, run={"steps": 2}))
        self.assertIn("warning: wide.bin is read as u16", self.run_gptrain("data", "mix", config).err)
        narrow, wide = overrides("data.train[0].path=narrow.bin", "run.out=narrow"), overrides("data.train[0].dtype=u32")
        self.train(config, *narrow)
        self.assertNotIn("warning", self.run_gptrain("train", config, *wide, "--steps", "1").err)
        self.assertIn('"dtype":"u32"', self.succeed("config", "show", config, *wide).replace(" ", ""))
        self.train(config, *wide, "--resume")
        self.assert_same_steps(self.records(), self.records("narrow"))
        self.refuse(DATA, "the training data are not those", "train", config, "--resume", *overrides("run.steps=3"))


class OutputsFirst(CliCase):
    def test_what_cannot_be_written_is_found_first(self):
        """Before anything is read: the inputs are not there either."""
        self.path("file").touch()
        for name in ("folder", "taken.bin", "state.pack.json"):
            self.path(name).mkdir()
        write_tokens(self.path("tokens"), [1, 2])
        self.succeed("data", "convert", "tokens", "flat.npy")
        before = sorted(self.folder.rglob("*"))
        config = self.write_config(tiny_config())
        for code, arguments in [
                (DATA, ["data", "train-tokenizer", "absent", "--vocab-size", "300", "--out", "nowhere/t.json"]),
                (DATA, ["data", "train-tokenizer", "absent", "--vocab-size", "300", "--out", "file/t.json"]),
                (DATA, ["data", "train-tokenizer", "absent", "--vocab-size", "300", "--out", "folder"]),
                (DATA, ["data", "pack", "absent", "--tokenizer", "bytes", "--out", "folder/"]),
                (DATA, ["data", "pack", "absent", "--tokenizer", "bytes", "--best-fit", "4", "--out", "taken"]),
                (DATA, ["data", "pack", "absent", "--tokenizer", "bytes", "--resume", "--out", "state"]),
                (DATA, ["data", "convert", "tokens", "--to", "npy", "folder"]),
                (DATA, ["data", "convert", "flat.npy", "folder/"]),
                (DATA, ["data", "join", "tokens", "--out", "taken"]),
                (USAGE, ["train", config, "--dry-run", "--target", "absent", "--html", "folder"]),
                (USAGE, ["train", config, "--dry-run", "--target", "absent", "--trace", "folder"]),
                (USAGE, ["plan", config, "--gpus", "8", "--target", "absent", "--out", "nowhere/best.json"]),
                (USAGE, ["plan", config, "--gpus", "8", "--target", "absent", "--html", "nowhere/page.html"])]:
            with self.subTest(arguments=arguments):
                self.refuse(code, arguments[-1], *arguments)
                self.assertNotIn(".tmp", self.run_gptrain(*arguments).err)
        self.assertEqual(sorted(path for path in self.folder.rglob("*") if path.name != "run.json"), before)


if __name__ == "__main__":
    unittest.main()
