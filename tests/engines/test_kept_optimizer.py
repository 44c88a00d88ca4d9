"""Optimizer state that clients keep over rounds."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from torch import nn

from fedexp.core.messages import Message, Tensors
from fedexp.engines.kept_optimizer import optimizer_state, restore_optimizer
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=5", "clients.per_round=3", "data.subset=150", "local.epochs=2"]
SMALL += ["partition.beta=0.5"]
KEEP = "local.keep_optimizer=true"
OPTIMIZERS = {
    "sgd": ["optimizer.momentum=0.9", "optimizer.weight_decay=0"],
    "adam": ["optimizer=adam", "optimizer.weight_decay=0"],
}


def one_optimizer_for_all_rounds(federation: Federation, name: str, rounds: int) -> list[Tensors]:
    """Client 0's weights after each round, by an independent loop from the initial weights."""
    module = federation.module
    start = {name: value.clone() for name, value in federation.server.weights.items()}
    model = nn.ModuleDict({"backbone": module.backbone, "head": module.head})
    if name == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for round in range(1, rounds + 1):
        model.load_state_dict(start)
        batches = federation.data.clients[0].local_batches(round, 16)
        for _ in range(2):
            for inputs, targets in batches:
                optimizer.zero_grad()
                F.cross_entropy(model["head"](model["backbone"](inputs)), targets).backward()
                optimizer.step()
        found.append({name: value.clone() for name, value in model.state_dict().items()})
    return found


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_it_equals_one_optimizer_for_all_rounds(name: str, engine: str) -> None:
    small = [*SMALL, KEEP, *OPTIMIZERS[name], "optimizer.lr=0.01"]
    expected = one_optimizer_for_all_rounds(federate(*small), name, rounds=3)
    federation = federate(*small, f"engine={engine}")
    start = {name: value.clone() for name, value in federation.server.weights.items()}
    for round, weights in enumerate(expected, start=1):
        clients = [0, 1, 2] if round == 1 else [2, 0]  # the others have taken other steps
        updates = federation.engine.train(clients, Message(round, start))
        (update,) = (each for each in updates if each.client == 0)
        for weight, value in update.weights.items():
            torch.testing.assert_close(value, weights[weight], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=fedrep", *OPTIMIZERS["adam"]],
        ["algorithm=ditto", *OPTIMIZERS["sgd"]],
        ["algorithm=fednh", "optimizer=adam", "local.grad_clip=0.5"],
    ],
    ids=" ".join,
)
def test_engines_agree(overrides: list[str]) -> None:
    serial, vectorized, trainer = (
        federate(*SMALL, KEEP, *overrides, f"engine={engine}")
        for engine in ("serial", "vectorized", "trainer")
    )
    for round in (1, 2, 3):
        for federation in (serial, vectorized, trainer):
            federation.run_round(round)
    states, stacked = dict(serial.store.states()), dict(vectorized.store.states())
    assert states.keys() == stacked.keys() > set()
    for client, state in stacked.items():
        for model in ("optimizer", "personal_optimizer"):
            expected, found = states[client].memory(model), state.memory(model)
            assert bool(expected) == (model == "optimizer" or "algorithm=ditto" in overrides)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    for name, weight in serial.server.weights.items():
        assert torch.equal(trainer.server.weights[name], weight)
        torch.testing.assert_close(vectorized.server.weights[name], weight, atol=1e-5, rtol=1e-4)


def test_nothing_is_kept_by_default() -> None:
    federation = federate(*SMALL)
    federation.run_round(1)
    assert dict(federation.store.states())
    for _, state in federation.store.states():
        assert "optimizer" not in state.memories


def test_a_separate_model_has_a_separate_optimizer() -> None:
    federation = federate(*SMALL, KEEP, "algorithm=ditto", *OPTIMIZERS["sgd"])
    federation.run_round(1)
    assert dict(federation.store.states())
    for _, state in federation.store.states():
        shared, personal = state.memory("optimizer"), state.memory("personal_optimizer")
        assert shared.keys() == personal.keys() > set()
        assert any(not torch.equal(shared[key], personal[key]) for key in shared)


def test_a_quarantined_client_keeps_the_state_that_it_had() -> None:
    federation = federate(*SMALL, KEEP, *OPTIMIZERS["sgd"])
    message = federation.server.broadcast(1)
    list(federation.engine.train([0], message))
    before = dict(federation.store.memory(0, "optimizer"))
    copies = {key: value.clone() for key, value in before.items()}
    broken = Message(2, {name: value * torch.nan for name, value in message.weights.items()})
    list(federation.engine.train([0], broken))
    after = federation.store.memory(0, "optimizer")
    assert after.keys() == copies.keys()
    assert all(torch.equal(after[key], copies[key]) for key in copies)


def test_restored_state_is_a_copy_with_the_strides_of_its_parameter() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    memory = {"w/momentum_buffer": torch.randn(2, 3, 4, 4), "other/momentum_buffer": torch.ones(1)}
    restore_optimizer(optimizer, [({"w": parameter}, memory)])
    restored = optimizer.state[parameter]["momentum_buffer"]
    assert restored.stride() == parameter.stride()
    assert torch.equal(restored, memory["w/momentum_buffer"])
    assert restored.data_ptr() != memory["w/momentum_buffer"].data_ptr()
    assert optimizer_state(optimizer, {"w": parameter}).keys() == {"w/momentum_buffer"}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_new_and_continuing_parameters_can_share_an_optimizer(
    kind: type[torch.optim.Optimizer],
) -> None:
    options = {"lr": 0.1, "fused": True} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})

    def stepped(values: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        for value in values:
            value.grad = torch.ones(2)
        optimizer.step()

    old, new = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    alone = kind([old], **options)
    stepped([old], alone)
    memory = optimizer_state(alone, {"w": old})
    memory = {key: value.clone() for key, value in memory.items()}
    together = [nn.Parameter(old.detach().clone()), nn.Parameter(new.detach().clone())]
    both = kind(together, **options)
    restore_optimizer(both, [({"w": together[0]}, memory), ({"w": together[1]}, {})])
    stepped(together, both)
    stepped([old], alone)
    stepped([new], kind([new], **options))
    torch.testing.assert_close(together, [old, new])


def test_state_that_is_no_tensor_is_refused() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter]["steps"] = 3
    with pytest.raises(InputError, match=r"local\.keep_optimizer=true: SGD keeps steps=3"):
        optimizer_state(optimizer, {"w": parameter})
