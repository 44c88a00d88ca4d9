"""The user's own code in an app: what the nodes get with it, and what they must install."""

import ast
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, requires, version
from importlib.util import find_spec
from pathlib import Path

from fedexp.config.keys import nodes
from fedexp.config.schema import Config
from fedexp.errors import InputError

FOLDER = "own"
"""The folder of the code in the app's module folder."""

_AT_EVERY_NODE = sys.stdlib_module_names | {"fedexp", "hydra_plugins"}
_NOT_SENT = ("test_*.py", "*_test.py")
"""Files that Flower leaves out of an app."""


@dataclass(frozen=True)
class OwnCode:
    """The code that a config needs besides fedexp.

    Attributes:
        files: path below ``FOLDER`` -> content, of modules that belong to no installed package.
        requirements: installed packages, such as ``my-method==0.1``.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    requirements: list[str] = field(default_factory=list)

    @property
    def digests(self) -> dict[str, str]:
        """Path -> SHA-256 of the content."""
        return {path: hashlib.sha256(self.files[path]).hexdigest() for path in sorted(self.files)}


def own_code(config: Config) -> OwnCode:
    """Find the modules of the classes in the config, and those that these modules import.

    Raises InputError if a module has no source file.
    """
    files: dict[str, bytes] = {}
    requirements: set[str] = set()
    targets = (str(node["_target_"]) for _, node in nodes(config.model_dump()))
    seen, waiting = set(_AT_EVERY_NODE), {each.partition(".")[0] for each in targets}
    installed = packages_distributions()
    while waiting - seen:
        name = (waiting - seen).pop()
        seen.add(name)
        if name in installed:
            requirements.update(installed[name])
            continue
        found = dict(_sources(name))
        files |= found
        waiting.update(each for content in found.values() for each in _imports(content))
    missing = sorted(each for each in requirements if _plain(each) not in _dependencies())
    return OwnCode(files, [f"{each}=={version(each)}" for each in missing])


def make_importable(module: Path) -> None:
    """Let Python import the code in the app's module folder, before all other modules."""
    place = str(module / FOLDER)
    if place not in sys.path:
        sys.path.insert(0, place)


def _sources(name: str) -> Iterator[tuple[str, bytes]]:
    """(path, content) of each file of a top-level module; none if Python does not find it."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if not str(spec.origin).endswith(".py"):
            raise InputError(f"{name}: has no Python file ({spec.origin}), so nodes cannot get it")
        yield f"{name}.py", Path(str(spec.origin)).read_bytes()
    for folder in map(Path, spec.submodule_search_locations or ()):
        for path in sorted(folder.rglob("*.py")):
            if not any(map(path.match, _NOT_SENT)):
                yield f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _imports(content: bytes) -> Iterator[str]:
    """The top-level modules that a file imports by their full name."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _dependencies() -> set[str]:
    """The packages that fedexp itself installs."""
    stated = requires("fedexp") or []
    return {_plain(re.split(r"[^\w.-]", each)[0]) for each in stated if "extra ==" not in each}


def _plain(package: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()
