"""Zip files of artefacts: written the same from the same files, and unpacked with care."""

import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from unicodedata import normalize

from fedexp.drawing.texts import printable
from fedexp.errors import InputError
from fedexp.state.atomic import atomic_path

MOST_BYTES = 2**31
"""Largest size of all unpacked files together (2 GiB)."""
MOST_FILES = 100_000
_DATE = (1980, 1, 1, 0, 0, 0)
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError)


def write_archive(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a zip file of name -> content. Raises InputError."""
    try:
        with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            for name in sorted(files):
                about = zipfile.ZipInfo(name, _DATE)
                about.compress_type = zipfile.ZIP_DEFLATED
                about.external_attr = (stat.S_IFREG | 0o644) << 16
                archive.writestr(about, files[name])
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def unpack(path: Path, folder: Path) -> None:
    """Unpack a zip file into a new folder; nothing is run, and nothing lands outside.

    Raises:
        InputError: the file is damaged or too large, or an entry is a link, has a wrong name or is
            neither stored nor deflated.
    """
    shown = printable(str(path))
    try:
        folder.mkdir(parents=True)
        with zipfile.ZipFile(path) as archive:
            entries = [each for each in archive.infolist() if not each.is_dir()]
            _check_size(shown, entries)
            for entry in entries:
                _check_entry(shown, entry)
            archive.extractall(folder, entries)  # an entry gives no more than its checked size
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{shown}: cannot be unpacked to {folder} ({reason})") from None
    except _DAMAGED as error:
        raise InputError(f"{shown}: is a damaged or foreign zip file ({error})") from None


def _check_size(shown: str, entries: list[zipfile.ZipInfo]) -> None:
    size = sum(each.file_size for each in entries)
    if len(entries) > MOST_FILES or size > MOST_BYTES:
        raise InputError(
            f"{shown}: would unpack {len(entries)} files of {size} bytes; at most {MOST_FILES} "
            f"files of {MOST_BYTES} bytes together are unpacked"
        )
    # Some file systems take two names for one if case or the spelling of accents alone differs.
    names = {normalize("NFC", each.filename.casefold()) for each in entries}
    if len(names) < len(entries):
        raise InputError(f"{shown}: has two files of one name")


def _check_entry(shown: str, entry: zipfile.ZipInfo) -> None:
    name, mode = entry.filename, entry.external_attr >> 16
    parts = name.split("/")
    is_plain = name == printable(name) and not {"\\", ":"} & {*name}
    if not is_plain or {"", ".", ".."} & {*parts} or PurePosixPath(name).is_absolute():
        raise InputError(f"{shown}: {printable(name)}: a file may not have this name")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise InputError(f"{shown}: {name}: is a link or device, not a file")
    # The zip format's other ways of packing unpack without a bound in memory.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{shown}: {name}: is packed in another way than stored or deflated")
