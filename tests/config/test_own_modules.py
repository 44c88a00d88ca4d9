"""The user's own modules: which files are theirs, and which of them a module needs."""

import sys
from pathlib import Path

import pytest

from fedexp.config.own_modules import file_name, is_library, is_own, reached

FILES = {
    "kit/__init__.py": "raise RuntimeError('nothing is imported')\n",
    "kit/deep/more.py": "from . import near\nimport numpy\ndef late():\n    import helper\n",
    "kit/deep/near.py": "from .. import VALUE\n",
    "kit/unused.py": "",
    "helper.py": "import absent_everywhere, kit.broken\n",
    "kit/broken.py": "def (:\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


def test_imports_are_followed_through_own_files_and_nothing_is_imported() -> None:
    found = reached(["kit.deep.more.Method"])
    assert {*map(file_name, filter(is_own, found))} == FILES.keys() - {"kit/unused.py"}
    assert {"numpy", "absent_everywhere"} <= found
    assert "kit" not in sys.modules


@pytest.mark.slow
def test_the_reader_says_which_modules_are_followed() -> None:
    found = reached(["kit.deep.more"], lambda name: name != "helper")
    assert "helper" in found
    assert "kit.broken" not in found


def test_a_library_is_not_own() -> None:
    assert all(map(is_library, ("json", "sys", "numpy.linalg")))
    assert not any(map(is_library, ("kit", "absent_everywhere")))
    assert not any(map(is_own, ("fedexp.losses.moon", "kit.deep")))
