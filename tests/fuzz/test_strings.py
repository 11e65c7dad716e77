#!/usr/bin/env python3
"""Control characters and line breaks in every string of every file that gptrain reads, in arguments and in names of
files: no control character reaches the terminal, no line of output is another's, and JSON stays JSON.

Run as test_strings.py GPTRAIN [--strings N] [--seed N]. N: strings of each kind of file (0: all of them).
"""
import argparse
import copy
import json
import os
import pty
import random
import re
import shutil
import subprocess
import sys
import tty
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("gptrain", type=os.path.abspath)
parser.add_argument("--strings", type=int, default=0)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("tests", nargs="*")
options = parser.parse_intermixed_args()
os.environ["GPTRAIN"] = options.gptrain

from cli_case import SOURCE_ROOT, CliCase, tiny_config
from hostile_files_cases import crc32c, sealed

# A title, a colour by two bytes and by one, a bell, a return to the line's start, and a line of its own.
HOSTILE = "\x1b]0;x\x07\x1b[31m\x9b31m\x7f\rx\n@@ forged"
UNICODE = "\u202e\u2028"  # text from right to left, and another end of a line
CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]")
FORGED = re.compile(rb"^@@", re.MULTILINE)


def mutants(value):
    """Yields copies of a JSON value with one string or key made hostile: the value, and where it changed."""
    def walk(node, path):
        if isinstance(node, dict):
            for key in node:
                yield path, key
                yield from walk(node[key], [*path, key])
        elif isinstance(node, list):
            for place, member in enumerate(node):
                yield from walk(member, [*path, place])
        elif isinstance(node, str):
            yield path, None

    for path, key in walk(value, []):
        changed = copy.deepcopy(value)
        parent = changed
        for step in path if key is not None else path[:-1]:
            parent = parent[step]
        if key is not None:
            parent[key + HOSTILE + UNICODE] = parent.pop(key)
        else:
            parent[path[-1]] += HOSTILE + UNICODE
        yield changed, [*path, key]


def some(values, seed):
    values = list(values)
    count = options.strings or len(values)
    return random.Random(f"{options.seed} {seed}").sample(values, min(count, len(values)))


