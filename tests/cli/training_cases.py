"""Training as a user sees it: a run's files, --steps, unusable folders, memory, divergence and signals."""
import json
import os
import pty
import re
import signal
import time
import unittest
import unittest.mock
from pathlib import Path

from cli_case import (CHECKPOINT, DATA, MACHINE, DIVERGED, EXECUTABLE, FINISHED, REQUEUE, SOURCE_ROOT, USAGE, CliCase, large_config,
                      overrides, tiny_config)
from busy import slowness

STEP_KEYS = ["step", "loss", "grad_norm", "lr", "tokens", "samples", "step_seconds", "data_seconds",
             "tokens_per_second", "mfu", "peak_bytes", "skipped"]
STEP_LINE = (r"(?m)^step 2/6 33\.3% \| loss \d+\.\d{4} \| gnorm \S+ \| lr 1\.0e-2 \| \d+(\.\d)? m?s \(data \d+%\) \| "
             r"\S+ tok/s \| mfu \d+\.\d% \| mem \S+ (MiB|KiB)/\S+ GiB \| eta .+$")


# Steps of many seconds, so that events within one can be arranged.
SLOW_STEPS = overrides("model.hidden_size=64", "model.sequence_length=512", "batch.global=80000", "batch.micro=8")


class TensorBoard(CliCase):
    def test_holds_what_its_page_says(self):
        """The files have the tags of the page's table and no others; the lines of metrics.jsonl likewise."""
        page = (SOURCE_ROOT / "src/train/README.md").read_text(encoding="utf-8")
        section = re.search(r"^## `tb/`.*?(?=^## )", page, re.MULTILINE | re.DOTALL)[0]
        tags = {tag for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE) for tag in re.findall(r"`(\w+)`", row)}
        self.path("a.txt").write_text("abcdefgh" * 1000, encoding="utf-8")
        self.succeed("data", "pack", "a.txt", "--out", "corpus", "--tokenizer", "bytes")
        config = tiny_config(data={"validation": [{"path": "corpus"}]}, run={"validate_every_steps": 2, "validation_samples": 4})
        self.train(self.write_config(config))
        [events] = self.path("out").glob("tb/events.out.tfevents.*.gptrain")
        # A tag is the first field of a value, followed by a float.
        found = {tag.decode() for tag in re.findall(rb"\x0a.([a-z_]+)\x15", events.read_bytes(), re.DOTALL)}
        self.assertEqual(found, tags - {"loss_scale", "largest_score"})  # fp16 and QK-clip have them
        logged = {key for line in (self.path("out") / "metrics.jsonl").read_text().splitlines() for key in json.loads(line)}
        self.assertEqual(logged - found, {"step", "tokens", "samples", "data_seconds", "skipped"})
        left_out = section[section.index("Not in `tb/`"):]
        for key in logged - found - {"step"}:
            self.assertIn(f"`{key}`", left_out)


