import pytest
from support.federations import compose, federate

from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=200", "rounds=3"]


def drawn(federation: Federation) -> list[set[str]]:
    message = federation.server.broadcast(0)
    names = [set(federation.measures.before_training(message, federation.server).figures)]
    return names + [set(federation.run_round(round).figures) for round in (1, 2, 3)]


def test_which_figures_are_drawn_in_which_round() -> None:
    similarity = {"heatmap/prototype_similarity"}
    assert drawn(federate(*SMALL, "measure.prototypes.every=2")) == [
        {"heatmap/partition"},
        set(),
        similarity,
        {*similarity, "sampler/times_chosen"},
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["+measure=features", "measure.features.clients=[4]"],
            r"measure\.features\.clients=\[4\]: must be below",
        ),
        (
            ["+measure=loss_surface", "measure.loss_surface.rounds=[2,4]"],
            r"surface\.rounds=\[2, 4\]: must be at most rounds=3",
        ),
    ],
)
def test_what_cannot_be_drawn(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(compose(*SMALL, *overrides))


@pytest.mark.parametrize("name", ["loss_surface", "features"])
def test_a_global_model_that_does_not_exist_cannot_be_drawn(name: str) -> None:
    with pytest.raises(InputError, match=rf"^measure\.{name}: needs a global model"):
        federate(*SMALL, "algorithm=local", f"+measure={name}")


def test_names_are_checked_before_data_is_read() -> None:
    with pytest.raises(
        InputError, match=r"measure\.prototypes\.zoom=.*digits has no super-classes"
    ):
        plan(compose(*SMALL, "measure.prototypes.zoom=[[fish,trees]]"))
