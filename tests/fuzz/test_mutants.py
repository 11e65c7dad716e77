#!/usr/bin/env python3
"""Inputs that nobody would write by hand: mutated configs, damaged files, failing system calls. Each run ends with a
documented code and a message, none by a signal, and its results and saved data are right.

Run as test_mutants.py GPTRAIN SHORT_WRITES [--configs N] [--files N] [--others N] [--errors N] [--seed N] [TEST...]; SHORT_WRITES
is the preload library built from short_writes.cpp.
"""
import argparse
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

from hostile_files_cases import crc32c, sealed

FINISHED, USAGE, DATA, CHECKPOINT, DEVICE, MACHINE, REQUEUE = 0, 2, 3, 4, 5, 7, 75
DOCUMENTED = {FINISHED, USAGE, DATA, CHECKPOINT, DEVICE, MACHINE}
HANG_SECONDS = 300  # generous: a long computation on a busy machine is no hang
RANK_FILE = "rank-00000.safetensors"

# Integers at which arithmetic breaks, near the limits of keys and of types.
EDGES = [0, 1, 2, 3, 7, 64, 255, 256, 1000, 4095, 4096, 8191, 10_000, 65_535, 65_536, 2**20, 2**22, 2**24, 2**30, 2**31 - 1,
         2**31, 2**32, 10**12, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, -2**63, 10**30]
ODD = [None, True, "", "x", "\0", "é" * 50, [], {}, [1], {"a": 1}, 1e300, -1e-300, 0.5, float("inf"), [[[]]], "auto", "fp8", "x" * 5000]
FIGURES = re.compile(r"(_bytes|_parameters|_flops_per_step|tokens|_flops|parameters)$")