class Runs(CliCase):
    def test_step_lines_metrics_and_files(self):
        out = self.train(self.write_run(data={"validation": [{"path": "corpus"}]}, run={"validate_every_steps": 3}))
        self.assertRegex(out, STEP_LINE)
        records = self.records()
        self.assertEqual([record["step"] for record in records], [1, 2, 3, 4, 5, 6])
        for record in records:
            self.assertEqual(list(record), STEP_KEYS)
            self.assertEqual((record["tokens"], record["samples"]), (64 * record["step"], 4 * record["step"]))
            self.assertFalse(record["skipped"])
        self.assertLess(records[-1]["loss"], records[0]["loss"])
        self.assertEqual([record["step"] for record in self.records(key="validation_loss")], [3, 6])
        page = (self.path("out") / "report.html").read_text(encoding="utf-8")
        for word in ["<svg", "loss", "learning rate", "throughput", "memory", "num_layers"]:
            self.assertIn(word.lower(), page.lower())
        self.assertEqual(len(list((self.path("out") / "tb").glob("events.out.tfevents.*"))), 1)
        self.assertEqual(self.checkpoint_steps(), [6])

    def test_logs_every_nth_step(self):
        self.train(self.write_run(log={"every_steps": 4}))
        self.assertEqual([record["step"] for record in self.records()], [4, 6])

    def test_the_seed_is_all_that_differs(self):
        config = self.write_run(model={"dropout": 0.1})
        for out, seed in [("first", 5), ("second", 5), ("third", 6)]:
            self.train(config, *overrides(f"run.out={out}", f"run.seed={seed}"))
        self.assert_same_steps(self.records("first"), self.records("second"))
        self.assert_same_checkpoint(self.checkpoint(6, "first"), self.checkpoint(6, "second"))
        self.assertNotEqual(self.records("first")[0]["loss"], self.records("third")[0]["loss"])

    def test_steps_stops_as_at_the_end(self):
        config = self.write_run(data={"validation": [{"path": "corpus"}]})
        out = self.train(config, "--steps", "2")
        self.assertIn("done: step 2", out)
        self.assertEqual(self.checkpoint_steps(), [2])
        self.assertEqual([record["step"] for record in self.records(key="validation_loss")], [2])
        self.train(config, "--resume", "--steps", "100")
        self.train(config, *overrides("run.out=whole"))
        self.assert_same_steps(self.records(), self.records("whole"))
        self.assert_same_checkpoint(self.checkpoint(6), self.checkpoint(6, "whole"))
        self.assertIn("nothing to do: step 6 of 6 is done", self.train(config, "--resume", "latest"))
        self.assertIn("nothing to do: run.steps = 5 is less than the checkpoint's step, 6 (raise run.steps to train on)",
                      self.train(config, "--resume", "latest", *overrides("run.steps=5")))

    def test_validation_that_repeats_samples_is_warned_of(self):
        config = self.write_run(data={"validation": [{"path": "held-out"}]}, run={"steps": 1})
        self.write_corpus("held-out", num_tokens=16 * 5 + 1)
        repeated = "warning: run.validation_samples = 6: data.validation holds 5 samples, so some count more than once"
        for samples, expected in ((5, []), (6, [repeated])):
            result = self.run_gptrain("train", config,
                                      *overrides(f"run.out=out-{samples}", f"run.validation_samples={samples}"))
            self.assertEqual(result.code, FINISHED, result.err)
            self.assertEqual([line for line in result.err.splitlines() if "validation" in line], expected)

    def test_an_earlier_run_in_the_folder_is_not_overwritten(self):
        config = self.write_run()
        self.train(config, "--steps", "2")
        before = self.records()
        self.refuse(USAGE, ["run.out = out", "holds checkpoints up to step 2", "--resume latest"], "train", config)
        self.assertEqual(self.records(), before)

    def test_more_than_the_machine_holds(self):
        config = self.write_config(large_config())
        started = time.monotonic()
        error = self.refuse(MACHINE, ["Does not fit: ", "TiB are missing on this-machine", "choose a smaller model"],
                            "train", config)
        self.assertLess(time.monotonic() - started, 20 * slowness())
        missing = float(error.split("Does not fit: ")[1].split(" TiB")[0])
        self.assertGreater(missing, 1)
        self.assertFalse(self.path("out").exists())

    def test_settings_that_would_make_it_fit_are_named(self):
        config = self.write_run(model={"num_layers": 64, "hidden_size": 256, "sequence_length": 65536},
                                batch={"global": 64, "micro": 64})
        self.refuse(MACHINE, ['memory.recompute = "block": ', "batch.micro = 1 instead of 64: ",
                             'precision.compute = "bf16": '], "train", config)


class Threads(CliCase):
    """oneDNN's products would be wrong if OpenMP gave it fewer threads than promised."""

    def setUp(self):
        super().setUp()
        self.config = self.write_run(model={"hidden_size": 64}, run={"threads": 2})

    def test_a_busy_machine_does_not_take_threads_away(self):
        self.train(self.config, *overrides("run.out=plain"))
        with unittest.mock.patch.dict(os.environ, OMP_DYNAMIC="true"):
            self.train(self.config, *overrides("run.out=dynamic"))
        self.assert_same_steps(self.records("dynamic"), self.records("plain"))

    def test_fewer_threads_than_asked_for(self):
        for variable, value in [("OMP_THREAD_LIMIT", "1"), ("OMP_MAX_ACTIVE_LEVELS", "0")]:
            with unittest.mock.patch.dict(os.environ, {variable: value}):
                self.refuse(MACHINE, ["OpenMP gives 1 of the 2 threads", variable, "run.threads = 1"], "train", self.config)
                self.train(self.config, *overrides("run.threads=1", f"run.out={variable}"))


