"""Many ranks as a user sees them: threads of one process, their files, validation, divergence and refusals."""
import json
import os
import unittest

from cli_case import MACHINE, DIVERGED, USAGE, CliCase, overrides, tiny_config

VALIDATED = {"data": {"validation": [{"path": "corpus"}]}, "run": {"validate_every_steps": 2, "validation_samples": 7}}


def of_ranks(ranks):
    return overrides(f"batch.global={4 * ranks}") if ranks > 2 else []


class Threads(CliCase):
    def test_files_are_written_once(self):
        config = self.write_run(checkpoint={"every_steps": 3}, **VALIDATED)
        out = self.train(config, "--ranks", "4", *overrides("parallel.tensor=2", "parallel.zero=1", "batch.micro=1"))
        self.assertIn("4 ranks: 2 tensor x 2 data, ZeRO 1; 1 thread each", out)
        for line in ("starting from scratch", "step 4/6", "checkpoint of step 3", "validation after step 6",
                     "done: step 6"):
            self.assertEqual(out.count(line), 1, out)
        self.assertEqual([record["step"] for record in self.records()], [1, 2, 3, 4, 5, 6])
        self.assertEqual([record["step"] for record in self.records(key="validation_loss")], [2, 4, 6])
        self.assertEqual(sorted(os.listdir(self.path("out"))),
                         [".lock", "checkpoints", "config.json", "metrics.jsonl", "report.html", "run.json", "tb"])
        self.assertEqual(len(os.listdir(self.path("out") / "tb")), 1)
        self.assertEqual(json.loads((self.path("out") / "config.json").read_text())["parallel"]["tensor"], 2)
        self.assertEqual(sorted(os.listdir(self.checkpoint(6))),
                         ["manifest.json", *(f"rank-0000{rank}.safetensors" for rank in range(4))])
        self.assertEqual(json.loads((self.checkpoint(6) / "manifest.json").read_text())["world_size"], 4)

    def test_what_ranks_wrote_serves_one(self):
        self.train(self.write_run(model={"num_heads": 4}), "--ranks", "4",
                   *overrides("parallel.tensor=2", "parallel.zero=2", "batch.micro=1"))
        self.succeed("config", "check", "out/config.json")
        self.succeed("checkpoint", "export", "out", "--hf", "exported")
        self.train("out/config.json", "--resume", "--steps", "1", "--ranks", "2", *overrides("run.steps=8"))
        out = self.train("out/config.json", "--resume", "--ranks", "4",
                         *overrides("run.steps=8", "parallel.tensor=1", "parallel.sequence=null", "parallel.context=2"))
        self.assertIn("4 ranks: 1 tensor x 2 context by heads x 2 data, ZeRO 2", out)
        self.assertIn("done: step 8", out)

    def test_experts_of_ranks(self):
        config = self.write_run(model={"bias": False, "hidden_size": 64, "num_heads": 4, "moe": {
            "experts": 4, "top_k": 2, "ffn_hidden_size": 32}}, checkpoint={"every_steps": 2}, **VALIDATED)
        self.train(config)
        losses = self.records()
        spread = overrides("run.out=spread", "parallel.expert=2", "parallel.expert_room=2", "batch.micro=2",
                           "run.sample_every_steps=3", "run.sample_prompt=a", "run.sample_tokens=5")
        self.train(config, "--ranks", 2, "--steps", 3, *spread)
        # One of the ranks has whole experts for a text, which is that of one rank.
        written = json.loads(self.path("spread/samples.jsonl").read_text(encoding="utf-8"))["text"]
        generated = self.succeed("generate", "--checkpoint", "spread", "--prompt", "a", "--tokens", 5, "--seed", 1)
        self.assertIn(written, generated)
        out = self.train(config, "--resume", "--ranks", 4, *overrides(
            "run.out=spread", "parallel.expert=4", "parallel.expert_room=4", "parallel.zero=2", "batch.micro=1"))
        self.assertIn("4 ranks: 1 tensor x 4 data, experts over 4, ZeRO 2", out)
        for ours, theirs in zip(self.records("spread"), losses):
            self.assertAlmostEqual(ours["loss"] / theirs["loss"], 1, delta=1e-4)
        self.assertEqual(len(self.records("spread")), len(losses))
        texts = self.path("spread/samples.jsonl").read_text(encoding="utf-8").splitlines()
        self.assertEqual([json.loads(line)["step"] for line in texts], [3])
        plan = json.loads(self.succeed("train", config, "--dry-run", "--json", "--ranks", 2, *spread))
        moved = [row for row in plan["traffic"] if row["lane"] == "expert"]
        self.assertEqual([(row["collective"], row.get("expected")) for row in moved],
                         [("all_gather", None), ("all_to_all_v", True)])

    def test_experts_without_room(self):
        config = self.write_run(model={"bias": False, "hidden_size": 64, "num_heads": 4, "moe": {
            "experts": 4, "top_k": 2, "ffn_hidden_size": 32}})
        room = overrides("parallel.expert=2", "parallel.expert_room=1", "batch.micro=2")
        self.refuse(DIVERGED, ["step 1: the experts of block 0 on a rank got ",
                               " rows, but parallel.expert_room = 1 makes room for 64; raise it to 1."],
                    "train", config, "--ranks", 2, *room)

    def test_losses_do_not_depend_on_the_ranks(self):
        config = self.write_run(model={"num_heads": 4, "dropout": 0.1}, batch={"global": 12, "micro": 4}, **VALIDATED)
        self.train(config)
        losses, validations = self.records(), self.records(key="validation_loss")
        for ranks, settings in [(2, ["batch.micro=3"]), (3, ["batch.micro=2", "parallel.zero=2"]),
                                (4, ["batch.micro=1", "parallel.tensor=4", "parallel.sequence=true"]),
                                (8, ["batch.micro=3", "parallel.context=4", "parallel.zero=1"]),
                                (2, ["batch.micro=6", "parallel.context=2", "parallel.context_method=ring"]),
                                (6, ["batch.micro=2", "parallel.tensor=2", "parallel.zero=3"])]:
            with self.subTest(ranks=ranks, settings=settings):
                out = "-".join(["out", str(ranks), *settings[:2]])
                self.train(config, "--ranks", ranks, *overrides(f"run.out={out}", *settings))
                for key, expected in [("loss", losses), ("validation_loss", validations)]:
                    found = self.records(out, key)
                    self.assertEqual([record["step"] for record in found], [record["step"] for record in expected])
                    for ours, theirs in zip(found, expected):
                        self.assertAlmostEqual(ours[key] / theirs[key], 1, delta=1e-5)

    def test_a_dry_run_takes_ranks_as_a_run_does(self):
        config = self.write_run(run={"threads": 0})
        for ranks in (1, 2):  # sharing the cores
            self.train(config, "--ranks", ranks, *overrides(f"run.out=out-{ranks}"))
            taken = json.loads((self.path(f"out-{ranks}") / "run.json").read_text())
            planned = self.dry_run(config, ranks)
            self.assertEqual(taken, {key: planned[key] for key in taken})

    def test_memory_is_that_of_the_stage_which_takes_the_most(self):
        config = self.write_run()
        model = ["model.num_layers=3", "model.vocab_size=4000", "parallel.pipeline=2", "parallel.layers_per_stage=[1,2]"]
        self.train(config, "--ranks", 2, *overrides(*model))
        planned = json.loads(self.succeed("train", config, "--ranks", 2, "--dry-run", "--json", *overrides(*model)))
        peaks = [stage["peak_bytes"] for stage in planned["pipeline"]["stages"]]
        self.assertGreater(peaks[1], peaks[0])
        taken = json.loads((self.path("out") / "run.json").read_text())
        self.assertEqual(taken, {key: planned[key] for key in taken})
        self.assertEqual({record["peak_bytes"] for record in self.records("out")}, {peaks[1]})

    def test_ranks_share_the_machine_in_a_dry_run(self):
        config = self.write_config(tiny_config(model={"num_layers": 8, "hidden_size": 2048, "sequence_length": 512}))
        plan = self.dry_run(config, 2)
        self.assertTrue(plan["fits"])
        ranks = plan["target_memory_bytes"] // plan["peak_bytes"] + 1
        plan = self.dry_run(config, ranks)
        self.assertEqual((plan["fits"], plan["ranks_sharing_memory"]), (False, ranks))
        text = self.succeed("train", config, "--dry-run", "--ranks", ranks, *of_ranks(ranks))
        self.assertIn(f"; {ranks} ranks take ", text)
        self.assertIn(f"are missing on this-machine for each of the {ranks} ranks that share it. ", text)

    def test_what_would_help_is_that_of_the_rank_which_takes_the_most(self):
        """A run and its dry run print the same remedies once, for the rank that takes the most memory."""
        config = self.write_config(tiny_config(model={"num_layers": 64, "hidden_size": 256, "sequence_length": 65536},
                                               batch={"global": 128, "micro": 64}))
        for ranks, largest, settings in [(2, 1, ["parallel.layers_per_stage=[16,48]"]),
                                         (2, 0, ["parallel.layers_per_stage=[48,16]"]),
                                         (4, 2, ["parallel.layers_per_stage=[16,48]", "parallel.zero=1"])]:
            with self.subTest(ranks=ranks, settings=settings):
                arguments = ["--ranks", ranks, *overrides("parallel.pipeline=2", *settings)]
                planned = self.succeed("train", config, "--dry-run", *arguments)
                planned = [line.strip() for line in planned[planned.index("Does not fit"):].split("\n\n")[0].splitlines()]
                self.assertGreater(len(planned), 4)
                self.assertTrue(any(line.startswith("batch.micro = 1 instead of 64: ") for line in planned), planned)
                error = self.refuse(MACHINE, "Does not fit", "train", config, *arguments)
                name = rf"rank {largest} \(.*\): " if largest > 0 else ""
                self.assertRegex(error, rf"^gptrain: {name}Does not fit: ")
                self.assertEqual([line.strip() for line in error[error.index("Does not fit"):].splitlines()], planned)

    def dry_run(self, config, ranks):
        return json.loads(self.succeed("train", config, "--dry-run", "--json", "--ranks", ranks, *of_ranks(ranks)))

    def test_divergence_is_said_once(self):
        exploding = overrides("optimizer.lr=10", "optimizer.weight_decay=10", "run.steps=100",
                              "run.max_skipped_steps=2")
        config = self.write_run()
        for number in range(3):
            error = self.refuse(DIVERGED, "3 steps in a row", "train", config, "--ranks", "2", *exploding,
                                *overrides(f"run.out=out-{number}"))
            self.assertEqual(error.count("gptrain: training diverged"), 1, error)

    def test_ranks_that_the_config_does_not_divide_into(self):
        config = self.write_run()
        self.refuse(USAGE, "batch.global = 4: must be a multiple of the 3 data ranks", "train", config, "--ranks", "3")
        self.refuse(USAGE, ["3 ranks do not divide into model replicas of parallel.tensor", "(start 4 or 2 ranks)"], "train",
                    config, "--ranks", "3", *overrides("parallel.tensor=2"))
        self.refuse(USAGE, ["--ranks", "0"], "train", config, "--ranks", "0")
        self.assertFalse(self.path("out").exists())

    def test_an_error_of_all_ranks_is_said_once(self):
        self.train(self.write_run(), "--ranks", "2")
        for arguments in (["--steps", "1"], ["--resume", "--profile-step", "9"]):
            with self.subTest(arguments=arguments):
                error = self.refuse(USAGE, "gptrain: ", "train", "run.json", "--ranks", "2", *arguments)
                self.assertEqual(error.count("\n"), 1, error)


if __name__ == "__main__":
    unittest.main()
