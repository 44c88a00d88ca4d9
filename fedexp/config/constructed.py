"""Checks of a component that a config names: its constructor, its attributes and its hooks.

The errors are one line, because such mistakes are found before anything runs. They begin with the
key ``_target_``, to which the command line adds the file of the option.
"""

import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from traceback import walk_tb
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedexp.errors import InputError

_WITHOUT_INIT = "Module.__init__() call"  # the end of PyTorch's error
_MUST_CALL = "its __init__ must call super().__init__() before it sets anything"


def construct(
    key: str, target: Callable[..., Any], kind: type, arguments: Mapping[str, Any]
) -> Any:
    """Call ``target``, and check the attributes of the object that it makes.

    If ``target`` raises an InputError that begins with one of its arguments, as in ``k=3: ...``,
    the error gets ``key`` in front. So a class that serves several keys need not know its key.

    Args:
        key: the component's place in the config, such as "loss", for error messages.
        target: the class or function, or a ``functools.partial`` of one.
        kind: the base class with the contract of the component.
        arguments: the arguments of the call.

    Raises:
        InputError: the call failed, or the object breaks the contract.
    """
    name = target_name(key, target)
    try:
        made = target(**arguments)
    except InputError as error:
        if str(error).partition("=")[0] in arguments:
            raise InputError(f"{key}.{error}") from None
        raise
    except Exception as error:
        raise failed(name, target, error) from error
    if not isinstance(made, kind):
        raise InputError(f"{name}: made a {type(made).__name__}, not a {kind.__name__}")
    if hasattr(type(made), "register_parameter") and "_parameters" not in vars(made):
        raise InputError(f"{name}: {_MUST_CALL}")
    for attribute, hint in _declared(kind).items():
        if attribute in vars(made):
            _check_attribute(name, attribute, vars(made)[attribute], hint)
    return made


def failed(name: str, target: Callable[..., Any], error: Exception) -> InputError:
    """The error of one line about a call of ``target`` that raised ``error``."""
    if isinstance(error, AttributeError) and _WITHOUT_INIT in str(error):
        return InputError(f"{name}: {_MUST_CALL}")
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    return InputError(f"{name}: failed with {reason}{_place(target, error)}")


def target_name(key: str, target: Callable[..., Any]) -> str:
    """``KEY._target_=MODULE.NAME``, the beginning of an error about a component."""
    target = innermost(target)
    return f"{key}._target_={target.__module__}.{getattr(target, '__qualname__', target)}"


def innermost(target: Callable[..., Any]) -> Callable[..., Any]:
    """The class or function that a ``partial`` calls, even a partial of a partial."""
    while isinstance(target, partial):
        target = target.func
    return target


def check_hooks(key: str, target: Callable[..., Any], kind: type) -> None:
    """Check the attributes and hooks of a class; a function is not checked.

    An attribute must fit the annotation in ``kind`` or a base class. A hook must be a function with
    at least as many positional arguments as in ``kind``. One that a base class marks by
    ``abstractmethod`` must be defined.

    Raises:
        InputError: an attribute or a hook does not fit, or a hook is absent.
    """
    if isinstance(target, type):
        _check_class(target_name(key, target), target, kind)


@cache  # the jobs of a sweep build the same classes
def _check_class(name: str, target: type, kind: type) -> None:
    for attribute, hint in _declared(kind).items():
        value = inspect.getattr_static(target, attribute, None)
        if hasattr(target, attribute) and not hasattr(value, "__get__"):
            _check_attribute(name, attribute, value, hint)
    for hook, expected in _hooks(kind):
        own = inspect.getattr_static(target, hook)
        if own is not inspect.getattr_static(kind, hook):
            _check_hook(name, hook, getattr(target, hook), expected)
    if absent := [_form(target, hook) for hook in dir(target) if _is_abstract(target, hook)]:
        raise InputError(f"{name}: must define {' and '.join(absent)}")


def _is_abstract(target: type, hook: str) -> bool:
    """Whether the class still lacks this hook; its metaclass need not be ``ABCMeta``."""
    found = inspect.getattr_static(target, hook, None)
    return inspect.isfunction(found) and getattr(found, "__isabstractmethod__", False)


def _form(target: type, hook: str) -> str:
    """A hook with the names of its arguments: ``forward(batch)``."""
    _, *names = inspect.signature(getattr(target, hook)).parameters
    return f"{hook}({', '.join(names)})"


def _check_attribute(name: str, attribute: str, value: Any, hint: Any) -> None:
    """Raise InputError if ``value`` does not fit the annotation ``hint``."""
    exact = isinstance(value, str) or not isinstance(value, Collection)  # a set may be a frozenset
    try:
        _adapter(hint).validate_python(value, strict=exact)
    except ValidationError:
        shown = getattr(hint, "__name__", "") if isinstance(hint, type) else ""
        wanted = str(hint).replace("typing.", "").replace("collections.abc.", "")
        expected = wanted if typing.get_args(hint) else shown or wanted
        raise InputError(f"{name}: {attribute} = {value!r}, but must be {expected}") from None


def _check_hook(name: str, hook: str, own: Any, expected: inspect.Signature) -> None:
    """Raise InputError if ``own`` is no function, or takes fewer arguments than the contract's."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in expected.parameters.values() if each.kind in places]
    form = f"{hook}({', '.join(names)})"
    if not callable(own):
        raise InputError(f"{name}: {hook} = {own!r}, but must be a method {form}")
    try:
        inspect.signature(own).bind_partial(*names)
    except TypeError:
        raise InputError(f"{name}: {hook}{inspect.signature(own)}, but must be {form}") from None
    except ValueError:  # a function without a signature
        return


@cache
def _declared(kind: type) -> dict[str, Any]:
    """Name -> annotation of each attribute that ``kind`` and its bases in fedexp declare."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("fedexp."):
            alone = {name: vars(base).get(name, {}) for name in ("__annotations__", "__module__")}
            found |= typing.get_type_hints(type("Alone", (), alone))
    return {name: _without_classvar(hint) for name, hint in found.items()}


def _without_classvar(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.ClassVar else hint


@cache
def _hooks(kind: type) -> list[tuple[str, inspect.Signature]]:
    """(name, signature) of each method that ``kind`` and its bases in fedexp define."""
    names = {
        name
        for base in kind.__mro__
        if base.__module__.startswith("fedexp.")
        for name, value in vars(base).items()
        if inspect.isfunction(value) and (not name.startswith("_") or name == "__call__")
    }
    return [(name, inspect.signature(getattr(kind, name))) for name in sorted(names)]


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))


def _place(target: Callable[..., Any], error: Exception) -> str:
    """Where in the target's package the error was raised: `` (mine.py, line 12)``; else empty."""
    package = innermost(target).__module__.partition(".")[0]
    frames = [
        (frame, line)
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] == package
    ]
    if not frames:
        return ""
    frame, line = frames[-1]
    return f" ({frame.f_code.co_filename}, line {line})"
