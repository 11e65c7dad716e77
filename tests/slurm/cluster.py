"""A Slurm cluster of several nodes on this host, in a folder of its own: daemons, keys, and no systemd."""
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
COMMAND_SECONDS = 60
START_SECONDS = 30
STOP_SECONDS = 30

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# The lifetime of credentials is also how long a requeued job waits.
AuthInfo=socket={root}/munge/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
TmpFS={root}/tmp/%n
TaskProlog={root}/task_prolog.sh
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=1
ReturnToService=1
JobRequeue=0
KillWait=20
MinJobAge=3600
PropagateResourceLimits=NONE
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_node_port}-{last_node_port}] \
CPUs={cpus} RealMemory=1024 State=UNKNOWN
PartitionName=main Nodes=n[1-{main_nodes}] Default=YES MaxTime=INFINITE State=UP
PartitionName=unsafe Nodes=n[{first_unsafe_node}-{nodes}] MaxTime=INFINITE State=UP
"""

# Gives each node its own temporary folder, as all are on one machine. With a shared one, a node's ranks would take
# another node's for shared memory, and ranks that do not know that they share cores would not yield.
TASK_PROLOG = """\
#!/bin/sh
mkdir -p "{root}/shm/$SLURMD_NODENAME"
echo "export OMPI_MCA_btl_vader_backing_directory={root}/shm/$SLURMD_NODENAME"
echo "export OMPI_MCA_mpi_yield_when_idle=1"
"""


def reason_to_skip():
    """Returns the reason why no cluster can run here; empty if one can."""
    if os.geteuid() != 0:
        return "the daemons of Slurm need root"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    return f"no {', '.join(missing)}: tools/setup.sh --tests --slurm installs them" if missing else ""


def wait_until(condition, what, seconds):
    """Returns the first true value of condition()."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds} s: not {what}")
        time.sleep(0.1)
    return value


def environment_of(process_id):
    try:
        text = Path(f"/proc/{process_id}/environ").read_text(errors="replace")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def command_line(process_id):
    try:
        return Path(f"/proc/{process_id}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


class Cluster:
    """Nodes in two partitions: "main", and "unsafe", whose nodes a test may take down."""

    def __init__(self, root, main_nodes, unsafe_nodes, cpus):
        nodes = main_nodes + unsafe_nodes
        self.root = root
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "OMPI_", "PMIX_"))
                            and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
        self.environment["SLURM_CONF"] = str(root / "slurm.conf")
        root.mkdir(mode=0o755)
        of_nodes = [f"{kind}/{node}" for kind in ("spool", "tmp") for node in self.nodes]
        for folder in ("log", "munge", "shm", "state", *of_nodes):
            (root / folder).mkdir(parents=True, mode=0o755)
        port = free_ports(nodes + 1)
        (root / "slurm.conf").write_text(CONFIG.format(
            root=root, host=socket.gethostname().split(".")[0], port=port, nodes=nodes, cpus=cpus,
            main_nodes=main_nodes, first_unsafe_node=main_nodes + 1, first_node_port=port + 1,
            last_node_port=port + nodes))
        # The cluster uses no control groups, but slurmd looks for their version unless it is given.
        (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        prolog = root / "task_prolog.sh"
        prolog.write_text(TASK_PROLOG.format(root=root))
        prolog.chmod(0o755)
        key = root / "munge" / "key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))

    def start(self):
        munge = self.root / "munge"
        self.run("munged", "--force", f"--key-file={munge}/key", f"--socket={munge}/munge.socket",
                 f"--pid-file={munge}/munged.pid", f"--log-file={munge}/munged.log", f"--seed-file={munge}/seed")
        self.run("slurmctld")
        for node in self.nodes:
            self.run("slurmd", "-N", node)
        idle = ["idle"] * len(self.nodes)
        wait_until(lambda: self.run("sinfo", "--noheader", "--Node", "--format=%T").split() == idle, "every node idle",
                   START_SECONDS)

    def run(self, *command, folder=None, check=True, **variables):
        """Returns the output of a Slurm command."""
        # Daemons inherit open files: a pipe would stay open as long as they live.
        with open(self.root / "log" / "commands.txt", "a+b") as errors:
            done = subprocess.run(command, cwd=folder or self.root, env={**self.environment, **variables},
                                  stdin=subprocess.DEVNULL, stderr=errors, timeout=COMMAND_SECONDS, check=False,
                                  stdout=errors if command[0].endswith("d") else subprocess.PIPE)
        if check and done.returncode != 0:
            log = (self.root / "log" / "commands.txt").read_text()
            raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{log[-2000:]}")
        return (done.stdout or b"").decode()

    def has_pmix(self):
        """Returns True if srun --mpi=pmix starts a task."""
        started = self.run("srun", "--mpi=pmix", "sh", "-c", "echo rank $PMIX_RANK", check=False)
        return started == "rank 0\n"

    def processes(self, job=None):
        """Returns the processes started by this cluster, or by one of its jobs, daemons included."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            environment = environment_of(path.name)
            if environment.get("SLURM_CONF") == self.environment["SLURM_CONF"] and (
                    job is None or environment.get("SLURM_JOB_ID") == job):
                found.append(int(path.name))
        return found

    def stop(self):
        """Ends jobs, then daemons; kills the remaining processes and returns their command lines."""
        deadline = time.monotonic() + STOP_SECONDS
        while (jobs := self.run("squeue", "--noheader", "--format=%A", check=False).split()) and (
                time.monotonic() < deadline):
            self.run("scancel", *jobs, check=False)
            time.sleep(0.5)
        for pid_file in (*self.root.glob("slurmd.*.pid"), self.root / "slurmctld.pid", self.root / "munge/munged.pid"):
            if pid_file.exists():
                os.kill(int(pid_file.read_text()), signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        lines = [command_line(process) for process in left]
        for process in left:
            os.kill(process, signal.SIGKILL)
        return lines
