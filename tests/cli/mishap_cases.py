"""Mishaps of a run by machines, launchers and file systems: data that fail under it, signals, files that vanish."""
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from cli_case import (CHECKPOINT, DATA, DIVERGED, EXECUTABLE, FINISHED, REQUEUE, TIMEOUT_SECONDS, USAGE, CliCase,
                      overrides, overwrite, tiny_config, write_tokens)
from busy import slowness
from ports import free_port

ENDLESS = overrides("run.steps=100000000", "checkpoint.every_steps=0")
SECRET = {"GPTRAIN_SECRET": "a secret of 32 bytes or so......"}
SKIP = r'add (\{"first": \d+, "count": 1\}) to data.skip_samples to leave it out'
CLUSTER_VARIABLES = ("SLURM_", "PMI_", "OMPI_", "MPI_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_")


class Unreadable(CliCase):
    """An error of data saves the state first, and says how to go on."""

    def setUp(self):
        super().setUp()
        self.config = self.write_run(checkpoint={"every_steps": 0}, run={"steps": 40})
        overwrite(self.path("corpus.bin"), 2 * 1990, struct.pack("<H", 300))

    def check_saved(self, *arguments):
        result = self.run_gptrain("train", self.config, *arguments)
        self.assertEqual(result.code, DATA, result.err)
        self.assertRegex(result.err, r"gptrain: (rank 1 \(.*\): )?step \d+: .*corpus.bin, byte 3980: token 300 at position 1990 is outside "
                                     r"the vocabulary of 257 .*; sample \d+ of the order, in document 0 of corpus; " + SKIP)
        [step] = self.checkpoint_steps()
        self.assertIn(f"the state after step {step} is saved; go on with --resume latest", result.err)
        self.assertIn(f" step {step + 1}: ", result.err)
        self.assertEqual(self.records()[-1]["step"], step)
        skipped = result.err.split("add ")[1].split(" to data.skip_samples")[0]
        self.train(self.config, "--resume", "latest", *arguments, "--set", f"data.skip_samples=[{skipped}]")
        self.assertEqual(self.records()[-1]["step"], 40)
        return skipped

    def test_token_outside_the_vocabulary(self):
        skipped = self.check_saved()
        # The step that failed has left no trace: the run ends as one that has left out the sample from the beginning.
        self.train(self.config, "--set", "run.out=whole", "--set", f"data.skip_samples=[{skipped}]")
        self.assert_same_checkpoint(self.checkpoint(40), self.checkpoint(40, "whole"))

    def test_many_ranks(self):
        self.check_saved("--ranks", "2", "--set", "batch.micro=1")

    def test_validation(self):
        self.write_corpus("heldout")
        overwrite(self.path("heldout.bin"), 2 * 20, struct.pack("<H", 300))
        self.write_corpus()
        validated = self.write_config(tiny_config(data={"validation": [{"path": "heldout"}]},
                                                  run={"validation_samples": 8, "validate_every_steps": 4}), "validated.json")
        for arguments in ([], ["--ranks", "2", *overrides("batch.micro=1")]):
            shutil.rmtree(self.path("out"), ignore_errors=True)
            self.refuse(DATA, ["validation after step 4: ", "heldout.bin, byte 40: token 300",
                               "the state after step 4 is saved"], "train", validated, *arguments)
            self.assertEqual(self.checkpoint_steps(), [4])

    def test_found_beforehand(self):
        self.refuse(DATA, "byte 3980: token 300", "data", "verify", "corpus", "--vocabulary", "257")
        self.succeed("data", "verify", "corpus", "--vocabulary", "301")
        self.path("text.txt").write_text("some text\n" * 50, encoding="utf-8")
        self.succeed("data", "pack", "text.txt", "--out", "packed", "--tokenizer", "bytes", "--append-eod")
        self.assertEqual(json.loads(self.path("packed.meta.json").read_text(encoding="utf-8"))["largest_id"], 256)
        self.succeed("data", "join", "packed", "--out", "joined")
        self.assertEqual(json.loads(self.path("joined.meta.json").read_text(encoding="utf-8"))["largest_id"], 256)
        self.succeed("data", "convert", "corpus", "flat.npy")
        self.succeed("data", "convert", "flat.npy", "converted", "--to", "megatron")
        self.assertEqual(json.loads(self.path("converted.meta.json").read_text(encoding="utf-8"))["largest_id"], 300)
        self.write_config(tiny_config(data={"train": [{"path": "converted"}]}), "converted.json")
        words = "converted holds token 300, which is outside the vocabulary of 257"
        self.refuse(USAGE, words, "config", "check", "converted.json")
        self.refuse(DATA, words, "train", "converted.json")


