"""Checks of what the hooks of components return, so that a wrong result is an error of one line.

Every check compares Python objects, names, shapes and types. None reads the values of a tensor, so
none waits for a GPU. The last arguments of each check say whose result it is, for the error: the
component's place in the config (``aggregator``), the component, and the call (``merge(...)``).
"""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from operator import index
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedexp.core.messages import Tensors, Update
from fedexp.errors import InputError

_T = TypeVar("_T")


class WrongResultError(InputError):
    """A hook of a component returned a value that its contract does not allow."""


def named(place: str, owner: object) -> str:
    """A component's name in error lines, such as ``aggregator (mine.Mean)``."""
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{place} ({kind.__module__}.{kind.__qualname__})"


def wrong(problem: str, place: str, owner: object, call: str) -> WrongResultError:
    """The error about the result of this call; ``problem`` follows the call's name."""
    return WrongResultError(f"{named(place, owner)}: {call} {problem}")


def instance(found: Any, kind: type[_T], place: str, owner: object, call: str) -> _T:
    """Return ``found``, which must be a ``kind``."""
    if not isinstance(found, kind):
        article = "an" if kind.__name__[0] in "AEIOUaeiou" else "a"
        problem = f"returned {described(found)}; it must return {article} {kind.__name__}"
        raise wrong(problem, place, owner, call)
    return found


def tensors(found: Any, place: str, owner: object, call: str) -> Tensors:
    """Return ``found``, which must be a dict: name -> tensor."""
    if not isinstance(found, dict):
        problem = f"returned {described(found)}; it must return a dict: name -> tensor"
        raise wrong(problem, place, owner, call)
    for name, value in found.items():
        if not isinstance(name, str):
            raise wrong(f"named a tensor {name!r}; names must be text", place, owner, call)
        if not isinstance(value, Tensor):
            problem = f"returned {described(value)} as {name}; it must be a tensor"
            raise wrong(problem, place, owner, call)
    return found


def memory(found: Mapping[str, Any], place: str, owner: object) -> None:
    """Check that a client's memory for a part has only tensors."""
    for name, value in found.items():
        if not isinstance(value, Tensor):
            problem = f"has {described(value)} as {name}; it must be a tensor"
            raise wrong(problem, place, owner, "memory")


def weights(
    found: Any, expected: Tensors, place: str, owner: object, call: str, may_add: bool = False
) -> Tensors:
    """Return ``found``, which must have all names of ``expected``, in these shapes and types.

    If ``may_add``, it may have further names.
    """
    checked = tensors(found, place, owner, call)
    if missing := expected.keys() - found.keys():
        problem = f"left out {min(missing)}; it must return all {len(expected)} weights"
        raise wrong(f"{problem} of the message", place, owner, call)
    known = {name: found[name] for name in expected} if may_add else found
    some_weights(known, expected, place, owner, call)
    return checked


def some_weights(found: Any, expected: Tensors, place: str, owner: object, call: str) -> Tensors:
    """Return ``found``, whose names must be in ``expected``, with the same shapes and types."""
    checked = tensors(found, place, owner, call)
    for name, value in found.items():
        like = expected.get(name)
        if like is None:
            problem = f"returned {name}, which is not one of the {len(expected)} weights it gets"
            raise wrong(problem, place, owner, call)
        alike(value, like, name, place, owner, call)
    return checked


def alike(found: Any, like: Tensor, name: str, place: str, owner: object, call: str) -> Tensor:
    """Return ``found``, which must be a tensor with the shape, type and device of ``like``."""
    if not isinstance(found, Tensor) or (
        found.shape != like.shape or found.dtype != like.dtype or found.device != like.device
    ):
        problem = f"returned {described(found)} as {name}; it must be {described(like)}"
        raise wrong(problem, place, owner, call)
    return found


def gradients(
    found: Any, expected: Mapping[str, Tensor], place: str, owner: object, call: str
) -> Tensors:
    """Return ``found``, whose names must be trained parameters, with the parameters' shapes."""
    checked = tensors(found, place, owner, call)
    for name, value in found.items():
        if name not in expected:
            raise wrong(f"returned {name}, which is no trained parameter", place, owner, call)
        if value.shape != expected[name].shape:
            problem = f"returned {described(value)} as {name}; its shape must be"
            raise wrong(f"{problem} {tuple(expected[name].shape)}", place, owner, call)
    return checked


def scalar(found: Any, place: str, owner: object, call: str, number: bool = False) -> Any:
    """Return ``found``, which must be a float tensor without dimensions.

    If ``number``, a number is allowed, too. The check is fast enough for each training step.
    """
    if isinstance(found, Tensor) and found.dim() == 0 and found.is_floating_point():
        return found
    if number and isinstance(found, int | float):
        return found
    expected = "a number or a scalar tensor" if number else "a scalar tensor"
    raise wrong(f"returned {described(found)}; it must return {expected}", place, owner, call)


def rows(found: Any, like: Tensor, place: str, owner: object, call: str) -> Tensor:
    """Return ``found``, which must be a tensor with a row for each row of ``like``.

    Both have the same dimensions; only the last dimension may have another size.
    """
    if not isinstance(found, Tensor) or found.shape[:-1] != like.shape[:-1] or not found.dim():
        expected = f"a tensor {_sizes((*like.shape[:-1], 'C'))}"
        raise wrong(f"returned {described(found)}; it must return {expected}", place, owner, call)
    return found


def numbers(found: Any, place: str, owner: object, call: str) -> dict[str, float]:
    """Return ``found``, which must be a mapping: name -> number."""
    if not isinstance(found, Mapping):
        problem = f"returned {described(found)}; it must return a dict: name -> number"
        raise wrong(problem, place, owner, call)
    for name, value in found.items():
        if not isinstance(value, Real):
            problem = f"returned {described(value)} as {name}; it must be a number"
            raise wrong(problem, place, owner, call)
    return dict(found)


def update(found: Any, expected: Tensors, place: str, owner: object, call: str) -> Update:
    """Return ``found``, which must be an update with the weights of ``expected``."""
    checked = instance(found, Update, place, owner, call)
    weights(found.weights, expected, place, owner, call)
    for report in found.extras.values():
        tensors(report, place, owner, call)
    return checked


def sequence(found: Any, kind: type[_T], place: str, owner: object, call: str) -> Sequence[_T]:
    """Return ``found``, which must be a list or tuple of objects of the class ``kind``."""
    if not isinstance(found, list | tuple) or not all(isinstance(each, kind) for each in found):
        problem = f"returned {described(found)}; it must return a list of {kind.__name__}"
        raise wrong(problem, place, owner, call)
    return found


def clients(found: Any, allowed: np.ndarray, place: str, owner: object, call: str) -> list[int]:
    """Return the clients in ``found`` as ints; each must be in ``allowed`` [n], sorted numbers."""
    try:
        chosen = [index(each) for each in found]
    except TypeError:
        problem = f"returned {described(found)}; it must return a list of client numbers"
        raise wrong(problem, place, owner, call) from None
    places = np.searchsorted(allowed, chosen).tolist()
    for client, position in zip(chosen, places, strict=True):
        if position == len(allowed) or allowed[position] != client:
            problem = f"returned client {client}, which is not there, has no data or is busy"
            raise wrong(f"{problem}; it must choose from {len(allowed)}", place, owner, call)
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
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def _sizes(shape: Iterable[object]) -> str:
    return f"[{', '.join(map(str, shape))}]"
