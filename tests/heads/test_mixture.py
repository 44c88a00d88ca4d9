"""FedEM: the mixture, its loss, and whole rounds beside a plain loop."""

import pytest
import torch
from support.federations import federate
from torch import Tensor, nn

from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.heads.mixture import Mixture, losses_of, responsibilities
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part

SMALL = ["clients.count=4", "clients.per_round=2", "data.subset=200", "local.epochs=1"]
FEDEM = [*SMALL, "algorithm=fedem", "partition.beta=0.1"]
ONE_STEP = ["local.batch_size=1000", "optimizer.momentum=0", "optimizer.weight_decay=0"]
RATE = 0.02
COMPONENT = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)  # bytes in float32
LAYERS = ("backbone.members.{}.1.0", "backbone.members.{}.1.2", "head.members.{}")


def hand_made() -> Mixture:
    """Two components on one feature each; W_1 = (ln 3, 0), W_2 = (0, ln 9)."""
    head = Mixture(1, 2, components=2, bias=False)
    with torch.no_grad():
        for member, rows in zip(head.members, ([3.0, 1.0], [1.0, 9.0]), strict=True):
            member.get_parameter("weight").copy_(torch.tensor(rows).log()[:, None])
    head.shares.copy_(torch.tensor([0.25, 0.75]))
    return head


def test_probabilities_by_hand() -> None:
    """p_1 = (3/4, 1/4) and p_2 = (1/10, 9/10); z = 0 gives both classes 1/2."""
    head = hand_made()
    found = head(torch.tensor([[1.0, 1.0], [1.0, 0.0]])).exp()
    expected = [[0.25 * 0.75 + 0.75 * 0.1, 0.25 * 0.25 + 0.75 * 0.9], [0.5625, 0.4375]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_responsibilities_by_hand() -> None:
    """For class 0: 0.25 * 0.75 to 0.75 * 0.1, which is 5 to 2."""
    head = hand_made()
    losses = losses_of(head.log_probabilities(torch.tensor([[1.0, 1.0]])), torch.tensor([0]))
    q = responsibilities(losses, head.shares)
    torch.testing.assert_close(q, torch.tensor([[5 / 7, 2 / 7]]))
    none = responsibilities(losses, torch.tensor([0.0, 1.0]))
    assert none.tolist() == [[0, 1]]


def test_a_component_without_weight_gives_finite_gradients() -> None:
    head = hand_made()
    head.shares.copy_(torch.tensor([1.0, 0.0]))
    z = torch.ones(1, 2, requires_grad=True)
    head(z)[0, 0].backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert z.grad[0, 1] == 0


def test_cross_entropy_of_the_mixture_has_the_gradient_with_present_responsibilities() -> None:
    """d/dz -log sum_m pi_m p_m = sum_m q_m d/dz l_m (an identity of EM)."""
    head, labels = hand_made(), torch.tensor([1, 0, 1])
    z = torch.tensor([[1.0, 2.0], [0.5, -1.0], [-1.0, 0.3]], requires_grad=True)
    (mixed,) = torch.autograd.grad(nn.functional.cross_entropy(head(z), labels), z)
    losses = losses_of(head.log_probabilities(z), labels)
    q = responsibilities(losses, head.shares).detach()
    (weighted,) = torch.autograd.grad((q * losses).sum(dim=1).mean(), z)
    torch.testing.assert_close(mixed, weighted)


def plain_logits(weights: Tensors, component: int, inputs: Tensor) -> Tensor:
    """The logits of one component by hand."""
    z = inputs.flatten(1)
    for layer in LAYERS:
        name = layer.format(component)
        z = nn.functional.linear(z, weights[f"{name}.weight"], weights[f"{name}.bias"])
        z = z if name.startswith("head") else z.relu()
    return z


def plain_losses(weights: Tensors, inputs: Tensor, targets: Tensor) -> Tensor:
    """[n, M] cross-entropies of the components."""
    each = [
        nn.functional.cross_entropy(plain_logits(weights, m, inputs), targets, reduction="none")
        for m in range(3)
    ]
    return torch.stack(each, dim=1)


def plain_step(
    federation: Federation, client: int, start: Tensors, pi: Tensor, steps: int
) -> tuple[Tensors, Tensor]:
    """The client's components after gradient steps with fixed responsibilities, and its pi."""
    (batch,) = federation.data.clients[client].batches(1000)
    weights = {name: value.detach().clone().requires_grad_() for name, value in start.items()}
    with torch.no_grad():
        q = pi * (-plain_losses(weights, *batch)).exp()
        q /= q.sum(dim=1, keepdim=True)
    for _ in range(steps):
        loss = (q * plain_losses(weights, *batch)).sum(dim=1).mean()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        weights = {
            name: (value - RATE * g).detach().requires_grad_()
            for (name, value), g in zip(weights.items(), gradients, strict=True)
        }
    return {name: value.detach() for name, value in weights.items()}, q.mean(dim=0)


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_rounds_by_a_plain_loop(engine: str) -> None:
    """Two steps a round: the responsibilities must stay those of the received components."""
    options = [f"engine={engine}", "local.epochs=2", "optimizer.lr=0.02"]
    federation = federate(*FEDEM, *ONE_STEP, *options)
    expected = {name: value.clone() for name, value in federation.server.weights.items()}
    pi = {client: torch.full((3,), 1 / 3) for client in range(4)}
    sizes = federation.data.sizes.tolist()
    for round, cohort in ((1, [0, 1, 2]), (2, [1, 3]), (3, [0, 1])):
        trained = {}
        for client in cohort:
            trained[client], pi[client] = plain_step(federation, client, expected, pi[client], 2)
        total = sum(sizes[client] for client in cohort)
        expected = {
            name: sum((sizes[c] / total * trained[c][name] for c in cohort), torch.zeros(()))
            for name in expected
        }
        for update in federation.engine.train(cohort, federation.server.broadcast(round)):
            federation.server.add(update)
        federation.server.step()
        for name, value in expected.items():
            torch.testing.assert_close(
                federation.server.weights[name], value, rtol=0, atol=1e-6, msg=name
            )
    for client, own in pi.items():
        kept = federation.store.memory(client, "head")["shares"]
        torch.testing.assert_close(kept, own, rtol=0, atol=1e-5)
    assert max((own - 1 / 3).abs().max() for own in pi.values()) > 0.01

    message = federation.server.broadcast(3)
    inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
    scores = dict(Scoring(federation.engine).score_personal(message))
    assert scores.keys() == pi.keys()
    for client, found in scores.items():
        mixed = sum(
            share * plain_logits(expected, m, inputs).softmax(dim=1)
            for m, share in enumerate(pi[client])
        )
        right = torch.as_tensor(mixed).argmax(dim=1) == federation.data.test.labels
        assert (found.correct == right).float().mean() > 0.99  # up to rounding


def test_one_component_is_fedavg() -> None:
    one = federate(*FEDEM, "head.components=1")
    plain = federate(*SMALL, "partition.beta=0.1")
    for round in (1, 2):
        for federation in (one, plain):
            federation.run_round(round)
    names = {
        "head.members.0.weight": "head.linear.weight",
        "head.members.0.bias": "head.linear.bias",
    }
    for name, value in one.server.weights.items():
        wanted = plain.server.weights[names.get(name, name)]
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-6)


