"""Optimizers other than AdamW: resuming, changing the layout, reported memory."""
import json

from checkpoints_cases import CheckpointCase
from cli_case import USAGE, first_in_fast_suite, overrides
from weights_cases import weights_of

# optimizer.type: its other keys, and its columns.
OPTIMIZERS = {"sgd": (["optimizer.momentum=0.8", "optimizer.nesterov=true"], ["momentum"]), "lion": ([], ["exp_avg"]),
              "lamb": ([], ["exp_avg", "exp_avg_sq"]), "lars": (["optimizer.trust_coefficient=0.1"], ["momentum"]),
              "muon": ([], ["exp_avg", "exp_avg_sq"]),
              "adafactor": (["optimizer.scale_parameter=false"], ["exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"])}


class Optimizers(CheckpointCase):
    def settings(self, kind, out):
        return overrides(f"optimizer.type={kind}", f"run.out={out}", *OPTIMIZERS[kind][0])

    def test_they_go_on_where_they_were(self):
        for kind, (_, columns) in OPTIMIZERS.items():
            with self.subTest(kind=kind):
                whole, part = self.settings(kind, f"{kind}-whole"), self.settings(kind, f"{kind}-part")
                self.train(self.config, *whole)
                self.train(self.config, *part, "--steps", "3")
                self.train(self.config, *part, "--resume")
                self.assert_same_checkpoint(self.checkpoint(6, f"{kind}-part"), self.checkpoint(6, f"{kind}-whole"))
                losses = [record["loss"] for record in self.records(f"{kind}-whole")]
                self.assertNotEqual(losses[1:], [record["loss"] for record in self.records()][1:])
                tensors = weights_of(self.checkpoint(6, f"{kind}-whole"))
                self.assertEqual({name.split("/")[0] for name in tensors}, {"weight", *columns})
                self.assertTrue(any(tensors[f"{columns[0]}/embedding.token"]))

    def test_checkpoints_change_their_layout(self):
        pieces, shards = (2, ["parallel.zero=1"]), (4, ["parallel.tensor=2", "parallel.zero=3"])
        for kind, (ranks, layout) in first_in_fast_suite(3, [("sgd", pieces), ("muon", shards), ("adafactor", shards),
                                                             ("lion", shards), ("lamb", shards), ("lars", pieces)]):
            columns = OPTIMIZERS[kind][1]
            run = [*self.settings(kind, kind), *overrides("checkpoint.every_steps=1", "checkpoint.keep_last=9")]
            self.train(self.config, *run, "--steps", "4")
            expected = weights_of(self.checkpoint(4, kind))
            with self.subTest(kind=kind, ranks=ranks):
                many, back = f"{kind}-{ranks}", f"{kind}-{ranks}-back"
                self.train(self.config, "--ranks", ranks, *run, *overrides(f"run.out={many}", "batch.micro=1", *layout),
                           "--resume", f"{kind}/checkpoints/step-00000002", "--steps", "1")
                self.train(self.config, *run, *overrides(f"run.out={back}"), "--resume",
                           f"{many}/checkpoints/step-00000003", "--steps", "1")
                for name, values in weights_of(self.checkpoint(4, back)).items():
                    if not name.startswith(columns[0] + "/"):
                        continue
                    bound = 1e-4 * max(map(abs, expected[name]))
                    for value, other in zip(values, expected[name], strict=True):
                        self.assertAlmostEqual(value, other, delta=bound, msg=name)

    def test_what_they_take(self):
        def plan(*arguments):
            planned = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *arguments))
            return planned["moments_bytes"]

        two = plan()
        for kind in ("sgd", "lion", "lamb", "lars"):
            columns = OPTIMIZERS[kind][1]
            settings = self.settings(kind, "new")
            self.assertEqual(plan(*settings) * 2, two * len(columns))
            self.assertEqual(plan(*settings, *overrides("optimizer.ema=0.9")) * 2, two * (len(columns) + 1))
            named = ", ".join(f"{column} f32" for column in columns)
            self.assertIn(f"; {named}\n", self.train(self.config, *settings, "--dry-run"))

    def test_muon_keeps_one_moment_of_blocks_matrices(self):
        planned = {kind: json.loads(self.succeed("train", self.config, "--dry-run", "--json", *self.settings(kind, "new")))
                   for kind in OPTIMIZERS}
        text = self.train(self.config, *self.settings("muon", "new"), "--dry-run")
        self.assertIn("; exp_avg f32, exp_avg_sq f32 outside blocks' matrices\n", text)
        self.train(self.config, *self.settings("muon", "new"), "--steps", "1")
        tensors = weights_of(self.checkpoint(1, "new"))
        matrices = {name for name in tensors if name.startswith("weight/blocks") and name.endswith(
            ("qkv.weight", "out.weight", "in.weight"))}
        self.assertTrue(matrices)
        for name in tensors:
            if name.startswith("weight/"):
                self.assertEqual(name.replace("weight", "exp_avg_sq", 1) in tensors, name not in matrices, name)
        saved = 4 * sum(len(tensors[name]) for name in matrices)
        self.assertEqual(planned["lamb"]["checkpoint_bytes"] - planned["muon"]["checkpoint_bytes"], saved)
        self.assertGreaterEqual(planned["lamb"]["moments_bytes"] - planned["muon"]["moments_bytes"], saved)

    def test_adafactor_keeps_rows_and_columns(self):
        planned = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *self.settings("adafactor", "new")))
        text = self.train(self.config, *self.settings("adafactor", "new"), "--dry-run")
        self.assertIn("; exp_avg_sq f32 of vectors, exp_avg_sq_row f32 for each row of a matrix, exp_avg_sq_col f32 for "
                      "each column\n", text)
        self.train(self.config, *self.settings("adafactor", "new"), "--steps", "1")
        tensors = weights_of(self.checkpoint(1, "new"))
        self.assertEqual(4 * sum(len(values) for values in tensors.values()), planned["checkpoint_bytes"])
        # Queries, keys and values count as separate matrices.
        hidden = len(tensors["weight/head.norm.weight"])
        self.assertEqual(len(tensors["exp_avg_sq_row/blocks.0.attention.qkv.weight"]), 3 * hidden)
        self.assertEqual(len(tensors["exp_avg_sq_col/blocks.0.attention.qkv.weight"]), 3 * hidden)
        self.assertEqual(len(tensors["exp_avg_sq_col/blocks.0.attention.out.weight"]), hidden)
        for name in tensors:
            if name.startswith("weight/"):
                matrix = len(tensors[name]) > 4 * hidden
                self.assertEqual([name.replace("weight", kind, 1) in tensors for kind in OPTIMIZERS["adafactor"][1]],
                                 [matrix, matrix, not matrix], name)
        # The mean of a matrix's squares equals that of its row moments and of its column moments.
        for name in ("embedding.token", "blocks.0.ffn.out.weight"):
            rows, cols = (tensors[f"exp_avg_sq_{kind}/{name}"] for kind in ("row", "col"))
            self.assertAlmostEqual(sum(rows) / len(rows) / (sum(cols) / len(cols)), 1, delta=1e-5)
        # Under ZeRO and tensor parallelism one rank writes them.
        self.train(self.config, "--ranks", 4, *self.settings("adafactor", "many"),
                   *overrides("parallel.tensor=2", "parallel.zero=3", "batch.micro=1"), "--steps", "1")
        name = "exp_avg_sq_row/embedding.token"
        held = weights_of(self.checkpoint(1, "many"))[name]
        self.assertEqual(len(held), len(tensors[name]))
        self.assertAlmostEqual(sum(held) / sum(tensors[name]), 1, delta=1e-5)
        headers = [file.read_bytes() for file in self.checkpoint(1, "many").glob("rank-*.safetensors")]
        written = [name for data in headers for name in json.loads(data[8:8 + int.from_bytes(data[:8], "little")])]
        kinds = ("exp_avg_sq_row/", "exp_avg_sq_col/")
        self.assertEqual(sorted(name for name in written if name.startswith(kinds)),
                         sorted(name for name in tensors if name.startswith(kinds)))
        self.succeed("checkpoint", "verify", "many")

    def test_moments_of_8_bits(self):
        def settings(out, *more):
            return overrides("optimizer.type=adamw-8bit", "model.hidden_size=32", f"run.out={out}", "optimizer.ema=0.9",
                             "checkpoint.keep_last=9", *more)

        text = self.train(self.config, *settings("whole"), "--dry-run")
        self.assertIn("; exp_avg f32 of small tensors, exp_avg_sq f32 of small tensors, exp_avg_codes u8 of the others, "
                      "exp_avg_sq_codes u8 of the others, exp_avg_scales f32 for each 256 of them, "
                      "exp_avg_sq_scales f32 for each 256 of them, ema f32\n", text)
        planned = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *settings("whole")))
        self.train(self.config, *settings("whole"))
        self.train(self.config, *settings("part"), "--steps", "3")
        self.train(self.config, *settings("part"), "--resume")
        self.assert_same_checkpoint(self.checkpoint(6, "part"), self.checkpoint(6, "whole"))
        tensors = weights_of(self.checkpoint(6, "whole"))
        large = {name.removeprefix("weight/") for name, values in tensors.items()
                 if name.startswith("weight/") and len(values) >= 4096}
        self.assertIn("embedding.token", large)
        saved = 0
        for name in (name.removeprefix("weight/") for name in tensors if name.startswith("weight/")):
            kinds = {kind for kind in ("exp_avg", "exp_avg_sq", "exp_avg_codes", "exp_avg_sq_codes", "exp_avg_scales",
                                       "exp_avg_sq_scales") if f"{kind}/{name}" in tensors}
            count = len(tensors[f"weight/{name}"])
            if name in large:
                self.assertEqual(kinds, {"exp_avg_codes", "exp_avg_sq_codes", "exp_avg_scales", "exp_avg_sq_scales"})
                self.assertGreater(len(set(tensors[f"exp_avg_codes/{name}"])), 50)
                self.assertEqual(len(tensors[f"exp_avg_scales/{name}"]), -(-count // 256))
                saved += 8 * count + 2 * count + 2 * 4 * -(-count // 256)
            else:
                self.assertEqual(kinds, {"exp_avg", "exp_avg_sq"}, name)
                saved += 16 * count
        self.assertEqual(planned["checkpoint_bytes"], saved)
        # Moves to other ranks, whose blocks are cut elsewhere, and back.
        self.train(self.config, "--ranks", 4, *settings("ranks", "parallel.tensor=2", "parallel.zero=3", "batch.micro=1"),
                   "--resume", "whole/checkpoints/step-00000002", "--steps", "2")
        self.train(self.config, *settings("back"), "--resume", "ranks/checkpoints/step-00000004", "--steps", "2")
        for record, other in zip(self.records("whole")[4:], self.records("back"), strict=True):
            self.assertAlmostEqual(record["loss"], other["loss"], delta=2e-4 * record["loss"])
        self.succeed("checkpoint", "verify", "ranks")
        self.assertIn("exp_avg_codes/embedding.token", self.succeed("checkpoint", "inspect", "ranks"))
        self.refuse(USAGE, 'optimizer.type: "adamw-8bit" in the checkpoint, "adamw" in the config', "train", self.config,
                    *settings("whole", "optimizer.type=adamw"), "--resume")

    def test_the_dry_run_says_which_learning_rate_results(self):
        scaled = overrides("optimizer.lr_scaling=sqrt", "optimizer.base_batch=1", "schedule.warmup_steps=2", "run.out=new")
        text = self.train(self.config, *scaled, "--dry-run")
        self.assertRegex(text, r"learning rate +0\.02 +at its peak: 0\.01 x sqrt\(4 / 1\); warm-up of 4 steps\n")
        planned = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *scaled))
        self.assertEqual((planned["peak_learning_rate"], planned["warmup_steps"]), (0.02, 4))
        self.assertNotIn("learning rate", self.train(self.config, "--dry-run", *overrides("run.out=new")))
        self.train(self.config, *scaled)
        self.assertEqual([record["lr"] for record in self.records("new")], [0.005, 0.01, 0.015, 0.02, 0.02, 0.02])

    def test_another_optimizer_needs_a_new_run(self):
        sgd = self.settings("sgd", "out")
        self.refuse(USAGE, 'optimizer.type: "adamw" in the checkpoint, "sgd" in the config', "train", self.config, *sgd,
                    "--resume")
        out = self.train(self.config, *self.settings("sgd", "new"), "--init-from", "out", "--steps", "1")
        self.assertIn("with the weights of out/checkpoints/step-00000006", out)
