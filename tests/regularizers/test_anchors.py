import torch

from fedexp.core.part import Clients
from fedexp.regularizers.anchors import Anchors, combine, total


def test_anchors_that_are_not_given_become_zero() -> None:
    anchors = Anchors({"a.b": torch.Size([2]), "c": torch.Size([1])})
    anchors.set({"a.b": torch.tensor([1.0, 2.0]), "c": torch.tensor([3.0])})
    anchors.fill({"a.b": torch.tensor([4.0, 5.0]), "d": torch.tensor([6.0])})
    assert anchors["a.b"].tolist() == [4, 5]
    assert anchors["c"].tolist() == [0]
    assert "a.b" in anchors
    assert "a/b" not in anchors


def test_combine_takes_what_is_missing_for_zero_and_changes_nothing() -> None:
    left = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}
    right = {"b": torch.tensor(3.0), "c": torch.tensor(4.0)}
    result = combine(left, right, -2)
    assert {name: value.item() for name, value in result.items()} == {"a": 1, "b": -4, "c": -8}
    assert left["b"].item() == 2
    assert combine({}, right)["c"] is not right["c"]


def test_the_sum_of_nothing() -> None:
    assert total([]) == 0
    assert total([torch.tensor(1.0), torch.tensor(2.5)]) == 3.5


def test_the_population_are_the_clients_with_data() -> None:
    counts = torch.tensor([[2, 1], [0, 0], [4, 5]])
    found = Clients.of(counts)
    assert (found.num_with_data, found.num_samples) == (2, 12)
    assert [found.relative_size(size) for size in (3, 9)] == [0.5, 1.5]
