"""Catches by a second way faults that otherwise a single test would find."""
import json
import struct

from cli_case import CliCase, overrides, tiny_config, write_tokens


class Samples(CliCase):
    def test_every_resume_goes_on_with_the_sample_that_is_next(self):
        """With a learning rate of 0, a step's loss reveals its samples."""
        draw = [(i * i * 7 + i // 16) % 251 for i in range(16 * 64 + 1)]
        write_tokens(self.path("corpus"), draw)
        config = self.write_config(tiny_config(optimizer={"lr": 1e-30}, batch={"global": 2, "micro": 1},
                                               model={"init_std": 1.0}, run={"steps": 8}))
        self.train(config)
        whole = [record["loss"] for record in self.records()]
        self.assertEqual(len(set(whole)), 8, "each step must have a loss of its own")
        for first in (1, 4, 7):
            for ranks in ([], ["--ranks", "2"]):
                with self.subTest(first=first, ranks=ranks):
                    out = f"out-{first}-{len(ranks)}"
                    part = overrides(f"run.out={out}")
                    self.train(config, *part, *ranks, "--steps", str(first))
                    self.train(config, *part, *ranks, "--resume")
                    for record, loss in zip(self.records(out), whole, strict=True):
                        self.assertAlmostEqual(record["loss"], loss, delta=1e-5)


class Pieces(CliCase):
    """Checks ZeRO's pieces element by element: a norm over a tensor would hide a single wrong one."""

    def moments(self, out):
        tensors = {}
        for file in sorted(self.checkpoint(1, out).glob("rank-*.safetensors")):
            data = file.read_bytes()
            end = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:end])
            for key, place in header.pop("__metadata__").items():
                place, entry = json.loads(place), header[key]
                if not place["tensor"].startswith("exp_avg/"):
                    continue
                first, last = entry["data_offsets"]
                values = struct.unpack(f"<{(last - first) // 4}f", data[end + first:end + last])
                self.put(tensors, place, entry["shape"], values)
        return tensors

    def put(self, tensors, place, shape, values):
        whole = tensors.setdefault(place["tensor"], {})
        columns = shape[-1]
        for i, value in enumerate(values):
            index = (i,) if len(shape) == 1 else divmod(i, columns)
            whole[tuple(a + b for a, b in zip(index, place["offset"]))] = value

    def test_every_element_of_a_gradient_is_summed(self):
        config = self.write_run(model={"hidden_size": 24, "num_heads": 3, "ffn_hidden_size": 40},
                                batch={"global": 12, "micro": 2}, run={"steps": 1}, optimizer={"clip_norm": 0})
        self.train(config)
        expected = self.moments("out")
        for zero in (0, 1, 2, 3):
            for ranks in (2, 3):
                with self.subTest(zero=zero, ranks=ranks):
                    out = f"out-{zero}-{ranks}"
                    self.train(config, "--ranks", ranks, *overrides(f"run.out={out}", f"parallel.zero={zero}"))
                    found = self.moments(out)
                    self.assertEqual(found.keys(), expected.keys())
                    for name, elements in expected.items():
                        self.assertEqual(found[name].keys(), elements.keys(), name)
                        largest = max(map(abs, elements.values()))
                        for index, value in elements.items():
                            self.assertAlmostEqual(found[name][index], value, delta=1e-4 * abs(value) + 1e-5 * largest,
                                                   msg=f"{name}{list(index)}")
