"""Checkpoints: resuming, damaged and foreign ones, `checkpoint inspect|verify|export`, and `generate`."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from cli_case import (CHECKPOINT, EXECUTABLE, FINISHED, TIMEOUT_SECONDS, USAGE, CliCase, not_of_some_cases, overrides,
                      overwrite)

RANK_FILE = "rank-00000.safetensors"


class CheckpointCase(CliCase):
    """Starts from a run of 6 steps with checkpoints at steps 2, 4 and 6, which is made once and copied."""

    _template = None
    config = "run.json"

    def setUp(self):
        super().setUp()
        if CheckpointCase._template is None:
            self.write_run(model={"dropout": 0.1}, checkpoint={"every_steps": 2, "keep_last": 3})
            self.train(self.config)
            CheckpointCase._template = tempfile.TemporaryDirectory(prefix="gptrain-cli-")
            shutil.copytree(self.folder, CheckpointCase._template.name, dirs_exist_ok=True)
        else:
            shutil.copytree(CheckpointCase._template.name, self.folder, dirs_exist_ok=True)

    def damage_data(self, step):
        """Flips a bit of the last tensor's last element."""
        file = self.checkpoint(step) / RANK_FILE
        data = file.read_bytes()
        overwrite(file, len(data) - 1, bytes([data[-1] ^ 1]))

    def truncate(self, step, name):
        file = self.checkpoint(step) / name
        file.write_bytes(file.read_bytes()[:-10])

    def damage_manifest(self, step):
        file = self.checkpoint(step) / "manifest.json"
        file.write_text(file.read_text(encoding="utf-8").replace('"samples": ', '"samples": 1'), encoding="utf-8")


