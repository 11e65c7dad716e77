#!/usr/bin/env python3
"""Ranks as processes: the same bits over every transport, and an end in bounded time whatever happens to a rank.

Run as test_processes.py COMM_RANKS GPTRAIN HAS_MPI [TEST...].
"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from busy import slowness
from ports import free_port

USAGE, DATA, DEVICE = 2, 3, 5
TIMEOUT_SECONDS = 2  # for comm_ranks, and given to gptrain
REPORT_SECONDS = 1
SLACK_SECONDS = 4    # starting and ending processes on a busy machine
HANG_SECONDS = 60


def clean_environment(**variables):
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "PMI", "OMPI_", "TORCHELASTIC_", "GPTRAIN_SECRET")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    return {**kept, "GPTRAIN_SECRET": "the secret of these tests", **{name: str(value) for name, value in variables.items()}}


def start(command, **variables):
    return subprocess.Popen(command, env=clean_environment(**variables), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")


def is_running(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Load:
    """Keeps every core busy with twice as many processes as cores, at the ranks' priority."""

    def __enter__(self):
        busy = [sys.executable, "-c", "while True: pass"]
        self.processes = [subprocess.Popen(busy, stdin=subprocess.DEVNULL)
                          for _ in range(2 * len(os.sched_getaffinity(0)))]

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


