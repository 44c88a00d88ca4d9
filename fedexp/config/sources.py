"""The source files of the classes that a config names.

Files outside fedexp and outside other installed libraries are the user's own code. Their text is
kept, so that the code can be read and run later; of fedexp's files only digests are kept.
"""

import ast
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedexp.config.build import locate
from fedexp.config.keys import RECORDS, nodes
from fedexp.config.option_files import GROUP

_OWN_NAME = "fedexp"
_LIBRARIES = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Code:
    """The source files behind a config.

    Attributes:
        parts: the key of each component, such as ``loss``, -> the names of its files.
        files: name of a file, such as ``fedexp/losses/moon.py``, -> SHA-256 of its content.
        own: name of a file of the user -> its text.
        libraries: names of other packages whose classes the config names.
    """

    parts: Mapping[str, list[str]]
    files: Mapping[str, str]
    own: Mapping[str, str]
    libraries: tuple[str, ...] = ()


def targets(config: Mapping[str, Any]) -> dict[str, str]:
    """Key of a component -> its ``_target_``, without the components that only record results."""
    kept = {key: value for key, value in config.items() if key not in RECORDS}
    return {key: str(node["_target_"]) for key, node in nodes(kept) if node["_target_"]}


def is_foreign(target: str) -> bool:
    """Whether a ``_target_`` is outside fedexp."""
    return target.partition(".")[0] != _OWN_NAME


def source_code(config: Mapping[str, Any]) -> Code:
    """The files of all components; the components must be importable.

    A component has the files of its class and of the base classes. Own files bring the own files
    that they import.
    """
    contents: dict[str, bytes] = {}
    parts: dict[str, list[str]] = {}
    own: dict[str, str] = {}
    libraries = set()
    for key, target in targets(config).items():
        modules = {
            each for each in _modules(locate(f"{key}._target_", target)) if each in sys.modules
        }
        mine = {each for name in modules if is_own(name) for each in _reached(name)}
        modules = {each for each in modules if not is_foreign(each)} | mine
        parts[key] = sorted(filter(None, map(file_name, modules)))
        contents |= {name: _content(each) for each in modules if (name := file_name(each))}
        own |= {name: contents[name].decode(errors="replace") for name in map(file_name, mine)}
        if not modules:
            libraries.add(target.partition(".")[0])
    files = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return Code(parts, files, own, tuple(sorted(libraries)))


def _modules(target: Callable[..., Any]) -> Iterator[str]:
    """The modules of a class and its bases, or of a function."""
    while isinstance(target, partial):
        target = target.func
    classes = inspect.getmro(target) if inspect.isclass(target) else (target,)
    return (str(each.__module__) for each in classes)


def is_own(module: str) -> bool:
    """Whether the module is the user's: a Python file outside fedexp and other libraries.

    A package that adds options to fedexp is the user's also where it is installed.
    """
    return is_foreign(module) and _file(module) is not None and not is_library(module)


def is_library(module: str) -> bool:
    """Whether the module is Python's, or is installed and adds no options; nothing is imported."""
    top = module.partition(".")[0]
    file = _file(top)
    if top in sys.builtin_module_names:
        return True
    is_installed = file is not None and (
        file.is_relative_to(sysconfig.get_path("stdlib")) or bool({*_LIBRARIES} & {*file.parts})
    )
    return is_installed and top not in _packages_with_options()


def own_targets(config: Mapping[str, Any]) -> dict[str, str]:
    """Key -> ``_target_``, for the components that are neither fedexp's nor a library's."""
    found = targets(config).items()
    return {key: each for key, each in found if is_foreign(each) and not is_library(each)}


def _packages_with_options() -> set[str]:
    return {each.module.partition(".")[0] for each in entry_points(group=GROUP)}


def _reached(module: str) -> set[str]:
    """The own modules that an own module imports, with itself and the packages around them."""
    found: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        if name in found or not is_own(name):
            continue
        found.add(name)
        if parent := name.rpartition(".")[0]:
            left.append(parent)
        left += _imported(name)
    return found


def _imported(module: str) -> Iterator[str]:
    """The names of modules that the imports of a file may mean."""
    try:
        tree = ast.parse(_content(module))
    except (SyntaxError, ValueError):
        return
    is_package = (_file(module) or Path()).name == "__init__.py"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: (1 if is_package else 0) - node.level or None]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield from (base, *(f"{base}.{each.name}" for each in node.names))


def file_name(module: str) -> str:
    """The module's file as seen from its top package, such as ``my_method/poly.py``."""
    file = _file(module)
    path = module.replace(".", "/")
    is_package = file is not None and file.name == "__init__.py"
    return f"{path}/__init__.py" if is_package else f"{path}.py"


def _file(module: str) -> Path | None:
    """The Python file of a module; None if it has none or cannot be found."""
    place = getattr(sys.modules.get(module), "__file__", None)
    if place is None and module not in sys.modules:
        try:
            spec = find_spec(module)
        except (ImportError, AttributeError, ValueError):
            return None
        place = spec.origin if spec else None
    return Path(place) if place and place.endswith(".py") and Path(place).is_file() else None


def _content(module: str) -> bytes:
    file = _file(module)
    return file.read_bytes() if file else b""
