from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.federations import begin_client, equal, federate
from test_client import fit_with_trainer
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Batch
from fedexp.core.frozen_copies import FrozenCopy
from fedexp.core.messages import Tensors
from fedexp.core.other_weights import MethodOf
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=1"]


def seated(federation: Federation, client: int, round: int) -> ClientModule:
    """The resident module where this client's local training starts, in train mode."""
    engine: Any = federation.engine
    module: ClientModule = begin_client(engine, client, federation.server.broadcast(round))
    return module.train()


def tiny() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    return backbone, nn.Linear(4, 2)


def weights_of(backbone: nn.Module, head: nn.Module) -> Tensors:
    return dict(nn.ModuleDict({"backbone": backbone, "head": head}).state_dict())


# By itself.


def test_it_has_buffers_only_and_saves_none() -> None:
    reference = FrozenCopy(*tiny())
    assert list(reference.parameters()) == []
    assert reference.state_dict() == {}
    assert {name for name, _ in reference.named_buffers()} == weights_of(*tiny()).keys()


def test_a_tensor_with_two_names_is_set_under_both() -> None:
    backbone = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    backbone[1].weight = backbone[0].weight
    moved = FrozenCopy(backbone, nn.Linear(3, 2)).double()  # a move makes two tensors of the one
    weight = torch.rand(3, 3)
    moved.set({"backbone.0.weight": weight})
    for layer in (0, 1):
        assert moved.get_buffer(f"backbone.{layer}.weight").equal(weight.double())


def test_it_is_the_model_in_eval_mode_whatever_mode_is_asked_for() -> None:
    backbone, head = tiny()
    reference = nn.ModuleDict({"global": FrozenCopy(backbone, head)}).train()["global"]
    x = torch.randn(8, 3) * 5 + 1
    before = {name: buffer.clone() for name, buffer in reference.named_buffers()}
    outputs = reference(x)
    assert not any(module.training for module in reference.modules())
    backbone.eval()
    assert torch.equal(outputs.z, backbone(x))
    assert torch.equal(outputs.logits, head(backbone(x)))
    assert equal(before, dict(reference.named_buffers()))


def test_no_gradient_passes_through_it() -> None:
    outputs = FrozenCopy(*tiny())(torch.randn(8, 3, requires_grad=True))
    assert not outputs.z.requires_grad
    assert not outputs.logits.requires_grad


def test_it_does_not_move_with_the_model() -> None:
    backbone, head = tiny()
    reference, x = FrozenCopy(backbone, head), torch.randn(8, 3)
    before = reference(x)
    with torch.no_grad():
        for weight in weights_of(backbone, head).values():
            weight.add_(1)
    assert torch.equal(reference(x).logits, before.logits)


def test_set_copies_in_place_what_is_named() -> None:
    backbone, head = tiny()
    reference = FrozenCopy(backbone, head)
    pointers = {name: buffer.data_ptr() for name, buffer in reference.named_buffers()}
    old = {name: buffer.clone() for name, buffer in reference.named_buffers()}
    given = {"head.bias": torch.tensor([3.0, 4.0]), "elsewhere": torch.zeros(7)}
    reference.set(given)
    now = dict(reference.named_buffers())
    assert torch.equal(now.pop("head.bias"), torch.tensor([3.0, 4.0]))
    assert all(torch.equal(now[name], old[name]) for name in now)
    assert pointers == {name: buffer.data_ptr() for name, buffer in reference.named_buffers()}
    given["head.bias"].zero_()
    assert dict(reference.named_buffers())["head.bias"].tolist() == [3, 4]


# Within the client.


def test_frozen_copies_are_not_part_of_the_model() -> None:
    plain, moon = (federate(*SMALL, f"loss={name}") for name in ("cross_entropy", "moon"))
    one, other = plain.module, moon.module
    assert one.weights.keys() == other.weights.keys()
    assert dict(one.named_parameters()).keys() == dict(other.named_parameters()).keys()
    assert plain.server.weights.keys() == moon.server.weights.keys()
    copied = {name for name, _ in other.named_buffers() if name.startswith("frozen_copies.")}
    assert len(copied) == 2 * len(other.weights)


@contextmanager
def backbone_calls(module: ClientModule) -> Iterator[list[str]]:
    """Collects a mark for each forward pass of a backbone while the block runs."""
    calls: list[str] = []
    backbones = [module.backbone, *(each.backbone for each in module.frozen_copies.children())]
    handles = [
        backbone.register_forward_hook(lambda *_: calls.append("call")) for backbone in backbones
    ]
    yield calls
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize(
    ("loss", "passes"), [("cross_entropy", 1), ("rpcl_cpdr", 1), ("ntd", 2), ("moon", 3)]
)
def test_each_reference_costs_one_pass_and_none_costs_nothing(loss: str, passes: int) -> None:
    module = seated(federate(*SMALL, f"loss={loss}"), client=0, round=1)
    batch = next(iter(module.data.local_batches(1, 16)))
    with backbone_calls(module) as calls:
        module.training_step(batch, 0)
    assert len(calls) == passes
    assert len(module.frozen_copies) == passes - 1


