"""The user's own code in an app: what the nodes get with it, and what they must install."""

import hashlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, requires, version
from importlib.util import find_spec
from pathlib import Path

from fedexp.config.keys import nodes
from fedexp.config.own_modules import content, file_name, is_own, reached, top
from fedexp.config.schema import Config
from fedexp.errors import InputError

FOLDER = "own"
"""The folder of the code in the app's module folder."""

_AT_EVERY_NODE = sys.stdlib_module_names | {"fedexp", "hydra_plugins", "__main__"}
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

    Raises InputError if nodes cannot get a module.
    """
    installed = packages_distributions()

    def is_sent(name: str) -> bool:
        return is_own(name) and top(name) not in installed

    names = reached((str(node["_target_"]) for _, node in nodes(config.model_dump())), is_sent)
    files = {file_name(name): content(name) for name in filter(is_sent, names)}
    tops = {top(name) for name in names} - _AT_EVERY_NODE
    _check_sendable(files, tops - installed.keys())
    needed = {package for name in tops & installed.keys() for package in installed[name]}
    missing = sorted(each for each in needed if _plain(each) not in _dependencies())
    return OwnCode(files, [f"{each}=={version(each)}" for each in missing])


def make_importable(module: Path) -> None:
    """Let Python import the code in the app's module folder, before all other modules."""
    place = str(module / FOLDER)
    if place not in sys.path:
        sys.path.insert(0, place)


def _check_sendable(files: Iterable[str], tops: Iterable[str]) -> None:
    """Raise InputError for a file that Flower leaves out, or a module that is no Python file."""
    for path in map(Path, files):
        if any(map(path.match, _NOT_SENT)):
            raise InputError(f"{path}: Flower leaves out files with this name; rename the module")
    for name in tops:
        spec = find_spec(name)
        if spec and spec.origin and not spec.origin.endswith(".py"):
            raise InputError(f"{name}: has no Python file ({spec.origin}), so nodes cannot get it")


def _dependencies() -> set[str]:
    """The packages that fedexp itself installs."""
    stated = requires("fedexp") or []
    return {_plain(re.split(r"[^\w.-]", each)[0]) for each in stated if "extra ==" not in each}


def _plain(package: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()
