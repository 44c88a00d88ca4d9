from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, federate
from support.state_files import through_a_file

from fedexp.core.messages import PartMessage
from fedexp.core.part import Clients, Model, Setting
from fedexp.heads.adaptation import adaptation
from fedexp.heads.adapted_linear import AdaptedLinear
from fedexp.measures.scoring.scoring import Scoring

SMALL = ["clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=400"]
COUNTS = torch.tensor([6, 2, 0, 0])
NOTHING = PartMessage(1, {})


def adapted(missing: str) -> AdaptedLinear:
    """A head at the start of local training of the only client."""
    head = AdaptedLinear(5, 4, phi="linear", phi_normalization="client", missing=missing)  # type: ignore[arg-type]
    head.setup(Setting(0, 1, 4, 5, 1, 1, Clients.of(COUNTS.unsqueeze(0)), Model({})))
    client: Any = SimpleNamespace(data=SimpleNamespace(class_counts=COUNTS))
    head.begin(client, NOTHING, {})
    return head


def test_logits_by_hand_in_training_and_globally() -> None:
    head, z = adapted("zero_logit"), torch.randn(6, 5)
    phi = [4 * 6 / 8, 4 * 2 / 8, 0.0, 0.0]
    weight = head.linear.weight
    for training in (True, False):
        logits = head.train(training)(z)
        for i in range(6):
            plain = [sum((weight[c] * z[i]).tolist()) for c in range(4)]
            expected = [factor * each for factor, each in zip(phi, plain, strict=True)]
            assert logits[i].tolist() == pytest.approx(expected, abs=1e-5)
    head.receive(NOTHING)
    torch.testing.assert_close(head(z), z @ weight.T)


def test_a_class_that_the_client_lacks_gives_its_vector_no_gradient() -> None:
    head, z = adapted("zero_logit"), torch.randn(6, 5)
    targets = torch.tensor([0, 1, 0, 0, 1, 0])
    F.cross_entropy(head(z), targets).backward()
    gradient = head.linear.weight.grad
    assert gradient is not None
    # d loss / d W_c = Phi_c mean_i (p_ic - [y_i = c]) z_i
    shares = torch.softmax(head(z), dim=1).detach() - F.one_hot(targets, 4)
    torch.testing.assert_close(gradient, torch.diag(head.phi) @ (shares.T @ z) / 6)
    assert (gradient[2:] == 0).all()
    assert gradient[:2].abs().min() > 0


def test_missing_classes_can_be_left_out() -> None:
    head, z = adapted("exclude"), torch.randn(6, 5)
    assert head(z)[:, 2:].isneginf().all()
    assert head(z)[:, :2].isfinite().all()


def test_the_classifier_is_sent_and_the_adaptation_is_not() -> None:
    """As many bytes as FedAvg without a bias; Phi belongs to the personal model."""
    federation = federate("algorithm=fedla", *SMALL)
    plain = federate("algorithm=fedavg", "head=linear_nobias", *SMALL)
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([0], message)
    assert {n for n in update.weights if n.startswith("head.")} == {"head.linear.weight"}
    assert message.nbytes == update.nbytes == plain.server.broadcast(1).nbytes
    model = federation.store.model(0)
    counts = federation.data.class_counts[0]
    torch.testing.assert_close(model["head.phi"], adaptation(counts))


def test_personal_models_keep_phi_and_the_global_one_has_none() -> None:
    federation = federate("algorithm=fedla", *SMALL, "partition.beta=0.1")
    federation.run_round(1)
    message = federation.server.broadcast(1)
    head: Any = federation.module.head
    ((inputs, labels),) = federation.data.test.batches(len(federation.data.test))
    scored = []
    for client, predictions in Scoring(federation.engine).score_personal(message):
        scored.append(client)
        weights = federation.store.model(client)
        phi = adaptation(federation.data.class_counts[client])
        with torch.no_grad():
            z = federation.module.backbone(inputs)
        expected = (phi * (z @ weights["head.linear.weight"].T)).argmax(dim=1) == labels
        assert torch.equal(predictions.correct, expected)
    assert scored == sorted(federation.sampler.select(1))
    Scoring(federation.engine).score_global(message)
    assert torch.equal(head.phi, torch.ones(10))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_engine_agrees(engine, ["algorithm=fedla", *SMALL], rounds=2)


def test_it_goes_on_after_a_restart() -> None:
    whole = federate("algorithm=fedla", *SMALL)
    whole.run_round(1)
    resumed = federate("algorithm=fedla", *SMALL)
    resumed.server.load_state_dict(through_a_file(whole.server.state_dict()))
    for federation in (whole, resumed):
        federation.run_round(2)
    for name, weight in whole.server.weights.items():
        assert torch.equal(weight, resumed.server.weights[name])