class Diverged(CliCase):
    def test_the_last_before_the_loss_rose(self):
        config = self.write_run(checkpoint={"every_steps": 2, "keep_last": 9}, run={"steps": 8})
        self.train(config, "--steps", "4")
        self.train(config, "--resume", "latest", "--steps", "2", *overrides("optimizer.lr=10", "optimizer.clip_norm=0"))
        manifests = [json.loads((self.checkpoint(step) / "manifest.json").read_text(encoding="utf-8")) for step in (4, 6)]
        self.assertAlmostEqual(manifests[0]["loss"], self.records()[3]["loss"])
        self.assertGreater(manifests[1]["loss"], 10)
        result = self.run_gptrain("checkpoint", "verify", "out")
        self.assertIn("step-00000006: its files are whole and its numbers finite\n", result.out)
        self.assertIn("the run had diverged; the last one before it rose: out/checkpoints/step-00000004 (loss ", result.err)
        self.assertNotIn("diverged", self.run_gptrain("checkpoint", "verify", self.checkpoint(4)).err)
        resumed = self.run_gptrain("train", config, "--resume", "latest", *overrides("optimizer.lr=10", "optimizer.clip_norm=0"))
        self.assertIn("warning: the loss of out/checkpoints/step-00000006 is ", resumed.err)
        # Where no earlier checkpoint is left, the lowest loss of the run tells it, or one far above that of guesses.
        for step in (2, 4, 8):
            shutil.rmtree(self.checkpoint(step), ignore_errors=True)
        result = self.run_gptrain("checkpoint", "verify", "out")
        self.assertIn(f"the run had diverged; earlier checkpoints of its run had reached {manifests[1]['lowest_loss']:.4f}\n", result.err)
        self.train(config, "--steps", "2", *overrides("optimizer.lr=10", "optimizer.clip_norm=0", "run.out=first"))
        result = self.run_gptrain("checkpoint", "verify", "first")
        self.assertIn("the run had diverged; a model that has learned nothing has a loss of 5.5491\n", result.err)

    def test_the_last_before_the_loss_rose_is_kept(self):
        config = self.write_run(checkpoint={"every_steps": 1, "keep_last": 2}, run={"steps": 8})
        self.train(config, "--steps", "3")
        self.assertEqual(self.checkpoint_steps(), [2, 3])
        self.train(config, "--resume", "latest", *overrides("optimizer.lr=10", "optimizer.clip_norm=0"))
        good, *newest = self.checkpoint_steps()
        self.assertEqual(newest, [7, 8])
        losses = [record["loss"] for record in self.records()]
        self.assertLess(losses[good - 1], 1.5 * min(losses) + 0.1)
        self.assertGreater(min(losses[good:]), 8)
        self.assertEqual(self.succeed("checkpoint", "prune", "out", "--keep-last", "1"), "out: 1 checkpoint removed, 2 kept\n"
                         f"out/checkpoints/step-{good:08} is kept: it is the last one before the loss rose\n")

    def test_a_validation_that_is_not_finite(self):
        """The last step whose own loss is finite ends the run: only the validation after it shows the damage."""
        self.write_corpus("heldout")
        config = self.write_run(data={"validation": [{"path": "heldout"}]}, run={"validation_samples": 4})
        explodes = overrides("optimizer.lr=10", "optimizer.weight_decay=10", "checkpoint.every_steps=1", "run.max_skipped_steps=0")
        self.refuse(DIVERGED, "training diverged", "train", config, *explodes, *overrides("run.steps=50", "run.out=whole"))
        last = self.records("whole")[-1]["step"] - 1
        error = self.refuse(DIVERGED, f"gptrain: training diverged: the validation loss after the last step, {last}, is not finite; "
                            "earlier checkpoints in out/checkpoints are kept; the last one before the loss rose is of step 1, with ",
                            "train", config, *explodes, *overrides(f"run.steps={last}"))
        self.assertIn(f"warning: the validation loss after step {last} is not finite: the state is damaged; ", error)
        self.assertEqual(json.loads((self.checkpoint(last) / "manifest.json").read_text(encoding="utf-8"))["loss"], None)
        self.assertIn(1, self.checkpoint_steps())
        # A launcher that starts it again finds nothing to do, and no run that has finished well.
        again = self.refuse(DIVERGED, f"gptrain: training diverged: the validation loss after the last step, {last}, is not finite; ",
                            "train", config, *explodes, *overrides(f"run.steps={last}"), "--resume", "latest")
        self.assertNotIn("nothing to do", again)

    def import_overflowing_row(self, config, tensor, values):
        """Makes a checkpoint `imported` whose row 250 of the vocabulary, which no token reads, begins with large values."""
        self.train(config, "--steps", "1")
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        file = self.path("hf/model.safetensors")
        [header_bytes] = struct.unpack("<Q", file.read_bytes()[:8])
        begin, _ = json.loads(file.read_bytes()[8:8 + header_bytes])[tensor]["data_offsets"]
        overwrite(file, 8 + header_bytes + begin + 4 * 8 * 250, struct.pack(f"<{values}f", *[3e38] * values))
        self.succeed("checkpoint", "import", "--hf", "hf", "imported")

    def test_a_validation_that_is_not_finite_during_a_run(self):
        """Later checkpoints do not push out the last good one, and say so, until a validation is finite again."""
        config = self.write_run(model={"tied_head": False}, data={"validation": [{"path": "heldout"}]}, optimizer={"weight_decay": 0},
                                checkpoint={"every_steps": 1, "keep_last": 1}, run={"steps": 6, "validation_samples": 4, "validate_every_steps": 3})
        self.write_corpus("sound")
        write_tokens(self.path("heldout"), [250] * 2000)
        self.import_overflowing_row(config, "transformer.wte.weight", 8)
        shutil.rmtree(self.path("out"))
        self.refuse(DIVERGED, "the validation loss after the last step, 6, is not finite; ", "train", config, "--init-from", "imported")
        self.assertEqual(self.checkpoint_steps(), [2, 5, 6])
        manifests = [json.loads((self.checkpoint(step) / "manifest.json").read_text(encoding="utf-8")) for step in (2, 5)]
        self.assertEqual([manifests[1]["loss"], manifests[1]["lowest_loss"]], [None, manifests[0]["loss"]])
        self.refuse(DIVERGED, "step, 8, is not finite; ", "train", config, "--resume", "latest", "--steps", "2", *overrides("run.steps=9"))
        self.assertEqual(self.checkpoint_steps(), [2, 7, 8])
        self.train(config, "--resume", "latest", *overrides("run.steps=9", 'data.validation=[{"path": "sound"}]'))
        self.assertEqual(self.checkpoint_steps(), [9])

    def test_a_state_that_is_not_finite_is_not_saved(self):
        """A row of the vocabulary that no token reads overflows: no loss shows it."""
        model = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False, "tied_head": False}
        config = self.write_run(model=model, optimizer={"weight_decay": 10}, checkpoint={"every_steps": 1})
        self.import_overflowing_row(config, "model.embed_tokens.weight", 1)
        for name, way in (("beside", overrides("checkpoint.asynchronous=true")), ("waits", overrides("checkpoint.asynchronous=false")),
                          ("ranks", ["--ranks", "2", *overrides("batch.micro=1", "parallel.zero=1")]), ("end", ["--steps", "1"])):
            error = self.refuse(DIVERGED, ["gptrain: training diverged: the state after step 1 is not saved: ",
                                           '1 number of tensor "weight/embedding.token" are not finite; no checkpoint was saved before'],
                                "train", config, "--init-from", "imported", *way, *overrides("optimizer.lr=10", f"run.out={name}"))
            self.assertEqual(error.count("gptrain: "), 1, error)
            self.assertEqual(self.checkpoint_steps(name), [])


