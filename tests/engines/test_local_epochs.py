"""The length of local training: fractions of epochs, ranges of epochs, and steps."""

from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client, compose, federate
from support.refusals import refused
from torch import Tensor

import fedexp
from fedexp.core.last_batch import KEEP
from fedexp.core.messages import Message
from fedexp.core.turn import Turn
from fedexp.data.batches import LocalBatches
from fedexp.data.federated import ClientData
from fedexp.engines.vectorized import longest_first
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=6", "clients.per_round=5", "data.subset=200", "partition.beta=0.5"]
ENGINES = ["serial", "vectorized", "trainer"]
HALF_STRAGGLE = ["faults=unreliable", "faults.straggle=0.5", "faults.work=0.5", "faults.drop=0"]
LOOK_AHEAD = ["regularizer.ipc=1", "regularizer.outer_steps=2", "regularizer.inner_steps=1"]


def batches(samples: int, batch_size: int) -> LocalBatches:
    data: Any = None
    order, draws = torch.Generator().manual_seed(3), torch.Generator()
    lengths = KEEP.lengths(samples, batch_size)
    return LocalBatches(data, torch.arange(samples), lengths, None, order, draws)


def test_a_fraction_is_the_nearest_number_of_steps() -> None:
    five = batches(18, 4)
    epochs = [0.01, 0.2, 0.29, 0.3, 0.5, 1, 1.5, 2, 7 / 5]
    assert [five.steps_in(each) for each in epochs] == [1, 1, 1, 2, 3, 5, 8, 10, 7]
    assert all(batches(n, 1).steps_in(steps / n) == steps for n in range(1, 60) for steps in (1, 7))


def test_the_batches_of_whole_epochs_then_of_a_part_of_one() -> None:
    found = [chunk.tolist() for chunk in batches(10, 4).next_chunks(7)]
    twin = batches(10, 4)
    epochs = [[chunk.tolist() for chunk in twin.chunks()] for _ in range(3)]
    assert found == [*epochs[0], *epochs[1], epochs[2][0]]
    assert all(sorted(chain(*epoch)) == list(range(10)) for epoch in epochs)


@pytest.mark.parametrize(
    ("steps", "in_epoch", "expected"),
    [(6, 3, [0, 0, 0, 1, 1, 1]), (4, 3, [0, 1, 1, 1]), (2, 3, [1, 1]), (3, 1, [0, 0, 1])],
)
def test_the_last_epoch_are_as_many_last_steps(
    steps: int, in_epoch: int, expected: list[int]
) -> None:
    data: Any = SimpleNamespace(num_samples=0)
    turn = Turn(data, Message(1, {}), 1)
    turn.took_step(torch.zeros(()), {}, None)  # of an earlier phase
    assert not turn.in_last_epoch
    turn.begin_last_phase(steps, in_epoch)
    found = []
    for _ in range(steps):
        found.append(int(turn.in_last_epoch))
        turn.took_step(torch.zeros(()), {}, None)
    assert found == expected
    turn.finish()
    assert not turn.in_last_epoch


def by_hand(federation: Federation, client: int, steps: int) -> tuple[dict[str, Tensor], float]:
    """Plain SGD of this many steps, and the mean cross-entropy of the last epoch's many steps."""
    module = begin_client(federation.engine, client, federation.server.broadcast(1)).train()
    epochs, found = module.data.local_batches(1, 16), list[Tensor]()
    parameters = list(module.parameters())
    while len(found) < steps:
        for inputs, targets in epochs:
            if len(found) == steps:
                break
            loss = F.cross_entropy(module(inputs), targets)
            found.append(loss.detach())
            with torch.no_grad():
                for value, gradient in zip(
                    parameters, torch.autograd.grad(loss, parameters), strict=True
                ):
                    value -= 0.05 * gradient
    weights = {name: value.clone() for name, value in module.weights.items()}
    in_epoch = -(-module.data.num_samples // 16)
    return weights, torch.stack(found[-in_epoch:]).mean().item()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("key", "length"), [("steps", 1), ("steps", 5), ("epochs", 3)])
