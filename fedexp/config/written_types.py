"""Checks a part's values against the types in its source file, without importing the file.

The import of a part needs PyTorch, and takes seconds. So a mistyped number is found here, from the
text of the package's own files. Only types made of Python, ``typing`` and ``pydantic`` are read;
all values are checked again when the object is built.
"""

import ast
import builtins
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, create_model

from fedexp.config.build import STRICT, check
from fedexp.config.keys import nodes

PACKAGE = Path(__file__).parents[1]
QUICK = ("collections.abc", "pathlib", "pydantic", "typing")
"""The modules, besides the package's own, in which types are looked up."""
Place = tuple[str, str]
"""A module and a name in it."""


class _UnreadError(Exception):
    """The source does not tell; only an import does."""


def check_written(values: Mapping[str, Any]) -> None:
    """Check the arguments of each ``_target_`` in the config. Raises InputError for a wrong one."""
    for key, node in nodes(values):
        target = str(node["_target_"])
        given = {name: node[name] for name in written_types(target) if name in node}
        check(_arguments_model(target, tuple(given)), given, prefix=f"{key}.")


@cache
def _arguments_model(target: str, names: tuple[str, ...]) -> type[BaseModel]:
    """The check of these arguments, made once for all configs of a process."""
    fields: Any = {name: (written_types(target)[name], ...) for name in names}
    return create_model("Arguments", __config__=STRICT, **fields)


@cache
def written_types(target: str) -> dict[str, Any]:
    """Argument -> type, for the arguments of a class or function whose type can be read.

    Args:
        target: a dotted name, such as "fedexp.losses.rpcl_cpdr.RpclCpdr".
    """
    module, _, name = target.rpartition(".")
    types = {}
    with suppress(_UnreadError):
        module, arguments = _arguments(module, name)
        for name, annotation in arguments.items():
            with suppress(_UnreadError):
                types[name] = _value(module, annotation)
    return types


def _arguments(module: str, name: str) -> tuple[str, dict[str, ast.expr]]:
    """Argument -> written type, for a class or function, and the module where they are written."""
    found = _statements(module).get(name)
    if isinstance(found, tuple):
        return _arguments(*found)
    if isinstance(found, ast.ClassDef):
        methods = [each for each in found.body if isinstance(each, ast.FunctionDef)]
        own = next((each for each in methods if each.name == "__init__"), None)
        if own is None and found.decorator_list:  # a dataclass
            return module, _annotated(found.body)
        if own is None:
            names = [each.id for each in found.bases if isinstance(each, ast.Name)]
            return _arguments(module, names[0]) if names else (module, {})
        found = own
    if not isinstance(found, ast.FunctionDef):
        raise _UnreadError
    return module, _annotated([*found.args.args, *found.args.kwonlyargs])


def _annotated(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Name -> annotation, for the arguments of a function or the fields of a dataclass."""
    found = {each.arg: each.annotation for each in nodes if isinstance(each, ast.arg)}
    fields = [each for each in nodes if isinstance(each, ast.AnnAssign)]
    found |= {
        each.target.id: each.annotation for each in fields if isinstance(each.target, ast.Name)
    }
    known = {name: annotation for name, annotation in found.items() if annotation is not None}
    return {n: each for n, each in known.items() if not ast.unparse(each).startswith("ClassVar")}


def _value(module: str, expression: ast.expr) -> Any:
    """The type that an expression of the module writes."""
    names = {each.id for each in ast.walk(expression) if isinstance(each, ast.Name)}
    known = {name: _named(module, name) for name in names}
    return eval(compile(ast.Expression(expression), module, "eval"), {"__builtins__": {}}, known)


def _named(module: str, name: str) -> Any:
    """The type that a name in the module stands for."""
    if module in QUICK:
        return getattr(import_module(module), name)
    found = _statements(module).get(name)
    if isinstance(found, tuple):
        return _named(*found)
    if isinstance(found, ast.expr):
        return _value(module, found)
    if found is None and hasattr(builtins, name):
        return getattr(builtins, name)
    raise _UnreadError


@cache
def _statements(module: str) -> dict[str, Place | ast.expr | ast.stmt]:
    """Name -> its definition at the top of a module; an imported name has its place."""
    package, *inner = module.split(".")
    file = PACKAGE.joinpath(*inner)
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    if package != PACKAGE.name or not file.is_file():
        raise _UnreadError
    found: dict[str, Place | ast.expr | ast.stmt] = {}
    for each in ast.parse(file.read_text()).body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            found[each.name] = each
        elif isinstance(each, ast.ImportFrom) and each.module:
            found |= {a.asname or a.name: (each.module, a.name) for a in each.names}
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            found[each.targets[0].id] = each.value
    return found
