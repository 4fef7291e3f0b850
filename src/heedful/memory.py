"""How this process asks the system for memory."""

import ctypes
import sys

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # glibc's numbers for them
LARGEST = 32 << 20  # the most glibc takes for the first


def keep_freed_memory() -> None:
    """Use freed memory again instead of giving it back. A step frees and asks for the same tensors again and again, and
    the system would hand out fresh pages, filled with zeros, each time: a tenth of a small model's step.
    For a process of our own, such as a command; a library must not decide this for its user."""
    if sys.platform != "linux":
        return
    change = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; others have their own ways
    if change is not None:
        change(MMAP_THRESHOLD, LARGEST)
        change(TRIM_THRESHOLD, 1 << 30)