class Signals(CliCase):
    def stop_by(self, *numbers):
        shutil.rmtree(self.path("out"), ignore_errors=True)
        process = self.start("train", self.write_run(), *ENDLESS)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        for number in numbers:
            process.send_signal(number)
        out, error = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, REQUEUE, error)
        self.assertEqual(len(self.checkpoint_steps()), 1)
        return out

    def test_announcements(self):
        for number, name in ((signal.SIGUSR2, "SIGUSR2"), (signal.SIGXCPU, "SIGXCPU")):
            self.assertIn(f"stopped by {name} after step ", self.stop_by(number))
        self.stop_by(signal.SIGXCPU, signal.SIGXCPU, signal.SIGUSR2)


class Launchers(CliCase):
    def start_ranks(self, config, variables, *arguments, ranks=2):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(CLUSTER_VARIABLES)}
        processes = []
        for rank in range(ranks):
            of_rank = {name: value.replace("{rank}", str(rank)) for name, value in variables.items()}
            own = [word.replace("{rank}", str(rank)) for word in (config, *arguments)]
            processes.append(subprocess.Popen([EXECUTABLE, "train", *own], cwd=self.folder, text=True,
                                              env={**clean, **SECRET, **of_rank}, stdin=subprocess.DEVNULL,
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            self.addCleanup(self._end, processes[-1])
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS) for process in processes]
        return [process.returncode for process in processes], outputs

    def test_other_mpi(self):
        variables = {"PMI_RANK": "{rank}", "PMI_SIZE": "2", "MPI_LOCALRANKID": "{rank}", "MPI_LOCALNRANKS": "2",
                     "PMI_JOBID": str(os.getpid()), "MASTER_PORT": str(free_port())}
        config = self.write_run(batch={"global": 4, "micro": 1})
        codes, outputs = self.start_ranks(config, variables, "--steps", "3")
        self.assertEqual(codes, [FINISHED] * 2, outputs)
        self.assertIn("2 ranks: ", outputs[0][0])
        variables.pop("MPI_LOCALNRANKS")
        codes, outputs = self.start_ranks(config, variables, "--steps", "3")
        self.assertEqual(codes, [USAGE] * 2, outputs)
        self.assertIn("PMI_RANK=0 and PMI_SIZE=2: started by MPICH or Intel MPI", outputs[0][1])

    def test_torchrun_whose_agent_has_the_port(self):
        with socket.create_server(("", 0)) as agent:
            variables = {"RANK": "{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "{rank}", "LOCAL_WORLD_SIZE": "2",
                         "MASTER_ADDR": "localhost", "MASTER_PORT": str(agent.getsockname()[1]),
                         "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
            codes, outputs = self.start_ranks(self.write_run(batch={"micro": 1}), variables, "--steps", "3",
                                              *overrides("comm.timeout_seconds=20"))
        self.assertEqual(codes, [FINISHED] * 2, outputs)

    def test_brackets(self):
        if not Path("/proc/net/if_inet6").exists() or not Path("/proc/net/if_inet6").read_text(encoding="ascii"):
            self.skipTest("no IPv6")
        variables = {"RANK": "{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": "[::1]", "MASTER_PORT": str(free_port())}
        codes, outputs = self.start_ranks(self.write_run(batch={"micro": 1}), variables, "--steps", "2",
                                          *overrides("comm.timeout_seconds=20"))
        self.assertEqual(codes, [FINISHED] * 2, outputs)

    def test_each_machine_names_its_own_interface(self):
        variables = {"RANK": "{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self.write_corpus()
        for rank, interface in enumerate(("lo", "127.0.0.1")):
            self.write_config(tiny_config(batch={"micro": 1}, comm={"interface": interface}, run={"steps": 2}), f"{rank}.json")
        codes, outputs = self.start_ranks("{rank}.json", variables)
        self.assertEqual(codes, [FINISHED] * 2, outputs)

    def test_tasks_without_srun(self):
        variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
        codes, outputs = self.start_ranks(self.write_run(), variables, "--steps", "2", ranks=1)
        self.assertEqual(codes, [FINISHED])
        self.assertIn("warning: this job has 4 tasks (SLURM_NTASKS), but this run has one rank: start it with srun",
                      outputs[0][1])

    def test_a_fault_of_the_mesh_is_one_of_the_config(self):
        variables = {"RANK": "{rank}", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        codes, outputs = self.start_ranks(self.write_run(), variables, *overrides("parallel.tensor=2"), ranks=3)
        self.assertEqual(codes, [USAGE] * 3, outputs)

    def test_a_rank_that_waits_takes_a_signal(self):
        config = self.write_run()
        processes = [subprocess.Popen([EXECUTABLE, "train", config], cwd=self.folder, text=True, stderr=subprocess.PIPE,
                                      env={**os.environ, **SECRET, "RANK": str(rank), "WORLD_SIZE": "2",
                                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}) for rank in (0, 1)]
        for rank, process in enumerate(processes):
            self.addCleanup(self._end, process)
            line = process.stderr.readline()
            self.assertIn("waits for rank 1" if rank == 0 else "waits for rank 0 at 127.0.0.1 port ", line)
            process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=5 * slowness())
            self.assertEqual(process.returncode, REQUEUE, error)
            self.assertIn("was stopped by a signal while it waited for rank", error)
            self.assertIn("nothing was begun", error)


class Output(CliCase):
    def test_pipe_that_is_not_ready(self):
        config = self.write_run(run={"steps": 2000})
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(writer, False)
        process = subprocess.Popen([EXECUTABLE, "train", config], cwd=self.folder, stdout=writer, stderr=subprocess.PIPE)
        self.addCleanup(self._end, process)
        os.close(writer)
        # A line more has no room.
        unread = lambda: int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)
        self.wait_until(lambda: unread() > 3950, process)
        time.sleep(0.1)  # for the next line
        with os.fdopen(reader, encoding="utf-8") as lines:
            steps = [line for line in lines if line.startswith("step ")]
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, FINISHED)
        self.assertNotIn(b"warning", error)
        self.assertEqual(len(steps), 2000)

    def test_the_first_file_of_tensorboard_has_the_mark(self):
        """A SessionLog of status START: field 7 of an event holds field 1 of value 1."""
        self.train(self.write_run())
        [file] = self.path("out/tb").iterdir()
        self.assertIn(b"\x3a\x02\x08\x01", file.read_bytes())


