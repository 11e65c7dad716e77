"""Runs on samples of whole documents, `data pack --best-fit`."""
import json

from cli_case import DATA, USAGE, overrides, tiny_config
from text_cases import TextCase, texts


class BestFit(TextCase):
    def setUp(self):
        super().setUp()
        self.write_jsonl("held.jsonl", texts(40, seed=2))
        out = self.succeed("data", "pack", "docs.jsonl", "--out", "fitted", "--tokenizer", "t.json", "--append-eod",
                           "--best-fit", "40")
        self.assertRegex(out, r"fitted: \d+ samples of 40 tokens, \d+\.\d\d% of them padding\n")
        self.pack("held.jsonl", "held", "--best-fit", "40")

    def fitted_config(self, **run):
        return self.config(model={"sequence_length": 40, "hidden_size": 16, "num_layers": 2, "tied_head": False}, batch={"global": 4, "micro": 1},
                           data={"train": [{"path": "fitted"}], "validation": [{"path": "held"}]},
                           run={"steps": 6, "validation_samples": 5, **run})

    def metrics(self, out):
        return [json.loads(line) for line in self.path(f"{out}/metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    def test_a_run_a_resume_and_other_layouts(self):
        config = self.fitted_config()
        self.assertRegex(self.succeed("data", "mix", config), r"fitted: \d+\.\d\d% of its samples is padding")
        self.train(config, *overrides("run.out=whole"))
        self.train(config, "--steps", "3")
        self.train(config, "--resume")
        self.assert_same_checkpoint(self.checkpoint(6), self.checkpoint(6, "whole"))
        whole = self.metrics("whole")
        self.assertTrue(all(0 < line["padding"] < 1 for line in whole if "loss" in line), whole)
        self.train(config, "--ranks", "2", *overrides("parallel.pipeline=2", "run.out=stages"))
        self.train(config, "--ranks", "2", *overrides("run.out=ranks", "parallel.zero=2"))
        for out in ("stages", "ranks"):
            for one, many in zip(whole, self.metrics(out), strict=True):
                for key in {"loss", "validation_loss", "bits_per_byte", "padding"} & one.keys():
                    self.assertAlmostEqual(one[key], many[key], delta=1e-5 * abs(one[key]))

    def test_another_length_is_refused(self):
        self.refuse(USAGE, ["model.sequence_length = 32: fitted was packed with --best-fit 40"], "train",
                    self.fitted_config(), *overrides("model.sequence_length=32"))
        self.write_jsonl("one.jsonl", ["a"])
        self.succeed("data", "pack", "one.jsonl", "--out", "one", "--tokenizer", "bytes", "--best-fit", "16")
        config = self.write_config(tiny_config(data={"train": [{"path": "one"}]}))
        self.train(config)
        self.succeed("data", "pack", "one.jsonl", "--out", "one", "--tokenizer", "t.json", "--best-fit", "16")
        config = self.config(data={"train": [{"path": "one"}]}, run={"out": "of-one"})
        self.refuse(DATA, "samples 0 to 3 are documents of one token each", "train", config)
