"""Command lines: help, version, invalid arguments, and output that cannot be written."""
import json
import os
import re
import subprocess
import unittest

from cli_case import EXECUTABLE, FINISHED, SOURCE_ROOT, USAGE, CliCase, tiny_config

SCREEN_COLUMNS = 100


class Help(CliCase):
    def test_names_every_command_and_exit_code(self):
        text = self.succeed("--help")
        for word in ["train", "data", "checkpoint", "generate", "config", "0 finished", "1 internal error",
                     "2 bad command line or config", "3 bad data", "4 bad checkpoint", "5 device",
                     "6 training diverged", "7 this machine", "75 stopped by a signal"]:
            self.assertIn(word, text)

    def test_names_every_option(self):
        for command, options in {
            ("train",): ["--resume", "--steps", "--profile-step", "--set", "--dry-run", "--world-size", "--target",
                         "--json", "--trace"],
            ("data", "pack"): ["INPUT", "--out", "--tokenizer"],
            ("data", "inspect"): ["PREFIX", "--sample", "--tokenizer"],
            ("generate",): ["--checkpoint", "--prompt", "--tokens", "--temperature", "--top-k", "--seed"],
        }.items():
            text = self.succeed(*command, "--help")
            for option in options:
                self.assertIn(option, text)

    def test_version(self):
        project = (SOURCE_ROOT / "meson.build").read_text(encoding="utf-8")
        version = re.search(r"version: '([\d.]+)'", project).group(1)
        self.assertEqual(self.succeed("--version").strip(), version)


class BadCommandLines(CliCase):
    def test_missing_or_unknown_words(self):
        config = self.write_config(tiny_config())
        for arguments, messages in [
            ([], "A subcommand is required"),
            (["trian", config], "trian"),
            (["data"], "A subcommand is required"),
            (["data", "pakc"], "pakc"),
            (["checkpoint"], "A subcommand is required"),
            (["config"], "A subcommand is required"),
            (["train"], "CONFIG is required"),
            (["train", config, config], config),
            (["train", config, "--nonsense", "1"], "unknown option --nonsense (--help"),
            (["train", config, "1"], 'unexpected word "1" (--help'),
            (["train", config, "--set"], "--set"),
            (["train", config, "--resume", ""], '--resume "": names no folder (give latest'),
            (["train", config, "--resume="], "--resume=: a value must follow"),
            (["train", config, "--steps=", "3"], "--steps=: a value must follow"),
            (["config", "check"], "CONFIG is required"),
            (["data", "pack", "--out", "x", "--tokenizer", "bytes"], "INPUT is required"),
            (["data", "pack", config, "--tokenizer", "bytes"], "--out is required"),
            (["data", "pack", config, "--out", "x"], "--tokenizer is required"),
            (["data", "pack", config, "--out", "x", "--tokenizer", "gpt2"],
             "cannot read gpt2: No such file; the tokenizer of a model is a file of its folder"),
            (["data", "tokenize", "--tokenizer", "openai-community/gpt2", "x"],
             "cannot read openai-community/gpt2: No such file; the tokenizer of a model is a file of its folder"),
            (["data", "inspect"], "PREFIX is required"),
            (["checkpoint", "inspect"], "DIR is required"),
            (["checkpoint", "verify"], "DIR is required"),
            (["generate", "--prompt", "x"], "--checkpoint is required"),
            (["generate", "--checkpoint", "x"], "--prompt or --prompt-file is required"),
        ]:
            with self.subTest(arguments=arguments):
                error = self.refuse(USAGE, messages, *arguments)
                self.assertTrue(error.startswith("gptrain: "), error)

    def test_numbers_out_of_range(self):
        config = self.write_config(tiny_config())
        generate = ["generate", "--checkpoint", "x", "--prompt", "x"]
        for arguments in [
            ["train", config, "--steps", "-3"],
            ["train", config, "--steps", "many"],
            ["train", config, "--steps", "1.5"],
            ["train", config, "--steps", "9999999999999999999"],
            ["train", config, "--profile-step", "0"],
            ["train", config, "--dry-run", "--world-size", "0"],
            ["train", config, "--dry-run", "--tokens-per-second", "0"],
            ["data", "inspect", "x", "--sample", "-1"],
            [*generate, "--tokens", "0"],
            [*generate, "--temperature", "-1"],
            [*generate, "--temperature", "warm"],
            [*generate, "--temperature", "nan"],
            [*generate, "--top-k", "-1"],
            [*generate, "--seed", "-1"],
        ]:
            with self.subTest(arguments=arguments):
                error = self.refuse(USAGE, ["gptrain: ", arguments[-2], arguments[-1]], *arguments)
                self.assertLessEqual(max(map(len, error.splitlines())), 2 * SCREEN_COLUMNS, error)

    def test_options_that_need_or_exclude_another(self):
        config = self.write_config(tiny_config())
        for arguments, messages in [
            (["--world-size", "8"], ["--world-size", "--dry-run"]),
            (["--target", "h100"], ["--target", "--dry-run"]),
            (["--dry-run", "--cluster", "dgx-h100"], ["--cluster", "--target"]),
            (["--json"], ["--json", "--dry-run"]),
            (["--trace", "t.json"], ["--trace", "--dry-run"]),
            (["--dry-run", "--resume"], ["--resume", "--dry-run"]),
            (["--dry-run", "--profile-step", "2"], ["--profile-step", "--dry-run"]),
        ]:
            with self.subTest(arguments=arguments):
                self.refuse(USAGE, messages, "train", config, *arguments)


class Output(CliCase):
    def test_a_full_disk_is_no_success(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        config = self.write_run()
        for arguments in [["config", "schema"], ["config", "keys"], ["config", "show", config],
                          ["train", config, "--dry-run"], ["data", "inspect", "corpus"], ["--help"], ["--version"],
                          ["train", "--help"]]:
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                done = subprocess.run([EXECUTABLE, *arguments], cwd=self.folder, stdout=full, stderr=subprocess.PIPE,
                                      check=False, timeout=60)
                self.assertGreater(done.returncode, FINISHED, "killed by a signal, or no failure at all")
                self.assertIn(b"gptrain: ", done.stderr)
                self.assertIn(b"No space left on device", done.stderr)

    def test_names_longer_than_the_file_system_allows_are_no_crash(self):
        name = "x" * 5000
        sources = json.dumps([{"path": name}])
        config = self.write_run()
        for code, arguments in [
            (2, ["train", name]),
            (2, ["train", config, "--set", f"run.out={name}"]),
            (3, ["train", config, "--set", f"data.train={sources}"]),
            (0, ["train", config, "--set", f"data.train={sources}", "--dry-run"]),
            (4, ["train", config, "--resume", name]),
            (4, ["checkpoint", "inspect", name]),
            (4, ["checkpoint", "verify", name]),
            (4, ["generate", "--checkpoint", name, "--prompt", "x"]),
            (3, ["data", "inspect", name]),
            (3, ["data", "pack", name, "--out", "x", "--tokenizer", "bytes"]),
        ]:
            with self.subTest(arguments=arguments[:2]):
                result = self.run_gptrain(*arguments)
                self.assertEqual(result.code, code, result.err[:200])
                if code != FINISHED:
                    self.assertTrue(result.err.startswith("gptrain: "), result.err[:200])


if __name__ == "__main__":
    unittest.main()
