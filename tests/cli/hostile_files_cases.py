"""Files that somebody made up: checkpoints whose parts do not belong together, JSON without end, values that cannot be."""
import json
import re
import shutil
import struct
import time

from cli_case import CHECKPOINT, FINISHED, USAGE, overrides
from checkpoints_cases import RANK_FILE, CheckpointCase

DEEP = 100_000
CASTAGNOLI = 0x82F63B78


def _crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (CASTAGNOLI if value & 1 else 0)
        table.append(value)
    return table


CRC_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def sealed(manifest_body):
    """The text of a manifest, with the checksum that it ends with."""
    return manifest_body + f',\n  "crc32c": "{crc32c(manifest_body.encode()):08x}"\n}}\n'


class HostileCase(CheckpointCase):
    READERS = [["checkpoint", "verify", "out"], ["checkpoint", "export", "out", "--hf", "hf"],
               ["generate", "--checkpoint", "out", "--prompt", "x"], ["train", "run.json", "--resume"]]

    def edit_manifest(self, change, step=6):
        """Puts change(manifest's text without its checksum) in place of the manifest of `step`."""
        path = self.checkpoint(step) / "manifest.json"
        body = path.read_text(encoding="utf-8").rsplit(',\n  "crc32c"', 1)[0]
        changed = change(body)
        self.assertNotEqual(changed, body)
        path.write_text(sealed(changed), encoding="utf-8")

    def edit_header(self, change, step=6):
        """Puts change(header) in place of a rank's header, and its checksum into the manifest."""
        path = self.checkpoint(step) / RANK_FILE
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        text = change(data[8:end].decode())
        head = struct.pack("<Q", len(text.encode())) + text.encode()
        path.write_bytes(head + data[end:])
        size = path.stat().st_size
        self.edit_manifest(lambda body: re.sub(r'"bytes": \d+', f'"bytes": {size}', re.sub(
            r'"header_crc32c": "\w+"', f'"header_crc32c": "{crc32c(head):08x}"', body)))

    def refuse_by_all(self, messages):
        for command in self.READERS:
            with self.subTest(command=command):
                self.refuse(CHECKPOINT, messages, *command)
                self.assertFalse(self.path("hf").exists())


class ForeignConfig(HostileCase):
    """The config of a manifest that describes another model than the one that is stored."""

    def config_with(self, key, value):
        def change(body):
            changed = re.sub(rf'(\\"{key}\\": )(\\"\w+\\"|[^,\\]+)', rf"\g<1>{value}", body, count=1)
            self.assertNotEqual(changed, body, f"there is no {key}")
            return changed
        return change

    def test_sizes(self):
        not_its_own = "out/checkpoints/step-00000006 does not hold the model of its own config:\n"
        sound = (self.checkpoint(6) / "manifest.json").read_bytes()
        for key, value, messages in [
            ("hidden_size", 16, ['tensor "exp_avg/blocks.0.attention.qkv.weight" has shape [24, 8], the model\'s has '
                                 "[48, 16]", "and 37 more"]),
            ("hidden_size", 4, ["has shape [24, 8], the model's has [12, 4]"]),
            ("ffn_hidden_size", 64, ["blocks.0.ffn.in.weight", "[32, 8], the model's has [64, 8]"]),
            ("vocab_size", 300, ["the model's has [300, 8]"]),
            ("sequence_length", 8192, ["embedding.position", "the model's has [8192, 8]"]),
            ("num_layers", 2, ['tensor "weight/blocks.1.norm1.weight" is missing']),
            ("tied_head", "false", ['tensor "weight/head.weight" is missing']),
            ("bias", "false", ["is none of the model's"]),
        ]:
            (self.checkpoint(6) / "manifest.json").write_bytes(sound)
            self.edit_manifest(self.config_with(key, value))
            with self.subTest(key=key, value=value):
                if key == "vocab_size":  # the tokenizer's fault comes first
                    for command in self.READERS[:2]:
                        self.refuse(CHECKPOINT, [not_its_own, *messages], *command)
                else:
                    self.refuse_by_all([not_its_own, *messages])

    def test_dtypes(self):
        self.edit_manifest(self.config_with("compute", r'\\"bf16-pure\\"'))
        for key in ("residual", "linears"):
            self.edit_manifest(self.config_with(key, r'\\"bf16\\"'))
        self.refuse_by_all(['tensor "weight/blocks.0.attention.out.weight" is f32, the model\'s is bf16'])

    def test_names(self):
        self.edit_header(lambda text: text.replace("exp_avg_sq/head.norm.bias", "exp_avg_sq/head.norm.bits"))
        path = self.checkpoint(6) / "manifest.json"
        self.edit_manifest(lambda body: body.replace("exp_avg_sq/head.norm.bias", "exp_avg_sq/head.norm.bits"))
        self.assertTrue(path.is_file())
        self.refuse_by_all(['tensor "exp_avg_sq/head.norm.bits" is none of the model\'s'])

    def test_a_config_that_is_none(self):
        self.edit_manifest(self.config_with("hidden_size", -3))
        self.refuse_by_all(["manifest.json cannot be used: its config is not valid:\nmodel.hidden_size = -3: must be"])


