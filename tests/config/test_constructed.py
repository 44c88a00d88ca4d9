"""A component that cannot be built, or breaks the contract, is one line with its class."""

import re
from typing import Any

import pytest
from support.contract_breakers import Failing

from fedexp.aggregators.gathered import Gathered
from fedexp.config.build import build
from fedexp.core.sockets import Aggregator, Head, Loss
from fedexp.errors import InputError
from fedexp.measures.measure import Measure
from fedexp.samplers.base import Sampler


class WithoutInit(Failing):
    def __init__(self) -> None:
        self.layers = Failing()


class SilentWithoutInit(Failing):
    def __init__(self) -> None:
        pass


class RaisesInInit(Failing):
    def __init__(self) -> None:
        super().__init__()
        raise KeyError("missing")


class OwnAttribute(Failing):
    def __init__(self) -> None:
        super().__init__()
        self.needs = ["x"]  # type: ignore[assignment]


class NoForward(Loss):
    pass


class NoClassifier(Head):
    pass


class NoCombine(Gathered):
    pass


MUST_CALL = r"its __init__ must call super\(\)\.__init__\(\)"


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (WithoutInit, MUST_CALL),
        (SilentWithoutInit, MUST_CALL),
        (RaisesInInit, r"failed with KeyError: 'missing' \(.*test_constructed\.py, line \d+\)"),
        (OwnAttribute, r"needs = \['x'\], but must be Mapping\[str, str\]"),
    ],
)
def test_a_part_that_cannot_be_built_is_one_line(part: type, problem: str) -> None:
    name = f"{part.__module__}.{part.__name__}"
    with pytest.raises(InputError, match=rf"^loss\._target_={name}: {problem}"):
        build("loss", {"_target_": name}, Loss)


@pytest.mark.parametrize(
    ("part", "kind", "hooks"),
    [
        (NoForward, Loss, "forward(batch)"),
        (NoClassifier, Head, "forward(z)"),
        (NoCombine, Aggregator, "combine(updates, current)"),
        (Aggregator, Aggregator, "add(update, current) and merge(current)"),
        (Sampler, Sampler, "select(round)"),
        (Measure, Measure, "__call__(after)"),
    ],
)
def test_a_class_without_a_hook_that_has_no_default_is_one_line(
    part: type, kind: type, hooks: str
) -> None:
    name = f"{part.__module__}.{part.__name__}"
    with pytest.raises(InputError, match=rf"^x\._target_={name}: must define {re.escape(hooks)}"):
        build("x", {"_target_": name}, kind, supplied=("feature_dim",))


@pytest.mark.parametrize(
    ("attribute", "value", "problem"),
    [
        ("traits", "x", r"traits = 'x', but must be frozenset\[str\]"),
        ("reference_models", "global", r"must be tuple\[str, \.\.\.\]"),
        ("summed", None, "summed = None, but must be bool"),
        ("needs", ["x"], r"must be Mapping\[str, str\]"),
        ("report", None, r"report = None, but must be a method report\(self, client, memory\)"),
        ("report", lambda self: {}, r"report\(self\), but must be report\(self, client, memory\)"),
    ],
)
def test_an_attribute_or_hook_of_the_wrong_type_is_one_line(
    attribute: str, value: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, attribute, value)
    with pytest.raises(
        InputError, match=rf"^loss\._target_=support\.contract_breakers\.Failing: .*{problem}"
    ):
        build("loss", {"_target_": "support.contract_breakers.Failing"}, Loss)


@pytest.mark.parametrize(("attribute", "value"), [("traits", {"x"}), ("reference_models", ["a"])])
def test_another_collection_of_the_same_items_is_accepted(
    attribute: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, attribute, value)
    assert isinstance(
        build("loss", {"_target_": "support.contract_breakers.Failing"}, Loss), Failing
    )