class Resume(CheckpointCase):
    def test_latest_starts_from_scratch_where_there_is_none(self):
        for arguments in (["--resume"], ["--resume", "latest"]):
            with self.subTest(arguments=arguments):
                out = self.train(self.config, *overrides(f"run.out=new{len(arguments)}"), *arguments)
                self.assertIn("starting from scratch", out)
                self.assert_same_steps(self.records(f"new{len(arguments)}"), self.records())

    def test_checkpoints_that_were_lost(self):
        """A launcher that starts the run again learns that its steps are made once more."""
        shutil.rmtree(self.path("out/checkpoints"))
        result = self.run_gptrain("train", self.config, "--resume", "latest", "--steps", "1")
        self.assertEqual(result.code, FINISHED, result.err)
        self.assertIn("warning: an earlier run in out made 6 steps (see metrics.jsonl.old-1) and has no checkpoint there: "
                      "this one starts at step 0\n", result.err)
        self.assertEqual([record["step"] for record in self.records()], [1])

    def test_latest_is_the_newest(self):
        out = self.train(self.config, "--resume", "latest", *overrides("run.steps=8"))
        self.assertIn("resumed from out/checkpoints/step-00000006 (step 6)", out)
        self.assertEqual([record["step"] for record in self.records()], list(range(1, 9)))
        self.assertEqual(self.checkpoint_steps(), [4, 6, 8])

    def test_an_older_one_repeats_the_steps_after_it(self):
        before = self.records()
        shutil.copytree(self.checkpoint(6), self.path("first"))
        out = self.train(self.config, "--resume", "out/checkpoints/step-00000002", "--steps", "2")
        self.assertIn("resumed from out/checkpoints/step-00000002 (step 2)", out)
        for step in (4, 6):
            self.assertIn(f"later checkpoint set aside: step-0000000{step}.abandoned", out)
        # The abandoned checkpoints remain until the run reaches their steps again.
        folder = self.path("out") / "checkpoints"
        self.assertEqual([path.name for path in folder.glob("*.abandoned")], ["step-00000006.abandoned"])
        self.train(self.config, "--resume")
        self.assertEqual(list(folder.glob("*abandoned*")), [])
        self.assert_same_steps(self.records(), before)
        self.assert_same_checkpoint(self.checkpoint(6), self.path("first"))

    def test_what_is_drawn_by_sample_is_drawn_again(self):
        lossy = overrides('memory.linear_projection={"kind":"gauss","share":0.5}', "memory.saved_inputs=8", "run.out=lossy")
        self.train(self.config, *lossy)
        shutil.copytree(self.checkpoint(6, "lossy"), self.path("first"))
        self.train(self.config, *lossy, "--resume", "lossy/checkpoints/step-00000002")
        self.assert_same_checkpoint(self.checkpoint(6, "lossy"), self.path("first"))

    def test_metrics_after_the_checkpoint_are_dropped(self):
        before = self.records()
        with open(self.path("out") / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({**before[-1], "step": 7}) + '\n{"step": 8, "lo')
        self.train(self.config, "--resume", *overrides("run.steps=7"))
        self.train(self.config, *overrides("run.out=whole", "run.steps=7"))
        self.assert_same_steps(self.records(), self.records("whole"))

    def test_a_killed_run_repeats_what_it_had_not_saved(self):
        process = self.start("train", self.config,
                             *overrides("run.out=killed", "run.steps=100000000", "checkpoint.every_steps=5"))
        # The save of step 15 begins when that of step 10, which runs beside the steps, has ended.
        self.wait_until(lambda: process.stdout.readline().startswith("step 18/"), process)
        process.kill()
        process.wait()
        newest = self.checkpoint_steps("killed")[-1]
        self.assertGreaterEqual(newest, 10)
        out = self.train(self.config, "--resume", *overrides("run.out=killed", f"run.steps={newest + 2}"))
        self.assertIn(f"(step {newest})", out)
        self.train(self.config, *overrides("run.out=whole", f"run.steps={newest + 2}"))
        self.assert_same_steps(self.records("killed"), self.records("whole"))
        self.assert_same_checkpoint(self.checkpoint(newest + 2, "killed"), self.checkpoint(newest + 2, "whole"))

    def test_a_manifest_that_cannot_be_read_is_no_reason_for_an_older_state(self):
        manifest = self.checkpoint(6) / "manifest.json"
        manifest.unlink()
        older = "the checkpoint before it: out/checkpoints/step-00000004"
        gone = ["out/checkpoints/step-00000006 is not a complete checkpoint: it has no manifest.json", older]
        self.refuse(CHECKPOINT, [*gone, "--resume DIR"], "train", self.config, "--resume")
        for command in (["checkpoint", "verify", "out"], ["checkpoint", "inspect", "out"],
                        ["checkpoint", "export", "out", "--hf", "hf"], ["generate", "--checkpoint", "out", "--prompt", "x"]):
            self.refuse(CHECKPOINT, gone[:1], *command)
        self.refuse(CHECKPOINT, ["no manifest.json"], "checkpoint", "verify", "out/checkpoints/step-00000008")
        # The superuser ignores a file's permissions; a folder in its place cannot be read by anybody.
        manifest.mkdir()
        self.refuse(CHECKPOINT, ["out/checkpoints/step-00000006/manifest.json is not a regular file", older],
                    "train", self.config, "--resume")
        self.assertEqual(self.checkpoint_steps(), [2, 4, 6])
        self.assertIn("(step 4)", self.train(self.config, "--resume", "out/checkpoints/step-00000004"))

    def test_a_new_run_is_refused_where_steps_lie_that_cannot_be_read(self):
        for step in (2, 4, 6):
            (self.checkpoint(step) / "manifest.json").unlink()
        self.refuse(USAGE, "run.out = out: holds checkpoints up to step 6", "train", self.config)
        self.assertEqual(self.checkpoint_steps(), [2, 4, 6])

    def test_a_folder_without_a_checkpoint(self):
        self.path("bare").mkdir()
        for name in ["absent", "bare", "run.json"]:
            with self.subTest(name=name):
                self.refuse(CHECKPOINT, [f"{name}: neither a checkpoint (no manifest.json) nor a run's folder"],
                            "train", self.config, "--resume", name)

    def test_a_folder_may_be_named_in_several_ways(self):
        for name in ["out/checkpoints/step-00000006/", "./out/checkpoints/../checkpoints/step-00000006", "out", "out/",
                     self.checkpoint(6)]:
            with self.subTest(name=name):
                self.assertIn("nothing to do: step 6 of 6 is done", self.train(self.config, "--resume", name))

    def test_the_checkpoint_of_another_run(self):
        self.train(self.config, *overrides("run.out=other"))
        foreign = "other/checkpoints/step-00000002"
        self.refuse(USAGE, ["run.out = out", "holds checkpoints of another run than", "another run.out"],
                    "train", self.config, "--resume", foreign)
        self.assertEqual(self.checkpoint_steps(), [2, 4, 6])
        self.assertIn("(step 2)", self.train(self.config, "--resume", foreign, *overrides("run.out=new")))
        self.assert_same_checkpoint(self.checkpoint(6, "new"), self.checkpoint(6))

    def test_another_model_is_refused(self):
        for setting, was, now in [
            ("model.num_layers", 1, 2), ("model.hidden_size", 8, 16), ("model.num_heads", 2, 4),
            ("model.vocab_size", 257, 300), ("model.sequence_length", 16, 8), ("model.qk_norm", "false", "true"),
            ("model.norm", '"layernorm"', '"rmsnorm"'), ("run.seed", 1, 2),
            ("precision.compute", '"fp32"', '"bf16"'), ("optimizer.type", '"adamw"', '"lion"'),
        ]:
            with self.subTest(setting=setting):
                self.refuse(USAGE, ["cannot resume out/checkpoints/step-00000006 with this config",
                                    f"{setting}: {was} in the checkpoint, {now} in the config"],
                            "train", self.config, "--resume", *overrides(f"{setting}={now}", "run.steps=8"))
        self.assertEqual([record["step"] for record in self.records()], list(range(1, 7)))
        self.assertEqual(self.checkpoint_steps(), [2, 4, 6])

    def test_what_may_change(self):
        self.write_corpus("moved")
        out = self.train(self.config, "--resume", *overrides(
            "run.steps=8", "optimizer.lr=0.001", "schedule.type=cosine", "schedule.min_lr=0.0001",
            "checkpoint.every_steps=1", "log.every_steps=2", "memory.recompute=block", "memory.loss_chunk_tokens=64",
            'data.train=[{"path": "moved"}]', 'data.validation=[{"path": "corpus"}]'))
        self.assertIn("done: step 8", out)
        self.assertEqual(self.records()[-1]["step"], 8)


