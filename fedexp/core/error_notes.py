"""Notes on exceptions in the code of parts: which part failed, for which client, in which round.

The exceptions keep their tracebacks. The part is found from the traceback, so calls of hooks need
no wrapper, and training takes no longer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from types import TracebackType

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
            whose = _innermost(error.__traceback__, components)
            error.add_note(f"{_BEGIN}{doing}" + (f", in {whose}" if whose else ""))
        raise


def _innermost(traceback: TracebackType | None, components: Mapping[str, object]) -> str:
    """The component whose method is the innermost in the traceback; empty if there is none."""
    places = {id(component): place for place, component in components.items()}
    found = ""
    for frame, _ in walk_tb(traceback):
        owner = frame.f_locals.get("self")
        if id(owner) in places:
            found = named(places[id(owner)], owner)
    return found