class Listener(threading.Thread):
    """Reads the processes' messages from a file, and notes when one reports lost ranks."""

    def __init__(self, file):
        super().__init__(daemon=True)
        self.file = file
        self.moment = None
        self.text = ""
        self.start()

    def run(self):
        with open(self.file, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if self.moment is None and "ranks lost" in line:
                    self.moment = time.monotonic()
                self.text += line


class Run:
    """Processes of one run, whose output is read once they have ended."""

    def __init__(self, case, processes):
        self.processes = processes
        case.addCleanup(self.kill)

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def listen(self, left_out):
        """Listens to the standard error of each process except those left out."""
        listeners = []
        for rank, process in enumerate(self.processes):
            if rank not in left_out:
                listeners.append(Listener(os.dup(process.stderr.fileno())))
                process.stderr.close()
                process.stderr = None
        return listeners

    def lose(self, listeners, signalled, number, left_out=()):
        """Sends a signal to a process on a busy machine. Returns the exit codes of all except those left out, the
        seconds until a listener heard of the loss, and the seconds until all have ended."""
        with Load():
            time.sleep(0.7)  # a beat or two
            began = time.monotonic()
            os.kill(signalled, number)
            codes = [code for code, _, _ in self.finish(left_out)]
            ended = time.monotonic()
        for listener in listeners:
            listener.join()
        [moment] = [listener.moment for listener in listeners if listener.moment is not None] or [float("inf")]
        print(f"{signal.Signals(number).name}: told after {moment - began:.2f} s, ended after {ended - began:.2f} s")
        return codes, moment - began, ended - began

    def finish(self, left_out=()):
        """Returns [(exit code, output, errors)] of all except the ranks left out."""
        results = []
        for rank, process in enumerate(self.processes):
            if rank not in left_out:
                out, errors = process.communicate(timeout=HANG_SECONDS)
                results.append((process.returncode, out, errors))
        return results


class Processes(unittest.TestCase):
    def assert_within(self, seconds, allowed):
        """Checks a duration, for which a busy machine is allowed longer."""
        self.assertLess(seconds, allowed * slowness())

    def tcp(self, size, *command, port=None, **variables):
        port = port or free_port()
        return Run(self, [start(command, RANK=rank, WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                **variables) for rank in range(size)])

    def mpi(self, size, *command):
        if not HAS_MPI or not shutil.which("mpirun"):
            self.skipTest("no MPI")
        return Run(self, [start(["mpirun", "--oversubscribe", "-n", str(size), *command],
                                OMPI_ALLOW_RUN_AS_ROOT=1, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)])

    def check_aborted(self, code, expected, errors):
        """Checks mpirun's exit code, which is that of the first rank that it sees end: the lost one, or one that ends
        for its loss. Version 4.1.4 sometimes crashes in libpmix while it cleans up an aborted job."""
        self.assertIn(code, (expected, DEVICE, -signal.SIGSEGV), errors)

    def checksum(self, results):
        self.assertEqual({code for code, _, _ in results}, {0}, results)
        return "".join(out for _, out, _ in results)

    def await_ready(self, run, ranks):
        """Waits until `ranks` processes of comm_ranks have reported that they are ready; mpirun merges their output."""
        lines = 0
        for process in run.processes:
            while lines < ranks:
                self.assertEqual(process.stdout.readline(), "ready\n")
                lines += 1
                if len(run.processes) > 1:
                    break


class SameBits(Processes):
    def test_every_transport_gives_the_bits_of_threads(self):
        for size in (2, 3, 5):
            with self.subTest(size=size):
                alone = Run(self, [start([COMM_RANKS], COMM_RANKS_THREADS=size)])
                expected = self.checksum(alone.finish())
                self.assertEqual(len(expected.split()), 1)
                self.assertEqual(self.checksum(self.tcp(size, COMM_RANKS).finish()), expected)
                if HAS_MPI:
                    self.assertEqual(self.checksum(self.mpi(size, COMM_RANKS).finish()), expected)


class Bench(Processes):
    ARGUMENTS = ("bench", "comm", "--max-bytes", "65536", "--seconds", "0.001")

    def check_table(self, text, title, num_rows):
        lines = text.splitlines()
        self.assertIn(title, lines[0])
        self.assertEqual(len(lines), 2 + num_rows, text)
        self.assertEqual({line.split()[0] for line in lines[2:]},
                         {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"})

    def test_threads(self):
        run = Run(self, [start([GPTRAIN, *self.ARGUMENTS, "--ranks", "3", "--dtype", "bf16"])])
        [(code, out, errors)] = run.finish()
        self.assertEqual(code, 0, errors)
        self.check_table(out, "3 ranks (threads) in groups of 3, bf16", 6 * 4)

    def test_sockets_in_groups(self):
        results = self.tcp(4, GPTRAIN, *self.ARGUMENTS, "--group-size", "2", "--timeout", "1e18").finish()
        self.assertEqual({code for code, _, _ in results}, {0}, results)
        self.check_table(results[0][1], "4 ranks (processes, TCP) in groups of 2, f32", 6 * 4)
        self.assertEqual("".join(out for _, out, _ in results[1:]), "")

    def test_mpi(self):
        [(code, out, errors)] = self.mpi(3, GPTRAIN, *self.ARGUMENTS).finish()
        self.assertEqual(code, 0, errors)
        self.check_table(out, "3 ranks (processes, MPI) in groups of 3, f32", 6 * 4)

    def test_a_rank_that_does_not_come(self):
        run = Run(self, [start([GPTRAIN, *self.ARGUMENTS, "--timeout", "0.3"], RANK=0, WORLD_SIZE=2,
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())])
        [(code, _, errors)] = run.finish()
        self.assertEqual(code, DEVICE)
        self.assertIn("gptrain: of 2 ranks, rank 1 did not come within 0.3 s (--timeout): start all ranks", errors)

    def test_what_does_not_fit_is_refused(self):
        run = Run(self, [start([GPTRAIN, *self.ARGUMENTS, "--ranks", "4", "--group-size", "3"])])
        self.assertEqual(run.finish(), [(2, "", "gptrain: --group-size 3: must divide the number of ranks, 4\n")])
        run = Run(self, [start([GPTRAIN, *self.ARGUMENTS, "--ranks", "4"], RANK=1, WORLD_SIZE=2, MASTER_ADDR="a",
                               MASTER_PORT=1)])
        self.assertEqual(run.finish(), [(2, "", "gptrain: --ranks 4 starts threads, but this process is rank 1 of 2 (RANK and "
                                                "WORLD_SIZE) already: leave --ranks out\n")])


class Start(Processes):
    """Faults that keep a run from starting: one message, by rank 0, and exit code 5 everywhere."""

    def check_refusal(self, results, *messages):
        self.assertEqual({code for code, _, _ in results}, {DEVICE}, results)
        for message in messages:
            self.assertIn(message, results[0][2])
        self.assertEqual([errors for _, _, errors in results[1:]], [""] * (len(results) - 1))

    def test_a_different_config(self):
        self.check_refusal(self.tcp(3, COMM_RANKS, "config", "2").finish(),
                           "the ranks of this run do not fit together:\n  rank 2 (", "): config b; rank 0 (", "): a\n")

    def test_a_different_instruction_set(self):
        port = free_port()
        place = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        run = Run(self, [start([COMM_RANKS], RANK=0, **place),
                         start([COMM_RANKS], RANK=1, ONEDNN_MAX_CPU_ISA="SSE41", **place)])
        self.check_refusal(run.finish(), "rank 1 (", "): instruction set cpu_isa_sse41; rank 0 (")

    def test_missing_ranks(self):
        port = free_port()
        began = time.monotonic()
        run = Run(self, [start([COMM_RANKS], RANK=rank, WORLD_SIZE=5, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
                         for rank in (0, 2, 4)])
        self.check_refusal(run.finish(), "of 5 ranks, ranks 1, 3 did not come within 2 s (comm.timeout_seconds)")
        self.assert_within(time.monotonic() - began, TIMEOUT_SECONDS + SLACK_SECONDS)

    def test_a_rank_twice_and_another_size(self):
        port = free_port()
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        run = Run(self, [start([COMM_RANKS], RANK=rank, WORLD_SIZE=3, **place) for rank in (0, 1, 1)])
        self.check_refusal(run.finish(), "rank 1 was started twice, on ")
        run = Run(self, [start([COMM_RANKS], RANK=rank, WORLD_SIZE=size, **place) for rank, size in ((0, 2), (1, 3))])
        self.check_refusal(run.finish(), "was started as one of 3 ranks, rank 0 (", ") as one of 2")

    def test_no_rank_0(self):
        run = Run(self, [start([COMM_RANKS], RANK=1, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())])
        self.check_refusal(run.finish(), "did not find rank 0 at 127.0.0.1 port ", ": nobody listens there")

    def test_a_config_that_cannot_be_used_is_told_at_once(self):
        """An unusable config is reported before the others have come; then all hear that they differ."""
        place = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        began = time.monotonic()
        first = start([GPTRAIN, "train", "nothing.json"], RANK=0, **place)
        run = Run(self, [first])
        self.assertEqual(first.stderr.readline().split(" (")[0],
                         "gptrain: config file nothing.json: not found or not accessible")
        self.assert_within(time.monotonic() - began, SLACK_SECONDS)
        run.processes.append(start([GPTRAIN, "train", "nowhere.json"], RANK=1, **place))
        [(code, _, errors), other] = run.finish()
        self.assertEqual(code, USAGE, errors)
        self.assertRegex(errors, r"^gptrain: the ranks of this run do not fit together:\n"
                                 r"  rank 1 \(.+\): config refused: config file nowhere\.json: .*; "
                                 r"rank 0 \(.+\): refused: config file nothing\.json: ")
        self.assertEqual(other, (DEVICE, "", ""))

    def test_a_name_that_is_none(self):
        name = "x" * 64  # longer than any host name: no server needs to be asked
        run = Run(self, [start([COMM_RANKS], RANK=1, WORLD_SIZE=2, MASTER_ADDR=name, MASTER_PORT=free_port())])
        self.check_refusal(run.finish(), f"did not find rank 0 at {name} port ", f": {name} does not resolve (")

    def test_somebody_else_at_the_port(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            port = listener.getsockname()[1]
            run = Run(self, [start([COMM_RANKS], RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)])
            self.check_refusal(run.finish(), f"cannot listen on port {port}: Address already in use")

    def test_a_stranger_is_ignored(self):
        port = free_port()
        run = self.tcp(2, COMM_RANKS, port=port)
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline and run.processes[0].poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    break
            except OSError:
                time.sleep(0.005)
        self.checksum(run.finish())

    def test_mpirun_and_variables_that_contradict_it(self):
        run = Run(self, [start([COMM_RANKS], OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2, RANK=1, WORLD_SIZE=2)])
        [(code, _, errors)] = run.finish()
        self.assertEqual(code, USAGE, errors)
        self.assertIn("RANK=1 and WORLD_SIZE=2 contradict OMPI_COMM_WORLD_RANK=0", errors)

    def test_variables_of_mpirun_without_it(self):
        """An environment that was handed on: MPI itself knows of one process."""
        run = Run(self, [start([COMM_RANKS], OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4)])
        [(code, _, errors)] = run.finish()
        self.assertEqual(code, USAGE, errors)
        self.assertIn("rank 1 of 4 (mpirun), but MPI says rank 0 of 1: start the ranks with the mpirun", errors)

    def test_a_rank_that_never_starts_mpi(self):
        hangs = '[ "$OMPI_COMM_WORLD_RANK" = 2 ] && exec sleep 60; exec "$0" "$@"'
        began = time.monotonic()
        [(code, _, errors)] = self.mpi(3, "bash", "-c", hangs, COMM_RANKS).finish()
        self.check_aborted(code, DEVICE, errors)
        self.assertRegex(errors, r"gptrain: rank 0 of 3 \(mpirun\) on .+ waits for others to start MPI, and not all did "
                                 r"so within 2 s \(comm.timeout_seconds\)")
        self.assertEqual(errors.count("waits for others"), 1, errors)
        self.assert_within(time.monotonic() - began, TIMEOUT_SECONDS + 2 * SLACK_SECONDS)

    def test_a_rank_that_never_ends_mpi(self):
        began = time.monotonic()
        [(code, _, errors)] = self.mpi(3, COMM_RANKS, "end", "1").finish()
        self.check_aborted(code, DEVICE, errors)
        self.assertRegex(errors, r"gptrain: rank 0 of 3 \(mpirun\) on .+ waits for others to end, and not all did so "
                                 r"within 2 s")
        self.assert_within(time.monotonic() - began, TIMEOUT_SECONDS + 2 * SLACK_SECONDS)

    def test_an_error_of_the_last_barrier(self):
        [(code, _, errors)] = self.mpi(2, COMM_RANKS, "barrier", "1").finish()
        self.check_aborted(code, DEVICE, errors)
        self.assertIn("at the end, where all ranks wait for each other: MPI_Isend: ", errors)


class Loss(Processes):
    """A rank is lost in the middle of a collective."""

    SIZE = 4

    def check_report(self, errors, rank, what):
        self.assertIn(f"1 of {self.SIZE} ranks lost", errors)
        self.assertRegex(errors, rf"  rank {rank} \(.+\) {what}; last seen .*; step 7; backward")

    def lose(self, victim, signal_number):
        """Returns the results of the others, the seconds until the report, the seconds until they ended, and the run.
        """
        run = self.tcp(self.SIZE, COMM_RANKS, "sleep", str((victim + 1) % self.SIZE))
        self.await_ready(run, self.SIZE)
        listeners = run.listen(left_out=[victim])
        codes, told, seconds = run.lose(listeners, run.processes[victim].pid, signal_number, left_out=[victim])
        return [(code, "", listener.text) for code, listener in zip(codes, listeners)], told, seconds, run

    def test_killed(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                results, told, seconds, _ = self.lose(victim, signal.SIGKILL)
                self.assert_within(told, REPORT_SECONDS)
                self.assertEqual({code for code, _, _ in results}, {DEVICE}, results)
                self.check_report(results[0][2], victim, "is gone")
                self.assertEqual([errors for _, _, errors in results[1:]], ["", ""])
                self.assert_within(seconds, REPORT_SECONDS + SLACK_SECONDS)

    def test_stopped_and_continued(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                results, told, seconds, run = self.lose(victim, signal.SIGSTOP)
                self.assert_within(told, TIMEOUT_SECONDS + REPORT_SECONDS)
                self.assertEqual({code for code, _, _ in results}, {DEVICE}, results)
                self.check_report(results[0][2], victim, r"is silent for more than 2 s \(comm.timeout_seconds\)")
                self.assert_within(seconds, TIMEOUT_SECONDS + REPORT_SECONDS + SLACK_SECONDS)
                run.processes[victim].send_signal(signal.SIGCONT)
                run.processes[victim].communicate(timeout=HANG_SECONDS)
                self.assertEqual(run.processes[victim].returncode, DEVICE)

    def test_the_others_go_on_if_the_policy_says_so(self):
        for victim, number in ((2, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)):
            with self.subTest(victim=victim, number=number):
                run = self.tcp(self.SIZE, COMM_RANKS, "survive", str(victim))
                self.await_ready(run, self.SIZE)
                run.processes[victim].send_signal(number)
                results = run.finish(left_out=[victim])
                total = sum(10**rank for rank in range(self.SIZE) if rank != victim)
                self.assertEqual([(code, out) for code, out, _ in results], [(0, f"lost {victim}, sum {total}\n")] * 3,
                                 results)
                self.assertIn("goes on without them", results[0][2])
                run.processes[victim].send_signal(signal.SIGCONT)
                run.processes[victim].communicate(timeout=HANG_SECONDS)
                self.assertEqual(run.processes[victim].returncode, DEVICE if number == signal.SIGSTOP else -number)

    def test_a_stop_shorter_than_the_timeout_changes_nothing(self):
        run = self.tcp(2, GPTRAIN, "bench", "comm", "--max-bytes", "1024", "--seconds", "0.4", "--timeout", "6")
        self.assertIn("2 ranks", run.processes[0].stdout.readline())
        for victim in (1, 0):
            run.processes[victim].send_signal(signal.SIGSTOP)
            time.sleep(0.7)
            run.processes[victim].send_signal(signal.SIGCONT)
        self.assertEqual({code for code, _, _ in run.finish()}, {0})

    def test_an_error_of_one_rank_ends_all(self):
        for faulty in (0, 2):
            with self.subTest(faulty=faulty):
                results = self.tcp(3, COMM_RANKS, "error", str(faulty)).finish()
                self.assertEqual([code for code, _, _ in results], [DATA if r == faulty else DEVICE for r in range(3)])
                self.assertEqual(results[faulty][2], "a fault of this rank\n")
                if faulty == 2:
                    self.assertRegex(results[0][2], r"rank 2 \(.+\) ended with an error of its own")

    def test_ranks_that_disagree(self):
        results = self.tcp(2, COMM_RANKS, "call", "1").finish()
        self.assertEqual({code for code, _, _ in results}, {DEVICE}, results)
        self.assertIn("the ranks of a group disagree on the count: rank ", results[0][2] + results[1][2])

    def test_a_failure_of_one_lane_ends_what_waits_on_another(self):
        for run in (self.tcp(3, COMM_RANKS, "lane", "1"), self.mpi(3, COMM_RANKS, "lane", "1")):
            began = time.monotonic()
            results = run.finish()
            for code, _, errors in results:
                if len(results) == 1:
                    self.check_aborted(code, DEVICE, errors)
                else:
                    self.assertEqual(code, DEVICE, errors)
            self.assertIn("the ranks of a group disagree on the count: rank ", "".join(text for *_, text in results))
            self.assert_within(time.monotonic() - began, REPORT_SECONDS + TIMEOUT_SECONDS + SLACK_SECONDS)


class LossUnderMpi(Processes):
    SIZE = 4

    def ranks_of(self, run):
        launcher = run.processes[0].pid
        ranks = {}
        for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            lines = Path(f"/proc/{child}/environ").read_text().split("\0")
            environment = dict(line.split("=", 1) for line in lines if "=" in line)
            ranks[int(environment["OMPI_COMM_WORLD_RANK"])] = int(child)
            self.job = int(environment["PMIX_NAMESPACE"])
        return ranks

    def lose(self, victim, signal_number):
        # mpirun sleeps for a second when a rank has died, and only then passes on the others' output.
        pipe = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "errors")
        os.mkfifo(pipe)
        ranks_say = Listener(pipe)
        run = self.mpi(self.SIZE, "bash", "-c", f'exec "$0" "$@" 2>{pipe}', COMM_RANKS, "sleep", "3")
        self.await_ready(run, self.SIZE)
        ranks = self.ranks_of(run)
        signalled = run.processes[0].pid if victim is None else ranks[victim]
        [code], told, seconds = run.lose([ranks_say, *run.listen([])], signalled, signal_number)
        errors = ranks_say.text
        deadline = time.monotonic() + SLACK_SECONDS
        while any(map(is_running, ranks.values())) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertFalse([process for process in ranks.values() if is_running(process)], "processes are left")
        return code, errors, told, seconds

    def test_killed(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                code, errors, told, seconds = self.lose(victim, signal.SIGKILL)
                self.assert_within(told, REPORT_SECONDS)
                self.check_aborted(code, 128 + signal.SIGKILL, errors)
                self.assertRegex(errors, rf"  rank {victim} \(.+\) is gone; last seen in all_reduce\(1 x f32, sum\), "
                                         r"4 B, of ranks 0,1,2,3; step 7; backward")
                self.assert_within(seconds, REPORT_SECONDS + SLACK_SECONDS)

    def test_stopped(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                code, errors, told, seconds = self.lose(victim, signal.SIGSTOP)
                self.assert_within(told, TIMEOUT_SECONDS + REPORT_SECONDS)
                self.check_aborted(code, DEVICE, errors)
                self.assertRegex(errors, rf"  rank {victim} \(.+\) is silent for more than 2 s")
                self.assert_within(seconds, TIMEOUT_SECONDS + REPORT_SECONDS + SLACK_SECONDS)

    def test_ranks_die_with_their_launcher(self):
        code, _, _, seconds = self.lose(None, signal.SIGKILL)
        self.assertEqual(code, -signal.SIGKILL)
        self.assert_within(seconds, SLACK_SECONDS)
        # Removes segments that only the launcher could have cleaned up.
        for segment in Path("/dev/shm").glob(f"vader_segment.*.{self.job:x}.*"):
            segment.unlink()

    def test_a_different_config(self):
        [(code, _, errors)] = self.mpi(2, COMM_RANKS, "config", "1").finish()
        self.check_aborted(code, DEVICE, errors)
        self.assertIn("): config b; rank 0 (", errors)


def main():
    global COMM_RANKS, GPTRAIN, HAS_MPI
    COMM_RANKS, GPTRAIN, HAS_MPI = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3] == "yes"
    program = unittest.main(argv=[sys.argv[0], *sys.argv[4:]], exit=False)
    return 0 if program.result.wasSuccessful() and program.result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
