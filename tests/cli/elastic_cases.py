"""Elastic runs: which ranks idle, the messages, and the same bits as a run configured for the training ranks."""
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from cli_case import DEVICE, DIVERGED, EXECUTABLE, FINISHED, REQUEUE, TIMEOUT_SECONDS, USAGE, CliCase, overrides
from ports import free_port

ELASTIC = overrides("parallel.elastic=true", "batch.global=12")
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "PMI", "OMPI_", "TORCHELASTIC_")


class Elastic(CliCase):
    def state(self, step, out):
        return {path.name: path.read_bytes() for path in self.checkpoint(step, out).glob("*.safetensors")}

    def same_run(self, step, out, reference):
        """Checks weights, moments and metrics, except for times."""
        self.assertEqual(self.state(step, out), self.state(step, reference))
        kept = ("step", "loss", "grad_norm", "lr", "tokens", "samples", "skipped")
        records = [[{key: record[key] for key in kept} for record in self.records(folder)] for folder in (out, reference)]
        self.assertEqual(*records)
        self.assertEqual(len(records[0]), step)

    def train_by_hand(self, config, *segments):
        """Trains a reference; each segment is (ranks, last step), with the batch spread over those ranks."""
        done = 0
        for ranks, end in segments:
            self.train(config, "--resume", "--ranks", ranks, "--steps", end - done,
                       *overrides("batch.global=12", "run.out=by-hand"))
            done = end


class Threads(Elastic):
    def test_fewer_and_more_ranks(self):
        config = self.write_run(parallel={"zero": 1}, model={"dropout": 0.1})
        self.train_by_hand(config, (3, 2), (2, 4), (6, 6))
        first = self.train(config, "--ranks", 4, "--steps", 2, *ELASTIC)
        self.assertIn("elastic: 3 of 4 ranks train, rank 3 idles; batch.global = 12 is 3 data ranks x batch.micro 2 x "
                      "batch.accumulation 2\n", first)
        second = self.train(config, "--resume", "--ranks", 2, "--steps", 2, *ELASTIC)
        self.assertIn("elastic: 2 of 2 ranks train; batch.global = 12 is 2 data ranks x batch.micro 2 x "
                      "batch.accumulation 3\n", second)
        self.assertIn("(step 2)\nelastic: data ranks 3 -> 2, batch.accumulation 2 -> 3; batch.global stays 12\n", second)
        third = self.train(config, "--resume", "--ranks", 11, *ELASTIC)
        self.assertIn("elastic: 6 of 11 ranks train, ranks 6 to 10 idle; ", third)
        self.assertIn("elastic: data ranks 2 -> 6, batch.accumulation 3 -> 1; batch.global stays 12\n", third)
        self.same_run(6, "out", "by-hand")
        fixed = self.train(config, "--resume", "--ranks", 2, *overrides("batch.global=12", "run.steps=7"))
        self.assertNotRegex(fixed, r"(?m)^elastic: ")

    def test_ranks_of_a_model_stay_together(self):
        config = self.write_run(parallel={"tensor": 2})
        self.assertIn("elastic: 4 of 5 ranks train, rank 4 idles; batch.global = 4 is 2 data ranks",
                      self.train(config, "--ranks", 5, "--steps", 1, *overrides("parallel.elastic=true")))
        self.refuse(USAGE, "1 rank does not divide into model replicas of parallel.tensor", "train", config,
                    "--resume", *overrides("parallel.elastic=true"))

    def test_a_dry_run_has_the_ranks_that_train(self):
        config = self.write_run()
        text = self.succeed("train", config, "--dry-run", "--ranks", 4, *ELASTIC)
        self.assertIn("warnings\n  elastic: 3 of 4 ranks train, rank 3 idles; ", text)

    def test_what_is_refused(self):
        config = self.write_run()
        self.refuse(USAGE, "batch.accumulation = 2: is computed from the number of ranks, as parallel.elastic is true",
                    "train", config, *ELASTIC, *overrides("batch.accumulation=2"))
        self.refuse(USAGE, "batch.global: must be given, as parallel.elastic is true", "train", config,
                    *overrides("parallel.elastic=true", "batch.global=null"))
        self.refuse(USAGE, "batch.micro = 5: must divide batch.global = 12 (try", "train", config, "--ranks", 3, *ELASTIC,
                    *overrides("batch.micro=5"))


