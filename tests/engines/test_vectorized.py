"""Stacked clients train as they do one after another."""

from pathlib import Path

import pytest
import torch
from support.federations import assert_alike, assert_engine_agrees, compose, federate
from support.own_networks import TIED
from support.small_federations import DROPOUT
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from fedexp.contract import Client, Memory, PartMessage, Regularizer
from fedexp.engines import footprint
from fedexp.engines.footprint import clients_that_fit
from fedexp.engines.vectorized import Vectorized
from fedexp.errors import InputError
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.runtime.plan import plan

RAGGED = [
    "clients.count=6",
    "clients.per_round=5",
    "data.subset=200",
    "local.epochs=2",
    "partition.beta=0.5",
    "measure.personal.every=1",
]
LOOK_AHEAD = ["regularizer.ipc=1", "regularizer.outer_steps=2", "regularizer.image_lr=1"]
PERSONAL = ["local", "fedper", "fedrep", "fedbabu", "fedrod", "ditto", "fedproto"]
METHODS = [
    ["algorithm=fedavg"],
    ["algorithm=fedprox", "optimizer=adam"],
    ["algorithm=fednh"],
    ["algorithm=fedgela", "optimizer.lr=0.001"],  # else a kink of ReLU makes much of a rounding
    ["algorithm=fedge", "local.grad_clip=0.5"],
    ["algorithm=fedsc"],
    ["algorithm=fedsc", "head=cosine", "optimizer.weight_decay=0.01"],
    ["algorithm=fedsc", "loss.normalizer=unit"],
    ["algorithm=fedsc", "loss.normalizer=dataset"],
    ["algorithm=scaffold"],
    ["algorithm=feddyn"],
    ["algorithm=feddc"],
    ["algorithm=fedptr_s", *LOOK_AHEAD],
    ["algorithm=fedptr", *LOOK_AHEAD],
    ["algorithm=creff", "head.match_steps=5", "head.retrain_epochs=3"],
    ["algorithm=fedgen", "loss.generated_weight=1", "local.grad_clip=10"],
    [
        *("algorithm=fedgen", "loss.steps=5", "local.grad_clip=10"),
        *("personalization=fedrod", "personalization.second_phase=local"),  # steps go on
    ],
    ["algorithm=moon"],
    ["algorithm=fedntd"],
    ["algorithm=fedrcl"],
    ["algorithm=fedlc"],
    ["algorithm=fedrs"],
    *([f"algorithm={each}"] for each in PERSONAL),
    ["algorithm=fednh", "personalization=finetune", "personalization.epochs=1"],
    ["faults=unreliable", "faults.straggle=0.5"],
    ["faults=byzantine", "faults.attack=label_flip", "faults.byzantine=0.5"],
    ["loss=balanced_softmax"],
    ["loss=prototype_align"],
    ["sampler=hics", "head=etf"],
    ["sampler=hics_scale_free"],
    ["sampler=clustered", "aggregator=adam"],
    ["algorithm=fedcda", "aggregator.warmup=1", "aggregator.batches=2"],
]


