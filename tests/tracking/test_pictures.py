import pytest
from federations import compose, federate

from fedexp.errors import InputError
from fedexp.federation import Federation

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


def test_features_are_drawn_of_clients_that_trained() -> None:
    federation = federate(*SMALL, "tracking.feature_clients=[0,1,2,3]", "tracking.heatmap_every=9")
    assert "features/clients" in drawn(federation)[3]
    figure = federation.figures(federation.server.broadcast(3))["features/clients"]
    remembered = federation.engine.resources.store.clients_with_model
    assert [axes.get_title() for axes in figure.axes] == [f"client {c}" for c in remembered]


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
    ],
)
def test_clients_that_cannot_be_drawn(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compose(*SMALL, *overrides)
