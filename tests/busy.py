"""Bounds of time on a machine that does other work, too."""
import os


def slowness():
    """Returns how many times longer than alone a process may take now: the load of a core, and at least 1."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