class Profiles(CliCase):
    def events(self, file, rank=0):
        """Returns the complete events of a rank in a trace, by row, in order; times in whole nanoseconds."""
        trace = [event for event in json.loads(self.path(file).read_text(encoding="utf-8"))["traceEvents"]
                 if event["pid"] == rank]
        names = {event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"}
        rows = {name: [] for name in names.values()}
        for event in trace:
            if event["ph"] == "X":
                start = round(event["ts"] * 1000)
                rows[names[event["tid"]]].append((start, start + round(event["dur"] * 1000), event))
        return rows

    def test_the_table_adds_up_to_the_step(self):
        out = self.train(self.write_run(), "--profile-step", "3")
        self.assertRegex(out, r"(?s)\nstep 3/6 .*\nprofile of step 3: .*\ntrace: out/trace-step3.json\nstep 4/6 ")
        table = out.split("\nop  ")[1].split("\nop and shape")[0].splitlines()[1:]
        rows = [re.match(r"(\S.*?) +(\d+ +)?(\d+\.\d{3}) +(\d+\.\d)%", line) for line in table]
        self.assertNotIn(None, rows, table)
        times = {row.group(1): float(row.group(3)) for row in rows}
        calls = {row.group(1): int(row.group(2)) for row in rows if row.group(2)}
        self.assertEqual(list(times)[-3:], ["waiting for data", "everything else", "total"])
        ops = list(times)[:-3]
        self.assertEqual([times[op] for op in ops], sorted((times[op] for op in ops), reverse=True))
        total = times.pop("total")
        self.assertAlmostEqual(sum(times.values()), total, delta=0.001 * len(times))
        self.assertEqual(sum(calls[op] for op in ops), calls["total"])
        self.assertEqual(calls["cross_entropy"], 2, "two micro-batches")
        self.assertEqual(calls["upload"], 2 * 3 + 2, "of each micro-batch three, the step's state, the wish to stop")
        for line in table[:-3]:
            if not line.startswith(("upload", "download")):
                self.assertRegex(line, r"\d+\.\d (GFLOP/s|GB/s) +\d+%$")

    def test_a_save_has_a_name_of_its_own(self):
        out = self.train(self.write_run(checkpoint={"every_steps": 3}), "--profile-step", "3")
        table = out.split("\nop  ")[1].split("\nop and shape")[0]
        self.assertRegex(table, r"\nsave_copy +48 ", "weights and two moments of 16 tensors")
        self.assertRegex(table, r"\ndownload +2 ", "the step's result, and the wish to stop")
        out = self.train("run.json", *overrides("run.out=later"), "--profile-step", "4")
        self.assertNotIn("save_copy", out)

    def test_the_trace_nests(self):
        out = self.train(self.write_run(), "--profile-step", "5")
        rows = self.events("out/trace-step5.json")
        self.assertEqual(sorted(rows), ["actions", "copies", "ops"])
        for events in rows.values():
            for (_, end, first), (start, _, second) in zip(events, events[1:]):
                self.assertLessEqual(end, start, (first, second))
        for start, end, event in rows["ops"]:
            self.assertTrue(any(first <= start and end <= last for first, last, _ in rows["actions"]), event)
            self.assertEqual(list(event["args"]), ["shape", "model_flops", "executed_flops", "bytes_moved"])
        self.assertEqual(sum(event["args"]["model_flops"] for _, _, event in rows["ops"]),
                         json.loads(self.succeed("train", "run.json", "--dry-run", "--json"))["model_flops_per_step"])
        self.assertRegex(out, rf"(?m)^total +{len(rows['ops']) + len(rows['copies'])} ")

    def test_every_rank_does_what_was_planned(self):
        config = self.write_run(model={"num_layers": 3}, parallel={"tensor": 2, "zero": 3})
        self.train(config, "--ranks", "4", "--profile-step", "2")
        self.succeed("train", config, "--dry-run", "--ranks", "4", "--trace", "planned.json")

        def in_words(rows):
            return {name: [(event["name"], event["args"]) for _, _, event in events]
                    for name, events in rows.items() if name != "waits"}
        # Ranks of one kind are planned once.
        planned = [in_words(self.events("planned.json", rank)) for rank in (0, 1)]
        self.assertEqual(self.events("planned.json", 2), {})
        for rank in range(4):
            with self.subTest(rank=rank):
                rows = in_words(self.events("out/trace-step2.json", rank))
                self.assertIn("lane weights", rows)
                self.assertEqual(rows, planned[rank % 2])

    def test_a_planned_step_on_a_target_with_rates(self):
        config = self.write_run(parallel={"zero": 1})
        text = self.succeed("train", config, "--dry-run", "--target", "h100", "--world-size", "2", "--trace", "t.json")
        self.assertRegex(text, r"\nplanned step of rank 0: \d+\.\d ms, ")
        rows = self.events("t.json")
        lane = rows["lane gradients"]
        self.assertEqual({event["name"] for _, _, event in lane}, {"reduce_scatter", "all_reduce"})
        for start, end, event in lane:
            # In nanoseconds: the rate of an H100's NVLink, and one or several latencies.
            self.assertGreaterEqual(end - start, 2500 + event["args"]["sent_bytes"] / 450 - 1, event)
            self.assertLessEqual(end - start, 4 * 2500 + event["args"]["sent_bytes"] / 100, event)
        for start, end, event in rows["ops"]:
            args = event["args"]
            rate = max(args["executed_flops"] / 67000, args["bytes_moved"] / 3350)
            # Nothing is faster than the data sheet, and small ops take little more than their start.
            self.assertGreaterEqual(end - start, rate - 1.1, event)
            self.assertLessEqual(end - start, 20 * rate + 100_000, event)
        for kind in ("ops", "lane gradients", "copies"):
            for (_, end, first), (start, _, second) in zip(rows[kind], rows[kind][1:]):
                self.assertLessEqual(end, start, (first, second))

    def test_the_run_is_the_same(self):
        config = self.write_run(model={"dropout": 0.1})
        self.train(config, "--profile-step", "2")
        self.train(config, *overrides("run.out=plain"))
        self.assert_same_steps(self.records(), self.records("plain"))
        self.assert_same_checkpoint(self.checkpoint(6), self.checkpoint(6, "plain"))
        self.assertFalse((self.path("plain") / "trace-step2.json").exists())

    def test_a_step_that_is_not_run(self):
        config = self.write_run()
        self.refuse(USAGE, "--profile-step 7: this call runs steps 1 to 6", "train", config, "--profile-step", "7")
        self.refuse(USAGE, "--profile-step 3: this call runs steps 1 to 2", "train", config, "--steps", "2",
                    "--profile-step", "3")
        self.assertFalse((self.path("out") / "metrics.jsonl").exists(), "refused before anything is done")
        self.train(config, "--steps", "2", "--profile-step", "2")
        self.refuse(USAGE, "--profile-step 2: this call runs steps 3 to 6", "train", config, "--resume",
                    "--profile-step", "2")
        self.train(config, "--resume", "--profile-step", "6")
        self.assertGreater(len(self.events("out/trace-step6.json")["ops"]), 0)
        self.refuse(USAGE, "--profile-step 6: no step is left to run: step 6 of 6 is done", "train", config, "--resume",
                    "--profile-step", "6")


class Folders(CliCase):
    def test_a_file_where_the_folder_should_be(self):
        config = self.write_run()
        self.path("taken").write_text("x", encoding="utf-8")
        for out in ["taken", "taken/below"]:
            with self.subTest(out=out):
                self.refuse(USAGE, ["run.out", out], "train", config, *overrides(f"run.out={out}"))
        self.assertEqual(self.path("taken").read_text(encoding="utf-8"), "x")

    def test_a_folder_without_permission(self):
        if os.geteuid() == 0:
            self.skipTest("root may write everywhere")
        config = self.write_run()
        self.path("out").mkdir(mode=0o500)
        self.refuse(USAGE, ["run.out", "out/.lock", "Permission denied"], "train", config)

    def test_something_in_the_place_of_a_file_of_the_run(self):
        for name in ["metrics.jsonl", "run.json", "config.json", "report.html", "checkpoints", "tb"]:
            with self.subTest(name=name):
                config = self.write_run(run={"out": f"out-{name}"})
                blocker = self.path(f"out-{name}") / name
                blocker.parent.mkdir()
                if name in ("checkpoints", "tb"):
                    blocker.write_text("x", encoding="utf-8")
                else:
                    blocker.mkdir()
                result = self.run_gptrain("train", config)
                # Files of an earlier run may be moved aside; nothing may be lost silently.
                if result.code == FINISHED:
                    self.assertTrue((blocker.parent / f"{name}.old-1").exists(), f"{name} was not written")
                else:
                    self.assertGreater(result.code, 0, result.err)
                    self.assertIn(name, result.err)

    def test_a_file_of_the_user_in_the_folder_of_the_run(self):
        """A config in run.out is kept, and refused where it is the one that the run would replace."""
        config = self.write_run(run={"out": ".", "steps": 1})
        text = "// mine\n" + self.path(config).read_text(encoding="utf-8")
        for name in ("config.json", "run.json"):
            mine = self.path(name)
            mine.write_text(text, encoding="utf-8")
            self.refuse(USAGE, f"run.out = .: the run writes its own {name} there", "train", name)
            self.assertEqual(mine.read_text(encoding="utf-8"), text)
            mine.rename(self.path("mine.json"))
        self.path("out").mkdir()
        for name in ("config.json", "run.json"):
            self.path(f"out/{name}").write_text(text, encoding="utf-8")
        self.train("mine.json", *overrides("run.out=out"))
        for name in ("config.json", "run.json"):
            self.assertEqual(self.path(f"out/{name}.old-1").read_text(encoding="utf-8"), text)
        self.train("out/config.json", "--resume", *overrides("run.steps=2"))
        self.assertFalse(self.path("out/config.json.old-2").exists())

    def test_a_run_that_is_refused_leaves_nothing(self):
        no_data = [*overrides('data.train=[{"path": "nowhere"}]')]
        config = self.write_run()
        self.refuse(DATA, "nowhere.idx", "train", config, *no_data, *overrides("run.out=new/below"))
        self.assertFalse(self.path("new").exists())
        self.refuse(CHECKPOINT, "nowhere", "train", config, "--resume", "nowhere")
        self.assertFalse(self.path("out").exists())
        self.path("out").mkdir()
        self.path("out").joinpath("mine").write_text("x", encoding="utf-8")
        self.refuse(USAGE, "--profile-step 7", "train", config, "--profile-step", "7")
        self.assertEqual(os.listdir(self.path("out")), ["mine"])
        self.train(config)
        self.assertIn(".lock", os.listdir(self.path("out")), "of a run")
        self.refuse(DATA, "nowhere.idx", "train", config, "--resume", *no_data)
        self.assertIn(".lock", os.listdir(self.path("out")), "of an earlier run")

    def test_a_folder_in_use(self):
        config = self.write_run()
        slow = self.start("train", config, *SLOW_STEPS)
        self.wait_until((self.path("out") / "run.json").exists, slow)
        self.refuse(USAGE, "run.out = out: another gptrain is running in this folder", "train", config)
        slow.kill()
        slow.wait()
        self.assertIn("done: step 6", self.train(config), "the lock of a killed process holds")


class Divergence(CliCase):
    # Decay outweighs everything: each step multiplies the weights by 1 - 10 * 10, until they overflow.
    EXPLODING = overrides("optimizer.lr=10", "optimizer.weight_decay=10", "run.steps=100", "run.max_skipped_steps=2",
                          "checkpoint.every_steps=1")

    def test_ends_the_run_and_keeps_the_last_good_checkpoint(self):
        config = self.write_run()
        self.refuse(DIVERGED, ["training diverged", "3 steps in a row", "run.max_skipped_steps = 2",
                            "the last checkpoint in out/checkpoints is untouched"],
                    "train", config, *self.EXPLODING)
        records = self.records()
        self.assertEqual([record["skipped"] for record in records[-3:]], [True] * 3)
        self.assertEqual([record["loss"] for record in records[-3:]], [None] * 3)
        good = max(record["step"] for record in records if not record["skipped"])
        self.succeed("checkpoint", "verify", "out")
        self.assertLessEqual(max(self.checkpoint_steps()), good, "saved after a step that was skipped")
        self.assertIn(good, self.checkpoint_steps())

    def test_can_go_on_from_before_with_a_lower_rate(self):
        config = self.write_run(optimizer={"weight_decay": 10})
        self.refuse(DIVERGED, "training diverged", "train", config, *self.EXPLODING,
                    *overrides("checkpoint.keep_last=1000"))
        out = self.train(config, "--resume", "out/checkpoints/step-00000001", *overrides("optimizer.lr=0.001"))
        self.assertIn("done: step 6", out)
        self.assertEqual([record["skipped"] for record in self.records()], [False] * 6)

    def test_without_a_checkpoint(self):
        config = self.write_run()
        self.refuse(DIVERGED, ["training diverged", "3 steps in a row", "no checkpoint was saved before"], "train",
                    config, *self.EXPLODING, *overrides("checkpoint.every_steps=0"))
        self.assertEqual(self.checkpoint_steps(), [])


class Signals(CliCase):
    def wait_for_work(self, process):
        """Waits until a process with slow steps is within the first: it has used more time than its start takes."""
        def seconds():
            fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        before = seconds()
        self.wait_until(lambda: seconds() > before + 1, process)

    def stop_after_a_few_steps(self, config, number, *arguments):
        process = self.start("train", config, "--resume", *overrides("run.steps=100000000"), *arguments)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
        return process.returncode, out, error

    def test_the_step_is_finished_and_the_state_saved(self):
        # Restores the default: under nohup the tests would pass on that SIGHUP is ignored.
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            with self.subTest(signal=number.name):
                config = self.write_run(model={"dropout": 0.1}, run={"out": number.name})
                code, out, error = self.stop_after_a_few_steps(config, number)
                self.assertEqual(code, REQUEUE, error)
                last = self.records(number.name)[-1]["step"]
                self.assertIn(f"stopped by {number.name} after step {last}", out)
                self.assertEqual(self.checkpoint_steps(number.name), [last])
                self.succeed("checkpoint", "verify", number.name)

    def test_a_stopped_run_goes_on_as_if_it_had_not_been(self):
        config = self.write_run(model={"dropout": 0.1}, data={"validation": [{"path": "corpus"}]})
        code, _, error = self.stop_after_a_few_steps(config, signal.SIGTERM)
        self.assertEqual(code, REQUEUE, error)
        steps = self.records()[-1]["step"] + 3
        self.assertIn("resumed from out/checkpoints/",
                      self.train(config, "--resume", "latest", *overrides(f"run.steps={steps}")))
        self.train(config, *overrides("run.out=whole", f"run.steps={steps}"))
        self.assertEqual([record["step"] for record in self.records()], list(range(1, steps + 1)))
        self.assert_same_steps(self.records(), self.records("whole"))
        self.assertEqual(self.records(key="validation_loss"), self.records("whole", key="validation_loss"))
        self.assert_same_checkpoint(self.checkpoint(steps), self.checkpoint(steps, "whole"))

    def test_a_lost_terminal(self):
        """The kernel's SIGHUP comes with a terminal that can no longer be written to."""
        config = self.write_run()
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL))
        process_id, terminal = pty.fork()
        if process_id == 0:
            os.chdir(self.folder)
            os.execv(EXECUTABLE, [EXECUTABLE, "train", config, *overrides("run.steps=100000000")])
        shown = b""
        while b"step 3/" not in shown:
            shown += os.read(terminal, 4096)
        os.close(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1]), REQUEUE)
        self.assertEqual(self.checkpoint_steps(), [self.records()[-1]["step"]])

    def test_a_profile_that_was_not_reached_is_mentioned(self):
        code, out, error = self.stop_after_a_few_steps(self.write_run(), signal.SIGTERM, "--profile-step", "100000000")
        self.assertEqual(code, REQUEUE, error)
        self.assertIn("step 100000000 was not reached, so there is no profile", out)

    def test_a_second_signal_ends_at_once(self):
        config = self.write_run()
        for earlier, second in (([signal.SIGTERM], signal.SIGINT), ([signal.SIGUSR1, signal.SIGINT, signal.SIGTERM], signal.SIGINT)):
            with self.subTest(second=second.name):
                process = self.start("train", config, *SLOW_STEPS, *overrides(f"run.out={second.name}"))
                self.wait_until((self.path(second.name) / "run.json").exists, process)
                self.wait_for_work(process)
                for number in earlier:
                    process.send_signal(number)
                    time.sleep(0.3)
                    self.assertIsNone(process.poll(), "the first signal does not wait for the step")
                process.send_signal(second)
                self.assertEqual(process.wait(timeout=30), 128 + second)
                self.assertEqual(self.checkpoint_steps(second.name), [])

    def test_two_terms_in_a_row_are_one(self):
        process = self.start("train", self.write_run(), *SLOW_STEPS)
        self.wait_until((self.path("out") / "run.json").exists, process)
        self.wait_for_work(process)
        began = time.monotonic()
        for pause in (0.2, 1.8, 3.3):
            if time.monotonic() < began + 4.5:  # later on a machine that is too busy
                process.send_signal(signal.SIGTERM)
            time.sleep(pause)
            self.assertIsNone(process.poll(), "two at the same time are not one")
        # Less than five seconds after the last, more after the first.
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 128 + signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
