"""Keys of a preset give way to an option on the command line."""

from pathlib import Path

import pytest

from fedexp.config.composed import without_strays


def test_a_presets_key_gives_way_whatever_other_keys_are_typed() -> None:
    """The preset sets data.seed of data=synthetic; data=digits has none."""
    data = {"_target_": "fedexp.data.readers.digits.Digits", "seed": 5}
    config = {"seed": 3, "data": data}
    kept = {"_target_": data["_target_"]}
    assert without_strays(config, ["data=digits", "seed=3"], [])["data"] == kept
    typed = without_strays(config, ["data=digits", "data.seed=5"], [])["data"]
    assert typed == data  # a later check refuses it


@pytest.mark.parametrize("package", ["", "# @package _global_\ndata:\n  "])
def test_a_mistyped_key_in_an_options_file_stays(package: str, tmp_path: Path) -> None:
    """A later check refuses it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text(f"{package}sede: 5")
    data = {"_target_": "fedexp.data.readers.digits.Digits", "sede": 5, "seed": 5}
    found = without_strays({"data": data}, ["data=mine"], [Path("none"), tmp_path])
    assert found["data"] == {"_target_": data["_target_"], "sede": 5}
