"""The source files of the classes that a config names.

The text of the user's own modules is kept, so that the code can be read and run later; of fedexp's
files only digests are kept.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedexp.config.build import locate
from fedexp.config.constructed import innermost
from fedexp.config.keys import RECORDS, nodes
from fedexp.config.own_modules import (
    content,
    file_name,
    is_foreign,
    is_library,
    is_own,
    reached,
    top,
)


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


def own_targets(config: Mapping[str, Any]) -> dict[str, str]:
    """Key -> ``_target_``, for the components that are neither fedexp's nor a library's."""
    found = targets(config).items()
    return {key: each for key, each in found if is_foreign(each) and not is_library(each)}


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
        mine = set(filter(is_own, reached(filter(is_own, modules))))
        modules = {each for each in modules if not is_foreign(each)} | mine
        names = {file_name(each): each for each in modules}
        parts[key] = sorted(names)
        contents |= {name: content(each) for name, each in names.items()}
        own |= {name: contents[name].decode(errors="replace") for name in map(file_name, mine)}
        if not modules:
            libraries.add(top(target))
    files = {name: hashlib.sha256(each).hexdigest() for name, each in contents.items()}
    return Code(parts, files, own, tuple(sorted(libraries)))


def _modules(target: Callable[..., Any]) -> Iterator[str]:
    """The modules of a class and its bases, or of a function."""
    target = innermost(target)
    classes = inspect.getmro(target) if inspect.isclass(target) else (target,)
    return (str(each.__module__) for each in classes)
