from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.federations import equal, federate, timeless
from support.own_networks import TIED

from fedexp.core.messages import Message
from fedexp.core.part import Memory
from fedexp.core.sockets import Personalization, Phase
from fedexp.engines.serial import Serial
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=2"]


def three_rounds(federation: Federation, backwards: bool) -> list[dict[str, float]]:
    """Metrics of three rounds, each cohort trained in ascending or descending order."""
    train = federation.engine.train

    def ordered(cohort: Sequence[int], message: Message) -> Any:
        return train(sorted(cohort, reverse=backwards), message)

    federation.engine.train = ordered  # type: ignore[method-assign]
    return [dict(federation.run_round(round).metrics) for round in (1, 2, 3)]


@pytest.mark.matrix
@pytest.mark.parametrize("model", ["mlp", "resnet10"])
def test_the_order_of_the_cohort_changes_nothing(model: str) -> None:
    small = [*SMALL[:-1], "local.epochs=1", "data.subset=60"] if model == "resnet10" else SMALL
    forward, backward = (federate(*small, f"model={model}") for _ in range(2))
    metrics = three_rounds(forward, backwards=False), three_rounds(backward, backwards=True)
    assert equal(forward.server.weights, backward.server.weights)
    for one, other in zip(*metrics, strict=True):
        assert timeless(one) == timeless(other)


def test_two_methods_with_one_seed_see_the_same_cohorts_and_batches() -> None:
    plain, proximal = federate(*SMALL), federate(*SMALL, "regularizer=proximal", "regularizer.mu=0")
    three_rounds(plain, backwards=False)
    three_rounds(proximal, backwards=False)
    assert equal(plain.server.weights, proximal.server.weights)


def test_another_seed_gives_another_run() -> None:
    one, other = federate(*SMALL), federate(*SMALL, "seed=1")
    assert not equal(one.server.weights, other.server.weights)
    assert one.sampler.select(1) != other.sampler.select(1)


def test_an_error_names_the_client_and_the_round() -> None:
    federation = federate(*SMALL)

    class Broken(type(federation.module.loss)):  # type: ignore[misc]
        def forward(self, batch: Any) -> Any:
            raise RuntimeError("boom")

    federation.module.loss = Broken()
    with pytest.raises(RuntimeError, match="boom") as caught:
        list(federation.engine.train([3], federation.server.broadcast(2)))
    assert caught.value.__notes__ == ["while training client 3 in round 2"]


class PrivateHead(Personalization):
    """The head is private; it is trained first, then the backbone."""

    def shared(self, name: str) -> bool:
        return not name.startswith("head.")

    def phases(self, epochs: int) -> Sequence[Phase]:
        return (Phase(1, ("head.",)), Phase(epochs, ("backbone.",)))

    def begin(self, client: Any, message: Message, memory: Memory) -> None:
        """Remember what each round started from."""
        memory["visits"] = memory.get("visits", torch.zeros(())) + 1
        self.head_at_start = client.weights["head.linear.weight"].clone()


def test_private_weights_stay_with_their_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedexp.core.sockets.Personalization", PrivateHead)
    federation = federate(*SMALL)
    engine: Any = federation.engine
    assert isinstance(engine, Serial)
    part = engine.resources.personalization
    untrained = federation.module.weights["head.linear.weight"].clone()

    message = federation.server.broadcast(1)
    assert not any(name.startswith("head.") for name in message.weights)
    (first,) = engine.train([0], message)
    assert first.weights.keys() == message.weights.keys()
    assert first.nbytes == sum(w.numel() * 4 for w in message.weights.values())
    own = federation.module.weights["head.linear.weight"].clone()
    assert not torch.equal(own, untrained)

    list(engine.train([1], message))
    assert torch.equal(part.head_at_start, untrained)  # a newcomer starts from the common head
    list(engine.train([0], message))
    assert torch.equal(part.head_at_start, own)  # client 0 finds its own head again
    assert federation.store.memory(0, "personalization")["visits"] == 2


def test_each_phase_moves_only_its_own_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    class HeadOnly(PrivateHead):
        def phases(self, epochs: int) -> Sequence[Phase]:
            return (Phase(epochs, ("head.",)),)

    monkeypatch.setattr("fedexp.core.sockets.Personalization", HeadOnly)
    federation = federate(*SMALL)
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([0], message)
    assert equal(update.weights, message.weights)


