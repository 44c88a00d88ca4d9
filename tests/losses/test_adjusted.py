import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from torch import Tensor

from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.losses.adjusted import Adjusted, BalancedSoftmax, LogitCalibration, RestrictedSoftmax
from fedexp.measures.scoring.scoring import Scoring

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=1"]
COUNTS = torch.tensor([16, 0, 81, 1])
LOSSES = {
    "logit_calibration": lambda: LogitCalibration(1.0),
    "restricted_softmax": lambda: RestrictedSoftmax(0.5, "absent"),
    "balanced_softmax": lambda: BalancedSoftmax(),
}


def begun(loss: Adjusted, counts: Tensor = COUNTS) -> Adjusted:
    """The loss at a client with these class counts."""
    loss.setup(Setting(0, 1, len(counts), 3, 1, 1, Clients.of(counts.unsqueeze(0)), Model({})))
    client: Any = SimpleNamespace(data=SimpleNamespace(class_counts=counts), is_personal=False)
    loss.begin(client, PartMessage(1, {}), {})
    return loss


def value_and_slopes(loss: Adjusted, logits: list[float], label: int) -> tuple[float, list[float]]:
    given = torch.tensor([logits], requires_grad=True)
    found = loss(Forward(torch.zeros(1, 3), given, torch.tensor([label])))
    return found.item(), torch.autograd.grad(found, given)[0][0].tolist()


def softmax(logits: list[float]) -> list[float]:
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


# The adjusted logits of [1, 2, 3, 4] by hand, and the factor of each class's gradient.
LOGITS = [1.0, 2.0, 3.0, 4.0]
BY_HAND = {
    # tau n^(-1/4) is 1/2, absent, 1/3, 1
    "logit_calibration": ([0.5, -math.inf, 3 - 1 / 3, 3.0], [1, 1, 1, 1]),
    "restricted_softmax": ([1.0, 1.0, 3.0, 4.0], [1, 0.5, 1, 1]),
    "balanced_softmax": (
        [1 + math.log(16 / 98), -math.inf, 3 + math.log(81 / 98), 4 + math.log(1 / 98)],
        [1, 1, 1, 1],
    ),
}


@pytest.mark.parametrize("label", [0, 2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_by_hand(name: str, label: int) -> None:
    adjusted, factor = BY_HAND[name]
    p = softmax(adjusted)
    value, slopes = value_and_slopes(begun(LOSSES[name]()), LOGITS, label)
    assert value == pytest.approx(-math.log(p[label]), rel=1e-5)
    expected = [f * (q - (c == label)) for c, (f, q) in enumerate(zip(factor, p, strict=True))]
    assert slopes == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["logit_calibration", "balanced_softmax"])
def test_absent_classes_get_no_gradient(name: str) -> None:
    assert value_and_slopes(begun(LOSSES[name]()), LOGITS, 0)[1][1] == 0


@pytest.mark.parametrize(
    ("loss", "same"),
    [
        (RestrictedSoftmax(1.0, "absent"), [0, 1, 2, 3]),
        (LogitCalibration(0.0), [0, 2, 3]),  # absent classes are left out whatever tau is
    ],
)
def test_values_at_which_it_is_cross_entropy(loss: Adjusted, same: list[int]) -> None:
    logits, y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0] * 5)
    found = begun(loss)(Forward(torch.zeros(5, 3), logits, y))
    torch.testing.assert_close(found, F.cross_entropy(logits[:, same], y))


def test_shares_scale_every_class_by_hand() -> None:
    """n = 16, 0, 81, 1 and alpha = 0.4: 0.4 + 0.6 n / 81."""
    loss = begun(RestrictedSoftmax(0.4, "shares"))
    factor = [0.4 + 0.6 * 16 / 81, 0.4, 1.0, 0.4 + 0.6 / 81]
    p = softmax([f * x for f, x in zip(factor, LOGITS, strict=True)])
    for step in (0, 3):
        given = torch.tensor([LOGITS], requires_grad=True)
        found = loss(Forward(torch.zeros(1, 3), given, torch.tensor([0]), step=step))
        assert found.item() == pytest.approx(-math.log(p[0]), rel=1e-5)
        slopes = torch.autograd.grad(found, given)[0][0].tolist()
        assert slopes == pytest.approx(
            [f * (q - (c == 0)) for c, (f, q) in enumerate(zip(factor, p, strict=True))], abs=1e-6
        )


def test_released_factors_are_fed_back_in_every_step() -> None:
    """The released loop: d <- d / max d; d <- (1 - alpha) d + alpha, beginning with the shares."""
    loss, alpha = begun(RestrictedSoftmax(0.3, "released")), 0.3
    d = [16 / 98, 0.0, 81 / 98, 1 / 98]
    for step in range(6):
        d = [each / max(d) for each in d]
        d = [(1 - alpha) * each + alpha for each in d]
        p = softmax([f * x for f, x in zip(d, LOGITS, strict=True)])
        for number in (step, torch.tensor(step)):
            batch = Forward(
                torch.zeros(1, 3), torch.tensor([LOGITS]), torch.tensor([3]), step=number
            )
            assert loss(batch).item() == pytest.approx(-math.log(p[3]), rel=1e-5)
    loss.receive(PartMessage(2, {}))
    batch = Forward(torch.zeros(1, 3), torch.tensor([LOGITS]), torch.tensor([3]), step=2)
    assert loss(batch).item() == pytest.approx(-math.log(softmax(LOGITS)[3]), rel=1e-5)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("scaling", ["shares", "released"])
