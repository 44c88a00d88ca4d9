"""The class or function behind an option, and what its docstring says."""

import inspect
import sys

from fedexp.config.build import locate
from generate.options import Option
from generate.text import checked


def is_own(option: Option) -> bool:
    """Whether the option configures code of fedexp, not of a library."""
    return option.target.startswith("fedexp.")


def explanation(option: Option) -> str:
    """The docstring of the class or function, if it is fedexp's own."""
    if not is_own(option):
        return ""
    return checked(inspect.getdoc(locate(option.group, option.target)) or "", source_file(option))


def module_docstring(option: Option) -> str:
    """The docstring of the file that the class or function is in."""
    if not is_own(option):
        return ""
    return inspect.getdoc(sys.modules[locate(option.group, option.target).__module__]) or ""


def source_file(option: Option) -> str:
    """The file's path in the repository, such as ``fedexp/losses/moon.py``."""
    return locate(option.group, option.target).__module__.replace(".", "/") + ".py"
