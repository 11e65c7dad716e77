"""This machine as a profile: the output of `bench device` and `bench comm --into`, and predictions from it."""
import json
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from cli_case import EXECUTABLE, USAGE, CliCase, overrides, tiny_config

SECONDS = "0.2"
LINEAR_OPS = ["linear_forward", "linear_backward_input", "linear_backward_weight"]
GROUPED_OPS = [f"grouped_{name}" for name in LINEAR_OPS]
OTHER_OPS = ["norm_forward layernorm", "norm_backward rmsnorm", "embedding_forward", "embedding_backward",
             "cross_entropy", "adamw", "squared_norm", "activation_forward gelu_tanh", "activation_backward swiglu",
             "query_key_forward rotary", "query_key_backward norm"]


def figures_of(value, path=""):
    """Yields path and content of each [value, source] in a profile."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from figures_of(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield path, value


class Machine(CliCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="gptrain-cli-")
        cls.addClassCleanup(folder.cleanup)
        cls.measured = Path(folder.name) / "machine.json"
        cls.bench = subprocess.run([EXECUTABLE, "bench", "device", "--out", cls.measured, "--seconds", SECONDS],
                                   capture_output=True, text=True, check=False)

    def setUp(self):
        super().setUp()
        self.assertEqual(self.bench.returncode, 0, self.bench.stderr)
        shutil.copy(self.measured, self.path("machine.json"))

    def profile(self):
        return json.loads(self.path("machine.json").read_text(encoding="utf-8"))

    def plan(self, config, *arguments):
        return json.loads(self.succeed("train", config, "--dry-run", "--json", *arguments))

    def test_every_figure_is_measured(self):
        profile = self.profile()
        figures = dict(figures_of(profile))
        self.assertGreater(len(figures), 30)
        for path, (_, source) in figures.items():
            self.assertTrue(source.startswith("measured: "), path)
        shares = profile["shares"]
        self.assertEqual([int(ranks) for ranks in shares], [2**i for i in range(len(shares))])
        self.assertEqual(shares["1"]["threads"][0], profile["cores"][0])
        for dtype in ("f32", "bf16"):
            for name in LINEAR_OPS + GROUPED_OPS + OTHER_OPS + ["attention_forward", "attention_backward"]:
                rows, _ = shares["1"]["ops"][f"{dtype} {name}"]
                self.assertEqual(len(rows[0]), 4 if "linear" in name else 3 if "attention" in name else 2, name)
                self.assertTrue(all(number > 0 for row in rows for number in row), name)
            for name in LINEAR_OPS + ["linear_backward_weight bias", "attention_forward", "attention_backward"]:
                rows, _ = shares["1"]["in_steps"][f"{dtype} {name}"]
                # Beside other work, either half of a ratio may take many times its usual time.
                self.assertTrue(all(flops > 0 and 0.001 < ratio < 1000 for flops, ratio in rows), (name, rows))
        self.assertGreaterEqual(shares["1"]["between_ops_seconds"][0], 0)
        self.assertEqual(list(profile["links"]["threads"]), ["2", "4"])
        self.assertIn("measuring", self.bench.stderr)
        self.assertIn("GFLOP/s in fp32 products", self.bench.stdout)

    def test_a_step_on_it_is_predicted(self):
        config = self.write_config(tiny_config(model={"num_layers": 2, "hidden_size": 128}, run={"threads": 0}))
        plan = self.plan(config, "--target", "machine.json")
        here = self.plan(config)
        self.assertEqual(plan["tokens_per_second_origin"], "predicted")
        self.assertNotIn("step_seconds", here)
        self.assertEqual((plan["target"], plan["peak_bytes"]), (here["target"], here["peak_bytes"]))
        slower = self.profile()
        for share in slower["shares"].values():
            for name in LINEAR_OPS:
                for row in share["ops"][f"bf16 {name}"][0] + share["ops"][f"f32 {name}"][0]:
                    row[-1] /= 10
        self.path("slower.json").write_text(json.dumps(slower), encoding="utf-8")
        self.assertGreater(self.plan(config, "--target", "slower.json")["step_seconds"], 1.5 * plan["step_seconds"])
        text = self.succeed("train", config, "--dry-run", "--target", "machine.json")
        self.assertIn("predicted step", text)
        self.assertIn("this-machine", text)

    def test_ranks_share_it(self):
        config = self.write_config(tiny_config(batch={"global": 8}, run={"threads": 0}))
        for ranks in (2, 4):
            plan = self.plan(config, "--target", "machine.json", "--ranks", ranks)
            self.assertEqual(plan["ranks_sharing_memory"], ranks)
            self.assertEqual(plan["peak_bytes"], self.plan(config, "--ranks", ranks)["peak_bytes"])
            self.assertGreater(plan["exposed_seconds"]["gradients"], 0)

    def test_links_are_added(self):
        out = self.succeed("bench", "comm", "--ranks", "3", "--into", "machine.json", "--seconds", "0.001")
        self.assertIn("links between 3 threads added", out)
        links = self.profile()["links"]
        self.assertEqual(list(links["threads"]), ["2", "3", "4"])
        self.assertEqual(sorted(links["threads"]["3"]),
                         ["all_gather", "all_reduce", "all_to_all", "broadcast", "hand_over", "reduce_scatter", "send"])
        config = self.write_config(tiny_config(batch={"global": 6}))
        self.plan(config, "--target", "machine.json", "--ranks", "3")
        self.refuse(USAGE, ["has no measured links between processes", "gptrain bench comm --into FILE"], "train", config,
                    "--dry-run", "--target", "machine.json", "--world-size", "3")

    def test_a_search_on_it_says_what_the_dry_run_says(self):
        config = self.write_config(tiny_config(model={"num_layers": 2}, batch={"global": 4}, run={"threads": 0}))
        search = ["plan", config, "--target", "machine.json", "--gpus"]
        for command in [[*search, 2], ["train", config, "--dry-run", "--target", "machine.json", "--world-size", 2]]:
            self.refuse(USAGE, "has no measured links between processes", *command)
            self.refuse(USAGE, "--cluster dgx-h100: leave this out: this-machine is one machine", *command, "--cluster", "dgx-h100")
        profile = self.profile()
        profile["links"]["tcp"] = {"2": profile["links"]["threads"]["2"]}
        self.path("machine.json").write_text(json.dumps(profile), encoding="utf-8")
        for gpus in (1, 2):
            found = json.loads(self.succeed(*search, gpus, "--top", 2, "--out", "best.json", "--json"))
            dry = self.plan("best.json", "--target", "machine.json", "--world-size", gpus)
            for key in ["peak_bytes", "step_seconds", "tokens_per_second", "mfu", "goodput"]:
                self.assertEqual(found["best"][0][key], dry[key], key)
            self.assertEqual(found["target_memory_bytes"], dry["target_memory_bytes"] // gpus)
            self.assertLess(found["best"][0]["mfu"], 1)
        on_disk = overrides("memory.offload_optimizer=disk", "memory.disk_path=.")
        found = json.loads(self.succeed(*search, 2, *on_disk, "--top", 1, "--out", "best.json", "--json"))
        dry = self.plan("best.json", "--target", "machine.json", "--world-size", 2)
        self.assertGreaterEqual(dry["disk_read_bytes_per_step"], dry["disk_moments_bytes"])
        self.assertEqual(found["best"][0]["step_seconds"], dry["step_seconds"])
        methods = {point["method"]: point for point in
                   json.loads(self.succeed(*search, 1, "--methods", "--json"))["points"]}
        self.assertIn("optimizer state on disk", methods)
        self.assertTrue(methods["all parameters on disk"]["fits"])
        swept = json.loads(self.succeed(*search, 2, "--sweep", "batch.micro=1,2", "--json"))
        self.assertTrue(all(point["fits"] for point in swept["points"]))
        self.refuse(USAGE, "--objective cost: this-machine is one machine", *search, 2, "--objective", "cost")
        self.refuse(USAGE, "--links 1: this-machine is one machine, which has no NICs", *search, 2, "--links", "1")
        self.refuse(USAGE, "--scale 1..2: this-machine is one machine", *search[:-1], "--scale", "1..2")

    def test_the_timeline_of_a_profile_is_that_of_the_simulation(self):
        for ranks, settings in [(1, []), (2, ["parallel.zero=2"]), (2, ["parallel.pipeline=2", "batch.micro=1"])]:
            with self.subTest(ranks=ranks, settings=settings):
                config = self.write_run(model={"num_layers": 2}, data={})
                shutil.rmtree(self.path("out"), ignore_errors=True)
                self.train(config, "--ranks", ranks, "--profile-step", "3", *overrides(*settings))
                self.succeed("train", config, "--dry-run", "--target", "machine.json", "--ranks", ranks, "--trace",
                             "planned.json", *overrides(*settings))
                ran, planned = self.timeline("out/trace-step3.json"), self.timeline("planned.json")
                self.assertGreater(len(planned), 20)
                self.assertEqual(ran, planned)

    def timeline(self, name):
        """Returns actions and ops of rank 0 in order."""
        events = json.loads(self.path(name).read_text(encoding="utf-8"))["traceEvents"]
        spans = [event for event in events if event["ph"] == "X" and event["pid"] == 0 and event["tid"] in (0, 1)]
        self.assertTrue(all(event["dur"] >= 0 for event in spans))
        return [(event["name"], event["args"].get("unit"), event["args"].get("micro_batch"), event["args"].get("shape"))
                for event in spans]


class Refused(CliCase):
    def test_files_that_cannot_be_written(self):
        self.refuse(USAGE, "cannot open none/machine.json", "bench", "device", "--out", "none/machine.json")
        self.path("folder").mkdir()
        self.refuse(USAGE, "--out folder: is a folder, not a file", "bench", "device", "--out", "folder")
        self.refuse(USAGE, "--out is required", "bench", "device")
        self.refuse(USAGE, "--seconds", "bench", "device", "--out", "machine.json", "--seconds", "0")
        self.assertFalse(self.path("machine.json").exists())

    def test_profiles_that_are_none(self):
        comm = ["bench", "comm", "--into"]
        self.refuse(USAGE, "none.json: cannot be read", *comm, "none.json")
        self.path("other.json").write_text("{}")
        self.refuse(USAGE, "other.json: not written by gptrain bench device", *comm, "other.json")
        self.refuse(USAGE, "--into other.json: one rank has no links; start at least two", *comm, "other.json", "--ranks", "1")
        self.path("broken.json").write_text('{"shares": 1')
        config = self.write_config(tiny_config())
        self.refuse(USAGE, "broken.json:1:13: syntax error", "train", config, "--dry-run", "--target", "broken.json")
        self.path("empty.json").write_text('{"shares": {}}')
        self.refuse(USAGE, ["empty.json: shares: is empty", "empty.json: cores: is missing"], "train", config,
                    "--dry-run", "--target", "empty.json")

    def test_without_a_profile_nothing_is_predicted(self):
        text = self.succeed("train", self.write_config(tiny_config()), "--dry-run")
        self.assertNotIn("predicted step", text)
        self.assertIn("gptrain bench device", text)


if __name__ == "__main__":
    unittest.main()
