"""MOCHA's penalty: relations by hand, and the server's messages against plain PyTorch."""

import pytest
import torch
from support.federations import federate, take_step
from support.second_model import gradients_of_steps
from support.small_federations import SMALL, assert_models_agree, copy, train
from torch import Tensor

from fedexp.core.messages import Message, PartMessage, PartUpdate, Tensors
from fedexp.core.named_tensors import with_prefix
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.regularizers.multitask import MultiTask, learned_relation, mean_relation
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part


def test_the_mean_relation_is_the_distance_from_the_mean() -> None:
    """For the models 1, 2 and 6 the squares are 4, 1 and 9."""
    omega = mean_relation(3)
    third = 1 / 3
    assert omega[0].tolist() == pytest.approx([2 * third, -third, -third])
    w = torch.tensor([1.0, 2.0, 6.0]).double()
    assert (w @ omega @ w).item() == pytest.approx(14)


def test_the_learned_relation_by_hand() -> None:
    """The models (3, 0) and (0, 1) have the root diag(3, 1), whose inverse times 4 is Omega."""
    omega = learned_relation(torch.diag(torch.tensor([9.0, 1.0])).double())
    torch.testing.assert_close(omega, torch.diag(torch.tensor([4 / 3, 4.0])).double())


def test_the_learned_relation_inverts_the_matrix_root() -> None:
    w = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    products = w.T @ w
    omega = learned_relation(products)
    root = torch.linalg.inv(omega) * torch.linalg.eigvalsh(products).sqrt().sum()
    torch.testing.assert_close(root @ root, products)


def test_equal_models_have_a_finite_relation() -> None:
    omega = learned_relation(torch.full((3, 3), 2.0).double())
    assert omega.isfinite().all()
    assert torch.linalg.eigvalsh(omega).min() > 0


def part(relation: str = "learned") -> MultiTask:
    counts = torch.ones(4, 2, dtype=torch.int64)
    made = MultiTask(0.5, relation)  # type: ignore[arg-type]
    shapes = {"w": torch.Size([2])}
    made.setup(Setting(0, 5, 2, 1, 4, 4, Clients.of(counts), Model(shapes)))
    return made


def update(client: int, *values: float) -> PartUpdate:
    return PartUpdate(client, 1, {}, {"w": torch.tensor(values)})


def center(made: MultiTask, client: int) -> tuple[list[float], float]:
    extras = made.extras_to(client, PartMessage(2, {}, {}))
    return extras["center/w"].tolist(), extras["strength"].item()


def test_a_message_by_hand() -> None:
    made = part("mean")
    made.aggregate([update(0, 1, 0), update(1, 3, 6), update(3, 5, 0)])
    others, strength = center(made, 0)
    assert others == pytest.approx([4, 3])
    assert strength == pytest.approx(2 / 3)
    assert made.extras_to(2, PartMessage(2, {}, {})) == {}


def test_a_client_alone_gets_nothing() -> None:
    made = part()
    made.aggregate([update(0, 1, 2)])
    assert made.extras_to(0, PartMessage(2, {}, {})) == {}


def test_the_products_follow_the_latest_models() -> None:
    made = part()
    made.aggregate([update(0, 1, 0), update(1, 3, 4)])
    made.aggregate([update(1, 2, 2), update(3, 0, 1)])
    expected = [[1, 2, 0, 0], [2, 8, 0, 2], [0, 0, 0, 0], [0, 2, 0, 1]]
    assert made.products.tolist() == expected
    assert made.store is not None
    assert len(made.store) == 3


def test_the_penalty_s_gradient_is_that_of_the_trace() -> None:
    """The others' models are constants: lam / 2 tr(W Omega W^T) by autograd."""
    made = part()
    made.aggregate([update(0, 1, 0), update(1, 3, 4), update(3, -1, 2)])
    w = torch.tensor([0.5, -2.0], requires_grad=True)
    others = torch.tensor([[3.0, 4.0], [-1.0, 2.0]])
    omega = learned_relation(made.products[[0, 1, 3]][:, [0, 1, 3]]).float()
    rows = torch.cat([w.unsqueeze(0), others])
    whole = 0.25 * torch.trace(rows.T @ omega @ rows)
    (expected,) = torch.autograd.grad(whole, [w])
    sent = made.extras_to(0, PartMessage(2, {}, {}))
    made.center.fill(with_prefix("center", sent))
    made.strength.copy_(sent["strength"])
    penalty = made([("w", w)])
    assert isinstance(penalty, Tensor)
    (found,) = torch.autograd.grad(penalty, [w])
    torch.testing.assert_close(found, expected)


def federation_of(*words: str) -> Federation:
    return federate(*SMALL, "algorithm=fedmtl", *words)


