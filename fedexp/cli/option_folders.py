"""The folders in which Hydra looks for the files of options."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedexp.cli.installed import config_folders
from fedexp.cli.parsers import home_path
from fedexp.cli.quoting import quoted


def config_folder() -> str:
    """The folder of the config tree: inside an installed package, beside the package in a clone."""
    package = Path(__file__).resolve().parents[1]
    candidates = [package / "conf", package.parent / "conf"]
    return str(next(path for path in candidates if (path / "config.yaml").is_file()))


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


def searched_folders(config_dir: str | Path | None) -> list[Path]:
    """fedexp's config tree, the folder of ``--config-dir``, and the installed packages' folders."""
    own = [home_path(str(config_dir))] if config_dir else []
    return [Path(config_folder()), *own, *(folder for _, folder in config_folders())]


def search_path(config_dir: str | Path | None) -> list[str]:
    """The override that has the effect of ``--config-dir``; none if there is no such folder."""
    if not config_dir:
        return []
    place = home_path(str(config_dir)).resolve()
    return [f"hydra.searchpath=[{quoted(f'file://{place}')}]"]
