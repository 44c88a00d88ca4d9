"""The one check of what can be combined."""

import logging

import pytest

from fedexp.config.compatibility.declaration import Declaration, check, declared
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)
BITTER = Declaration("drink=coffee", frozenset({"bitter"}))


def test_a_need_is_met_by_another_component_not_by_the_own_trait() -> None:
    needs = Declaration("food=cake", frozenset({"bitter"}), needs={"bitter": "food=cake: no drink"})
    check([needs, BITTER], LOGGER)
    with pytest.raises(InputError, match=r"^food=cake: no drink$"):
        check([needs], LOGGER)


def test_what_is_forbidden_is_named_by_its_key() -> None:
    forbids = Declaration("food", frozenset({"bitter"}), forbids={"bitter": "food: not to {other}"})
    check([forbids], LOGGER)
    with pytest.raises(InputError, match=r"^food: not to drink=coffee$"):
        check([forbids, BITTER, Declaration("later", frozenset({"bitter"}))], LOGGER)


def test_what_is_discouraged_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check([Declaration("food", discourages={"bitter": "odd with {other}"}), BITTER], LOGGER)
    assert caplog.messages == ["odd with drink=coffee"]


def test_a_component_need_not_have_all_attributes() -> None:
    class Tea:
        traits = frozenset({"bitter"})

    assert declared("drink", Tea()) == Declaration("drink", frozenset({"bitter"}))
    assert declared("drink", object()) == Declaration("drink")
