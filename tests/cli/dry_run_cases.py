"""The dry run: output, machines, cost; and a real run takes the bytes that it announced."""
import json
import os
import re
import sys
import unittest

from cli_case import (BYTES_VOCABULARY, MACHINE, EXECUTABLE, FINISHED, SOURCE_ROOT, USAGE, CliCase, first_in_fast_suite,
                      is_sanitized, large_config, not_of_some_cases, overrides, tiny_config)

MEMORY_CLASSES = ["weights", "gradients", "master", "moments", "gathered", "buckets", "fp8_weights", "activations",
                  "workspace", "data", "communication", "state", "snapshot", "samples", "offloaded"]
# GiB that drivers report, of which plans leave 1 out.
TARGETS = {"v100-32g": 31.74, "a100-80g": 79.14, "h100": 79.11, "h200": 139.72}


class DryRun(CliCase):
    def plan(self, config, *arguments):
        return json.loads(self.succeed("train", config, "--dry-run", "--json", *arguments))

    def test_json_has_every_figure_with_its_unit(self):
        config = self.write_config(tiny_config())
        plan = self.plan(config)
        figures = [f"{name}_bytes" for name in MEMORY_CLASSES]
        figures += ["total_parameters", "peak_bytes", "model_flops_per_step", "hardware_flops_per_step",
                    "reference_flops_per_step", "tokens_per_step", "steps", "total_tokens", "checkpoint_bytes",
                    "target_memory_bytes"]
        for figure in figures:
            self.assertIsInstance(plan[figure], int, figure)
            self.assertGreaterEqual(plan[figure], 0, figure)
        self.assertEqual(sum(plan[f"{name}_bytes"] for name in MEMORY_CLASSES), plan["peak_bytes"])
        self.assertEqual(sum(plan["parameters_by_part"].values()), plan["total_parameters"])
        self.assertGreaterEqual(plan["hardware_flops_per_step"], plan["model_flops_per_step"])
        self.assertEqual((plan["tokens_per_step"], plan["total_tokens"]), (4 * 16, 4 * 16 * 6))
        self.assertTrue(plan["fits"])

    def test_parameters_of_a_known_model(self):
        plan = self.plan(SOURCE_ROOT / "configs" / "gpt2-124m.json")
        self.assertEqual(plan["total_parameters"], 124_439_808)
        self.assertEqual(plan["checkpoint_bytes"], 3 * 4 * 124_439_808)

    def test_a_checkpoint_has_the_bytes_that_were_announced(self):
        config = self.write_run(model={"hidden_size": 64}, parallel={"tensor": 2, "zero": 1}, run={"steps": 1})
        plan = self.plan(config, "--ranks", 4, "--storage-gbps", "0.002")
        self.train(config, "--ranks", 4)
        written = []
        for path in self.checkpoint(1).glob("rank-*.safetensors"):
            with path.open("rb") as file:
                written.append(path.stat().st_size - 8 - int.from_bytes(file.read(8), "little"))
        self.assertEqual(len(written), 4)
        # Another data rank's share is a little larger, by padding between tensors.
        self.assertAlmostEqual(max(written) / plan["checkpoint_bytes_per_rank"], 1, delta=0.03)
        self.assertEqual(sum(written), plan["checkpoint_bytes"])
        self.assertEqual(plan["checkpoint_bytes_per_node"], plan["checkpoint_bytes"])  # all ranks are on this machine
        self.assertAlmostEqual(plan["checkpoint_seconds"], plan["checkpoint_bytes"] / 2e6)
        self.assertNotIn("checkpoint_seconds", self.plan(config, "--ranks", 4))
        # The target's cluster has its own rate.
        of_target = self.plan(config, "--target", "a100-80g", "--world-size", 8, *overrides("batch.micro=1"))
        self.assertGreater(of_target["checkpoint_seconds"], 0)
        self.assertAlmostEqual(of_target["checkpoint_seconds_to_own_drives"], of_target["checkpoint_bytes_per_node"] / 1.08e10)
        self.assertNotIn("checkpoint_seconds_to_own_drives", plan)
        self.assertLess(of_target["checkpoint_bytes_per_rank"], plan["checkpoint_bytes_per_rank"])
        self.refuse(USAGE, "--storage-gbps requires --dry-run", "train", config, "--storage-gbps", "2")

    def test_text_has_every_section(self):
        text = self.succeed("train", self.write_config(tiny_config()), "--dry-run", "--tokens-per-second", "1000")
        for heading in ["model", "parameters", "memory", "FLOPs of one step", "run", "data"]:
            self.assertIn(f"\n{heading}\n", "\n" + text)
        for label in ["embedding", "attention", "ffn", "norms", "head", "total", "weights", "gradients", "moments",
                      "activations", "workspace", "peak", "hardware", "reference", "tokens", "days", "checkpoint"]:
            self.assertIn(label, text)

    def test_attention_masks_are_named(self):
        config = self.write_config(tiny_config())
        plain = self.succeed("train", config, "--dry-run")
        self.assertNotIn("attention window", plain)
        self.assertNotIn("upper bounds", plain)
        masked = self.succeed("train", config, "--dry-run",
                              *overrides("model.attention_window=5", "data.mask_documents=true"))
        self.assertIn("sequence 16 with an attention window of 5, ", masked)
        self.assertIn("causal window, no recomputation", masked)
        self.assertIn("These are upper bounds: ", masked)
        turns = self.succeed("train", config, "--dry-run",
                             *overrides('model.attention_pattern=["dense","band:5"]', "model.num_layers=2"))
        self.assertIn("sequence 16, attention dense, band:5 in turns, ", turns)
        self.assertIn("without padding, attended pairs, no recomputation", turns)

    def test_warnings_are_those_of_the_target(self):
        config = self.write_config(tiny_config(precision={"compute": "bf16"},
                                               data={"mask_documents": True, "max_documents": 4}))
        self.assertEqual(self.plan(config)["warnings"], [])
        self.assertNotIn("\nwarnings\n", self.succeed("train", config, "--dry-run"))
        warnings = self.plan(config, "--target", "h200")["warnings"]
        self.assertEqual([warning.split()[0] for warning in warnings], ["attention_backward", "attention_forward"])
        text = self.succeed("train", config, "--dry-run", "--target", "h200")
        self.assertTrue(text.endswith("\nwarnings\n" + "".join(f"  {warning}\n" for warning in warnings)), text)

    def test_the_shortest_time_of_ranks_is_without_communication(self):
        config = self.write_config(tiny_config(batch={"global": 4, "micro": 4}))
        for ranks, micro in ((1, 4), (2, 2)):
            text = self.succeed("train", config, "--dry-run", "--target", "h100", "--world-size", ranks,
                                *overrides(f"batch.micro={micro}"))
            self.assertIn(f"4 sequences each: 1 micro-batch of {micro}", text)
            shortest = next(line for line in text.splitlines() if line.startswith("  shortest time"))
            self.assertEqual(shortest.endswith("TFLOP/s, without communication"), ranks == 2, shortest)

    def test_small_rates_and_costs_are_told_in_full(self):
        config = self.write_config(tiny_config())
        text = self.succeed("train", config, "--dry-run", "--target", "h100", "--price", 2.5)
        self.assertRegex(text, r"\n  model FLOPs +0\.\d% +\d+\.\d GFLOP/s on each device \(MFU\)\n")
        self.assertRegex(text, r"\n  cost .* 2\.5 for each device-hour, with failures\n")

    def test_stages_have_times_where_a_target_has_rates(self):
        config = self.write_config(tiny_config(batch={"global": 4, "micro": 1}, model={"num_layers": 2},
                                               parallel={"pipeline": 2}))
        for target, columns in (([], ["peak"]), (["--target", "h100"], ["peak", "passes", "waits"])):
            text = self.succeed("train", config, "--dry-run", *target)
            [heading] = [line for line in text.splitlines() if line.startswith("  stage")]
            self.assertEqual(heading.split(), ["stage", "layers", "in", "flight", *columns])

    def test_time_at_a_given_rate(self):
        config = self.write_config(tiny_config(run={"steps": 1000}))
        plan = self.plan(config, "--tokens-per-second", "2.5")
        self.assertAlmostEqual(plan["total_seconds"], 64 * 1000 / 2.5)
        self.assertAlmostEqual(plan["total_days"], 64 * 1000 / 2.5 / 86400)
        self.assertNotIn("total_days", self.plan(config))

    def test_time_at_the_rate_that_was_measured(self):
        config = self.write_run()
        self.train(config)
        plan = self.plan(config)
        rates = sorted(record["tokens_per_second"] for record in self.records())
        self.assertIn(plan["tokens_per_second"], rates[2:4])
        self.assertEqual(plan["tokens_per_second_origin"], "measured in out")

    def test_needs_no_data_and_leaves_nothing_behind(self):
        config = self.write_config(tiny_config())
        text = self.succeed("train", config, "--dry-run")
        self.assertIn("epochs unknown", text)
        self.assertIsNone(self.plan(config)["sources"][0]["epochs"])
        self.assertEqual(os.listdir(self.folder), [config])

    def test_epochs_where_the_data_are_there(self):
        source = self.plan(self.write_run(run={"steps": 1000}))["sources"][0]
        self.assertEqual((source["path"], source["share"]), ("corpus", 1))
        self.assertAlmostEqual(source["epochs"], 4 * 1000 / ((4000 - 1) // 16))

    def test_targets(self):
        config = self.write_config(tiny_config())
        for name, gib in TARGETS.items():
            memory_bytes = round(gib * 2**30) - 2**30
            with self.subTest(target=name):
                plan = self.plan(config, "--target", name)
                self.assertEqual((plan["target"], plan["target_memory_bytes"]), (name, memory_bytes))
                self.assertIn(name, self.succeed("train", config, "--dry-run", "--target", name))
        self.assertEqual(self.plan(config)["target"], "this-machine")

    def test_fp8_linears_are_planned_for_gpus_that_have_them(self):
        changes = {"model": {"hidden_size": 256, "num_heads": 4, "num_layers": 4}, "precision": {"compute": "bf16"}}
        config = self.write_config(tiny_config(**changes))
        bf16 = self.plan(config, "--target", "h200")
        fp8 = self.plan(config, "--target", "h200", *overrides("precision.linears=fp8"))
        self.assertEqual(bf16["fp8_weights_bytes"], 0)
        # Two FP8 copies of 12 h^2 weights in each block, and four scales with their padding.
        self.assertEqual(fp8["fp8_weights_bytes"], 4 * (2 * 12 * 256**2 + 4 * 256))
        self.assertLess(fp8["activations_bytes"], bf16["activations_bytes"])
        self.assertEqual(fp8["model_flops_per_step"], bf16["model_flops_per_step"])
        self.assertLess(fp8["seconds_at_full_matrix_rate"], bf16["seconds_at_full_matrix_rate"])
        self.assertGreater(fp8["seconds_at_full_matrix_rate"], bf16["seconds_at_full_matrix_rate"] / 2)
        # Work on replicated key-value heads is not part of the model's FLOPs.
        ranks = ["--target", "h200", "--world-size", 4, *overrides("parallel.tensor=4", "model.num_kv_heads=2")]
        bf16 = self.plan(config, *ranks)
        fp8 = self.plan(config, *ranks, *overrides("precision.linears=fp8"))
        self.assertEqual(fp8["model_flops_per_step"], bf16["model_flops_per_step"])
        self.refuse(USAGE, "precision.linears = fp8: a100-80g has no FP8 matrix products", "train", config, "--dry-run",
                    "--target", "a100-80g", *overrides("precision.linears=fp8"))
        self.refuse(MACHINE, "precision.linears = fp8: this-machine has no FP8 matrix products", "train", config,
                    "--dry-run", *overrides("precision.linears=fp8"))

    def test_what_ranks_exchange_through(self):
        """Checks that each reducing lane has 256 KiB per rank of its largest group, as processes receive data to
        reduce."""
        config = self.write_config(tiny_config())
        mixed = overrides("parallel.zero=1", "precision.compute=bf16")  # weights go over a lane that sums norms
        for arguments, expected in [(("--world-size", 1), 0), (("--world-size", 2), 2 << 18), (("--ranks", 2), 0),
                                    (("--world-size", 2, *mixed), (2 + 2) << 18),
                                    (("--world-size", 4, *overrides("parallel.tensor=2")), (4 + 2) << 18),
                                    (("--world-size", 4, *overrides("parallel.tensor=2"), *mixed), (4 + 2 + 2) << 18)]:
            for target, of_device in [((), 0), (("--target", "h100"), 64 << 20 if 1 not in arguments else 0)]:
                plan = self.plan(config, *arguments, *target)
                on_host = plan.get("host_communication_bytes", 0) if target else plan["communication_bytes"]
                self.assertEqual(on_host, expected, arguments)
                if target:
                    self.assertEqual(plan["communication_bytes"], of_device, arguments)

    def test_the_shapes_of_the_gpu_benches_are_valid(self):
        """Checks the benches' configs here, as the scripts run only with a GPU."""
        sys.path.insert(0, str(SOURCE_ROOT / "tools" / "gpu"))
        import gpu_runs
        for name in ("gpt2-124m-1024", "gpt2-1.5b-1024-fp8", "llama-1b-4096-fp8", "llama-160m-2048-experts"):
            case = gpu_runs.ALL_CASES[name]
            self.assertGreater(gpu_runs.resolved_model(EXECUTABLE, self.folder, case)["vocab_size"], 0)
            file = gpu_runs.write_config(self.folder, case, case.micro_batches()[0], "cuda", name)
            plan = gpu_runs.plan(EXECUTABLE, self.folder, file)
            self.assertEqual(plan["fp8_weights_bytes"] > 0, case.linears == "fp8")
        for precision in ("fp32", "bf16"):
            file = gpu_runs.write_config(self.folder, gpu_runs.CASES["gpt2-124m-1024"], 1, "cuda", precision,
                                         precision={"compute": precision})
            self.succeed("config", "check", file)

    def test_gpus_without_bf16_are_only_planned_for(self):
        config = self.write_config(tiny_config())
        for target in ["v100-32g", "rtx-2080-ti"]:
            warning = f"{target}: for planning only: gptrain trains on GPUs of compute capability 8.0 or later"
            for compute in ["fp32", "fp16"]:
                arguments = ["--target", target, *overrides(f"precision.compute={compute}")]
                self.assertIn(warning, self.plan(config, *arguments)["warnings"])
                self.assertIn(f"\nwarnings\n  {warning}\n", self.succeed("train", config, "--dry-run", *arguments))
            for compute in ["bf16", "bf16-pure"]:
                self.refuse(USAGE, f"gptrain: precision.compute = {compute}: {target} has no bf16: GPUs have it "
                            'from compute capability 8.0 on (try "fp16")\n', "train", config, "--dry-run",
                            "--target", target, *overrides(f"precision.compute={compute}"))
            self.refuse(USAGE, f"gptrain: precision.weight_gradients = bf16: {target} has no bf16: GPUs have it from compute "
                        'capability 8.0 on (try "fp32")\n', "train", config, "--dry-run", "--target", target,
                        *overrides("precision.weight_gradients=bf16"))
        wide = self.write_config(tiny_config(model={"hidden_size": 32}))
        self.refuse(USAGE, "gptrain: precision.weight_gradients = fp8: a100-80g has no FP8 matrix products: GPUs have them "
                    "from compute capability 8.9 on", "train", wide, "--dry-run", "--target", "a100-80g",
                    *overrides("precision.compute=bf16", "precision.weight_gradients=fp8"))
        self.refuse(USAGE, ["precision.compute = bf16: v100-32g", '8.0 on (try "fp16")\nprecision.linears = fp8: '],
                    "train", self.write_config(tiny_config(model={"hidden_size": 32})), "--dry-run", "--target",
                    "v100-32g", *overrides("precision.compute=bf16", "precision.linears=fp8"))
        self.assertEqual(self.plan(config, "--target", "a100-80g")["warnings"], [])
        self.refuse(USAGE, "gptrain: model.head_size = 512: must be at most 256 on a GPU (try 256)\n", "train", config,
                    "--dry-run", "--target", "h100", *overrides("model.hidden_size=512", "model.num_heads=1"))
        large = ["model.hidden_size=512", "model.sequence_length=4096", "batch.global=256", "batch.micro=256"]
        text = self.succeed("train", config, "--dry-run", "--target", "rtx-2080-ti",
                            *overrides(*large))
        self.assertIn('  precision.compute = "fp16": ', text)
        self.assertNotIn("bf16", text)

    def test_an_unknown_target_names_the_valid_ones(self):
        self.refuse(USAGE, ['unknown target "h300"', "did you mean h100", *TARGETS], "train",
                    self.write_config(tiny_config()), "--dry-run", "--target", "h300")

    def test_a_named_target_has_a_predicted_step(self):
        config = self.write_config(tiny_config(parallel={"pipeline": 2}, model={"num_layers": 4}))
        plan = self.plan(config, "--target", "h100", "--world-size", "4")
        self.assertEqual(plan["predicted_for"], "h100 in dgx-h100 nodes")
        self.assertEqual(plan["tokens_per_second_origin"], "predicted")
        seconds = plan["step_seconds"]
        self.assertAlmostEqual(plan["tokens_per_second"], plan["tokens_per_step"] / seconds, delta=1)
        self.assertAlmostEqual(plan["tokens_per_second_per_gpu"], plan["tokens_per_second"] / 4, delta=1)
        self.assertAlmostEqual(plan["gpu_hours"], seconds * plan["steps"] * 4 / 3600)
        self.assertAlmostEqual(plan["model_tflops_per_gpu"], plan["model_flops_per_step"] / seconds / 4e12)
        self.assertLess(plan["model_tflops_per_gpu"], plan["hardware_tflops_per_gpu"])
        self.assertLess(plan["hfu"], 1)
        self.assertAlmostEqual(plan["mfu"] / plan["hfu"], plan["model_tflops_per_gpu"] / plan["hardware_tflops_per_gpu"])
        self.assertAlmostEqual(sum(plan["critical_path_seconds"].values()), seconds)
        self.assertGreater(plan["bubble_seconds"], 0)
        self.assertLess(sum(plan["exposed_seconds"].values()) + plan["bubble_seconds"], seconds)
        self.assertGreater(plan["goodput"], 0.9)
        self.assertAlmostEqual(plan["total_days_with_failures"], plan["total_days"] / plan["goodput"])
        # Slower links, with the same memory.
        slow = self.plan(config, "--target", "h100", "--cluster", "pcie5", "--world-size", "4")
        self.assertGreater(slow["step_seconds"], seconds)
        self.assertEqual(slow["peak_bytes"], plan["peak_bytes"])
        given = self.plan(config, "--target", "h100", "--world-size", "4", "--tokens-per-second", "1000")
        self.assertEqual((given["tokens_per_second"], given["tokens_per_second_origin"]), (1000, "given"))
        self.assertNotIn("total_days_with_failures", given)
        text = self.succeed("train", config, "--dry-run", "--target", "h100", "--world-size", "4")
        for part in ["predicted step", "h100 in dgx-h100 nodes", "MFU", "HFU", "Critical path: ", "device-hours", "predicted; ", " with failures\n"]:
            self.assertIn(part, text)
        self.assertRegex(text, rf"\n  step +{seconds:.4g} s   ")
        self.assertNotIn("step_seconds", self.plan(config, "--world-size", "4"))
        self.assertIn("\npredicted step\n  gptrain was never measured on h100: its own model gives these times", text)
        self.assertIn("the step of NeMo of 2025 on Megatron Core in this layout", text)
        nemo = self.plan(config, "--target", "h100", "--world-size", "4", "--software", "nemo")
        self.assertEqual(nemo["step_seconds"], plan["published_step_seconds"])
        self.assertNotIn("published_step_seconds", nemo)
        self.assertEqual((plan["expected_error"], plan["software"], nemo["software"]), (0.068, "gptrain", "nemo"))
        self.refuse(USAGE, ['unknown software profile "jax"', "megatron-lm"], "train", config, "--dry-run", "--target",
                    "h100", "--software", "jax")

    def test_a_slow_layout_is_answered_with_settings_to_paste(self):
        # The file gives the number of micro-batches in place of the batch.
        slow = tiny_config(precision={"compute": "bf16"}, memory={"recompute": "block"}, model={
            "hidden_size": 1024, "num_heads": 8, "num_layers": 8, "sequence_length": 1024})
        slow["batch"] = {"micro": 1, "accumulation": 16}
        config = self.write_config(slow)
        options = ["--target", "a100-80g", "--world-size", "4"]
        plan = self.plan(config, *options)
        faster = plan["faster_layout"]
        self.assertLess(1.1 * faster["step_seconds"], plan["step_seconds"])
        self.assertIn("\n    --set " + " --set ".join(faster["settings"]) + "\n",
                      self.succeed("train", config, "--dry-run", *options))
        followed = self.plan(config, *options, *overrides(*faster["settings"]))
        self.assertEqual(followed["step_seconds"], faster["step_seconds"])
        self.assertEqual(followed["tokens_per_step"], plan["tokens_per_step"])
        self.assertNotIn("faster_layout", followed)
        self.assertNotIn("faster_layout", self.plan(config, "--world-size", "4"))

    def test_what_runs_is_what_is_priced(self):
        config = self.write_config(tiny_config(precision={"compute": "bf16"}, model={
            "hidden_size": 512, "num_heads": 4, "num_layers": 4, "sequence_length": 2048}, batch={"micro": 2, "global": 2}))

        def priced(*settings, target="a100-80g"):
            plan = self.plan(config, "--target", target, *overrides(*settings))
            return plan["step_seconds"], "".join(plan["warnings"])

        documents = ["data.mask_documents=true", "data.max_documents=4"]
        for setting, value, others in [("run.deterministic", "true", documents), ("model.attention_dropout", "0.1", []),
                                       ("model.head_size", "256", [])]:
            fast, warnings = priced("run.deterministic=false", *others)
            self.assertNotIn("own kernels", warnings)
            slow, warnings = priced("run.deterministic=false", *others, f"{setting}={value}")
            self.assertGreater(slow, 1.02 * fast, setting)
            self.assertIn(f"own kernels compute it because of {setting} = {value}, which takes ", warnings)
        self.assertNotIn("own kernels", priced(target="h100")[1])

    def test_profiles_are_files_too(self):
        config = self.write_config(tiny_config())
        profile = (SOURCE_ROOT / "configs" / "devices" / "a100-80g.json").read_text(encoding="utf-8")
        with open(self.path("mine.json"), "w", encoding="utf-8") as file:
            file.write(profile.replace('"a100-80g"', '"mine"').replace("[3.12e+14,", "[1e+14,"))
        plan, slower = (self.plan(config, "--target", name) for name in ["a100-80g", "mine.json"])
        self.assertEqual(slower["target"], "mine")
        self.assertEqual(slower["peak_bytes"], plan["peak_bytes"])
        with open(self.path("fp8.json"), "w", encoding="utf-8") as file:
            file.write(profile.replace('"a100-80g"', '"mine"').replace('"compute_capability": [8,', '"compute_capability": [8.9,'))
        self.refuse(USAGE, "mine's profile has no rates of FP8 products (products.fp8)", "train", config, "--dry-run",
                    "--target", "fp8.json", *overrides("model.hidden_size=32", "precision.compute=bf16", "precision.linears=fp8"))
        self.refuse(USAGE, "--target mi300x: is a GPU of AMD", "train", config, "--dry-run", "--target", "mi300x")
        self.refuse(USAGE, ["nothing.json"], "train", config, "--dry-run", "--target", "nothing.json")
        self.refuse(USAGE, ['unknown cluster "dgx-h10"', "dgx-h100"], "train", config, "--dry-run", "--target", "h100",
                    "--cluster", "dgx-h10")

    def test_rates_and_prices_are_within_what_amounts_can_hold(self):
        arguments = ["train", self.write_config(tiny_config()), "--dry-run", "--target", "h100"]
        for option, value in [("--storage-gbps", "1e-300"), ("--price", "1e308"), ("--tokens-per-second", "1e-300")]:
            self.refuse(USAGE, f"{option}: {value} is not a number from 1e-12 to 1e+18", *arguments, option, value)
        self.refuse(USAGE, "--cluster: is empty", *arguments, "--cluster", "")
        plan = self.plan(*arguments[1:2], *arguments[3:], "--tokens-per-second", "1e-12", "--storage-gbps", "1e-12",
                         *overrides("run.steps=1000000000000"))
        self.assertGreater(plan["total_days"], 1e20)
        self.assertGreaterEqual(plan["best_checkpoint_every_seconds"], plan["checkpoint_seconds"])
        text = self.succeed(*arguments, "--tokens-per-second", "1e-12", "--storage-gbps", "1e-12",
                            *overrides("run.steps=1000000000000"))
        self.assertRegex(text, r"\n  time +7.41e\+20 days +7.41e\+20 days at ")
        endless = self.succeed(*arguments, "--price", "1", "--storage-gbps", "1e-12")
        self.assertRegex(endless, r"\n  device-hours .* without end where nodes fail: goodput 0.0%")
        self.assertRegex(endless, r"\n  cost +\? +the run never ends: nodes fail too often\n")

    def test_a_model_that_does_not_fit_is_planned_all_the_same(self):
        config = self.write_config(large_config())
        plan = self.plan(config, "--target", "a100-80g")
        self.assertFalse(plan["fits"])
        missing = (plan["peak_bytes"] - plan["target_memory_bytes"]) / 2**40
        text = self.succeed("train", config, "--dry-run", "--target", "a100-80g")
        self.assertIn(f"Does not fit: {missing:.1f} TiB are missing on a100-80g", text)

    def test_offload_takes_activations_to_the_host(self):
        config = self.write_config(tiny_config(model={"num_layers": 6, "hidden_size": 512}))
        on_gpu = {blocks: self.plan(config, "--target", "h100", *overrides(f"memory.offload_activations={blocks}"))
                  for blocks in ["none", "2", "all"]}
        kept, some, moved = on_gpu.values()
        self.assertNotIn("offloaded_blocks", kept)
        self.assertEqual((some["offloaded_blocks"], moved["offloaded_blocks"]), ([2], [6]))
        self.assertNotIn("host_offloaded_bytes", kept)
        self.assertEqual(3 * some["host_offloaded_bytes"], moved["host_offloaded_bytes"])
        self.assertEqual((some["offloaded_bytes"], moved["offloaded_bytes"]), (0, 0))
        self.assertLess(moved["activations_bytes"], some["activations_bytes"])
        self.assertLess(some["activations_bytes"], kept["activations_bytes"])
        self.assertGreater(moved["exposed_seconds"]["copies"], 0)
        self.assertEqual(kept["exposed_seconds"]["copies"], 0)
        # On the CPU all memory is the host's, and no copies are hidden.
        moved, hidden = (self.plan(config, *overrides(f"memory.offload_activations={blocks}")) for blocks in ["all", "hidden"])
        self.assertGreater(moved["offloaded_bytes"], 0)
        self.assertEqual((hidden["offloaded_bytes"], hidden["offloaded_blocks"]), (0, [0]))
        self.assertIn("copies take memory and time and save none", " ".join(moved["warnings"]))
        for plan in [kept, some, hidden]:
            self.assertNotIn("offload_activations", json.dumps(plan.get("warnings", [])))
        arguments = ["train", config, "--dry-run", "--target", "h100", "--trace", "trace",
                     *overrides("memory.offload_activations=3")]
        text = self.succeed(*arguments)
        self.assertRegex(text, r"\n  offloaded on the host +[\d,]+ ")
        self.assertIn("  3 of 6 blocks are offloaded.\n", text)
        # The text has the bytes that a node's ranks take of the host's memory.
        self.assertRegex(text, r"\n  The 1 rank of a node takes [\d.]+ [KMG]iB of its host's memory, which is 1\.8 TiB\.\n")
        many = self.plan(config, "--target", "h100", "--world-size", "16", *overrides("memory.offload_activations=3",
                         "batch.global=16", "batch.micro=1"))
        self.assertEqual(many["host_memory_bytes"], 2 * 10**12 - 2**30)
        of_rank = sum(bytes for key, bytes in many.items() if re.fullmatch("host_(?!bytes_of|memory).*_bytes", key))
        self.assertEqual(many["host_bytes_of_node"], 8 * of_rank)
        trace = json.loads(self.path("trace").read_text())["traceEvents"]
        rows = {event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"}
        copies = [(rows[event["tid"]], event["name"]) for event in trace
                  if event["ph"] == "X" and rows[event["tid"]].startswith("lane ")]
        self.assertEqual(set(copies), {("lane offload", "download"), ("lane fetch", "upload")})

    def test_replaces_no_device_and_no_pipe(self):
        config = self.write_config(tiny_config(model={"num_layers": 2}))
        os.mkfifo(self.path("pipe"))
        for option in [["--trace", "pipe"], ["--timeline", "pipe", *overrides("parallel.pipeline=2")]]:
            with self.subTest(option=option[0]):
                self.refuse(USAGE, "cannot replace pipe: it is no ordinary file", "train", config, "--dry-run",
                            "--world-size", 2, *option)
                self.assertTrue(self.path("pipe").is_fifo())

    def test_writes_trace_and_timeline_to_two_files(self):
        config = self.write_config(tiny_config(model={"num_layers": 2}))
        arguments = ["train", config, "--dry-run", "--world-size", 2, *overrides("parallel.pipeline=2")]
        self.refuse(USAGE, "--trace and --timeline name the same file: page", *arguments, "--trace", "page",
                    "--timeline", "./page")
        self.assertFalse(self.path("page").exists())
        self.succeed(*arguments, "--trace", "trace", "--timeline", "page")

    def test_says_which_links_each_order_of_the_ranks_uses(self):
        config = self.write_config(tiny_config(model={"num_layers": 4}, batch={"micro": 1, "global": 8}))
        arguments = ["train", config, "--dry-run", "--target", "h100", "--world-size", 16]
        arguments += overrides("parallel.pipeline=2", "parallel.tensor=2")
        text = self.succeed(*arguments)
        self.assertRegex(text, r"\n  order +tensor-data-pipeline +data ranks within nodes, stages between nodes\n"
                               r"  other order +tensor-pipeline-data +data ranks between nodes, stages within nodes\n")
        arguments += overrides("parallel.rank_order=tensor-pipeline-data")
        other = self.succeed(*arguments)
        self.assertRegex(other, r"\n  other order +tensor-data-pipeline .*\n  order +tensor-pipeline-data ")
        self.assertEqual(json.loads(self.succeed(*arguments, "--json"))["rank_order"], "tensor-pipeline-data")
        # The traffic table says which stages are within a node.
        self.assertIn("within a node, lane send_next", other)
        self.assertIn("between nodes, lane send_next", text)

    @unittest.skipIf(is_sanitized(), "a sanitizer's own time and memory would be measured")
    def test_large_models_take_a_second_and_little_memory(self):
        """Plans within a second of processor time, also 64 stages with 512 micro-batches each."""
        for name, parameters, target in [("gpt3-175b", "174,", []),
                                         ("published/megatron-1008b", "1,008,", ["--target", "a100-80g"])]:
            arguments = [EXECUTABLE, "train", SOURCE_ROOT / "configs" / f"{name}.json", "--dry-run", *target]
            with self.subTest(name), open(self.path("plan.txt"), "wb") as out:
                to_file = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
                process = os.posix_spawn(EXECUTABLE, list(map(str, arguments)), os.environ, file_actions=to_file)
                _, status, usage = os.wait4(process, 0)
                self.assertEqual(os.waitstatus_to_exitcode(status), 0)
                self.assertIn(parameters, self.path("plan.txt").read_text(encoding="utf-8"))
                # Some stages are planned at the same time.
                self.assertLess(usage.ru_maxrss * 1024, 200e6 + 20e6 * min(os.cpu_count(), 8))
                # Processor time: elapsed time would include other work of the machine.
                if not target:
                    self.assertLess(usage.ru_utime + usage.ru_stime, 1)


class MicroBatches(CliCase):
    """The limit on micro-batches: a schedule has actions for each micro-batch and layer."""
    MOST = 2**22 // 3  # with one layer

    def test_more_than_a_schedule_may_have(self):
        self.refuse(USAGE, f"leaves {2**21} micro-batches a step, must be at most {self.MOST} with model.num_layers = 1",
                    "train", self.write_config(tiny_config()), "--dry-run",
                    *overrides("batch.micro=1", f"batch.global={2**21}", "parallel.tensor=2"))

    @not_of_some_cases
    def test_the_most_that_are_accepted_are_planned(self):
        config = tiny_config(batch={"micro": 1, "global": self.MOST}, parallel={"tensor": 2})
        plan = json.loads(self.succeed("train", self.write_config(config), "--dry-run", "--json"))
        self.assertEqual(plan["tokens_per_step"], self.MOST * config["model"]["sequence_length"])


class RealRun(CliCase):
    def test_the_largest_that_is_accepted_has_sums_that_hold(self):
        """Compares the 64-bit plan of the largest accepted configs with Python's unbounded integers."""
        for model, precision, ranks in first_in_fast_suite(2, [
            ({"num_layers": 1, "hidden_size": 2**20, "num_heads": 2**13, "ffn_hidden_size": 2**22, "sequence_length": 2**24}, "bf16", 1),
            ({"num_layers": 30, "hidden_size": 2**16, "num_heads": 2**9, "sequence_length": 2**16, "vocab_size": 2**31 - 1}, "bf16", 2),
            ({"num_layers": 1000, "hidden_size": 2**20, "num_heads": 2**13, "sequence_length": 16}, "fp32", 1),
        ]):
            model = {"vocab_size": BYTES_VOCABULARY, **model}
            largest = {}
            accepted, refused = -1, 21
            while refused - accepted > 1:
                exponent = (accepted + refused) // 2
                config = tiny_config(batch={"micro": 2**exponent, "global": ranks * 2**exponent})
                config.update(model=model, precision={"compute": precision}, memory={"recompute": "none"})
                name = self.write_config(config)
                result = self.run_gptrain("train", name, "--dry-run", "--json", "--target", "h100", "--world-size", ranks)
                if result.code != FINISHED:
                    self.assertEqual(result.code, USAGE, result.err)
                    self.assertRegex(result.err, "larger than 2.63 bytes|must be at most .* tokens")
                    refused = exponent
                    continue
                accepted = exponent
                largest = json.loads(result.out)
                rows = 2**exponent * model["sequence_length"]
                width = 4 if precision == "fp32" else 2
                classes = [largest[f"{kind}_bytes"] for kind in MEMORY_CLASSES]
                self.assertEqual(sum(classes), largest["peak_bytes"])
                self.assertLess(largest["peak_bytes"], 2**63)
                self.assertGreaterEqual(largest["moments_bytes"] * (ranks if ranks > 1 else 1), 8 * largest["total_parameters"])
                # Each layer saves at least its input, with `width` bytes per feature of a row.
                kept = rows * model["hidden_size"] * width * model["num_layers"]
                self.assertGreaterEqual(largest["activations_bytes"], kept)
                self.assertLess(largest["activations_bytes"], 64 * (kept + rows * model.get("ffn_hidden_size", 0) * width) + 2**40)
            self.assertTrue(largest, model)

    def test_takes_the_bytes_that_the_dry_run_announced(self):
        for name, sections in {
            "fp32": {},
            "bf16": {"precision": {"compute": "bf16"}},
            "recompute": {"memory": {"recompute": "block"}, "model": {"num_layers": 3}},
            "validation": {"data": {"validation": [{"path": "corpus"}]}},
            "masks": {"data": {"mask_documents": True}, "model": {"attention_pattern": ["dense", "band:5"], "num_layers": 2}},
            "useless copies": {"memory": {"offload_activations": "all"}},
        }.items():
            with self.subTest(run=name):
                config = self.write_run(run={"out": name}, **sections)
                plan = json.loads(self.succeed("train", config, "--dry-run", "--json"))
                run = self.run_gptrain("train", config)
                self.assertEqual(run.code, FINISHED, run.err)
                self.assertEqual(run.err.count("warning: "), len(plan["warnings"]), run.err)
                for warning in plan["warnings"]:
                    self.assertIn(f"warning: {warning}\n", run.err)
                taken = json.loads((self.path(name) / "run.json").read_text(encoding="utf-8"))
                self.assertEqual({f"{memory}_bytes" for memory in [*MEMORY_CLASSES, "peak"]},
                                 {key for key in taken if key.endswith("_bytes")})
                self.assertEqual(taken, {key: plan[key] for key in taken})
                self.assertEqual({record["peak_bytes"] for record in self.records(name)}, {plan["peak_bytes"]})


if __name__ == "__main__":
    unittest.main()