def test_steps_are_the_steps_of_an_independent_loop(engine: str, key: str, length: int) -> None:
    small = [*SMALL, "optimizer.lr=0.05", "optimizer.momentum=0", "optimizer.weight_decay=0"]
    federation = federate(*small, f"local.{key}={length}", f"engine={engine}")
    updates = list(federation.engine.train(range(6), federation.server.broadcast(1)))
    assert len({update.num_samples for update in updates}) > 3
    for update in updates:
        steps = length if key == "steps" else length * -(-update.num_samples // 16)
        weights, cross_entropy = by_hand(federate(*small), update.client, steps)
        assert update.steps == steps
        assert update.metrics["cross_entropy"] == pytest.approx(cross_entropy, abs=1e-5)
        for name, value in weights.items():
            torch.testing.assert_close(update.weights[name], value, atol=1e-5, rtol=1e-5)


LENGTHS = [["local.steps=7"], ["local.epochs=0.5"], ["local.epochs=1.5"], ["local.epochs=[1,4]"]]
METHODS = [
    ["algorithm=fedavg"],
    ["algorithm=fedrep", "personalization.head_epochs=1.5"],  # two orders of the clients
    ["algorithm=fedrod", "personalization.second_phase=local"],
    ["algorithm=ditto"],
    ["algorithm=scaffold", "local.keep_optimizer=true", "optimizer.momentum=0"],
    ["loss=prototype_align", "loss.features=last_epoch"],
    ["gradient=sam"],
    ["algorithm=fedprox_synthetic", "regularizer.lag=1", "regularizer.wait=0", *LOOK_AHEAD],
    ["algorithm=fedbabu", "personalization.tuning_epochs=0.5", "measure.personal.every=1"],
    HALF_STRAGGLE,
]


@pytest.mark.matrix
@pytest.mark.parametrize("method", METHODS, ids=" ".join)
@pytest.mark.parametrize("length", LENGTHS, ids=" ".join)
def test_all_engines_train_equally_long(length: list[str], method: list[str]) -> None:
    small = [*SMALL, *length, *method]
    serial, stacked, trainer = (federate(*small, f"engine={each}") for each in ENGINES)
    for round in (1, 2):
        expected = serial.run_round(round).metrics
        for other, accuracy in ((trainer, 0), (stacked, 1e-4)):
            found = other.run_round(round).metrics
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                if not name.startswith("time/"):
                    assert found[name] == pytest.approx(value, rel=10 * accuracy, abs=accuracy)
            for name, weight in serial.server.weights.items():
                tolerance = {"atol": accuracy / 10, "rtol": accuracy / 10}
                torch.testing.assert_close(other.server.weights[name], weight, **tolerance)


@pytest.mark.parametrize("method", [["algorithm=fedrep"], ["algorithm=fedavg"]], ids=" ".join)
def test_augmented_images_of_a_part_of_an_epoch(method: list[str], image_tree: Path) -> None:
    """A Trainer gathers, and so augments, no batch more than it trains on."""
    small = ["data=image_folder", f"data.root={image_tree}", "data.augment=crop_flip", *method]
    small += ["model=convnet", "model.width=4", "model.depth=2", "clients.count=3"]
    small += ["clients.per_round=3", "local.batch_size=2", "partition=iid", "local.epochs=1.5"]
    if method == ["algorithm=fedrep"]:
        small += ["personalization.head_epochs=0.5"]
    one, other = federate(*small), federate(*small, "engine=trainer")
    one.run_round(1), other.run_round(1)
    for name, weight in one.server.weights.items():
        assert torch.equal(other.server.weights[name], weight)


def lengths(federation: Federation, round: int) -> dict[int, int]:
    """Client -> its gradient steps in a round."""
    updates = federation.engine.train(range(6), federation.server.broadcast(round))
    return {update.client: update.steps for update in updates}


def test_a_range_is_drawn_anew_by_each_client_in_each_round() -> None:
    one_step_an_epoch = [*SMALL, "local.batch_size=1000", "local.epochs=[1,3]"]
    federation = federate(*one_step_an_epoch)
    drawn = [lengths(federation, round) for round in range(1, 9)]
    assert len({tuple(each.values()) for each in drawn}) == len(drawn)
    seen = Counter(steps for each in drawn for steps in each.values())
    assert set(seen) == {1, 2, 3}
    assert drawn[2] == lengths(federate(*one_step_an_epoch), 3)  # whatever was drawn before
    assert drawn[2] != lengths(federate(*one_step_an_epoch, "seed=1"), 3)


def test_a_range_is_uniform() -> None:
    federation = federate(*SMALL, "local.epochs=[2,4]")
    data, resources = federation.data.clients[1], federation.engine.resources
    seen = Counter(resources.local_epochs(data, round) for round in range(3000))
    assert set(seen) == {2, 3, 4}
    assert all(abs(count - 1000) < 100 for count in seen.values())  # four standard deviations


def test_a_range_of_one_number_is_that_number() -> None:
    one, other = federate(*SMALL, "local.epochs=2"), federate(*SMALL, "local.epochs=[2,2]")
    one.run_round(1), other.run_round(1)
    for name, weight in one.server.weights.items():
        assert torch.equal(other.server.weights[name], weight)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_straggler_takes_its_share_of_the_steps(engine: str) -> None:
    slow = [*SMALL, "faults=unreliable", "faults.straggle=1", "faults.work=0.5"]
    for wanted, expected in ((7, 3), (1, 1)):
        federation = federate(*slow, f"local.steps={wanted}", f"engine={engine}")
        assert set(lengths(federation, 1).values()) == {expected}
    federation = federate(*slow, "local.epochs=1.5", f"engine={engine}")
    for client, steps in lengths(federation, 1).items():
        in_epoch = max(1, -(-federation.data.clients[client].num_samples // 16) // 2)
        assert steps == int(1.5 * in_epoch + 0.5)


def test_local_steps_replace_local_epochs_in_the_phases_that_have_them() -> None:
    federation = federate(*SMALL, "algorithm=fedrep", "personalization.head_epochs=2")
    whole = federate(*SMALL, "algorithm=fedrep", "personalization.head_epochs=2", "local.steps=9")
    for client, steps in lengths(whole, 1).items():
        assert steps == 9 + 2 * -(-federation.data.clients[client].num_samples // 16)


def test_a_client_that_trains_to_answer_trains_as_long() -> None:
    small = [*SMALL, "local.steps=3", "sampler=divfl"]
    federation = federate(*small)
    client: ClientData = federation.data.clients[0]
    assert federation.engine.resources.local_epochs(client, 1) * 3 != 3
    federation.engine._train_copy(0, federation.server.broadcast(1))
    assert federation.module.steps == 3


def test_stacks_whose_clients_finish_in_order() -> None:
    assert longest_first({3: (2,), 1: (5,), 0: (2,), 2: (9,)}) == [[2, 1, 0, 3]]
    assert longest_first({0: (9, 1), 1: (9, 1), 2: (4, 3), 3: (4, 1), 4: (2, 2)}) == [
        [0, 1, 3],
        [2, 4],
    ]


@pytest.mark.parametrize("override", ["local.steps=5", "local.epochs=[1,3]", "local.epochs=0.5"])
def test_a_resumed_run_goes_on_to_the_bit(override: str, tmp_path: Path) -> None:
    words = [*SMALL, "algorithm=fedavg", override, "rounds=2", "tracking.wandb.mode=disabled"]
    words += ["tracking.progress=false", "measure.prototypes=null", "measure.partition=null"]
    whole = fedexp.run([*words, f"hydra.run.dir={tmp_path}/whole"])
    fedexp.run([*words, f"hydra.run.dir={tmp_path}/parts", "rounds=1"])
    parts = fedexp.run([*words, f"hydra.run.dir={tmp_path}/parts", "resume=auto"])
    assert parts.summary["weights_digest"] == whole.summary["weights_digest"]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        *(
            (f"local.epochs={each}", r"local\.epochs=.*: should be a number above 0 and at most")
            for each in ("0", "-1", "abc", "null", "true", "[]", "[1]", "[3,1]", "[0,1]", "20000")
        ),
        ("local.epochs=[0.5,2]", "or a range of whole numbers"),
        ("local.epochs=[1,20000]", "or a range of whole numbers"),
        ("local.steps=0", r"local\.steps=0: should be greater than 0"),
        ("local.steps=1.5", r"local\.steps=1\.5: should be a valid integer"),
        ("local.steps=1e9", r"local\.steps=1000000000\.0: should be less than"),
    ],
)
def test_impossible_lengths(override: str, line: str) -> None:
    with refused(line):
        compose(override)


def test_a_range_and_steps_are_too_much() -> None:
    with pytest.raises(InputError, match=r"local\.steps=3: cannot be combined with a range"):
        compose("local.steps=3", "local.epochs=[1,5]")


def test_tuning_has_a_number_of_epochs() -> None:
    with pytest.raises(InputError, match=r"personalization\.epochs=\[1, 5\]: should be a valid nu"):
        federate(*SMALL, "personalization=finetune", "local.epochs=[1,5]")
    federation = federate(*SMALL, "personalization=finetune", "local.epochs=0.5")
    federation.run_round(1)
