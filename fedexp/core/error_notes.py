"""Notes on exceptions in the code of parts: which part failed, for which client, in which round.

The exceptions keep their tracebacks. The part is found from the traceback, so calls of hooks need
no wrapper, and training takes no longer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import NamedTuple

from fedexp.core.results import named
from fedexp.errors import InputError

_BEGIN = "while "


@contextmanager
def noted(doing: str, components: Mapping[str, object]) -> Iterator[None]:
    """Add a note to an exception that leaves the block, unless an inner block has added one.

    The note is ``while DOING, in loss (mine.Robust)``.

    Args:
        doing: the work in the block, for example "training client 3 in round 2".
        components: place in the config -> the component there, whose methods may have failed.
    """
    try:
        yield
    except InputError:  # its line says all
        raise
    except Exception as error:
        if not any(note.startswith(_BEGIN) for note in getattr(error, "__notes__", ())):
            found = innermost(error.__traceback__, components)
            error.add_note(f"{_BEGIN}{doing}" + (f", in {found.whose}" if found else ""))
        raise


class Place(NamedTuple):
    """A place in the code of a component.

    Attributes:
        whose: the component, such as ``loss (mine.Robust)``.
        hook: the component's method that was called, such as ``report``.
        line: the line in this method, or in another one that it calls: ``line 12 of mine.py``.
    """

    whose: str
    hook: str
    line: str


def innermost(traceback: TracebackType | None, components: Mapping[str, object]) -> Place | None:
    """The component whose method is the innermost in the traceback; None if there is none."""
    places = {id(component): place for place, component in components.items()}
    last: object = None
    found = None
    for frame, number in walk_tb(traceback):
        owner = frame.f_locals.get("self")
        is_torch = frame.f_globals.get("__name__", "").startswith("torch.")  # of ``nn.Module``
        if id(owner) in places and not is_torch:
            hook = found.hook if found and owner is last else frame.f_code.co_name
            line = f"line {number} of {Path(frame.f_code.co_filename).name}"
            found, last = Place(named(places[id(owner)], owner), hook, line), owner
    return found