class Processes(Elastic):
    def start(self, *arguments, size=4, mpi=False):
        """Starts the ranks of a run over TCP, or mpirun."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        command = [EXECUTABLE, "train", "run.json", *arguments]
        if mpi:
            kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            places = [{}]
            command = ["mpirun", "--oversubscribe", "-n", str(size), *command]
        else:
            port = free_port()
            places = [{"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                       "GPTRAIN_SECRET": "the secret of these tests"} for rank in range(size)]
        self.logs = [self.path(f"log-{rank}") for rank in range(len(places))]
        processes = []
        for place, log in zip(places, self.logs):
            with log.open("w", encoding="utf-8") as file:
                processes.append(subprocess.Popen(command, cwd=self.folder, env={**kept, **place}, stdout=file,
                                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))
            self.addCleanup(self.end, processes[-1])
        return processes

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def codes(self, processes):
        return [process.wait(TIMEOUT_SECONDS) for process in processes]

    def output(self):
        return "".join(log.read_text(encoding="utf-8") for log in self.logs)

    def wait_for_step(self, step):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not re.search(rf"^step {step}/", self.output(), re.MULTILINE):
            self.assertLess(time.monotonic(), deadline, self.output())
            time.sleep(0.02)

    def test_fewer_and_more_processes(self):
        config = self.write_run(parallel={"zero": 2}, run={"steps": 9})
        self.train_by_hand(config, (3, 3), (2, 6), (3, 9))
        for size, mpi in ((4, False), (2, False), (5, bool(shutil.which("mpirun")))):
            processes = self.start("--resume", "--steps", "3", *ELASTIC, size=size, mpi=mpi)
            codes = self.codes(processes)
            if mpi and "was built without MPI" in self.output():
                codes = self.codes(self.start("--resume", "--steps", "3", *ELASTIC, size=size))
            self.assertEqual(set(codes), {FINISHED}, self.output())
        self.same_run(9, "out", "by-hand")

    def test_those_that_idle_end_as_the_run_does(self):
        self.write_run(checkpoint={"every_steps": 100})
        processes = self.start(*ELASTIC, *overrides("run.steps=1000000", "log.every_steps=1"))
        self.wait_for_step(3)
        for process in processes:
            process.send_signal(signal.SIGUSR1)
        self.assertEqual(self.codes(processes), [REQUEUE] * 4, self.output())
        processes = self.start(*ELASTIC, *overrides("optimizer.lr=10", "optimizer.weight_decay=10", "run.steps=100",
                                                    "run.max_skipped_steps=2", "run.out=diverges"))
        self.assertEqual(self.codes(processes), [DIVERGED] * 4, self.output())
        self.assertEqual(self.output().count("gptrain: "), 1, self.output())

    def test_a_signal_to_one_that_idles_stops_the_run(self):
        self.write_run(checkpoint={"every_steps": 100000})
        processes = self.start(*ELASTIC, *overrides("run.steps=1000000"))
        self.wait_for_step(1)
        processes[3].send_signal(signal.SIGTERM)
        self.assertEqual(self.codes(processes), [REQUEUE] * 4, self.output())
        self.assertIn("rank 3 idles: SIGTERM stops the run\n", self.output())
        self.assertIn("stopped by a signal to another rank after step", self.output())
        self.assertEqual(len(self.checkpoint_steps()), 1)

    def test_the_loss_of_one_that_idles_ends_nothing(self):
        self.write_run()
        processes = self.start(*ELASTIC, *overrides("run.steps=1000000"))
        self.wait_for_step(1)
        processes[3].kill()
        step = 1 + max(map(int, re.findall(r"^step (\d+)/", self.output(), re.MULTILINE)))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while "which idles, is gone: the run goes on without it" not in self.output():
            self.assertLess(time.monotonic(), deadline, self.output())
            time.sleep(0.02)
        self.wait_for_step(step + 1)
        for process in processes[:3]:
            process.send_signal(signal.SIGUSR1)
        self.assertEqual(self.codes(processes), [REQUEUE] * 3 + [-signal.SIGKILL], self.output())

    def test_the_loss_of_one_that_trains_ends_all(self):
        self.write_run()
        for lost in (0, 2):
            processes = self.start(*ELASTIC, *overrides("run.steps=1000000", f"run.out=out-{lost}"))
            self.wait_for_step(1)
            processes[lost].kill()
            codes = self.codes(processes)
            self.assertEqual(codes.pop(lost), -signal.SIGKILL)
            self.assertEqual(codes, [DEVICE] * 3, self.output())


if __name__ == "__main__":
    unittest.main()
