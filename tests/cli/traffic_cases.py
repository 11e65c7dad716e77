"""Bytes that ranks send each other through sockets, beside the closed formulas."""
import os
import subprocess

from cli_case import EXECUTABLE, FINISHED, TIMEOUT_SECONDS, overrides
from ports import free_port
from preload_case import PreloadCase

ALL_TO_ALL, SEND = 3, 6  # numbers of src/comm/operation.h
STEPS, LAYERS, HEADS, HEAD_SIZE, TOKENS, SAMPLES = 2, 2, 4, 8, 32, 4
F32, F32_BYTES = 0, 4  # number of src/base/dtype.h


class ContextTraffic(PreloadCase):
    """Runs with the preload library of socket_traffic.c."""
    source = "socket_traffic.c"

    def sent_by_ranks(self, ranks, operation, *arguments):
        """Returns the bytes of numbers in fp32 that each of the ranks, which are processes, sends in an operation."""
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
        counts = [{(int(kind), int(dtype)): int(sent) for kind, dtype, sent in map(str.split, of_rank)} for of_rank in lines]
        return [count.get((operation, F32), 0) for count in counts]

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
                found = self.sent_by_ranks(ranks, ALL_TO_ALL if method == "heads" else SEND, config, *overrides(
                    f"parallel.context={ranks}", f"parallel.context_method={method}", f"run.out={method}-{ranks}"))
                self.assertEqual(found, [expected] * ranks)
