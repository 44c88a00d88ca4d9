"""What presets set besides their parts is said before a sweep."""

from pathlib import Path

import pytest
from support.composed import compose

from fedexp.cli.presets import preset_settings


@pytest.mark.parametrize(
    ("jobs", "line"),
    [
        (["algorithm=fedavg"], ""),
        (["algorithm=fedavg", "algorithm=metafed"], "metafed clients.per_round=1"),
        (
            ["algorithm=fedavg", "algorithm=fednh", "algorithm=scaffold"],
            "fednh local.grad_clip=10; scaffold optimizer=sgd_plain",
        ),
        (["algorithm=fednh local.grad_clip=3", "algorithm=scaffold optimizer=sgd"], ""),
        (["algorithm=fednh_paper"], "fednh_paper local.grad_clip=10"),
    ],
)
def test_what_is_typed_or_replaced_is_left_out(jobs: list[str], line: str) -> None:
    every = [each.split() for each in jobs]
    found = preset_settings((compose(job), job) for job in every)
    assert found == (f"presets set besides their parts: {line}" if line else "")


def test_a_preset_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - scaffold\n\nlocal:\n  epochs: 2\n"
    )
    job = [f"hydra.searchpath=[file://{tmp_path}]", "algorithm=mine"]
    line = "presets set besides their parts: mine optimizer=sgd_plain local.epochs=2"
    assert preset_settings([(compose(job), job)]) == line
