"""A part whose code cannot be stacked is refused in one line; ``check_part`` says the same line."""

import re
from collections.abc import ItemsView, Sequence
from typing import Any

import pytest
import torch
from support.federations import federate

from fedexp.engines.stacking_errors import Attributes, StackingError
from fedexp.testing import ContractError, check_part

SMALL = ("clients.count=4", "clients.per_round=4", "data.subset=120", "local.epochs=1")
REGISTER = "register it in setup with register_buffer and set it in begin with copy_"
LINE = r"line \d+ of contract_breakers\.py"
NO_BUFFER = f"self.shares differs between clients, but is no buffer; {REGISTER}"
PROBLEMS = {
    "Unregistered": NO_BUFFER,
    "InADict": r"self\.of_client\['shares'\] differs between clients, but is no buffer; "
    + REGISTER,
    "OnlyInBegin": f"{LINE} reads self.shares, which setup has not made; {REGISTER}",
    "SumsUp": f"{LINE} changes in place a tensor that all clients share; make it a buffer, or "
    "use an operation that is not in place",
    "Branches": f"{LINE} branches on the value of a tensor; use torch.where",
    "ReadsAValue": rf"{LINE} reads the value of a tensor, as \.item\(\) does; keep it a tensor",
}


def line(part: str, problem: str) -> str:
    """The pattern of the whole error about this loss."""
    whose = rf"loss \(support\.contract_breakers\.{part}\)"
    return f"engine=vectorized: {whose}: {problem}, or use engine=serial"


@pytest.mark.parametrize(("part", "problem"), PROBLEMS.items())
def test_the_line_names_the_part_the_rule_and_the_way_out(part: str, problem: str) -> None:
    loss = f"loss._target_=support.contract_breakers.{part}"
    federation = federate(*SMALL, loss, "engine=vectorized")
    with pytest.raises(StackingError) as error:
        federation.run_round(1)
    assert re.fullmatch(line(part, problem), str(error.value)), str(error.value)


@pytest.mark.parametrize(
    ("part", "problem"), [("OnlyInBegin", NO_BUFFER), ("Branches", PROBLEMS["Branches"])]
)
def test_the_check_of_a_part_says_the_same_line(part: str, problem: str) -> None:
    with pytest.raises(ContractError) as error:
        check_part(f"loss._target_=support.contract_breakers.{part}")
    assert re.fullmatch(line(part, problem), str(error.value)), str(error.value)


def test_a_chunk_of_one_client_may_keep_attributes() -> None:
    loss = "loss._target_=support.contract_breakers.Unregistered"
    federate(*SMALL, loss, "engine=vectorized", "engine.clients_per_chunk=1").run_round(1)


def test_an_error_with_another_cause_stays() -> None:
    loss = "loss._target_=support.contract_breakers.Failing"
    with pytest.raises(IndexError):
        federate(*SMALL, loss, "engine=vectorized").run_round(1)


class Scaled:
    """A component that keeps a tensor in an attribute."""

    kept: Sequence[Any] = ()

    def __init__(self, device: str) -> None:
        self.scale = torch.ones(2, device=device)


def attributes_of(scaled: Scaled) -> Attributes:
    found = Attributes({"loss": scaled}, torch.device("cpu"))
    scaled.scale.add_(1)
    found.compare()
    return found


def test_to_compare_clients_reads_no_value() -> None:
    scaled = Scaled("meta")  # a tensor without values
    found = attributes_of(scaled)
    scaled.scale.add_(1)
    found.compare()
    with pytest.raises(NotImplementedError):
        found.check()


def test_a_value_of_one_client_among_many_is_found() -> None:
    scaled = Scaled("cpu")
    found = attributes_of(scaled)
    for value in (2.0, 3.0, 2.0):
        scaled.scale.fill_(value)
        found.compare()
    with pytest.raises(StackingError, match=r"self\.scale differs between clients"):
        found.check()


def test_another_shape_is_found_at_once() -> None:
    scaled = Scaled("meta")
    found = attributes_of(scaled)
    scaled.scale = torch.ones(3, device="meta")
    with pytest.raises(StackingError, match=r"self\.scale differs between clients"):
        found.compare()


def test_tensors_in_lists_and_tuples_are_compared() -> None:
    scaled = Scaled("cpu")
    scaled.kept = [(scaled.scale, torch.zeros(1)), 3.0]
    found = attributes_of(scaled)
    scaled.kept[0][1].fill_(1)
    scaled.scale = scaled.kept[0][0].clone()
    found.compare()
    found.check()  # the first client's begin has not touched ``kept[0][1]``
    scaled.kept = [(torch.zeros(2), torch.zeros(1)), 3.0]
    found.compare()
    with pytest.raises(StackingError, match=r"self\.kept\[0\]\[0\] differs between clients"):
        found.check()


class Untouched(dict[int, float]):
    """A table that must not be walked through."""

    def items(self) -> ItemsView[int, float]:
        raise AssertionError("walked through the table")


class WithATable(Scaled):
    """A component whose server half keeps a table."""

    saved = ("table",)

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.table = Untouched({0: 1.0})


def test_the_state_of_the_server_half_is_not_walked_through() -> None:
    found = attributes_of(WithATable("cpu"))
    found.compare()
    found.check()
