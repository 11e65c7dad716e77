"""What tests see of processes that they have started, and do to them."""
import signal
from pathlib import Path

# Of mpirun 4.1.4 itself, not of a rank: as it clears away a job that was aborted, it sometimes crashes in libpmix.
MPIRUN_CRASHED = -signal.SIGSEGV


def damage_memory(process_id, content):
    """Flips a bit in the middle of every place where the process holds those bytes; how many there are."""
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
                continue  # no ordinary memory, or no longer there
            at = found.find(content)
            while at >= 0:
                middle = at + len(content) // 2 // 4 * 4  # the least of the mantissa of an f32
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
