import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client, equal, federate
from support.state_files import through_a_file
from torch import Tensor

from fedexp.core.randomness import torch_generator
from fedexp.data.appended import AppendedData
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation

MATCHING = [
    "regularizer.ipc=2",
    "regularizer.outer_steps=2",
    "regularizer.inner_steps=2",
    "regularizer.image_lr=1",
]
SMALL = ["clients.count=3", "clients.per_round=3", "data.subset=120", "local.epochs=2"]
SMALL += ["measure.personal=null", "measure.global.every=10", *MATCHING]


def appending(*overrides: str) -> Federation:
    return federate("algorithm=fedprox_synthetic", *SMALL, *overrides)


def images_of(federation: Federation, client: int) -> Tensor:
    return federation.store.memory(client, "regularizer")["synthetic"]


def equal_weights(one: Federation, other: Federation) -> bool:
    return equal(one.server.weights, other.server.weights)


def test_without_an_older_model_it_is_fedprox() -> None:
    ours, fedprox = appending(), federate("algorithm=fedprox", *SMALL[:-4])
    metrics = ours.run_round(1).metrics
    fedprox.run_round(1)
    assert metrics["synthetic/images"] == 0
    assert equal_weights(ours, fedprox)
    assert ours.run_round(2).metrics["synthetic/images"] == 20
    fedprox.run_round(2)
    assert not equal_weights(ours, fedprox)


def test_the_images_are_those_of_fedptr() -> None:
    """Without pulls, both have the same first two models, and so the same step to learn from."""
    ours = appending("regularizer.mu=0")
    fedptr = federate("algorithm=fedptr", *SMALL, "regularizer.lam=0")
    for round in (1, 2):
        for federation in (ours, fedptr):
            federation.run_round(round)
    for client in range(3):
        assert torch.equal(images_of(ours, client), images_of(fedptr, client))


