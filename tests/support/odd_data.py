"""One round on a dataset of any reader, without a composition for each dataset."""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedexp.config.schema import Config
from fedexp.data.federated import FederatedData
from fedexp.data.load import load_data
from fedexp.distributed.fabric import cpu_fabric
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from support.federations import compose

SMALL = (
    *("clients.count=2", "clients.per_round=2", "local.epochs=1", "local.batch_size=8"),
    *("partition=iid", "measure.personal=null"),
)


@cache
def _composed(*overrides: str) -> Config:
    return compose(*overrides, *SMALL)


def train_one_round(*overrides: str, cache: Path, **keys: Any) -> FederatedData:
    """One round of FedAvg ends with finite numbers; returns the data.

    Args:
        overrides: the config of all datasets of this reader.
        cache: the folder of cache files.
        keys: keys of ``data`` of this one.
    """
    config = _composed(*overrides)
    data_node = config.data.model_copy(update={"cache": cache} | keys)
    config = config.model_copy(update={"data": data_node})
    planned = plan(config)
    fabric = cpu_fabric()
    data = load_data(config, planned.source, fabric.device)
    metrics = Federation(planned, fabric, data).run_round(1).metrics
    assert metrics["global/accuracy"] >= 0
    assert all(map(math.isfinite, metrics.values())), metrics
    for split in (data.train, data.test):
        inputs, _ = split.gather(torch.arange(len(split)))
        assert inputs.isfinite().all()
    return data


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
