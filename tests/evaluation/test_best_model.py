import torch

from fedexp.core.messages import Message
from fedexp.evaluation.best_model import BestModel


def model(round: int) -> Message:
    value = torch.tensor([float(round)])
    return Message(round, {"w": value}, {"head": {"prototypes": value + 0.5}})


def test_the_highest_score_wins_and_the_earliest_of_equal_ones() -> None:
    best = BestModel()
    kept = []
    for round, score in enumerate([0.0, 0.5, 0.5, 0.4, 0.6], start=1):
        best.observe(score, model(round))
        assert best.message is not None
        kept.append(best.message.round)
    assert kept == [1, 2, 2, 2, 5]
    assert best.score == 0.6


def test_it_is_a_copy() -> None:
    best, message = BestModel(), model(1)
    best.observe(0.5, message)
    message.weights["w"].zero_()
    message.extras["head"]["prototypes"].zero_()
    assert best.message is not None
    assert best.message.weights["w"].item() == 1
    assert best.message.extras["head"]["prototypes"].item() == 1.5


def test_its_state_is_restored() -> None:
    best, other = BestModel(), BestModel()
    assert best.state_dict() == {}
    best.observe(0.5, model(3))
    other.load_state_dict(best.state_dict())
    assert (other.score, other.message) == (0.5, best.message)
    other.load_state_dict({})
    assert other.score == 0.5
