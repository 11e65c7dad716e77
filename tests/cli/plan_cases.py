"""`gptrain plan`: the search for a layout, comparisons of plans, and messages."""
import html
import json
import re
import shutil
import subprocess
import tempfile
import unittest

from cli_case import MACHINE, SOURCE_ROOT, USAGE, CliCase, first_in_fast_suite, of_whole_suite, overrides, tiny_config

CONFIGS = SOURCE_ROOT / "configs"
BROWSERS = ["chromium", "chromium-browser", "google-chrome"]


def plan_config():
    config = tiny_config()
    config["model"] |= {"num_layers": 8, "hidden_size": 1024, "num_heads": 8, "sequence_length": 512, "vocab_size": 8192}
    config["batch"] = {"global": 16}
    config["precision"] = {"compute": "bf16"}
    return config


class PlanCase(CliCase):
    def plan(self, *arguments):
        return json.loads(self.succeed("plan", *arguments, "--json"))


class Search(PlanCase):
    def test_the_dry_run_of_the_winner_says_what_the_plan_says(self):
        config = self.write_config(plan_config())
        for target, gpus, more in [("a100-80g", 8, []), ("h100-pcie", 4, ["--cluster", "pcie3"])]:
            winner = self.folder / "winner.json"
            plan = self.plan(config, "--gpus", gpus, "--target", target, *more, "--top", 3, "--price", 2, "--out", winner)
            dry = json.loads(self.succeed("train", winner, "--dry-run", "--json", "--world-size", gpus, "--target", target,
                                          "--price", 2, *more))
            best = plan["best"][0]
            self.assertTrue(best["exact"])
            for key in ["peak_bytes", "step_seconds", "tokens_per_second", "mfu", "bubble_seconds", "exposed_seconds",
                        "gpu_hours", "goodput", "cost"]:
                self.assertEqual(best[key], dry[key], key)
            self.assertIn("gptrain train", winner.read_text().splitlines()[1])
            self.assertLessEqual([row["step_seconds"] for row in plan["best"] if row["exact"]],
                                 sorted(row["step_seconds"] for row in plan["best"] if row["exact"]))
            self.assertEqual(plan["config"]["batch"]["global"], 16)

    def test_the_text_says_what_differs_and_why_others_lost(self):
        config = self.write_config(plan_config())
        text = self.succeed("plan", config, "--gpus", 4, "--target", "a100-80g", "--top", 3, "--price", 1.5)
        for words in ["layouts on 4 x a100-80g in dgx-a100 nodes, the best by time", "simulated pass by pass",
                      "device-hours", "goodput", "cost", "why others lost", "parallel.zero", "memory.recompute", "ops +"]:
            self.assertIn(words, text)

    def test_sizes_of_more_than_two_nodes_are_planned_where_the_config_has_them(self):
        config = plan_config()
        config["model"] |= {"num_layers": 2, "num_heads": 32}
        held = overrides("parallel.zero=0", "memory.recompute=none", "memory.offload_activations=none", "batch.micro=1")
        for key in ("parallel.tensor=32", "parallel.context=32"):
            plan = self.plan(self.write_config(config), "--gpus", 32, "--target", "a100-80g", "--top", 1, *held, *overrides(key))
            self.assertEqual(plan["best"][0]["layout"][key[len("parallel."):-len("=32")]], 32)

    def test_what_the_rules_between_keys_refuse_is_no_layout(self):
        config = self.write_config(plan_config())
        search = [config, "--gpus", 2, "--target", "a100-80g", "--top", 1]
        for saved in ["memory.activation_bits=4", "memory.saved_inputs=8"]:
            for objective in ["time", "memory", "cost"]:
                plan = self.plan(*search, "--objective", objective, *overrides(saved))
                self.assertNotIn("selective", json.dumps(plan), saved)
        # Projections need whole sequences, which tensor ranks have if a micro-batch has at least as many as there are
        # ranks.
        held = overrides("parallel.tensor=2", "batch.micro=1")
        projected = overrides('memory.linear_projection={"kind": "dct"}')
        self.assertEqual(self.plan(*search, *held)["layouts"], 2 * self.plan(*search, *held, *projected)["layouts"])

    def test_what_fits_nowhere_is_refused_with_what_is_missing(self):
        config = CONFIGS / "published" / "megatron-145.6b.json"
        result = self.run_gptrain("plan", config, "--gpus", 8, "--target", "a100-80g")
        self.assertEqual(result.code, MACHINE)
        self.assertIn("Nothing fits: ", result.out)
        self.assertIn("The layout that comes closest lacks ", result.out)
        self.assertIn("no layout of ", result.err)
        self.assertRegex(result.out, r"each of [\d,]+ layouts needs more than the 78\.1 GiB of a device")
        # The advice names settings that a search does not try; each can be set.
        advice = result.out.split("Use more devices")[1]
        self.assertIn("--methods", advice)
        self.assertIn("With --set memory.offload_optimizer=host the optimizer state lies on the host", advice)
        missing = json.loads(self.run_gptrain("plan", config, "--gpus", 8, "--json").out)
        settings = re.findall(r"[\w.]+=[\w-]+", advice)
        self.assertIn("memory.saved_inputs=8", settings)
        for setting in settings:
            pure = ["precision.compute=bf16-pure"] if setting.startswith("precision.gradients") else []
            less = json.loads(self.run_gptrain("plan", config, "--gpus", 8, "--json", *overrides(*pure, setting)).out)
            is_less = self.assertLessEqual if setting.startswith("memory.") else self.assertLess
            is_less(less["missing_bytes"], missing["missing_bytes"], setting)
        for objective in ["time", "memory"]:
            plan = json.loads(self.run_gptrain("plan", config, "--gpus", 8, "--json", "--objective", objective).out)
            self.assertFalse(plan["fits"])
            self.assertGreater(plan["missing_bytes"], 10 ** 9)
            self.assertEqual(plan["exact"], 0)
        # Names layouts with the fixed value; a budget that many records exceed is not reported as missing.
        budget = ["memory.activation_budget=4000000000"]
        for held, words in [(["parallel.tensor=1"], ": tensor 1,"), (["memory.recompute=none"], "recompute none."),
                            (["memory.recompute=optimal", *budget], "recompute optimal"), (budget, "The layout that comes closest lacks")]:
            result = self.run_gptrain("plan", config, "--gpus", 8, "--target", "a100-80g", *overrides(*held))
            self.assertEqual((result.code, "Nothing fits: " in result.out), (MACHINE, True))
            [least] = re.findall("The layout that comes closest lacks .*", result.out)
            self.assertIn(words, least)

    def test_objectives(self):
        config = self.write_config(plan_config())
        by = {word: self.plan(config, "--gpus", 8, "--target", "a100-80g", "--top", 2, "--objective", word)["best"][0]
              for word in ["time", "memory", "cost"]}
        self.assertLess(by["memory"]["peak_bytes"], by["time"]["peak_bytes"])
        self.assertLess(by["time"]["step_seconds"], by["memory"]["step_seconds"])
        self.assertLess(by["cost"]["gpu_hours"] / by["cost"]["goodput"], by["time"]["gpu_hours"] / by["time"]["goodput"])
        # Other layouts are worse in the objective, and by more than nothing.
        for word, loss in [("memory", r"  [~>]?[\d.]+ [MG]iB \(\+[\d.]+%\), "), ("cost", r" s on \d devices \(\+[\d.]+% device-hours\)")]:
            text = self.succeed("plan", config, "--gpus", 8, "--target", "a100-80g", "--objective", word)
            lost = text.split("why others lost")[1]
            self.assertRegex(lost, loss)
            self.assertNotIn("(-", "\n".join(line for line in lost.splitlines() if "~" not in line and ">" not in line))


    @of_whole_suite
    def test_the_smallest_peak_is_the_same_however_many_are_named(self):
        arguments = [CONFIGS / "gpt3-13b.json", "--gpus", 64, "--target", "a100-80g", "--objective", "memory", "--top"]
        one, five = self.plan(*arguments, 1), self.plan(*arguments, 5)
        self.assertEqual(one["best"][0], five["best"][0])
        self.assertEqual(one["too_large"], five["too_large"])
        self.assertLess(one["best"][0]["peak_bytes"], 4.4 * 2 ** 30)
        peaks = [row["peak_bytes"] for row in five["best"]]
        self.assertEqual(peaks, sorted(peaks))
        text = self.succeed("plan", *arguments, 1)
        self.assertRegex(text, r"by a lower bound, \d+ had the memory of their ranks planned, \d+ planned in full\n")
        self.assertNotIn("have estimates so close", text)

    def test_a_goodput_below_one_is_not_told_as_all(self):
        config = CONFIGS / "gpt2-124m.json"
        text = self.succeed("plan", config, "--gpus", 8, "--top", 1)
        goodput = self.plan(config, "--gpus", 8, "--top", 1)["best"][0]["goodput"]
        self.assertTrue(0.9995 < goodput < 1, goodput)
        self.assertIn(f"(goodput {100 * goodput:.3f}%)", text)

    def test_rows_by_cost_say_how_many_devices_they_take(self):
        config = self.write_config(plan_config())
        arguments = [config, "--gpus", 8, "--target", "a100-80g", "--top", 3, "--objective", "cost"]
        plan = self.plan(*arguments)
        for row in plan["best"]:
            layout = row["layout"]
            self.assertEqual(row["gpus"], layout["tensor"] * layout["pipeline"] * layout["data"])
        lines = self.succeed("plan", *arguments, "--html", "page.html").splitlines()
        [heading] = [line for line in lines if "MFU" in line]
        self.assertRegex(heading, r" peak devices device-hours   layout")
        self.assertEqual(lines[lines.index(heading) + 1][:heading.index("   layout")].split()[-1],
                         lines[lines.index("run with the best layout") + 1].split("device-hours, ")[1].split()[0])
        end = heading.index("devices") + len("devices")
        self.assertEqual(lines[lines.index(heading) + 1][:end].split()[-1], str(plan["best"][0]["gpus"]))
        self.assertIn('<th class="number">devices</th>', self.path("page.html").read_text(encoding="utf-8"))

    def test_keys_that_are_set_are_held(self):
        config = self.write_config(plan_config())
        settings = ["parallel.tensor=1", "parallel.tensor=2", "batch.micro=2", "parallel.zero=null", "optimizer.lr=0.1"]
        arguments = [config, "--gpus", 4, "--top", 5, *overrides(*settings)]
        plan = self.plan(*arguments)
        self.assertEqual(plan["held"], ["parallel.tensor=2", "batch.micro=2"])
        self.assertEqual({(row["layout"]["tensor"], row["layout"]["micro"]) for row in plan["best"]}, {(2, 2)})
        self.assertEqual(plan["config"]["optimizer"]["lr"], 0.1)
        self.assertGreater(len({row["layout"]["zero"] for row in plan["best"]}), 1)
        self.assertIn("\n  all with parallel.tensor=2, batch.micro=2\n", self.succeed("plan", *arguments))

    def test_a_budget_of_activations_is_that_of_layouts_with_optimal(self):
        config = plan_config()
        config["model"] |= {"num_layers": 12}
        name, winner = self.write_config(config), self.path("winner.json")
        free = self.plan(name, "--gpus", 1, "--top", 1, *overrides("batch.micro=4", "memory.recompute=none"), "--out", winner)
        kept = json.loads(self.succeed("train", winner, "--dry-run", "--json", "--target", "h100"))["activations_bytes"]
        budget = kept // 2
        setting = overrides(f"memory.activation_budget={budget}")
        optimal = ["--gpus", 1, "--top", 1, *overrides("batch.micro=4", 'memory.recompute="optimal"'), *setting]
        best = self.plan(name, *optimal, "--out", winner)["best"][0]
        self.assertEqual(json.loads(winner.read_text().split("\n", 2)[2])["memory"]["activation_budget"], budget)
        dry = json.loads(self.succeed("train", winner, "--dry-run", "--json", "--target", "h100"))
        self.assertLessEqual(dry["activations_bytes"], budget)
        for key in ["peak_bytes", "step_seconds"]:
            self.assertEqual(best[key], dry[key])
        self.assertGreater(best["step_seconds"], free["best"][0]["step_seconds"])
        self.assertRegex(self.succeed("plan", name, *optimal, "--html", "page.html"),
                         r"\n  [\d.]+ [MG]iB for activations with memory.recompute optimal\n")
        self.assertIn("for activations with memory.recompute optimal", self.path("page.html").read_text(encoding="utf-8"))
        # Also when the file sets it, and when other values of the key are tried or fixed.
        file = self.write_config(config | {"batch": {"global": 16, "micro": 4},
                                           "memory": {"recompute": "optimal", "activation_budget": budget}}, "budget.json")
        self.assertEqual(self.plan(file, "--gpus", 1, "--top", 1, *overrides("memory.recompute=optimal", "batch.micro=4"))
                         ["best"][0]["peak_bytes"], best["peak_bytes"])
        for arguments in [[name, *setting], [file], [file, *overrides("memory.recompute=null")]]:
            plan = self.plan(*arguments, "--gpus", 1)
            self.assertEqual(plan["best"][0]["layout"]["recompute"], "none")
            self.assertNotIn("activation_budget", plan["config"]["memory"])
            self.assertIn(("memory.recompute", "optimal"), [(lost["key"], lost["value"]) for lost in plan["lost"]])
        self.assertEqual(self.plan(file, "--gpus", 1, *overrides("memory.recompute=block"))["best"][0]["layout"]["recompute"],
                         "block")
        points = {point["method"]: point for point in self.plan(file, "--gpus", 1, "--methods")["points"]}
        self.assertEqual(points["recompute and offload optimal"]["peak_bytes"], best["peak_bytes"])
        self.assertEqual({method for method, point in points.items() if "refused" in point}, {"offload hidden", "offload all"})
        self.refuse(USAGE, "no layout in this search stores less per block than ", "plan", name, "--gpus", 1,
                    *overrides("memory.recompute=optimal", "memory.activation_budget=1"))
        self.refuse(USAGE, "no planned layout stays within the budget; the fastest one: memory.activation_budget = ",
                    "plan", name, "--gpus", 1, *overrides("batch.micro=4", "memory.recompute=optimal",
                                                          f"memory.activation_budget={kept // 10}"))
        for more in [["--objective", "memory"], overrides("memory.recompute=block"), overrides("memory.recompute_interval=2")]:
            self.refuse(USAGE, f"--set memory.activation_budget={budget}: has no effect: no layout in this search has "
                        "memory.recompute = \"optimal\"", "plan", name, "--gpus", 1, *setting, *more)

    def test_values_that_are_held_are_tried_where_others_would_do(self):
        config = self.write_config(plan_config())
        for setting, key, value in [("memory.recompute=optimal", "recompute", "optimal"),
                                    ("memory.offload_activations=optimal", "offload_activations", "optimal"),
                                    ("memory.offload_activations=hidden", "offload_activations", "hidden"),
                                    ("memory.offload_activations=all", "offload_activations", "all")]:
            plan = self.plan(config, "--gpus", 1, "--top", 2, "--set", setting)
            self.assertEqual({row["layout"][key] for row in plan["best"]}, {value})

    def test_what_fits_with_fewer_inputs_than_blocks_is_found(self):
        config = plan_config()
        config["model"] |= {"num_layers": 200, "hidden_size": 512, "sequence_length": 2048}
        config["batch"] = {"global": 64}
        arguments = [self.write_config(config), "--gpus", 1, "--target", "a100-40g", "--top", 1]
        held = ["batch.micro=64", "memory.offload_activations=none"]
        self.assertEqual(self.run_gptrain("plan", *arguments, *overrides(*held, "memory.recompute=block")).code, MACHINE)
        best = self.plan(*arguments, *overrides(*held, "memory.recompute=optimal"))["best"][0]
        self.assertEqual(best["layout"]["recompute"], "optimal")

    def test_what_offload_takes_of_the_host_is_told(self):
        config = plan_config()
        config["model"] |= {"num_layers": 24, "sequence_length": 2048}
        config["batch"] = {"global": 32}
        arguments = [self.write_config(config), "--gpus", 1, "--target", "a100-40g", "--top", 1,
                     *overrides("batch.micro=32", "memory.recompute=none")]
        best = self.plan(*arguments, "--out", self.path("winner.json"))["best"][0]
        self.assertEqual(best["layout"]["offload_activations"], "all")
        dry = json.loads(self.succeed("train", self.path("winner.json"), "--dry-run", "--json", "--target", "a100-40g"))
        self.assertEqual(best["host_bytes_of_node"], dry["host_bytes_of_node"])
        self.assertGreater(dry["host_bytes_of_node"], dry["host_offloaded_bytes"])
        self.assertRegex(self.succeed("plan", *arguments), r"\n  host memory +[\d.]+ GiB for the ranks of a node, which has 930 GiB\n")

    def test_a_key_that_the_config_has_no_use_for_by_itself_is_held_all_the_same(self):
        config = self.write_config(plan_config())
        for setting, key, value, least in [
                ("parallel.pipeline_schedule=varuna", "pipeline_schedule", "varuna", ("pipeline", 2)),
                ("parallel.sequence=true", "sequence", True, ("tensor", 2)),
                ("parallel.virtual_stages=4", "virtual_stages", 4, ("pipeline", 2)),
                ("memory.recompute_interval=3", "recompute", "every_nth 3", ("data", 1))]:
            plan = self.plan(config, "--gpus", 4, "--top", 3, "--set", setting)
            self.assertEqual(plan["held"], [setting])
            self.assertEqual({row["layout"][key] for row in plan["best"]}, {value})
            self.assertGreaterEqual(min(row["layout"][least[0]] for row in plan["best"]), least[1])
        # The file's own layout does not restrict the search.
        file = plan_config() | {"parallel": {"tensor": 2, "sequence": True}}
        plan = self.plan(self.write_config(file), "--gpus", 4, "--top", 1, "--set", "parallel.tensor=1")
        self.assertEqual(plan["best"][0]["layout"]["tensor"], 1)
        self.refuse(USAGE, "parallel.pipeline_schedule = \"varuna\": has no effect unless parallel.pipeline is greater than 1",
                    "plan", config, "--gpus", 1, "--set", "parallel.pipeline_schedule=varuna")
        self.refuse(USAGE, "parallel.pipeline_schedule = \"var\": must be",
                    "plan", config, "--gpus", 4, "--set", "parallel.pipeline_schedule=var")


