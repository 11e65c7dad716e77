#!/usr/bin/env python3
"""An automounter for tests: binds PLACE/NAME to REAL/NAME when it is looked up, and unmounts it whenever nobody uses it.

Run as automount.py PLACE REAL COMMAND..., as root and in a mount namespace of its own (unshare -m). Ends with the
command's exit code, and prints how often it has mounted. Exits with 77 where the kernel has no autofs.
"""
import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

SKIPPED = 77
LIBRARY = ctypes.CDLL(None, use_errno=True)
BIND = 4096
MISSING, EXPIRED = 3, 4  # what packets of the kernel ask for
READY, FAILED, EXPIRE = 0x9360, 0x9361, 0x40049366  # ioctl
AT_ONCE = struct.pack("i", 1)
HEAD = struct.Struct("<iiIIQIIIII")  # version, kind, token, device, inode, user, group, process, group of it, length of the name


def mount(source, place, kind, flags, options):
    if LIBRARY.mount(os.fsencode(source), os.fsencode(place), kind, flags, options) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {place}")


def bind_or_unmount(kind, place, real):
    if kind == EXPIRED:
        if LIBRARY.umount2(os.fsencode(place), 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot unmount {place}")
        return
    if not real.is_dir():
        raise FileNotFoundError(real)
    place.mkdir(exist_ok=True)
    mount(real, place, None, BIND, None)


def serve(packets, root, place, real):
    """Answers the kernel's requests in this thread; those that lookups wait for must not wait for each other."""
    mounts = 0
    while packet := os.read(packets, 4096):
        _, kind, token, *_, length = HEAD.unpack_from(packet)
        name = os.fsdecode(packet[HEAD.size:HEAD.size + length])
        try:
            bind_or_unmount(kind, place / name, real / name)
            mounts += kind == MISSING
            answer = READY
        except OSError:
            answer = FAILED
        fcntl.ioctl(root, answer, token)
    print(f"{mounts} mounts")


def expire(root, ended):
    while not ended.is_set():
        try:
            fcntl.ioctl(root, EXPIRE, AT_ONCE)
        except OSError as error:
            if error.errno != errno.EAGAIN:  # nothing to unmount
                raise
        time.sleep(0.002)


def main():
    place, real = (Path(path).resolve() for path in sys.argv[1:3])
    os.setpgrp()  # the kernel mounts nothing for this group's own lookups
    packets, writer = os.pipe()
    options = f"fd={writer},pgrp={os.getpgrp()},minproto=5,maxproto=5,indirect".encode()
    try:
        mount("tests", place, b"autofs", 0, options)
    except OSError:
        return SKIPPED
    root = os.open(place, os.O_RDONLY)
    ended = threading.Event()
    threads = [threading.Thread(target=serve, args=(packets, root, place, real)), threading.Thread(target=expire, args=(root, ended))]
    for thread in threads:
        thread.start()
    code = subprocess.run(sys.argv[3:], start_new_session=True, check=False).returncode
    ended.set()
    threads[1].join()
    os.close(root)
    os.close(writer)
    subprocess.run(["umount", "-l", place], check=True)
    threads[0].join()
    return code


if __name__ == "__main__":
    sys.exit(main())
