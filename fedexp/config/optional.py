"""Libraries that come with an extra of fedexp; they are imported when a component needs them."""

from importlib import import_module
from typing import Any

from fedexp.errors import InputError


def optional(key: str, module: str, extra: str) -> Any:
    """Import a module. Raises InputError, which names ``key`` and the extra, if it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0].replace("_", "-")
        raise InputError(
            f"{key}: needs {library}, which is not installed; pip install 'fedexp[{extra}]'"
        ) from error
