"""Run configs: every class of fault, overrides, `config check`, `config show`, `config schema`, and configs/ whole."""
import json
import re
import subprocess
import unittest

from cli_case import EXECUTABLE, SOURCE_ROOT, TIMEOUT_SECONDS, USAGE, CliCase, not_of_some_cases, overrides, tiny_config

SECTIONS = ["model", "data", "batch", "parallel", "precision", "optimizer", "schedule", "memory", "checkpoint", "log",
            "comm", "run"]

# A key, its bad value, and the end of the message.
FAULTS = [
    ("model.num_layers", '"two"', "must be an integer (try 12)"),
    ("model.num_layers", "1.5", "must be an integer (try 1 or 2)"),
    ("model.num_layers", "0", "must be at least 1 and at most 10000 (try 1)"),
    ("model.num_layers", "100000", "must be at least 1 and at most 10000 (try 10000)"),
    ("model.num_heads", "5", "must divide model.hidden_size = 8 (try 8 or 4)"),
    ("model.num_kv_heads", "3", "must divide model.num_heads = 2 (try 2)"),
    ("model.preset", '"gpt2-125m"', 'names that `gptrain config schema` lists (try "gpt2-124m")'),
    ("model.norm", '"rms"', 'must be one of layernorm, rmsnorm (try "rmsnorm")'),
    ("model.bias", "1", "must be true or false (try true)"),
    ("model.dropout", "1", "must be at least 0 and less than 1 (try 0.1)"),
    ("model.attention_window", "17", "must be at most model.sequence_length = 16 (try 16)"),
    ("model.attention_pattern", '"dense"', 'must be an array of attention patterns, at least one (try ["dense","band:256"])'),
    ("data.mask_documents", "1", "must be true or false (try"),
    ("data.max_documents", "8",
     "has no effect unless data.mask_documents is true (try --set data.max_documents=null or leaving it out)"),
    ("model.norm_eps", "0", "must be greater than 0 and at most 1 (try 1e-05)"),
    ("model.rope_theta", "500000",
     "has no effect unless model.positions is rope, and rope_theta_pattern is empty (try --set model.rope_theta=null or leaving it out)"),
    ("data.train", '"corpus"', "must be an array of data sources, each an object (try"),
    ("data.train", "[]", "must hold at least one data source (try"),
    ("batch.global", "0", "must be at least 1 and at most 16777216 (try 1)"),
    ("batch.micro", "3", "must divide batch.global = 4 (try 4 or 2)"),
    ("batch.accumulation", "4", "must be batch.global / batch.micro = 4 / 2 (try 2)"),
    ("precision.compute", '"fp64"', "must be one of fp32, bf16, fp16, bf16-pure (try"),
    ("precision.residual", '"bf16"', 'must be fp32 with precision.compute = fp32 (try "fp32")'),
    ("precision.loss_scale", "1024",
     "has no effect unless precision.compute is fp16 (try --set precision.loss_scale=null or leaving it out)"),
    ("optimizer.type", '"adam"', 'must be one of the 10 names that `gptrain config schema` lists (try "adamw")'),
    ("optimizer.beta2_decay", "-0.8",
     "has no effect unless optimizer.type is adafactor (try --set optimizer.beta2_decay=null or leaving it out)"),
    ("optimizer.momentum", "0.8",
     "has no effect unless optimizer.type is sgd, lars or muon (try --set optimizer.momentum=null or leaving it out)"),
    ("optimizer.nesterov", "true",
     "has no effect unless optimizer.type is sgd or muon and momentum greater than 0 "
     "(try --set optimizer.nesterov=null or leaving it out)"),
    ("optimizer.ema", "1", "must be at least 0 and less than 1 (try 0.999)"),
    ("data.skip_samples", "4", "must be an array of ranges of samples (try"),
    ("run.validate_ema", "true",
     "has no effect unless optimizer.ema is greater than 0 and data.validation names a source"),
    ("run.rollback", "4.0", "must be an object (try"),
    ("precision.gradients", '"bf16"',
     "has no effect unless precision.compute is bf16-pure (try --set precision.gradients=null or leaving it out)"),
    ("optimizer.lr", "0", "must be greater than 0 and at most 10 (try"),
    ("optimizer.lr", '"high"', "must be a number (try"),
    ("optimizer.betas", "[0.9]", "must be an array of two numbers (try [0.9,0.95])"),
    ("schedule.warmup_steps", "7", "must be at most run.steps = 6 (try 6)"),
    ("schedule.min_lr", "0.001",
     "has no effect unless schedule.type is linear, cosine or wsd (try --set schedule.min_lr=null or leaving it out)"),
    ("memory.recompute_interval", "2",
     "has no effect unless memory.recompute is every_nth (try --set memory.recompute_interval=null or leaving it out)"),
    ("memory.linear_projection", "0.2", "must be an object (try"),
    ("memory.saved_inputs", "12", "must be 16 or 8 (try 8)"),
    ("checkpoint.keep_last", "0", "must be at least 1 and at most 1000000 (try 1)"),
    ("run.steps", "-1", "must be at least 1 and at most 1000000000000 (try 1)"),
    ("run.seed", "18446744073709551616", "must be at least 0 and at most 18446744073709551615"),
    ("run.out", '""', "must not be empty (try"),
    ("run.out", "3", "must be text (try"),
    ("run.device", '"gpu"', 'must be one of auto, cpu, cuda (try "cuda")'),
]

