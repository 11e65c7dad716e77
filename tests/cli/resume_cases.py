"""Runs that go on with something changed: other data, another config, another schedule."""
import json
import struct

from cli_case import DATA, USAGE, CliCase, overrides, tiny_config, write_tokens


class Data(CliCase):
    """The identity of the data behind a checkpoint."""

    def setUp(self):
        super().setUp()
        self.config = self.write_run()
        self.train(self.config, "--steps", "3")

    def resume(self, *arguments):
        return self.run_gptrain("train", self.config, "--resume", *arguments)

    def test_longer_source(self):
        self.write_corpus(num_tokens=4400)
        error = self.refuse(DATA, ["the training data are not those that the run was trained on",
                                   "data.train[0] in the checkpoint: corpus: 4,000 tokens in 249 samples, checksum ",
                                   "data.train[0] now: corpus: 4,400 tokens in 274 samples, checksum ",
                                   "give the path of the old file, or go on with --accept-changes data"],
                            "train", self.config, "--resume")
        self.assertNotIn("internal", error)
        self.assertEqual(self.checkpoint_steps(), [3])
        out = self.train(self.config, "--resume", "--accept-changes", "data")
        self.assertRegex(out, r"  data.train\[0\]: corpus: 4,000 tokens .* -> corpus: 4,400 tokens .*; "
                              r"in this epoch about \d+ samples? repeat and about \d+ are never seen\n")
        # From here on the new file is the run's.
        self.train(self.config, "--resume", "latest", "--set", "run.steps=8")

    def test_same_size(self):
        tokens = [5] * 4000
        write_tokens(self.path("corpus"), tokens, sequence_lengths=[1000, 3000])
        self.refuse(DATA, "the training data are not those", "train", self.config, "--resume")

    def test_moved(self):
        for suffix in (".bin", ".idx"):
            self.path(f"corpus{suffix}").rename(self.path(f"elsewhere{suffix}"))
        out = self.train(self.config, "--resume", "latest", "--set", "data.train[0].path=elsewhere")
        self.assertIn('  data.train: [{"path":"corpus","weight":1.0}] -> [{"path":"elsewhere","weight":1.0}]\n', out)

    def test_repacked_blocks(self):
        """With PREFIX.meta.json the content counts, not only the index."""
        for text, out in (("one two three four\n" * 60, "packed"), ("one two three five\n" * 60, "other")):
            self.path("text.txt").write_text(text, encoding="utf-8")
            self.succeed("data", "pack", "text.txt", "--out", out, "--tokenizer", "bytes")
        config = self.write_config(tiny_config(data={"train": [{"path": "packed"}]}, run={"out": "second"}), "second.json")
        self.train(config, "--steps", "3")
        self.train(config, "--resume", "latest", "--steps", "1")
        for suffix in (".bin", ".idx", ".meta.json"):
            self.path(f"other{suffix}").replace(self.path(f"packed{suffix}"))
        self.refuse(DATA, ["checksum ", " of its blocks"], "train", config, "--resume")

    def test_validation(self):
        self.write_corpus("heldout", num_tokens=400)
        validated = self.write_config(tiny_config(data={"validation": [{"path": "heldout"}]}, run={"out": "validated"}), "v.json")
        self.train(validated, "--steps", "3")
        self.write_corpus("heldout", num_tokens=500)
        out = self.train(validated, "--resume", "latest")
        self.assertRegex(out, r"  data.validation\[0\]: heldout: 400 tokens .* -> heldout: 500 tokens .*; validation losses from here on")
        manifest = json.loads((self.checkpoint(6, "validated") / "manifest.json").read_text(encoding="utf-8"))
        self.assertEqual((manifest["validation"][0]["tokens"], len(manifest["history"])), (500, 1))

    def test_flat(self):
        """A file without an index: its size and its ends."""
        for value in (1, 2):
            self.path(f"flat{value}.bin").write_bytes(struct.pack("<4000H", *([value] * 4000)))
        config = self.write_config(tiny_config(data={"train": [{"path": "flat1.bin"}]}, run={"out": "flat"}), "flat.json")
        self.train(config, "--steps", "3")
        self.train(config, "--resume", "latest", "--steps", "1")
        self.path("flat2.bin").replace(self.path("flat1.bin"))
        self.refuse(DATA, "of its first, middle and last MiB alone", "train", config, "--resume")

    def test_every_rank(self):
        self.write_corpus(num_tokens=4400)
        self.refuse(DATA, "the training data are not those", "train", self.config, "--resume", "latest", "--ranks", "2",
                    *overrides("batch.micro=1"))


