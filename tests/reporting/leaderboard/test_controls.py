"""Controls: the jobs that a table gets, and the rows of its page; nothing is trained."""

from pathlib import Path

import pytest
from support.run_files import write_run

from fedexp.errors import InputError
from fedexp.reporting.leaderboard.controls import control_of, read_controls, with_controls
from fedexp.reporting.leaderboard.entries import Entry, with_entries
from fedexp.reporting.leaderboard.page import page
from fedexp.reporting.leaderboard.results import read_results

NODE = {
    "fednh": {"head": "cosine", "aggregator": "uniform", "local.grad_clip": 10},
    "hics": {"aggregator": "uniform"},
    "fedacg": {"aggregator": "uniform"},
}
CONTROLS = read_controls(NODE)


def test_a_control_follows_its_method_and_is_listed_once() -> None:
    jobs = [
        ["experiment=a", f"algorithm={name}", f"seed={seed}"]
        for name in ("fedavg", "hics", "fedacg", "fednh")
        for seed in (0, 1)
    ]
    assert with_controls(jobs, CONTROLS) == [
        *jobs[:4],
        ["experiment=a", "algorithm=fedavg", "aggregator=uniform", "seed=0"],
        ["experiment=a", "algorithm=fedavg", "aggregator=uniform", "seed=1"],
        *jobs[4:],
        *(
            [
                *("experiment=a", "algorithm=fedavg", "head=cosine", "aggregator=uniform"),
                *("local.grad_clip=10", f"seed={seed}"),
            ]
            for seed in (0, 1)
        ),
    ]
    without_algorithm = [["seed=0"]]
    assert with_controls(without_algorithm, {}) == without_algorithm


def test_a_control_keeps_what_the_job_sets_besides_the_method() -> None:
    job = ["algorithm=fednh", "head.rho=0.5", "sampler=hics", "sampler.lam=1", "local.grad_clip=5"]
    assert control_of(job, CONTROLS) == [
        *("algorithm=fedavg", "head=cosine", "aggregator=uniform"),
        *("sampler=hics", "sampler.lam=1", "local.grad_clip=5"),
    ]
    assert control_of(["algorithm=fedprox"], CONTROLS) is None


def test_several_values_of_a_control_are_one_line() -> None:
    with pytest.raises(InputError, match=r"controls\.fedgela\.local\.grad_clip=10,20: should"):
        read_controls({"fedgela": {"local.grad_clip": "10,20"}})


def write_sweep(folder: Path, controls: str, methods: list[str]) -> None:
    """A sweep with two runs of each method and no trials."""
    number = 0
    for method in methods:
        for seed in (0, 1):
            words = ["experiment=cells/digits_a", *f"algorithm={method}".split()]
            choices = {"experiment": "cells/digits_a"}
            number += 1
            write_run(folder / str(number), words, choices=choices, seed=seed)
    tune = f"{{seed: null, budgets: [], common: {{}}, own: {{}}, controls: {controls}}}"
    (folder / "multirun.yaml").write_text(f"hydra: {{sweeper: {{tune: {tune}}}}}")


def test_the_page_has_a_row_over_each_control(tmp_path: Path) -> None:
    aim = "objective=validation/personal_accuracy"
    methods = ["fedavg", "fedprox", "fedgela", f"fedgela {aim}", "hics"]
    controls = ["fedavg local.grad_clip=20", f"fedavg local.grad_clip=20 {aim}"]
    rows = [*methods, *controls, "fedavg aggregator=uniform"]
    node = "{fedgela: {local.grad_clip: 20}, hics: {aggregator: uniform}}"
    write_sweep(tmp_path, node, rows)
    results, problems = read_results([tmp_path])
    assert problems == []
    assert dict(zip(results["method"], results["control"], strict=True)) == {
        "fedavg": "",
        "fedprox": "",
        "fedavg aggregator=uniform": "",
        "fedavg local.grad_clip=20": "",
        f"fedavg local.grad_clip=20 {aim}": "",
        "fedgela": "fedavg local.grad_clip=20",
        f"fedgela {aim}": f"fedavg local.grad_clip=20 {aim}",
        "hics": "fedavg aggregator=uniform",
    }
    text = page(results)
    assert "### Global accuracy: gains over fedavg and over controls" in text
    assert "| fedgela | fedavg | +0.000 ± 0.000 |" in text
    assert "| fedgela | fedavg local.grad_clip=20 | +0.000 ± 0.000 |" in text
    assert "| fedprox | fedavg |" in text
    # Only one method is left, and no plain FedAvg: its control is still no plain FedAvg.
    left = [tmp_path / str(each) for each in (*range(1, 5), *range(7, 11), *range(13, 17))]
    for each in left:
        (each / "metrics.jsonl").unlink()
    results, _ = read_results([tmp_path])
    assert set(results["method"]) == {"fedavg local.grad_clip=20", "fedgela"}


def test_an_entry_brings_its_control_or_shares_one_of_the_contest(tmp_path: Path) -> None:
    contest, entrant = tmp_path / "contest", tmp_path / "entrant"
    for folder in (contest, entrant):
        folder.mkdir()
    write_sweep(
        contest, "{hics: {aggregator: uniform}}", ["fedavg", "hics", "fedavg aggregator=uniform"]
    )
    own = "{mine: {local.grad_clip: 3}, fedacg: {aggregator: uniform}}"
    rows = ["mine", "fedavg local.grad_clip=3", "fedacg", "fedavg aggregator=uniform"]
    write_sweep(entrant, own, rows)
    results, problems = read_results([contest])
    entry = Entry("e.zip", "0", entrant, "all", "me")
    joined, _, left_out = with_entries(results, [contest], [entry])
    assert [*problems, *left_out] == []
    assert dict(zip(joined["method"], joined["control"], strict=True)) == {
        "fedavg": "",
        "fedavg aggregator=uniform": "",
        "hics": "fedavg aggregator=uniform",
        "mine [1]": "fedavg local.grad_clip=3 [1]",
        "fedavg local.grad_clip=3 [1]": "",
        "fedacg [1]": "fedavg aggregator=uniform",
    }
