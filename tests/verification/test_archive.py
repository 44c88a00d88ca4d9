"""Zip files from strangers: each mistake is one line, and nothing lands outside."""

import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedexp.errors import InputError
from fedexp.verification import archive as module
from fedexp.verification.archive import unpack, write_archive


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    files = {"b/c.txt": b"2", "a.txt": b"1"}
    write_archive(tmp_path / "one.zip", files)
    write_archive(tmp_path / "two.zip", dict(reversed(files.items())))
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    unpack(tmp_path / "one.zip", tmp_path / "to")
    assert (tmp_path / "to" / "b" / "c.txt").read_bytes() == b"2"


def link(archive: zipfile.ZipFile) -> None:
    entry = zipfile.ZipInfo("runs")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(entry, "/etc")


HOSTILE: dict[str, tuple[Callable[[zipfile.ZipFile], object], str]] = {
    "above": (lambda z: z.writestr("../evil.txt", "x"), "../evil.txt: a file may not have this"),
    "deep above": (lambda z: z.writestr("a/../../evil.txt", "x"), "a file may not have this name"),
    "absolute": (lambda z: z.writestr("/evil.txt", "x"), "a file may not have this name"),
    "of Windows": (lambda z: z.writestr("a\\..\\evil.txt", "x"), "a file may not have this name"),
    "escapes": (lambda z: z.writestr("\x1b[2Jevil", "x"), r"\x1b[2Jevil: a file may not have"),
    "a link": (link, "runs: is a link or device, not a file"),
    "bzip2": (lambda z: z.writestr("a", "x", zipfile.ZIP_BZIP2), "a: is packed in another way"),
    "too large": (lambda z: z.writestr("a", b"0" * 2000), "would unpack 1 files of 2000 bytes"),
    "twice": (lambda z: [z.writestr(n, "x") for n in ("a", "A")], "has two files of one name"),
    "twice on a Mac": (
        lambda z: [z.writestr(n, "x") for n in ("\u00e9", "e\u0301")],
        "has two files of one name",
    ),
    "both": (lambda z: [z.writestr(n, "x") for n in ("a", "a/b")], "cannot be unpacked"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    write, line = HOSTILE[name]
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        write(archive)
    with pytest.raises(InputError) as error:
        unpack(tmp_path / "a.zip", tmp_path / "in" / "to")
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("evil*"))


def test_a_file_that_is_larger_than_it_claims(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"0" * 100_000)
    content = path.read_bytes()
    path.write_bytes(content.replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(InputError, match="is a damaged or foreign zip file"):
        unpack(path, tmp_path / "to")
    assert (tmp_path / "to" / "a").stat().st_size <= 10


@pytest.mark.parametrize("cut", [0, 10, 100])
def test_a_half_copied_archive(cut: int, tmp_path: Path) -> None:
    write_archive(tmp_path / "whole.zip", {"a": b"1" * 500})
    (tmp_path / "cut.zip").write_bytes((tmp_path / "whole.zip").read_bytes()[:cut])
    with pytest.raises(InputError, match="is a damaged or foreign zip file"):
        unpack(tmp_path / "cut.zip", tmp_path / "to")