class CompressedGradients(CliCase):
    """The errors that ranks keep of compressed gradients, and the factors of a low rank."""

    def resume(self, compression, ranks=2, of_node=1):
        """Trains whole and in two calls; returns the config. Ranks of a node share one copy of the errors."""
        config = self.write_run(comm={"compression": compression, **({"ranks_per_node": of_node} if of_node > 1 else {})},
                                batch={"micro": 1}, checkpoint={"every_steps": 3})
        self.train(config, "--ranks", ranks, *overrides("run.out=whole"))
        self.train(config, "--ranks", ranks, "--steps", "3")
        self.train(config, "--ranks", ranks, "--resume", "latest")
        for rank in range(ranks):
            name = f"rank-{rank:05}.safetensors"
            self.assertEqual((self.checkpoint(6) / name).read_bytes(), (self.checkpoint(6, "whole") / name).read_bytes())
            self.assertIn(b"residual.%03d/" % (rank // of_node), (self.checkpoint(6) / name).read_bytes())
        self.succeed("checkpoint", "verify", "out")
        self.assertIn("residual.001/", self.succeed("checkpoint", "inspect", "out"))
        return config

    def test_resumed(self):
        config = self.resume({"kind": "int8", "min_elements": 256})
        # One rank codes nothing and keeps no errors.
        self.train(config, "--resume", "latest", *overrides("run.steps=7"))
        self.assertNotIn("residual.", self.succeed("checkpoint", "inspect", "out"))

    def test_between_nodes(self):
        codes = {"kind": "int8", "min_elements": 256, "between": "nodes"}
        config = self.resume(codes, ranks=4, of_node=2)
        self.assertNotIn("residual.002/", self.succeed("checkpoint", "inspect", "out"))
        # Nodes of one rank, and ranks on one node, have no sums of their own to compress.
        for nodes in ("1", "4"):
            self.refuse(USAGE, 'comm.compression: between = "nodes": needs several nodes', "train", config, "--ranks", "4",
                        *overrides(f"comm.ranks_per_node={nodes}", "run.out=refused"))
        process = self.start("train", config, "--ranks", "4", *overrides("run.out=killed", "run.steps=100000000"))
        self.wait_until(lambda: process.stdout.readline().startswith("step 8/"), process)
        process.kill()
        process.wait()
        newest = self.checkpoint_steps("killed")[-1]
        for out, start in (("killed", ["--resume"]), ("straight", [])):
            self.train(config, "--ranks", "4", *start, *overrides(f"run.out={out}", f"run.steps={newest + 2}"))
        for rank in range(4):
            name = f"rank-{rank:05}.safetensors"
            self.assertEqual((self.checkpoint(newest + 2, "killed") / name).read_bytes(),
                             (self.checkpoint(newest + 2, "straight") / name).read_bytes())

    def test_sketches(self):
        self.resume({"kind": "sketch", "min_elements": 256, "share": 0.05})

    def test_low_rank(self):
        config = self.resume({"kind": "powersgd", "min_elements": 256})
        self.assertIn("factor.02/", self.succeed("checkpoint", "inspect", "out"))
        # Factors of another rank begin anew, errors go on.
        self.train(config, "--ranks", "2", "--resume", "latest",
                   *overrides('comm.compression={"kind": "powersgd", "min_elements": 256, "rank": 1}', "run.steps=7"))
        self.assertIn("factor.01/", self.succeed("checkpoint", "inspect", "out"))


class BalancedExperts(CliCase):
    """Biases of routers and loads of the step before, which no gradient makes: state of the run in its checkpoints."""

    def setUp(self):
        super().setUp()
        self.config = self.write_run(
            model={"hidden_size": 16, "bias": False, "moe": {
                "experts": 4, "top_k": 2, "ffn_hidden_size": 32, "aux_loss": 0.1, "aux_over": "global",
                "router_bias_rate": 0.01}},
            batch={"micro": 1}, checkpoint={"every_steps": 3})

    def routers(self, checkpoint):
        """Returns the values of biases and loads in a checkpoint of one rank."""
        data = (checkpoint / "rank-00000.safetensors").read_bytes()
        start = 8 + struct.unpack_from("<Q", data)[0]
        places = {name: entry["data_offsets"] for name, entry in json.loads(data[8:start]).items()
                  if name.startswith("weight/") and ".router." in name}
        return {name: struct.unpack_from("<4f", data, start + first) for name, (first, _) in places.items()
                if name.endswith((".bias", ".excess"))}

    def test_resumed(self):
        ranks = ["--ranks", "2", *overrides("parallel.expert=2", "parallel.expert_room=2", "parallel.zero=1")]
        self.train(self.config, *ranks, *overrides("run.out=whole"))
        self.train(self.config, *ranks, "--steps", "3")
        self.train(self.config, *ranks, "--resume", "latest")
        for rank in range(2):
            name = f"rank-{rank:05}.safetensors"
            self.assertEqual((self.checkpoint(6) / name).read_bytes(), (self.checkpoint(6, "whole") / name).read_bytes())
        records, whole = self.records(key="moe"), self.records("whole", key="moe")
        self.assertEqual([record["moe"] for record in records], [record["moe"] for record in whole])
        # One rank goes on with the biases and loads of two.
        before = self.checkpoint(6)
        self.train(self.config, "--resume", "latest", *overrides("run.steps=7"))
        values = self.routers(self.checkpoint(7))
        self.assertEqual(sorted(values), ["weight/blocks.0.router.bias", "weight/blocks.0.router.excess"])
        for name, row in values.items():
            self.assertIn(name.encode(), b"".join(file.read_bytes() for file in before.glob("*.safetensors")))
            self.assertTrue(any(value != 0 for value in row), name)
            self.assertLess(max(abs(value) for value in row), 0.0701 if name.endswith("bias") else 1.0001)

    def test_killed(self):
        process = self.start("train", self.config, *overrides("run.out=killed", "run.steps=100000000"))
        self.wait_until(lambda: process.stdout.readline().startswith("step 8/"), process)
        process.kill()
        process.wait()
        newest = self.checkpoint_steps("killed")[-1]
        self.train(self.config, "--resume", *overrides("run.out=killed", f"run.steps={newest + 2}"))
        self.train(self.config, *overrides("run.out=whole", f"run.steps={newest + 2}"))
        self.assert_same_checkpoint(self.checkpoint(newest + 2, "killed"), self.checkpoint(newest + 2, "whole"))
        self.assertEqual(len(self.routers(self.checkpoint(newest + 2, "killed"))), 2)


class LocalSteps(CliCase):
    """Islands that average their weights: their own optimizer state in checkpoints, and saves between averagings."""

    def setUp(self):
        super().setUp()
        local = {"islands": 2, "every": 2, "start_step": 1, "outer": "nesterov"}
        self.config = self.write_run(parallel={"local_steps": local}, batch={"micro": 1}, checkpoint={"every_steps": 2})

    def test_resumed(self):
        self.train(self.config, "--ranks", "2", *overrides("run.out=whole"))
        self.train(self.config, "--ranks", "2", "--steps", "4")
        self.train(self.config, "--ranks", "2", "--resume", "latest")
        for rank in range(2):
            name = f"rank-{rank:05}.safetensors"
            self.assertEqual((self.checkpoint(6) / name).read_bytes(), (self.checkpoint(6, "whole") / name).read_bytes())
        self.assertIn(b"exp_avg.001/", (self.checkpoint(6) / "rank-00001.safetensors").read_bytes())
        self.assertNotIn(b"weight/", (self.checkpoint(6) / "rank-00001.safetensors").read_bytes())
        self.assertIn(b"outer_momentum/", (self.checkpoint(6) / "rank-00000.safetensors").read_bytes())
        self.succeed("checkpoint", "verify", "out")
        # Islands of two ranks go on from islands of one.
        self.train(self.config, "--ranks", "4", "--resume", "latest", *overrides("run.steps=8", "parallel.zero=1"))
        self.assertIn("exp_avg.001/", self.succeed("checkpoint", "inspect", "out"))

    def test_refused(self):
        self.refuse(USAGE, ["--steps 3: this call would end after step 3, where the islands of parallel.local_steps have "
                            "different weights (--steps 4 ends at an averaging)"],
                    "train", self.config, "--ranks", "2", "--steps", "3")

    def test_planned(self):
        text = self.succeed("train", self.config, "--ranks", "2", "--dry-run")
        for line in ("sent by rank 0 in one warm-up step", "sent by rank 0 in one averaging step",
                     "islands all_reduce"):
            self.assertIn(line, text)


class Keys(CliCase):
    """Changed keys are printed and kept, and nothing jumps unasked."""

    def history(self, step):
        return json.loads(self.checkpoint(step).joinpath("manifest.json").read_text(encoding="utf-8")).get("history", [])

    def test_printed_and_kept(self):
        config = self.write_run()
        self.train(config, "--steps", "3")
        out = self.train(config, "--resume", "latest",
                         *overrides("optimizer.lr=0.005", "optimizer.clip_norm=0.5", "optimizer.betas=[0.8,0.9]",
                                    "optimizer.weight_decay=0.2", "model.z_loss=0.001", "model.dropout=0.1"))
        lines = ["optimizer.lr: 0.01 -> 0.005", "optimizer.clip_norm: 1.0 -> 0.5", "optimizer.betas: [0.9,0.95] -> [0.8,0.9]",
                 "optimizer.weight_decay: 0.1 -> 0.2", "model.z_loss: 0.0 -> 0.001", "model.residual_dropout: 0.0 -> 0.1",
                 "learning rate of step 4: 1.00e-02 -> 5.00e-03"]
        for line in lines:
            self.assertIn(f"  {line}\n", out)
        [record] = self.history(6)
        self.assertEqual(record["step"], 3)
        self.assertLessEqual(set(lines), set(record["changes"]))

    def test_nothing_changed(self):
        config = self.write_run()
        self.train(config, "--steps", "3")
        self.assertNotIn("->", self.train(config, "--resume", "latest"))
        self.assertEqual(self.history(6), [])

    def test_rate_jumps(self):
        config = self.write_run(schedule={"type": "cosine", "min_lr": 0.0001}, run={"steps": 12})
        self.train(config)
        longer = overrides("run.steps=24")
        self.refuse(USAGE, ["the learning rate, which has fallen to 1.00e-04 at step 12, would jump to ",
                            "run.steps: 12 -> 24", "--accept-changes schedule"], "train", config, "--resume", "latest", *longer)
        self.refuse(USAGE, "would rise to 1.00e-02 at step 20:", "train", config, "--resume", "latest",
                    *overrides("schedule.warmup_steps=20", "run.steps=400", "optimizer.lr=0.01"))
        out = self.train(config, "--resume", "latest", *longer, "--accept-changes", "schedule")
        self.assertIn("  run.steps: 12 -> 24\n", out)
        self.assertRegex(out, r"  learning rate of step 13: 1\.00e-04 -> \d\.\d\de-03\n")
        self.assertEqual(self.checkpoint_steps()[-1], 24)

    def test_another_batch(self):
        config = self.write_run()
        self.train(config, "--steps", "3")
        self.assertIn("  batch.global: 4 -> 8\n", self.train(config, "--resume", "latest", *overrides("batch.global=8")))
        self.assertEqual([record["samples"] for record in self.records()], [4, 8, 12, 20, 28, 36])
        self.train(config, "--resume", "latest", *overrides("batch.global=8", "run.steps=7"))

    def test_what_must_not_change(self):
        config = self.write_run()
        self.train(config, "--steps", "3")
        self.refuse(USAGE, ["run.seed: 1 in the checkpoint, 2 in the config", "give these keys the checkpoint's values",
                            "--init-from"], "train", config, "--resume", "latest", *overrides("run.seed=2"))


class Mixtures(CliCase):
    """A changed mixture begins a phase: each source goes on at the ordinal that it has reached."""

    def config_of(self, weights, name):
        return self.write_config(tiny_config(data={"train": [{"path": "a", "weight": weights[0]}, {"path": "b", "weight": weights[1]}]},
                                             run={"steps": 40}), name)

    def test_each_source_goes_on(self):
        self.write_corpus("a", num_tokens=16 * 100 + 1)
        self.write_corpus("b", num_tokens=16 * 60 + 1)
        first, second = self.config_of((1, 1), "first.json"), self.config_of((3, 1), "second.json")
        self.train(first, "--steps", "10")
        out = self.train(second, "--resume", "latest", "--steps", "10")
        self.assertRegex(out, r'  data.train: .*"weight":1.0.* -> .*"weight":3.0')
        # Interrupted or not, the order after the change is the same.
        self.train(second, "--resume", "latest")
        self.train(first, "--steps", "10", *overrides("run.out=whole"))
        self.train(second, "--resume", "latest", *overrides("run.out=whole"))
        self.assert_same_checkpoint(self.checkpoint(40), self.checkpoint(40, "whole"))
