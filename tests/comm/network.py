"""A network of the test's own for the ranks of a run, in its own namespace: limited rates, delays and cuts.

Rank N has the addresses 127.0.(N+1).x. All connections between ranks go through a proxy, which passes bytes on after a
delay, from an address of the rank that called. So all packets of a rank come from its own addresses, and a class of the
kernel's htb limits their rate. A cut makes a rank's addresses unreachable.
"""
import collections
import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

SKIPPED = 77
MTU = 1500  # of Ethernet: larger packets have fewer headers, and leave in larger bursts
HEADER_BYTES = 14 + 20 + 32  # of a packet's MTU + 14 bytes, as htb counts them: Ethernet, IP, TCP with time stamps
LISTENS = "0A"  # a state in /proc/net/tcp


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def enter_namespace():
    """Runs this program again in a network namespace of its own, unless it is in one; skips where there can be none."""
    if os.environ.get("IN_TEST_NETWORK"):
        return
    for tool in ("unshare", "ip", "tc"):
        if not shutil.which(tool):
            skip(f"{tool} is missing")
    enter = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode != 0:
        skip("no network namespace can be made")
    sys.stdout.flush()
    sys.exit(subprocess.run([*enter, sys.executable, *sys.argv], env={**os.environ, "IN_TEST_NETWORK": "1"},
                            check=False).returncode)


def set_up(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip(f"{' '.join(command)}: {done.stderr.strip()}")


def address_of(rank, host=1):
    return f"127.0.{rank + 1}.{host}"


def hex_address(address):
    return socket.inet_aton(address)[::-1].hex().upper()


def tcp_sockets():
    """Yields (local address, port, state, inode) of each socket in the namespace, the address as the kernel writes it."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        address, port = words[1].split(":")
        yield address, int(port, 16), words[3], words[9]


def has_socket(process_id, inode):
    try:
        return any(os.readlink(link) == f"socket:[{inode}]" for link in Path(f"/proc/{process_id}/fd").iterdir())
    except OSError:
        return False


class Network:
    """Ranks that may send `mbit` Mbit/s each, whose bytes take `delay` seconds."""

    def __init__(self, mbit, delay):
        self.delay = delay
        self.rate = mbit
        self.processes = []  # of the current run, by rank
        self.addressed = set()
        self.proxied = set()
        set_up("ip", "link", "set", "lo", "up")
        set_up("ip", "link", "set", "lo", "mtu", str(MTU))
        set_up("tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "999")

    def payload_rate(self):
        """Returns the bytes a second that a rank can send, headers not counted."""
        return self.rate * 1e6 / 8 * (MTU + 14 - HEADER_BYTES) / (MTU + 14)

    def start(self, command, size, port, **variables):
        """Starts the next rank, and proxies for all that listens there. A rank calls those before it."""
        rank = len(self.processes)
        if rank not in self.addressed:
            self.give_address(rank)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size),
                                                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                                                   "COMM_RANKS_INTERFACE": address_of(rank), **variables})
        self.processes.append(process)
        listeners = 3 if rank == 0 else 2  # for heartbeats and groups, and rank 0's for all that arrive
        deadline = time.monotonic() + 30
        while len(self.listening_at(rank)) < listeners:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"rank {rank} does not listen: {process.communicate()}")
            time.sleep(0.01)
        for listening in self.listening_at(rank):
            self.proxy(rank, listening)
        return process

    def give_address(self, rank):
        self.addressed.add(rank)
        # The address is an interface's own, as programs check.
        set_up("ip", "address", "add", f"{address_of(rank)}/32", "dev", "lo")
        set_up("tc", "class", "add", "dev", "lo", "parent", "1:", "classid", f"1:{rank + 1}", "htb", "rate",
               f"{self.rate}mbit", "burst", "16k", "cburst", "16k", "quantum", "3000")
        set_up("tc", "filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "prio", "1", "u32", "match", "ip",
               "src", f"127.0.{rank + 1}.0/24", "flowid", f"1:{rank + 1}")

    def listening_at(self, rank):
        own = hex_address(address_of(rank))
        return {port for address, port, state, _ in tcp_sockets() if address == own and state == LISTENS}

    def proxy(self, rank, port):
        if (rank, port) in self.proxied:
            return
        self.proxied.add((rank, port))
        listener = self.listen(port)
        threading.Thread(target=self.serve, args=(listener, rank, port), daemon=True).start()

    @staticmethod
    def listen(port):
        deadline = time.monotonic() + 5
        while True:
            try:
                return socket.create_server(("127.0.0.1", port))
            except OSError as error:
                # A rank may be calling from this port for a moment.
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def serve(self, listener, rank, port):
        while True:
            inner, (_, caller_port) = listener.accept()
            try:
                caller = self.rank_with(caller_port)
                outer = socket.create_connection((address_of(rank), port), source_address=(address_of(caller, 2), 0))
            except (OSError, LookupError):
                inner.close()
                continue
            for one in (inner, outer):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Delayed(inner, outer, self.delay)
            Delayed(outer, inner, self.delay)

    def rank_with(self, port):
        """Returns the rank whose process has called from a port of 127.0.0.1."""
        inodes = [inode for address, own, _, inode in tcp_sockets() if (address, own) == (hex_address("127.0.0.1"), port)]
        for rank, process in enumerate(self.processes):
            if any(has_socket(process.pid, inode) for inode in inodes):
                return rank
        raise LookupError(f"no rank has called from port {port}")

    def cut(self, rank):
        """Makes a rank unreachable, without a notice to anyone."""
        set_up("ip", "address", "del", f"{address_of(rank)}/32", "dev", "lo")
        set_up("ip", "route", "add", "unreachable", f"127.0.{rank + 1}.0/24", "table", "local")

    def finish(self, timeout):
        """Returns [(exit code, output, errors)] by rank. Another run may start then."""
        try:
            results = []
            for process in self.processes:
                out, errors = process.communicate(timeout=timeout)
                results.append((process.returncode, out, errors))
            return results
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
            self.processes = []


class Delayed:
    """Passes bytes on from one socket to another, each after a delay."""

    def __init__(self, source, target, delay):
        self.source, self.target, self.delay = source, target, delay
        self.queue = collections.deque()
        self.arrived = threading.Semaphore(0)
        threading.Thread(target=self.read, daemon=True).start()
        threading.Thread(target=self.write, daemon=True).start()

    def read(self):
        while True:
            try:
                data = self.source.recv(1 << 16)
            except OSError:
                data = b""
            self.queue.append((time.monotonic() + self.delay, data))
            self.arrived.release()
            if not data:
                return

    def write(self):
        while True:
            self.arrived.acquire()
            due, data = self.queue.popleft()
            time.sleep(max(due - time.monotonic(), 0))
            try:
                if not data:
                    self.target.shutdown(socket.SHUT_WR)
                    return
                self.target.sendall(data)
            except OSError:
                self.source.close()
                return
