"""The folders in which Hydra looks for the files of options."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def option_folders(sources: Iterable[Any]) -> dict[Path, str]:
    """Folder -> its provider, such as ``main`` or the name of a package, in Hydra's order.

    Args:
        sources: ``hydra.runtime.config_sources``.
    """
    return {
        Path(source["path"]): source.get("provider", "main")
        for source in sources
        if source["schema"] == "file"
    }