class Comparisons(PlanCase):
    def test_a_sweep_of_two_keys_marks_what_does_not_fit(self):
        config = self.write_config(plan_config())
        arguments = [config, "--gpus", 2, "--target", "v100-32g", "--set", "precision.compute=fp32",
                     "--sweep", "model.num_layers=8,400,0", "--sweep", "batch.micro=1,8"]
        points = self.plan(*arguments)["points"]
        self.assertEqual([(point["model.num_layers"], point["batch.micro"]) for point in points][:3],
                         [(8, 1), (8, 8), (400, 1)])
        self.assertEqual([point.get("fits") for point in points], [True, True, False, False, None, None])
        self.assertIn("model.num_layers = 0", points[-1]["refused"])
        text = self.succeed("plan", *arguments)
        self.assertIn("does not fit: ", text)

    def test_a_value_that_the_other_settings_do_not_allow_is_refused_alone(self):
        kept = self.plan(CONFIGS / "gpt2-124m.json", "--gpus", 1, *overrides("memory.activation_budget=2000000000"),
                         "--sweep", "memory.recompute=none,optimal")["points"]
        self.assertIn("memory.activation_budget", kept[0]["refused"])
        self.assertTrue(kept[1]["fits"])

    def test_scaling_links_and_fits(self):
        scale = self.plan(CONFIGS / "gpt2-124m.json", "--scale", "1..4", "--target", "a100-80g")["points"]
        self.assertEqual([point["devices"] for point in scale], [1, 2, 4] * 2)
        self.assertEqual([point["scaling"] for point in scale], ["strong"] * 3 + ["weak"] * 3)
        self.assertLess(scale[2]["step_seconds"], scale[0]["step_seconds"] / 3)
        links = self.plan(CONFIGS / "gpt2-124m.json", "--gpus", 16, "--links", "1,4")["points"]
        self.assertEqual([(point["nic_gbit_per_second"], point["nics_per_node"]) for point in links],
                         [(rate, nics) for rate in (200, 400, 800) for nics in (1, 4)])
        words = self.plan(CONFIGS / "gpt2-124m.json", "--gpus", 1, "--sweep", "memory.recompute=none,block")["points"]
        self.assertEqual([point["memory.recompute"] for point in words], ["none", "block"])
        lists = self.plan(CONFIGS / "gpt2-124m.json", "--gpus", 2, "--sweep", "parallel.layers_per_stage=[6,6],[5,7]",
                          *overrides("parallel.pipeline=2"))["points"]
        self.assertEqual([point["parallel.layers_per_stage"] for point in lists], [[6, 6], [5, 7]])
        self.assertGreater(links[0]["step_seconds"], links[-1]["step_seconds"])
        fit = self.plan("--fit", "rtx-2080-ti", "--family", "llama")["points"]
        # In the small models that fit with fp32, attention takes longer than the products of the FFN.
        self.assertEqual([point["recompute"] for point in fit[:7]], ["none", "selective", "ffn", "block", None, "none", "selective"])
        self.assertEqual([point["precision"] for point in fit], ["fp32"] * 4 + ["bf16"] + ["fp16"] * 3 + ["bf16-pure", "bf16-pure, bf16 gradients", "bf16, fp8 linears"])
        self.assertTrue(all(point.get("fits", True) for point in fit))
        self.assertEqual({point["optimizer"] for point in fit}, {"adamw"})
        both = self.plan("--fit", "a100-40g", "--optimizer", "lamb,sgd")["points"]
        self.assertEqual([point["optimizer"] for point in both], ["lamb"] * 11 + ["sgd"] * 13)
        self.assertIn("precision.gradients", both[9]["refused"])
        self.assertTrue(all(point["hidden_size"] == 128 * point["num_layers"] for point in fit if "refused" not in point))
        self.assertEqual({point["num_layers"] for point in fit if "refused" in point}, {None})

    def test_methods_say_what_they_set(self):
        config = self.write_config(plan_config())
        points = {point["method"]: point for point in self.plan(config, "--gpus", 1, "--methods")["points"]}
        self.assertNotIn("settings", points["as given"])
        six = points["6 bytes a parameter"]
        self.assertEqual(six["settings"], ["precision.compute=bf16-pure", "optimizer.type=adamw-8bit",
                                           "precision.gradients=bf16"])
        dry = json.loads(self.succeed("train", config, "--dry-run", "--json", "--target", "h100", *overrides(*six["settings"])))
        self.assertEqual(dry["peak_bytes"], six["peak_bytes"])
        for arguments in [(config, "--gpus", 1, "--target", "h100"), ("--fit", "h100")]:
            self.assertIn("\n  3-bit GELU, 8-bit inputs: memory.activation_bits=3, memory.saved_inputs=8\n",
                          self.succeed("plan", *arguments, "--methods"))

    def test_settings_of_methods_can_be_followed(self):
        config = self.write_config(plan_config())
        for given in [["memory.recompute=optimal", "memory.activation_budget=900000000"],
                      ["memory.recompute=every_nth", "memory.recompute_interval=2", "memory.offload_activations=2"]]:
            points = self.plan(config, "--gpus", 1, "--methods", *overrides(*given))["points"]
            for point in points:
                if "refused" in point or not point.get("settings", ["recompute"])[-1].startswith("memory.recompute"):
                    continue
                with self.subTest(given=given, method=point["method"]):
                    dry = json.loads(self.succeed("train", config, "--dry-run", "--json", "--target", "h100",
                                                  *overrides(*given, *point["settings"])))
                    self.assertEqual(dry["peak_bytes"], point["peak_bytes"])
            self.assertGreater(sum("memory.recompute_interval=null" in point.get("settings", [])
                                   or "memory.activation_budget=null" in point.get("settings", []) for point in points), 1)
            self.assertNotIn("refused", next(point for point in points if point["method"] == "recompute optimal"))

    @staticmethod
    def settings_of_page(page):
        """Returns {method: its settings} from the table of all points."""
        rows = re.findall(r'<tr><td>([^<]*)</td>.*<td class="settings">([^<]*)</td></tr>', page.read_text(encoding="utf-8"))
        return {method: html.unescape(settings) for method, settings in rows}

    def test_methods_that_save_memory(self):
        page = self.folder / "methods.html"
        of_method = {point["method"]: point for point in self.plan(
            CONFIGS / "gpt2-1.5b.json", "--gpus", 1, "--target", "a100-80g", "--methods", "--html", page)["points"]}
        given = of_method["as given"]["peak_bytes"]
        moments = of_method["8-bit AdamW"]["peak_bytes"]
        # Two moments of four bytes become two of one byte, and a four-byte scale per 256 elements of each.
        self.assertAlmostEqual((given - moments) / of_method["as given"]["total_parameters"], 6 - 2 * 4 / 256, delta=0.02)
        self.assertEqual(given, self.plan(CONFIGS / "gpt2-1.5b.json", "--gpus", 1, "--target", "a100-80g", "--sweep",
                                          "batch.accumulation=null")["points"][0]["peak_bytes"])
        for method in ["3-bit GELU", "8-bit inputs", "projected inputs, 20%", "recompute block"]:
            self.assertLess(of_method[method]["peak_bytes"], 0.9 * given, method)
        on_host = of_method["optimizer state on the host"]
        self.assertAlmostEqual((given - on_host["peak_bytes"]) / on_host["total_parameters"], 12, delta=0.1)
        self.assertEqual(on_host["peak_bytes"], of_method["optimizer state on disk"]["peak_bytes"])
        self.assertLess(of_method["all parameters on the host"]["peak_bytes"],
                        of_method["state, gradients on the host"]["peak_bytes"])
        self.assertNotIn("all parameters on disk", of_method)
        self.assertGreater(of_method["recompute block"]["step_seconds"], 1.1 * of_method["as given"]["step_seconds"])
        self.assertEqual(page.read_text(encoding="utf-8").count('class="bar"'), 2 * len(of_method))
        self.assertEqual(self.settings_of_page(page),
                         {name: ", ".join(point.get("settings", [])) for name, point in of_method.items()})
        gated = self.plan(CONFIGS / "llama-7b.json", "--gpus", 8, "--target", "a100-80g", "--methods")["points"]
        refused = {point["method"]: point["refused"] for point in gated if "refused" in point}
        self.assertIn("has no effect unless model.activation is gelu", refused["3-bit GELU"])
        largest = {point["method"]: point for point in self.plan("--fit", "v100-32g", "--methods", "--html", page)["points"]}
        self.assertGreater(largest["8-bit AdamW"]["total_parameters"], 1.3 * largest["as given"]["total_parameters"])
        self.assertGreater(largest["state, gradients on the host"]["total_parameters"],
                           2 * largest["as given"]["total_parameters"])
        self.assertIn("v100-32g has no bf16", largest["pure bf16"]["refused"])
        # A refused row also shows the settings.
        self.assertEqual(self.settings_of_page(page)["pure bf16"], "precision.compute=bf16-pure")

    def test_sizes_of_encoders(self):
        self.assertEqual(self.plan("--estimate", "t5-11b")["total_parameters"], 11_307_321_344)
        self.assertIn("335,141,888", self.succeed("plan", "--estimate", "bert-large"))
        switch = self.succeed("plan", "--estimate", "switch-xxl-395b")
        self.assertIn("128 experts in every second layer, of which a token takes one", switch)


