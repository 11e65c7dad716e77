"""The moving average of a run's weights (optimizer.ema) and its users."""
from checkpoints_cases import CheckpointCase
from cli_case import USAGE, overrides
from weights_cases import weights_of

AVERAGED = overrides("optimizer.ema=0.9", "run.out=averaged")
VALIDATION = overrides('data.validation=[{"path": "corpus"}]', "run.validation_samples=8")


def of_kind(tensors, kind):
    return {name[len(kind) + 1:]: values for name, values in tensors.items() if name.startswith(kind + "/")}


class Average(CheckpointCase):
    def test_it_is_kept_beside_the_weights_and_gone_on_with(self):
        self.train(self.config, *AVERAGED, *overrides("checkpoint.every_steps=1", "checkpoint.keep_last=9"))
        self.assert_same_steps(self.records("averaged"), self.records())
        sums, shares = {}, 0.0
        for step in range(1, 7):
            shares = shares * 0.9 + 1
            for name, values in of_kind(weights_of(self.checkpoint(step, "averaged")), "weight").items():
                sums[name] = [0.9 * sum_ + value for sum_, value in zip(sums.get(name, [0.0] * len(values)), values)]
        averages = of_kind(weights_of(self.checkpoint(6, "averaged")), "ema")
        self.assertEqual(averages.keys(), sums.keys())
        for name, values in averages.items():
            for value, sum_ in zip(values, sums[name], strict=True):
                self.assertAlmostEqual(value, sum_ / shares, delta=1e-6 * (1 + abs(value)))
        part = [*AVERAGED, *overrides("run.out=part")]
        self.train(self.config, *part, "--steps", "3")
        self.train(self.config, *part, "--resume")
        self.assert_same_checkpoint(self.checkpoint(6, "part"), self.checkpoint(6, "averaged"))
        self.assertIn("sound", self.succeed("checkpoint", "verify", "--deep", "averaged"))
        self.assertRegex(self.succeed("checkpoint", "inspect", "averaged"), r"(?m)^average +optimizer\.ema = 0\.9$")
        self.assertRegex(self.succeed("checkpoint", "inspect", "averaged"), r"(?m)^ema/embedding\.token .* f32 +1$")
        self.assertIn("exp_avg f32, exp_avg_sq f32, ema f32", self.train(self.config, *AVERAGED, "--dry-run"))

    def test_it_begins_with_the_weights_where_a_run_turns_to_it(self):
        self.train(self.config, "--resume", "out/checkpoints/step-00000004", *AVERAGED, *overrides("run.out=turned"),
                   "--steps", "1")
        before = of_kind(weights_of(self.checkpoint(4)), "weight")
        tensors = weights_of(self.checkpoint(5, "turned"))
        weights, averages = of_kind(tensors, "weight"), of_kind(tensors, "ema")
        share = 0.1 / (1 - 0.9**5)
        for name, values in averages.items():
            for value, old, new in zip(values, before[name], weights[name], strict=True):
                self.assertAlmostEqual(value, old + share * (new - old), delta=1e-6 * (1 + abs(value)))
        self.train(self.config, "--resume", *overrides("run.out=turned", "optimizer.ema=0.9"))
        # A later run may drop the average.
        self.train(self.config, "--resume", *overrides("run.out=turned", "run.steps=7"))
        self.assertEqual(of_kind(weights_of(self.checkpoint(7, "turned")), "ema"), {})

    def test_validations_of_it(self):
        both = [*AVERAGED, *VALIDATION, *overrides("run.validate_every_steps=3")]
        self.train(self.config, *both, *overrides("run.out=plain"))
        out = self.train(self.config, *both, *overrides("run.validate_ema=true"))
        self.assertRegex(out, r"validation after step 3: loss \d\.\d+.* over 8 sequences, with the average of the weights\n")
        averaged, plain = (self.records(name, "validation_loss") for name in ("averaged", "plain"))
        self.assertEqual([(record["step"], record["ema"]) for record in averaged], [(3, True), (6, True)])
        self.assertNotIn("ema", plain[0])
        self.assertNotEqual([record["validation_loss"] for record in averaged],
                            [record["validation_loss"] for record in plain])
        # Keeping an average does not change the run.
        self.assert_same_steps(self.records("averaged"), self.records("plain"))
        self.assert_same_checkpoint(self.checkpoint(6, "averaged"), self.checkpoint(6, "plain"))
        # A run from these weights starts with the average.
        self.succeed("checkpoint", "average", "--ema", "averaged", "--out", "mean")
        self.assertEqual(of_kind(weights_of(self.checkpoint(6, "mean")), "weight"),
                         of_kind(weights_of(self.checkpoint(6, "averaged")), "ema"))
        self.train(self.config, *VALIDATION, *overrides("run.out=new", "optimizer.lr=1e-9"), "--init-from", "mean",
                   *overrides("run.steps=1"))
        self.assertAlmostEqual(self.records("new", "validation_loss")[0]["validation_loss"],
                               averaged[-1]["validation_loss"], places=5)

    def test_it_is_exported_and_writes_texts(self):
        self.train(self.config, *AVERAGED)
        self.succeed("checkpoint", "export", "averaged", "--hf", "of_average", "--ema")
        self.succeed("checkpoint", "average", "--ema", "averaged", "--out", "mean")
        self.succeed("checkpoint", "export", "mean", "--hf", "of_mean")
        self.succeed("checkpoint", "export", "averaged", "--hf", "of_weights")
        weights = {name: self.path(name).joinpath("model.safetensors").read_bytes()
                   for name in ("of_average", "of_mean", "of_weights")}
        self.assertEqual(weights["of_average"], weights["of_mean"])
        self.assertNotEqual(weights["of_average"], weights["of_weights"])
        prompt = ["--prompt", "ab", "--tokens", "20"]
        self.assertEqual(self.succeed("generate", "--checkpoint", "averaged", "--ema", *prompt),
                         self.succeed("generate", "--checkpoint", "mean", *prompt))

    def test_there_is_none_before_the_first_update(self):
        out = self.train(self.config, *AVERAGED, *VALIDATION, *overrides("run.validate_ema=true"), "--steps", "0")
        self.assertRegex(out, r"validation after step 0: loss \d\.\d+.* over 8 sequences\n")
        self.train(self.config, *VALIDATION, *overrides("run.out=plain"), "--steps", "0")
        averaged, plain = (self.records(name, "validation_loss") for name in ("averaged", "plain"))
        self.assertEqual(averaged, plain)
        self.assertRegex(self.succeed("checkpoint", "inspect", "averaged"),
                         r"(?m)^average +optimizer\.ema = 0\.9, not begun: nothing has been updated$")
        none = ("--ema: averaged/checkpoints/step-00000000 holds no average of its weights yet, as nothing has updated "
                "them")
        self.refuse(USAGE, none, "checkpoint", "export", "averaged", "--hf", "hf", "--ema")
        self.refuse(USAGE, none, "checkpoint", "average", "averaged", "--out", "mean", "--ema")
        self.refuse(USAGE, none, "generate", "--checkpoint", "averaged", "--prompt", "ab", "--ema")
        self.assertFalse(self.path("hf").exists())

    def test_what_is_refused(self):
        none = "--ema: out/checkpoints/step-00000006 holds no average of its weights, which a run keeps with optimizer.ema"
        self.refuse(USAGE, none, "checkpoint", "export", "out", "--hf", "hf", "--ema")
        self.refuse(USAGE, none, "checkpoint", "average", "out", "--out", "mean", "--ema")
        self.refuse(USAGE, none, "generate", "--checkpoint", "out", "--prompt", "ab", "--ema")
        self.assertFalse(self.path("hf").exists())
        self.refuse(USAGE, "run.validate_ema = true: has no effect unless optimizer.ema is greater than 0 and "
                           "data.validation names a source", "train", self.config, *overrides("run.validate_ema=true"))
        self.refuse(USAGE, "optimizer.ema = 1: must be at least 0 and less than 1 (try 0.999)",
                    "train", self.config, *overrides("optimizer.ema=1"))
