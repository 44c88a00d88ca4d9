"""Several parties reduced over two processes as one."""

from collections.abc import Sequence

import torch

from fedexp.core.messages import Tensors
from fedexp.core.reducible import Contribution, joined, split


class Party:
    """Contributes one number and one item; keeps its share of the result."""

    def __init__(self, number: float, item: str) -> None:
        self.number, self.item = number, item

    def contribution(self) -> Contribution:
        return Contribution({"a:b/c": torch.tensor(self.number)}, self.item)

    def set_reduced(self, sums: Tensors, items: Sequence[str]) -> None:
        self.sums, self.items = sums, items


class Silent(Party):
    """Contributes nothing."""

    def contribution(self) -> Contribution:
        return Contribution()


def test_each_party_gets_its_share() -> None:
    """1 + 10 and 2 + 20: keys do not mix, whatever characters follow the party's name."""
    processes = [
        {"": Party(1.0, "x0"), "y": Party(2.0, "y0"), "z": Silent(0.0, "")},
        {"": Party(10.0, "x1"), "y": Party(20.0, "y1"), "z": Silent(0.0, "")},
    ]
    found = [joined(parties) for parties in processes]
    assert found[0].sums.keys() == {":a:b/c", "y:a:b/c"}
    sums = {name: found[0].sums[name] + found[1].sums[name] for name in found[0].sums}
    for parties in processes:
        split(parties, sums, [each.items for each in found])
        assert parties[""].sums == {"a:b/c": torch.tensor(11.0)}
        assert parties["y"].sums == {"a:b/c": torch.tensor(22.0)}
        assert parties["z"].sums == {}
        assert parties[""].items == ["x0", "x1"]
        assert parties["y"].items == ["y0", "y1"]
        assert parties["z"].items == [None, None]
