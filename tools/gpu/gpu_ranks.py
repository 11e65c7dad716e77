#!/usr/bin/env python3
"""Compares two ranks on GPUs with one, in training and collectives: as threads, which on one GPU exchange through the
host, and as processes over NCCL, also on one GPU. Adds rows to tools/gpu_check.sh's table and exits with 1 if one
failed."""
import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench_gpu import add_arguments, prepare
from gpu_runs import Case, Deadline, Rows, RunFailed, run_gptrain, write_config

# A small case with every collective, of tensor and data groups, and with transfers between pipeline stages.
RANKS_CASE = Case({"num_layers": 4, "hidden_size": 256, "num_heads": 4, "vocab_size": 1000, "sequence_length": 256},
                  2048, micro_tokens=(1024,))
RANKS_MESHES = {"data": {"zero": 1}, "data, ZeRO 3": {"zero": 3}, "tensor": {"tensor": 2}, "context": {"context": 2},
                "context, ring": {"context": 2, "context_method": "ring"}, "pipeline": {"pipeline": 2}}
# The same with a mixture of experts, whose rows ranks exchange.
EXPERTS_CASE = replace(RANKS_CASE, model=RANKS_CASE.model | {
    "bias": False, "moe": {"experts": 8, "top_k": 2, "ffn_hidden_size": 512, "shared": 1}})
EXPERTS_MESHES = {"experts": {"expert": 2, "expert_room": 2}, "tensor, experts cut": {"tensor": 2},
                  "experts of tensor ranks": {"tensor": 2, "expert": 2, "expert_room": 2}}
RANKS_STEPS = 5
RANKS_TOLERANCE = 1e-4  # for f32 losses after several updates
LONGEST_RUN_SECONDS = 60


def count_gpus():
    if shutil.which("nvidia-smi") is None:
        return 1
    done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    return len(done.stdout.splitlines()) if done.returncode == 0 else 1


def ranks_as_hosts(gptrain, arguments, devices):
    """Returns the commands of two ranks, each a process with its own host name (unshare --uts). NCCL refuses a GPU
    used twice on one host; with different host names one GPU serves both ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def command(rank):
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0 if devices == 1 else rank,
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
        inner = f"hostname rank{rank}-host && exec \"$@\""
        settings = [f"{name}={value}" for name, value in variables.items()]
        return ["unshare", "--uts", "env", *settings, "bash", "-c", inner, "bash", str(gptrain), *map(str, arguments)]

    return [command(rank) for rank in range(2)]


def run_together(commands, seconds):
    """Runs the commands together; returns (True if all exited with 0, their output). All end when the time is up."""
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, errors="replace") for command in commands]
    deadline, printed, sound = Deadline(seconds), [], True
    for process in processes:
        try:
            output, _ = process.communicate(timeout=max(deadline.left(), 0.1))
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            output, sound = process.communicate()[0] + f"ended after {seconds:.0f} s\n", False
        printed.append(output)
        sound = sound and process.returncode == 0
    return sound, "\n".join(printed)


def losses_of(folder, out):
    lines = (folder / out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record["loss"] for record in map(json.loads, lines) if "loss" in record][:RANKS_STEPS]


def ranks(options, rows, folder):
    deadline, sound = Deadline(options.seconds), True
    prepare(options.gptrain, folder, RANKS_CASE)
    devices = count_gpus()
    has_unshare = shutil.which("unshare") is not None
    has_unshare = has_unshare and subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode == 0

    def config(out, mesh, case=RANKS_CASE):
        return write_config(folder, case, 2, options.device, out, parallel=mesh, precision={"compute": "fp32"},
                            run={"steps": RANKS_STEPS}, comm={"timeout_seconds": 30})

    def measured(name, commands, out, expected):
        seconds = min(deadline.left(), LONGEST_RUN_SECONDS)
        if seconds <= 0:
            rows.add(name, "", mark="no time was left", status="skipped")
            return True
        passed, printed = run_together(commands, seconds)
        print(f"---- {name}\n{printed}", flush=True)
        if not passed:
            rows.add(name, "", mark=" ".join(printed.split())[-80:], status="fail")
            return False
        worst = max(abs(a / b - 1) for a, b in zip(losses_of(folder, out), expected, strict=True))
        status = "pass" if worst <= RANKS_TOLERANCE else "fail"
        rows.add(f"{name}, losses from one rank's", f"{worst:.1e}", "relative", f"<= {RANKS_TOLERANCE:g}", status)
        return status == "pass"

    for case, meshes in ((RANKS_CASE, RANKS_MESHES), (EXPERTS_CASE, EXPERTS_MESHES)):
        one = "one" if case is RANKS_CASE else "one-of-experts"
        run_gptrain(options.gptrain, folder, "train", config(one, {}, case))
        expected = losses_of(folder, one)
        for mesh, settings in meshes.items():
            label = mesh.replace(", ", "-").replace(" ", "")
            staged = config(f"staged-{label}", settings, case)
            where = "one GPU, through the host" if devices == 1 else f"{min(devices, 2)} GPUs, as threads"
            sound = measured(f"2 ranks, {mesh}: {where}", [[options.gptrain, "train", staged, "--ranks", "2"]],
                             f"staged-{label}", expected) and sound
            if not has_unshare:
                rows.add(f"2 ranks, {mesh}: NCCL between processes", "", mark="unshare --uts is not allowed",
                         status="skipped")
                continue
            linked = config(f"nccl-{label}", settings, case)
            sound = measured(f"2 ranks, {mesh}: NCCL between processes",
                             ranks_as_hosts(options.gptrain, ["train", linked], devices), f"nccl-{label}",
                             expected) and sound
    return bench_collectives(options, rows, folder, config("bench", {"zero": 1}), devices, has_unshare, deadline) and sound


def bench_collectives(options, rows, folder, file, devices, has_unshare, deadline):
    """Adds rows for the largest messages."""
    arguments = ["bench", "comm", file, "--max-bytes", str(1 << 24), "--seconds", "0.05"]
    ways = {"2 ranks as threads": [[options.gptrain, *arguments, "--ranks", "2"]]}
    if has_unshare:
        ways["2 ranks as hosts, NCCL"] = ranks_as_hosts(options.gptrain, arguments, devices)
    sound = True
    for name, commands_of_way in ways.items():
        passed, printed = run_together(commands_of_way, max(min(deadline.left(), LONGEST_RUN_SECONDS), 0.1))
        print(f"---- collectives, {name}\n{printed}", flush=True)
        largest = {fields[0]: fields for fields in map(str.split, printed.splitlines())
                   if len(fields) >= 5 and fields[0] in ("all_reduce", "reduce_scatter", "all_gather")}
        for operation, fields in largest.items():
            rows.add(f"{operation}, {name}", fields[-1], "bus GB/s", " ".join(fields[1:-3]))
        if passed and options.device == "cuda" and "NCCL" in name and "by NCCL" not in printed:
            passed, printed = False, "they went through the host"
        if not passed:
            rows.add(f"collectives, {name}", "", mark=" ".join(printed.split())[-80:], status="fail")
        sound = sound and passed
    return sound


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    options.gptrain = options.gptrain.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix="gptrain-ranks-") as scratch:
            return 0 if ranks(options, Rows(options.rows), Path(scratch)) else 1
    except (RunFailed, RuntimeError) as error:
        print(f"ranks: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
