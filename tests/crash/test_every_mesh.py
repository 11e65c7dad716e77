#!/usr/bin/env python3
"""Layouts that tests/parallel runs as threads give the same bits over TCP and MPI: weights, moments, metrics.

Run as test_every_mesh.py GPTRAIN HAS_MPI [options of unittest].
"""
import shutil
import sys
import unittest

sys.dont_write_bytecode = True
import test_ranks


class EveryMesh(test_ranks.RanksTest):
    MODEL = {"num_layers": 6, "hidden_size": 120, "num_heads": 60, "vocab_size": 257, "sequence_length": 60}
    SIZES = {(1, 2), (1, 3), (1, 5), (1, 6), (1, 8), (2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (4, 1), (4, 2),
             (5, 1), (6, 1)}  # tensor, data

    # Schedule, stages, tensor ranks, data ranks.
    PIPELINES = (("1f1b", 2, 1, 1), ("gpipe", 3, 1, 2), ("varuna", 3, 2, 1), ("zero-bubble", 2, 2, 2),
                 ("interleaved", 2, 1, 2), ("interleaved", 3, 1, 1), ("zero-bubble-v", 2, 1, 3),
                 ("zero-bubble-v", 3, 2, 1))

    def pipelines(self):
        for schedule, stages, tensor, data in self.PIPELINES:
            for zero in range(4 if data > 1 else 1):
                for sequence in ((), ("parallel.sequence=true",)) if tensor > 1 else ((),):
                    yield stages * tensor * data, (
                        f"parallel.tensor={tensor}", f"parallel.zero={zero}", f"parallel.pipeline={stages}",
                        f"parallel.pipeline_schedule={schedule}", *sequence)

    def meshes(self):
        for tensor, data in sorted(self.SIZES):
            for zero in range(4 if data > 1 else 1):
                for sequence in ((), ("parallel.sequence=true",)) if tensor > 1 else ((),):
                    yield tensor * data, (f"parallel.tensor={tensor}", f"parallel.zero={zero}", *sequence)

    @staticmethod
    def data_ranks(size, mesh):
        for setting in mesh:
            key, value = setting.split("=")
            if key in ("parallel.tensor", "parallel.pipeline"):
                size //= int(value)
        return size

    def test_processes_have_the_bits_of_threads(self):
        for number, (size, mesh) in enumerate((*self.pipelines(), *self.meshes())):
            settings = ("run.threads=1", "run.steps=2", "schedule.warmup_steps=1", f"batch.global={2 * size}",
                        "batch.micro=1", "precision.compute=bf16", "checkpoint.every_steps=0",
                        "comm.timeout_seconds=60")  # no rank dies here, and eight start slowly on a busy machine
            if number % 2 == 0 and self.data_ranks(size, mesh) > 1:
                settings += ("precision.reduce=bf16",)
            states = {}
            for mode in self.modes("threads", "tcp", "mpi"):
                run = self.new_run(f"mesh-{number}-{mode}")
                run.change(model=self.MODEL)
                ranks = test_ranks.Ranks(self, mode, run.command(mesh=(*mesh, *settings)), run.log, size=size)
                self.assertEqual(set(ranks.wait()), {0}, ranks.output())
                states[mode] = (run.state(2), run.records())
                self.assertEqual(len(states[mode][0]), size)
                shutil.rmtree(run.out)
            with self.subTest(ranks=size, mesh=mesh):
                for mode, state in states.items():
                    self.assertTrue(state == states["threads"], f"{mode}: other bits than those of threads")
        print(f"{number + 1} meshes, as threads and as processes")


if __name__ == "__main__":
    test_ranks.main()
