"""What every personalization must keep to."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import equal, take_step
from support.partner_options import PARTNERS
from support.small_federations import BATCHNORM, WITH_GLOBAL, alike, copy, personal, personalized

from fedexp.cli.command import config_folder
from fedexp.core.sockets import Phase
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation

OPTIONS = sorted(path.stem for path in Path(config_folder(), "personalization").glob("*.yaml"))
HEAD = 4 * (64 * 10 + 10)  # bytes in float32
BODY = 4 * (64 * 128 + 128 + 128 * 64 + 64)
BYTES = {
    "none": BODY + HEAD,
    "finetune": BODY + HEAD,
    "local": 0,
    "fedper": BODY,
    "fedrep": BODY,
    "fedbabu": BODY,
    "fedrod": BODY + HEAD,
    "ditto": BODY + HEAD,
    "fedala": BODY + HEAD,
    "knn_per": BODY + HEAD,
    "feddbe": BODY + HEAD,
    "prototypes_only": 0,
}
CLASS_MEANS = 4 * 10 * 64
COUNTS = {torch.int64: 8 * 10, torch.float32: 4 * 10}


@pytest.mark.parametrize("personalization", BYTES)
def test_private_weights_are_not_sent(personalization: str) -> None:
    federation = personalized(personalization)
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([1], message)
    assert message.nbytes == BYTES[personalization]
    assert update.weights.keys() == message.weights.keys()
    reported = 0
    if personalization == "feddbe":
        reported = 4 * 64  # the mean feature
    if personalization == "prototypes_only":
        reported = CLASS_MEANS + COUNTS[update.extras["loss"]["counts"].dtype]
    assert update.nbytes == BYTES[personalization] + reported


def with_partners(personalization: str, *overrides: str) -> Federation:
    """A small federation with this personalization and the other options that it needs."""
    partners = PARTNERS.get(f"personalization={personalization}", [])
    cycles = ["personalization.cycles=1"] if personalization == "fedetf" else []  # 20 take a minute
    return personalized(personalization, *partners, *cycles, *overrides)


@pytest.mark.parametrize("personalization", OPTIONS)
def test_a_client_that_never_trained_has_no_personal_metric(personalization: str) -> None:
    federation = with_partners(personalization)
    assert personal(federation, 0) == {}
    take_step(federation.server, federation.engine.train([2], federation.server.broadcast(1)))
    assert list(personal(federation, 1)) == [2]
    found = federation.measures.before_training(federation.server.broadcast(30), federation.server)
    assert found.metrics["personal/std"] == 0  # of one client; three zeros would spread


@pytest.mark.matrix
@pytest.mark.parametrize("personalization", OPTIONS)
def test_evaluating_personal_models_changes_nothing(personalization: str) -> None:
    scored, never = with_partners(personalization), with_partners(personalization)
    for round in (1, 2):
        for federation in (scored, never):
            message = federation.server.broadcast(round)
            take_step(federation.server, federation.engine.train([0, 1], message))
        first, second = personal(scored, round), personal(scored, round)
        assert alike(first, second)
    assert equal(scored.server.weights, never.server.weights)
    assert alike(personal(scored, 2), personal(never, 2))


@pytest.mark.matrix
@pytest.mark.parametrize("personalization", OPTIONS)
def test_the_order_of_the_cohort_changes_nothing(personalization: str) -> None:
    ends = []
    for cohort in ([0, 1, 2], [2, 0, 1]):
        federation = with_partners(personalization)
        for round in (1, 2):
            message = federation.server.broadcast(round)
            take_step(federation.server, federation.engine.train(cohort, message))
        ends.append((copy(federation.server.weights), personal(federation, 2)))
    assert equal(ends[0][0], ends[1][0])
    assert alike(ends[0][1], ends[1][1])


@pytest.mark.matrix
@pytest.mark.parametrize("personalization", OPTIONS)
def test_nothing_global_is_measured_without_a_global_model(personalization: str) -> None:
    metrics = with_partners(personalization, "rounds=1").run_round(1).metrics
    is_global = personalization in WITH_GLOBAL
    assert ("global/accuracy" in metrics) == ("global/loss" in metrics) == is_global
    assert 0 <= metrics["personal/accuracy_local"] <= 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective=global/accuracy", r"^objective=global/accuracy: is not measured"),
        ("measure.global.targets=[0.5]", r"^measure\.global\.targets=\[0\.5\]: "),
        ("+measure=membership", r"^measure\.membership: needs a global model"),
        ("measure.personal=null", r"^objective=personal/accuracy_local: is not measured"),
    ],
)
def test_keys_that_need_a_global_model_are_refused_without(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        personalized("fedper", override)
    personalized("fedper", "objective=train/loss", "measure.personal=null")


def test_a_phase_sets_what_is_trained_and_what_is_in_eval_mode() -> None:
    module = personalized("none", *BATCHNORM).module
    module.eval()
    module.begin_phase(Phase(1, trainable=("head.",), eval_mode=("backbone.",)))
    assert module.training
    assert module.head.training
    assert not any(each.training for each in module.backbone.modules())
    trained = {name for name, value in module.named_parameters() if value.requires_grad}
    assert trained == {"head.linear.weight", "head.linear.bias"}
    assert dict(module.trained_parameters()).keys() == trained
    module.begin_phase(Phase(1))
    assert all(each.training for each in module.backbone.modules())
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_private_weights_of_a_new_client_are_the_initial_ones() -> None:
    federation = personalized("fedper")
    engine: Any = federation.engine
    initial = copy(federation.module.weights)
    list(engine.train([0], federation.server.broadcast(1)))
    assert not torch.equal(
        federation.module.weights["head.linear.weight"], initial["head.linear.weight"]
    )
    module = engine.resources.load_global(federation.server.broadcast(1))
    assert torch.equal(module.weights["head.linear.weight"], initial["head.linear.weight"])


def test_a_probed_client_has_the_shared_weights_and_its_private_ones() -> None:
    federation = personalized("fedper", "sampler=power_of_choice")
    message = federation.server.broadcast(1)
    engine: Any = federation.engine
    before = dict(engine.probe([0, 1, 2], message))
    take_step(federation.server, engine.train([1], message))
    backwards = dict(engine.probe([2, 1, 0], message))
    assert torch.equal(before[0]["loss"], backwards[0]["loss"])
    assert torch.equal(before[2]["loss"], backwards[2]["loss"])
    assert backwards[1]["loss"] < before[1]["loss"]  # its private head is trained
