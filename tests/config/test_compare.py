"""compare=aligned: the same clipping, weights of clients and classifier for all methods."""

from pathlib import Path

import pytest
import yaml
from support.federations import compose

from fedexp.cli.command import config_folder
from fedexp.config.schema import Config

PRESETS = (
    *("fedavg", "fednh", "fednh_paper", "fedgela", "fedge", "fedsc", "fedrcl", "scaffold", "feddc"),
    *("fedadam", "fedavgm", "fedcda", "creff", "fedrep", "fedprox", "fedexp"),
)


def shared(config: Config) -> tuple[object, object, object]:
    """Clipping, the clients' weights and the classifier's bias; no bias is none."""
    dumped = config.model_dump(mode="json")
    head, aggregator = dumped["head"], dumped["aggregator"]
    return dumped["local"]["grad_clip"], aggregator.get("weighting"), bool(head.get("bias"))


def test_without_it_presets_differ() -> None:
    found = {shared(compose(f"algorithm={name}")) for name in ("fedavg", "fednh", "fedgela")}
    assert len(found) == 3


@pytest.mark.parametrize("name", PRESETS)
def test_every_method_is_clipped_weighted_and_without_bias_alike(name: str) -> None:
    plain, aligned = (compose(f"algorithm={name}", *more) for more in ([], ["compare=aligned"]))
    assert shared(aligned) == (10, "uniform", False)
    for socket in ("head", "loss", "regularizer", "gradient", "personalization", "aggregator"):
        kinds = [getattr(each, socket)["_target_"] for each in (plain, aligned)]
        assert kinds[0] == kinds[1], socket


def test_it_wins_over_a_papers_protocol_and_loses_to_what_is_typed() -> None:
    cell = ["experiment=fedgela/cifar10_p10c2", "compare=aligned"]
    assert shared(compose(*cell, "algorithm=fedavg")) == (10, "uniform", False)
    typed = ["local.grad_clip=3", "aggregator.weighting=samples", "head.bias=true"]
    assert shared(compose("algorithm=fedavg", "compare=aligned", *typed)) == (3, "samples", True)


@pytest.mark.parametrize(("group", "key"), [("aggregator", "weighting"), ("head", "bias")])
def test_every_option_that_has_the_key_is_aligned(group: str, key: str) -> None:
    """uniform and linear_nobias have the common value already."""
    conf = Path(config_folder())
    having = {
        path.stem
        for path in (conf / group).glob("*.yaml")
        if key in yaml.safe_load(path.read_text())
    }
    aligned = {path.stem for path in (conf / f"method/compare_{group}/aligned").glob("*.yaml")}
    assert aligned == having - {"uniform", "linear_nobias"}
