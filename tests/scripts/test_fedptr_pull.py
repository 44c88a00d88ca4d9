from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from support.federations import compose, federate

from fedexp.regularizers.trajectory import Trajectory

SCRIPTS = Path(__file__).parents[2] / "scripts"
SMALL = ["clients.count=4", "clients.per_round=4", "data.subset=80", "local.epochs=1"]
ONE_BATCH = [*SMALL, "local.batch_size=1000", "optimizer.lr=0.1", "optimizer.momentum=0"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from papers import fedptr_pull

    return fedptr_pull


@pytest.mark.parametrize("layers", ["tensor", "module", "weight"])
def test_the_pull_is_the_norm_of_the_penaltys_gradient(script: ModuleType, layers: str) -> None:
    chosen = f"regularizer.layers={layers}"
    module = federate(*SMALL, "algorithm=fedptr_s", chosen).module
    part = module.regularizer
    assert isinstance(part, Trajectory)
    part.anchors.set({n: torch.randn_like(w) for n, w in module.tensor_index.parameters()})
    part.active.fill_(1)
    penalty = part(module.trained_parameters())
    assert isinstance(penalty, torch.Tensor)
    values = [value for _, value in module.tensor_index.parameters()]
    found = torch.autograd.grad(penalty, values, materialize_grads=True)
    norm = torch.cat([each.flatten() for each in found]).norm().item()
    assert script.pulls(SMALL, federate(*SMALL))[layers] == pytest.approx(norm, rel=1e-4)


def test_the_papers_network_has_14_tensors_7_modules_and_the_4_layers_of_figure_4(
    script: ModuleType,
) -> None:
    """Three blocks of convolution and norm, weight and bias each, and a linear layer."""
    small = [*SMALL, "model=convnet", "model.width=4", "head=linear"]
    found = script.pulls([*small, "regularizer.lam=0.05"], federate(*small))
    expected = {"tensor": 14, "module": 7, "weight": 4}
    assert found == pytest.approx({name: 0.05 * n**0.5 for name, n in expected.items()})


def test_norms_of_two_steps_by_plain_autograd(script: ModuleType) -> None:
    """A client with all its samples in one batch, and then the same batch again."""
    federation = federate(*ONE_BATCH)
    (client, *_) = [each for each in federation.data.clients if each.num_samples]
    batch = federation.data.train.gather(client.train_index)
    module = federation.engine.resources.load_global(federation.server.broadcast(1))
    parameters = [value for _, value in module.tensor_index.parameters()]

    def gradient() -> list[torch.Tensor]:
        return list(torch.autograd.grad(F.cross_entropy(module(batch[0]), batch[1]), parameters))

    def norm(gradients: list[torch.Tensor]) -> float:
        return torch.cat([each.flatten() for each in gradients]).norm().item()

    first = gradient()
    with torch.no_grad():
        for parameter, each in zip(parameters, first, strict=True):
            parameter.sub_(0.1 * each)
    expected = [norm(first), norm(gradient())]
    module = federation.engine.resources.load_global(federation.server.broadcast(1))
    found = script.one_epoch(module, [batch, batch], compose(*ONE_BATCH))
    assert found == pytest.approx(expected, rel=1e-4)


def test_every_client_with_data_starts_from_the_global_model(script: ModuleType) -> None:
    federation = federate(*ONE_BATCH)
    found = script.gradient_norms(federation, compose(*ONE_BATCH), 1)
    clients = [each for each in federation.data.clients if each.num_samples]
    assert [each.classes for each in found] == [int((c.class_counts > 0).sum()) for c in clients]
    assert [len(each.by_step) for each in found] == [1] * len(clients)
    for client, norms in zip(clients, found, strict=True):
        batch = federation.data.train.gather(client.train_index)
        module = federation.engine.resources.load_global(federation.server.broadcast(1))
        values = [value for _, value in module.tensor_index.parameters()]
        gradient = torch.autograd.grad(F.cross_entropy(module(batch[0]), batch[1]), values)
        expected = torch.cat([each.flatten() for each in gradient]).norm().item()
        assert norms.by_step[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_command_prints_a_row_for_each_round(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["fedptr_pull.py", "--rounds", "2", *SMALL])
    script.main()
    printed = capsys.readouterr().out
    assert "the pull is" in printed
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("│")] == ["1", "2"]
