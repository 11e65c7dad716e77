"""Bytes that ranks send each other through sockets, beside the closed formulas."""
import json
import os
import subprocess

from cli_case import EXECUTABLE, FINISHED, TIMEOUT_SECONDS, overrides
from ports import free_port
from preload_case import PreloadCase

ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, ALL_TO_ALL_V, SEND = 0, 2, 3, 4, 6  # numbers of src/comm/operation.h
STEPS, LAYERS, HEADS, HEAD_SIZE, TOKENS, SAMPLES = 2, 2, 4, 8, 32, 4
F32, BF16, U8, F32_BYTES = 0, 1, 7, 4  # numbers of src/base/dtype.h


class ContextTraffic(PreloadCase):
    """Runs with the preload library of socket_traffic.c."""
    source = "socket_traffic.c"

    def sent_by_ranks(self, ranks, *arguments):
        """Returns the bytes that each of the ranks, which are processes, sends, by operation and type of element."""
        port, started = str(free_port()), []
        for rank in range(ranks):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                         "LD_PRELOAD": self.library, "TRAFFIC": self.path("traffic")}
            process = subprocess.Popen([EXECUTABLE, "train", *arguments], cwd=self.folder, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       env={**os.environ, **{name: str(value) for name, value in variables.items()}})
            self.addCleanup(self._end, process)
            started.append(process)
        for process in started:
            output = process.communicate(timeout=TIMEOUT_SECONDS)[0]
            self.assertEqual(process.returncode, FINISHED, output)
        lines = [self.path(f"traffic.{rank}").read_text(encoding="ascii").splitlines() for rank in range(ranks)]
        return [{(int(kind), int(dtype)): int(sent) for kind, dtype, sent in map(str.split, of_rank)} for of_rank in lines]

    def test_context_ranks_send_what_the_formulas_say(self):
        """By heads: queries, keys, values and output, twice. In a ring: keys and values twice, and their gradients once."""
        config = self.write_run(model={"num_layers": LAYERS, "hidden_size": HEADS * HEAD_SIZE, "num_heads": HEADS,
                                       "num_kv_heads": 2, "sequence_length": TOKENS},
                                batch={"global": SAMPLES, "micro": 2}, run={"steps": STEPS})
        for ranks, method in ((2, "heads"), (4, "heads"), (2, "ring"), (4, "ring")):
            rows = STEPS * LAYERS * SAMPLES * TOKENS // ranks
            q, kv = HEADS * HEAD_SIZE, 2 * HEAD_SIZE
            by_heads = 2 * rows * (2 * q + 2 * max(kv, ranks * HEAD_SIZE)) * F32_BYTES * (ranks - 1) // ranks
            by_ring = rows * (ranks - 1) * 2 * kv * 3 * F32_BYTES
            expected = by_heads if method == "heads" else by_ring
            with self.subTest(ranks=ranks, method=method):
                found = self.sent_by_ranks(ranks, config, *overrides(
                    f"parallel.context={ranks}", f"parallel.context_method={method}", f"run.out={method}-{ranks}"))
                operation = ALL_TO_ALL if method == "heads" else SEND
                self.assertEqual([sent.get((operation, F32), 0) for sent in found], [expected] * ranks)

    def test_compressed_sums_send_what_the_dry_run_says(self):
        """Sums of gradients in fp32, and codes, in the steps of all programs."""
        steps = 3
        config = self.write_run(model={"num_layers": LAYERS, "hidden_size": HEADS * HEAD_SIZE, "num_heads": HEADS,
                                       "sequence_length": TOKENS}, batch={"global": SAMPLES, "micro": 2}, run={"steps": steps})
        methods = {
            "int4": ['comm.compression={"kind": "int4", "min_elements": 1024}', "parallel.zero=1"],
            "powersgd": ['comm.compression={"kind": "powersgd", "min_elements": 1024, "start_step": 1}'],
            "alternate": ['comm.compression={"kind": "powersgd", "min_elements": 1024, "alternate": true}'],
            "topk": ['comm.compression={"kind": "topk", "min_elements": 1024, "start_step": 1}'],
            "sketch": ['comm.compression={"kind": "sketch", "min_elements": 1024, "start_step": 1}'],
            "zero-one": ["optimizer.type=zero-one-adam", "optimizer.freeze_step=1", "optimizer.clip_norm=0",
                         "optimizer.local_scaler=1", "optimizer.local_most=2"],
            "onebit": ["optimizer.type=onebit-adam", "optimizer.freeze_step=1", "optimizer.clip_norm=0"],
            "local": ['parallel.local_steps={"islands": 2, "every": 2, "start_step": 1}'],
        }
        # The last step averages or exchanges.
        gathered = {}
        programs = {"local": ["warm-up", "averaging", "averaging"], "zero-one": ["variance", "exchange", "exchange"],
                    "alternate": ["left", "right", "left"]}
        for name, settings in methods.items():
            arguments = [config, *overrides(f"run.out={name}", "checkpoint.every_steps=0", *settings)]
            plan = json.loads(self.succeed("train", *arguments, "--ranks", 2, "--dry-run", "--json"))
            others = plan.get("traffic_of_other_steps", {})
            played = programs.get(name, ["warm-up", "main", "main"] if others else ["main"] * steps)
            rows = [row for program in played for row in others.get(program, plan["traffic"])]
            def planned(*collectives):
                return sum(row["sent_bytes"] for row in rows
                           if row["collective"] in collectives and row["group"] in ("data", "islands"))
            with self.subTest(name):
                found = self.sent_by_ranks(2, *arguments)[0]
                self.assertEqual(found.get((ALL_TO_ALL_V, U8), 0), planned("all_to_all_v"))
                gathered[name] = found.get((ALL_GATHER, U8), 0)
                if name == "topk":  # ranks gather texts as well, before and after all steps
                    self.assertEqual(gathered[name] - gathered["powersgd"], planned("all_gather"))
                losses = 0 if name == "local" else 8 * steps  # the same ranks' sum of the loss, in f64
                self.assertEqual(found.get((ALL_REDUCE, F32), 0), planned("all_reduce") - losses)
                self.assertGreater(planned("all_to_all_v", "all_reduce"), 0)

    def test_gathers_of_coded_weights_send_what_the_dry_run_says(self):
        """Codes and their scales, beside the texts that ranks gather before and after all steps."""
        steps, codes = 2, {}
        config = self.write_run(model={"num_layers": LAYERS, "hidden_size": HEADS * HEAD_SIZE, "num_heads": HEADS,
                                       "sequence_length": TOKENS}, batch={"global": SAMPLES, "micro": 2}, run={"steps": steps},
                                precision={"compute": "bf16"}, parallel={"zero": 3}, checkpoint={"every_steps": 0})
        for weights in ("as-is", "int8"):
            arguments = [config, *overrides(f"run.out={weights}", f"comm.weights={weights}")]
            plan = json.loads(self.succeed("train", *arguments, "--ranks", 2, "--dry-run", "--json"))
            planned = steps * sum(row["sent_bytes"] for row in plan["traffic"]
                                  if row["collective"] == "all_gather" and row["group"] == "data")
            found = self.sent_by_ranks(2, *arguments)[0]
            codes[weights] = found.get((ALL_GATHER, U8), 0)
            sent = found.get((ALL_GATHER, BF16 if weights == "as-is" else F32), 0)
            self.assertEqual(sent + codes[weights] - codes["as-is"], planned)
            self.assertGreater(sent, 0)
        self.assertGreater(codes["int8"], codes["as-is"])

    def test_sums_by_node_send_what_the_dry_run_says(self):
        """Sums and gathers within nodes of two ranks and between them, and with a copy of the state on each node."""
        steps = 2
        config = self.write_run(model={"num_layers": LAYERS, "hidden_size": HEADS * HEAD_SIZE, "num_heads": HEADS,
                                       "sequence_length": TOKENS}, batch={"global": SAMPLES, "micro": 1},
                                run={"steps": steps, "threads": 1}, comm={"ranks_per_node": 2})
        codes = 'comm.compression={"kind": "int8", "between": "nodes", "min_elements": 1024}'
        cases = {"node": (["comm.hierarchy=node", "parallel.zero=1"], ("node", "nodes")),
                 "codes": ([codes, "parallel.zero=1"], ("node", "nodes")),
                 "copies": (["parallel.zero=3", "parallel.zero_node_copy=true"], ("data", "islands"))}
        for name, (settings, groups) in cases.items():
            arguments = [config, *overrides(f"run.out={name}", "checkpoint.every_steps=0", *settings)]
            plan = json.loads(self.succeed("train", *arguments, "--ranks", 4, "--dry-run", "--json"))
            found = self.sent_by_ranks(4, *arguments)
            links = {row["group"]: row["link"] for row in plan["traffic"]}
            self.assertEqual([links[group] for group in groups], ["within a node", "between nodes"])
            for operation, collective in enumerate(("all_reduce", "reduce_scatter", "all_gather")):
                times = steps + (name != "copies" and collective == "all_gather")  # whole weights are gathered at the start
                planned = times * sum(row["sent_bytes"] for row in plan["traffic"]
                                      if row["collective"] == collective and row["group"] in groups)
                with self.subTest(name, collective=collective):
                    self.assertEqual([sent.get((operation, F32), 0) for sent in found], [planned] * 4)
            planned = steps * sum(row["sent_bytes"] for row in plan["traffic"] if row["collective"] == "all_to_all_v")
            self.assertEqual(found[0].get((ALL_TO_ALL_V, U8), 0), planned)
            self.assertEqual(planned > 0, name == "codes")