def test_all_components_travel_both_ways_and_the_weights_stay() -> None:
    metrics = federate(*FEDEM).run_round(1).metrics
    assert metrics["cost/download_bytes"] == metrics["cost/upload_bytes"] == 2 * 3 * COMPONENT
    assert metrics["cost/client_memory_bytes"] == 4 * 3  # pi_k


def test_components_start_from_different_weights() -> None:
    weights = federate(*FEDEM).server.weights
    for layer in LAYERS:
        one, other = (weights[f"{layer.format(m)}.weight"] for m in (0, 1))
        assert not torch.equal(one, other)
    first = federate(*SMALL).server.weights["backbone.1.0.weight"]
    assert torch.equal(weights["backbone.members.0.1.0.weight"], first)


def test_the_global_model_weighs_all_components_the_same() -> None:
    federation = federate(*FEDEM)
    federation.run_round(1)
    module = federation.global_model(1)
    inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
    weights = federation.server.weights
    mean = torch.stack([plain_logits(weights, m, inputs).softmax(dim=1) for m in range(3)]).mean(0)
    torch.testing.assert_close(module(inputs).exp(), mean, rtol=1e-4, atol=1e-6)


def test_the_loss_ignores_padding() -> None:
    federation = federate(*FEDEM)
    with federation.store.open(0) as state:
        module = federation.engine.begin(0, federation.server.broadcast(1), state)
    inputs, targets = next(iter(federation.data.clients[0].batches(6)))
    padded = module.objective((inputs, targets), torch.tensor([1.0, 1, 1, 1, 0, 0]))[0]
    torch.testing.assert_close(padded, module.objective((inputs[:4], targets[:4]))[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        ["regularizer=proximal", "sampler=power_of_choice", "aggregator=uniform"],
        ["gradient=sam", "loss=cross_entropy"],
        ["algorithm=ifca", "head=mixture", "loss=mixture", "head.components=2"],
        ["personalization=ditto", "regularizer=control_variates"],
    ],
)
def test_it_runs_with_other_sockets(method: list[str]) -> None:
    if not any(each.startswith("algorithm=") for each in method):
        method = ["algorithm=fedem", *method]
    federation = federate(*SMALL, *method)
    for round in (1, 2):
        assert 0 < federation.run_round(round).metrics["train/loss"] < 100


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss=mixture"], r"^loss=mixture: needs a mixture of models; use head=mixture$"),
        (["head=mixture", "head.components=0"], r"^head\.components"),
    ],
)
def test_refusals(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        federate(*overrides)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["mixture", "cross_entropy"])
def test_the_contract(loss: str) -> None:
    check_part("algorithm=fedem", "partition.beta=0.1", f"loss={loss}", tolerance=1e-5)
