"""The ranks of a run, as processes or as threads of one."""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import test_crash
from other_processes import MPIRUN_CRASHED, is_running
from ports import free_port
from test_crash import PROCESS_TIMEOUT_SECONDS, wait_for

RANKS = 4
SLACK_SECONDS = 20  # starting and ending processes on a busy machine
MPIRUN_SECONDS = 10  # limit for mpirun to end after its ranks
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "PMI", "OMPI_", "TORCHELASTIC_", "GPTRAIN_SECRET")


def environment(**variables):
    kept = {name: value for name, value in test_crash.ENVIRONMENT.items() if not name.startswith(LAUNCHER_VARIABLES)}
    return {**kept, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **{name: str(value) for name, value in variables.items()}}


def overrides(*settings):
    return [argument for setting in settings for argument in ("--set", setting)]


class Ranks:
    """The processes of one run. Output goes to LOG (rank 0, or mpirun) and to LOG.RANK."""

    def __init__(self, case, mode, command, log, prefix=(), prefixed_rank=None, size=RANKS):
        self.mode = mode
        self.size = size
        self.logs = []
        self.processes = []
        place = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GPTRAIN_SECRET": "a secret of tests"}
        if mode == "tcp":
            for rank in range(size):
                before = prefix if rank == prefixed_rank else ()
                self._start([*before, *command], log.with_name(f"{log.name}.{rank}") if rank else log, RANK=rank,
                            LOCAL_RANK=rank, **place)
        elif mode == "mpi":
            self._start(["mpirun", "--oversubscribe", "-n", str(size), *command], log)
        else:
            self._start([*command, "--ranks", str(size)], log)
        self.known = {}
        case.addCleanup(self.kill)

    def _start(self, command, log, **variables):
        self.logs.append(log)
        with log.open("w", encoding="utf-8") as file:
            self.processes.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT,
                                                   stdin=subprocess.DEVNULL, env=environment(**variables)))

    def poll(self):
        """Returns the first exit code of a process that has ended."""
        return next((code for code in (process.poll() for process in self.processes) if code is not None), None)

    @property
    def pid(self):
        return self.processes[0].pid

    def rank_ids(self):
        """Returns {rank: process id} of the started ranks."""
        if self.mode != "mpi":
            return {rank: process.pid for rank, process in enumerate(self.processes)}
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()
            for child in children:
                found = re.search(r"\0OMPI_COMM_WORLD_RANK=(\d+)\0", Path(f"/proc/{child}/environ").read_text())
                if found:
                    self.known[int(found.group(1))] = int(child)
        except OSError:
            pass
        return self.known

    def await_ranks(self):
        wait_for(self, lambda: len(self.rank_ids()) == len(self.processes if self.mode != "mpi" else range(self.size)))
        return self.rank_ids()

    def send(self, rank, number):
        """Sends a signal; returns False if the rank has ended."""
        ids = self.rank_ids()
        if not is_running(ids.get(rank, 0)):
            return False
        os.kill(ids[rank], number)
        return True

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def wait(self, left_out=None):
        """Returns the exit codes of all processes except the one left out, which may be stopped."""
        if self.mode == "mpi":
            self.end_hanging_mpirun()
        return [process.wait(PROCESS_TIMEOUT_SECONDS) for rank, process in enumerate(self.processes)
                if rank != left_out]

    def end_hanging_mpirun(self):
        """Ends an mpirun that hangs at its end: Open MPI's may wait for itself (PMIx_server_finalize), about once in
        300 ranks killed during start. The exit code is then that of an mpirun that crashed (MPIRUN_CRASHED)."""
        deadline = time.monotonic() + PROCESS_TIMEOUT_SECONDS
        gone_at = None
        while self.processes[0].poll() is None and time.monotonic() < deadline:
            gone = len(self.rank_ids()) == self.size and not any(map(is_running, self.known.values()))
            gone_at = (gone_at or time.monotonic()) if gone else None
            if gone and time.monotonic() > gone_at + MPIRUN_SECONDS:
                os.kill(self.pid, -MPIRUN_CRASHED)
                return
            time.sleep(0.01)

    def left(self):
        """Returns the processes that still exist after some time."""
        deadline = time.monotonic() + SLACK_SECONDS
        while True:
            left = [process for process in self.rank_ids().values() if is_running(process)]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.01)

    def output(self):
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in self.logs)