class Messages(PlanCase):
    def test_each_is_told(self):
        config = self.write_config(plan_config())
        for arguments, message in [
                ([], "CONFIG is missing: the config of the run to plan"),
                ([config], "--gpus is missing: the number of devices to plan for"),
                ([config, "--gpus", 0], "0 is not a whole number of at least 1"),
                ([config, "--gpus", 37], "--gpus 37: no layout divides batch.global = 16"),
                ([config, "--gpus", 8, "--target", "a100"], "unknown target \"a100\""),
                ([config, "--gpus", 8, "--cluster", "nowhere"], "nowhere"),
                ([config, "--gpus", 8, "--objective", "speed"], "speed not in {time,memory,cost}"),
                ([config, "--gpus", 8, "--price", "-1"], "-1 is not a number from 1e-12 to 1e+18"),
                ([config, "--gpus", 8, "--price", "1e308"], "1e308 is not a number from 1e-12 to 1e+18"),
                ([config, "--gpus", 8, "--cluster", ""], "--cluster: is empty"),
                ([config, "--gpus", 8, "--links", ""], "--links: is empty"),
                ([config, "--gpus", 8, "--out", "one", "--html", "./one"], "--out and --html name the same file: one"),
                ([config, "--gpus", 8, *overrides("parallel.tensor=3")], "parallel.tensor = 3: must divide"),
                ([config, "--gpus", 8, *overrides("parallel.zero=1", "batch.micro=16")],
                 "no layout with parallel.zero=1, batch.micro=16 divides batch.global = 16 and the model's heads and layers "
                 "over 8 devices"),
                ([config, "--gpus", 1, *overrides("memory.offload_activations=5")],
                 "--set memory.offload_activations=5: a search tries only \"none\", \"hidden\", \"all\" and \"optimal\""),
                ([config, "--gpus", 1, *overrides("memory.offload_activations=optimal"), "--objective", "memory"],
                 "a search tries only \"none\", \"hidden\" and \"all\" for the smallest peak"),
                ([config, "--gpus", 1, *overrides("memory.recompute=optimal"), "--objective", "memory"],
                 "a search tries only \"none\", \"selective\", \"ffn\", \"block\" and \"every_nth\" for the smallest peak"),
                ([config, "--gpus", 1, *overrides("memory.recompute=every_nth", "memory.recompute_interval=5")],
                 "--set memory.recompute_interval=5: a search tries only 2, 3 and 4"),
                ([config, "--gpus", 1, *overrides("memory.recompute_interval=2", "memory.offload_activations=all")],
                 "a search does not combine offloading with memory.recompute = \"every_nth\""),
                ([config, "--gpus", 1, *overrides("batch.micro=128", "batch.global=128")],
                 "--set batch.micro=128: a search tries only values up to 64"),
                ([config, "--gpus", 2, *overrides("parallel.virtual_stages=16")],
                 "--set parallel.virtual_stages=16: a search tries only values up to 8"),
                ([config, "--gpus", 8, *overrides("parallel.pipeline=2", "parallel.layers_per_stage=[3,5]")],
                 "--set parallel.layers_per_stage=[3,5]: a search spreads layers evenly"),
                ([config, "--scale", "1..2", *overrides("parallel.elastic=true")],
                 "--set parallel.elastic=true: a plan uses all devices"),
                ([config, "--gpus", 2, "--sweep", "batch.micro=1", "--sweep", "batch.micro=2"],
                 "--sweep batch.micro=2: batch.micro has a --sweep already"),
                ([config, "--gpus", 2, "--sweep", "batch.micro=1,,2"], "--sweep batch.micro=1,,2: has an empty value"),
                ([config, "--gpus", 2, "--sweep", "batch.micro=1,2,1"], "--sweep batch.micro=1,2,1: has the value 1 twice"),
                ([config, "--gpus", 2, "--sweep", "batch.micro=1,"], "--sweep batch.micro=1,: has an empty value"),
                ([config, "--gpus", 2, "--sweep", "batch.micro=1", *overrides("batch.micro=2")],
                 "--set batch.micro=2 has no effect: --sweep sets batch.micro"),
                ([config, "--gpus", 8, "--top", "0"], "0 is not a whole number of at least 1"),
                ([config, "--gpus", 8, "--target", "v100-32g"], "precision.compute"),
                ([config, "--gpus", 8, "--set", "model.num_layers=0"], "model.num_layers"),
                ([config, "--gpus", 8, "--out", "/nowhere/config.json"], "/nowhere/config.json"),
                ([config, "--gpus", 8, "--sweep", "batch.micro"], "must be a key and its values, as in batch.micro=1,2,4"),
                ([config, "--sweep", "batch.micro=1"], "--gpus is missing"),
                ([config, "--gpus", 8] + [word for key in "abc" for word in ("--sweep", key + "=1")],
                 "--sweep takes one key or two, not 3"),
                ([config, "--scale", "8"], "must be two numbers, the smaller first, as in 8..4096"),
                ([config, "--scale", "8..x"], "must be whole numbers from 1 on, as in 8..4096"),
                ([config, "--scale", "8..4"], "must be two numbers, the smaller first"),
                ([config, "--scale", "8..16", "--gpus", "8"], "--gpus has no effect with --scale"),
                ([config, "--gpus", 8, "--links", "1,,2"], "must be whole numbers from 1 on, as in 1,2,4"),
                ([config, "--links", "1"], "--gpus is missing"),
                ([config, "--gpus", 16, "--links", "4,1,4"], "--links 4,1,4: has the number 4 twice"),
                ([config, "--gpus", 8, "--links", "1,2"],
                 "--links 1,2: 8 devices fit into one node of dgx-h100, which has 8, and need no NIC"),
                ([config, "--gpus", 16, "--links", "1", "--methods", "--svg", "x.svg"],
                 "--svg and --price have no effect with --links and --methods together"),
                ([config, "--fit", "h100"], "CONFIG has no effect with --fit"),
                (["--fit", "h1000"], "h1000"),
                (["--fit", "h100", "--target", "h100"], "--target has no effect with --fit"),
                ([config, "--gpus", 8, "--family", "llama"], "--family has no effect without --fit"),
                ([config, "--gpus", 8, "--optimizer", "lion"], "--optimizer has no effect without --fit"),
                ([config, "--gpus", 8, "--svg", "x.svg"], "--svg has no effect without --sweep or --scale or --links"),
                (["--scale", CONFIGS / "published" / "bloom.json", "--target", "h100"],
                 "--target has no effect with --scale FILE, which names machine and configs"),
                (["--scale", config], "model: unknown key"),
                (["--fit", "h100", "--methods", "--optimizer", "lion"],
                 "--optimizer has no effect with --methods, which chooses the optimizers"),
                ([config, "--methods", "--scale", "1..2"], "--scale and --methods cannot be combined"),
                ([config, "--methods"], "--gpus is missing: the number of devices to plan for"),
                ([config, "--gpus", 8, "--set", "parallel.tensor=3", "--set", "optimizer.type=adamw-8bit"],
                 "parallel.tensor = 3: must divide"),
                (["--fit", "h100", "--optimizer", "adam"], "adam not in {adamw,adamw-8bit,sgd,lion,lamb,lars,muon,adafactor,onebit-adam,zero-one-adam}"),
                (["--fit", "h100", "--optimizer", "lion,sgd,lion"], "--optimizer: lion is given twice"),
                (["--fit", "h100", "--family", "bert"], "bert not in {gpt,llama}"),
                (["--estimate", "bert"], "bert not in {bert-large,bert-3.9b,t5-11b,switch-base-7b,"),
                (["--estimate", "t5-11b", "--fit", "h100"], "--fit and --estimate cannot be combined"),
                ([config, "--scale", "1..2", "--out", "x.json"], "--out has no effect with --scale"),
                ([config, "--gpus", 2, "--sweep", "batch.micro=1", "--top", 2], "--top has no effect with --sweep"),
                (["--estimate", "t5-11b", "--html", "x.html"], "--html has no effect with --estimate"),
                ([config, "--gpus", 131073], "--gpus 131073: must be at most 131072"),
                ([config, "--scale", "1..200000"], "--scale 200000: must be at most 131072"),
                (["--fit", "h100", "--gpus", 200000], "--gpus 200000: must be at most 131072"),
                ([config, "--gpus", 2, "--sweep", "batch.mirco=1,2"], "none of the configs can be planned: batch.mirco"),
                (["--fit", "v100-32g", "--gpus", 2, "--html", "/nowhere/page.html"], "/nowhere/page.html")]:
            with self.subTest(message):
                self.refuse(USAGE, message, "plan", *arguments)

    def test_a_price_is_of_a_named_target(self):
        self.refuse(USAGE, "--price requires --target", "train", self.write_config(plan_config()), "--dry-run", "--price", 1)


