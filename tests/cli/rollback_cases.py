"""Rollback after a loss spike (run.rollback), and data.skip_samples."""
import json
import random

from cli_case import CHECKPOINT, USAGE, CliCase, overrides, tiny_config, write_tokens

DIVERGED = 6
# Steps 13 to 16, samples 48 to 63, have unpredictable tokens.
SPIKE = ["run.out=back", 'run.rollback={"spike": 4, "window": 6, "steps": 2, "skip_samples": 16}']
LEFT_OUT = ["run.out=without", 'data.skip_samples=[{"first": 48, "count": 16}]']


class RollbackCase(CliCase):
    def setUp(self):
        super().setUp()
        draw = random.Random(2)
        write_tokens(self.path("easy"), [i % 3 for i in range(4000)])
        write_tokens(self.path("hard"), [draw.randrange(100, 250) for _ in range(4000)])
        self.config = self.write_config(tiny_config(
            data={"train": [{"path": "easy", "weight": 1}, {"path": "hard", "weight": 1}],
                  "phases": [{"until_step": 12, "weights": [1, 0]}, {"until_step": 16, "weights": [0, 1]},
                             {"until_step": 1000, "weights": [1, 0]}]},
            batch={"global": 4, "micro": 2}, optimizer={"lr": 0.01}, checkpoint={"every_steps": 4, "keep_last": 3},
            run={"steps": 20}))

    def manifest(self, step, out="back"):
        return json.loads((self.checkpoint(step, out) / "manifest.json").read_text(encoding="utf-8"))


