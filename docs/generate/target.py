"""The class or function behind an option, and what its docstring says."""

import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from generate.options import Option
from generate.text import checked


@cache
def located(dotted: str) -> Callable[..., Any]:
    """The class or function of this name."""
    module, _, name = dotted.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def is_own(option: Option) -> bool:
    """Whether the option configures code of fedexp, not of a library."""
    return option.target.startswith("fedexp.")


def explanation(option: Option) -> str:
    """The docstring of the class or function, if it is fedexp's own."""
    if not is_own(option):
        return ""
    return checked(inspect.getdoc(located(option.target)) or "", source_file(option))


def module_docstring(option: Option) -> str:
    """The docstring of the file that the class or function is in."""
    if not is_own(option):
        return ""
    return inspect.getdoc(sys.modules[located(option.target).__module__]) or ""


def source_file(option: Option) -> str:
    """The file's path in the repository, such as ``fedexp/losses/moon.py``."""
    return located(option.target).__module__.replace(".", "/") + ".py"
