"""The digests of all presets: their overrides fit the config tree."""

from importlib import import_module
from pathlib import Path

import pytest

from fedexp.cli.compose import compose

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_what_shortens_a_preset_is_a_key_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for name, overrides in import_module("digests").FAST.items():
        compose([f"algorithm={name}", *overrides])
