import torch

from fedexp.core.messages import Message, PartMessage, PartUpdate, Update


def test_every_tensor_is_counted_by_its_bytes() -> None:
    weights = {"w": torch.zeros(3, 2), "n": torch.zeros((), dtype=torch.int64)}
    extras = {"head": {"prototypes": torch.zeros(10, 4, dtype=torch.float64)}}
    expected = 3 * 2 * 4 + 8 + 10 * 4 * 8
    assert Message(1, weights, extras).nbytes == expected
    update = Update(0, 5, weights, extras, {"loss": 1.0})
    assert update.nbytes == expected


def test_what_is_kept_of_an_update_has_no_weights() -> None:
    update = Update(3, 5, {"w": torch.zeros(2)}, {"head": {"a": torch.ones(1)}}, {"loss": 1.0})
    kept = update.digest({"head": {"b": torch.ones(1)}})
    assert kept.weights == {}
    assert (kept.client, kept.num_samples, kept.metrics) == (3, 5, {"loss": 1.0})
    assert [list(extras) for extras in kept.extras.values()] == [["b"]]


def test_a_part_gets_its_own_extras() -> None:
    weights, extras = {"w": torch.zeros(2)}, {"head": {"a": torch.ones(1)}}
    message = Message(3, weights, extras)
    update = Update(4, 5, weights, extras, {"loss": 1.0}, draws=2)
    assert message.to("head") == PartMessage(3, weights, extras["head"])
    assert update.to("head") == PartUpdate(4, 5, weights, extras["head"], 2)
    assert message.to("loss").extras == update.to("loss").extras == {}
