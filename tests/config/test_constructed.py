"""A component that cannot be built, or breaks the contract, is one line with its class."""

from typing import Any

import pytest
from support.contract_breakers import Failing

from fedexp.config.build import build
from fedexp.core.sockets import Loss
from fedexp.errors import InputError


class WithoutInit(Loss):
    def __init__(self) -> None:
        self.layers = Failing()


class SilentWithoutInit(Loss):
    def __init__(self) -> None:
        pass


class RaisesInInit(Loss):
    def __init__(self) -> None:
        super().__init__()
        raise KeyError("missing")


class OwnAttribute(Loss):
    def __init__(self) -> None:
        super().__init__()
        self.needs = ["x"]  # type: ignore[assignment]


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
