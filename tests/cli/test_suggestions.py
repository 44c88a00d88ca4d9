"""The key that was meant: of the chosen options, never one that they lack."""

from pathlib import Path

import pytest

from fedexp.cli.command import config_folder
from fedexp.cli.suggestions import _SYNONYMS, _keys_in_use, suggested_key

CONF = Path(config_folder())


@pytest.mark.parametrize(
    ("unknown", "others", "meant"),
    [
        ("momentum", [], "optimizer.momentum"),
        ("momentum", ["optimizer=adam"], None),
        ("momentum", ["algorithm=scaffold", "optimizer=adam"], None),
        ("beta1", ["aggregator=adam"], "aggregator.beta1"),
        ("tau", [], None),
        ("rho", ["algorithm=fednh,fedavg", "-m"], "head.rho"),
        ("clip", [], None),
        ("dataset", [], "data"),
        ("alpha", ["partition=iid"], None),
        ("beta", ["head=nope"], "partition.beta"),  # what cannot be composed is left out
    ],
)
def test_a_key_of_the_chosen_options(unknown: str, others: list[str], meant: str | None) -> None:
    advice = suggested_key(unknown, [*others, f"{unknown}=1"], CONF)
    assert advice == (f" Did you mean {meant}?" if meant else "")


def test_words_of_other_frameworks_lead_to_keys_that_exist() -> None:
    groups = {path.name for path in CONF.iterdir()}
    assert set(_SYNONYMS.values()) <= {*_keys_in_use([], CONF), *groups}
