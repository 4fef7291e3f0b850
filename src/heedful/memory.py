"""How this process allocates memory."""

import ctypes
import sys

MMAP_MAX, TRIM_THRESHOLD = -4, -1  # glibc's constants


def keep_freed_memory() -> None:
    """Reuse freed memory instead of returning it to the system. Each step allocates the same tensors, and the system
    would provide new pages, filled with zeros, each time: a tenth of a small model's step.
    For our own processes, such as a command; a library must not decide this for its user."""
    if sys.platform != "linux":
        return
    change = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if change is not None:
        change(MMAP_MAX, 0)  # large tensors, such as a vocabulary's gradient, are not mapped one by one
        change(TRIM_THRESHOLD, 1 << 30)