def train_on_few(client: Client) -> None:
    """The smaller the number of a client, the fewer of its samples it trains on."""
    count = max(1, client.data.num_samples * client.data.client // 6)
    client.train_on(client.data.subset(torch.arange(count)))


class FewSamples(Regularizer):
    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        train_on_few(client)


class LossOfFew(CrossEntropy):
    """Begins with personal models, too."""

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        train_on_few(client)


def test_parts_may_change_the_number_of_samples_and_so_of_steps() -> None:
    own = ["regularizer=none", f"regularizer._target_={__name__}.FewSamples"]
    few = [*RAGGED, *own, "local.batch_size=4"]
    assert_alike(federate(*few), federate(*few, "engine=vectorized"), rounds=2)
    kept = [*few, "local.keep_optimizer=true"]
    assert_alike(federate(*kept), federate(*kept, "engine=vectorized"), rounds=2)


@pytest.mark.parametrize("personalization", ["ditto", "finetune"])
def test_so_may_parts_of_personal_models(personalization: str) -> None:
    few = [*RAGGED, f"loss._target_={__name__}.LossOfFew", f"personalization={personalization}"]
    few += ["local.batch_size=4", "local.keep_optimizer=true"]
    assert_alike(federate(*few), federate(*few, "engine=vectorized"), rounds=2)


def test_the_steps_of_personal_models_may_differ_where_those_of_shared_models_do_not() -> None:
    own = ["regularizer=none", f"regularizer._target_={__name__}.FewSamples"]
    few = [*RAGGED, *own, "personalization=ditto", "local.steps=7", "local.batch_size=4"]
    assert_alike(federate(*few), federate(*few, "engine=vectorized"), rounds=2)


@pytest.mark.matrix
@pytest.mark.parametrize("overrides", METHODS, ids=" ".join)
def test_every_method_gives_the_same_weights(overrides: list[str]) -> None:
    small = [*RAGGED, *overrides]
    assert_alike(federate(*small), federate(*small, "engine=vectorized"), rounds=3)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_size_of_a_stack_changes_nothing(size: int) -> None:
    stacked = federate(*RAGGED, "engine=vectorized", f"engine.clients_per_chunk={size}")
    assert_alike(federate(*RAGGED), stacked, rounds=2)


@pytest.mark.parametrize("gradient", ["plain", "sam"])
def test_a_tensor_with_two_names_is_one(gradient: str) -> None:
    tied = [*RAGGED, *TIED, f"gradient={gradient}"]
    assert_alike(federate(*tied), federate(*tied, "engine=vectorized"), rounds=2)


def test_images_with_augmentation(image_tree: Path) -> None:
    small = ["data=image_folder", f"data.root={image_tree}", "data.augment=crop_flip"]
    small += ["model=convnet", "model.width=4", "model.depth=2", "clients.count=3"]
    small += ["clients.per_round=3", "local.batch_size=4", "partition=iid"]
    # Instance norm of tiny images amplifies rounding from step to step: few steps.
    small += ["local.epochs=1", "optimizer.momentum=0"]
    assert_alike(federate(*small), federate(*small, "engine=vectorized"), rounds=2)


def test_each_client_is_clipped_by_its_own_norm() -> None:
    small = [*RAGGED, "local.grad_clip=0.01", "optimizer.lr=1", "optimizer.momentum=0"]
    small += ["local.epochs=1", "local.batch_size=1000"]  # so that a client takes one step
    federation = federate(*small, "engine=vectorized")
    start = federation.server.weights
    for update in federation.engine.train(range(6), federation.server.broadcast(1)):
        steps = [update.weights[name] - start[name] for name in start]
        norm = torch.cat([step.flatten() for step in steps]).norm()
        assert norm.item() == pytest.approx(0.01, rel=1e-3)


def test_a_client_drawn_twice_trains_once_and_counts_twice() -> None:
    federation = federate(*RAGGED, "engine=vectorized")
    updates = list(federation.engine.train([2, 3, 2], federation.server.broadcast(1)))
    assert sorted((update.client, update.draws) for update in updates) == [(2, 2), (3, 1)]


def test_dropout_is_discouraged(caplog: pytest.LogCaptureFixture) -> None:
    """What a client draws depends on the others in its stack."""

    def trained(*words: str) -> Tensor:
        federation = federate(*RAGGED, *DROPOUT, *words)
        updates = federation.engine.train([0, 1], federation.server.broadcast(1))
        return {each.client: each.weights["head.linear.weight"] for each in updates}[1]

    serial = trained("engine=serial")
    assert not caplog.messages
    pairs, alone = (trained("engine=vectorized", f"engine.clients_per_chunk={n}") for n in (2, 1))
    assert [each.partition(",")[0] for each in caplog.messages] == [
        "engine=vectorized: backbone.3 is dropout"
    ] * 2
    torch.testing.assert_close(alone, serial)
    assert (pairs - serial).abs().max() > 1e-3


def test_dropout_differs_between_clients() -> None:
    """If all features are 1, one step on one sample changes the weights of those not dropped."""
    one_step = ["local.steps=1", "local.batch_size=1", "optimizer.weight_decay=0"]
    federation = federate(*RAGGED, *one_step, "engine=vectorized")

    def drop(_: object, __: object, z: Tensor) -> Tensor:
        return nn.functional.dropout(torch.ones_like(z), 0.5)

    federation.module.backbone.register_forward_hook(drop)
    message = federation.server.broadcast(1)
    name = "head.linear.weight"
    updates = federation.engine.train([0, 1], message)
    kept = [(each.weights[name] != message.weights[name]).any(0) for each in updates]
    assert all(0 < mask.sum() < len(mask) for mask in kept)
    assert not torch.equal(*kept)


def test_as_many_as_fit() -> None:
    federation = federate(*RAGGED, "engine=vectorized")
    federation.run_round(1)
    engine = federation.engine
    assert isinstance(engine, Vectorized)
    assert engine._clients_per_chunk is not None
    assert engine._clients_per_chunk > 100  # an MLP's stack of a hundred is far below a GiB


def test_as_many_fit_whichever_client_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run begins with other clients, but sums must be in the order of the whole run."""
    monkeypatch.setattr(footprint, "_CPU_BYTES", 2**24)
    federation = federate(*RAGGED, "engine=vectorized", "local.batch_size=1000")
    resources, message = federation.engine.resources, federation.server.broadcast(1)
    clients = [client for client in resources.data.clients if client.num_samples]
    assert len({client.num_samples for client in clients}) > 1
    fit = {clients_that_fit(resources, client.client, message) for client in clients}
    assert len(fit) == 1
    assert fit != {1}


def test_batchnorm_is_refused_in_one_line() -> None:
    small = ["model=resnet10", "model.norm=batch", "data.subset=60", "clients.count=2"]
    with pytest.raises(InputError, match=r"engine=vectorized: .* is BatchNorm"):
        federate(*small, "clients.per_round=2", "engine=vectorized")


def keeps(input_shape: tuple[int, ...]) -> nn.Module:
    """A backbone that draws no random number."""
    return nn.Sequential(nn.Flatten(), StochasticDepth(0.0, "row"))


def drops(input_shape: tuple[int, ...]) -> nn.Module:
    """A backbone that leaves out a layer at random."""
    return nn.Sequential(nn.Flatten(), StochasticDepth(0.1, "row"))


def test_stochastic_depth_is_refused_in_one_line() -> None:
    plan(compose("model=custom", "model._target_=test_vectorized.keeps", "engine=vectorized"))
    with pytest.raises(InputError, match=r"engine=vectorized: backbone.1 is StochasticDepth"):
        plan(compose("model=custom", "model._target_=test_vectorized.drops", "engine=vectorized"))


def test_an_error_names_the_clients_and_the_round() -> None:
    federation = federate(*RAGGED, "engine=vectorized")

    class Broken(type(federation.module.loss)):  # type: ignore[misc]
        def forward(self, batch: object) -> Tensor:
            raise RuntimeError("boom")

    federation.module.loss = Broken()
    with pytest.raises(RuntimeError, match="boom") as caught:
        list(federation.engine.train([3, 1], federation.server.broadcast(2)))
    assert any("client" in note and "round 2" in note for note in caught.value.__notes__)


def test_a_stack_must_hold_at_least_one() -> None:
    with pytest.raises(InputError, match=r"engine\.clients_per_chunk=0"):
        federate("engine=vectorized", "engine.clients_per_chunk=0")
    assert compose("engine=vectorized").engine.node["clients_per_chunk"] is None


def test_buffers_may_change_their_shape_between_rounds_without_evaluation() -> None:
    """FedSC's prototypes are empty in the first round; nothing loads the second before training."""
    options = ["clients.count=3", "clients.per_round=3", "data.subset=120", "local.epochs=1"]
    options += ["algorithm=fedsc", "measure.global.every=10", "measure.personal=null"]
    assert_engine_agrees("vectorized", options, rounds=2)