class Vocabulary(CliCase):
    def test_spare_rows(self):
        self.path("text.txt").write_text("some text\n" * 50, encoding="utf-8")
        self.succeed("data", "pack", "text.txt", "--out", "packed", "--tokenizer", "bytes")
        config = self.write_config(tiny_config(data={"train": [{"path": "packed"}]}, model={"vocab_size": 2643},
                                               run={"steps": 4}))
        warning = "warning: model.vocab_size = 2643: the tokenizer of packed has 257 tokens, so that 2386 rows"
        self.assertIn(warning, self.run_gptrain("train", config, "--steps", "2").err)
        self.assertNotIn("rows of the vocabulary", self.run_gptrain("train", config, "--resume").err)
        self.assertNotIn("rows of the vocabulary",
                         self.run_gptrain("train", config, "--init-from", "out", *overrides("run.out=second")).err)


class Folders(CliCase):
    def test_working_folder_removed(self):
        (home := self.path("home")).mkdir()
        config = self.write_run(data={"train": [{"path": str(self.path("corpus"))}]})
        for out in ("out", "deep/er/out"):
            process = subprocess.Popen([EXECUTABLE, "train", self.path(config), *ENDLESS, "--set", f"run.out={out}"], cwd=home,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(self._end, process)
            self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
            process.send_signal(signal.SIGSTOP)
            shutil.rmtree(home)
            process.send_signal(signal.SIGCONT)
            _, error = process.communicate(timeout=TIMEOUT_SECONDS)
            self.assertEqual(process.returncode, CHECKPOINT, error)
            [saved] = home.rglob("step-????????")
            self.assertIn("sound", self.succeed("checkpoint", "verify", saved), error)
            shutil.rmtree(home)
            home.mkdir()

    def test_metrics_removed(self):
        process = self.start("train", self.write_run(), *ENDLESS)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        self.path("out/metrics.jsonl").unlink()
        self.wait_until(self.path("out/metrics.jsonl").exists, process)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, REQUEUE, error)
        self.assertIn("warning: out/metrics.jsonl was removed, replaced or cut short while the run wrote to it", error)
        self.assertEqual(self.records()[-1]["step"], self.checkpoint_steps()[0])

    def test_other_files_removed(self):
        """Files of TensorBoard and those that describe the run are missed, too."""
        process = self.start("train", self.write_run(), *ENDLESS)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        for name in ("config.json", "run.json"):
            self.path(f"out/{name}").unlink()
        shutil.rmtree(self.path("out/tb"))
        self.wait_until(lambda: len(list(self.path("out").glob("*.json")) + list(self.path("out").glob("tb/*"))) == 3, process)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, REQUEUE, error)
        self.assertRegex(error, "warning: out/(config|run).json was removed while the run lasted, and is written again")
        self.assertRegex(error, r"warning: out/tb/\S+ was removed, replaced or cut short while the run wrote to it")

    def test_metrics_replaced_by_a_folder(self):
        process = self.start("train", self.write_run(), *ENDLESS)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        self.path("out/metrics.jsonl").unlink()
        self.path("out/metrics.jsonl").mkdir()
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, CHECKPOINT, error)
        self.assertEqual(len(self.checkpoint_steps()), 1)

    def test_metrics_replaced_by_a_pipe(self):
        config = self.write_run()
        process = self.start("train", config, *ENDLESS)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        self.path("out/metrics.jsonl").unlink()
        os.mkfifo(self.path("out/metrics.jsonl"))
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, CHECKPOINT, error)
        self.assertIn("gptrain: cannot append to out/metrics.jsonl: it is no ordinary file; the state after step ", error)
        self.assertEqual(len(self.checkpoint_steps()), 1)
        self.refuse(USAGE, "out/metrics.jsonl: ", "train", config, "--resume", *overrides("run.steps=1000"))

    def test_checkpoints_that_are_no_folder(self):
        config = self.write_run()
        process = self.start("train", config, *ENDLESS)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        self.path("out/checkpoints").touch()
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, CHECKPOINT, error)
        [step] = self.checkpoint_steps("out.saved")
        self.assertRegex(error, rf"gptrain: run\.out = out: the checkpoint of step {step} could not be saved: .*: Not a directory; the "
                                rf"state after step {step} is saved in \S*out\.saved/checkpoints\n$")
        self.train(config, "--resume", "latest", *overrides("run.out=out.saved", f"run.steps={step + 2}"))

    def test_checkpoint_removed(self):
        # Few lines, as nobody reads them while the warning is awaited.
        process = self.start("train", self.write_run(), *ENDLESS,
                             *overrides("checkpoint.every_steps=300", "log.every_steps=1000000"))
        self.wait_until(lambda: process.stdout.readline().startswith("checkpoint of step 300 saved"), process)
        shutil.rmtree(self.checkpoint(300))
        self.assertEqual(next(line for line in process.stderr if line.startswith("warning: ")),
                         "warning: out/checkpoints/step-00000300 was removed while the run lasted\n")

    def test_lock_removed(self):
        config = self.write_run()
        process = self.start("train", config, *ENDLESS)
        self.wait_until(lambda: process.stdout.readline().startswith("step 3/"), process)
        self.path("out/.lock").unlink()
        self.wait_until(self.path("out/.lock").exists, process)
        self.refuse(USAGE, "another gptrain is running in this folder", "train", config)

    def test_prune_without_permission(self):
        self.train(self.write_run(checkpoint={"every_steps": 3, "keep_last": 9}))
        (self.checkpoint(3) / "manifest.json").chmod(0)
        for path in (self.folder, self.path("out"), self.path("out/.lock"), self.path("out/checkpoints")):
            path.chmod(0o777)

        def become_another_user():  # root reads everything
            if os.geteuid() == 0:
                os.setgid(54321)
                os.setuid(54321)
        try:
            result = subprocess.run([EXECUTABLE, "checkpoint", "prune", "out", "--keep-last", "1"], cwd=self.folder, text=True,
                                    preexec_fn=become_another_user, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        except PermissionError:
            self.skipTest("other users may not run the program")
        self.assertEqual(result.returncode, FINISHED, result.stderr)
        self.assertEqual(result.stderr, "warning: out/checkpoints/step-00000003 cannot be read: it is neither counted nor removed; "
                                        "check its permissions\n")
        self.assertEqual(self.checkpoint_steps(), [3, 6])

    def test_prune_beside_a_file(self):
        self.train(self.write_run(checkpoint={"every_steps": 3, "keep_last": 9}))
        self.path("out/checkpoints/step-00000009").write_text("no folder", encoding="utf-8")
        result = self.run_gptrain("checkpoint", "prune", "out", "--keep-last", "1")
        self.assertEqual(result.err, "warning: out/checkpoints/step-00000009 is a file, no checkpoint: it is neither counted nor "
                                     "removed; remove it yourself\n")

    def test_average_overflows(self):
        self.train(self.write_run())
        self.refuse(CHECKPOINT, ["weight/", "not finite"], "checkpoint", "average", "out", "out", "--shares", "1e308,1e308",
                    "--out", "average")
        self.assertFalse(self.path("average").exists())


class FileSystems(CliCase):
    """Faults of system calls, by strace."""

    def run_with(self, inject, *arguments):
        if shutil.which("strace") is None:
            self.skipTest("no strace")
        calls = inject.split(":")[0]
        done = subprocess.run(["strace", "-f", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={inject}", EXECUTABLE,
                               *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              timeout=TIMEOUT_SECONDS, check=False)
        if "strace: " in done.stderr and "ptrace" in done.stderr:
            self.skipTest("strace may not trace")
        return done

    def test_no_locks(self):
        config = self.write_run()
        for error in ("ENOSYS", "ENOLCK", "EOPNOTSUPP"):
            done = self.run_with(f"flock:error={error}", "train", config, "--set", f"run.out={error}")
            self.assertEqual(done.returncode, FINISHED, done.stderr)
            self.assertNotIn("warning", done.stderr)  # fcntl locks
            done = self.run_with(f"flock:error={error}", "checkpoint", "export", error, "--hf", f"hf-{error}")
            self.assertEqual(done.returncode, FINISHED, done.stderr)

    def test_transient_error(self):
        config = self.write_run()
        told = 0
        for call in range(6, 12):  # of the checkpoint's folders, its files and the metrics
            error, out = ("EIO", "ESTALE")[call % 2], f"out-{call}"
            done = self.run_with(f"fsync:error={error}:when={call}", "train", config, "--set", f"run.out={out}")
            self.assertEqual(done.returncode, FINISHED, done.stderr)
            told += "it is tried again" in done.stderr
            self.succeed("checkpoint", "verify", out)
        self.assertGreater(told, 2)
        # The renames of config.json and run.json come first.
        done = self.run_with("rename:error=ESTALE:when=3", "train", config, "--set", "run.out=renamed")
        self.assertEqual(done.returncode, FINISHED, done.stderr)
        self.assertRegex(done.stderr, r"warning: cannot rename \S+ to renamed/checkpoints/step-00000006: .*; it is tried again")

    def test_errors_between_checkpoints(self):
        """Looks at the folder, or writes of records, may fail once in a while: the run goes on and loses nothing."""
        config = self.write_run(checkpoint={"every_steps": 0}, run={"steps": 100})
        for calls in ("newfstatat:error=ESTALE:when=250..600+7", "write:error=EIO:when=40..90+11"):
            shutil.rmtree(self.path("out"), ignore_errors=True)
            done = self.run_with(calls, "train", config)
            self.assertEqual(done.returncode, FINISHED, done.stderr)
            self.assertEqual([record["step"] for record in self.records()], list(range(1, 101)))
