"""A correlation near 0 is a warning, whatever the sampler; figures see the clients of all ranks."""

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from fedexp.core.description import Description
from fedexp.core.part import Memory, Part
from fedexp.measures.method import Method


def warnings_of(values: list[float | None], caplog: pytest.LogCaptureFixture) -> list[int]:
    """The rounds in which the measure warns, given each round's correlation; None: none known."""
    method, rounds = Method(), []
    for number, value in enumerate(values, start=1):
        metrics = {} if value is None else {"sampler/estimate_spearman": value}
        after: Any = SimpleNamespace(
            is_last=False,
            ranks=SimpleNamespace(is_first=True),
            server=SimpleNamespace(metrics=lambda metrics=metrics: metrics),
        )
        with caplog.at_level(logging.WARNING):
            assert method(after).metrics == metrics
        rounds += [number] * len(caplog.records)
        caplog.clear()
    return rounds


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ([0.54, -0.30, -0.39, -0.18, 0.1, 0.05, 0.0, 0.0], [6]),
        ([None, None, 0.1, 0.1, 0.1, 0.1, 0.1] + [-0.9] * 9, [7]),
        ([0.1, 0.1, 0.1, 0.1, 0.6, 0.1, 0.1], []),
        ([0.1] * 5 + [0.6] + [0.1] * 9, [5]),
        ([0.5, 0.7, 0.9] * 5, []),
    ],
    ids=["FedNH's head", "late", "recovers", "warned before", "informative"],
)
def test_five_rounds_near_0_in_a_row_warn_once(
    values: list[float | None], warned: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(values, caplog) == warned


class Draws(Part):
    """Notes whose memories its figures get."""

    seen: Mapping[int, Memory] | None = None

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        self.seen = memories
        return {"drawn": Figure()}


@pytest.mark.parametrize("is_first", [True, False])
def test_figures_see_the_memories_of_all_ranks(is_first: bool) -> None:
    """Every rank shares its memories, once for each part that draws; the first rank draws."""
    memories, shared = {number: {"w": torch.ones(1)} for number in range(3)}, []

    def gather_pairs(own: Any) -> Any:
        shared.append(dict(own))
        return memories.items()

    part, after = Draws(), SimpleNamespace(is_last=True)
    after.ranks = SimpleNamespace(is_first=is_first, size=2, gather_pairs=gather_pairs)
    after.server = SimpleNamespace(parts={"loss": part, "head": Part()}, metrics=dict)
    after.resources = SimpleNamespace(store=SimpleNamespace(memories=lambda _: {1: memories[1]}))
    after.data = SimpleNamespace(description=None)
    found = Method()(after).figures  # type: ignore[arg-type]
    assert shared == [{1: memories[1]}]
    assert (part.seen, set(found)) == ((memories, {"drawn"}) if is_first else (None, set()))
