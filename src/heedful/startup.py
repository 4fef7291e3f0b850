"""Start quickly: large imports without looking for garbage."""

import gc
import sys
from importlib import import_module


def load(module: str) -> None:
    """Import a module. Meanwhile the garbage collector rests: it would go through the million objects that torch makes
    again and again, a fifth of a second, and find nothing. Nor does it look at them later. For commands."""
    if module in sys.modules:
        return
    enabled = gc.isenabled()
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