class Pure(CheckpointCase):
    """Weights in bf16 without master weights."""

    def test_the_weights_are_saved_as_they_are_and_gone_on_with(self):
        pure = overrides("precision.compute=bf16-pure")
        self.train(self.config, *pure, *overrides("run.out=whole"))
        self.train(self.config, *pure, *overrides("run.out=part"), "--steps", "3")
        self.train(self.config, *pure, *overrides("run.out=part"), "--resume")
        self.assert_same_steps(self.records("part"), self.records("whole"))
        self.assert_same_checkpoint(self.checkpoint(6, "part"), self.checkpoint(6, "whole"))
        self.assertLess(self.records("whole")[-1]["loss"], self.records("whole")[0]["loss"])
        self.assertIn("sound", self.succeed("checkpoint", "verify", "whole"))
        self.assertRegex(self.succeed("checkpoint", "inspect", "whole"), r"(?m)^precision +bf16-pure$")
        text = self.succeed("checkpoint", "inspect", "whole")
        for pattern in [r"(?m)^weight/embedding\.token +\[257, 8\] +bf16 +1$", r"(?m)^exp_avg/embedding\.token .* f32 +1$",
                        r"(?m)^weight/blocks\.0\.norm1\.weight +\[8\] +f32 +1$"]:
            self.assertRegex(text, pattern)
        # The random bits for gradient sums are also those of an uninterrupted run.
        narrow = [*pure, *overrides("precision.gradients=bf16", "run.out=narrow")]
        self.train(self.config, *narrow, "--steps", "3")
        self.train(self.config, *narrow, "--resume")
        self.train(self.config, *narrow, *overrides("run.out=unbroken"))
        self.assert_same_steps(self.records("narrow"), self.records("unbroken"))
        self.assert_same_checkpoint(self.checkpoint(6, "narrow"), self.checkpoint(6, "unbroken"))
        self.assertNotEqual(self.records("narrow")[-1]["loss"], self.records("whole")[-1]["loss"])
        self.refuse(USAGE, ['precision.compute: "bf16-pure" in the checkpoint, "bf16" in the config'],
                    "train", self.config, "--resume", *overrides("run.out=whole", "precision.compute=bf16"))
        generated = self.succeed("generate", "--checkpoint", "whole", "--prompt", "ab", "--tokens", "9")
        self.assertTrue(generated.startswith("ab"), generated)
        tensors = {}
        for dtype in ("fp32", "bf16"):
            self.succeed("checkpoint", "export", "whole", "--hf", f"hf-{dtype}", "--dtype", dtype)
            data = (self.path(f"hf-{dtype}") / "model.safetensors").read_bytes()
            end = 8 + int.from_bytes(data[:8], "little")
            first, last = json.loads(data[8:end])["transformer.wte.weight"]["data_offsets"]
            tensors[dtype] = data[end + first:end + last]
        # The floats have only upper halves.
        halves = [tensors["fp32"][i:i + 2] for i in range(0, len(tensors["fp32"]), 2)]
        self.assertEqual(set(halves[0::2]), {b"\0\0"})
        self.assertEqual(b"".join(halves[1::2]), tensors["bf16"])


