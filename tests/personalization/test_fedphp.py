"""FedPHP's private model against hand values, and in federations."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import equal, federate
from support.plain_loop import LR, SETTING, PlainLoop, assert_same
from support.small_federations import ONE_BY_ONE, assert_models_agree, copy, personalized, train

from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.personalization.fedphp import inherited_model, moved
from fedexp.personalization.own_model import own_model
from fedexp.testing import check_part

FEDPHP = ["algorithm=fedphp"]


def test_a_weight_moves_by_hand() -> None:
    """0.25 of 8 and 0.75 of 4; integers are the trained model's."""
    mu, private, trained = torch.tensor(0.25), torch.tensor([8.0]), torch.tensor([4.0])
    assert moved(private, trained, mu).tolist() == [5]
    assert moved(private.long(), trained.long(), mu).tolist() == [4]


def test_the_model_to_learn_from_is_the_shared_one_until_a_turn_has_ended() -> None:
    weights: Tensors = {
        "head.w": torch.tensor([1.0]),
        "personalization.own.head/w": torch.tensor([2.0]),
        "personalization.turns": torch.tensor(0.0),
    }
    assert own_model(weights).keys() == {"head.w"}
    assert inherited_model(weights)["head.w"].item() == 1
    weights["personalization.turns"] = torch.tensor(1.0)
    assert inherited_model(weights)["head.w"].item() == 2


@pytest.mark.parametrize(
    ("words", "mus"), [([], (0, 0.3, 0.6, 0.6)), (ONE_BY_ONE, (0, 0.6, 0.6, 0.6))]
)
def test_four_turns_by_hand(words: list[str], mus: tuple[float, ...]) -> None:
    """A client is expected to have 2 * 4 / 4 = 2 turns, or 1 if a server step takes one update."""
    federation = personalized("fedphp", "personalization.momentum=0.6", "rounds=4", *words)
    mean: Tensors = {}
    for round, mu in enumerate(mus, start=1):
        message = federation.server.broadcast(round)
        (update,) = federation.engine.train([1], message)
        for name, w in update.weights.items():
            mean[name] = mu * mean[name] + (1 - mu) * w if mu else w.clone()
        personal = federation.store.model(1)
        for name, value in mean.items():
            torch.testing.assert_close(personal[name], value)


def test_clients_that_are_held_out_take_no_turns() -> None:
    """Two of three clients train in each of six rounds: four turns, and not 2 * 6 / 4 = 3."""
    part: Any = personalized("fedphp", "clients.held_out=0.25", "rounds=6").module.personalization
    assert part._expected_turns == 4


def test_the_shared_model_is_fedavg_s_without_the_loss() -> None:
    size = ["clients.count=4", "clients.per_round=2", "data.subset=200"]
    one, other = (federate(*size, *own) for own in (["personalization=fedphp"], []))
    for round in (1, 2):
        one.run_round(round)
        other.run_round(round)
    assert equal(one.server.weights, other.server.weights)


def test_the_private_model_is_never_sent() -> None:
    size = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)
    federation = federate("clients.count=4", "clients.per_round=4", *FEDPHP)
    metrics = federation.run_round(1).metrics
    assert metrics["cost/download_bytes"] == metrics["cost/upload_bytes"] == 4 * size


def test_a_client_keeps_its_private_model_until_its_next_turn() -> None:
    federation = federate("clients.count=4", "clients.per_round=2", "data.subset=200", *FEDPHP)
    train(federation, 1)
    private = copy(federation.store.private(0) or {})
    assert all(name.startswith("personalization.") for name in private)
    train(federation, 2, (1, 2))
    assert equal(private, copy(federation.store.private(0) or {}))
    train(federation, 3)
    assert not equal(private, copy(federation.store.private(0) or {}))


@pytest.mark.parametrize("transfer", ["mmd", "kd"])
def test_three_rounds_by_plain_pytorch(transfer: str) -> None:
    """The model learns from labels and from the private model, which is moved after the turn."""
    words = [*FEDPHP, "loss.lam=0.4", f"loss.transfer={transfer}", "rounds=5"]
    federation, loop = federate(*SETTING, *words), PlainLoop(*words)
    model: Any = loop.federation.global_model(0)
    x, private = dict(loop.start), {}
    turns = dict.fromkeys(range(5), 0)

    def outputs(weights: Tensors, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        body = {n.removeprefix("backbone."): w for n, w in weights.items() if "backbone" in n}
        z = torch.func.functional_call(model.backbone, body, (inputs,))
        return z, F.linear(z, weights["head.linear.weight"], weights["head.linear.bias"])

    for round, cohort in loop.cohorts(3):
        trained = {}
        for k in cohort:
            y, p = x, private.get(k, x)
            for inputs, targets in loop.batches(round, k):
                y = {n: w.detach().requires_grad_() for n, w in y.items()}
                (z, logits), (own_z, own_logits) = (outputs(each, inputs) for each in (y, p))
                if transfer == "mmd":
                    learned = discrepancy(z, own_z)
                else:
                    soft = (own_logits / 4).softmax(dim=1)
                    learned = -(soft * logits.log_softmax(dim=1)).sum(dim=1).mean()
                loss = 0.6 * F.cross_entropy(logits, targets) + 0.4 * learned
                steps = torch.autograd.grad(loss, list(y.values()))
                y = {n: (y[n] - LR * g).detach() for n, g in zip(y, steps, strict=True)}
            mu = min(0.9 * turns[k] / 3, 0.9)  # 3 of 5 clients in each of 5 rounds
            private[k] = {n: mu * p[n] + (1 - mu) * y[n] for n in y}
            trained[k], turns[k] = y, turns[k] + 1
        x = loop.mean(trained, cohort, x)
        federation.run_round(round)
    assert_same(federation.server.weights, x)
    for k, p in private.items():
        found = copy(federation.store.model(k))
        assert_same({n: found[n] for n in p}, p)
    assert max(turns.values()) == 3


def discrepancy(z: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The mean over all pairs of five Gaussian kernels, by the squares of each two rows."""
    rows, count = torch.cat((z, other)), len(z)
    squares = (rows[:, None] - rows[None, :]).square().sum(dim=2)
    width = squares.detach().sum() / (4 * count**2 - 2 * count) + 1e-8
    kernels = sum(torch.exp(-squares / (width * 2.0**i)) for i in range(-2, 3))
    own, others = kernels[:count, :count], kernels[count:, count:]
    return (own + others - kernels[:count, count:] - kernels[count:, :count]).mean()


def test_a_classifier_of_averaged_statistics_is_refused() -> None:
    """The private model would have the means of past models and the classifier of the last one."""
    with pytest.raises(InputError, match=r"^head: computes its classifier from class means"):
        federate("personalization=fedphp", "head=gaussian")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
@pytest.mark.parametrize("transfer", ["mmd", "kd"])
def test_every_engine_gives_the_same_models(engine: str, transfer: str) -> None:
    words = [*FEDPHP, f"loss.transfer={transfer}", "loss.lam=0.5"]
    assert_models_agree(engine, words, tolerance=1e-4)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=fedphp", "loss.transfer=kd")
    check_part("algorithm=fedphp", "head=prototype", "local.grad_clip=10")
