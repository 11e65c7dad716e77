"""Dry runs with recomputation and copies to the host: the plan, and time against memory."""
import json
import re
import unittest

from cli_case import USAGE, CliCase, overrides, tiny_config


class Recomputation(CliCase):
    def plan(self, config, *arguments):
        return json.loads(self.succeed("train", config, "--dry-run", "--json", *arguments))

    def test_copies_and_recomputation_are_weighed_by_one_plan(self):
        config = self.write_config(tiny_config(model={"num_layers": 6, "hidden_size": 512}))
        both = overrides("memory.recompute=optimal", "memory.offload_activations=optimal")
        alone = self.plan(config, "--target", "h100", *overrides("memory.recompute=optimal"))["recomputation"]
        self.assertNotIn("curve_without_offload", alone)
        budget = alone["curve"][-1]["activations_bytes"] * 2 // 3
        arguments = ["--target", "h100", *both, *overrides(f"memory.activation_budget={budget}")]
        plan = self.plan(config, *arguments)
        [stage] = plan["recomputation"]["stages"]
        self.assertGreater(stage["blocks_offloaded"], 0)
        other = self.plan(config, "--target", "h100",
                          *overrides("memory.recompute=optimal", f"memory.activation_budget={budget}"))
        self.assertLess(stage["again_share"], other["recomputation"]["stages"][0]["again_share"])
        self.assertEqual(plan["offloaded_blocks"], [stage["blocks_offloaded"]])
        self.assertGreater(plan["host_offloaded_bytes"], 0)
        self.assertLessEqual(plan["activations_bytes"], budget)
        curve, without = plan["recomputation"]["curve"], plan["recomputation"]["curve_without_offload"]
        self.assertLessEqual(curve[0]["activations_bytes"], without[0]["activations_bytes"])
        self.assertEqual({row["recompute"] for row in plan["recomputation"]["others"]} & {"none", "none, offload all"},
                         {"none", "none, offload all"})
        text = self.succeed("train", config, "--dry-run", *arguments, "--memory-curve", "curve.html")
        self.assertIn("of these offloaded to the host\n", text)
        page = self.path("curve.html").read_text()
        for name in ["optimal, offload optimal", "block, offload all"]:
            self.assertIn(name, page)
        self.assertIn(">budget ", page)
        # Each point has a row, also points that are not drawn, and each drawn series has its own color.
        recomputation = plan["recomputation"]
        points = [*curve, *without, *recomputation["others"]]
        rows = page.split("<section>\n<table>")[1].split("</table>")[0]
        self.assertEqual(rows.count("<tr>"), 1 + len(points))
        for point in points:
            self.assertIn(f"<td class=\"number\">{point['activations_bytes']:,}</td>", rows)
        self.assertEqual(rows.count("(not drawn)"), sum(point["again_share"] > 1 for point in points))
        colors = re.findall(r'swatch color-(\d)"', page)
        self.assertEqual(len(colors), len(set(colors)))
        self.assertGreater(len(colors), 4)
        # On the CPU no copies are hidden.
        on_cpu = self.plan(config, *both)
        self.assertEqual((on_cpu["offloaded_blocks"], on_cpu["offloaded_bytes"]), ([0], 0))

    def test_recomputation_costs_flops_and_saves_activations(self):
        config = self.write_config(tiny_config(model={"num_layers": 4}))
        kept = self.plan(config)
        for settings in [["memory.recompute=block"], ["memory.recompute=selective"], ["memory.recompute=ffn"], ["memory.recompute=every_nth", "memory.recompute_interval=2"]]:
            with self.subTest(settings=settings):
                again = self.plan(config, *overrides(*settings))
                self.assertLess(again["activations_bytes"], kept["activations_bytes"])
                self.assertGreater(again["hardware_flops_per_step"], kept["hardware_flops_per_step"])
                self.assertEqual(again["model_flops_per_step"], kept["model_flops_per_step"])

    def test_selective_recomputation_runs_no_linear_again(self):
        config = self.write_config(tiny_config(model={"num_layers": 4, "hidden_size": 512}))
        kept, selective, whole = (self.plan(config, *overrides(f"memory.recompute={kind}"))
                                  for kind in ["none", "selective", "block"])
        self.assertGreater(selective["activations_bytes"], whole["activations_bytes"])
        extra = {kind: plan["hardware_flops_per_step"] - kept["hardware_flops_per_step"]
                 for kind, plan in [("selective", selective), ("block", whole)]}
        # Linears dominate a small model with short sequences.
        self.assertLess(extra["selective"], 0.2 * extra["block"])

    def test_optimal_recomputation_takes_the_least_time_for_its_budget(self):
        config = self.write_config(tiny_config(model={"num_layers": 8}))
        optimal = overrides("memory.recompute=optimal")
        refused = self.refuse(USAGE, "memory.activation_budget = 1: activations of a rank take at least ", "train", config,
                              "--dry-run", *optimal, *overrides("memory.activation_budget=1"))
        least = int(refused.split("(try ")[1].split(")")[0])
        plans = {budget: self.plan(config, *optimal, *overrides(f"memory.activation_budget={budget}"))
                 for budget in [least, 10 ** 9]}
        self.assertEqual(plans[least]["activations_bytes"], least)
        kept = self.plan(config)
        self.assertEqual(plans[10 ** 9]["hardware_flops_per_step"], kept["hardware_flops_per_step"])
        self.assertEqual(plans[10 ** 9]["activations_bytes"], kept["activations_bytes"])
        self.assertNotIn("recomputation", kept)
        recomputation = plans[least]["recomputation"]
        [stage] = recomputation["stages"]
        self.assertEqual(sum(stage[key] for key in stage if key.startswith("blocks_")), 8)
        self.assertEqual(stage["activations_bytes"], least)
        self.assertGreater(stage["blocks_run_again_with_others"], 0)
        curve = recomputation["curve"]
        self.assertEqual(curve[0]["activations_bytes"], least)
        self.assertEqual(curve[-1]["again_share"], 0)
        for row in recomputation["others"]:
            same = self.plan(config, *optimal, *overrides(f"memory.activation_budget={row['activations_bytes']}"))
            self.assertLessEqual(same["recomputation"]["stages"][0]["again_share"], row["again_share"], row)
            other = self.plan(config, *overrides(f"memory.recompute={row['recompute']}"))
            self.assertEqual(other["activations_bytes"], row["activations_bytes"])
        text = self.succeed("train", config, "--dry-run", *optimal, *overrides(f"memory.activation_budget={least}"))
        self.assertRegex(text, r"\nrecomputation\n  budget +[\d.]+ KiB   for the activations of a rank\n  blocks +\d+")
        self.assertRegex(text, r"\ntime against memory +activations +more time +step\n  optimal ")

    def test_optimal_recomputation_predicts_its_steps_and_draws_them(self):
        config = self.write_config(tiny_config(model={"num_layers": 12, "hidden_size": 768, "num_heads": 12,
                                                      "sequence_length": 1024}, precision={"compute": "bf16"}))
        arguments = [config, "--target", "h100", *overrides("memory.recompute=optimal"), "--memory-curve", "curve.html"]
        plan = self.plan(*arguments)
        self.assertEqual(plan["recomputation"]["activation_budget_bytes"], "fit")
        self.assertEqual(plan["recomputation"]["activation_room_bytes"],
                         plan["target_memory_bytes"] - (plan["peak_bytes"] - plan["activations_bytes"]))
        curve = plan["recomputation"]["curve"]
        self.assertGreater(len(curve), 4)
        for less, more in zip(curve, curve[1:]):
            self.assertLess(less["activations_bytes"], more["activations_bytes"])
            self.assertGreater(less["step_seconds"], more["step_seconds"])
        block = next(row for row in plan["recomputation"]["others"] if row["recompute"] == "block")
        same = self.plan(*arguments, *overrides(f"memory.activation_budget={block['activations_bytes']}"))
        self.assertLessEqual(same["step_seconds"], block["step_seconds"])
        page = self.path("curve.html").read_text(encoding="utf-8")
        self.assertIn("Seconds of a step", page)
        self.assertIn("optimal", page)
        self.assertIn("The device has ", page)
        self.refuse(USAGE, "--memory-curve needs memory.recompute = \"optimal\"", "train", config,
                    "--dry-run", "--memory-curve", "curve.html")

    def test_a_few_of_many_micro_batches_predict_the_step(self):
        config = self.write_config(tiny_config(model={"num_layers": 8, "hidden_size": 512, "sequence_length": 1024},
                                               batch={"global": 203, "micro": 1}))
        for stages, schedule, chunks in [(1, "1f1b", 1), (4, "1f1b", 1), (4, "zero-bubble", 1), (2, "interleaved", 2)]:
            with self.subTest(stages=stages, schedule=schedule):
                layout = ["--target", "h100", "--world-size", str(stages), *overrides(f"parallel.pipeline={stages}")]
                if stages > 1:
                    layout += overrides(f'parallel.pipeline_schedule="{schedule}"')
                if chunks > 1:  # micro-batches must be whole rounds
                    layout += overrides(f"parallel.virtual_stages={chunks}", "batch.global=202")
                rows = self.plan(config, *layout, *overrides("memory.recompute=optimal"))["recomputation"]["others"]
                for name in ["none", "block"]:
                    [row] = [row for row in rows if row["recompute"] == name]
                    whole = self.plan(config, *layout, *overrides(f"memory.recompute={name}"))
                    self.assertAlmostEqual(row["step_seconds"] / whole["step_seconds"], 1, delta=1e-6)

    def test_selective_is_beside_optimal_where_its_bits_differ(self):
        config = self.write_config(tiny_config(model={"num_layers": 4, "hidden_size": 768, "num_heads": 12,
                                                      "sequence_length": 1024}, precision={"compute": "bf16"}))
        arguments = [config, "--target", "h100"]
        optimal = self.plan(*arguments, *overrides("memory.recompute=optimal"))["recomputation"]
        self.assertEqual(optimal["stages"][0]["blocks_kept_in_part"], 0)
        [row] = [row for row in optimal["others"] if row["recompute"] == "selective"]
        plan = self.plan(*arguments, *overrides("memory.recompute=selective"))
        self.assertEqual((row["activations_bytes"], row["step_seconds"]), (plan["activations_bytes"], plan["step_seconds"]))
        [none] = [row for row in optimal["others"] if row["recompute"] == "none"]
        self.assertAlmostEqual(1 + row["again_share"], row["step_seconds"] / none["step_seconds"], delta=0.1)
        self.assertGreater(row["again_share"], 0)
        for setting in ["memory.saved_inputs=8", "memory.activation_bits=4"]:  # settings with which it is refused
            others = self.plan(*arguments, *overrides("memory.recompute=optimal", setting))["recomputation"]["others"]
            self.assertNotIn("selective", [row["recompute"] for row in others])

    def test_the_memory_of_a_pipelines_curve_is_that_of_its_largest_stage(self):
        config = self.write_config(tiny_config(model={"num_layers": 12, "hidden_size": 256}, batch={"global": 16, "micro": 2}))
        arguments = [config, "--target", "h100", "--world-size", "4", *overrides("parallel.pipeline=4")]
        optimal = overrides("memory.recompute=optimal")
        recomputation = self.plan(*arguments, *optimal)["recomputation"]
        stages = recomputation["stages"]
        [none] = [row for row in recomputation["others"] if row["recompute"] == "none"]
        self.assertEqual(none["activations_bytes"], max(stage["activations_bytes"] for stage in stages))
        self.assertEqual(recomputation["curve"][0]["activations_bytes"],
                         max(stage["least_activations_bytes"] for stage in stages))
        for row in recomputation["curve"]:  # each must be the result for that budget
            same = self.plan(*arguments, *optimal, *overrides(f"memory.activation_budget={row['activations_bytes']}"))
            self.assertLessEqual(max(stage["activations_bytes"] for stage in same["recomputation"]["stages"]),
                                 row["activations_bytes"])
            self.assertLessEqual(same["step_seconds"], 1.001 * row["step_seconds"])
        # The last row keeps everything on all stages.
        self.assertEqual(recomputation["curve"][-1]["step_seconds"], none["step_seconds"])
        text = self.succeed("train", *arguments, "--dry-run", *optimal, "--memory-curve", "curve.html")
        self.assertRegex(text, r"\n  stages 0 to 3 +0\.00%   more time; 3 saved whole\n")
        self.assertRegex(text, r"\ntime against memory +most activations of a stage +more time +step\n  optimal +[\d,]+ +[\d.]+ [MK]iB ")
        self.assertIn(f" {none['activations_bytes']:,} ", text)
        self.assertIn("for activations on the stage that needs the most", self.path("curve.html").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