class Damage(CheckpointCase):
    def damages(self):
        return {
            "data": (self.damage_data, [RANK_FILE, "is damaged", "checksum"]),
            "truncated data": (lambda step: self.truncate(step, RANK_FILE), [RANK_FILE, "is damaged", "bytes"]),
            "no data": (lambda step: (self.checkpoint(step) / RANK_FILE).unlink(),
                        [RANK_FILE, "No such file or directory"]),
            "manifest": (self.damage_manifest, ["manifest.json cannot be used", "checksum"]),
            "truncated manifest": (lambda step: self.truncate(step, "manifest.json"),
                                   ["manifest.json cannot be used", "checksum"]),
        }

    @not_of_some_cases
    def test_the_newest_is_reported_and_the_one_before_is_used_only_when_asked(self):
        older = "out/checkpoints/step-00000004"
        shutil.copytree(self.path("out"), self.path("sound"))
        for name, (damage, messages) in self.damages().items():
            with self.subTest(damage=name):
                shutil.rmtree(self.path("out"))
                shutil.copytree(self.path("sound"), self.path("out"))
                damage(6)
                said = ["step-00000006", *messages, f"the checkpoint before it: {older}"]
                self.refuse(CHECKPOINT, [*said, "--resume DIR"], "train", self.config, "--resume")
                self.assertNotIn("--resume", self.refuse(CHECKPOINT, said, "checkpoint", "verify", "out"))
                self.assertEqual(self.checkpoint_steps(), [2, 4, 6])
                self.assertIn(f"resumed from {older} (step 4)", self.train(self.config, "--resume", older))
                self.assert_same_steps(self.records(), self.records("sound"))
                self.assert_same_checkpoint(self.checkpoint(6), self.checkpoint(6, "sound"))

    def test_data_are_read_once_when_they_are_loaded(self):
        """A config that cannot resume is refused before any data are read."""
        self.damage_data(6)
        self.refuse(USAGE, "run.seed: 1 in the checkpoint, 2 in the config", "train", self.config, "--resume",
                    *overrides("run.seed=2"))
        metrics = (self.path("out") / "metrics.jsonl").read_bytes()
        for ranks in (1, 2):
            error = self.refuse(CHECKPOINT, [RANK_FILE, "is damaged", "the checkpoint before it: out/checkpoints/step-00000004 "
                                             "(--resume DIR goes on from the checkpoint DIR)"],
                                "train", self.config, "--resume", "--ranks", ranks)
            self.assertEqual(error.count("gptrain: "), 1, error)
        self.assertEqual((self.path("out") / "metrics.jsonl").read_bytes(), metrics)

    def test_a_damaged_older_one_is_not_proposed(self):
        self.damage_data(6)
        self.damage_manifest(4)
        error = self.refuse(CHECKPOINT, "the checkpoint before it: out/checkpoints/step-00000002", "train", self.config,
                            "--resume")
        self.assertNotIn("step-00000004", error)

    def test_the_only_one(self):
        for step in (2, 4):
            shutil.rmtree(self.checkpoint(step))
        self.damage_data(6)
        self.refuse(CHECKPOINT, "there is no older checkpoint in this run", "train", self.config, "--resume")

    def test_no_command_uses_a_damaged_one(self):
        self.damage_data(6)
        self.refuse(CHECKPOINT, "is damaged", "train", self.config, "--resume", "out/checkpoints/step-00000006")
        self.truncate(6, RANK_FILE)
        self.refuse(CHECKPOINT, "is damaged", "checkpoint", "inspect", "out")
        result = self.run_gptrain("generate", "--checkpoint", "out", "--prompt", "x")
        self.assertEqual(result.code, CHECKPOINT)
        self.assertIn("is damaged", result.err)
        self.assertEqual(result.out, "", "text before the checkpoint is known to be sound")


