"""FedNH's spiral: final losses and the arms that are found, against its released notebook."""

import pytest
from support.federations import federate

NOTEBOOK_LOSS = {"balanced free": 0.0077, "balanced uniform": 0.0050, "imbalanced uniform": 1.035}
"""Training loss of the notebook's last epoch."""

NOTEBOOK_RARE = (100 + 100 + 99 + 83) / 4
"""Of 100 test points, the mean number that its uniform head finds in the four rare arms."""

HEADS = {
    "balanced free": ["head=linear_nobias"],
    "balanced uniform": ["head=fixed_uniform"],
    "imbalanced free": ["head=linear_nobias", "data.imbalanced=true"],
    "imbalanced uniform": [
        "head=fixed_uniform",
        "head.normalize_features=true",
        "data.imbalanced=true",
    ],
}


def trained(case: str, seed: int) -> tuple[list[float], float]:
    """Correct test points of each class, and the training loss of the last epoch."""
    federation = federate("experiment=fednh/spiral", *HEADS[case], f"seed={seed}")
    for round in range(1, 202):
        record = federation.run_round(round)
    return [100 * share for share in record.per_class.values()], record.metrics["train/loss"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["balanced free", "balanced uniform"])
def test_balanced_arms_are_all_found(case: str) -> None:
    correct, loss = trained(case, seed=0)
    assert min(correct) >= 95
    assert loss == pytest.approx(NOTEBOOK_LOSS[case], abs=0.02)


@pytest.mark.slow
def test_only_the_uniform_head_finds_the_rare_arms() -> None:
    found = {case: [trained(case, seed) for seed in (0, 1, 2)] for case in HEADS if "im" in case}
    rare = {case: [sum(c[2:]) / 4 for c, _ in runs] for case, runs in found.items()}
    free, uniform = rare["imbalanced free"], rare["imbalanced uniform"]
    assert sum(uniform) / 3 >= NOTEBOOK_RARE - 25
    assert sum(free) / 3 <= 60 <= sum(uniform) / 3
    # Unit features against unit prototypes: the loss cannot fall below that of logits of at most 1.
    expected = pytest.approx(NOTEBOOK_LOSS["imbalanced uniform"], abs=0.02)
    assert all(loss == expected for _, loss in found["imbalanced uniform"])
