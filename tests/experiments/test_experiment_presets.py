"""What holds for every preset: it composes, its rows can be run, and it survives a swap."""

from pathlib import Path

import pytest
import yaml
from support.federations import compose

from fedexp.cli.command import config_folder
from fedexp.config.build import argument_names, locate
from fedexp.config.keys import flatten
from fedexp.config.schema import Config, common_keys
from fedexp.reporting.jobs import values_of
from fedexp.reporting.papers.published import checked_rows

CONF = Path(config_folder())
EXPERIMENTS = sorted(
    str(path.relative_to(CONF / "experiment").with_suffix(""))
    for path in (CONF / "experiment").rglob("*.yaml")
)
ALGORITHMS = sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml"))

# One option of each group that has none of the others' keys.
SWAPS = (
    "partition=iid",
    "model=mlp",
    "head=cosine",
    "loss=cross_entropy",
    "regularizer=none",
    "personalization=none",
    "sampler=random",
    "aggregator=median",
    "optimizer=adam",
    "engine=vectorized",
    "data=digits",
)


GROUPS = ("data", "partition", "model", "head", "loss", "regularizer", "personalization", "sampler")
GROUPS += ("aggregator", "optimizer", "schedule", "faults", "engine")


def strays(config: Config) -> list[str]:
    """The keys that no target takes: a run would refuse them."""
    values = config.model_dump()
    return [
        f"{group}.{key}"
        for group in GROUPS
        for key in values[group].keys()
        - argument_names(locate(group, values[group]["_target_"]))
        - common_keys(group)
    ]


@pytest.mark.matrix
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_survives_any_swap(experiment: str) -> None:
    assert strays(compose(f"experiment={experiment}")) == []
    assert strays(compose(f"experiment={experiment}", *SWAPS)) == []  # each in its own group


@pytest.mark.matrix
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_survives_any_swap(algorithm: str) -> None:
    assert strays(compose(f"algorithm={algorithm}", *SWAPS)) == []


def test_a_key_of_the_command_line_never_gives_way() -> None:
    config = compose("algorithm=scaffold", "optimizer=adam", "+optimizer.momentum=0.5")
    assert strays(config) == ["optimizer.momentum"]  # which a run refuses by name


def test_what_both_options_have_stays() -> None:
    config = compose("experiment=fednh/cifar10_dir03", "optimizer=adam", "data=digits")
    assert config.optimizer.node["lr"] == 0.01
    assert config.data.augment == "crop_flip"


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_published_row_can_be_run(experiment: str) -> None:
    rows = checked_rows(compose(f"experiment={experiment}").paper)
    cells = {(*row.overrides, *method.split()) for row in rows for method in row.values}
    for cell in sorted(cells):
        assert strays(compose(f"experiment={experiment}", *cell)) == [], cell


def test_the_keys_of_a_table_of_several_experiments_are_those_of_its_first() -> None:
    """They are for a run without -m; the table's jobs have ``hydra.sweeper.params`` alone."""
    for path in (CONF / "experiment").rglob("*.yaml"):
        table = yaml.safe_load(path.read_text())
        sweeper = table.pop("hydra", {}).get("sweeper", {})
        cells = values_of(sweeper.get("params", {}).get("experiment", ""))
        own = flatten({key: table[key] for key in table.keys() - {"defaults", "paper"}})
        if own and cells[0]:
            first = flatten(compose(f"experiment={cells[0]}").model_dump())
            assert {key: first[key] for key in own} == own, path