def test_local_training_by_a_loop() -> None:
    """Round 2 of one client in plain PyTorch: SGD on the mean over each batch and its images."""
    mu, size = 0.5, 16
    federation = appending(f"regularizer.mu={mu}", f"local.batch_size={size}", "optimizer.lr=0.1")
    federation.run_round(1)
    message = federation.server.broadcast(2)
    (update,) = federation.engine.train([1], message)
    images, labels = images_of(federation, 1), torch.arange(10).repeat_interleave(2)

    resources = federation.engine.resources
    data = federation.data.clients[1]
    module = resources.load_global(message).train()
    trained = [*module.backbone.parameters(), *module.head.parameters()]
    anchors = [parameter.detach().clone() for parameter in trained]
    config = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5}
    found = module.optimizer(trained, 2).param_groups[0]
    config = {key: found[key] for key in config}
    optimizer = torch.optim.SGD(trained, **config)
    order = torch_generator(0, "append synthetic", 2, 1)
    batches = data.local_batches(2, size)
    count = -(-data.num_samples // size)
    for _ in range(2):
        shuffled = torch.randperm(20, generator=order).tolist()
        taken = 0
        for number, (inputs, targets) in enumerate(batches):
            share = 20 // count + (number < 20 % count)
            mine = shuffled[taken : taken + share]
            taken += share
            logits = module(torch.cat([inputs, images[mine]]))
            losses = F.cross_entropy(logits, torch.cat([targets, labels[mine]]), reduction="none")
            loss = losses.sum() / (len(inputs) + share)
            pulls = [(p - a).square().sum() for p, a in zip(trained, anchors, strict=True)]
            optimizer.zero_grad()
            (loss + mu / 2 * sum(pulls)).backward()
            optimizer.step()
        assert taken == 20
    for name, value in update.weights.items():
        torch.testing.assert_close(value, module.weights[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [7, 50, 1000])
def test_every_image_is_in_one_batch_of_each_epoch(size: int) -> None:
    federation = appending()
    data = federation.data.clients[0]
    images = torch.arange(20.0).reshape(20, 1, 1, 1).expand(20, 1, 8, 8) + 1000
    generator = torch.Generator().manual_seed(0)
    appended = AppendedData(data, images, torch.arange(20) % 10, generator)
    batches = appended.local_batches(1, size)
    plain = list(data.local_batches(1, size))
    orders = []
    for epoch in range(2):
        found = list(batches)
        assert len(found) == len(plain) == len(batches)
        extra = [inputs[:, 0, 0, 0] >= 1000 for inputs, _ in found]
        counts = [int(each.sum()) for each in extra]
        assert sum(counts) == 20
        assert max(counts) - min(counts) <= 1
        if epoch == 0:
            for (inputs, labels), (own, targets) in zip(found, plain, strict=True):
                assert torch.equal(inputs[: len(own)], own)
                assert torch.equal(labels[: len(own)], targets)
        values = torch.cat(
            [x[where][:, 0, 0, 0] for (x, _), where in zip(found, extra, strict=True)]
        )
        labels = torch.cat([y[where] for (_, y), where in zip(found, extra, strict=True)])
        assert sorted(values.tolist()) == [1000.0 + number for number in range(20)]
        assert torch.equal(labels, (values - 1000).long() % 10)
        orders.append(values.tolist())
    assert orders[0] != orders[1]


def test_all_else_is_without_the_images() -> None:
    """Samples, counts, features, the weight in the average, and the bytes are those of FedProx."""
    federation, fedprox = appending(), federate("algorithm=fedprox", *SMALL[:-4])
    for each in (federation, fedprox):
        each.run_round(1)
    message = federation.server.broadcast(2)
    module = begin_client(federation.engine, 0, message)
    data = federation.data.clients[0]
    assert isinstance(module.data, AppendedData)
    assert module.data.num_samples == data.num_samples
    assert torch.equal(module.data.class_counts, data.class_counts)
    assert torch.equal(module.data.labels, data.labels)
    assert len(module.features()[0]) == data.num_samples
    (update,), (other,) = (
        each.engine.train([0], each.server.broadcast(2)) for each in (federation, fedprox)
    )
    assert message.nbytes == fedprox.server.broadcast(2).nbytes
    assert (update.nbytes, update.num_samples) == (other.nbytes, other.num_samples)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["loss=rpcl_cpdr"],
        [
            "faults=unreliable",
            "faults.straggle=0.5",
            "faults.byzantine=0.4",
            "faults.attack=label_flip",
        ],
        ["regularizer.augment=dsa", "regularizer.update_every=null", "regularizer.init=noise"],
        [
            *("data=synthetic", "data.subset=null", "data.size_max=150", "data.test_clients=10"),
            *("model=logistic", "clients.count=12", "clients.per_round=6", "local.batch_size=16"),
            "seed=3",  # in round 2, three clients without images train the longest
        ],
    ],
    ids=["plain", "fedsc", "faults", "options", "own samples"],
)
def test_engines_agree(options: list[str]) -> None:
    serial, stacked = (
        appending(*options, "local.epochs=1", f"engine={engine}")
        for engine in ("serial", "vectorized")
    )
    for round in (1, 2, 3):
        expected, found = serial.run_round(round).metrics, stacked.run_round(round).metrics
        assert found["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-3)
        assert found["train/cross_entropy"] == pytest.approx(
            expected["train/cross_entropy"], rel=1e-3
        )
    for name, value in serial.server.weights.items():
        torch.testing.assert_close(value, stacked.server.weights[name], atol=1e-4, rtol=1e-3)


def test_a_stock_trainer_gives_the_same_bits() -> None:
    serial, trainer = (appending("local.epochs=1", f"engine={e}") for e in ("serial", "trainer"))
    for round in (1, 2):
        for federation in (serial, trainer):
            federation.run_round(round)
    assert equal_weights(serial, trainer)


def test_it_goes_on_after_a_restart() -> None:
    whole, resumed = appending("local.epochs=1"), appending("local.epochs=1")
    for round in (1, 2):
        whole.run_round(round)
    store = whole.store
    server, memories = through_a_file(
        (whole.server.state_dict(), [store.memory(k, "regularizer") for k in range(3)])
    )
    resumed.server.load_state_dict(server)
    for client, memory in enumerate(memories):
        with resumed.store.open(client) as state:
            state.memory("regularizer").update(memory)
    for federation in (whole, resumed):
        federation.run_round(3)
    assert equal_weights(whole, resumed)
    assert all(torch.equal(images_of(whole, k), images_of(resumed, k)) for k in range(3))


def test_there_is_a_figure_after_the_last_round() -> None:
    federation = appending("rounds=2")
    federation.run_round(1)
    assert "trajectory/synthetic" in federation.run_round(2).figures


def test_flat_inputs_cannot_be_augmented() -> None:
    overrides = ["data=spiral", "model.feature_dim=2", "regularizer.augment=dsa"]
    with pytest.raises(InputError, match=r"^regularizer\.augment=dsa: needs images"):
        federate("algorithm=fedprox_synthetic", *overrides)
