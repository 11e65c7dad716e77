#!/usr/bin/env python3
"""Tests run.device as a user sees it: with a device (the host harness's build of the program) and without one."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

WITHOUT_DEVICE, WITH_DEVICE = (str(Path(argument).resolve()) for argument in sys.argv[1:3])
WHY_NO_DEVICE = {"cuda": "this process sees no CUDA device (",
                 "no-cuda": "this build of gptrain has no CUDA: "}[sys.argv[3]]
FINISHED, USAGE, MACHINE, DIVERGED, STOPPED = 0, 2, 7, 6, 75

CONFIG = {
    "model": {"num_layers": 2, "hidden_size": 24, "num_heads": 2, "vocab_size": 257, "sequence_length": 16,
              "dropout": 0.1},
    "data": {"train": [{"path": "corpus"}], "validation": [{"path": "corpus"}]},
    "batch": {"global": 4, "micro": 2},
    "precision": {"compute": "fp32"},
    "optimizer": {"type": "adamw", "lr": 1e-2},
    "schedule": {"type": "constant"},
    "run": {"steps": 6, "seed": 1, "out": "out", "validation_samples": 4},
}


class Device(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gptrain-device-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        draw = random.Random(1)
        words = [draw.choice(["one", "two", "three"]) for _ in range(1000)]
        self.folder.joinpath("text.txt").write_text(" ".join(words), encoding="utf-8")
        self.run_program(WITHOUT_DEVICE, "data", "pack", "text.txt", "--out", "corpus", "--tokenizer", "bytes")
        self.folder.joinpath("run.json").write_text(json.dumps(CONFIG), encoding="utf-8")

    def run_program(self, program, *arguments):
        # Hides a real device from the program.
        env = dict(os.environ, CUDA_VISIBLE_DEVICES="", XDG_CACHE_HOME=str(self.folder / "cache"))
        done = subprocess.run([program, *arguments], cwd=self.folder, env=env, capture_output=True, text=True,
                              timeout=200, check=False)
        return done.returncode, done.stdout, done.stderr

    def train(self, program, out, device, *arguments):
        code, text, err = self.run_program(program, "train", "run.json", "--set", f"run.out={out}", "--set",
                                           f"run.device={device}", *arguments)
        self.assertEqual(code, FINISHED, err)
        return text

    def losses(self, out):
        lines = (self.folder / out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [record.get("loss", record.get("validation_loss")) for record in map(json.loads, lines)]

    def test_the_device_computes_what_the_cpu_does(self):
        self.train(WITHOUT_DEVICE, "cpu", "auto")
        self.assertIn("this machine: one host-harness, ", self.train(WITH_DEVICE, "cuda", "cuda"))
        expected = self.losses("cpu")
        self.assertEqual(len(expected), 7)
        for found, loss in zip(self.losses("cuda"), expected, strict=True):
            self.assertAlmostEqual(found, loss, delta=1e-5 * loss)

    def test_a_run_resumes_from_a_checkpoint_between_delayed_updates(self):
        """A checkpoint that is written beside the steps: the run that goes on and the one that resumes have the same bits."""
        delayed = ("--set", "memory.offload_optimizer=host", "--set", "memory.offload_update=delayed", "--set",
                   "checkpoint.every_steps=3", "--set", "checkpoint.keep_last=9")
        self.train(WITH_DEVICE, "whole", "cuda", *delayed)
        shutil.copytree(self.folder / "whole", self.folder / "resumed")
        shutil.rmtree(self.folder / "resumed/checkpoints/step-00000006")
        self.assertIn("step 3", self.train(WITH_DEVICE, "resumed", "cuda", *delayed, "--resume"))
        self.assertEqual(self.losses("resumed"), self.losses("whole"))
        weights = [(self.folder / out / "checkpoints/step-00000006/rank-00000.safetensors").read_bytes() for out in ("whole", "resumed")]
        self.assertEqual(*weights)

    def test_auto_takes_the_device_and_cpu_does_not(self):
        self.assertIn("one host-harness", self.train(WITH_DEVICE, "auto", "auto", "--steps", "1"))
        self.assertIn("threads", self.train(WITH_DEVICE, "cpu", "cpu", "--steps", "1"))

    def test_ranks_on_devices_compute_what_one_does(self):
        self.train(WITH_DEVICE, "one", "cuda")
        layouts = [("--set", "parallel.zero=2"), ("--set", "parallel.tensor=2", "--set", "parallel.sequence=true"),
                   ("--set", "parallel.context=2")]
        for number, layout in enumerate(layouts):
            out = f"ranks{number}"
            text = self.train(WITH_DEVICE, out, "cuda", "--ranks", "2", *layout)
            self.assertIn("one host-harness each", text)
            self.assertEqual(text.count("as CUDA graphs cannot contain"), 0 if number == 0 else 1)
            # Exchanges pass through 8 MiB of host memory.
            _, planned, _ = self.run_program(WITH_DEVICE, "train", "run.json", "--dry-run", "--json", "--ranks", "2",
                                             *layout)
            taken = json.loads((self.folder / out / "run.json").read_text(encoding="utf-8"))
            self.assertEqual(taken, {key: json.loads(planned)[key] for key in taken})
            self.assertEqual(taken["host_communication_bytes"], 8 << 20)
            for found, loss in zip(self.losses(out), self.losses("one"), strict=True):
                self.assertAlmostEqual(found, loss, delta=1e-5 * loss)

    def test_mixtures_of_experts_train_on_devices_as_on_the_cpu(self):
        """On one device, and spread over two. Algorithms are timed there before any router has counted rows."""
        moe = {"experts": 4, "top_k": 2, "ffn_hidden_size": 32, "shared": 1, "shared_gate": "sigmoid"}
        settings = ("--set", f"model.moe={json.dumps(moe)}", "--set", "model.bias=false")
        spread = ("--ranks", "2", "--set", "parallel.expert=2", "--set", "parallel.zero=1")
        self.train(WITHOUT_DEVICE, "cpu", "cpu", *settings)
        self.train(WITH_DEVICE, "one", "cuda", *settings)
        self.train(WITH_DEVICE, "two", "cuda", *settings, *spread, "--steps", "3")
        self.train(WITH_DEVICE, "two", "cuda", *settings, *spread, "--resume")
        self.train(WITH_DEVICE, "whole", "cuda", *settings, *spread)
        self.assertEqual(self.losses("two")[-1], self.losses("whole")[-1])
        for out in ("one", "whole"):
            for found, expected in zip(self.losses(out), self.losses("cpu"), strict=True):
                self.assertAlmostEqual(found, expected, delta=1e-5 * expected)
        _, planned, _ = self.run_program(WITH_DEVICE, "train", "run.json", "--dry-run", "--json", *settings, *spread)
        taken = json.loads((self.folder / "whole/run.json").read_text(encoding="utf-8"))
        self.assertEqual(taken, {key: json.loads(planned)[key] for key in taken})
        texts = [self.run_program(WITHOUT_DEVICE, "generate", "--checkpoint", out, "--prompt", "one ", "--tokens", "9",
                                  "--temperature", "0") for out in ("cpu", "whole")]
        self.assertEqual(texts[0][:2], texts[1][:2])
        self.assertEqual(texts[0][0], FINISHED, texts)

    def test_a_run_goes_on_where_it_stopped_also_elsewhere(self):
        self.train(WITH_DEVICE, "whole", "cuda")
        self.train(WITH_DEVICE, "parts", "cuda", "--steps", "3")
        self.train(WITH_DEVICE, "parts", "cuda", "--resume")
        whole = self.losses("whole")
        self.assertEqual([loss for loss in self.losses("parts")][-1], whole[-1])
        self.train(WITH_DEVICE, "moved", "cuda", "--steps", "3")
        self.train(WITHOUT_DEVICE, "moved", "cpu", "--resume")
        self.assertAlmostEqual(self.losses("moved")[-1], whole[-1], delta=1e-5 * whole[-1])

    def records(self, out):
        lines = (self.folder / out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def test_what_is_due_after_a_step_is_of_that_step(self):
        """Validations and saves belong to their own step, although the device may have begun the next."""
        due = ("--set", "run.steps=9", "--set", "run.validate_every_steps=3", "--set", "checkpoint.every_steps=4",
               "--set", "checkpoint.keep_last=9", "--set", "checkpoint.asynchronous=false")
        texts = [self.train(WITHOUT_DEVICE, "cpu", "cpu", *due), self.train(WITH_DEVICE, "cuda", "cuda", *due)]
        marks = [[re.match(r"step \d+/|validation after step \d+|checkpoint of step \d+", line) for line in
                  text.splitlines()] for text in texts]
        cpu, cuda = ([mark.group() for mark in found if mark] for found in marks)
        self.assertEqual(len(cpu), 9 + 3 + 3)
        self.assertEqual(cuda, cpu)
        for found, expected in zip(self.records("cuda"), self.records("cpu"), strict=True):
            for key in ("step", "lr", "tokens", "samples", "skipped"):
                self.assertEqual(found.get(key), expected.get(key))
            self.assertAlmostEqual(found.get("loss", 0), expected.get("loss", 0), delta=1e-4)
        self.train(WITH_DEVICE, "beside", "cuda", *due, "--set", "checkpoint.asynchronous=true")
        for step in (4, 8, 9):
            saved = [self.folder / out / f"checkpoints/step-{step:08}/rank-00000.safetensors" for out in ("cuda", "beside")]
            self.assertEqual(saved[0].read_bytes(), saved[1].read_bytes())
        taken = json.loads((self.folder / "beside/run.json").read_text(encoding="utf-8"))
        self.assertEqual((taken["snapshot_bytes"], taken["host_snapshot_bytes"] > 0), (0, True))

    def test_a_stop_saves_the_step_that_was_recorded_last(self):
        for ranks in (("--ranks", "1"), ("--ranks", "2")):
            out = "stopped" + ranks[1]
            process = subprocess.Popen(
                [WITH_DEVICE, "train", "run.json", "--set", f"run.out={out}", "--set", "run.device=cuda", "--set",
                 "run.steps=100000", *ranks], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache")), text=True)
            while not process.stdout.readline().startswith("step 3/"):
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGTERM)
            text, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, STOPPED, err)
            last = self.records(out)[-1]["step"]
            self.assertIn(f"stopped by SIGTERM after step {last}", text)
            self.assertEqual([path.name for path in (self.folder / out / "checkpoints").iterdir()],
                             [f"step-{last:08}"])
            more = ("--set", f"run.steps={last + 3}", *ranks)
            self.train(WITH_DEVICE, out, "cuda", "--resume", *more)
            self.train(WITH_DEVICE, "whole" + out, "cuda", *more)
            self.assertEqual(self.losses(out), self.losses("whole" + out))

    def test_the_last_of_too_many_skipped_steps_ends_the_run(self):
        code, _, err = self.run_program(
            WITH_DEVICE, "train", "run.json", "--set", "run.device=cuda", "--set", "optimizer.lr=10", "--set",
            "optimizer.weight_decay=10", "--set", "run.steps=100", "--set", "run.max_skipped_steps=2")
        self.assertEqual(code, DIVERGED, err)
        self.assertIn("for 3 steps in a row", err)
        skipped = [record["skipped"] for record in self.records("out")]
        self.assertEqual(skipped, [False] * (len(skipped) - 3) + [True] * 3)

    def test_a_checkpoint_keeps_the_algorithms_of_the_device(self):
        for program, device in [(WITH_DEVICE, "cuda"), (WITHOUT_DEVICE, "cpu")]:
            self.train(program, device, device, "--steps", "1")
            manifest = json.loads((self.folder / device / "checkpoints/step-00000001/manifest.json").read_text())
            self.assertEqual("algorithms" in manifest, device == "cuda")
            self.train(program, device, device, "--steps", "1", "--resume")

    def records(self, out):
        lines = (self.folder / out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if "loss" in record]

    def train_in_fp16(self, out, *arguments):
        settings = ["precision.compute=fp16", "precision.loss_scale=16777216", "precision.loss_scale_window=2",
                    "run.max_skipped_steps=0", "run.steps=12"]
        return self.train(WITH_DEVICE, out, "cuda", *(part for key in settings for part in ("--set", key)), *arguments)

    def test_the_search_for_a_loss_scale_ends_no_run_and_goes_on_after_a_stop(self):
        text = self.train_in_fp16("whole")
        records = self.records("whole")
        self.assertIn("| scale 16777216 |", text)
        self.assertIn("SKIPPED", text)
        scales = [record["loss_scale"] for record in records]
        self.assertEqual(scales[:2], [2 ** 24, 2 ** 23])
        self.assertTrue(records[0]["skipped"])
        self.assertFalse(all(record["skipped"] for record in records))
        self.train_in_fp16("parts", "--steps", "5")
        self.train_in_fp16("parts", "--resume")
        steps = [(record["loss"], record["grad_norm"], record["loss_scale"]) for record in records]
        self.assertEqual([(record["loss"], record["grad_norm"], record["loss_scale"])
                          for record in self.records("parts")], steps)

    def test_a_run_that_cannot_go_on_at_a_loss_scale_of_1_ends(self):
        # Weights whose activations exceed fp16.
        settings = ["precision.compute=fp16", "precision.loss_scale=4", "run.max_skipped_steps=1", "run.steps=12",
                    "model.activation=swiglu", "model.init_std=10", "run.device=cuda"]
        code, _, err = self.run_program(WITH_DEVICE, "train", "run.json",
                                        *(part for key in settings for part in ("--set", key)))
        self.assertEqual(code, DIVERGED, err)
        self.assertIn("not finite for 2 steps in a row", err)
        self.assertEqual([record["loss_scale"] for record in self.records("out")], [4, 2, 1, 1])

    def test_fp16_needs_a_device(self):
        for arguments in [(), ("--dry-run",)]:
            code, _, err = self.run_program(WITHOUT_DEVICE, "train", "run.json", "--set", "precision.compute=fp16",
                                            *arguments)
            self.assertEqual(code, MACHINE, err)
            self.assertIn(f"precision.compute = fp16: {WHY_NO_DEVICE}", err)
        code, text, err = self.run_program(WITHOUT_DEVICE, "train", "run.json", "--set", "precision.compute=fp16",
                                           "--dry-run", "--target", "h100")
        self.assertEqual(code, FINISHED, err)
        self.assertIn("of h100's", text)

    def test_collectives_of_ranks_on_devices_are_measured(self):
        code, text, err = self.run_program(WITH_DEVICE, "bench", "comm", "run.json", "--set", "run.device=cuda",
                                           "--ranks", "2", "--max-bytes", "65536", "--seconds", "0.001")
        self.assertEqual(code, FINISHED, err)
        lines = text.splitlines()
        self.assertEqual([line for line in lines if "groups" in line],
                         [f"2 ranks (threads, host-harness through the host), {kind} groups of 2, f32; results are "
                          "checked bit by bit" for kind in ("world", "data")])
        self.assertEqual(len(lines), 2 * (2 + 6 * 4), text)

    def test_no_device(self):
        for arguments in [(), ("--dry-run",)]:
            code, _, err = self.run_program(WITHOUT_DEVICE, "train", "run.json", "--set", "run.device=cuda",
                                            *arguments)
            self.assertEqual(code, MACHINE, err)
            self.assertIn(f"run.device = cuda: {WHY_NO_DEVICE}", err)

    def test_fp8_linears_are_refused_without_a_device_that_has_them(self):
        settings = ["precision.compute=bf16", "precision.linears=fp8", "model.hidden_size=32"]
        fp8 = [argument for setting in settings for argument in ("--set", setting)]
        for arguments in [(), ("--dry-run",)]:
            code, _, err = self.run_program(WITHOUT_DEVICE, "train", "run.json", *fp8, *arguments)
            self.assertEqual(code, MACHINE, err)
            self.assertIn("precision.linears = fp8: this-machine has no FP8 matrix products", err)
        self.train(WITH_DEVICE, "fp8", "cuda", *fp8)
        self.assertLess(self.losses("fp8")[-1], self.losses("fp8")[0])

    def test_more_than_the_host_has_is_refused(self):
        """Offloads all blocks, of which the device holds few at a time."""
        def settings(sequences):
            keys = ["model.num_layers=64", "model.sequence_length=512", "memory.offload_activations=all",
                    "memory.loss_chunk_tokens=64", "precision.compute=bf16", f"batch.global={2 * sequences}",
                    f"batch.micro={sequences}"]
            return [part for key in keys for part in ("--set", key)]

        def plan(sequences, *more):
            code, text, err = self.run_program(WITH_DEVICE, "train", "run.json", "--dry-run", *more, *settings(sequences))
            self.assertEqual(code, FINISHED, err)
            return text

        one = json.loads(plan(1, "--json"))
        self.assertTrue(one["fits"])
        many = one["host_memory_bytes"] // (2 * one["host_offloaded_bytes"]) * 2 + 2
        large = json.loads(plan(many, "--json"))
        self.assertLess(large["peak_bytes"], large["target_memory_bytes"])
        self.assertGreater(large["host_bytes_of_node"], large["host_memory_bytes"])
        self.assertFalse(large["fits"])
        lines = [r"Does not fit into the host's memory: .*B are missing\. The 1 rank of the machine would take ",
                 r"\n *[\d.]+ [GT]iB for memory\.offload_activations; "]
        for line in lines:
            self.assertRegex(plan(many), line)
        code, _, err = self.run_program(WITH_DEVICE, "train", "run.json", "--set", "run.device=cuda", *settings(many))
        self.assertEqual(code, MACHINE, err)
        for line in lines:
            self.assertRegex(err, line)

    def saved(self, out, step):
        return (self.folder / out / f"checkpoints/step-{step:08}/rank-00000.safetensors").read_bytes()

    def test_optimizer_state_on_the_host_changes_no_bit(self):
        def settings(*keys):
            return [part for key in ("precision.compute=bf16", "run.steps=20", "optimizer.ema=0.9",
                                     "checkpoint.every_steps=10", "checkpoint.keep_last=9", *keys)
                    for part in ("--set", key)]

        host = settings("memory.offload_optimizer=host", "memory.update_threads=2")
        everything = settings("memory.offload_optimizer=host", "memory.offload_gradients=host",
                              "memory.offload_parameters=host")
        self.train(WITH_DEVICE, "device", "cuda", *settings())
        self.train(WITH_DEVICE, "host", "cuda", *host, "--steps", "12")
        self.train(WITH_DEVICE, "host", "cuda", *host, "--resume", "--profile-step", "15")
        self.assertEqual(self.losses("host")[-1], self.losses("device")[-1])
        for step in (10, 20):  # the first one is written while steps go on
            self.assertEqual(self.saved("host", step), self.saved("device", step))
        # From the device to the host, to a drive, to device and host, and back to the device.
        self.train(WITH_DEVICE, "moved", "cuda", *settings(), "--steps", "6")
        self.train(WITH_DEVICE, "moved", "cuda", *everything, "--steps", "6", "--resume")
        (self.folder / "drive").mkdir()
        self.train(WITH_DEVICE, "moved", "cuda", *settings("memory.offload_optimizer=disk", "memory.disk_path=drive"),
                   "--steps", "2", "--resume")
        self.train(WITH_DEVICE, "moved", "cuda", *host, *settings("memory.offload_optimizer_share=0.5"), "--steps", "2",
                   "--resume")
        self.train(WITH_DEVICE, "moved", "cuda", *settings(), "--resume")
        self.assertEqual(self.saved("moved", 20), self.saved("device", 20))
        _, planned, _ = self.run_program(WITH_DEVICE, "train", "run.json", "--dry-run", "--json", *host)
        taken = json.loads((self.folder / "host/run.json").read_text(encoding="utf-8"))
        self.assertEqual(taken, {key: json.loads(planned)[key] for key in taken})
        self.assertGreater(taken["host_moments_bytes"], 2 * taken["host_master_bytes"])
        trace = json.loads((self.folder / "host/trace-step15.json").read_text(encoding="utf-8"))["traceEvents"]
        lanes = {event["args"]["name"] for event in trace if event["name"] == "thread_name"}
        self.assertLessEqual({"lane offload", "lane fetch", "lane update"}, lanes)

    def test_weights_and_gradients_on_drives_change_no_bit(self):
        """Four layers, so that layers share slots, and two micro-batches of a step."""
        (self.folder / "drive").mkdir()
        gradients = ("memory.offload_optimizer=disk", "memory.disk_path=drive", "memory.offload_gradients=disk")
        everything = (*gradients, "memory.offload_parameters=disk")
        host = ("memory.offload_optimizer=host", "memory.offload_parameters=host", "memory.offload_gradients=host")

        def settings(*keys):
            return [part for key in ("model.num_layers=4", "model.hidden_size=16", "model.sequence_length=8", "batch.micro=1",
                                     "batch.global=2", "precision.compute=bf16", "run.steps=20", *keys)
                    for part in ("--set", key)]

        self.train(WITH_DEVICE, "device", "cuda", *settings("optimizer.ema=0.9"))
        for places, *arguments in ((everything, "--steps", "9"), (host, "--steps", "3", "--resume"),
                                   (everything, "--resume", "--profile-step", "15")):
            self.train(WITH_DEVICE, "away", "cuda", *settings("optimizer.ema=0.9", *places), *arguments)
        self.assertEqual(self.losses("away")[-2:], self.losses("device")[-2:])
        self.assertEqual(self.saved("away", 20), self.saved("device", 20))
        _, planned, _ = self.run_program(WITH_DEVICE, "train", "run.json", "--dry-run", "--json", "--target", "h100",
                                         *settings("optimizer.ema=0.9", *everything))
        planned = json.loads(planned)
        taken = json.loads((self.folder / "away/run.json").read_text(encoding="utf-8"))
        of_places = [key for key in taken if key.startswith(("host_", "disk_"))]
        self.assertLessEqual({"host_buckets_bytes", "disk_weights_bytes", "disk_gradients_bytes"}, {*of_places})
        self.assertEqual({key: taken[key] for key in of_places}, {key: planned.get(key) for key in of_places})
        # A step moves the bytes that the dry run has.
        trace = json.loads((self.folder / "away/trace-step15.json").read_text(encoding="utf-8"))["traceEvents"]
        lanes = {event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"}
        for lane, key in (("disk_read", "disk_read"), ("disk_write", "disk_written"), ("offload", "to_host"),
                          ("fetch", "to_device")):
            moved = sum(event["args"]["bytes_moved"] for event in trace
                        if event.get("ph") == "X" and lanes.get(event["tid"]) == f"lane {lane}")
            self.assertEqual(moved, planned[f"{key}_bytes_per_step"], lane)
        self.assertGreater(moved, 0)
        # ZeRO 2 and 3 have the same bits.
        layouts = [(None, "parallel.zero=2", "batch.global=4"), (gradients, "parallel.zero=2", "batch.global=4"),
                   (everything, "parallel.zero=3", "batch.global=4"), (None, "parallel.pipeline=2"),
                   (everything, "parallel.pipeline=2")]
        for number, (places, *keys) in enumerate(layouts):
            self.train(WITH_DEVICE, f"ranks{number}", "cuda", *settings(*keys, *(places or ())), "--ranks", "2", "--steps",
                       "2")
            files = sorted((self.folder / f"ranks{number}/checkpoints/step-00000002").glob("*.safetensors"))
            result = [self.losses(f"ranks{number}"), *(path.read_bytes() for path in files)]
            self.assertEqual(len(result), 3)
            if places is None:
                expected = result
            self.assertEqual(result, expected, keys)

    def test_what_cannot_lie_on_the_host_is_named(self):
        cases = {("memory.offload_optimizer=host", "optimizer.type=adafactor"): "works on CPUs and in plans",
                 ("memory.offload_optimizer=host", "optimizer.type=lamb", "memory.offload_optimizer_share=0.5"):
                     "must be 1 on a GPU"}
        for keys, why in cases.items():
            code, _, err = self.run_program(WITH_DEVICE, "train", "run.json",
                                            *(part for key in keys for part in ("--set", key)))
            self.assertEqual(code, USAGE, err)
            self.assertIn(why, err)

    def test_the_dry_run_is_of_the_device(self):
        code, text, err = self.run_program(WITH_DEVICE, "train", "run.json", "--dry-run")
        self.assertEqual(code, FINISHED, err)
        self.assertIn("host-harness", text)
        self.assertNotIn("communication", text)
        self.train(WITH_DEVICE, "out", "cuda", "--profile-step", "2")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
