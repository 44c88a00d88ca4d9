"""A method's parts must be in the config; what its preset sets besides is said before a sweep."""

from pathlib import Path

import pytest
from support.composed import compose

from fedexp.cli.presets import check_parts, preset_settings
from fedexp.errors import InputError


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


STUDY = "experiment=fednh/cifar10_dir03"


def test_a_part_that_the_experiment_replaces_is_refused() -> None:
    job = [STUDY, "algorithm=fedavgm"]
    line = (
        "algorithm=fedavgm: its aggregator=momentum is replaced by aggregator=uniform of the "
        "experiment; type aggregator=momentum to keep it, or aggregator=uniform"
    )
    with pytest.raises(InputError) as error:
        check_parts(compose(job).hydra.runtime, job)
    assert str(error.value) == line


@pytest.mark.parametrize(
    "job",
    [
        [STUDY, "algorithm=fedavgm", "aggregator=momentum"],
        [STUDY, "algorithm=fedavgm", "aggregator=uniform"],  # typed
        ["experiment=fedgela/cifar10_dir01", "algorithm=fednh"],  # the class is the same
        ["experiment=fednh/spiral"],  # no method is typed
        ["algorithm=fedavgm"],
    ],
)
def test_other_methods_keep_their_parts(job: list[str]) -> None:
    check_parts(compose(job).hydra.runtime, job)
