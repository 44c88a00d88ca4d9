"""What the seeds of a table change, from the configs of its runs."""

from pathlib import Path

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
    first = runs("first", "partition=natural", "partition.take=first")
    assert random_sources(first).endswith("same for all seeds with partition.take=first.")
    assert random_sources([*drawn, *fixed]) == f"{everything}; {same}"
