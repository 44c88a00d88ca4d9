"""Lets a run go on without figures that cannot be drawn."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from matplotlib.figure import Figure

LOGGER = logging.getLogger(__name__)
_REPORTED: WeakSet[Figure] = WeakSet()


@contextmanager
def leaving_out(name: str, figure: Figure) -> Iterator[None]:
    """If drawing the figure fails in this block, warn once and go on without the figure.

    An OSError is raised all the same: a file that cannot be written is no fault of the figure.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if figure not in _REPORTED:
            reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            LOGGER.warning("figure %s: cannot be drawn, left out (%s)", name, reason)
        _REPORTED.add(figure)
