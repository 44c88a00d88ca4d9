"""Losses on the plane against losses of models put together by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from support.views import after_round

import fedexp
from fedexp.core.messages import Tensors, Update
from fedexp.drawing.data_figure import DataFigure
from fedexp.measures.loss_surface import window
from fedexp.measures.round_results import Measured
from fedexp.runtime.federation import Federation

SMALL = [
    *["clients.count=5", "clients.per_round=3", "local.epochs=1", "data.subset=200", "rounds=2"],
    *["+measure=loss_surface", "measure.loss_surface.samples=5000"],
]
MLP = [*SMALL, "measure.loss_surface.points=3", "model=mlp", "model.hidden=[8]"]


def surface_of(federation: Federation) -> tuple[dict[str, Any], list[Update]]:
    """The drawn arrays of the second round, and that round's updates."""
    updates: list[Update] = []
    observe = federation.measures.observe
    assert "loss_surface" not in federation.run_round(1).figures

    def note(update: Update) -> None:
        updates.append(update)
        observe(update)

    federation.measures.observe = note  # type: ignore[method-assign]
    figure = federation.run_round(2).figures["loss_surface"]
    assert isinstance(figure, DataFigure)
    return dict(figure.data), sorted(updates, key=lambda update: update.client)


def test_loss(federation: Federation, weights: Tensors) -> float:
    """On the whole test split, with these weights in the global model."""
    model = federation.global_model(2)
    test = federation.data.test
    logits = model.logits_with(weights, test.gather(torch.arange(len(test)))[0])
    return F.cross_entropy(logits, test.labels).item()


test_loss.__test__ = False  # type: ignore[attr-defined]


def test_losses_are_those_of_the_models_on_the_plane() -> None:
    federation = federate(*MLP)
    data, updates = surface_of(federation)
    merged, first, second = federation.server.weights, updates[0].weights, updates[1].weights
    assert list(data["models"]) == [
        "global model",
        f"client {updates[0].client}",
        f"client {updates[1].client}",
    ]
    models = data["model_x_y_loss"]
    for weights, (_, _, loss) in zip((merged, first, second), models, strict=True):
        assert loss == pytest.approx(test_loss(federation, weights), rel=1e-5)
    lengths = [
        float(sum((w[n] - merged[n]).square().sum() for n in merged)) ** 0.5
        for w in (first, second)
    ]
    assert np.hypot(models[1:, 0], models[1:, 1]) == pytest.approx(lengths, rel=1e-4)
    # Every point of the plane is an affine combination of the three models.
    corners = np.column_stack([models[:, :2], np.ones(3)]).T
    for row, b in enumerate(data["y"]):
        for column, a in enumerate(data["x"]):
            shares = np.linalg.solve(corners, [a, b, 1])
            mixed = {
                n: shares[0] * merged[n] + shares[1] * first[n] + shares[2] * second[n]
                for n in merged
            }
            found = data["loss"][row, column]
            assert found == pytest.approx(test_loss(federation, mixed), rel=1e-3)


def test_fixed_statistics_stay_as_they_were() -> None:
    federation = federate(*MLP, "model.batch_norm=true", "model.train=[head]", "engine=serial")
    (norm,) = (m for m in federation.module.modules() if isinstance(m, torch.nn.BatchNorm1d))
    norm.running_mean.fill_(0.5)  # as statistics of other data would be
    norm.running_var.fill_(2.0)
    data, _ = surface_of(federation)
    assert norm.running_mean.eq(0.5).all()
    assert norm.running_var.eq(2.0).all()
    expected = test_loss(federation, federation.server.weights)
    assert data["model_x_y_loss"][0, 2] == pytest.approx(expected, rel=1e-5)


# A model with BatchNorm and dropout, and little to train it on.
MOBILENET = [
    *["clients.count=3", "clients.per_round=2", "local.epochs=1", "data.subset=60", "rounds=3"],
    *["model=torchvision", "measure.personal=null", "objective=train/loss"],
]
SURFACE = ["+measure=loss_surface", "measure.loss_surface.rounds=[2]"]
SURFACE += ["measure.loss_surface.samples=5000", "measure.loss_surface.points=2"]


