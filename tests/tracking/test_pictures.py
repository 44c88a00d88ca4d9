import numpy as np
import pytest
import torch
from federations import compose, federate

from fedexp.errors import InputError
from fedexp.federation import Federation
from fedexp.runtime.plan import plan

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=200", "rounds=3"]


def drawn(federation: Federation) -> list[set[str]]:
    names = [set(federation.figures(federation.server.broadcast(0)))]
    return names + [set(federation.run_round(round).figures) for round in (1, 2, 3)]


def test_which_figures_are_drawn_in_which_round() -> None:
    similarity = {"heatmap/prototype_similarity"}
    assert drawn(federate(*SMALL, "tracking.heatmap_every=2")) == [
        {"heatmap/partition"},
        set(),
        similarity,
        {*similarity, "sampler/times_chosen"},
    ]


def test_features_are_drawn_of_the_global_model_and_of_clients_that_trained() -> None:
    federation = federate(
        *SMALL,
        *["tracking.feature_clients=[0,1,2,3]", "tracking.feature_global=true"],
        *["tracking.feature_classes=[3,7]", "tracking.projection=pca", "tracking.heatmap_every=9"],
    )
    assert "features/clients" in drawn(federation)[3]
    figure = federation.figures(federation.server.broadcast(3))["features/clients"]
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
    federation = federate(*SMALL, *overrides, "tracking.feature_global=true")
    names = drawn(federation)
    assert "features/global" in names[3]
    (axes,) = federation.figures(federation.server.broadcast(3))["features/global"].axes
    model = federation.global_model(3)
    test = federation.engine.resources.data.test
    with torch.no_grad():
        z = model.backbone(test.inputs)
    for label, drawn_class in enumerate(axes.collections):
        found = torch.tensor(np.asarray(drawn_class.get_offsets())).float()
        expected = z[test.labels == label]
        mix = torch.tensor([1.0, 0.37])  # the samples are shuffled
        torch.testing.assert_close(*(each[(each @ mix).argsort()] for each in (found, expected)))
    assert len(axes.texts) == 6


def test_no_chosen_client_has_trained(caplog: pytest.LogCaptureFixture) -> None:
    federation = federate(*SMALL, "clients.per_round=1", "tracking.feature_clients=[0,1,2,3]")
    assert "features/clients" not in federation.figures(federation.server.broadcast(3))
    assert "none of them has trained" in caplog.text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tracking.feature_clients=[4]"], r"tracking\.feature_clients=\[4\]: must be below"),
        (
            ["tracking.feature_clients=[0]", "evaluation.personal=off"],
            r"tracking\.feature_clients: draws local models",
        ),
        (
            ["tracking.loss_surface.rounds=[2,4]"],
            r"surface\.rounds=\[2, 4\]: must be at most rounds=3",
        ),
    ],
)
def test_what_cannot_be_drawn(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compose(*SMALL, *overrides)


@pytest.mark.parametrize(
    "override", ["tracking.loss_surface.rounds=[1]", "tracking.feature_global=true"]
)
def test_a_global_model_that_does_not_exist_cannot_be_drawn(override: str) -> None:
    with pytest.raises(InputError, match=r"^tracking\..*there is no global model"):
        federate(*SMALL, "algorithm=local", override)


def test_names_are_checked_before_data_is_read() -> None:
    with pytest.raises(InputError, match=r"tracking\.heatmap_zoom=.*digits has no super-classes"):
        plan(compose(*SMALL, "tracking.heatmap_zoom=[[fish,trees]]"))
