"""Checks of what the hooks of components return, so that a wrong result is an error of one line.

Every check compares Python objects, names, shapes and types. None reads the values of a tensor, so
none waits for a GPU. The arguments ``whose`` of each check say whose result it is, for the error:
the component's place in the config (``aggregator``), the component, and the call (``merge(...)``).
"""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from operator import index
from typing import Any, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

from fedexp.core.messages import Tensors, Update
from fedexp.errors import InputError

_T = TypeVar("_T")
_Whose: TypeAlias = tuple[str, object, str]


class WrongResultError(InputError):
    """A hook of a component returned a value that its contract does not allow."""


def named(place: str, owner: object) -> str:
    """A component's name in error lines, such as ``aggregator (mine.Mean)``."""
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{place} ({kind.__module__}.{kind.__qualname__})"


def wrong(problem: str, place: str, owner: object, call: str) -> WrongResultError:
    """The error about the result of this call; ``problem`` follows the call's name."""
    return WrongResultError(f"{named(place, owner)}: {call} {problem}")


def _not(expected: str, found: Any, *whose: *_Whose) -> WrongResultError:
    """The error about a result that is something else than ``expected``."""
    return wrong(f"returned {described(found)}; it must return {expected}", *whose)


def _not_as(name: str, expected: str, found: Any, *whose: *_Whose) -> WrongResultError:
    """The error about an entry of a result that is something else than ``expected``."""
    return wrong(f"returned {described(found)} as {name}; {expected}", *whose)


def instance(found: Any, kind: type[_T], *whose: *_Whose) -> _T:
    """Return ``found``, which must be a ``kind``."""
    if not isinstance(found, kind):
        raise _not(_with_article(kind), found, *whose)
    return found


def tensors(found: Any, *whose: *_Whose) -> Tensors:
    """Return ``found``, which must be a dict: name -> tensor."""
    if not isinstance(found, dict):
        raise _not("a dict: name -> tensor", found, *whose)
    for name, value in found.items():
        if not isinstance(name, str):
            raise wrong(f"named a tensor {name!r}; names must be text", *whose)
        if not isinstance(value, Tensor):
            raise _not_as(name, "it must be a tensor", value, *whose)
    return found


def memory(found: Mapping[str, Any], place: str, owner: object) -> None:
    """Check that a client's memory for a part has only tensors."""
    for name, value in found.items():
        if not isinstance(value, Tensor):
            problem = f"has {described(value)} as {name}; it must be a tensor"
            raise wrong(problem, place, owner, "memory")


def weights(found: Any, expected: Tensors, *whose: *_Whose, may_add: bool = False) -> Tensors:
    """Return ``found``, which must have all names of ``expected``, in these shapes and types.

    If ``may_add``, it may have further names.
    """
    checked = tensors(found, *whose)
    if missing := expected.keys() - found.keys():
        problem = f"left out {min(missing)}; it must return all {len(expected)} weights"
        raise wrong(f"{problem} of the message", *whose)
    known = {name: found[name] for name in expected} if may_add else found
    some_weights(known, expected, *whose)
    return checked


def some_weights(found: Any, expected: Tensors, *whose: *_Whose) -> Tensors:
    """Return ``found``, whose names must be in ``expected``, with the same shapes and types."""
    checked = tensors(found, *whose)
    for name, value in found.items():
        like = expected.get(name)
        if like is None:
            problem = f"returned {name}, which is not one of the {len(expected)} weights it gets"
            raise wrong(problem, *whose)
        alike(value, like, name, *whose)
    return checked


def alike(found: Any, like: Tensor, name: str, *whose: *_Whose) -> Tensor:
    """Return ``found``, which must be a tensor with the shape, type and device of ``like``."""
    if not isinstance(found, Tensor) or (
        found.shape != like.shape or found.dtype != like.dtype or found.device != like.device
    ):
        raise _not_as(name, f"it must be {described(like)}", found, *whose)
    return found


def gradients(found: Any, expected: Mapping[str, Tensor], *whose: *_Whose) -> Tensors:
    """Return ``found``, whose names must be trained parameters, with the parameters' shapes."""
    checked = tensors(found, *whose)
    for name, value in found.items():
        if name not in expected:
            raise wrong(f"returned {name}, which is no trained parameter", *whose)
        if value.shape != expected[name].shape:
            shape = tuple(expected[name].shape)
            raise _not_as(name, f"its shape must be {shape}", value, *whose)
    return checked


def scalar(found: Any, *whose: *_Whose, number: bool = False) -> Any:
    """Return ``found``, which must be a float tensor without dimensions.

    If ``number``, a number is allowed, too. The check is fast enough for each training step.
    """
    if isinstance(found, Tensor) and found.dim() == 0 and found.is_floating_point():
        return found
    if number and isinstance(found, int | float):
        return found
    raise _not("a number or a scalar tensor" if number else "a scalar tensor", found, *whose)


def rows(found: Any, like: Tensor, *whose: *_Whose) -> Tensor:
    """Return ``found``, which must be a tensor with a row for each row of ``like``.

    Both have the same dimensions; only the last dimension may have another size.
    """
    if not isinstance(found, Tensor) or found.shape[:-1] != like.shape[:-1] or not found.dim():
        raise _not(f"a tensor {_sizes((*like.shape[:-1], 'C'))}", found, *whose)
    return found


def numbers(found: Any, *whose: *_Whose) -> dict[str, float]:
    """Return ``found``, which must be a mapping: name -> number."""
    if not isinstance(found, Mapping):
        raise _not("a dict: name -> number", found, *whose)
    for name, value in found.items():
        if not isinstance(value, Real):
            raise _not_as(name, "it must be a number", value, *whose)
    return dict(found)


def update(found: Any, expected: Tensors, *whose: *_Whose) -> Update:
    """Return ``found``, which must be an update with the weights of ``expected``."""
    checked = instance(found, Update, *whose)
    weights(found.weights, expected, *whose)
    for report in found.extras.values():
        tensors(report, *whose)
    return checked


def sequence(found: Any, kind: type[_T], *whose: *_Whose) -> Sequence[_T]:
    """Return ``found``, which must be a list or tuple of objects of the class ``kind``."""
    if not isinstance(found, list | tuple) or not all(isinstance(each, kind) for each in found):
        raise _not(f"a list of {kind.__name__}", found, *whose)
    return found


def clients(found: Any, allowed: np.ndarray, *whose: *_Whose) -> list[int]:
    """Return the clients in ``found`` as ints; each must be in ``allowed`` [n], sorted numbers."""
    try:
        chosen = [index(each) for each in found]
    except TypeError:
        raise _not("a list of client numbers", found, *whose) from None
    places = np.searchsorted(allowed, chosen).tolist()
    for client, position in zip(chosen, places, strict=True):
        if position == len(allowed) or allowed[position] != client:
            problem = f"returned client {client}, which is not there, has no data or is busy"
            raise wrong(f"{problem}; it must choose from {len(allowed)}", *whose)
    return chosen


def described(value: Any) -> str:
    """A value in a few words: ``None``, ``a float``, ``a tensor [64, 10] float32 on cpu``."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"a {kind} tensor {_sizes(value.shape)} on {value.device}"
    if isinstance(value, list | tuple) and value:
        others = [each for each in value if type(each) is not type(value[0])]
        return f"a {type(value).__name__} with {described((others or value)[0])}"
    return _with_article(type(value))


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def _sizes(shape: Iterable[object]) -> str:
    return f"[{', '.join(map(str, shape))}]"