class Inspect(CheckpointCase):
    def test_by_run_or_by_folder(self):
        for path in ["out", "out/checkpoints/step-00000006", "out/checkpoints/step-00000006/"]:
            with self.subTest(path=path):
                text = self.succeed("checkpoint", "inspect", path)
                for pattern in [r"(?m)^step +6 \(6 updates, 0 skipped\)$", r"(?m)^samples +24$",
                                r"(?m)^parameters +3,072$", r"(?m)^weight/embedding\.token +\[257, 8\] +f32 +1$"]:
                    self.assertRegex(text, pattern)
        self.assertRegex(self.succeed("checkpoint", "inspect", "out/checkpoints/step-00000002"), r"step +2 ")

    def test_verify(self):
        self.assertEqual(self.succeed("checkpoint", "verify", "out"), "out/checkpoints/step-00000006: sound\n")
        (self.checkpoint(6) / "manifest.json").unlink()
        self.refuse(CHECKPOINT, "step-00000006 is not a complete checkpoint", "checkpoint", "verify", "out")

    def test_where_there_is_none(self):
        for command in ("inspect", "verify"):
            self.refuse(CHECKPOINT, "absent: neither a checkpoint", "checkpoint", command, "absent")

    def test_the_file_is_safetensors(self):
        data = (self.checkpoint(6) / RANK_FILE).read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        entry = header["weight/embedding.token"]
        self.assertEqual((entry["dtype"], entry["shape"]), ("F32", [257, 8]))
        place = json.loads(header["__metadata__"]["weight/embedding.token"])
        self.assertEqual((place["global_shape"], place["offset"]), ([257, 8], [0, 0]))

    def test_retention(self):
        self.train(self.config, *overrides("run.out=kept", "run.steps=10", "checkpoint.every_steps=1",
                                           "checkpoint.keep_last=2", "checkpoint.keep_every=4"))
        self.assertEqual(self.checkpoint_steps("kept"), [4, 8, 9, 10])


class Room(CliCase):
    def test_a_disk_that_will_be_full_is_warned_of(self):
        if shutil.disk_usage(self.folder).free > 9e12:
            self.skipTest("a disk that holds a million checkpoints")
        config = self.write_run(model={"hidden_size": 256}, run={"steps": 10**9},
                                checkpoint={"every_steps": 1, "keep_last": 10**6})
        result = self.run_gptrain("train", config, "--steps", "1")
        self.assertEqual(result.code, FINISHED, result.err)
        self.assertRegex(result.err, r"\nwarning: run\.out = out: [\d.]+ \w+ are free there, but 1,000,001 checkpoints "
                         r"of 9\.\d MiB will take 9\.\d TiB \(checkpoint\.keep_last = 1000000, and the one being "
                         r"written\)\n$")
        result = self.run_gptrain("train", config, "--resume", "--steps", "1")
        self.assertIn("but 1,000,000 more checkpoints of 9.", result.err)
        # A shorter run needs less room.
        self.assertEqual(self.run_gptrain("train", config, "--resume", *overrides("run.steps=3")).err, "")

    def test_a_disk_without_room_for_one_is_refused(self):
        """Uses a disk of 32 KiB, mounted in a namespace of its own."""
        self.path("disk").mkdir()
        mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                 'mount -t tmpfs -o size=32k tmpfs disk && mkdir -p disk/out/checkpoints/.tmp-step-00000002 && '
                 'head -c 16k /dev/zero >disk/out/checkpoints/.tmp-step-00000002/cut-short && "$@"; code=$?; '
                 'find disk -mindepth 1 | sort; exit $code', "sh"]
        if shutil.which("unshare") is None or subprocess.run([*mount, "true"], cwd=self.folder, capture_output=True,
                                                             check=False).returncode != 0:
            self.skipTest("no mount namespaces here")
        config = self.write_run()
        for ranks in ([], ["--ranks", "2"]):
            with self.subTest(ranks=ranks):
                done = subprocess.run([*mount, EXECUTABLE, "train", config, *overrides("run.out=disk/out"), *ranks],
                                      cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
                                      check=False)
                self.assertEqual(done.returncode, CHECKPOINT, done.stderr)
                # Leftovers of an interrupted save do not count as lost room.
                self.assertRegex(done.stderr, r"^gptrain: run\.out = disk/out: a checkpoint takes 3\d\.\d KiB, and "
                                 r"32\.0 KiB are free there: free space, or choose another run\.out\n$")
                self.assertEqual(done.stdout, "disk/out\ndisk/out/checkpoints\n")


