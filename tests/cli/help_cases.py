"""Help texts: `gptrain help`, and the examples of every command, which run as they stand."""
import glob
import re
import shlex
import shutil
import unittest

from cli_case import END_OF_DOCUMENT, SOURCE_ROOT, USAGE, CliCase, tiny_config

# Command lines in the help of a command.
EXAMPLE = re.compile(r"^(?:Example: |  )(gptrain .*)$", re.MULTILINE)
# Examples run in this order, as the others need their files.
FIRST = ["gptrain data pack data/corpus/train.txt --out data/corpus/train ", "gptrain data train-tokenizer",
         "gptrain data", "gptrain train", "gptrain checkpoint export"]
# Measures for many seconds.
LONG = "gptrain bench device"
SCREEN_COLUMNS, SCREEN_LINES = 100, 40


class Help(CliCase):
    def helps(self, *command):
        """Returns {command: its help}, subcommands included."""
        text = self.succeed("help", *command)
        helps = {" ".join(("gptrain", *command)): text}
        listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.MULTILINE)
        for name in re.findall(r"^  (\S+)", listed.group(1), re.MULTILINE) if listed else []:
            helps.update(self.helps(*command, name))
        return helps

    def write_files_of_examples(self):
        for folder in ["configs", "data/corpus", "runs"]:
            self.path(folder).mkdir(parents=True)
        for name in ["gpt2-124m.json", "gpt3-13b.json"]:
            shutil.copy(SOURCE_ROOT / "configs" / name, self.path("configs"))
        self.write_config(tiny_config(data={"train": [{"path": "data/corpus/train"}]}, run={"out": "runs/demo"},
                                      checkpoint={"every_steps": 3, "keep_last": 2}),
                          "configs/demo.json")
        text = "".join(f"word{i % 97} " for i in range(2000))
        self.path("data/corpus/train.txt").write_text(text, encoding="utf-8")
        self.write_corpus("data/corpus/heldout", vocab_size=END_OF_DOCUMENT)
        self.write_config(tiny_config(model={"bias": False}, data={"train": [{"path": "data/corpus/heldout"}]},
                                      run={"out": "runs/llama"}), "configs/llama.json")
        self.succeed("train", "configs/llama.json", "--steps", "1")

    def words_of(self, example):
        """Returns the words of a command line after the program, as a shell makes them: patterns are files."""
        words = []
        for word in shlex.split(example)[1:]:
            words += sorted(glob.glob(word, root_dir=self.path("."))) or [word] if "*" in word else [word]
        return words

    def test_every_help_fits_a_screen(self):
        helps = self.helps()
        for command, text in helps.items():
            with self.subTest(command=command):
                lines = text.splitlines()
                self.assertGreater(len(lines), 3)
                # The top-level help fits the smallest of screens.
                self.assertLessEqual(len(lines), SCREEN_LINES if command != "gptrain" else 24)
                self.assertLessEqual(max(map(len, lines)), SCREEN_COLUMNS if command != "gptrain" else 80)
        self.assertLessEqual({"gptrain plan", "gptrain data tokenize", "gptrain checkpoint upcycle", "gptrain bench storage"},
                             set(helps))

    def test_help_prints_what_the_option_prints(self):
        for command in [[], ["train"], ["data", "pack"]]:
            self.assertEqual(self.succeed("help", *command), self.succeed(*command, "--help"))
        self.refuse(USAGE, 'unknown command "pakc" (see gptrain help)', "help", "data", "pakc")

    def test_examples_run(self):
        examples = []
        for command, text in self.helps().items():
            found = EXAMPLE.findall(text)
            self.assertTrue(found, f"{command} has no example")
            examples += found
        self.write_files_of_examples()
        place = {example: next((i for i, first in enumerate(FIRST) if example.startswith(first)), len(FIRST))
                 for example in examples}
        for example in sorted(place, key=place.get):
            if example.startswith(LONG):
                continue
            with self.subTest(example=example):
                self.succeed(*self.words_of(example))


if __name__ == "__main__":
    unittest.main()
