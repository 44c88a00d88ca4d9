"""What clients and the server store, counted by hand for small methods."""

import pytest
import torch
from support.federations import federate

from fedexp.state.client_state import ClientState

SMALL = ["clients.count=4", "clients.per_round=2", "data.subset=100", "local.epochs=1"]
SMALL += ["model.hidden=[8]", "model.feature_dim=16", "head=linear"]
BODY = (64 * 8 + 8) + (8 * 16 + 16)
HEAD = 16 * 10 + 10
MODEL = BODY + HEAD
BYTES = 4


def stored(*overrides: str, rounds: int = 1) -> tuple[float, float, float]:
    """Client memory in bytes, numbers in local training, server memory in bytes."""
    personal = "measure.personal.of=all"
    off = [] if personal in overrides else ["measure.personal=null"]
    federation = federate(*SMALL, *off, *overrides)
    for round in range(1, rounds + 1):
        metrics = federation.run_round(round).metrics
    return (
        metrics["cost/client_memory_bytes"],
        metrics["cost/stored_parameters"],
        metrics["cost/server_memory_bytes"],
    )


SAMPLER = 4 * 8
"""How often each of four clients was chosen, int64."""


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("overrides", "client", "training", "server"),
    [
        (["algorithm=moon"], BYTES * MODEL, 3 * MODEL, 0),  # global, previous (Fan et al., Fig. 10)
        (["algorithm=fedavg"], 0, MODEL, 0),
        (["algorithm=fedprox"], 0, 2 * MODEL, 0),  # the anchor
        (["algorithm=fedper", "measure.personal.of=all"], BYTES * HEAD, MODEL, -BYTES * HEAD),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else None,
)
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_by_hand(
    overrides: list[str], client: int, training: int, server: int, engine: str
) -> None:
    found = stored(*overrides, f"engine={engine}")
    assert found == (client, training, BYTES * MODEL + SAMPLER + server)


def test_momentum_and_control_variates_are_memory_of_the_server() -> None:
    plain = stored("algorithm=fedavg")
    for overrides in (["aggregator=momentum"], ["algorithm=scaffold", "optimizer.momentum=0"]):
        assert stored(*overrides)[2] == plain[2] + BYTES * MODEL
    variates = stored("algorithm=scaffold", "optimizer.momentum=0")
    assert variates[0] == BYTES * MODEL


def test_models_of_several_rounds_are_memory_of_the_server() -> None:
    plain = stored("algorithm=fedavg", rounds=2)
    found = stored("algorithm=fedcda", "clients.per_round=4", rounds=2)
    assert found[2] == plain[2] + 2 * 4 * BYTES * MODEL  # of four clients in two rounds


def test_a_kept_optimizer_counts_and_a_model_for_evaluation_does_not() -> None:
    kept = ["local.keep_optimizer=true", "optimizer.momentum=0.9"]
    assert stored("algorithm=fedavg", *kept)[0] == BYTES * MODEL
    assert stored("algorithm=fedavg", "measure.personal.of=all")[0] == 0


def test_a_tensor_under_two_names_counts_once() -> None:
    tensor = torch.zeros(10, 3)
    state = ClientState(
        memories={"loss": {"a": tensor, "b": tensor, "c": tensor[:2]}, "head": {}},
        private={"w": tensor[4:6, :1]},
        separate_model={"w": torch.zeros(2, dtype=torch.float64)},
        personal_model={"w": torch.zeros(100)},
    )
    assert state.method_nbytes == BYTES * (30 + 6 + 2) + 16
