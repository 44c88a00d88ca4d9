"""Import PyTorch and Lightning without searching their objects for garbage."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Collect no garbage in this block, and never search the objects that live at its end.

    The packages make a million objects that live as long as the process. Python would search all of
    them for cycles several times, while they are imported and later. Where Lightning is imported
    already, the block does nothing: what lives at its end may become garbage.
    """
    if "lightning" in sys.modules or not gc.isenabled():
        yield
        return
    gc.collect()  # what is garbage by now would stay for ever
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
