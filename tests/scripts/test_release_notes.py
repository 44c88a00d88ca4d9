"""What keeps a tag from being released."""

import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("pyproject.toml", "CITATION.cff", "CHANGELOG.md")
OWN = "github.com/someone/fedexp"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield
    sys.modules.pop("release_notes", None)


def notes(tag: str, root: Path) -> str:
    return import_module("release_notes").notes(tag, root)


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """The project's files with an address, as version 9.8.7."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    rewrite(tmp_path / "pyproject.toml", r"github\.com/[\w.-]+/fedexp", OWN)
    rewrite(tmp_path / "pyproject.toml", r'^version = ".*"', 'version = "9.8.7"')
    rewrite(tmp_path / "CITATION.cff", r"^version: .*", "version: 9.8.7")
    section = "## [9.8.7] - 2026-01-02\n\n* News.\n\n"
    older = "## [0.3.0]"
    replace(tmp_path / "CHANGELOG.md", older, f"{section}{older}")
    return tmp_path


def rewrite(path: Path, pattern: str, new: str) -> None:
    path.write_text(re.sub(pattern, new, path.read_text(), flags=re.M))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_notes_are_the_section_of_the_version(ready: Path) -> None:
    assert notes("v9.8.7", ready) == "* News."


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", '"9.8.7"', '"9.8.8"', "pyproject.toml has the version 9.8.8"),
        ("CITATION.cff", "9.8.7", "9.8.6", "CITATION.cff has the version 9.8.6"),
        ("pyproject.toml", OWN, "github.com/OWNER/fedexp", "no address of a repository"),
        ("CHANGELOG.md", "## [9.8.7] - 2026-01-02", "## [9.8.7]", "CHANGELOG.md has no line"),
    ],
)
def test_a_tag_that_is_not_ready_is_refused(
    ready: Path, file: str, old: str, new: str, said: str
) -> None:
    replace(ready / file, old, new)
    with pytest.raises(SystemExit, match=f"^v9.8.7: .*{said}"):
        notes("v9.8.7", ready)
