"""Optimizer state, weights and gradients on disk: the same checkpoints, memory in the dry run, drives that fail."""
import contextlib
import json
import os
import time
from pathlib import Path

from checkpoints_cases import CheckpointCase
from cli_case import CHECKPOINT, USAGE, overrides


class Disk(CheckpointCase):
    def on_disk(self, *settings):
        (self.folder / "drive").mkdir(exist_ok=True)
        return overrides("memory.offload_optimizer=disk", "memory.disk_path=drive", *settings)

    def test_runs_go_on_with_and_without_a_disk(self):
        layout = ["--ranks", 2, *overrides("parallel.zero=2", "precision.compute=bf16", "batch.micro=1")]
        whole, there, back = (overrides(f"run.out={name}") for name in ("whole", "there", "back"))
        self.train(self.config, *layout, *whole)
        self.train(self.config, *layout, *there, *self.on_disk(), "--steps", "3")
        self.train(self.config, *layout, *there, "--resume", "--profile-step", "5")
        self.assert_same_checkpoint(self.checkpoint(6, "there"), self.checkpoint(6, "whole"))
        self.train(self.config, *layout, *back, "--steps", "3")
        self.train(self.config, *layout, *back, *self.on_disk(), "--resume", "--profile-step", "5")
        self.assert_same_checkpoint(self.checkpoint(6, "back"), self.checkpoint(6, "whole"))
        names = {event["args"]["name"] for event in json.loads((self.folder / "back/trace-step5.json").read_text())
                 ["traceEvents"] if event["name"] == "thread_name"}
        self.assertLessEqual({"lane update", "lane disk_read", "lane disk_write"}, names)
        # Its new run.json has other keys than that of the first three steps, and took its place.
        self.assertEqual(list((self.folder / "back").glob("run.json.old*")), [])
        self.assertEqual(list((self.folder / "drive").iterdir()), [])

    def test_weights_and_gradients_may_lie_there_too(self):
        """The run stops and goes on, and its last checkpoint is that of a run in memory."""
        layout = overrides("precision.compute=bf16", "memory.recompute=block", "batch.micro=1")
        both = ("memory.offload_parameters=disk", "memory.offload_gradients=disk", "checkpoint.asynchronous=true",
                "checkpoint.every_steps=2", "memory.disk_units=50")
        whole, there = (overrides(f"run.out={name}") for name in ("plain", "all-there"))
        self.train(self.config, *layout, *whole)
        self.train(self.config, *layout, *there, *self.on_disk(*both), "--steps", "3")
        self.train(self.config, *layout, *there, "--resume")
        self.assert_same_checkpoint(self.checkpoint(6, "all-there"), self.checkpoint(6, "plain"))
        # The copy of step 4 was written beside the updates of step 5.
        self.train(self.config, *layout, *overrides("run.out=first", "checkpoint.every_steps=4"), "--steps", "4")
        self.assert_same_checkpoint(self.checkpoint(4, "all-there"), self.checkpoint(4, "first"))

    def test_a_delayed_run_resumes_as_if_it_had_gone_on(self):
        """A save lets the weights catch up, in the run that goes on, too."""
        layout = ["--ranks", 2, *self.on_disk("memory.offload_update=delayed", "checkpoint.every_steps=3",
                                              "parallel.zero=1", "precision.compute=bf16", "batch.micro=1")]
        whole, there = (overrides(f"run.out={name}") for name in ("late", "late-there"))
        self.train(self.config, *layout, *whole)
        self.train(self.config, *layout, *there, "--steps", "3")
        self.train(self.config, *layout, *there, "--resume")
        self.assert_same_checkpoint(self.checkpoint(6, "late-there"), self.checkpoint(6, "late"))
        plan = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *layout))
        plain = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *layout,
                                        *overrides("memory.offload_update=now")))
        self.assertIn("which changes what is trained", "\n".join(plan["warnings"]))
        self.assertEqual(plan["gradients_bytes"], 2 * plain["gradients_bytes"])
        self.assertGreater(plan["weights_bytes"], plain["weights_bytes"])

    def test_what_delayed_updates_refuse(self):
        for setting, message in (("optimizer.type=lamb", "optimizer.type = \"lamb\", which reads gradients"),
                                 ("precision.compute=fp16", "precision.compute = \"fp16\", which skips steps"),
                                 ("precision.compute=bf16-pure", "which updates the weights that ops read"),
                                 ("parallel.zero=3", "cannot be combined with parallel.zero = 3"),
                                 ("memory.offload_parameters=disk", "with memory.offload_parameters = \"disk\""),
                                 ("memory.offload_gradients=disk", "with memory.offload_gradients = \"disk\""),
                                 ("memory.offload_optimizer_share=0.5", "needs memory.offload_optimizer_share = 1"),
                                 ('run.rollback={"skip_samples": 8}', "with run.rollback = {...}")):
            with self.subTest(setting):
                self.refuse(USAGE, ["memory.offload_update = \"delayed\": ", message, "try \"now\""], "config", "check",
                            self.config, *self.on_disk("memory.offload_update=delayed", "checkpoint.every_steps=3",
                                                         setting))

    def test_the_dry_run_tells_places(self):
        usual = json.loads(self.succeed("train", self.config, "--dry-run", "--json"))
        on_disk = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *self.on_disk()))
        self.assertGreaterEqual(on_disk["disk_moments_bytes"], usual["moments_bytes"])
        self.assertNotIn("disk_moments_bytes", usual)
        self.assertEqual(on_disk["snapshot_bytes"], 4 << 20, "the buffer of a checkpoint's file")
        self.assertIn("moments on disk", self.succeed("train", self.config, "--dry-run", *self.on_disk()))
        copied = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *self.on_disk(
            "checkpoint.asynchronous=true", "checkpoint.every_steps=2")))
        self.assertGreaterEqual(copied["snapshot_bytes"] - (4 << 20), usual["moments_bytes"], "a copy of the state")
        few, more, chosen = (json.loads(self.succeed("train", self.config, "--dry-run", "--json", *self.on_disk(
            "model.num_layers=6", f"memory.disk_units={units}"))) for units in (3, 5, 0))
        self.assertGreater(more["moments_bytes"], few["moments_bytes"])
        self.assertGreater(chosen["moments_bytes"], few["moments_bytes"])
        self.assertEqual(more["disk_moments_bytes"], few["disk_moments_bytes"])
        both = self.on_disk("memory.offload_parameters=disk", "memory.offload_gradients=disk")
        all_there = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *both))
        self.assertGreaterEqual(all_there["disk_weights_bytes"], usual["weights_bytes"])
        self.assertGreaterEqual(all_there["disk_gradients_bytes"], usual["gradients_bytes"])

    def test_a_drive_that_changes_bits_ends_the_run(self):
        """Before the run ends, its updates run on a core of their own."""
        run = self.start("train", self.config, *self.on_disk("run.out=damaged", "run.steps=100000",
                                                             "log.every_steps=100000", "memory.update_threads=1",
                                                             "checkpoint.every_steps=100000"))
        fds = Path(f"/proc/{run.pid}/fd")

        def is_over():
            """Damages all pages; those that the run is about to write do not stay damaged."""
            try:
                fd = next((fd for fd in fds.iterdir() if "-rank-0.state" in os.readlink(fd)), None)
                if fd and (self.folder / "damaged/metrics.jsonl").exists():
                    with open(fd, "r+b", buffering=0) as file:
                        for at in range(0, os.fstat(file.fileno()).st_size, 4096):
                            os.pwrite(file.fileno(), b"x", at)
                        os.fsync(file.fileno())
            except OSError:
                pass  # the run wrote the same page, or has ended
            return run.poll() is not None

        def cores():
            """Returns how many cores each of the run's threads may use."""
            with contextlib.suppress(OSError):
                return {len(os.sched_getaffinity(int(task.name))) for task in Path(f"/proc/{run.pid}/task").iterdir()}
            return set()

        deadline = time.monotonic() + 60
        while cores() != {1, len(os.sched_getaffinity(0))} and time.monotonic() < deadline and run.poll() is None:
            time.sleep(0.02)
        self.assertEqual(cores(), {1, len(os.sched_getaffinity(0))})
        while not is_over() and time.monotonic() < deadline:
            time.sleep(0.02)
        _, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, CHECKPOINT, err)
        self.assertIn("has other bytes than were written there", err)
        self.assertRegex(err, r"working file drive/gptrain-\S+ \(optimizer state of unit \d+, block 0")
        self.assertEqual(self.checkpoint_steps("damaged"), [])

    def test_what_is_refused(self):
        missing = overrides("memory.offload_optimizer=disk", "memory.disk_path=nowhere", "run.out=new")
        self.refuse(CHECKPOINT, ["memory.disk_path: cannot make a working file in nowhere: No such file or directory"],
                    "train", self.config, *missing)
        self.refuse(USAGE, ["memory.disk_path: must be given, as memory.offload_optimizer is disk or fit"],
                    "config", "check", self.config, *overrides("memory.offload_optimizer=disk"))
        self.refuse(USAGE, ["memory.offload_parameters", "memory.offload_optimizer is host, disk or fit"], "config", "check",
                    self.config, *overrides("memory.offload_parameters=disk"))
        for key in ("parameters", "gradients"):
            self.refuse(USAGE, [f"memory.offload_{key} = \"disk\": needs parallel.zero = ", "with 2 data ranks"],
                        "train", self.config, *self.on_disk(f"memory.offload_{key}=disk", "run.out=new"), "--ranks", 2,
                        "--dry-run")
            # Ranks of context have the same weights, and each a part of their gradient.
            self.refuse(USAGE, [f"memory.offload_{key} = \"disk\": needs parallel.zero = ", "with 2 data and context ranks"],
                        "train", self.config, *self.on_disk(f"memory.offload_{key}=disk", "parallel.context=2", "run.out=new"),
                        "--ranks", 2, "--dry-run")
        for place, state in (("disk", self.on_disk()),
                             ("host", ["--target", "h100", *overrides("memory.offload_optimizer=host")])):
            self.refuse(USAGE, [f"memory.offload_gradients = \"{place}\"", "zero-bubble-v",
                                "gradients of two micro-batches of a layer", "try \"1f1b\""], "train", self.config,
                        "--world-size", 2, "--dry-run", *state,
                        *overrides("parallel.pipeline=2", "model.tied_head=true", "parallel.pipeline_schedule=zero-bubble-v",
                                   "model.num_layers=4", f"memory.offload_gradients={place}", "run.out=new"))
        self.refuse(USAGE, ["memory.disk_units = 2: must be 0 or at least 3 (try 3)"], "config", "check", self.config,
                    *self.on_disk("memory.disk_units=2"))
        self.refuse(USAGE, ["memory.disk_transfer_bytes = 5000: must be a power of two (try 4096)"],
                    "config", "check", self.config, *self.on_disk("memory.disk_transfer_bytes=5000"))
        for kind in ("muon", "adafactor"):
            self.refuse(USAGE, ["memory.offload_gradients", kind, "which replaces the gradients of all layers"], "config",
                        "check", self.config, *self.on_disk(f"optimizer.type={kind}", "memory.offload_gradients=disk"))
        self.refuse(USAGE, ["memory.offload_optimizer = \"host\"", "muon", "try \"none\""], "config", "check", self.config,
                    *overrides("optimizer.type=muon", "memory.offload_optimizer=host"))
        self.refuse(USAGE, ["memory.offload_parameters = \"host\": must be \"none\" or the value of memory.offload_opt"],
                    "config", "check", self.config, *self.on_disk("memory.offload_parameters=host"))

    def test_fit_takes_the_disk_only_if_memory_is_short(self):
        fitted = [*self.on_disk(), *overrides("memory.offload_optimizer=fit")]
        plenty = json.loads(self.succeed("train", self.config, "--dry-run", "--json", *fitted))
        self.assertNotIn("disk_moments_bytes", plenty)
        self.refuse(USAGE, ["memory.offload_gradients", "needs memory.offload_optimizer = "], "config", "check",
                    self.config, *fitted, *overrides("memory.offload_gradients=disk"))
        self.refuse(USAGE, ["memory.offload_parameters = \"disk\": must be \"none\" or the value of memory.offload_opt",
                            "try \"fit\""],
                    "config", "check", self.config, *fitted, *overrides("memory.offload_parameters=disk"))

    def test_the_host_is_a_place_for_gpus_only(self):
        host = overrides("memory.offload_optimizer=host", "run.out=new")
        self.refuse(USAGE, ["memory.offload_optimizer = \"host\": "], "train", self.config, *host)
        self.assertFalse((self.folder / "new").exists())
        plan = json.loads(self.succeed("train", self.config, *host, "--dry-run", "--target", "a100-80g", "--json"))
        self.assertNotIn("a run on a GPU refuses it", "\n".join(plan.get("warnings", [])))
        for kind, refused in (("lamb", False), ("adafactor", True)):
            other = json.loads(self.succeed("train", self.config, *host, *overrides(f"optimizer.type={kind}"),
                                            "--dry-run", "--target", "a100-80g", "--json"))
            self.assertEqual("a run on a GPU refuses it" in "\n".join(other.get("warnings", [])), refused)
        self.assertGreaterEqual(plan["host_moments_bytes"], 8 * plan["total_parameters"])
        self.assertEqual(plan["moments_bytes"], 0)
        self.assertEqual([need["values"] for need in plan["bandwidths"]],
                         ["parameters, gradients", "optimizer state", "inputs of blocks"])
