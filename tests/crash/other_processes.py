"""Observes and manipulates processes that tests have started."""
import signal
from pathlib import Path

# mpirun 4.1.4 itself, not a rank, sometimes crashes in libpmix while it cleans up an aborted job.
MPIRUN_CRASHED = -signal.SIGSEGV


def damage_memory(process_id, content):
    """Flips a bit in the middle of every occurrence of `content` in the process's memory; returns their number."""
    places = 0
    maps = Path(f"/proc/{process_id}/maps").read_text(encoding="utf-8").splitlines()
    with open(f"/proc/{process_id}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            addresses, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            begin, end = (int(address, 16) for address in addresses.split("-"))
            try:
                memory.seek(begin)
                found = memory.read(end - begin)
            except OSError:
                continue  # not ordinary memory, or gone
            at = found.find(content)
            while at >= 0:
                middle = at + len(content) // 2 // 4 * 4  # the lowest byte of an f32's mantissa
                memory.seek(begin + middle)
                memory.write(bytes([found[middle] ^ 1]))
                places += 1
                at = found.find(content, at + len(content))
    return places


def is_running(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
