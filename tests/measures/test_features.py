import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from support.federations import federate
from support.views import after_round

from fedexp.runtime.federation import Federation

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=200", "rounds=3"]


def drawn(federation: Federation) -> dict[str, Figure]:
    """The figures of the measure after the last of three rounds, which has drawn them itself."""
    recorded = [set(federation.run_round(round).figures) for round in (1, 2, 3)]
    found = federation.measures["features"](after_round(federation, 3)).figures
    assert [set(found) <= names for names in recorded] == [False, False, True]
    return dict(found)


def test_features_are_drawn_of_the_global_model_and_of_clients_that_trained() -> None:
    federation = federate(
        *SMALL,
        *["+measure=features", "measure.features.clients=[0,1,2,3]"],
        *[
            "measure.features.classes=[3,7]",
            "measure.features.projection=pca",
            "measure.prototypes.every=9",
        ],
    )
    figure = drawn(federation)["features/clients"]
    resources = federation.engine.resources
    remembered = resources.store.clients_with_model
    titles = ["global model", *(f"client {client}" for client in remembered)]
    *panels, bars = figure.axes
    assert [axes.get_title() for axes in panels] == titles
    labels = resources.data.test.labels
    of_three = int((labels == 3).sum()), int((labels == 7).sum())
    for axes in panels:
        assert tuple(len(each.get_offsets()) for each in axes.collections) == of_three
    heights = [[bar.get_height() for bar in client] for client in bars.containers]  # type: ignore[attr-defined]
    counts = resources.data.class_counts
    assert heights == [[counts[client, 3], counts[client, 7]] for client in remembered]


def test_global_features_in_the_plane_are_those_of_the_global_model() -> None:
    overrides = ["data=spiral", "data.test_points=20", "model=mlp", "model.feature_dim=2"]
    federation = federate(*SMALL, *overrides, "+measure=features")
    (axes,) = drawn(federation)["features/global"].axes
    model = federation.global_model(3)
    test = federation.data.test
    with torch.no_grad():
        z = model.backbone(test.inputs)
    for label, drawn_class in enumerate(axes.collections):
        found = torch.tensor(np.asarray(drawn_class.get_offsets())).float()
        expected = z[test.labels == label]
        mix = torch.tensor([1.0, 0.37])  # the samples are shuffled
        torch.testing.assert_close(*(each[(each @ mix).argsort()] for each in (found, expected)))
    assert len(axes.texts) == 6


@pytest.mark.parametrize("personalization", ["finetune", "received"])
def test_a_client_is_shown_with_the_model_that_it_uses(personalization: str) -> None:
    """A tuned or received model, not the latest local model, where personal/* scores that one."""
    words = ["data=spiral", "data.test_points=20", "model=mlp", "model.feature_dim=2"]
    words += ["+measure=features", "measure.features.clients=[0,1,2,3]"]
    federation = federate(*SMALL, *words, f"personalization={personalization}")
    panels = drawn(federation)["features/clients"].axes[1:-1]
    engine, test, message = federation.engine, federation.data.test, federation.server.broadcast(3)
    assert len(panels) > 1
    for axes, client in zip(panels, federation.store.clients_with_model, strict=True):
        module = engine.begin_tuning(client, message)
        if phases := engine.tuning_phases():
            engine.fit(module, phases)
        with torch.no_grad():
            z = module.eval().backbone(test.inputs)
        for label, drawn_class in enumerate(axes.collections):
            found = torch.tensor(np.asarray(drawn_class.get_offsets())).float()
            mix = torch.tensor([1.0, 0.37])  # the samples are shuffled
            both = [each[(each @ mix).argsort()] for each in (found, z[test.labels == label])]
            torch.testing.assert_close(*both, atol=1e-4, rtol=1e-4)


def test_no_chosen_client_has_trained(caplog: pytest.LogCaptureFixture) -> None:
    clients = ["measure.features.clients=[0,1,2,3]", "measure.features.global_model=false"]
    federation = federate(*SMALL, "clients.per_round=1", "+measure=features", *clients)
    assert federation.measures["features"](after_round(federation, 3)).figures == {}
    assert "no such client has trained" in caplog.text


def test_a_model_that_diverged_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    words = ["optimizer.lr=1e30", "local.steps=1", "rounds=1", "measure.features.projection=pca"]
    figures = federate(*SMALL, "+measure=features", *words).run_round(1).figures
    assert "features/global" not in figures
    assert "global model: not finite, left out" in caplog.text