class Strings(CliCase):
    def check(self, where, *command):
        """Returns the exit code and the output."""
        done = subprocess.run([options.gptrain, *map(str, command)], cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=120, check=False)
        self.assertGreaterEqual(done.returncode, 0, f"{command}: {done.stderr[-500:]}")
        self.check_output(f"{where}: {command}", done.stdout + b"\n" + done.stderr)
        if done.returncode == 0 and ("--json" in command or command[:2] == ("config", "show")):
            json.loads(done.stdout)
        return done.returncode, done.stdout + done.stderr

    def check_output(self, where, output):
        for kind in (CONTROLS, FORGED):
            found = kind.search(output)
            self.assertIsNone(found, f"{where} prints {found and output[max(0, found.start() - 80):found.end() + 20]}")

    def check_on_terminal(self, where, *command):
        """Checks the output on a terminal. Through a pipe, texts of models and corpora come raw."""
        main, terminal = pty.openpty()
        tty.setraw(terminal)
        process = subprocess.Popen([options.gptrain, *map(str, command)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=terminal, stderr=terminal)
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(main, 1 << 16):
                shown += part
        except OSError:  # the terminal's other side is closed
            pass
        os.close(main)
        self.assertGreaterEqual(process.wait(), 0, f"{command}: {shown[-500:]}")
        shown = shown.replace(b"\r", b"").replace(b"\x1b[K", b"")  # of lines of progress
        # Generated text is a result, with its lines.
        self.check_output(f"{where}: {command}", shown if command[0] != "generate" else shown.replace(b"\n", b" "))

    def check_file(self, name, value, *commands, text_of=json.dumps):
        sound = self.path(name).read_bytes() if self.path(name).exists() else None
        for number, (changed, where) in enumerate(some(mutants(value), name)):
            self.path(name).write_text(text_of(changed), encoding="utf-8")
            self.check(f"{name} {where}", *commands[number % len(commands)])
        if sound is not None:
            self.path(name).write_bytes(sound)

    def test_config(self):
        self.write_corpus()
        full = json.loads(re.sub(r"//.*", "", self.succeed("config", "show", self.write_config(tiny_config()))))
        self.check_file("mutant.json", full, ["config", "check", "mutant.json"], ["config", "show", "mutant.json"],
                        ["train", "mutant.json", "--dry-run"], ["train", "mutant.json", "--dry-run", "--json"])

    def test_manifest(self):
        self.train(self.write_run())
        path = self.checkpoint(6) / "manifest.json"
        body = json.loads(path.read_text(encoding="utf-8"))
        body.pop("crc32c")
        body.update(algorithms="matmul: 1", history=[{"step": 3, "changes": ["optimizer.lr: 1 -> 2"]}])
        commands = [["checkpoint", word, "out"] for word in ("inspect", "verify")]
        commands += [["checkpoint", "diff", "out", "out"], ["train", "run.json", "--resume"],
                     ["checkpoint", "average", "out", "out", "--out", "average"], ["checkpoint", "export", "out", "--hf", "hf"]]
        self.check_file(path.relative_to(self.folder), body, *commands,
                        text_of=lambda value: sealed(json.dumps(value, indent=2)[:-2]))

    def test_header_of_tensors(self):
        self.train(self.write_run())
        path, manifest = self.checkpoint(6) / "rank-00000.safetensors", self.checkpoint(6) / "manifest.json"
        data, body = path.read_bytes(), json.loads(manifest.read_text(encoding="utf-8"))
        body.pop("crc32c")
        end = 8 + int.from_bytes(data[:8], "little")
        for number, (changed, where) in enumerate(some(mutants(json.loads(data[8:end])), "header")):
            text = json.dumps(changed).encode()
            head = len(text).to_bytes(8, "little") + text
            path.write_bytes(head + data[end:])
            body["files"][0].update(bytes=len(head) + len(data) - end, header_crc32c=f"{crc32c(head):08x}")
            manifest.write_text(sealed(json.dumps(body, indent=2)[:-2]), encoding="utf-8")
            self.check(f"header {where}", "checkpoint", ("inspect", "verify")[number % 2], "out")

    def test_metadata_of_tokens(self):
        self.path("a.txt").write_text("some text\n" * 50, encoding="utf-8")
        self.succeed("data", "pack", "a.txt", "--out", "packed", "--tokenizer", "bytes")
        self.write_config(tiny_config(data={"train": [{"path": "packed"}]}))
        self.check_file("packed.meta.json", json.loads(self.path("packed.meta.json").read_text(encoding="utf-8")),
                        ["data", "inspect", "packed"], ["data", "verify", "packed"], ["train", "run.json"])

    def test_tokenizer(self):
        self.path("a.txt").write_text("some text and some more\n" * 50, encoding="utf-8")
        self.succeed("data", "train-tokenizer", "a.txt", "--vocab-size", "270", "--out", "tokenizer.json")
        value = json.loads(self.path("tokenizer.json").read_text(encoding="utf-8"))
        value["model"]["vocab"] = dict(list(value["model"]["vocab"].items())[:262])
        value["model"]["merges"] = value["model"]["merges"][:5]
        value["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
        self.check_file("mutant.json", value, ["data", "tokenize", "--tokenizer", "mutant.json", "some text"])

    def test_hugging_face(self):
        model = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 257, "sequence_length": 16}
        self.train(self.write_run(model=model))
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        config = json.loads(self.path("hf/config.json").read_text(encoding="utf-8"))
        self.check_file("hf/config.json", config, ["checkpoint", "import", "--hf", "hf", "imported"])

    def test_profiles(self):
        config = self.write_config(tiny_config())
        for option, folder in (("--target", "devices"), ("--cluster", "clusters")):
            profile = sorted((SOURCE_ROOT / "configs" / folder).glob("*.json"))[0]
            value = json.loads(re.sub(r"^\s*//.*", "", profile.read_text(encoding="utf-8"), flags=re.MULTILINE))
            target = [] if option == "--target" else ["--target", "h100"]
            self.check_file("profile.json", value, ["train", config, "--dry-run", *target, option, "profile.json"])

    def test_other_profiles(self):
        config = self.write_config(tiny_config())
        self.write_corpus()
        software = json.loads((SOURCE_ROOT / "configs/software/nemo.json").read_text(encoding="utf-8"))
        self.check_file("software.json", software, ["train", config, "--dry-run", "--target", "h100", "--software", "software.json"])
        points = re.sub(r"(?m)^\s*//.*", "", (SOURCE_ROOT / "configs/published/opt.json").read_text(encoding="utf-8"))
        self.check_file("points.json", json.loads(points.replace("../", f"{SOURCE_ROOT}/configs/")), ["plan", "--scale", "points.json"])

    def test_weights_of_hugging_face(self):
        self.train(self.write_run(model={"num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 257, "sequence_length": 16}))
        self.succeed("checkpoint", "export", "out", "--hf", "hf")
        path = self.path("hf/model.safetensors")
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        for changed, where in some(mutants(header), "weights"):
            text = json.dumps(changed).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
            self.check(f"model.safetensors {where}", "checkpoint", "import", "--hf", "hf", "imported")
            shutil.rmtree(self.path("imported"), ignore_errors=True)
        path.rename(self.path("hf/part.safetensors"))
        self.path("hf/part.safetensors").write_bytes(data)
        index = {"metadata": {"total_size": "9"}, "weight_map": {name: "part.safetensors" for name in header if name != "__metadata__"}}
        self.check_file("hf/model.safetensors.index.json", index, ["checkpoint", "import", "--hf", "hf", "imported"])

    def test_corpora(self):
        """Texts, names of files, and pieces of a tokenizer."""
        lines = [{"text": f"{HOSTILE} a text", HOSTILE: HOSTILE, "id": HOSTILE}] * 30
        for name, content in (("a.jsonl", "".join(json.dumps(line) + "\n" for line in lines)), ("b.jsonl", f'{{"text": "{HOSTILE}\n'),
                              (f"c{HOSTILE}.jsonl", '{"text": 1}\n'), (f"d{HOSTILE}.txt", HOSTILE), ("e.npy", f"\x93NUMPY\1\0v\0{HOSTILE}")):
            self.path(name).write_text(content, encoding="latin-1")
            self.check_on_terminal(name, "data", "pack", name, "--out", "packed", "--tokenizer", "bytes", "--on-bad-line", "skip")
            self.check_on_terminal(name, "data", "inspect", name)
        self.check_on_terminal("key", "data", "pack", "a.jsonl", "--out", "other", "--tokenizer", "bytes", "--text-key", HOSTILE)
        self.check_on_terminal("texts", "data", "inspect", "packed")
        self.check_on_terminal("ids", "data", "tokenize", "--tokenizer", "bytes", HOSTILE)
        sound = (SOURCE_ROOT / "tests/cli/sentencepiece.model").read_bytes()
        draw = random.Random(options.seed)
        for number in range(options.strings or 100):
            at = draw.choice([place.start() for place in re.finditer(rb"[a-z]{2}", sound)])
            self.path("m.model").write_bytes(sound[:at] + draw.choice((b"\x1b[", b"\xc2\x9b", b"\r\a")) + sound[at + 2:])
            self.check_on_terminal(f"piece {number}", "data", "tokenize", "--tokenizer", "m.model", "the license of the corpus\x1b[31m")

    def test_generated(self):
        self.train(self.write_run())
        for number in range(3):
            self.check_on_terminal("generated", "generate", "--checkpoint", "out", "--prompt", HOSTILE, "--tokens", 40,
                                   "--temperature", 5, "--seed", number, *(["--stream"] if number == 2 else []))

    def test_variables(self):
        config = self.write_run()
        place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
                 "GPTRAIN_SECRET": "a secret of tests"}
        for name in (*place, "PMI_RANK", "PMI_SIZE", "SLURM_NTASKS", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK"):
            done = subprocess.run([options.gptrain, "train", config, "--set", "comm.timeout_seconds=1"], cwd=self.folder,
                                  env={**os.environ, **(place if name in place else {}), name: HOSTILE}, capture_output=True,
                                  timeout=120, check=False)
            self.assertGreaterEqual(done.returncode, 0, name)
            self.check_output(name, done.stdout + b"\n" + done.stderr)

    def test_metrics(self):
        self.train(self.write_run(), "--steps", "3")
        record = self.records()[0]
        for changed, where in some(mutants(record), "metrics"):
            with self.path("out/metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(changed) + "\n" + HOSTILE + "\n")
            self.check(f"metrics {where}", "train", "run.json", "--resume", "--steps", "0")

    def test_parquet(self):
        """A column whose name has a line break, in the lists of a message."""
        data = (SOURCE_ROOT / "tests/cli/rows.parquet").read_bytes()
        self.path("a.parquet").write_bytes(data.replace(b"\x04text", b"\x04\n@@x"))
        self.check("column", "data", "pack", "a.parquet", "--out", "packed", "--tokenizer", "bytes")

    def commands(self, of):
        """Returns a valid command line of each command; of(name) gives the names of files."""
        config, tokens, text, out, new = of("run.json"), of("corpus"), of("a.txt"), of("out"), of("new")
        tokenizer, folder = of("tokenizer.json"), of("hf")
        return [
            ["data", "train-tokenizer", text, "--vocab-size", "270", "--out", tokenizer],
            ["data", "tokenize", "--tokenizer", tokenizer, "some text"],
            ["data", "pack", text, "--out", of("packed"), "--tokenizer", tokenizer], ["data", "inspect", of("packed")],
            ["data", "verify", tokens], ["data", "convert", tokens, of("b.npy"), "--to", "npy"], ["data", "mix", config],
            ["data", "join", tokens, of("packed"), "--out", of("joined")], ["config", "check", config], ["config", "show", config],
            ["train", config, "--dry-run", "--json", "--html", of("a.html")], ["train", config, "--steps", "3"], ["train", config, "--resume"],
            ["train", config, "--dry-run", "--trace", of("trace")],
            ["train", config, "--init-from", out, "--set", f"run.out={new}", "--steps", "0"], ["checkpoint", "inspect", out],
            ["checkpoint", "verify", out, "--deep"], ["checkpoint", "diff", out, new], ["checkpoint", "export", out, "--hf", folder],
            ["checkpoint", "average", out, out, "--out", of("mean")], ["checkpoint", "import", "--hf", folder, of("imported")],
            ["checkpoint", "upcycle", out, of("sparse"), "--moe", '{"experts": 4, "top_k": 2, "aux_loss": 0, "z_loss": 0}'],
            ["checkpoint", "prune", out, "--keep-last", "1"],
            ["generate", "--checkpoint", out, "--prompt", "x", "--tokens", "1"],
            ["plan", config, "--gpus", "1", "--out", of("best.json"), "--html", of("plan.html"), "--json"],
            ["plan", config, "--gpus", "1", "--sweep", "batch.micro=1,2", "--svg", of("a.svg")],
            ["plan", config, "--gpus", "1", "--sweep", "batch.micro=1,2", "--json"],
            ["bench", "comm", "--seconds", "0.0001", "--max-bytes", "64"], ["bench", "storage", of("."), "--bytes", "65536"],
            ["plan", "--estimate", "t5-11b"], ["help", "data", "pack"],
        ]

    def test_names_of_files(self):
        """Every command with hostile names of all files that it reads and writes; then one hostile word in each of them."""
        def of(name):
            return f"{name[:2]}{HOSTILE}{UNICODE}{name}" if name != "." else name
        self.write_corpus(of("corpus"), vocab_size=257)
        self.path(of("a.txt")).write_text("some text and some more\n" * 50, encoding="utf-8")
        model = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 270, "sequence_length": 16, "ffn_hidden_size": 32,
                 "bias": False, "norm": "rmsnorm", "positions": "rope", "activation": "swiglu"}
        self.write_config(tiny_config(model=model, data={"train": [{"path": of("corpus")}], "tokenizer": of("tokenizer.json")},
                                      run={"out": of("out")}), of("run.json"))
        valid = self.commands(of)
        for command in valid:
            code, output = self.check("names", *command)
            self.assertEqual(code, 0, f"{command}: {output}")
        # A prompt is written as it is given, with the text that follows it.
        words = [(command, place) for command in valid for place in range(1, len(command)) if command[place - 1] != "--prompt"]
        for command, place in some(words, "words") if options.strings else words:
            for bad in (HOSTILE + UNICODE, "\udcff\n@@"):
                self.check("word", *command[:place], command[place] + bad, *command[place + 1:])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *options.tests])
