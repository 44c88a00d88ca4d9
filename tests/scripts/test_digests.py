"""The runs of the digests: their overrides fit the config tree, and none of them is refused."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.federations import federate

from fedexp.cli.compose import compose

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return import_module("digests")


def test_what_an_option_is_given_is_a_key_of_its_run(digests: Any) -> None:
    runs = digests.configs()
    for name in digests.FAST | digests.NEEDS:
        compose(runs[name])


def test_an_option_has_a_run_unless_a_preset_chooses_it(digests: Any) -> None:
    runs = digests.configs()
    alone = {"head=cosine", "sampler=oort", "sampler=hics_scale_free", "aggregator=krum"}
    assert alone | {"algorithm=fedbn", "algorithm=hics", "algorithm=fedgela_paper"} <= runs.keys()
    assert not {"personalization=fedbn", "sampler=hics", "loss=cross_entropy"} & runs.keys()


@pytest.mark.slow
def test_no_run_is_refused(digests: Any) -> None:
    for words in digests.configs().values():
        federate(*digests.SMALL, *words)
