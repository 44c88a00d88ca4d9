import math
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from support.federations import compose, federate

TINY = ["clients.count=4", "data.subset=80", "rounds=2", "local.epochs=1"]
SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from papers import hics_gradient_gap

    return hics_gradient_gap


def test_squared_gaps_by_plain_autograd(script: ModuleType) -> None:
    """The union's gradient from one pass over the samples of all clients."""
    federation = federate(
        "partition=per_client_alpha", "clients.per_round=4", *TINY, "optimizer.lr=0.3"
    )
    federation.run_round(1)
    found = script.squared_gaps(federation, 2)
    resources = federation.engine.resources
    module = resources.load_global(federation.server.broadcast(2))
    parameters = [*module.backbone.parameters(), *module.head.parameters()]

    def gradient(index: torch.Tensor) -> torch.Tensor:
        inputs, labels = federation.data.train.gather(index)
        loss = F.cross_entropy(module(inputs), labels)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    clients = federation.data.clients
    union = gradient(torch.cat([client.train_index for client in clients]))
    for client in clients:
        if client.num_samples:
            step = 0.3 * (gradient(client.train_index) - union)
            assert found.pop(client.client) == pytest.approx(step.square().sum().item(), rel=1e-4)
    assert not found


@pytest.mark.parametrize("quantile", [0.975, 0.025])
def test_an_envelope_recovers_a_curve(script: ModuleType, quantile: float) -> None:
    draw = np.random.default_rng(0)
    entropies = draw.uniform(0, math.log(10), 400)
    beta, rho, kappa = 1.5, 3e-4, 4e-4
    curve = kappa - rho * np.exp(beta * (entropies - math.log(10)))
    noise = draw.uniform(0, 1e-4, 400) * (1 if quantile < 0.5 else -1)
    found = script.fit_envelope(entropies, curve + noise, 10, quantile)
    assert found.beta == pytest.approx(beta, abs=0.3)
    np.testing.assert_allclose(found(entropies, 10), curve, atol=2e-5)
    below = (curve + noise <= found(entropies, 10)).mean()
    assert below == pytest.approx(quantile, abs=0.01)


def test_the_papers_command_has_the_settings_of_the_study(script: ModuleType) -> None:
    page = (SCRIPTS.parent / "conf" / "experiment" / "README.md").read_text()
    command = "`PYTHONPATH=scripts python scripts/papers/hics_gradient_gap.py NAME ([^`]*)`"
    commands = re.findall(command, page)
    (typed,) = (each for each in commands if each in str(script.__doc__))
    config = script.configure([*script.DEFAULTS, *typed.split()])
    study = compose("experiment=hics/fmnist_setting1")
    for key in ("data", "model", "optimizer", "local", "head", "loss", "regularizer", "aggregator"):
        assert getattr(config, key) == getattr(study, key), key
    assert config.clients.count == config.clients.per_round == 250
    assert config.partition.node["_target_"] == "fedexp.data.partitions.per_client_alpha"
    assert config.sampler["_target_"] == "fedexp.samplers.random.Random"
    assert config.rounds == 500


def test_the_command_writes_a_table_and_a_picture(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = tmp_path / "some" / "gap"
    script.main([str(name), *TINY, "--envelope", "1", "0.13", "0.14"])
    table = pd.read_csv(name.with_suffix(".csv"))
    assert list(table.columns) == ["round", "client", "label_entropy", "squared_gap"]
    assert set(table["round"]) == {1, 2}
    assert (table.squared_gap > 0).all()
    assert table.label_entropy.between(0, math.log(10)).all()
    assert name.with_suffix(".png").stat().st_size > 1000
    assert "beta 1, rho 0.13, kappa 0.14: " in capsys.readouterr().out