@pytest.mark.slow
def test_statistics_of_batchnorm_are_estimated_at_each_point() -> None:
    federation = federate(*MOBILENET, *SURFACE)
    data, _ = surface_of(federation)
    model = federation.global_model(2).eval()
    trained = torch.cat([client.train_index for client in federation.data.clients])
    layers = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0  # after one batch, the statistics are that batch's
        layer.train()
    with torch.no_grad():
        model(federation.data.train.gather(trained)[0])
    weights = {name: value.clone() for name, value in model.weights.items()}
    expected = test_loss(federation, weights)
    assert data["model_x_y_loss"][0, 2] == pytest.approx(expected, rel=2e-3)
    assert expected != pytest.approx(test_loss(federation, federation.server.weights), rel=2e-3)

    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    federation.run_round(3)
    without = federate(*MOBILENET)
    without.run(3)
    for name, weight in without.server.weights.items():
        assert torch.equal(weight, federation.server.weights[name]), name


@pytest.mark.slow
def test_the_result_of_a_run_does_not_depend_on_the_picture(tmp_path: Path) -> None:
    digests = []
    drawn = ["+measure=loss_surface", "measure.loss_surface.rounds=[1,2]"]
    drawn += ["measure.loss_surface.points=2"]
    for name, overrides in (("with", drawn), ("without", [])):
        result = fedexp.run(
            [
                *["rounds=3", "clients.count=4", "clients.per_round=2", "local.epochs=1"],
                *["model=mlp", "data.subset=100", "tracking.wandb.mode=disabled", *overrides],
                f"hydra.run.dir={tmp_path / name}",
            ]
        )
        digests.append(result.summary["weights_digest"])
    assert digests[0] == digests[1]
    names = {path.name for path in (tmp_path / "with" / "figures").glob("loss*")}
    assert names == {f"loss_surface_000{n}.{kind}" for n in (1, 2) for kind in ("png", "npz")}


def test_a_plane_of_random_directions_has_the_scale_of_the_weights() -> None:
    federation = federate(*MLP, "measure.loss_surface.plane=random")
    data, _ = surface_of(federation)
    assert list(data["models"]) == ["global model"]
    matrices = [value for value in federation.server.weights.values() if value.ndim > 1]
    length = float(sum(value.square().sum() for value in matrices)) ** 0.5
    assert data["x"] == pytest.approx([-length, 0, length], rel=1e-5, abs=1e-5)
    merged = test_loss(federation, federation.server.weights)
    assert data["loss"][1, 1] == pytest.approx(merged, rel=1e-4)
    assert data["loss"][0, 0] != pytest.approx(merged, rel=1e-2)


def test_two_clients_and_their_mean_lie_on_a_line() -> None:
    federation = federate(*MLP, "clients.per_round=2", "aggregator=uniform")
    data, _ = surface_of(federation)
    _, first, second = data["model_x_y_loss"]
    assert first[:2] == pytest.approx(-second[:2], rel=1e-3, abs=1e-4)


def test_a_round_without_updates_has_no_surface(caplog: pytest.LogCaptureFixture) -> None:
    federation = federate(*MLP)
    measure = federation.measures["loss_surface"]
    assert measure(after_round(federation, 2)) == Measured()
    assert "round 2 has no local model" in caplog.text


def test_the_window_is_a_square_around_the_models() -> None:
    x, y = window([(0.0, 0.0), (4.0, 0.0), (2.0, 1.0)], 3, 9.0)
    assert x == pytest.approx([2 - 3.4, 2, 2 + 3.4])
    assert y == pytest.approx([0.5 - 3.4, 0.5, 0.5 + 3.4])
    assert window([(0.0, 0.0)], 2, 9.0)[0].tolist() == [-9, 9]


@pytest.mark.parametrize("plane", ["local", "random"])
def test_weights_whose_squares_overflow_have_no_surface(
    plane: str, caplog: pytest.LogCaptureFixture
) -> None:
    words = [
        "optimizer.lr=1e25",
        "local.steps=1",
        "rounds=1",
        f"measure.loss_surface.plane={plane}",
    ]
    figures = federate(*MLP, *words).run_round(1).figures
    assert "loss_surface" not in figures
    assert "weights are too large" in caplog.text
