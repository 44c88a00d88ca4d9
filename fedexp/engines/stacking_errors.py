"""Errors about code of a part that works for one client, but not for a stack of clients."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from fedexp.core.error_notes import innermost
from fedexp.core.results import named
from fedexp.core.transfer import to_device
from fedexp.errors import InputError

_REGISTER = "register it in setup with register_buffer and set it in begin with copy_"
_CHANGES = (
    "changes in place a tensor that all clients share; make it a buffer, or use an operation that "
    "is not in place"
)
_READS_A_VALUE = "reads the value of a tensor, as .item() does; keep it a tensor"

_RULES = {
    "data-dependent control flow": "branches on the value of a tensor; use torch.where",
    "calling .item()": _READS_A_VALUE,
    "doesn't have storage": _READS_A_VALUE,  # .tolist() and .numpy()
    "dynamic shape": "makes a tensor whose size depends on values; use torch.where",
    "not being vmapped over": _CHANGES,  # by a method that changes it in place
    "doesn't match the broadcast shape": _CHANGES,  # by +=
}
"""Words of PyTorch's error -> the rule of a part's contract that the code breaks."""


_IN_STACK = ("_parameters", "_buffers")
"""The attributes of a module whose tensors a stack keeps for each client."""

_Key = tuple[str, str]
"""A component's place in the config, and a tensor's expression, such as ``means[0]``."""

_Seen = tuple[Tensor, int]
"""A tensor, and the number of its changes in place (PyTorch's version)."""


class StackingError(InputError):
    """A part breaks a rule of its contract that only matters for a stack of clients."""

    def __init__(self, whose: str, problem: str) -> None:
        super().__init__(f"engine=vectorized: {whose}: {problem}, or use engine=serial")


@contextmanager
def stacking(components: Mapping[str, object]) -> Iterator[None]:
    """In this block, PyTorch's error about code that cannot be stacked becomes a StackingError.

    Other exceptions, and exceptions outside of the components' methods, are passed on.

    Args:
        components: place in the config -> the component there.
    """
    try:
        yield
    except (RuntimeError, AttributeError) as error:
        rule = _broken_rule(error, components)
        found = innermost(error.__traceback__, components)
        if rule is None or found is None:
            raise
        raise StackingError(found.whose, f"{found.line} {rule}") from error


def _broken_rule(
    error: RuntimeError | AttributeError, components: Mapping[str, object]
) -> str | None:
    """The rule of a part's contract that the code breaks; None if the error has another cause."""
    if isinstance(error, AttributeError):
        if not any(error.obj is component for component in components.values()):
            return None
        return f"reads self.{error.name}, which setup has not made; {_REGISTER}"
    return next((rule for words, rule in _RULES.items() if words in str(error)), None)


class Attributes:
    """The tensors in attributes of the components that are no parameters and no buffers.

    They may be in dicts, lists and tuples. A stack keeps only parameters and buffers for each
    client. So a tensor that ``begin`` sets must be the same for all clients of the stack. The
    attributes in ``saved`` are left out: they are the server half's, which ``begin`` does not set.

    Args:
        components: place in the config -> the component there.
        device: the device of the models.
    """

    def __init__(self, components: Mapping[str, object], device: torch.device) -> None:
        self._components, self._device = components, device
        self._untouched = {key: (v, v._version) for key, v in self._tensors().items()}
        self._first: dict[_Key, tuple[_Seen, Tensor]] | None = None
        self._differs: dict[_Key, Tensor] = {}

    def compare(self) -> None:
        """Call this after each client's ``begin``. It does not wait for the device.

        Raises:
            StackingError: a tensor that the first client's ``begin`` set has another shape or type.
        """
        found = self._tensors()
        if self._first is None:
            self._first = {
                key: ((value, value._version), value.detach().clone())
                for key, value in found.items()
                if _is_touched(value, self._untouched.get(key))
            }
            return
        for key, (seen, value) in self._first.items():
            now = found.get(key)
            if now is not None and not _is_touched(now, seen):
                continue
            if now is None or (now.shape, now.dtype) != (value.shape, value.dtype):
                raise self._error(key)
            different = (now != value).any()
            self._differs[key] = self._differs.get(key, different) | different

    def check(self) -> None:
        """Call this after the last client's ``begin``. It waits for the device at most once.

        Raises:
            StackingError: a tensor that the first client's ``begin`` set had another value later.
        """
        if self._differs:
            flags = [to_device(each, self._device) for each in self._differs.values()]
            for key, differs in zip(self._differs, torch.stack(flags).tolist(), strict=True):
                if differs:
                    raise self._error(key)

    def _error(self, key: _Key) -> StackingError:
        place, name = key
        problem = f"self.{name} differs between clients, but is no buffer; {_REGISTER}"
        return StackingError(named(place, self._components[place]), problem)

    def _tensors(self) -> dict[_Key, Tensor]:
        return {
            (place, name): value
            for place, component in self._components.items()
            for attribute, content in vars(component).items()
            if attribute not in _IN_STACK
            # They may hold a number for each two clients, too many to walk through for each client.
            and attribute not in getattr(component, "saved", ())
            for name, value in _within(attribute, content)
            if not value.is_inference()  # these have no version
        }


def _within(name: str, content: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors in ``content``, each with its expression, such as ``means[0]``."""
    if isinstance(content, Tensor):
        yield name, content
    elif isinstance(content, dict | list | tuple):
        items: Iterable[tuple[object, object]]
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            yield from _within(f"{name}[{key!r}]", value)


def _is_touched(value: Tensor, seen: _Seen | None) -> bool:
    """Whether this is another tensor than the one that was seen, or was changed in place since."""
    return seen is None or value is not seen[0] or value._version != seen[1]
