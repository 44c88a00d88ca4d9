"""The user's own modules: Python files outside fedexp and outside other installed libraries.

Nothing is imported here: files are found by their names, and imports are read from the files.
"""

import ast
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from fedexp.config.option_files import GROUP

_OWN_NAME = "fedexp"
_LIBRARIES = ("site-packages", "dist-packages")


def is_foreign(name: str) -> bool:
    """Whether a module or a ``_target_`` is outside fedexp."""
    return top(name) != _OWN_NAME


def is_own(module: str) -> bool:
    """Whether the module is the user's: a Python file outside fedexp and other libraries.

    A package that adds options to fedexp is the user's also where it is installed.
    """
    return is_foreign(module) and file_of(module) is not None and not is_library(module)


def is_library(module: str) -> bool:
    """Whether the module is Python's, or is installed and adds no options."""
    name = top(module)
    file = file_of(name)
    if name in sys.builtin_module_names:
        return True
    is_installed = file is not None and (
        file.is_relative_to(sysconfig.get_path("stdlib")) or bool({*_LIBRARIES} & {*file.parts})
    )
    return is_installed and name not in _packages_with_options(tuple(sys.path))


def reached(names: Iterable[str], follow: Callable[[str], bool] = is_own) -> set[str]:
    """What modules need: themselves, their imports and the packages around all of these.

    Args:
        names: dotted names of modules, or of what is in them.
        follow: whether the imports of this module are read, too.

    Returns:
        Dotted names; some name no module but a class or function in one.
    """
    found: set[str] = set()
    left = [*names]
    while left:
        name = left.pop()
        if name in found or not name:
            continue
        found.add(name)
        left.append(name.rpartition(".")[0])
        if follow(name):
            left += _imported(name)
    return found


def top(name: str) -> str:
    """The top-level module of a dotted name."""
    return name.partition(".")[0]


def file_name(module: str) -> str:
    """The module's file as seen from its top package, such as ``my_method/poly.py``."""
    file = file_of(module)
    path = module.replace(".", "/")
    is_package = file is not None and file.name == "__init__.py"
    return f"{path}/__init__.py" if is_package else f"{path}.py"


def content(module: str) -> bytes:
    """What is in the module's file; empty without a file."""
    file = file_of(module)
    return file.read_bytes() if file else b""


def file_of(module: str) -> Path | None:
    """The Python file of a module; None if it has none or cannot be found."""
    imported = getattr(sys.modules.get(module), "__file__", None)
    places = [Path(imported)] if imported else [*_places(module)]
    return next((each for each in places if each.suffix == ".py" and each.is_file()), None)


def _places(module: str) -> Iterator[Path]:
    """Where the module's file may be, by its top-level module."""
    first, *rest = module.split(".")
    try:
        spec = find_spec(first)
    except (ImportError, AttributeError, ValueError):
        return
    if spec is not None and not rest and spec.origin:
        yield Path(spec.origin)
    folders = spec.submodule_search_locations if spec is not None and rest else None
    for folder in folders or ():
        place = Path(folder).joinpath(*rest)
        yield from (place / "__init__.py", place.with_name(f"{place.name}.py"))


@cache
def _packages_with_options(path: tuple[str, ...]) -> set[str]:
    """The packages that add options; ``path`` is ``sys.path``, whose folders are searched once."""
    return {top(each.module) for each in entry_points(group=GROUP)}


def _imported(module: str) -> Iterator[str]:
    """The names of modules that the imports of a file may mean."""
    try:
        tree = ast.parse(content(module))
    except (SyntaxError, ValueError):
        return
    is_package = (file_of(module) or Path()).name == "__init__.py"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: (1 if is_package else 0) - node.level or None]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield from (base, *(f"{base}.{each.name}" for each in node.names))
