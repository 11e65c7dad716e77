"""Limits of a process: of open files, sizes of files, stacks, memory, threads and sockets."""
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

from cli_case import EXECUTABLE, FINISHED, MACHINE, REQUEUE, TIMEOUT_SECONDS, CliCase, overrides
from mishap_cases import ENDLESS, SECRET
from ports import free_port


class Limits(CliCase):
    def run_limited(self, limits, *arguments, **variables):
        def lower():
            for kind, values in limits.items():
                resource.setrlimit(kind, values)
        return subprocess.run([EXECUTABLE, *arguments], cwd=self.folder, env={**os.environ, **SECRET, **variables}, text=True,
                              preexec_fn=lower, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)

    def test_open_files(self):
        config = self.write_run()
        ranks = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        result = self.run_limited({resource.RLIMIT_NOFILE: (48, 48)}, "train", config,
                                  *overrides("batch.micro=1", "batch.global=8"), **ranks)
        self.assertEqual(result.returncode, MACHINE, result.stderr)
        self.assertIn("8 ranks over TCP take about 56 open files in each process, and 48 are allowed", result.stderr)

    def test_few_open_files(self):
        config = self.write_run()
        for limit, needed, arguments in ((5, 12, []), (16, 28, ["--ranks", "8", *overrides("batch.micro=1", "batch.global=8")])):
            result = self.run_limited({resource.RLIMIT_NOFILE: (limit, limit)}, "train", config, *arguments)
            self.assertEqual(result.returncode, MACHINE, result.stderr)
            self.assertRegex(result.stderr, rf"gptrain: the process may have {limit} open files, and can open \d+ more, where it "
                                            rf"needs {needed}: raise the hard limit \(ulimit -Hn\)\n")
            self.assertFalse(self.path("out").exists())
        # Files that the parent left open count as well.
        opened = [os.open("/", os.O_RDONLY) for _ in range(40)]
        try:
            done = subprocess.run([EXECUTABLE, "config", "keys"], pass_fds=opened, capture_output=True, text=True, check=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (len(opened) + 8, len(opened) + 8)))
        finally:
            for file in opened:
                os.close(file)
        self.assertEqual(done.returncode, MACHINE, done.stderr)

    def test_soft_limit_is_raised(self):
        config = self.write_run()
        process = subprocess.Popen([EXECUTABLE, "train", config, *ENDLESS], cwd=self.folder, stdout=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, 500)))
        self.addCleanup(self._end, process)
        self.wait_until(lambda: process.stdout.readline().startswith("step 1/"), process)
        self.assertEqual(resource.prlimit(process.pid, resource.RLIMIT_NOFILE), (500, 500))

    def test_file_size(self):
        """A limit below the largest file of a run is refused before anything is written, by a byte as well."""
        config = self.write_run()
        for arguments in ([], ["--ranks", "2", *overrides("parallel.zero=1")]):
            self.train(config, *arguments)
            sizes = [path.stat().st_size for path in self.path("out").rglob("*.safetensors")]
            shutil.rmtree(self.path("out"))
            for limit, code in ((4096, MACHINE), (max(sizes) - 1, MACHINE), (max(sizes), FINISHED)):
                result = self.run_limited({resource.RLIMIT_FSIZE: (limit, limit)}, "train", config, *arguments)
                self.assertEqual(result.returncode, code, f"{limit}: {result.stderr}")
                self.assertEqual(self.path("out").exists(), code == FINISHED)
                if code == MACHINE:
                    self.assertRegex(result.stderr, r"the process may write files of [\d.]+ KiB \(ulimit -f\), and the largest file of "
                                                    r"a checkpoint has \d+\.\d KiB: raise the limit\n$")
            shutil.rmtree(self.path("out"))
        for every, code in ((1, MACHINE), (50, FINISHED)):
            result = self.run_limited({resource.RLIMIT_FSIZE: (60_000, 60_000)}, "train", config,
                                      *overrides("run.steps=300", f"log.every_steps={every}"))
            self.assertEqual(result.returncode, code, result.stderr)
        self.assertNotIn("ulimit", result.stderr)

    def test_stack(self):
        config = self.write_run()
        result = self.run_limited({resource.RLIMIT_STACK: (1 << 16, 1 << 16)}, "train", config)
        self.assertEqual(result.returncode, MACHINE, result.stderr)
        self.assertIn("a stack may have only 64.0 KiB: raise the hard limit (ulimit -Hs) to at least 1.0 MiB", result.stderr)
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        result = self.run_limited({resource.RLIMIT_STACK: (1 << 16, hard)}, "train", config)
        self.assertEqual(result.returncode, FINISHED, result.stderr)

    def test_address_space(self):
        """Libraries that run out of address space end in SIGSEGV: such limits are refused."""
        config = self.write_run()
        for mebibytes in (96, 100, 104, 108):
            result = self.run_limited({resource.RLIMIT_AS: (mebibytes << 20, mebibytes << 20)}, "train", config)
            # The system's loader ends with 127 where it has no room for CUDA's libraries.
            self.assertIn(result.returncode, (MACHINE, 127), result.stderr)
        result = self.run_limited({resource.RLIMIT_DATA: (40 << 20, 40 << 20)}, "train", config)
        self.assertEqual(result.returncode, MACHINE, result.stderr)
        self.assertIn("of data (ulimit -d) for arrays, threads and libraries, but its limit is 40.0 MiB in all", result.stderr)

    def test_threads(self):
        """A thread that cannot be started is a limit of the machine. Root has no such limit, so that the run is another user's."""
        config = self.write_run()
        self.folder.chmod(0o777)

        def lower():
            resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
            if os.geteuid() == 0:
                os.setgid(54321)
                os.setuid(54321)
        for threads, arguments in ((1, []), (2, []), (2, ["--ranks", "2", *overrides("batch.micro=1")])):
            try:
                result = subprocess.run([EXECUTABLE, "train", config, *arguments], cwd=self.folder, preexec_fn=lower, text=True,
                                        capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
            except PermissionError:
                self.skipTest("other users may not run the program")
            self.assertEqual(result.returncode, MACHINE, result.stderr)
            self.assertRegex(result.stderr, "gptrain: cannot start the thread that .*: Resource temporarily unavailable .see ulimit -u")

    def test_sockets_of_ranks(self):
        """All groups of a pair of ranks share a connection; rank 0 has a second one to each, for the heartbeat."""
        ranks, listeners = 4, 2
        place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        command = [EXECUTABLE, "train", self.write_run(), *ENDLESS, *overrides("batch.micro=1")]
        processes = [subprocess.Popen(command, cwd=self.folder, env={**os.environ, **SECRET, **place, "RANK": str(rank)}, text=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                     for rank in range(ranks)]
        for process in processes:
            self.addCleanup(self._end, process)
        self.wait_until(lambda: processes[0].stdout.readline().startswith("step 2/"), processes[0])
        for rank, process in enumerate(processes):
            sockets = [file for file in Path(f"/proc/{process.pid}/fd").iterdir() if os.readlink(file).startswith("socket:")]
            self.assertLessEqual(len(sockets), ranks - 1 + (ranks - 1 if rank == 0 else 1) + listeners)
        processes[1].send_signal(signal.SIGTERM)
        self.assertEqual([process.wait(TIMEOUT_SECONDS) for process in processes], [REQUEUE] * ranks)
