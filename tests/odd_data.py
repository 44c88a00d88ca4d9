"""One round on a dataset of any reader, without a composition for each dataset."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import compose
from lightning.fabric import Fabric

from fedexp.config.schema import Config
from fedexp.data.federated import FederatedData
from fedexp.data.load import load_data
from fedexp.errors import InputError
from fedexp.runtime.assembly import assemble
from fedexp.runtime.plan import plan
from fedexp.tracking.tracker import Trackers

SMALL = ("clients.count=2", "clients.per_round=2", "local.epochs=1", "local.batch_size=8")
SMALL += ("partition=iid", "measure.personal=null")


@cache
def _composed(*overrides: str) -> Config:
    return compose(*overrides, *SMALL)


def train_one_round(*overrides: str, **keys: Any) -> FederatedData:
    """One round of FedAvg ends with finite numbers; returns the data.

    Args:
        overrides: the config of all datasets of this reader.
        keys: keys of ``data`` of this one.
    """
    config = _composed(*overrides).model_copy(deep=True)
    config.data.model_extra.update(keys)  # type: ignore[union-attr]
    config = config.model_copy(update={"data": config.data.model_copy(update=_common(keys))})
    planned = plan(config)
    fabric = Fabric(accelerator="cpu", devices=1)
    data = load_data(config, planned.source, fabric.device)
    metrics = assemble(planned, fabric, data, Trackers([])).run_round(1).metrics
    assert metrics["global/accuracy"] >= 0
    assert all(map(math.isfinite, metrics.values())), metrics
    for split in (data.train, data.test):
        inputs, _ = split.gather(torch.arange(len(split)))
        assert inputs.isfinite().all()
    return data


def _common(keys: dict[str, Any]) -> dict[str, Any]:
    return {"cache": keys["cache"]} if "cache" in keys else {}


class Outcomes:
    """Counts the datasets that train and those that are refused."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def of(self, train: Callable[[], FederatedData], refused: str | None) -> FederatedData | None:
        """The data of a training, or None after the expected refusal in one line."""
        if refused is None:
            data = train()
            self.counts["trained"] += 1
            return data
        with pytest.raises(InputError, match=refused) as caught:
            train()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1500
        self.counts["refused"] += 1
        return None


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """Counts over a module, printed at its end."""
    found = Outcomes()
    yield found
    capture = request.config.pluginmanager.getplugin("capturemanager")
    shown: AbstractContextManager[None] = capture.global_and_fixture_disabled()
    with shown:
        name = Path(request.path).stem.removeprefix("test_").replace("_", " ")
        print(f"\n{name}: " + ", ".join(f"{n} {kind}" for kind, n in found.counts.items()))
