"""Standard streams that are closed, full or unread: no message may crash a run, and no run ends for lost lines."""
import json
import os
import subprocess

from cli_case import (CHECKPOINT, DATA, DEVICE, EXECUTABLE, FINISHED, TIMEOUT_SECONDS, USAGE, CliCase, not_of_some_cases,
                      overrides)

LOST_LINES = "warning: cannot write to standard output: {}; the run goes on without its lines\n"


class Streams(CliCase):
    def shell(self, command, *arguments):
        """Runs `command`, in which "$@" is gptrain with `arguments`; returns the exit code and the output."""
        done = subprocess.run(["bash", "-c", command, "bash", EXECUTABLE, *arguments], cwd=self.folder,
                              capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def assert_whole_run(self, out):
        """Checks that nothing except output lines was lost."""
        records = (self.path(out) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        self.assertEqual([json.loads(record)["step"] for record in records], [1, 2, 3, 4, 5, 6])
        self.assertEqual(self.checkpoint_steps(out), [6])
        self.assertEqual((self.path(out) / ".lock").read_bytes(), b"")

    def test_an_error_that_cannot_be_told_keeps_its_exit_code(self):
        config = self.write_run()
        for code, arguments in [
            (USAGE, ["train", "nosuch.json"]),
            (USAGE, ["train"]),
            (USAGE, ["trian"]),
            (USAGE, ["train", config, "--steps="]),
            (DATA, ["data", "inspect", "nosuch"]),
            (DATA, ["train", config, *overrides('data.train=[{"path": "nosuch"}]')]),
            (CHECKPOINT, ["checkpoint", "verify", "nosuch"]),
            (CHECKPOINT, ["generate", "--checkpoint", "nosuch", "--prompt", "x"]),
        ]:
            for streams in ("2>/dev/full", "2>&-", ">/dev/full 2>&1", ">&- 2>&-"):
                with self.subTest(arguments=arguments, streams=streams):
                    self.assertEqual(self.shell(f'"$@" {streams}', *arguments)[0], code)

    def test_output_that_is_all_there_is_to_a_command(self):
        config = self.write_run()
        for streams in (">/dev/full", ">&-", ">/dev/full 2>&1", ">/dev/full 2>&-"):
            with self.subTest(streams=streams):
                self.assertEqual(self.shell(f'"$@" {streams}', "config", "show", config)[0], DEVICE)

    @not_of_some_cases
    def test_a_run_goes_on_without_its_lines(self):
        config = self.write_run()
        for number, (streams, reason) in enumerate([
            (">/dev/full", "No space left on device"), (">&-", "Bad file descriptor"), ("0<&- >&-", "Bad file descriptor"),
            (">/dev/full 2>&1", None), (">&- 2>&-", None), ("0<&- >&- 2>&-", None), ("2>&-", None),
        ]):
            with self.subTest(streams=streams):
                out = f"out-{number}"
                code, _, err = self.shell(f'"$@" {streams}', "train", config, *overrides(f"run.out={out}"))
                self.assertEqual(code, FINISHED, err)
                self.assert_whole_run(out)
                if reason:
                    self.assertIn(LOST_LINES.format(reason), err)
                    self.assertEqual(err.count("cannot write"), 1)

    def test_a_run_outlives_the_reader_of_its_lines(self):
        config = self.write_run()
        code, _, err = self.shell('set -o pipefail; "$@" | true', "train", config)
        self.assertEqual(code, FINISHED, err)
        self.assert_whole_run("out")
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as broken:
            done = subprocess.run([EXECUTABLE, "train", config, *overrides("run.out=other")], cwd=self.folder,
                                  stdout=broken, stderr=subprocess.PIPE, timeout=TIMEOUT_SECONDS, check=False)
        self.assertEqual((done.returncode, done.stderr.decode().count(LOST_LINES.format("Broken pipe"))), (FINISHED, 1))
        self.assert_whole_run("other")
