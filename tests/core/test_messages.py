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


def test_a_step_is_added_to_other_weights_and_buffers_stay() -> None:
    sent = {"w": torch.tensor([5.0, 1.0]), "variance": torch.tensor(2.0), "steps": torch.tensor(7)}
    base = {"w": torch.tensor([1.0, 3.0]), "variance": torch.tensor(9.0), "steps": torch.tensor(1)}
    now = {"w": torch.tensor([10.0, 20.0]), "variance": torch.tensor(1.0), "steps": torch.tensor(4)}
    extras = {"loss": {"a": torch.ones(1)}}
    found = Update(3, 4, sent, extras).with_step(base, now, 0.5, {"w"})
    assert found.weights["w"].tolist() == [10 + 0.5 * 4, 20 + 0.5 * -2]
    assert found.weights["variance"] is sent["variance"]  # 1 + 0.5 (2 - 9) would be negative
    assert found.weights["steps"] is sent["steps"]
    assert (found.client, found.num_samples, found.extras) == (3, 4, extras)
    assert sent["w"].tolist() == [5, 1]