@pytest.mark.matrix
@pytest.mark.parametrize("head", ["linear", "etf", "prototype"])
@pytest.mark.parametrize(
    "model", [["model=mlp"], ["model=resnet10", "model.norm=batch"], ["model=mobilenet_v2"]]
)
def test_it_is_the_global_model_with_the_global_head(head: str, model: list[str]) -> None:
    small = [*SMALL, "data.subset=100", "clients.count=4", "clients.per_round=2"]
    adapted = ["head.missing=exclude"] if head == "etf" else []
    federation = federate(*small, "loss=ntd", f"head={head}", *adapted, *model)
    if model == ["model=mlp"]:
        federation.run_round(1)
    server = federation.global_model(2)
    x = next(federation.data.test.batches(16))[0]
    with torch.no_grad():
        z = server.backbone(x)
        logits = server.head(z)
    module = seated(federation, client=1, round=2)
    outputs = module.frozen_copies(x)["global"]
    assert torch.equal(outputs.z, z)
    assert torch.equal(outputs.logits, logits)
    assert logits.isfinite().all()
    if head == "etf":
        assert module.head(z).isneginf().any()  # its own head lacks classes


def test_another_client_starts_with_its_own_references() -> None:
    """Whatever a client left in them, the next one finds the model it starts from."""
    federation = federate(*SMALL, "loss=moon")
    list(federation.engine.train([0], federation.server.broadcast(1)))
    module = seated(federation, client=1, round=1)
    for name in ("global", "previous"):
        assert equal(
            {n: b.clone() for n, b in module.frozen_copies[name].named_buffers()}, module.weights
        )


@pytest.mark.slow
def test_engine_and_trainer_give_equal_bits() -> None:
    """Also with BatchNorm, which would tell if a Trainer's mode reached the references."""
    small = ["data.subset=100", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
    trained: list[Tensors] = []
    for by_trainer in (False, True):  # each in a federation of its own, as training leaves memories
        federation = federate(*small, "loss=moon", "model=resnet10", "model.norm=batch")
        list(federation.engine.train([1], federation.server.broadcast(1)))
        if by_trainer:
            module = seated(federation, client=1, round=2)
            fit_with_trainer(module, epochs=1, batch_size=16, clip=None)
        else:
            list(federation.engine.train([1], federation.server.broadcast(2)))
        trained.append(dict(federation.module.weights))
    assert equal(*trained)


# Stacked.


LOSSES = [
    "moon",
    "ntd",
    "logit_calibration",
    "restricted_softmax",
    "balanced_softmax",
    "prototype_align",
]


@pytest.mark.matrix
@pytest.mark.parametrize("head", ["linear", "etf"])
@pytest.mark.parametrize("loss", LOSSES)
def test_two_clients_stacked_give_what_each_gives(loss: str, head: str) -> None:
    federation = federate(*SMALL, f"loss={loss}", f"head={head}", "clients.per_round=6")
    federation.run_round(1)
    objective = MethodOf(federation.module, lambda batch: federation.module.objective(batch)[0])

    def value_and_slopes(parameters: Tensors, buffers: Tensors, batch: Batch) -> Any:
        def value(parameters: Tensors) -> Tensor:
            found: Tensor = functional_call(objective, (parameters, buffers), (batch,))
            return found

        return grad_and_value(value)(parameters)

    clients, apart = [], []
    for client in (0, 1):
        module = seated(federation, client, round=2)
        batch = next(iter(module.data.local_batches(2, 16)))
        draw = torch.Generator().manual_seed(client)
        parameters = {  # away from the global model, so that all terms have a gradient
            name: p.detach() + 0.1 * torch.randn(p.shape, generator=draw)
            for name, p in objective.named_parameters()
        }
        buffers = {name: buffer.clone() for name, buffer in objective.named_buffers()}
        clients.append((parameters, buffers, batch))
        apart.append(value_and_slopes(parameters, buffers, batch))
        for name, p in objective.named_parameters():
            p.detach().copy_(parameters[name])
        plain = objective(batch)
        plain.backward()
        torch.testing.assert_close(plain.detach(), apart[-1][1])
        for name, p in objective.named_parameters():
            torch.testing.assert_close(p.grad, apart[-1][0][name])
            p.grad = None

    together = vmap(value_and_slopes)(*(stack(*pair) for pair in zip(*clients, strict=True)))
    for k in (0, 1):
        torch.testing.assert_close(together[1][k], apart[k][1])
        for name, slopes in together[0].items():
            torch.testing.assert_close(slopes[k], apart[k][0][name], rtol=1e-4, atol=1e-5)


def stack(first: Any, second: Any) -> Any:
    """Two clients' tensors, stacked, in the structure that they share."""
    if isinstance(first, dict):
        return {name: stack(first[name], second[name]) for name in first}
    if isinstance(first, tuple):
        return tuple(stack(a, b) for a, b in zip(first, second, strict=True))
    return torch.stack([first, second])
