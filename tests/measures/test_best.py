from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.federations import compose
from support.refusals import refused

from fedexp.core.messages import Message
from fedexp.distributed.ranks import Ranks
from fedexp.measures.best import Best
from fedexp.measures.round_results import Measured
from fedexp.runtime.plan import plan


def model(round: int) -> Message:
    value = torch.tensor([float(round)])
    return Message(round, {"w": value}, {"head": {"prototypes": value + 0.5}})


def set_up(
    tunes: str = "best", held_out: int = 0, keeps_models: bool = True, newcomers: int = 0
) -> Best:
    """The measure in a run with so many validation samples and clients that never train."""
    best = Best()
    resources: Any = SimpleNamespace(
        personalization=SimpleNamespace(tunes=tunes, has_global=True),
        store=SimpleNamespace(keeps_models=keeps_models),
        data=SimpleNamespace(validation=range(held_out), held_out_clients=range(newcomers)),
    )
    best.setup(None, resources)  # type: ignore[arg-type]
    return best


def show(best: Best, message: Message, **scores: float) -> Message:
    """The model that personal models are tuned from after a round with these scores."""
    found = Measured({f"{kind}/accuracy": value for kind, value in scores.items()})
    after: Any = SimpleNamespace(found=found, message=message, ranks=Ranks())
    return best(after).best_model or message


def test_the_highest_score_wins_and_the_earliest_of_equal_ones() -> None:
    best, scores = set_up(), [0.0, 0.5, 0.5, 0.4, 0.6]
    kept = [
        show(best, model(n), **{"global": score}).round for n, score in enumerate(scores, start=1)
    ]
    assert kept == [1, 2, 2, 2, 5]
    assert best.score == 0.6


def test_validation_data_decides_if_there_are_any() -> None:
    best = set_up(held_out=1)
    show(best, model(1), validation=0.5, **{"global": 0.1})
    assert show(best, model(2), validation=0.4, **{"global": 0.9}).round == 1
    assert show(best, model(3), **{"global": 1.0}).round == 1  # not scored on validation data


def test_a_round_without_a_score_changes_nothing() -> None:
    best = set_up()
    assert show(best, model(1)).round == 1
    assert best.message is None
    show(best, model(2), **{"global": 0.0})
    assert show(best, model(3)).round == 2


def test_it_is_a_copy() -> None:
    best, message = set_up(), model(1)
    show(best, message, **{"global": 0.5})
    message.weights["w"].zero_()
    message.extras["head"]["prototypes"].zero_()
    assert best.message is not None
    assert best.message.weights["w"].item() == 1
    assert best.message.extras["head"]["prototypes"].item() == 1.5


def test_its_state_is_restored() -> None:
    best, other = set_up(), set_up()
    assert best.state_dict() == {}
    show(best, model(3), **{"global": 0.5})
    other.load_state_dict(best.state_dict())
    assert (other.score, other.message) == (0.5, best.message)


@pytest.mark.parametrize("tunes", ["global", "best"])
@pytest.mark.parametrize("held_out", [0, 5])
def test_it_is_due_where_it_is_used_or_written(tunes: str, held_out: int) -> None:
    best, used = set_up(tunes, held_out), tunes == "best" or held_out > 0
    assert [best.due(round, 2) for round in range(3)] == [False, used, used]


def test_with_validation_data_it_is_written_and_does_not_replace_what_is_tuned() -> None:
    best = set_up("global", held_out=5)
    assert best.chosen is None
    for number, accuracy in enumerate([0.4, 0.6, 0.5], start=1):
        assert show(best, model(number), validation=accuracy).round == number
    assert best.chosen is not None
    assert best.chosen.round == 2
    without = set_up("best", held_out=0)
    show(without, model(1), **{"global": 0.5})
    assert without.chosen is None


def test_without_personal_models_it_is_due_for_clients_that_never_train() -> None:
    assert not set_up(keeps_models=False).due(1, 2)
    assert set_up(keeps_models=False, newcomers=2).due(1, 2)
    assert not set_up("global", keeps_models=False, newcomers=2).due(1, 2)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("measure.best", ["~measure.best"]),
        ("measure.global", ["~measure.global", "objective=personal/accuracy_local"]),
        ("measure.validation", ["~measure.validation", "data.validation=0.1"]),
    ],
)
def test_the_best_model_cannot_be_tuned_if_nothing_finds_it(missing: str, words: list[str]) -> None:
    tuned = ["personalization=finetune_best", *words]
    with refused(f"^{missing}: is missing; .* best global model"):
        plan(compose(*tuned))
    plan(compose(*words))
    plan(compose(*tuned, "measure.personal=null", "objective=train/loss"))