class Rollback(RollbackCase):
    def test_a_run_goes_back_and_has_the_bits_of_one_without_these_samples(self):
        out = self.train(self.config, *overrides(*SPIKE))
        self.assertRegex(out, r"the loss spiked for 2 steps up to step 14: \d+\.\d{4} is more than 4 standard deviations of "
                              r"\d+\.\d{4} above \d+\.\d{4}, the mean of 6 steps before: back to step 12, samples 48 to 63 of "
                              r"the data are left out \(rollback 1 of at most 5\)\n")
        self.assertEqual(out.count("step 13/20 "), 2)
        self.train(self.config, *overrides(*LEFT_OUT))
        self.assert_same_steps(self.records("back"), self.records("without"))
        self.assertEqual([record["step"] for record in self.records("back")], list(range(1, 21)))
        for step in (12, 16, 20):
            self.assert_same_checkpoint(self.checkpoint(step, "back"), self.checkpoint(step, "without"))
        self.assertIn("sound", self.succeed("checkpoint", "verify", "back"))
        self.assertRegex(self.succeed("checkpoint", "inspect", "back"), r"(?m)^rollbacks +1, 16 samples left out$")
        self.assertRegex(self.succeed("checkpoint", "inspect", "without"),
                         r"(?m)^left out +16 samples by data\.skip_samples\nprecision +fp32\ntokenizer +not known\n"
                         r"average +none$")
        [record] = self.records("back", "rollback")
        self.assertGreater(record.pop("spike_loss"), 4)
        self.assertEqual(record, {"step": 12, "rollback": 1, "from_step": 14, "first_left_out": 48, "left_out": 16})
        page = self.path("back/report.html").read_text(encoding="utf-8")
        self.assertRegex(page, r"<dt>Rollbacks</dt><dd>1 <small>the last from step 14 to 12, 16 samples left out</small>")
        for step in (12, 20):
            rollback = self.manifest(step)["rollback"]
            self.assertEqual((rollback["count"], rollback["left_out"]), (1, [{"first": 48, "count": 16}]))
            self.assertEqual(len(rollback["losses"]), 6)

    def test_every_later_resume_leaves_them_out(self):
        self.train(self.config, *overrides(*LEFT_OUT))
        # Stops right after the rollback and resumes, with the key and without.
        for number, later in enumerate((SPIKE[1:], [])):
            own = f"run.out=part{number}"
            self.train(self.config, *overrides(*SPIKE, own), "--steps", "15")
            self.train(self.config, *overrides(*later, own), "--resume")
            self.assert_same_checkpoint(self.checkpoint(20, f"part{number}"), self.checkpoint(20, "without"))

    def test_a_run_that_is_stopped_within_a_spike_decides_alike(self):
        self.train(self.config, *overrides(*LEFT_OUT))
        self.train(self.config, *overrides(*SPIKE), "--steps", "13")
        self.assertEqual(len(self.manifest(13)["rollback"]["above"]), 1)
        out = self.train(self.config, *overrides(*SPIKE), "--resume")
        self.assertIn("resumed from back/checkpoints/step-00000013", out)
        self.assertIn("later checkpoint set aside: step-00000013.abandoned", out)
        self.assertIn("back to step 12", out)
        self.assert_same_checkpoint(self.checkpoint(20, "back"), self.checkpoint(20, "without"))

    def test_ranks_and_kinds_of_saves(self):
        for number, (layout, saves) in enumerate(((["parallel.zero=3"], []),
                                                  (["parallel.pipeline=2", "model.num_layers=2", "model.dropout=0.1"], []),
                                                  (["parallel.tensor=2"], ["checkpoint.asynchronous=false"]))):
            with self.subTest(layout=layout):
                common = [*layout, *saves, "optimizer.ema=0.9"]
                back, without = f"back{number}", f"without{number}"
                out = self.train(self.config, "--ranks", 2, *overrides(*SPIKE, *common, f"run.out={back}"))
                self.assertEqual(out.count("back to step 12, "), 1)
                self.train(self.config, "--ranks", 2, *overrides(*LEFT_OUT, *common, f"run.out={without}"))
                self.assert_same_steps(self.records(back), self.records(without))
                for rank in range(2):
                    name = f"rank-{rank:05}.safetensors"
                    self.assertEqual((self.checkpoint(20, back) / name).read_bytes(),
                                     (self.checkpoint(20, without) / name).read_bytes())

    def test_no_checkpoint_is_saved_within_a_spike(self):
        self.train(self.config, *overrides(*SPIKE, "checkpoint.every_steps=1", "checkpoint.keep_last=1"))
        self.train(self.config, *overrides(*LEFT_OUT))
        self.assert_same_checkpoint(self.checkpoint(20, "back"), self.checkpoint(20, "without"))

    def test_it_ends(self):
        error = self.refuse(DIVERGED, ["training diverged: the loss spiked for 2 steps up to step 14: ",
                                       ", and the run has gone back 2 times already (run.rollback.limit)"],
                            "train", self.config, *overrides("run.out=back", 'run.rollback={"spike": 4, "window": 6, '
                                                             '"steps": 2, "skip_samples": 1, "limit": 2}'))
        self.assertNotIn("back to", error)
        self.assertEqual(self.manifest(12)["rollback"]["left_out"], [{"first": 48, "count": 2}])
        # With a higher limit the run continues and leaves out more samples.
        out = self.train(self.config, "--resume", *overrides(
            "run.out=back", 'run.rollback={"spike": 4, "window": 6, "steps": 2, "skip_samples": 14, "limit": 3}'))
        self.assertIn("samples 50 to 63 of the data are left out (rollback 3 of at most 3)", out)
        self.train(self.config, *overrides(*LEFT_OUT))
        self.assert_same_checkpoint(self.checkpoint(20, "back"), self.checkpoint(20, "without"))

    def test_without_a_checkpoint_it_goes_on(self):
        result = self.run_gptrain("train", self.config, *overrides(*SPIKE, "checkpoint.every_steps=100"))
        self.assertEqual(result.code, 0, result)
        self.assertRegex(result.err, r"warning: the loss spiked for 2 steps up to step 14: .*; no checkpoint was saved before "
                                     r"step 13, so the run cannot go back, and goes on\n")
        self.train(self.config, *overrides("run.out=plain"))
        self.assert_same_checkpoint(self.checkpoint(20, "back"), self.checkpoint(20, "plain"))

    def test_data_that_do_not_last(self):
        sources = 'data.train=[{"path": "easy", "max_epochs": 0.25}, {"path": "hard", "max_epochs": 0.25}]'
        self.refuse(USAGE, ["run.steps = 20: every source of data.train has been seen max_epochs times after 12 steps without "
                            "the 100 samples that data.skip_samples and rollbacks leave out (100 for rollbacks); set "
                            "run.steps to 12, or a larger max_epochs"],
                    "train", self.config, *overrides("run.out=back", sources, 'run.rollback={"spike": 4, "window": 6, '
                                                     '"steps": 2, "skip_samples": 100}'))


