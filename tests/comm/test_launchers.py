#!/usr/bin/env python3
"""Starts and stops runs of two ranks with the real launchers of others: Open MPI's mpirun, MPICH's mpiexec and torchrun.

Run as test_launchers.py GPTRAIN. A launcher that is not installed is fetched into a temporary folder: MPICH from Debian, torch
from PyPI (or TORCHRUN names one). Exits with 77 where neither can be had.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from cli_case import REQUEUE, tiny_config, write_tokens
from ports import free_port

SKIPPED = 77
RUN_SECONDS = 120
FETCH_SECONDS = 3600
MPICH_PACKAGES = ("mpich", "libmpich12", "libslurm38", "libhwloc15", "libucx0")
LAUNCHER_VARIABLES = ("SLURM_", "PMI_", "OMPI_", "MPI_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "GPTRAIN_")


def fetch(*command, folder):
    """Returns whether a command that needs a network succeeds."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{command[0]}: {error}")
        return False
    if done.returncode != 0:
        print(f"{' '.join(map(str, command))}: {done.stderr[-500:]}")
    return done.returncode == 0


def find_mpiexec(folder):
    """Returns MPICH's mpiexec and the variables that it needs; None if there is none."""
    if found := shutil.which("mpiexec.hydra"):
        return found, {}
    if not shutil.which("apt-get") or not fetch("apt-get", "-qq", "download", *MPICH_PACKAGES, folder=folder):
        return None, {}
    for package in folder.glob("*.deb"):
        if not fetch("dpkg", "-x", package, folder / "mpich", folder=folder):
            return None, {}
    libraries = next((folder / "mpich/usr/lib").glob("*/libmpich.so*")).parent
    return folder / "mpich/usr/bin/mpiexec.hydra", {"LD_LIBRARY_PATH": str(libraries)}


def find_torchrun(folder):
    if found := os.environ.get("TORCHRUN") or shutil.which("torchrun"):
        return found
    if not fetch(sys.executable, "-m", "venv", folder / "torch", folder=folder) or not fetch(
            folder / "torch/bin/pip", "install", "--quiet", "torch", folder=folder):
        return None
    return folder / "torch/bin/torchrun"


def write_run(folder):
    draw = random.Random(1)
    write_tokens(folder / "corpus", [draw.randrange(64) for _ in range(4000)])
    (folder / "run.json").write_text(json.dumps(tiny_config(batch={"global": 4, "micro": 1})))


def environment(variables):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_VARIABLES)}
    return {**clean, "GPTRAIN_SECRET": "a secret of 32 bytes or so......", "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **variables}


def check_run(name, launcher, gptrain, folder, variables):
    """Starts a run, and goes on with it by the same command."""
    command = [*launcher, gptrain, "train", "run.json", "--resume", "latest", "--set", f"run.out={name}"]
    for steps in ("3", "9"):
        done = subprocess.run([*map(str, command), "--steps", steps], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                              env=environment(variables), text=True, timeout=RUN_SECONDS, check=False)
        output = done.stdout + done.stderr
        if done.returncode != 0 or "2 ranks: 1 tensor x 2 data" not in output:
            print(f"FAILED  {name}: exit {done.returncode}\n{output[-3000:]}")
            return False
    saved = sorted(path.name for path in (folder / name / "checkpoints").iterdir())
    print(f"{'ok    ' if saved[-1] == 'step-00000006' else 'FAILED'}  {name}: {', '.join(saved)}", flush=True)
    return saved[-1] == "step-00000006"


def check_stop(name, launcher, number, code, gptrain, folder, variables):
    """Stops a run by a signal to its launcher, which tools/CLUSTERS.md names: it is saved first."""
    command = [*launcher, gptrain, "train", "run.json", "--set", f"run.out={name}", "--set", "run.steps=100000000"]
    process = subprocess.Popen([*map(str, command)], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=environment(variables), text=True)
    begun = any(line.startswith("step 3/") for line in process.stdout)
    process.send_signal(number)
    try:
        output, _ = process.communicate(timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    saved = begun and process.returncode == code and len(list((folder / name / "checkpoints").glob("step-*"))) == 1
    print(f"{'ok    ' if saved else 'FAILED'}  {name}: {number.name}, exit {process.returncode}{'' if saved else output[-3000:]}",
          flush=True)
    return saved


def check_restart(name, launcher, gptrain, folder):
    """Kills a rank: its launcher starts all anew, and they go on from the last checkpoint."""
    command = [*launcher, gptrain, "train", "run.json", "--resume", "latest", "--set", f"run.out={name}", "--set", "run.steps=4000",
               "--set", "checkpoint.every_steps=2"]
    process = subprocess.Popen([*map(str, command)], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=environment({}), text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("checkpoint of step 4 "):
            ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
            os.kill(int(ranks[-1]), signal.SIGKILL)
        if line.startswith("resumed from "):
            process.send_signal(signal.SIGTERM)
    process.wait(RUN_SECONDS)
    again = any(line.startswith(f"resumed from {name}/checkpoints/step-") for line in lines)
    print(f"{'ok    ' if again else 'FAILED'}  {name}{'' if again else ''.join(lines)[-3000:]}", flush=True)
    return again


def main():
    gptrain = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="gptrain-launchers-") as name:
        folder = Path(name)
        write_run(folder)
        results = []
        if mpirun := shutil.which("mpirun"):
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                results.append(check_stop(f"openmpi-{number.name}", [mpirun, "--oversubscribe", "-n", "2"], number, REQUEUE,
                                          gptrain, folder, {}))
        mpiexec, variables = find_mpiexec(folder)
        if mpiexec:
            results.append(check_run("mpich", [mpiexec, "-n", "2"], gptrain, folder, variables))
            several = {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            results.append(check_stop("mpich-stop", [mpiexec, "-n", "2"], signal.SIGUSR1, REQUEUE, gptrain, folder, variables))
            results.append(check_run("mpich-address", [mpiexec, "-n", "2"], gptrain, folder, several))
        if torchrun := find_torchrun(folder):
            together = ["--nnodes", "1", "--nproc-per-node", "2", "--no-python"]
            results.append(check_run("torchrun-standalone", [torchrun, "--standalone", *together[2:]], gptrain, folder, {}))
            results.append(check_stop("torchrun-stop", [torchrun, "--standalone", *together[2:]], signal.SIGTERM, 1, gptrain,
                                      folder, {}))
            results.append(check_restart("torchrun-restart", [torchrun, "--standalone", "--max-restarts", "1", *together[2:]],
                                         gptrain, folder))
            results.append(check_run("torchrun-c10d", [torchrun, *together[:4], "--rdzv-backend", "c10d", "--rdzv-endpoint",
                                                       f"127.0.0.1:{free_port()}", "--no-python"], gptrain, folder, {}))
            results.append(check_run("torchrun-static", [torchrun, *together[:4], "--master-addr", "127.0.0.1", "--master-port",
                                                         str(free_port()), "--no-python"], gptrain, folder, {}))
        print(f"{results.count(True)} starts and stops by real launchers, {results.count(False)} failed"
              f"{'' if mpiexec else '; no MPICH'}{'' if torchrun else '; no torchrun'}")
        return SKIPPED if not results else 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