class Snapshot(CliCase):
    def test_its_memory_is_there_from_the_start(self):
        """Snapshot memory exists before the first save, which these runs never reach: their last save copies nothing.
        """
        config = self.write_run(model={"num_layers": 2, "hidden_size": 512}, checkpoint={"every_steps": 1000})
        peaks = []
        for asynchronous in ("false", "true"):
            process = self.start("train", config, "--steps", "1",
                                 *overrides(f"run.out=out-{asynchronous}", f"checkpoint.asynchronous={asynchronous}"))
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, FINISHED)
            peaks.append(usage.ru_maxrss * 1024)
        parameters = 12 * 512 * 512 * 2
        self.assertGreater(peaks[1] - peaks[0], 0.9 * 12 * parameters)


class Export(CheckpointCase):
    def header(self, name):
        data = (self.path(name) / "model.safetensors").read_bytes()
        return json.loads(data[8:8 + int.from_bytes(data[:8], "little")])

    def test_a_folder_as_transformers_reads_it(self):
        out = self.succeed("checkpoint", "export", "out", "--hf", "hf")
        self.assertIn("hf: GPT2LMHeadModel, 16 tensors, 3,072 parameters in fp32 (", out)
        self.assertEqual(sorted(path.name for path in self.path("hf").iterdir()), ["config.json", "model.safetensors"])
        config = json.loads((self.path("hf") / "config.json").read_text(encoding="utf-8"))
        self.assertEqual(config["architectures"], ["GPT2LMHeadModel"])
        self.assertEqual((config["n_embd"], config["resid_pdrop"]), (8, 0.1))
        entry = self.header("hf")["transformer.h.0.mlp.c_fc.weight"]
        self.assertEqual((entry["dtype"], entry["shape"]), ("F32", [8, 32]))
        self.assertFalse(list(self.folder.glob(".tmp*")))

    def test_an_older_checkpoint_in_bf16(self):
        out = self.succeed("checkpoint", "export", "out/checkpoints/step-00000002", "--hf", "new/hf", "--dtype", "bf16")
        self.assertIn("in bf16 (", out)
        self.assertEqual(self.header("new/hf")["transformer.wte.weight"]["dtype"], "BF16")

    def test_an_existing_folder(self):
        self.path("hf").mkdir()
        self.refuse(USAGE, "--hf hf: already exists; name a folder that does not", "checkpoint", "export", "out", "--hf",
                    "hf")
        self.refuse(USAGE, "already exists", "checkpoint", "export", "out", "--hf", "run.json")
        self.assertEqual(list(self.path("hf").iterdir()), [])

    def test_arguments(self):
        self.refuse(USAGE, "--hf", "checkpoint", "export", "out")
        self.refuse(USAGE, "--dtype", "checkpoint", "export", "out", "--hf", "hf", "--dtype", "fp8")
        self.refuse(CHECKPOINT, "absent: neither a checkpoint", "checkpoint", "export", "absent", "--hf", "hf")

    def test_keys_that_no_class_has(self):
        self.train(self.config, *overrides("run.out=mixed", "run.steps=1", "model.norm=rmsnorm", "model.qk_norm=true"))
        error = self.refuse(USAGE, ["no Hugging Face class has this mix of config keys",
                                    'GPT2LMHeadModel: model.norm = "rmsnorm" (must be layernorm), '
                                    "model.qk_norm = true (must be false)",
                                    'Qwen3ForCausalLM: model.positions = "learned" (must be rope)'],
                            "checkpoint", "export", "mixed", "--hf", "hf")
        self.assertNotIn("internal error", error)
        self.assertFalse(self.path("hf").exists())

    def test_what_has_no_place(self):
        self.train(self.config, *overrides("run.out=z", "run.steps=1", "model.z_loss=0.001"))
        self.assertIn("left out: model.z_loss = 0.001, which acts in training only and has no place in a "
                      "GPT2LMHeadModel", self.succeed("checkpoint", "export", "z", "--hf", "hf"))

    def test_masks_of_documents_are_warned_of(self):
        self.train(self.config, *overrides("run.out=masked", "run.steps=1", "data.mask_documents=true"))
        result = self.run_gptrain("checkpoint", "export", "masked", "--hf", "hf")
        self.assertEqual((result.code, result.err.count("warning: ")), (FINISHED, 1))
        self.assertIn("data.mask_documents = true: a GPT2LMHeadModel attends to earlier documents, too", result.err)
        self.assertNotIn("warning", self.run_gptrain("checkpoint", "export", "out", "--hf", "unmasked").err)

    def test_a_damaged_checkpoint(self):
        file = self.checkpoint(6) / RANK_FILE
        data = file.read_bytes()
        header_bytes = int.from_bytes(data[:8], "little")
        first = json.loads(data[8:8 + header_bytes])["weight/blocks.0.ffn.in.weight"]["data_offsets"][0]
        overwrite(file, 8 + header_bytes + first, bytes([data[8 + header_bytes + first] ^ 1]))
        self.refuse(CHECKPOINT, [RANK_FILE, "weight/blocks.0.ffn.in.weight", "is damaged", "checksum"],
                    "checkpoint", "export", "out", "--hf", "hf")
        self.assertFalse(self.path("hf").exists())


