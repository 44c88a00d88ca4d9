"""Checked construction of objects from config nodes.

A config node is a group of keys. Its key ``_target_`` names a class or function, the target, and
its other keys are the target's arguments. Two checks precede the call. The target must make the
right kind of object, so a config cannot call just any function. The arguments must fit the target's
signature, so a new part needs no other schema.
"""

import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from fedexp.config.constructed import check_hooks, construct
from fedexp.config.renamed_keys import renamed
from fedexp.errors import InputError

Node = dict[str, Any]
"""A config node with a ``_target_`` and its arguments."""

_Model = TypeVar("_Model", bound=BaseModel)
VAR_POSITIONAL, VAR_KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
STRICT = ConfigDict(
    extra="forbid",
    frozen=True,
    allow_inf_nan=False,
    arbitrary_types_allowed=True,
    protected_namespaces=(),
)


def build(
    key: str,
    node: Node,
    kind: type,
    supplied: Sequence[str] = (),
    types: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Check a ``_target_`` node against the target's signature, and call the target.

    A path may begin with ``~``.

    Args:
        key: the node's place in the config, such as "partition", for error messages.
        node: ``_target_`` and its arguments.
        kind: the class of the result; see ``locate_kind``.
        supplied: names of arguments that the caller will pass later; if there are any, the result
            is a ``functools.partial`` of the target.
        types: argument -> the type to check against, in place of the target's annotation.
    """
    node = dict(node)
    target = locate_kind(f"{key}._target_", node.pop("_target_", None), kind)
    model = _arguments(target, tuple(supplied), tuple(types.items()))
    checked = vars(check(model, node, prefix=f"{key}."))
    arguments = {name: _at_home(f"{key}.{name}", value) for name, value in checked.items()}
    check_hooks(key, target, kind)
    if supplied:
        return partial(target, **arguments)
    return construct(key, target, kind, arguments)


def _at_home(key: str, value: Any) -> Any:
    """The value; in a path, the home folder in place of ``~``. InputError for an unknown user."""
    if not isinstance(value, Path) or not str(value).startswith("~"):
        return value
    if (found := os.path.expanduser(value)).startswith("~"):
        raise InputError(f"{key}={value}: there is no such user; a folder ~ is written ./{value}")
    return Path(found)


def locate_kind(key: str, name: Any, kind: type) -> Callable[..., Any]:
    """Find the class or function that ``key`` names, and check that it makes a ``kind``.

    A class must be a subclass of ``kind``. A function must be annotated to return a ``kind``.
    Raises InputError.
    """
    target = locate(key, name)
    if not _makes(target, kind):
        wanted = _public_name(kind)
        function = f"a function that is annotated to return {wanted}"
        if kind.__module__ == "builtins":  # nobody makes a subclass of list
            example = f"def {str(name).rpartition('.')[2]}(...) -> {wanted}"
            raise InputError(f"{key}={name}: should be {function}, as in {example}")
        raise InputError(f"{key}={name}: should be a subclass of {wanted}, or {function}")
    return target


def _makes(target: Callable[..., Any], kind: type) -> bool:
    """Whether the target is a subclass of ``kind``, or a function annotated to return one."""
    if inspect.isclass(target):
        return issubclass(target, kind)
    try:
        returned = typing.get_type_hints(target).get("return")
    except (NameError, TypeError):  # an unknown name in the annotations, or no function
        return False
    is_union = typing.get_origin(returned) in (typing.Union, UnionType)
    members = typing.get_args(returned) if is_union else (returned,)
    classes = [typing.get_origin(each) or each for each in members]
    return all(inspect.isclass(each) and issubclass(each, kind) for each in classes)


def _public_name(kind: type) -> str:
    """The shortest dotted name of the class, such as ``torch.nn.Module``."""
    path = kind.__module__.split(".") if kind.__module__ != "builtins" else []
    for length in range(1, len(path)):
        module = ".".join(path[:length])
        if getattr(sys.modules[module], kind.__name__, None) is kind:
            return f"{module}.{kind.__name__}"
    return ".".join([*path, kind.__name__])


def locate(key: str, name: Any) -> Callable[..., Any]:
    """Import the class or function with this dotted name; errors name the config ``key``."""
    module, _, attribute = str(name).rpartition(".")
    if name is None:
        raise InputError(f"{key}: is missing; it names a class, as in _target_: my_package.MyClass")
    if not module or module.startswith("."):
        raise InputError(f"{key}={name}: must be written MODULE.NAME")
    try:
        found: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        hint = _where_python_looks(module, error)
        raise InputError(f"{key}={name}: cannot be imported ({error}{hint})") from error
    return found


def _where_python_looks(module: str, error: Exception) -> str:
    """The end of an import error: advice if the module may lie in the current folder, else "".

    ``python -m`` imports from the current folder; a command installed by pip does not.
    """
    is_absent = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
    if not is_absent or Path.cwd() in {Path(each).resolve() for each in sys.path}:
        return ""
    return "; the current folder is looked in after export PYTHONPATH=."


def argument_names(target: Callable[..., Any]) -> set[str]:
    """The names of a target's arguments, and the name ``_target_``."""
    parameters = inspect.signature(target).parameters.values()
    return {"_target_", *(each.name for each in parameters)}


@cache  # the jobs of a sweep build the same parts
def _arguments(
    target: Callable[..., Any],
    supplied: tuple[str, ...],
    types: tuple[tuple[str, Any], ...] = (),
) -> type[BaseModel]:
    """A pydantic model with one field for each argument of ``target`` that a config may set."""
    source = target.__init__ if inspect.isclass(target) else target
    try:
        hints = typing.get_type_hints(source, include_extras=True)
    except NameError:  # some libraries import their annotated types for type checkers only
        hints = {}
    hints |= dict(types)
    fields: dict[str, Any] = {
        name: (
            hints.get(name, Any),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for name, parameter in inspect.signature(target).parameters.items()
        if name not in supplied and parameter.kind not in (VAR_POSITIONAL, VAR_KEYWORD)
    }
    return create_model("Arguments", __config__=STRICT, **fields)


def check(model: type[_Model], values: dict[str, Any], prefix: str) -> _Model:
    """Check ``values`` and make a ``model`` of them. An InputError names ``prefix`` and the key."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(_one_line(error.errors(), model, values, prefix)) from error


def _one_line(
    problems: Sequence[ErrorDetails], model: type[BaseModel], values: Node, prefix: str
) -> str:
    """The error line for one of the problems.

    An unknown key comes first, because it may be a mistyped name of a missing key. A value that
    fits no type of a union has a problem with each type; the line has all of them.
    """
    problem = min(problems, key=lambda each: each["type"] != "extra_forbidden")
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, InputError):  # raised by a validator for a node inside this node
        return str(cause)
    key = prefix + ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        if words := renamed(key):
            return f"{key}: unknown key; it {words}"
        known = sorted(_fields(model, problem["loc"][:-1]))
        return f"{key}: unknown key; there are {', '.join(known) or 'none'}"
    if problem["type"] == "model_type":
        known = [f"{key}.{name}" for name in _fields(model, problem["loc"])]
        return f"{key}={problem['input']}: is a group of keys; there are {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{key}: is missing"
    key = _key(problem, values)
    wrong = " or ".join(_message(each) for each in problems if _key(each, values) == key)
    return f"{prefix}{key}={problem['input']}: {wrong.replace(' or should be ', ' or ')}"


def _key(problem: ErrorDetails, values: Any) -> str:
    """The dotted key of a wrong value, without pydantic's names of the types of a union."""
    steps = []
    for step in problem["loc"]:
        try:
            values = values[step]
        except (KeyError, TypeError):  # no key of the config
            continue
        steps.append(str(step))
    return ".".join(steps)


def _message(problem: ErrorDetails) -> str:
    """What is wrong, such as ``should be greater than 0``."""
    message = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if problem["type"] == "too_short":
        least = problem["ctx"]["min_length"]
        return f"should have at least {least} item{'s' if least > 1 else ''}"
    if problem["type"] == "list_type":
        return f"{message}, such as [{problem['input']}]"
    return message


def _fields(model: Any, place: Sequence[int | str]) -> Iterable[str]:
    """The valid keys of the group at this place of a config; the place may lead through dicts."""
    for step in place:
        is_dict = not hasattr(model, "model_fields")
        model = typing.get_args(model)[-1] if is_dict else model.model_fields[str(step)].annotation
    options = [model, *typing.get_args(model)]  # a group that may be null is a union
    return next(each.model_fields for each in options if hasattr(each, "model_fields"))
