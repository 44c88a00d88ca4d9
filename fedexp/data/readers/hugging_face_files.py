"""Open files and hub datasets with Hugging Face's ``datasets`` library."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedexp.config.optional import optional
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

_SAVED = ("dataset_dict.json", "state.json")
"""A folder written by ``save_to_disk`` has one of these files."""

_FORMATS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


_UNREADABLE = (OSError, ValueError, LookupError, NotImplementedError)
"""Errors of the library for missing, damaged and empty files, besides its own error classes."""


@contextmanager
def quiet() -> Iterator[None]:
    """Make the library show no progress bars, and log only errors."""
    import datasets
    from huggingface_hub import utils as hub

    bars = [each for each in (datasets, hub) if not each.are_progress_bars_disabled()]
    loggers = {each: each.get_verbosity() for each in (datasets.logging, hub.logging)}
    for each in bars:
        each.disable_progress_bars()
    for each in loggers:
        each.set_verbosity_error()
    try:
        yield
    finally:
        for each, verbosity in loggers.items():
            each.set_verbosity(verbosity)
        for each in bars:
            each.enable_progress_bars()


def open_splits(name: str, config: str | None, revision: str | None) -> Mapping[str, Any]:
    """Open a dataset. Return a ``datasets.Dataset`` for each split, by the split's name.

    Args:
        name: a folder, a file, or a dataset's name on the hub. The folder comes from
            ``save_to_disk``, or has data files whose names contain the name of their split. A file
            is the split ``train``.
        config: name of the dataset's configuration; None if the dataset has only one.
        revision: a commit, a tag or a branch on the hub; None for the newest. A warning says that
            it has no effect on a local dataset.

    Raises:
        InputError: the library is not installed, or the dataset is missing or unreadable.
    """
    library = optional("data=hf", "datasets", "hf")
    path = Path(name).expanduser()
    is_local = path.exists()
    if not is_local and (path.is_absolute() or path.suffix in _FORMATS):
        raise InputError(f"data.name={name}: no such folder or file")  # cannot be a hub name
    if is_local and revision is not None:
        LOGGER.warning("data.revision: has no effect, as data.name=%s is local", name)
    try:
        with quiet():
            if is_local:
                found = _open_local(library, path, config)
            else:
                LOGGER.info("data.name=%s: from the Hugging Face hub or the library's cache", name)
                found = library.load_dataset(name, config, revision=revision)
    except (*_UNREADABLE, library.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())
        problem = "cannot be read" if is_local else "no such folder or file, and the hub fails"
        raise InputError(f"data.name={name}: {problem} ({reason})") from error
    return found if isinstance(found, library.DatasetDict) else {"train": found}


def _open_local(library: Any, path: Path, config: str | None) -> Any:
    if any((path / name).exists() for name in _SAVED):
        return library.load_from_disk(str(path))
    if path.is_dir():
        return library.load_dataset(str(path), config)
    if path.suffix not in _FORMATS:
        raise InputError(f"data.name={path}: should end in {', '.join(_FORMATS)}, or be a folder")
    return library.load_dataset(_FORMATS[path.suffix], data_files={"train": [str(path)]})
