"""Configs that are composed from Python."""

from pathlib import Path

import pytest

from fedexp.cli.compose import compose


@pytest.mark.parametrize("name", ["a b", "naïve", "x (1), a=b's"])
def test_a_folder_of_options_may_have_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name / "loss").mkdir(parents=True)
    (tmp_path / name / "loss" / "mine.yaml").write_text("_target_: mine.Loss\n")
    config = compose(["loss=mine"], tmp_path / name)
    assert config.loss == {"_target_": "mine.Loss"}