class LeftOut(RollbackCase):
    def test_what_a_run_has_seen_stays(self):
        self.train(self.config, *overrides(*LEFT_OUT), "--steps", "8")
        out = "run.out=without"
        conflict = "data.skip_samples: must not change for samples before 32, which the checkpoint has passed"
        self.refuse(USAGE, conflict + ': [{"first":48,"count":16}] in the checkpoint, [{"first":2,"count":1}] in the config',
                    "train", self.config, "--resume", *overrides(out, 'data.skip_samples=[{"first": 2, "count": 1}]'))
        for ranges in ('[{"first": 3, "count": 1}]', '[{"first": 31, "count": 8}]'):
            self.refuse(USAGE, conflict, "train", self.config, "--resume", *overrides(out, f"data.skip_samples={ranges}"))
        # Samples that are still ahead may change.
        self.train(self.config, "--resume", *overrides(out, 'data.skip_samples=[{"first": 32, "count": 8}]'), "--steps", "4")
        self.refuse(USAGE, "data.skip_samples: must not change for samples before 56", "train", self.config, "--resume", *overrides(out))

    def test_what_is_planned(self):
        """`data mix` and the dry run count the remaining samples: 40 of the 48 in 12 steps of the easy source are left
        out."""
        left_out = overrides('data.skip_samples=[{"first": 0, "count": 40}]', 'data.phases=[{"until_step": 12, "weights": '
                             '[1, 0]}, {"until_step": 1000, "weights": [0, 1]}]')
        self.assertRegex(self.succeed("data", "mix", self.config, *left_out), r"(?m)^easy .* 10\.00% +128 +0\.03 ")
        self.assertRegex(self.succeed("train", self.config, "--dry-run", *left_out), r"(?m)^ +easy +10\.00% +0\.03 epochs$")
        # The first epoch of the easy source, 249 samples, is left out: its second one repeats nothing.
        second = overrides("run.steps=70", 'data.train=[{"path": "easy"}]', "data.phases=[]")
        self.assertRegex(self.succeed("data", "mix", self.config, *second), r"(?m)^easy .* step 63$")
        self.assertRegex(self.succeed("data", "mix", self.config, *second,
                                      *overrides('data.skip_samples=[{"first": 0, "count": 249}]')), r"(?m)^easy .* step 63$")
        self.assertRegex(self.succeed("data", "mix", self.config, *second,
                                      *overrides('data.skip_samples=[{"first": 0, "count": 240}]')), r"(?m)^easy .* step 3$")
        ends = overrides('data.train=[{"path": "easy", "max_epochs": 0.2}, {"path": "hard", "max_epochs": 0.2}]',
                         "data.phases=[]", "run.steps=24")
        self.succeed("train", self.config, "--dry-run", *ends)
        self.refuse(USAGE, "run.steps = 24: every source of data.train has been seen max_epochs times after 14 steps without "
                           "the 40 samples that data.skip_samples and rollbacks leave out (0 for rollbacks); set run.steps "
                           "to 14", "train", self.config, "--dry-run", *ends, left_out[0], left_out[1])

    def test_rules(self):
        for value, rule in (
                ('{"spike": 4}', "run.rollback.skip_samples: must be given (try 4096)"),
                ('{"skip_samples": 0}', "run.rollback.skip_samples = 0: must be at least 1 and at most"),
                ('{"skip_samples": 8, "window": 1}', "run.rollback.window = 1: must be at least 2 and at most 100000"),
                ('{"skip_samples": 8, "spikes": 3}', 'run.rollback.spikes = 3: unknown key (try run.rollback.spike)')):
            with self.subTest(value=value):
                self.refuse(USAGE, rule, "config", "check", self.config, *overrides(f"run.rollback={value}"))
        self.refuse(USAGE, "run.rollback = {...}: has no effect unless checkpoint.every_steps or checkpoint.every_seconds is",
                    "config", "check", self.config, *overrides(SPIKE[1], "checkpoint.every_steps=0"))
        self.refuse(USAGE, "data.skip_samples[1].count = 0: must be at least 1", "config", "check", self.config,
                    *overrides('data.skip_samples=[{"first": 1, "count": 1}, {"first": 9, "count": 0}]'))
        self.assertIn('"rollback": {}', self.succeed("config", "show", self.config))

    def test_a_damaged_checkpoint_is_not_gone_back_to(self):
        self.train(self.config, *overrides(*SPIKE, "checkpoint.keep_last=1"), "--steps", "13")
        file = self.checkpoint(12, "back") / "rank-00000.safetensors"
        file.write_bytes(file.read_bytes()[:-8])
        self.refuse(CHECKPOINT, "step-00000012/rank-00000.safetensors", "train", self.config, "--resume", *overrides(*SPIKE))
