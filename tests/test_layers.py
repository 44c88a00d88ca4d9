"""The import contracts name every room of the package, and no room that is gone."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
OUTSIDE = {"fedexp.testing"}
"""For the tests of users: it may import everything, and nothing imports it."""


def rooms() -> set[str]:
    """Every folder and module that lies directly in the package."""
    found = {path for path in (ROOT / "fedexp").iterdir() if exists(f"fedexp.{path.stem}")}
    return {f"fedexp.{path.stem}" for path in found} - {"fedexp.__init__"}


def exists(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return (path / "__init__.py").exists() or path.with_suffix(".py").exists()


def layered() -> list[str]:
    """The rooms in the list of layers."""
    (layers,) = (each["layers"] for each in CONTRACTS if each["type"] == "layers")
    return [room.strip() for layer in layers for room in layer.replace(":", "|").split("|")]


def test_every_room_has_a_layer() -> None:
    """Its own, or layers for the rooms in it."""
    found = layered()
    assert len(found) == len(set(found))
    without = {
        room for room in rooms() if not any(f"{each}.".startswith(f"{room}.") for each in found)
    }
    assert without == OUTSIDE


def test_the_contracts_name_rooms_that_exist() -> None:
    named = {
        room
        for contract in CONTRACTS
        for key in ("source_modules", "forbidden_modules")
        for room in contract.get(key, [])
        if room.startswith("fedexp.")
    }
    assert [each for each in sorted({*named, *layered()}) if not exists(each)] == []