class Depth(HostileCase):
    """Brackets that open without end."""

    def test_configs(self):
        for text in ("[" * DEEP, '{"run":' * DEEP, '{"model": ' + "[" * DEEP + "]" * DEEP + "}",
                     '{"run": {"out": ' + "[" * 62 + "[" + "]" * 63 + "}}"):
            self.write_config(text, "deep.json")
            for command in (["config", "check", "deep.json"], ["train", "deep.json", "--dry-run"]):
                self.refuse(USAGE, "nested deeper than 64 levels", *command)
        # What stands in strings and comments opens nothing, and 64 levels are no fault by themselves.
        self.write_config('{"run": {"out": "' + "[" * 99 + '"}, // ' + "[" * 99 + "\n/*" + "{" * 99 + '*/ "x": '
                          + "[" * 62 + "]" * 62 + "}", "flat.json")
        self.assertNotIn("nested", self.refuse(USAGE, "x = [...]: unknown key", "config", "check", "flat.json"))
        self.assertIn("data.train", self.refuse(USAGE, "data.train", "config", "check", self.config,
                                                "--set", "data.train=" + "[" * 30_000))

    def test_manifests_and_headers(self):
        sound = (self.checkpoint(6) / "manifest.json").read_bytes()
        for deep in ("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP):
            for key in ("step", "loss_scale", "files", "x"):
                (self.checkpoint(6) / "manifest.json").write_bytes(sound)
                self.edit_manifest(lambda body, key=key, deep=deep: f'{{"{key}": {deep},' + body[1:])
                self.refuse_by_all(["manifest.json cannot be used", "nested deeper than 64 levels"])
            (self.checkpoint(6) / "manifest.json").write_bytes(sound)
        shutil.copy(self.checkpoint(6) / RANK_FILE, self.path("sound"))
        for deep in ("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP):
            shutil.copy(self.path("sound"), self.checkpoint(6) / RANK_FILE)
            (self.checkpoint(6) / "manifest.json").write_bytes(sound)
            self.edit_header(lambda text, deep=deep: re.sub(r'"shape":\[[\d,]*\]', f'"shape":{deep}', text, count=1))
            self.refuse_by_all([RANK_FILE, "nested deeper than 64 levels"])

    def test_metrics_and_text(self):
        with open(self.path("out") / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 6, "loss": ' + "[" * DEEP + "]" * DEEP + "}\n")
        self.assertEqual(self.run_gptrain("train", self.config, "--resume").code, FINISHED)
        self.path("deep.jsonl").write_text('{"text": ' + "[" * DEEP + "]" * DEEP + "}\n", encoding="utf-8")
        self.refuse(3, "nested deeper than 64 levels", "data", "pack", "deep.jsonl", "--out", "x", "--tokenizer", "bytes")


class Scale(HostileCase):
    """What is large is refused or read in a time that grows with its size."""

    SECONDS = 10  # a busy machine and a sanitizer included; the quadratic version took 44 s on an idle one

    def refuse_soon(self, messages, *arguments):
        start = time.monotonic()
        error = self.refuse(USAGE, messages, *arguments)
        self.assertLess(time.monotonic() - start, self.SECONDS)
        return error

    def test_many_keys(self):
        for text, messages in [
            (json.dumps({f"k{i}": 0 for i in range(70_000)}), ["k99 = 0: unknown key", "and 69,9"]),
            (json.dumps({"run": {f"k{i}": 0 for i in range(70_000)}}), ["run.k99 = 0: unknown key", "and 69,9"]),
            ("{" + '"run":{},' * 90_000 + '"run":{}}', ["run = {...}: is given twice", "and "]),
            ('{"run": {' + ",".join(f'"k{i}":0' for i in range(40_000)) + "," + ",".join(
                f'"k{i}":0' for i in range(40_000)) + "}}", ["run.k9 = 0: is given twice", "and "]),
            ('{"data": {"train": [' + "{}," * 200_000 + "{}]}}", ["data.train[99].path: must be given", "and "]),
            ('{"data": {"train": [' + "1," * 400_000 + "1]}}", ["data.train[99] = 1: must be an object", "and "]),
            ('{"optimizer": {"betas": [' + "1," * 400_000 + "1]}}", ["optimizer.betas = [1,1,"]),
        ]:
            self.write_config(text, "many.json")
            with self.subTest(text=text[:30]):
                error = self.refuse_soon(messages, "config", "check", "many.json")
                self.assertLess(len(error), 50_000)

    def test_a_config_beyond_its_limit(self):
        self.write_config(" " * 1_000_000 + "{}", "large.json")
        self.refuse_soon("large.json: is larger than a config may be, which is 1000000 bytes", "config", "check",
                         "large.json")
        with open(self.path("large.json"), "wb") as file:
            file.truncate(10**12)
        self.refuse_soon("is larger than", "config", "check", "large.json")

    def test_what_a_message_shows(self):
        self.write_config(json.dumps({"run": {"o\0ut\x1b[31m\n": 1, "y" * 100_000: 2, "out": "z\0" + "z" * 100_000},
                                      "model": {"é" * 300: 1}}), "odd.json")
        error = self.refuse_soon([r"run.o\x00ut\x1b[31m\n = 1: unknown key", "run." + "y" * 196 + "... = 2: unknown key",
                                  "é... = 1: unknown key"], "config", "check", "odd.json")
        self.assertNotIn("\0", error)
        self.assertLess(max(map(len, error.splitlines())), 450)
        self.write_config('{"run": {"out": "' + "q" * 100_000 + "\n", "odd.json")
        self.assertLess(len(self.refuse_soon("odd.json:1:", "config", "check", "odd.json")), 500)

    def test_threads_and_samples_that_cannot_be(self):
        self.refuse(USAGE, "run.threads = 65536: must be at least 0 and at most 1024", "config", "check", self.config,
                    *overrides("run.threads=65536"))
        self.edit_manifest(lambda body: re.sub(r'"samples": \d+', f'"samples": {2**63 - 1}', body))
        start = time.monotonic()
        self.refuse(CHECKPOINT, ["manifest.json cannot be used", "samples"], "train", self.config, "--resume",
                    *overrides("run.steps=8"))
        self.assertLess(time.monotonic() - start, self.SECONDS)