class Pages(PlanCase):
    def pages(self):
        config = self.write_config(plan_config())
        yield "search", [config, "--gpus", 4, "--target", "a100-80g", "--top", 3]
        yield "sweep", [config, "--gpus", 2, "--sweep", "batch.micro=1,2,4,8", "--sweep", "model.num_layers=4,512,1024"]
        yield "scale", [config, "--scale", "1..8"]
        yield "links", [config, "--gpus", 16, "--links", "1,2,4,8"]
        yield "methods", [config, "--gpus", 2, "--target", "a100-80g", "--methods"]
        yield "fit", ["--fit", "a100-40g"]

    def test_each_is_one_file_that_loads_nothing(self):
        for name, arguments in self.pages():
            page = self.folder / f"{name}.html"
            self.succeed("plan", *arguments, "--html", page)
            text = page.read_text(encoding="utf-8")
            self.assertIn("default-src 'none'", text)
            self.assertNotRegex(text, r"<script|src=|href=|@import|url\(")
            self.assertRegex(text, r"</html>\n$")
        self.assertIn('class="large"', (self.folder / "sweep.html").read_text(encoding="utf-8"))
        # On a narrow page a row's cells are stacked in these tables.
        for name, table in [("search", "best"), ("sweep", "points"), ("links", "points")]:
            text = (self.folder / f"{name}.html").read_text(encoding="utf-8")
            self.assertIn(f'<table class="{table}">', text)
            self.assertRegex(text, rf"\.{table} tr {{ display: grid;")
        # Lines of a dry run are wrapped there.
        self.succeed("train", self.write_config(plan_config()), "--dry-run", "--target", "a100-80g", "--html", self.path("dry.html"))
        self.assertRegex(self.path("dry.html").read_text(encoding="utf-8"), r"max-width: \d+px\) { pre { white-space: pre-line;")

    @unittest.skipUnless(any(map(shutil.which, BROWSERS)), "needs Chromium")
    def test_a_browser_draws_them(self):
        browser = next(filter(None, map(shutil.which, BROWSERS)))
        for name, arguments in self.pages():
            page = self.folder / f"{name}.html"
            self.succeed("plan", *arguments, "--html", page)
            for width, more in [(1280, []), (400, []), (1280, ["--force-dark-mode"]), (400, ["--force-dark-mode"])]:
                picture = self.folder / f"{name}-{width}.png"
                with tempfile.TemporaryDirectory() as profile:
                    result = subprocess.run(
                        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                         f"--window-size={width},1600", f"--screenshot={picture}", "--enable-logging=stderr", *more,
                         page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
                self.assertNotIn("CONSOLE", result.stderr)
                self.assertGreater(picture.stat().st_size, 5000)


class Offered(CliCase):
    def offered(self, config, *arguments):
        """Returns the remedies in a message about a run that does not fit: {setting: its bytes in words, "which fits"
        or not}."""
        text = self.succeed("train", config, "--dry-run", "--target", "a100-40g", *arguments)
        lines = text.split("with one of these settings:\n")[1].split("with all ")[0].splitlines()
        return dict(re.fullmatch(r" *(.*): ([\d.]+ GiB(?:, which fits)?)(?:; and .* of the host's memory.*)?"
                                 r"; (?:exact|exact but for rounding|changes training), a step .*", line).groups()
                    for line in lines if line.strip())

    def test_what_is_offered_where_a_run_does_not_fit_is_taken_with_the_rest(self):
        large, llama = CONFIGS / "gpt2-1.5b.json", CONFIGS / "llama-7b.json"
        projected = 'memory.linear_projection={"kind": "dct"}'
        for config, given, offered, others in first_in_fast_suite(4, [
                (large, ["memory.saved_inputs=8"], {'memory.recompute = "block"'}, {'memory.recompute = "selective"'}),
                (large, ["memory.recompute=optimal", "memory.activation_budget=38000000000"],
                 {'memory.recompute = "block", memory.activation_budget = null', 'memory.activation_budget = "fit"',
                  'memory.offload_activations = "optimal", memory.activation_budget = "fit"'},
                 {'memory.recompute = "optimal"'}),
                (large, ["memory.recompute=every_nth", "memory.recompute_interval=8", "batch.micro=64"],
                 {'memory.recompute = "block", memory.recompute_interval = null',
                  'memory.recompute = "optimal", memory.recompute_interval = null'}, {'memory.recompute = "optimal"'}),
                (large, ["memory.offload_activations=1"],
                 {'memory.recompute = "optimal", memory.offload_activations = "optimal"'}, set()),
                (large, ["precision.compute=fp32"], {'precision.compute = "bf16"'}, set()),
                (large, ["memory.activation_bits=4"],
                 {'memory.recompute = "block"', 'memory.recompute = "optimal"', "memory.saved_inputs = 8",
                  'optimizer.type = "adamw-8bit"', "memory.activation_bits = 3"}, {'memory.recompute = "selective"'}),
                (llama, ["parallel.tensor=2", "parallel.sequence=true", projected, "batch.micro=2", "parallel.zero=0",
                         "memory.recompute=block"],
                 {'optimizer.type = "adamw-8bit"'}, {"batch.micro = 1 instead of 2"})]):
            ranks = ["--world-size", "2" if config == llama else "1"]
            said = self.offered(config, *ranks, *overrides(*given))
            self.assertLessEqual(offered, said.keys())
            self.assertFalse(others & said.keys())
            for setting, verdict in said.items():
                one = overrides(*given, *(part.replace(" ", "").split("insteadof")[0] for part in setting.split(", ")))
                if given != ["memory.activation_bits=4"]:  # plans take a second each
                    self.succeed("config", "show", config, *one)
                    continue
                plan = json.loads(self.succeed("train", config, "--dry-run", "--json", "--target", "a100-40g", *ranks, *one))
                self.assertEqual(plan["fits"], verdict.endswith(", which fits"), setting)
                self.assertAlmostEqual(plan["peak_bytes"] / 2**30, float(verdict.split()[0]), delta=0.51, msg=setting)


if __name__ == "__main__":
    unittest.main()
