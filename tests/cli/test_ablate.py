"""``ablate=head,loss``: which jobs it stands for, and what it refuses."""

from pathlib import Path

import pytest
from support.composed import compose

from fedexp.cli.ablate import _defaults, ablation_sweep, check_word
from fedexp.cli.command import config_folder
from fedexp.cli.sweeps import check_in_jobs
from fedexp.errors import InputError

TYPED = ["algorithm=fednh", "loss=moon", "loss.mu=5", "head.rho=0.5", "optimizer.lr=0.1"]
JOBS = [[*TYPED, f"seed={seed}"] for seed in (0, 1)]


def test_the_full_method_then_each_part_alone_then_all_and_nothing_else() -> None:
    found = ablation_sweep(JOBS, ["head", "loss"], compose)
    lr, rho, mu = "optimizer.lr=0.1", "head.rho=0.5", "loss.mu=5"
    rows = {
        "full method": TYPED,
        "without head": ["algorithm=fednh", "loss=moon", mu, lr, "head=linear"],
        "without loss": ["algorithm=fednh", rho, lr, "loss=cross_entropy"],
        "baseline (without head and loss)": [
            *["algorithm=fednh", lr, "head=linear", "loss=cross_entropy"],
        ],
    }
    assert found.rows == {
        name: [[*row, f"seed={seed}"] for seed in (0, 1)] for name, row in rows.items()
    }
    assert found.plain == {"head": "linear", "loss": "cross_entropy"}
    assert found.size().endswith("baseline (without head and loss); 8 jobs")
    clips = {compose(jobs[0]).local.grad_clip for jobs in found.rows.values()}
    assert clips == {10}  # what the preset sets beside its parts stays


def test_keys_that_the_plain_option_has_too_stay() -> None:
    jobs = [["algorithm=fedavg", "optimizer=adam", "optimizer.lr=0.1", "optimizer.round_decay=0.9"]]
    _, (plain,) = ablation_sweep(jobs, ["optimizer"], compose).rows.values()
    kept = ["optimizer.lr=0.1", "optimizer.round_decay=0.9"]
    assert plain == ["algorithm=fedavg", "optimizer=sgd", *kept]


def test_a_typed_key_that_the_preset_sets_too_goes_with_its_part() -> None:
    jobs = [["algorithm=feddyn", "regularizer.alpha=0.1"]]
    _, (plain,) = ablation_sweep(jobs, ["regularizer"], compose).rows.values()
    assert plain == ["algorithm=feddyn", "regularizer=none"]


def test_one_group_has_no_further_row_without_all() -> None:
    assert list(ablation_sweep(JOBS, ["head"], compose).rows) == ["full method", "without head"]


def test_several_values_of_a_part_that_is_taken_away_are_refused() -> None:
    for words in (["loss.mu=1", "loss.mu=5"], ["loss=moon", "loss=fedntd"]):
        jobs = [["algorithm=moon", word] for word in words]
        key = words[0].partition("=")[0]
        with pytest.raises(InputError, match=f"^{key}: has 2 values, but ablate=loss takes"):
            ablation_sweep(jobs, ["loss"], compose)
    swept = [["algorithm=moon", f"optimizer.lr={lr}"] for lr in (0.1, 0.2)]
    assert len(ablation_sweep(swept, ["loss"], compose).rows) == 4


def test_refusals_name_the_group() -> None:
    with pytest.raises(InputError, match=r"^ablate=model: is none of head, loss"):
        ablation_sweep(JOBS, ["model"], compose)
    message = r"^ablate=head,sampler: the method has sampler=random, the plain default, .*; leave"
    with pytest.raises(InputError, match=message):
        ablation_sweep(JOBS, ["head", "sampler"], compose)
    with pytest.raises(InputError, match=r"^ablate=head: stands for several runs; add -m"):
        check_word(["ablate=head"], is_sweep=False)
    with pytest.raises(InputError, match=r"^ablate=head: is for fedexp's own sweeper"):
        check_word(["hydra/sweeper=optuna", "ablate=head"], is_sweep=True)


def test_a_single_group_reaches_the_sweeper() -> None:
    """Hydra would refuse ``ablate=head``, which is no key of the config."""
    assert check_in_jobs(["-m", "ablate=head"], Path(config_folder())) == [
        "-m",
        "ablate=choice(head)",
    ]


def test_every_ablated_group_has_a_plain_option() -> None:
    from fedexp.cli.ablate import _GROUPS

    assert set(_GROUPS) <= _defaults().keys()
