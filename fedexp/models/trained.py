"""Which layers of a model train: ``model.train``."""

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile

from torch import nn

from fedexp.errors import InputError

HEAD, BACKBONE = "head", "backbone"


def train_layers(backbone: nn.Module, paths: Sequence[str]) -> None:
    """Train only the parameters of the backbone below one of ``paths``, which may be any number.

    The others lose ``requires_grad``. A path is the beginning of a parameter's name, whole names
    between dots: ``layer1`` is not ``layer10``. It is taken at the outermost level where it occurs,
    so that ``layer4`` is found behind a layer that makes grey images colour, and ``conv1`` is not
    that of every block. ``backbone`` is all of it, and may come before a path.

    Raises:
        InputError: there is no parameter below a path.
    """
    names = [name for name, _ in backbone.named_parameters()]
    trained = {name for path in paths for name in _below(path, names)}
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(name in trained)


def train_head(head: nn.Module, paths: Sequence[str]) -> None:
    """Train only the head's parameters below one of ``paths``: ``head``, or ``head.bias``.

    Raises:
        InputError: there is no parameter below a path, unless it is ``head``.
    """
    names = [name for name, _ in head.named_parameters()]
    inner = [path.removeprefix(f"{HEAD}.") for path in paths if path != HEAD]
    trained = {name for path in inner for name in _below(path, names, f"{HEAD}.")}
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(HEAD in paths or name in trained)


def split_paths(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """(those of the backbone, those of the head)."""
    of_head = [path for path in paths if path.split(".")[0] == HEAD]
    return [path for path in paths if path not in of_head], of_head


def _below(path: str, names: Sequence[str], prefix: str = "") -> list[str]:
    """The names with ``path`` at the outermost level where any has it; messages add ``prefix``."""
    wanted = path.split(".")
    if wanted[0] == BACKBONE:
        wanted = wanted[1:]
        depths = {name: 0 for name in names if name.split(".")[: len(wanted)] == wanted}
    else:
        depths = {name: depth for name in names if (depth := _depth(name, wanted)) is not None}
    outermost = min(depths.values(), default=0)
    found = [name for name, depth in depths.items() if depth == outermost]
    if not found:
        hint = _hint(path, names, prefix)
        raise InputError(f"model.train: the model has no parameter below {prefix}{path}; {hint}")
    return found


def _depth(name: str, wanted: list[str]) -> int | None:
    """How many names come before ``wanted`` in ``name``; None if it is not in it."""
    parts = name.split(".")
    starts = range(len(parts) - len(wanted) + 1)
    return next((at for at in starts if parts[at : at + len(wanted)] == wanted), None)


def _hint(path: str, names: Sequence[str], prefix: str) -> str:
    """Paths like the mistaken one, or else those of the outermost level that has several."""
    split = [name.split(".") for name in names]
    shared = takewhile(lambda level: len(set(level)) == 1, zip(*split, strict=False))
    outer = len(list(shared))
    paths = {".".join(parts[outer:end]) for parts in split for end in range(outer + 1, len(parts))}
    if close := get_close_matches(path, paths):
        return f"did you mean {', '.join(prefix + each for each in close)}?"
    first = dict.fromkeys(prefix + parts[outer] for parts in split if len(parts) > outer)
    return f"there are {', '.join([HEAD, *first])}"
