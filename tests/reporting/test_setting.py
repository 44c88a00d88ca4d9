"""What the seeds of a table change, from the configs of its runs."""

from pathlib import Path

import pytest
from support.run_files import write_run

from fedexp.reporting.runs import Run, read_run
from fedexp.reporting.setting import random_sources


def test_the_draws_that_the_seed_changes(tmp_path: Path) -> None:
    def runs(name: str, *overrides: str) -> list[Run]:
        folders = [tmp_path / f"{name}{seed}" for seed in range(2)]
        return [
            read_run(write_run(folder, [f"seed={seed}", *overrides]))
            for seed, folder in enumerate(folders)
        ]

    drawn = runs("drawn")
    everything = "The seed changes partition, initial weights, cohorts and batches"
    assert random_sources(drawn) == f"{everything}."
    assert random_sources(drawn[:1]) == ""
    whole = runs("whole", "clients.per_round=20", "partition.draw_seed=null")
    assert random_sources(whole) == "The seed changes partition, initial weights and batches."
    fixed = runs("fixed", "partition.draw_seed=0")
    same = "the partition is the same for all seeds with partition.draw_seed=0."
    assert random_sources(fixed) == (
        f"The seed changes initial weights, cohorts and batches; {same}"
    )
    held = runs("held", "partition.draw_seed=0", "data.validation=0.1")
    assert random_sources(held) == (
        f"The seed changes validation samples, initial weights, cohorts and batches; {same}"
    )
    synthetic = runs("synthetic", "data=synthetic", "partition=natural", "data.seed=0")
    assert random_sources(synthetic).endswith("is the same for all seeds with data.seed=0.")
    spiral = runs("spiral", "data=spiral", "data.seed=0")  # its points are fixed, not their owners
    assert random_sources(spiral) == f"{everything}."
    first = runs("first", "partition=natural", "partition.take=first")
    assert random_sources(first).endswith("same for all seeds with partition.take=first.")
    assert random_sources([*drawn, *fixed]) == f"{everything}; {same}"
    for number, words in enumerate(
        [
            ["partition.draw_seed=0", "partition.long_tail=10"],
            ["partition.draw_seed=0", "data.subset=100"],
            ["partition.take=first", "partition.split_users=even"],
        ]
    ):  # the seed chooses samples, or cuts those of a user
        assert random_sources(runs(f"chosen{number}", *words)) == f"{everything}."


def test_a_test_split_that_follows_the_seed_is_named(tmp_path: Path) -> None:
    """As on the leaderboard on digits; other samples are another partition of them."""
    runs = [
        read_run(
            write_run(
                tmp_path / str(seed),
                [f"seed={seed}", "partition.draw_seed=0"],
                data={"split_seed": seed},
            )
        )
        for seed in range(2)
    ]
    assert random_sources(runs) == (
        "The seed changes test split, partition, initial weights, cohorts and batches."
    )


@pytest.mark.parametrize(
    ("word", "drawn"),
    [
        ("model.start_from=weights.pt", "the head's initial weights"),
        ("model.weights=imagenet", "initial weights"),  # a projection behind them is drawn
        ("model.lora.rank=4", "initial weights"),
    ],
)
def test_loaded_weights_are_not_drawn(word: str, drawn: str, tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / str(seed), [f"seed={seed}", word])) for seed in range(2)]
    assert random_sources(runs) == f"The seed changes partition, {drawn}, cohorts and batches."


def test_a_partition_seed_that_follows_the_seed_fixes_nothing(tmp_path: Path) -> None:
    words = [[f"seed={seed}", f"partition.draw_seed={seed}"] for seed in range(2)]
    runs = [read_run(write_run(tmp_path / own[0], own)) for own in words]
    everything = "The seed changes partition, initial weights, cohorts and batches."
    assert random_sources(runs) == everything


def test_samples_whose_seed_follows_the_seed_are_named(tmp_path: Path) -> None:
    words = [[f"seed={seed}", "partition=natural", f"data.seed={seed}"] for seed in range(2)]
    runs = [read_run(write_run(tmp_path / own[0], own)) for own in words]
    assert random_sources(runs) == (
        "The seed changes samples, partition, initial weights, cohorts and batches."
    )


def test_clients_devices_and_faults_that_the_seed_draws_are_named(tmp_path: Path) -> None:
    """All 16 clients that train are in each round, so there are no cohorts to draw."""
    held_out = ["clients.count=20", "clients.per_round=16", "clients.held_out=0.2"]
    words = [*held_out, "system=phones", "faults=byzantine", "availability=bernoulli"]
    words += ["partition.shift.kinds=[contrast]", "local.epochs=[1,3]"]
    runs = [
        read_run(write_run(tmp_path / str(seed), [f"seed={seed}", *words])) for seed in range(2)
    ]
    assert random_sources(runs) == (
        "The seed changes partition, the clients' transformations, held-out clients, initial "
        "weights, availability, devices, faults, local epochs and batches."
    )


def test_a_sampler_that_takes_turns_draws_no_cohorts(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / str(seed), [f"seed={seed}", "sampler=round_robin"]))
        for seed in range(2)
    ]
    assert random_sources(runs) == "The seed changes partition, initial weights and batches."