def test_scaling_counts_the_steps_of_each_client(scaling: str, engine: str) -> None:
    options = ["loss=restricted_softmax", f"loss.scaling={scaling}", "partition.beta=0.1"]
    federation = federate(*SMALL, *options, f"engine={engine}")
    serial = federate(*SMALL, *options)
    message = serial.server.broadcast(1)
    found = {each.client: each.weights for each in federation.engine.train([0, 1, 2], message)}
    for each in serial.engine.train([0, 1, 2], message):
        for name, weight in each.weights.items():
            torch.testing.assert_close(found[each.client][name], weight, atol=1e-5, rtol=1e-4)
    absent = federate(*SMALL, "loss=restricted_softmax", "partition.beta=0.1")
    (other,) = absent.engine.train([0], message)
    assert not torch.allclose(other.weights["head.linear.weight"], found[0]["head.linear.weight"])


@pytest.mark.parametrize("name", ["logit_calibration", "balanced_softmax"])
def test_equal_counts_change_nothing(name: str) -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 2, 3, 3])
    found = begun(LOSSES[name](), torch.full((4,), 7))(Forward(torch.zeros(5, 3), logits, y))
    torch.testing.assert_close(found, F.cross_entropy(logits, y))


@pytest.mark.parametrize("name", LOSSES)
def test_a_client_of_one_class(name: str) -> None:
    value, slopes = value_and_slopes(begun(LOSSES[name](), torch.tensor([0, 9, 0])), [3.0, 1, 2], 1)
    if name == "restricted_softmax":
        p = softmax([1.5, 1, 1])
        assert value == pytest.approx(-math.log(p[1]), rel=1e-5)
    else:
        assert value == 0
        assert slopes == [0, 0, 0]


@pytest.mark.parametrize(
    "loss", [*(make() for make in LOSSES.values()), RestrictedSoftmax(0.0, "absent")]
)
def test_a_class_that_the_head_leaves_out_stays_left_out(loss: Adjusted) -> None:
    value, slopes = value_and_slopes(begun(loss), [1.0, -math.inf, 2.0, 3.0], 2)
    assert math.isfinite(value)
    assert slopes[1] == 0
    assert sum(slopes) == pytest.approx(0, abs=1e-6)
    assert all(math.isfinite(slope) for slope in slopes)


@pytest.mark.parametrize("name", LOSSES)
def test_the_global_model_is_not_adjusted(name: str) -> None:
    loss = begun(LOSSES[name]())
    assert value_and_slopes(loss, LOGITS, 0)[0] != pytest.approx(-math.log(softmax(LOGITS)[0]))
    loss.receive(PartMessage(2, {}))
    value, _ = value_and_slopes(loss, LOGITS, 0)
    assert value == pytest.approx(-math.log(softmax(LOGITS)[0]), rel=1e-5)
    assert value_and_slopes(loss, LOGITS, 1)[0] < math.inf


@pytest.mark.parametrize("name", LOSSES)
def test_its_buffers_are_not_part_of_the_model(name: str) -> None:
    loss = begun(LOSSES[name]())
    assert loss.state_dict() == {}
    assert {name for name, _ in loss.named_buffers()} == {"scale", "shift"}


@pytest.mark.parametrize("name", LOSSES)
def test_evaluation_has_plain_logits(name: str) -> None:
    """Its personal model and the global one are scored right after a client's adjusted training."""
    federation = federate(*SMALL, f"loss={name}")
    message = federation.server.broadcast(1)
    list(federation.engine.train([0], message))
    module, test = federation.module, federation.data.test
    x = test.inputs[torch.arange(len(test))]
    ((_, personal),) = Scoring(federation.engine).score_personal(message)
    with torch.no_grad():
        logits = module(x)
    assert personal.loss == pytest.approx(F.cross_entropy(logits, test.labels).item(), rel=1e-5)
    assert torch.equal(personal.correct, logits.argmax(1) == test.labels)
    glob = Scoring(federation.engine).score_global(message)
    with torch.no_grad():
        logits = module(x)
    assert glob.loss == pytest.approx(F.cross_entropy(logits, test.labels).item(), rel=1e-5)


def test_clients_train_with_their_own_counts() -> None:
    federation = federate(*SMALL, "loss=balanced_softmax")
    loss: Any = federation.module.loss
    for client in (0, 1):
        list(federation.engine.train([client], federation.server.broadcast(1)))
        counts = federation.data.clients[client].class_counts.double()
        torch.testing.assert_close(loss.shift.double(), (counts / counts.sum()).log())


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=fedlc", "loss.tau=-1"],
        ["algorithm=fedrs", "loss.alpha=-0.1"],
        ["algorithm=fedrs", "loss.alpha=1.5"],
    ],
)
def test_wrong_values_are_named(overrides: list[str]) -> None:
    with pytest.raises(InputError, match=overrides[1]):
        federate(*SMALL, *overrides)