class Generate(CheckpointCase):
    def generate(self, *arguments, checkpoint="out"):
        result = self.run_gptrain("generate", "--checkpoint", checkpoint, "--prompt", "ab", *arguments)
        self.assertEqual(result.code, 0, result.err)
        return result.out

    def test_same_seed_same_text(self):
        text = self.generate("--tokens", "40", "--seed", "3")
        self.assertTrue(text.startswith("ab") and text.endswith("\n"), text)
        self.assertEqual(self.generate("--tokens", "40", "--seed", "3"), text)
        self.assertNotEqual(self.generate("--tokens", "40", "--seed", "4"), text)
        self.assertEqual(self.generate("--tokens", "40", "--seed", "3",
                                       checkpoint="out/checkpoints/step-00000006"), text)

    def test_temperature_0_and_top_1_take_the_likeliest(self):
        text = self.generate("--tokens", "30", "--temperature", "0")
        for arguments in (["--temperature", "0", "--seed", "9"], ["--top-k", "1"], ["--top-k", "1", "--seed", "9"]):
            self.assertEqual(self.generate("--tokens", "30", *arguments), text)

    def test_longer_than_the_model_sees(self):
        self.assertGreater(len(self.generate("--tokens", "100", "--temperature", "0")), 16)

    def test_a_window_of_one_token_forgets_all_others(self):
        for name, settings in {"window": ["model.attention_window=1"],
                               "documents": ["data.mask_documents=true"]}.items():
            self.train(self.config, *overrides(f"run.out={name}", *settings))
        arguments = ["--tokens", "20", "--temperature", "0"]
        texts = {prompt: self.succeed("generate", "--checkpoint", "window", "--prompt", prompt, *arguments)
                 for prompt in ("ab", "xb")}
        self.assertEqual(texts["ab"][1:], texts["xb"][1:])
        self.assertTrue(self.generate(*arguments, checkpoint="documents").startswith("ab"))

    def test_layers_see_no_more_than_their_own_pattern(self):
        self.train(self.config, *overrides("run.out=layers", "model.num_layers=2",
                                           'model.attention_pattern=["band:1","band:2"]'))
        texts = {prompt: self.succeed("generate", "--checkpoint", "layers", "--prompt", prompt, "--tokens", "20",
                                      "--temperature", "0") for prompt in ("abc", "xbc")}
        self.assertEqual(texts["abc"][1:], texts["xbc"][1:])

    def test_a_checkpoint_that_cannot_be_used(self):
        self.refuse(CHECKPOINT, "absent: neither a checkpoint", "generate", "--checkpoint", "absent", "--prompt", "x")
        self.train(self.config, *overrides("run.out=other", "model.vocab_size=300"))
        result = self.run_gptrain("generate", "--checkpoint", "other", "--prompt", "x")
        self.assertEqual(result.code, USAGE)
        self.assertIn("holds no tokenizer for its vocabulary of 300: name it with --tokenizer", result.err)
        self.assertEqual(result.out, "", "text before the refusal")


if __name__ == "__main__":
    unittest.main()