@pytest.mark.parametrize(
    ("personal", "remembered"), [(".of=all", [0, 1, 2, 3]), (".of=cohort", [2, 3]), ("=null", [])]
)
def test_whose_latest_model_is_remembered(personal: str, remembered: list[int]) -> None:
    federation = federate(*SMALL, f"measure.personal{personal}")
    for cohort in ([0, 1], [2, 3]):
        federation.store.begin_round()
        updates = list(federation.engine.train(cohort, federation.server.broadcast(1)))
    found = dict(Scoring(federation.engine).score_personal(federation.server.broadcast(1)))
    assert list(found) == remembered
    if personal == ".of=all":
        model = federation.store.model(3)
        assert equal(model, updates[1].weights)


def test_channels_last_is_the_same_computation_in_another_layout() -> None:
    small = [*SMALL, "data.subset=60", "model=convnet", "model.width=8", "model.depth=2"]
    plain = federate(*small, "engine.channels_last=false")
    turned = federate(*small, "engine.channels_last=true")
    kernel = turned.module.weights["backbone.0.0.weight"]
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    for federation in (plain, turned):
        federation.run_round(1)
    for name, weight in plain.server.weights.items():
        torch.testing.assert_close(turned.server.weights[name], weight, atol=1e-5, rtol=1e-4)


def test_mixed_precision_is_for_the_backbone_alone() -> None:
    small = [*SMALL, "head=prototype", "loss=rpcl_cpdr"]
    full, mixed = federate(*small), federate(*small, "engine.precision=bf16-mixed")
    module = mixed.module
    seen: dict[str, set[torch.dtype]] = {"backbone": set(), "head": set(), "logits": set()}
    module.backbone.register_forward_hook(lambda _, __, z: seen["backbone"].add(z.dtype))
    module.head.register_forward_pre_hook(lambda _, inputs: seen["head"].add(inputs[0].dtype))
    module.loss.register_forward_pre_hook(lambda _, args: seen["logits"].add(args[0].logits.dtype))
    metrics = [federation.run_round(1).metrics for federation in (full, mixed)]
    assert seen["backbone"] == {torch.bfloat16, torch.float32}  # what parts ask for is in 32 bits
    assert seen["head"] == seen["logits"] == {torch.float32}
    assert metrics[1]["global/accuracy"] == pytest.approx(metrics[0]["global/accuracy"], abs=0.1)
    weights = mixed.server.weights
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    assert not equal(weights, full.server.weights)
    for name, weight in full.server.weights.items():
        torch.testing.assert_close(weights[name], weight, atol=0.02, rtol=0.05)


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_a_client_that_diverges_is_quarantined_with_clipping_too(engine: str) -> None:
    diverging = [*SMALL, "optimizer.lr=1e38", "local.grad_clip=10", f"engine={engine}"]
    federation = federate(*diverging, "data.subset=60", "local.epochs=3")
    updates = list(federation.engine.train(range(3), federation.server.broadcast(1)))
    assert [update.is_finite for update in updates] == [False] * 3
    assert federation.run_round(1).metrics["clients/quarantined"] == 4


def test_updates_say_that_they_were_checked() -> None:
    federation = federate(*SMALL, "faults=unreliable", "faults.nan=0.5")
    updates = list(federation.engine.train(range(6), federation.server.broadcast(1)))
    found = {update.is_finite for update in updates}
    assert found == {True, False}
    for update in updates:
        assert update.is_finite == all(w.isfinite().all() for w in update.weights.values())


@pytest.mark.parametrize("method", ["aggregator=momentum", "algorithm=apfl", "algorithm=ifca"])
def test_a_model_with_tied_weights_is_the_one_that_the_method_computes(method: str) -> None:
    federation = federate(*SMALL, *TIED, method, "measure.personal.every=1")
    for round in (1, 2):
        federation.run_round(round)
    shared = "backbone.first.weight"
    assert shared in federation.server.weights
    assert "backbone.second.weight" not in federation.server.weights
    client = federation.store.clients_with_model[0]
    for computed in (federation.server.weights, federation.store.model(client)):
        federation.module.load(computed)
        assert federation.module.weights[shared].equal(computed[shared])
        assert federation.module.backbone.second.weight.equal(computed[shared])