class Mutants(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gptrain-mutants-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.draw = random.Random(SEED)

    def run_gptrain(self, *arguments, before=(), **variables):
        try:
            done = subprocess.run([*before, GPTRAIN, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=HANG_SECONDS, check=False, env={**os.environ, **variables})
        except subprocess.TimeoutExpired:
            mutant = self.folder / "mutant.json"
            self.fail(f"{before} {arguments} hangs: {mutant.read_text(errors='replace') if mutant.exists() else before}")
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def check_end(self, code, err, what):
        self.assertIn(code, DOCUMENTED, f"{what}: {err[-2000:]}")
        if code != FINISHED:
            self.assertIn("gptrain: ", err, what)
            self.assertNotIn("internal error", err, what)

    def write_run(self, steps=4, **run):
        text = "".join(chr(97 + i * i % 23) for i in range(3000))
        (self.folder / "a.txt").write_text(text)
        self.assertEqual(self.run_gptrain("data", "pack", "a.txt", "--out", "corpus", "--tokenizer", "bytes")[0], 0)
        config = {"model": {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "vocab_size": 257, "sequence_length": 16},
                  "data": {"train": [{"path": "corpus"}]}, "batch": {"global": 4, "micro": 2}, "optimizer": {"lr": 0.01},
                  "checkpoint": {"every_steps": 2}, "run": {"steps": steps, "out": "out", "threads": 1, **run}}
        (self.folder / "run.json").write_text(json.dumps(config))
        return config


    def check_figures(self, plan, text):
        def walk(value, name):
            if isinstance(value, dict):
                for key, member in value.items():
                    walk(member, key)
            elif isinstance(value, (int, float)) and FIGURES.search(name):
                self.assertGreaterEqual(value, 0, f"{name} of {text}")
        walk(plan, "")
        classes = [value for key, value in plan.items() if key.endswith("_bytes") and not key.startswith("host_") and key not in (
            "peak_bytes", "checkpoint_bytes", "target_memory_bytes")]
        self.assertEqual(sum(classes), plan["peak_bytes"], text)
        self.assertEqual(sum(plan["parameters_by_part"].values()), plan["total_parameters"], text)
        if plan["peak_bytes"] > plan["target_memory_bytes"]:
            self.assertFalse(plan["fits"], text)

    def damage(self, content):
        data = bytearray(content)
        kind = self.draw.randrange(6)
        at = self.draw.randrange(len(data))
        if kind == 0:
            data[at] ^= 1 << self.draw.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at + 8] = self.draw.choice([b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7])
        elif kind == 3:
            del data[at:at + self.draw.randrange(1, 40)]
        elif kind == 4:
            data[at:at] = data[self.draw.randrange(len(data)):][:50] or b"x"
        else:
            # The bytes in which formats keep their sizes.
            at = self.draw.randrange(min(64, len(data)))
            data[at] = self.draw.randrange(256)
        return bytes(data)


    def leaf_changed(self, content):
        """Returns the JSON with another value in one place."""
        places, whole = [], [json.loads(content)]
        def walk(value):
            for key in value if isinstance(value, dict) else range(len(value)):
                places.append((value, key))
                if isinstance(value[key], (dict, list)):
                    walk(value[key])
        walk(whole)
        numbers = [(container, key) for container, key in places if isinstance(container[key], (int, float))]
        container, key = self.draw.choice(numbers if self.draw.random() < 0.7 else places)
        other = [self.draw.choice(EDGES), self.draw.choice(ODD)]
        if (container, key) in numbers:
            other += 4 * [container[key] * self.draw.choice((0.01, 0.5, 2, 100))]
        container[key] = self.draw.choice(other)
        return json.dumps(whole[0]).encode()


class Configs(Mutants):
    """Dry runs of mutated configs: each is refused, or prints consistent figures."""

    def mutant(self, config, schema):
        config = copy.deepcopy(config)
        for _ in range(self.draw.choice((1, 1, 2, 3, 6))):
            section = self.draw.choice(sorted(schema))
            key = self.draw.choice(sorted(schema[section]["properties"]))
            field = schema[section]["properties"][key]
            choices = [lambda: self.draw.choice(EDGES), lambda: self.draw.choice(ODD)]
            if "maximum" in field:
                choices += 3 * [lambda: field["maximum"], lambda: self.draw.choice((field.get("minimum", 0), field["maximum"] - 1))]
            if "enum" in field:
                choices += 3 * [lambda: self.draw.choice(field["enum"])]
            config.setdefault(section, {})[key] = self.draw.choice(choices)()
        return config

    def text_of(self, config):
        text = json.dumps(config)
        if self.draw.randrange(10) == 0:
            at = self.draw.randrange(len(text))
            text = text[:at] + self.draw.choice(("", "[", "}", '"', "//", "\x00", "\x7f", "9" * 400, "[" * 70)) + text[at + 1:]
        return text

    def test_mutants(self):
        base = self.write_run()
        schema = json.loads(self.run_gptrain("config", "schema")[1])["properties"]
        planned = 0
        for number in range(CONFIGS):
            text = self.text_of(self.mutant(base, schema))
            (self.folder / "mutant.json").write_text(text, encoding="utf-8")
            target = ["--target", "h100"] if number % 2 else []
            code, out, err = self.run_gptrain("train", "mutant.json", "--dry-run", "--json", *target)
            self.check_end(code, err, text)
            self.assertLess(max(map(len, err.splitlines()), default=0), 1500, text)
            if code == FINISHED:
                planned += 1
                self.check_figures(json.loads(out), text)
        print(f"{CONFIGS} mutants of a config, {planned} of them planned")


class Files(Mutants):
    """Damaged files of a run: every reader refuses them, or reads the original content."""

    def test_damaged(self):
        self.write_run()
        self.assertEqual(self.run_gptrain("train", "run.json")[0], FINISHED)
        shutil.copytree(self.folder / "out", self.folder / "sound")
        targets = {f"out/checkpoints/step-00000004/{RANK_FILE}": (CHECKPOINT, [["checkpoint", "verify", "out"], ["train", "run.json", "--resume"]]),
                   "out/checkpoints/step-00000004/manifest.json": (CHECKPOINT, [["checkpoint", "verify", "out"], ["train", "run.json", "--resume"]]),
                   "out/metrics.jsonl": (None, [["train", "run.json", "--resume"]]),
                   "corpus.idx": (DATA, [["data", "verify", "corpus"]]), "corpus.bin": (DATA, [["data", "verify", "corpus"]]),
                   "corpus.meta.json": (None, [["data", "verify", "corpus"]])}
        sound = {name: (self.folder / name).read_bytes() for name in targets}
        for number in range(FILES):
            name = sorted(targets)[number % len(targets)]
            expected, commands = targets[name]
            damaged = self.damage(sound[name])
            (self.folder / name).write_bytes(damaged)
            command = self.draw.choice(commands)
            code, _, err = self.run_gptrain(*command)
            self.check_end(code, err, f"{name}, {command}")
            if expected is not None and damaged != sound[name]:
                self.assertEqual(code, expected, f"{name}, damage {number}: {err}")
            if "out/" in name:
                shutil.rmtree(self.folder / "out")
                shutil.copytree(self.folder / "sound", self.folder / "out")
            (self.folder / name).write_bytes(sound[name])
        print(f"{FILES} damaged files")


class Profiles(Mutants):
    """Damaged profiles of a device, a cluster and software: a dry run refuses them, or plans consistent figures."""

    def test_damaged(self):
        self.write_run()
        shipped = Path(__file__).resolve().parents[2] / "configs"
        profiles = {"target": "devices/h100-sxm.json", "cluster": "clusters/dgx-h100.json", "software": "software/megatron-lm.json"}
        sound = {name: (shipped / path).read_bytes() for name, path in profiles.items()}
        for name, content in sound.items():
            (self.folder / f"{name}.json").write_bytes(content)
        command = ["train", "run.json", "--dry-run", "--json", *(word for name in profiles for word in (f"--{name}", f"{name}.json"))]
        self.assertEqual(self.run_gptrain(*command)[0], FINISHED)
        planned = 0
        for number in range(FILES):
            name = sorted(profiles)[number % len(profiles)]
            change = self.leaf_changed if self.draw.random() < 0.7 else self.damage
            content = change(sound[name])
            (self.folder / f"{name}.json").write_bytes(content)
            code, out, err = self.run_gptrain(*command)
            self.check_end(code, err, f"{name}: {content}")
            if code == FINISHED:
                planned += 1
                self.check_figures(json.loads(out), content)
            (self.folder / f"{name}.json").write_bytes(sound[name])
        print(f"{FILES} damaged profiles, {planned} of them planned")


class SealedFiles(Mutants):
    """Changes values in a manifest or a header, below right checksums: a run takes all that `verify` calls sound."""

    def test_changed(self):
        self.write_run()
        self.assertEqual(self.run_gptrain("train", "run.json")[0], FINISHED)
        shutil.copytree(self.folder / "out", self.folder / "sound")
        folder = self.folder / "out/checkpoints/step-00000004"
        manifest, content = json.loads((folder / "manifest.json").read_bytes()), (folder / RANK_FILE).read_bytes()
        manifest.pop("crc32c")
        end, taken = 8 + int.from_bytes(content[:8], "little"), 0
        for number in range(OTHERS):
            body = copy.deepcopy(manifest)
            if number % 2:
                header = self.leaf_changed(content[8:end])
                header = len(header).to_bytes(8, "little") + header
                (folder / RANK_FILE).write_bytes(header + content[end:])
                body["files"][0].update(bytes=len(header) + len(content) - end, header_crc32c=f"{crc32c(header):08x}")
            else:
                body = json.loads(self.leaf_changed(json.dumps(manifest)))
            text = sealed(json.dumps(body, indent=2)[:-2])
            (folder / "manifest.json").write_text(text, encoding="utf-8")
            verified, _, err = self.run_gptrain("checkpoint", "verify", folder)
            self.check_end(verified, err, f"verify of {text}")
            code, _, resumed = self.run_gptrain("train", "run.json", "--resume", "--set", "run.steps=5")
            self.check_end(code, resumed, f"resume from {text}")
            if verified == FINISHED:
                taken += 1
                self.assertIn(code, (FINISHED, USAGE, DATA), f"sound, and not taken: {resumed}\n{text}")
            shutil.rmtree(self.folder / "out")
            shutil.copytree(self.folder / "sound", self.folder / "out")
        print(f"{OTHERS} values changed below right checksums, {taken} of them sound")


class OtherFiles(Mutants):
    """Damaged parts of several ranks, files that a run keeps for itself, Hugging Face folders, flat files of tokens,
    published steps: a documented code, and never another result."""

    def check_damage(self, name, *commands, damage=None, expected=None):
        """Damages a file, and runs one of some commands."""
        path = self.folder / name
        sound = path.read_bytes()
        damaged = sound
        while damaged == sound:
            damaged = (damage or self.damage)(sound)
        path.write_bytes(damaged)
        command = self.draw.choice(commands)
        code, _, err = self.run_gptrain(*command)
        self.check_end(code, err, f"{name}, {command}")
        if expected is not None:
            self.assertEqual(code, expected, f"{name}: {err}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sound)
        return code

    def test_parts_of_ranks(self):
        config = self.write_run()
        (self.folder / "four.json").write_text(json.dumps({**config, "parallel": {"tensor": 2, "zero": 1}}))
        self.assertEqual(self.run_gptrain("train", "four.json", "--ranks", 4)[0], FINISHED)
        shutil.copytree(self.folder / "out", self.folder / "sound")
        for _ in range(OTHERS):
            rank = f"out/checkpoints/step-00000004/rank-{self.draw.randrange(4):05}.safetensors"
            self.check_damage(rank, ["checkpoint", "verify", "out"], ["train", "run.json", "--resume", "--set", "run.steps=6"],
                              ["train", "four.json", "--ranks", 4, "--resume", "--set", "run.steps=6"], expected=CHECKPOINT)
        print(f"{OTHERS} damaged parts of ranks")

    def test_files_of_a_run(self):
        self.write_run()
        self.assertEqual(self.run_gptrain("train", "run.json", "--set", "run.out=whole")[0], FINISHED)
        expected = (self.folder / "whole/checkpoints/step-00000004" / RANK_FILE).read_bytes()
        self.assertEqual(self.run_gptrain("train", "run.json", "--steps", 2)[0], FINISHED)
        shutil.copytree(self.folder / "out", self.folder / "sound")
        names = sorted(path.relative_to(self.folder) for path in (self.folder / "out").rglob("*")
                       if path.is_file() and "step-" not in str(path) and path.stat().st_size > 0)
        self.assertGreater(len(names), 3)
        for _ in range(OTHERS):
            name = self.draw.choice(names)
            if self.check_damage(name, ["train", "run.json", "--resume"]) == FINISHED:
                self.assertEqual((self.folder / "out/checkpoints/step-00000004" / RANK_FILE).read_bytes(), expected, str(name))
            shutil.rmtree(self.folder / "out")
            shutil.copytree(self.folder / "sound", self.folder / "out")
        print(f"{OTHERS} damaged files among {', '.join(map(str, names))}")

    def test_hugging_face(self):
        self.write_run()
        self.assertEqual(self.run_gptrain("train", "run.json")[0], FINISHED)
        self.assertEqual(self.run_gptrain("checkpoint", "export", "out", "--hf", "hf")[0], FINISHED)
        imported = 0
        for number in range(OTHERS):
            name = ("hf/config.json", "hf/model.safetensors")[number % 2]
            changed = self.leaf_changed if number % 2 == 0 and self.draw.random() < 0.7 else None
            if self.check_damage(name, ["checkpoint", "import", "--hf", "hf", "imported"], damage=changed) == FINISHED:
                imported += 1
                code, _, err = self.run_gptrain("checkpoint", "verify", "imported")
                self.assertEqual(code, FINISHED, err)
            shutil.rmtree(self.folder / "imported", ignore_errors=True)
        print(f"{OTHERS} damaged files of Hugging Face, {imported} of them imported")

    def test_flat_files(self):
        self.write_run()
        names = {"flat.bin": "llm.c", "flat-nano.bin": "nanogpt", "flat.npy": "npy"}
        for name, kind in names.items():
            self.assertEqual(self.run_gptrain("data", "convert", "corpus", name, "--to", kind)[0], FINISHED)
        for number in range(OTHERS):
            name = sorted(names)[number % len(names)]
            self.check_damage(name, ["data", "verify", name], ["data", "inspect", name], ["data", "convert", name, "again"],
                              ["train", "run.json", "--set", f'data.train=[{{"path": "{name}"}}]', "--set", "run.out=flat"])
            for path in [*self.folder.glob("again*"), self.folder / "flat"]:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        print(f"{OTHERS} damaged flat files")

    def test_published(self):
        configs = Path(__file__).resolve().parents[2] / "configs"
        published = re.sub(r"(?m)^\s*//.*", "", (configs / "published/opt.json").read_text()).replace("../", f"{configs}/")
        (self.folder / "points.json").write_text(published)
        command = ["plan", "--scale", "points.json"]
        self.assertEqual(self.run_gptrain(*command)[0], FINISHED)
        for _ in range(OTHERS):
            self.check_damage("points.json", command, damage=self.leaf_changed if self.draw.random() < 0.7 else None)
        print(f"{OTHERS} damaged files of published steps")


class SystemCalls(Mutants):
    """System errors in calls of a save and of a resume."""

    ERRORS = {"openat": ["EIO", "EACCES", "EMFILE", "ENOSPC"], "write": ["EIO", "ENOSPC", "EDQUOT", "EINTR"],
              "fsync": ["EIO", "ENOSPC", "EINTR"], "pread64": ["EIO", "EINTR"], "read": ["EIO", "EINTR"]}
    OF_FOLDER = re.compile(r'"(\./)?out[/"]|<[^>]*/out[/>]')

    def trace(self, inject=()):
        """Traces every call that names a file, by path or by descriptor."""
        return ["strace", "-f", "-qq", "-y", "-e", "trace=%file,%desc", "-o", str(self.folder / "strace.log"), *inject]

    def traced(self):
        return (self.folder / "strace.log").read_text(errors="replace").splitlines()

    def points(self, *arguments, beside=False):
        """Returns (call, its number among the thread's calls of that name) for all that touch the run's folder: of the
        first thread, or with `beside` of the other threads."""
        code, _, err = self.run_gptrain(*arguments, before=self.trace())
        self.assertEqual(code, FINISHED, err)
        counts, found, first_thread = {}, set(), None
        for line in self.traced():
            call = re.match(r"(\d+) +(\w+)\(", line)
            if call:
                first_thread = first_thread or call[1]
                counts[call[0]] = counts.get(call[0], 0) + 1
                if self.OF_FOLDER.search(line) and (call[1] != first_thread) == beside:
                    found.add((call[2], counts[call[0]]))
        return sorted(found)

    def chosen(self, save, resume):
        """Returns as many points as there are errors to inject; every point, if these are few enough."""
        points = [(False, *point) for point in save] + [(True, *point) for point in resume]
        if len(points) > ERRORS:
            return self.draw.sample(points, ERRORS)
        return points + [self.draw.choice(points) for _ in range(ERRORS - len(points))]

    def test_errors(self):
        missed = self.check_errors(["--set", "checkpoint.asynchronous=false"])
        self.assertEqual(missed, 0)

    def test_errors_beside_the_steps(self):
        # Errors are counted by call, also in other threads: some end the program before it writes anything.
        missed = self.check_errors(["--set", "checkpoint.asynchronous=true"], beside=True)
        self.assertLess(missed, ERRORS / 2)

    def check_errors(self, settings, beside=False):
        """Returns the number of errors that did not hit the run's folder."""
        if shutil.which("strace") is None or subprocess.run(["strace", "-qq", "true"], capture_output=True, check=False).returncode:
            self.skipTest("no strace here")
        os.environ["GOMP_SPINCOUNT"] = "1000"  # else the program restarts itself
        self.write_run()
        self.assertEqual(self.run_gptrain("train", "run.json", "--set", "run.out=whole")[0], FINISHED)
        expected = (self.folder / "whole/checkpoints/step-00000004" / RANK_FILE).read_bytes()
        first = ["train", "run.json", "--steps", "3", *settings]
        again = ["train", "run.json", "--resume", *settings]
        save = self.points(*first, beside=beside)
        shutil.copytree(self.folder / "out", self.folder / "begun")
        resume = self.points(*again, beside=beside)
        for call in ("openat", "write", "fsync") if beside else ("openat", "write", "fsync", "flock"):
            self.assertIn(call, [name for name, _ in save])
        self.failed, missed, hit = 0, 0, set()
        for is_resume, call, when in self.chosen(save, resume):
            errors = self.ERRORS.get(call, ["EIO", "EACCES", "ENOSPC"])
            error = self.draw.choice(errors) if (is_resume, call, when) in hit else errors[0]
            hit.add((is_resume, call, when))
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            if is_resume:
                shutil.copytree(self.folder / "begun", self.folder / "out")
            with self.subTest(error=error, call=call, when=when, is_resume=is_resume):
                injection = f"{call}:error={error}:when={when}"
                if not self.inject(again if is_resume else first, again, injection, expected):
                    missed += 1
        calls = len(save) + len(resume)
        self.assertEqual(len(hit), min(calls, ERRORS))
        print(f"{ERRORS} errors at {len(hit)} of the {calls} calls of a save ({len(save)}) and a resume ({len(resume)}); "
              f"{self.failed} ended the run, {missed} did not come to its folder")
        return missed

    def inject(self, command, again, injection, expected):
        """Returns True if the error hit a call on the run's folder."""
        code, _, err = self.run_gptrain(*command, before=self.trace(["-e", f"inject={injection}"]))
        what = f"{injection} of {command[2:]}: {err}"
        if not any("(INJECTED)" in line and self.OF_FOLDER.search(line) for line in self.traced()):
            return False
        # The same error may hit the message, which another thread writes.
        if any("(INJECTED)" in line and " write(2<" in line for line in self.traced()):
            self.assertIn(code, DOCUMENTED, what)
        else:
            self.check_end(code, err, what)
        self.failed += code != FINISHED
        lost_line = "cannot write out/metrics.jsonl" in err
        if "EINTR" in injection:
            self.assertEqual(code, FINISHED, what)
        # In any case the run resumes from the existing state to the same bits.
        code, _, err = self.run_gptrain(*again)
        self.assertEqual(code, FINISHED, f"resume after {what}: {err}")
        self.assertEqual((self.folder / "out/checkpoints/step-00000004" / RANK_FILE).read_bytes(), expected, what)
        steps = [json.loads(line)["step"] for line in (self.folder / "out/metrics.jsonl").read_text().splitlines()]
        # A line that could not be written ends the run with a message.
        self.assertLessEqual(len(set(range(1, 5)) - set(steps)), 1 if lost_line else 0, what)
        self.assertEqual(steps, sorted(set(steps)), what)
        return True

    def test_short_writes(self):
        self.write_run()
        self.assertEqual(self.run_gptrain("train", "run.json", "--set", "run.out=whole")[0], FINISHED)
        for arguments in (["--steps", "3"], ["--resume"]):
            code, _, err = self.run_gptrain("train", "run.json", *arguments, LD_PRELOAD=str(SHORT_WRITES))
            self.assertEqual(code, FINISHED, err)
        for name in (f"checkpoints/step-00000004/{RANK_FILE}", "config.json"):
            whole = (self.folder / "whole" / name).read_bytes().replace(b'"whole"', b'"out"')
            self.assertEqual((self.folder / "out" / name).read_bytes(), whole, name)
        self.assertEqual(self.run_gptrain("checkpoint", "verify", "out")[0], FINISHED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("gptrain", type=Path)
    parser.add_argument("short_writes", type=Path)
    parser.add_argument("--configs", type=int, default=60)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--others", type=int, default=4, help="files of each kind in SealedFiles and OtherFiles")
    parser.add_argument("--errors", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("tests", nargs="*")
    arguments = parser.parse_intermixed_args()
    GPTRAIN, SHORT_WRITES = arguments.gptrain.resolve(), arguments.short_writes.resolve()
    CONFIGS, FILES, OTHERS, ERRORS, SEED = arguments.configs, arguments.files, arguments.others, arguments.errors, arguments.seed
    unittest.main(argv=[sys.argv[0], *arguments.tests])