def flat(model: Tensors) -> Tensor:
    return torch.cat([model[name].flatten() for name in sorted(model)]).double()


def extras(message: Message, client: int) -> Tensors:
    return message.to_client(client).extras.get("regularizer", {})


def test_a_round_by_plain_pytorch() -> None:
    """An Omega step as in the authors' code, and a client's gradient step on the objective."""
    one_step = ["local.batch_size=1000", "optimizer.momentum=0", "optimizer.weight_decay=0"]
    federation = federation_of(*one_step, "regularizer.lam=0.05", "optimizer.lr=0.02")
    train(federation, 1, (0, 1, 3))
    assert extras(federation.server.broadcast(1), 2) == {}
    models = {client: copy(federation.store.model(client)) for client in (0, 1, 3)}
    w = torch.stack([flat(model) for model in models.values()], dim=1)
    values, vectors = torch.linalg.eigh(w.T @ w)
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    omega = torch.linalg.inv(root / torch.trace(root))
    message = federation.server.broadcast(2)
    sent = extras(message, 1)
    pull = -(omega[1, 0] * w[:, 0] + omega[1, 2] * w[:, 2]) / omega[1, 1]
    torch.testing.assert_close(flat(with_prefix("center", sent)).float(), pull.float())
    assert sent["strength"].item() == pytest.approx(omega[1, 1].item(), rel=1e-4)
    module = federation.engine.resources.load_global(message)
    module.load(models[1])
    ((inputs, targets),) = federation.data.clients[1].batches(1000)
    parameters = {name: module.get_parameter(name) for name in models[1]}
    loss = torch.nn.functional.cross_entropy(module.head(module.backbone(inputs)), targets)
    slopes = dict(
        zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True)
    )
    expected = w[:, 1] - 0.02 * (flat(slopes) + 0.05 * w @ omega[:, 1])
    take_step(federation.server, federation.engine.train([1], message))
    torch.testing.assert_close(flat(federation.store.model(1)), expected, atol=1e-5, rtol=1e-4)


def relation(models: dict[int, Tensors]) -> Tensor:
    """Omega, the inverse of the root of W^T W with trace 1."""
    w = torch.stack([flat(model) for model in models.values()], dim=1)
    values, vectors = torch.linalg.eigh(w.T @ w)
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    return torch.linalg.inv(root / torch.trace(root))


def test_a_turn_of_several_steps_by_plain_pytorch() -> None:
    """Each step follows the gradient of the loss and of lam / 2 tr(W Omega W^T) at its weights.

    Omega and the other models stay; the next Omega is that of the trained model.
    """
    federation = federation_of("regularizer.lam=0.05", "local.epochs=2")
    train(federation, 1, (0, 1, 2, 3))
    models = {client: copy(federation.store.model(client)) for client in range(4)}
    row = relation(models)[1].tolist()
    w = dict(models[1])
    speed = {name: torch.zeros_like(value) for name, value in w.items()}
    for gradient in gradients_of_steps(federation, 2, 16, 2, client=1):
        slopes = gradient(w)
        for name, value in w.items():
            column = [value if j == 1 else models[j][name] for j in range(4)]
            pull = sum(element * each for element, each in zip(row, column, strict=True))
            speed[name] = 0.9 * speed[name] + slopes[name] + 0.05 * pull + 1e-5 * value
        w = {name: value - 0.02 * speed[name] for name, value in w.items()}
    train(federation, 2, (1,))
    trained = federation.store.model(1)
    for name, value in w.items():
        torch.testing.assert_close(trained[name], value, atol=1e-5, rtol=1e-4)
    following = relation(models | {1: w})
    for client in (0, 1):
        strength = extras(federation.server.broadcast(3), client)["strength"].item()
        assert strength == pytest.approx(following[client, client].item(), rel=1e-4)


def test_the_bytes() -> None:
    """A client sends its model; from its second turn on it gets a model and a number."""
    federation = federation_of("clients.per_round=4")
    size = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)
    for expected in (0, 4 * (size + 4)):
        metrics = federation.run_round(1 + bool(expected)).metrics
        assert metrics["cost/download_bytes"] == expected
        assert metrics["cost/upload_bytes"] == 4 * size


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_every_engine_gives_the_same_models(engine: str) -> None:
    cohorts = ((0, 1, 3), (1, 2), (1, 3))
    assert_models_agree(engine, ["algorithm=fedmtl"], cohorts)


def test_a_shared_model_is_refused() -> None:
    with pytest.raises(InputError, match="relates models that clients keep; use personalization=l"):
        federate("regularizer=multitask")


def test_different_networks_are_refused() -> None:
    with pytest.raises(InputError, match="relates models of one network; with this model use"):
        federation_of("model=mixed")


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=fedmtl", "regularizer.relation=mean", "head=prototype")