# Valid words that this build refuses, with the reason.
REFUSED = [
    ("precision.compute", '"fp8"', 'fp8 is for the linears of blocks only, whose key is precision.linears (try "bf16")'),
    ("precision.linears", '"fp8"', 'needs precision.compute = bf16, not "fp32" (try "fp32")'),
]


class Faults(CliCase):
    def setUp(self):
        super().setUp()
        self.config = self.write_config(tiny_config())

    def fault_lines(self, *arguments):
        error = self.refuse(USAGE, "gptrain: ", *arguments)
        return error.removeprefix("gptrain: ").splitlines()

    def test_each_bad_value_is_one_line(self):
        for key, value, rule in FAULTS + REFUSED:
            with self.subTest(key=key, value=value):
                lines = self.fault_lines("config", "check", self.config, *overrides(f"{key}={value}"))
                shown = value if key != "data.train" or value == "[]" else json.dumps(json.loads(value))
                self.assertEqual(len(lines), 1, lines)
                self.assertTrue(lines[0].startswith(f"{key} = ") and rule in lines[0], lines[0])
                self.assertTrue(shown[:12] in lines[0], lines[0])

    def test_training_and_dry_run_refuse_the_same(self):
        for key, value, rule in [FAULTS[0], *REFUSED]:
            for mode in ([], ["--dry-run"]):
                with self.subTest(key=key, value=value, mode=mode):
                    self.refuse(USAGE, [key, rule], "train", self.config, *overrides(f"{key}={value}"), *mode)
        self.assertFalse(self.path("out").exists())

    def test_a_batch_that_the_data_ranks_do_not_divide_is_refused(self):
        self.refuse(USAGE, ["batch.global = 4: must be a multiple of the 8 data ranks (try 8)"], "train", self.config,
                    "--dry-run", "--world-size", "8")
        for target in ([], ["--target", "h100"]):
            self.refuse(USAGE, "3 ranks do not divide into model replicas of parallel.tensor * parallel.pipeline = "
                        "2 * 1 ranks (start 4 or 2 ranks)\n", "train", self.config, *overrides("parallel.tensor=2"),
                        "--dry-run", "--world-size", "3", *target)
        self.assertIn("\nparameters\n", self.succeed("train", self.config, "--dry-run", "--world-size", "1"))

    def test_a_config_from_a_pipe(self):
        """Commands that load a config for several numbers of ranks read a pipe once."""
        expected = self.succeed("train", self.config, "--dry-run")
        text = self.path(self.config).read_bytes()
        for command in (["train", "/dev/stdin", "--dry-run"], ["plan", "/dev/stdin", "--sweep", "batch.micro=1,2", "--gpus", "1"]):
            done = subprocess.run([EXECUTABLE, *command], cwd=self.folder, input=text, capture_output=True, timeout=TIMEOUT_SECONDS,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(command[0] == "plan" or done.stdout.decode() == expected, done.stdout)

    def test_the_example_of_the_description(self):
        lines = self.fault_lines("config", "check", self.config,
                                 *overrides("model.num_heads=5", "model.hidden_size=768"))
        self.assertEqual(lines, ["model.num_heads = 5: must divide model.hidden_size = 768 (try 6 or 4)"])

    def test_all_faults_at_once(self):
        config = tiny_config(model={"num_heads": 3, "positons": "rope"}, optimizer={"lr": -1}, run={"steps": "all"},
                             parallel={"zero": 8})
        config["optimiser"] = {}
        config["data"]["train"] = [{"path": "a", "wieght": 2}, {"weight": 0}]
        lines = self.fault_lines("config", "check", self.write_config(config, "faulty.json"))
        expected = [
            "model.num_heads = 3: must divide model.hidden_size = 8 (try 4 or 2)",
            'model.positons = "rope": unknown key (try model.positions)',
            "optimizer.lr = -1: must be greater than 0 and at most 10 (try 0.0003)",
            'run.steps = "all": must be an integer (try 1000)',
            "parallel.zero = 8: must be at least 0 and at most 3 (try 3)",
            "optimiser = {}: unknown section (try optimizer)",
            "data.train[0].wieght = 2: unknown key (try data.train[0].weight)",
            "data.train[1].weight = 0: must be greater than 0 and at most 1000000000 (try 1)",
            'data.train[1].path: must be given (try "data/corpus/train")',
        ]
        self.assertEqual(sorted(lines), sorted(expected))

    def test_everything_that_must_be_given(self):
        lines = self.fault_lines("config", "check", self.write_config({}, "empty.json"))
        missing = {line.split(":")[0] for line in lines if "must be given" in line}
        self.assertEqual(missing, {"model.num_layers", "model.hidden_size", "model.num_heads", "model.vocab_size",
                                   "model.sequence_length", "data.train", "batch.global", "optimizer.lr", "run.steps",
                                   "run.out"})
        self.assertEqual(len(lines), len(missing))

    def test_unknown_keys_name_the_nearest(self):
        for key, nearest in [("model.num_layer", "model.num_layers"), ("model.lr", "optimizer.lr"),
                             ("steps", "run.steps"), ("batch.globl", "batch.global"),
                             ("checkpoint.keep_lst", "checkpoint.keep_last")]:
            with self.subTest(key=key):
                lines = self.fault_lines("config", "check", self.config, *overrides(f"{key}=1"))
                self.assertEqual(len(lines), 1)
                self.assertTrue(lines[0].startswith(f"{key} = 1: unknown key (try {nearest})"), lines[0])

    def test_duplicate_keys(self):
        text = json.dumps(tiny_config()).replace('"num_layers": 1', '"num_layers": 1, "num_layers": 2')
        text = text.replace('"run": {', '"run": {"seed": 3}, "run": {')
        lines = self.fault_lines("config", "check", self.write_config(text, "twice.json"))
        self.assertEqual(lines, ["model.num_layers = 2: is given twice (try leaving one of them out)",
                                 "run = {...}: is given twice (try leaving one of them out)"])

    def test_a_shorthand_and_what_it_sets(self):
        lines = self.fault_lines("config", "check", self.config,
                                 *overrides("model.dropout=0.1", "model.residual_dropout=0.2"))
        self.assertEqual(lines, ["model.residual_dropout = 0.2: is also set by model.dropout "
                                 "(try leaving one of them out)"])

    def test_rules_between_keys(self):
        for settings, expected in [
            (["model.positions=rope", "model.num_heads=8"],
             "model.num_heads = 8: must leave an even head size for model.positions = rope, not 8 / 8 = 1 (try 4)"),
            (["schedule.type=cosine", "schedule.min_lr=0.1"],
             "schedule.min_lr = 0.1: must be at most optimizer.lr = 0.01 (try 0.01)"),
            (["schedule.type=wsd"], "schedule.decay_steps: must be given, as schedule.type is wsd (try 100)"),
            (["schedule.type=wsd", "schedule.warmup_steps=2", "schedule.decay_steps=5"],
             "schedule.decay_steps = 5: must be at most run.steps - schedule.warmup_steps = 6 - 2 (try 4)"),
            (["memory.recompute=every_nth"],
             "memory.recompute_interval: must be given, as memory.recompute is every_nth (try 2)"),
            (["run.steps=1000000000000", "batch.global=16777216", "model.sequence_length=16777216", "batch.micro=64"],
             "run.steps = 1000000000000: times batch.global * model.sequence_length = 16777216 * 16777216 must be less "
             "than 2^63 tokens (try 32767)"),
        ]:
            with self.subTest(settings=settings):
                self.assertEqual(self.fault_lines("config", "check", self.config, *overrides(*settings)), [expected])

    def test_overrides_of_a_wrong_form(self):
        for setting in ["run.steps", "=3", ""]:
            with self.subTest(setting=setting):
                self.assertEqual(self.fault_lines("config", "check", self.config, "--set", setting),
                                 [f"--set {setting}: must have the form key.path=value (try --set run.steps=1000)"])


class Files(CliCase):
    def test_files_that_hold_no_config(self):
        self.path("folder").mkdir()
        for name, text, messages in [
            ("absent.json", None, ["absent.json", "not found"]),
            ("folder", None, ["folder", "is a folder"]),
            ("empty.json", "", "empty.json:1:1: syntax error"),
            ("list.json", "[1, 2]", ["list.json", "must be a JSON object with the sections model, data"]),
            ("comma.json", '{\n  "run": {\n    "steps": 1,\n  }\n}\n', "comma.json:4:3: syntax error"),
            ("quote.json", '{\n  // comment\n  "run: 1}\n', "quote.json:3:"),
            ("two.json", "{} {}", "two.json:1:4: syntax error"),
            ("deep.json", "[" * 100000, "deep.json:1:"),
            ("binary.json", "\0\1\2", "binary.json:1:1: syntax error"),
        ]:
            with self.subTest(name=name):
                if text is not None:
                    self.write_config(text, name)
                for command in (["config", "check"], ["config", "show"], ["train"]):
                    self.refuse(USAGE, messages, *command, name)

    def test_sections_that_are_no_objects(self):
        config = self.write_config({**tiny_config(), "log": 5})
        self.refuse(USAGE, "log = 5: must be an object (try {})", "config", "check", config)

    def test_comments_are_allowed(self):
        text = "// line\n" + json.dumps(tiny_config()).replace('"run"', '/* block */ "run"')
        self.assertEqual(self.succeed("config", "check", self.write_config(text)), "run.json: valid\n")


class Show(CliCase):
    def show(self, config, *arguments):
        return json.loads(self.succeed("config", "show", config, *arguments))

    def test_every_value_after_presets_and_defaults(self):
        config = tiny_config()
        config["model"] = {"preset": "gpt2-124m", "num_layers": 6}
        config["batch"] = {"micro": 2, "accumulation": 3}
        shown = self.show(self.write_config(config))
        self.assertEqual(list(shown), SECTIONS)
        self.assertEqual({key: shown["model"][key] for key in ("preset", "num_layers", "hidden_size", "num_kv_heads",
                                                               "ffn_hidden_size", "vocab_size", "tied_head")},
                         {"preset": "gpt2-124m", "num_layers": 6, "hidden_size": 768, "num_kv_heads": 12,
                          "ffn_hidden_size": 3072, "vocab_size": 50257, "tied_head": True})
        self.assertEqual(shown["batch"], {"global": 6, "micro": 2, "accumulation": 3})
        self.assertEqual(shown["optimizer"]["betas"], [0.9, 0.95])
        self.assertEqual(shown["parallel"], {"tensor": 1, "context": 1, "expert": 1, "pipeline": 1, "zero": 0,
                                             "overlap_tensor": False, "elastic": False, "local_steps": {}})

    def test_overrides_win_and_the_last_one_counts(self):
        config = self.write_config(tiny_config())
        shown = self.show(config, *overrides("run.steps=9", "run.steps=11", "run.out=elsewhere", "model.dropout=0.25",
                                             'data.validation=[{"path": "held"}]'))
        self.assertEqual((shown["run"]["steps"], shown["run"]["out"]), (11, "elsewhere"))
        self.assertEqual((shown["model"]["residual_dropout"], shown["model"]["attention_dropout"]), (0.25, 0.25))
        self.assertEqual(shown["data"]["validation"], [{"path": "held", "weight": 1.0}])

    def test_overrides_of_the_keys_of_objects(self):
        config = self.write_config(tiny_config(checkpoint={"every_steps": 5}))

        def shown(*given):
            text = json.loads(self.succeed("config", "show", config, *overrides(*given)))
            return text["memory"]["linear_projection"], text["run"]["rollback"]

        self.assertEqual(shown("memory.linear_projection.kind=dct")[0]["kind"], "dct")
        self.assertEqual(shown("run.rollback.skip_samples=3", "run.rollback.spike=5")[1],
                         {"spike": 5.0, "window": 100, "skip_samples": 3, "steps": 3, "limit": 5})
        projected = 'memory.linear_projection={"kind": "rows", "share": 0.3}'
        self.assertEqual(shown(projected, "memory.linear_projection.share=0.5")[0]["share"], 0.5)
        self.assertEqual(shown(projected, "memory.linear_projection.share=null")[0]["share"], 0.2)
        self.assertEqual(shown("run.rollback.skip_samples=null")[1], {})
        for given, words in [("memory.linear_projection.knd=dct", "unknown key (try memory.linear_projection.kind)"),
                             ("memory.linear_projection.share=0.5", "memory.linear_projection.kind: must be given"),
                             ("run.rollback.skip=3", "unknown key (try run.rollback.skip_samples)")]:
            self.refuse(USAGE, [words], "config", "show", config, *overrides(given))
        broken = self.write_config(tiny_config(memory={"linear_projection": 3}))
        self.refuse(USAGE, ["memory.linear_projection = 3: must be an object"], "config", "show", broken,
                    *overrides("memory.linear_projection.kind=dct"))

    def test_what_is_shown_reads_back_as_the_same_config(self):
        for settings in [[], ["model.positions=rope", "schedule.type=wsd", "schedule.decay_steps=2",
                              "memory.recompute=every_nth", "memory.recompute_interval=3"]]:
            with self.subTest(settings=settings):
                text = self.succeed("config", "show", self.write_config(tiny_config()), *overrides(*settings))
                again = self.write_config(text, "shown.json")
                self.assertEqual(self.succeed("config", "show", again), text)


class Schema(CliCase):
    def test_describes_every_key_that_show_prints(self):
        schema = json.loads(self.succeed("config", "schema"))
        shown = json.loads(self.succeed("config", "show", self.write_config(tiny_config())))
        self.assertEqual(list(schema["properties"]), SECTIONS)
        for section, values in shown.items():
            described = schema["properties"][section]
            self.assertEqual(set(values) - set(described["properties"]), set(), section)
            self.assertFalse(described["additionalProperties"])
            for key, entry in described["properties"].items():
                self.assertTrue(entry["description"], f"{section}.{key}")
                self.assertTrue("default" in entry or "examples" in entry, f"{section}.{key}")

    def test_lists_the_presets(self):
        schema = json.loads(self.succeed("config", "schema"))
        presets = schema["properties"]["model"]["properties"]["preset"]["enum"]
        for name in ["gpt2-124m", "gpt3-125m", "gpt3-175b", "megatron-1008b", "llama-160m", "llama-70b"]:
            self.assertIn(name, presets)
        config = tiny_config()
        for name in presets:
            config["model"] = {"preset": name}
            with self.subTest(preset=name):
                self.succeed("config", "check", self.write_config(config))


class ConfigsFolder(CliCase):
    @not_of_some_cases
    def test_every_file_is_valid_and_can_be_planned_without_its_data(self):
        files = sorted((SOURCE_ROOT / "configs").glob("*.json"))
        self.assertGreater(len(files), 15)
        for file in files:
            with self.subTest(config=file.name):
                self.assertEqual(self.succeed("config", "check", file), f"{file}: valid\n")
                text = self.succeed("train", file, "--dry-run")
                for heading in ["parameters", "memory", "FLOPs of one step", "run"]:
                    self.assertIn(f"\n{heading}\n", text)

    @not_of_some_cases
    def test_every_file_fits_the_gpus_that_its_comment_names(self):
        for file in sorted((SOURCE_ROOT / "configs").glob("*.json")):
            if file.name == "demo.json":
                self.assertTrue(json.loads(self.succeed("train", file, "--dry-run", "--json"))["fits"])
                continue
            with self.subTest(config=file.name):
                comment = file.read_text(encoding="utf-8").split("\n{")[0].splitlines()[-1]
                stated = re.fullmatch(r"// Fits (\d+) GPUs of 80 GB: (--dry-run --world-size \1 --target a100-80g)",
                                      comment)
                self.assertIsNotNone(stated, comment)
                plan = json.loads(self.succeed("train", file, "--json", *stated.group(2).split()))
                self.assertEqual((plan["world_size"], plan["target"]), (int(stated.group(1)), "a100-80g"))
                self.assertTrue(plan["fits"], plan["peak_bytes"])


if __name__ == "__main__":
    unittest.main()
