#!/usr/bin/env python3
"""Times steps of TCP ranks in a slow network of the test's own (tests/comm/network.py), without and with settings.

Run as bench_network.py GPTRAIN [options] [SETTING...]. A SETTING is a KEY=VALUE, such as
'comm.compression={"kind": "int8"}', or several with blanks between them. GPT-2 124M in fp32, one sequence of --length
tokens for each rank in a step, one thread a rank. The first step of a run is not timed. With parallel.local_steps the
mean of the steps from one averaging to the next counts. With --machine FILE, a profile of `gptrain bench device`, the
links of the network are measured into a copy of it, and steps are predicted from that. Exits with 77 where the machine
cannot make such a network.
"""
import argparse
import json
import math
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "comm")]
from bench_cpu import write_tokens  # noqa: E402
from network import Network, address_of, enter_namespace  # noqa: E402

HANG_SECONDS = 3600
PORT = 2000


def command_of(options, folder, out, settings):
    settings = {
        "data.train": json.dumps([{"path": str(folder / "tokens")}]),
        "data.validation": "[]",
        "model.sequence_length": options.length,
        "model.num_layers": options.layers,
        "batch.global": options.ranks,
        "batch.micro": 1,
        "precision.compute": '"fp32"',
        "precision.reduce": '"fp32"',
        "checkpoint.every_steps": 0,
        "comm.compare_every_steps": 0,
        "schedule.warmup_steps": 1,
        "run.threads": 1,
        "run.out": json.dumps(str(out)),
    } | settings
    command = [options.gptrain, "train", str(ROOT / "configs" / "gpt2-124m.json")]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return command


def dry_run(options, folder, settings, *words):
    command = command_of(options, folder, folder / "dry", settings)
    return json.loads(subprocess.run([*command, "--dry-run", "--json", *words], check=True, capture_output=True,
                                     text=True).stdout)


def predicted_seconds(options, folder, settings):
    """Returns the mean time of a step by the profile, with the network's links."""
    plan = dry_run(options, folder, settings, "--target", str(folder / "machine.json"), "--world-size", str(options.ranks))
    return options.ranks * options.length / plan["tokens_per_second"]


def measure_links(options, folder, network):
    shutil.copy(options.machine, folder / "machine.json")
    for rank in range(options.ranks):
        network.start([options.gptrain, "bench", "comm", "--into", str(folder / "machine.json"), "--seconds", "0.02",
                       "--interface", address_of(rank)], options.ranks, PORT - 1)
    for code, _, errors in network.finish(HANG_SECONDS):
        if code != 0:
            sys.exit(errors)


def sent_bytes(options, folder, settings):
    """Returns the bytes that rank 0 sends in a step; with local steps the mean from one averaging to the next."""
    plan = dry_run(options, folder, settings, "--ranks", str(options.ranks))
    def add(rows):
        return sum(row["sent_bytes"] for row in rows)
    every = json.loads(settings.get("parallel.local_steps", '{"every": 1}'))["every"]
    averaging = plan["traffic_of_other_steps"]["averaging"] if every > 1 else plan["traffic"]
    return (add(plan["traffic"]) * (every - 1) + add(averaging)) / every


def step_seconds(options, folder, network, number, settings):
    out = folder / f"run-{number}"
    local = json.loads(settings.get("parallel.local_steps", "{}"))
    steps = local.get("every", options.steps)
    command = command_of(options, folder, out, {"run.steps": steps + 1} | settings)
    for rank in range(options.ranks):
        network.start([*command, "--set", f"comm.interface={address_of(rank)}"], options.ranks, PORT + number)
    for code, _, errors in network.finish(HANG_SECONDS):
        if code != 0:
            sys.exit(errors)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = [record["step_seconds"] for record in records if "step_seconds" in record][1:]
    if not local:
        return statistics.median(seconds)
    *alone, averaging, _ = seconds  # the run's last step averages as well
    return (statistics.mean(alone) * (steps - 1) + averaging) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gptrain")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mbit", type=int, default=100, help="of each rank")
    parser.add_argument("--delay", type=float, default=0.001, help="seconds")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--always", action="append", default=[], metavar="SETTING", help="of all runs; may be repeated")
    parser.add_argument("--machine", type=pathlib.Path, help="profile of this machine")
    options = parser.parse_args()
    enter_namespace()
    options.gptrain = str(pathlib.Path(options.gptrain).resolve())
    network = Network(options.mbit, options.delay)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokens(folder / "tokens", 20_000, 50_257)
        plain = None
        if options.machine:
            measure_links(options, folder, network)
        print(f"{'setting':<60}{'s a step':>10}{'faster':>8}{'MB sent':>10}{'s at the rate':>15}{'predicted':>11}")
        for number, setting in enumerate(["", *options.settings]):
            settings = dict(part.split("=", 1) for part in [*options.always, *re.split(r" (?=[a-z]+\.[a-z_]+=)", setting)] if part)
            predicted = predicted_seconds(options, folder, settings) if options.machine else math.nan
            sent = sent_bytes(options, folder, settings)
            seconds = step_seconds(options, folder, network, number, settings)
            plain = plain or seconds
            print(f"{setting or 'plain':<60}{seconds:>10.2f}{plain / seconds:>8.2f}{sent / 1e6:>10.1f}"
                  f"{sent / network.payload_rate():>15.2f}{predicted:>11.2f}", flush=True)


if __name__ == "__main__":
    main()
