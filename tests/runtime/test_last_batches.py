"""``local.last_batch``: what happens to the last batch of an epoch."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from support.federations import equal, federate
from support.tables import breast_cancer, tabular_options

from fedexp.errors import InputError

SMALL = ["local.batch_size=32", "local.epochs=1", "model.hidden=[16]", "model.feature_dim=8"]
SMALL += ["model.batch_norm=true"]
BATCH_NORM = ["clients.per_round=4", "partition.beta=0.1", *SMALL]
EQUAL = ["partition=iid", "clients.count=3", "clients.per_round=3", "local.epochs=1.5"]
FIVE = ["clients.count=5", "clients.per_round=5"]
SEVENTEEN = [*EQUAL, "data.subset=51", "local.batch_size=8"]  # 17 = 8 + 8 + 1 samples each
LENGTHS = {"keep": [8, 8, 1], "drop": [8, 8], "merge": [8, 9]}


@pytest.mark.parametrize("seed", [1, 4, 5, 7, 9])
def test_a_model_with_batch_norm_simply_trains(seed: int) -> None:
    federation = federate(*BATCH_NORM, f"seed={seed}")
    sizes = federation.data.sizes.numpy()
    ends_alone = (sizes % 32 == 1) & (sizes > 1)
    assert ends_alone.any()
    resources = federation.engine.resources
    for client, size, merges in zip(resources.data.clients, sizes, ends_alone, strict=True):
        lengths = resources.local_batches(client, 1).lengths
        assert 1 not in lengths
        assert sum(lengths) == size
        assert len(lengths) == max(1, -(-size // 32) - merges)
    (alone, *_) = np.flatnonzero(ends_alone).tolist()
    (update,) = federation.engine.train([alone], federation.server.broadcast(1))
    assert update.is_finite
    assert update.steps == sizes[alone] // 32


def test_a_trainer_gives_the_same_bits_with_batch_norm() -> None:
    runs = [federate(*BATCH_NORM, "seed=1", f"engine={e}") for e in ("serial", "trainer")]
    for run in runs:
        assert run.run_round(1).metrics["clients/quarantined"] == 0
    assert equal(*(run.server.weights for run in runs))


@pytest.mark.slow
@pytest.mark.parametrize("rule", LENGTHS)
def test_every_engine_takes_the_same_steps(rule: str) -> None:
    runs = [
        federate(*SEVENTEEN, f"local.last_batch={rule}", f"engine={engine}")
        for engine in ("serial", "trainer", "vectorized")
    ]
    lengths = LENGTHS[rule]
    steps = int(1.5 * len(lengths) + 0.5)
    samples = sum([*lengths, *lengths][:steps])
    for run in runs:
        for update in run.engine.train([0, 1, 2], run.server.broadcast(1)):
            assert (update.steps, update.samples) == (steps, samples)
            run.server.add(update)
        assert run.engine.schedule.samples(0, 1) == samples
        run.server.step()
    assert equal(runs[0].server.weights, runs[1].server.weights)
    for name, weight in runs[0].server.weights.items():
        torch.testing.assert_close(runs[2].server.weights[name], weight, atol=1e-5, rtol=1e-5)


def test_auto_keeps_every_batch_of_a_model_without_batch_norm() -> None:
    auto, keep = (federate(*SEVENTEEN, f"local.last_batch={rule}") for rule in ("auto", "keep"))
    assert auto.engine.resources.last_batch == keep.engine.resources.last_batch
    auto.run_round(1), keep.run_round(1)
    assert equal(auto.server.weights, keep.server.weights)


def test_a_dropped_batch_holds_other_samples_in_every_epoch() -> None:
    federation = federate(*SEVENTEEN, "local.last_batch=drop")
    batches = federation.engine.resources.local_batches(federation.data.clients[0], 1)
    epochs = [set(torch.cat(list(batches.chunks())).tolist()) for _ in range(3)]
    assert all(len(epoch) == 16 for epoch in epochs)
    assert len(set.union(*epochs)) == 17


def test_a_straggler_of_a_merged_epoch() -> None:
    slow = ["faults=unreliable", "faults.straggle=1", "faults.work=0.5", "faults.drop=0"]
    federation = federate(*SEVENTEEN, *slow, "local.last_batch=merge", "local.epochs=2")
    data = federation.engine.training_data(0, federation.server.broadcast(1))
    assert federation.engine.resources.local_batches(data, 1).lengths == [8]


def test_local_steps_of_one() -> None:
    federation = federate(*SEVENTEEN, "model.batch_norm=true", "local.steps=1")
    assert federation.run_round(1).metrics["clients/quarantined"] == 0


def uneven(num_samples: int, num_clients: int, seed: int) -> list[np.ndarray]:
    """Clients 1 and 4 of six have one sample, the others fourteen."""
    return np.split(np.arange(58), np.cumsum([14, 1, 14, 14, 1]))


SINGLE = ["partition=iid", f"partition._target_={__name__}.uneven", "data.subset=58"]
SINGLE += ["clients.count=6", "clients.per_round=6", *SMALL]


def test_clients_with_one_sample_take_no_part(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        federation = federate(*SINGLE)
    assert "clients with one training sample, too few for this model's BatchNorm" in caplog.text
    assert caplog.text.rstrip().endswith("take no part: 1, 4")
    data = federation.data
    assert torch.equal(data.class_counts.sum(1), data.sizes)
    assert [each.num_samples for each in data.clients] == data.sizes.tolist()
    assert data.sizes[[1, 4]].tolist() == [0, 0]
    metrics = federation.run_round(1).metrics
    assert metrics["clients/quarantined"] == 0
    assert federation.sampler.select(1) == [0, 2, 3, 5]


def test_owners_with_one_sample_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = breast_cancer()
    table.loc[0, "ward"] = "tower"
    table.to_csv(tmp_path / "wards.csv", index=False)
    options = [
        *tabular_options(tmp_path / "wards.csv"),
        "partition=natural",
        "partition.take=first",
    ]
    options += ["clients.count=4", "clients.per_round=2", "model=mlp", *SMALL]
    with caplog.at_level(logging.WARNING):
        federate(*options)
    assert "no test samples of their own: 0 (tower)\n" in caplog.text
    assert caplog.text.rstrip().endswith("take no part: 0 (tower)")
    with pytest.raises(InputError, match=r"client 0 \(tower\) has one training sample"):
        federate(*options, "local.last_batch=keep")


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["local.batch_size=13", "local.last_batch=keep"], "last batch of client 0 would hold one"),
        (["local.last_batch=drop"], r"client 1 has one .* use local\.last_batch=auto"),
        (["local.batch_size=1"], r"local\.batch_size=1 holds one sample"),
    ],
)
def test_what_cannot_train_is_an_error_that_names_the_key(overrides: list[str], line: str) -> None:
    with pytest.raises(InputError, match=rf"^local\.last_batch=\w+: .*{line}"):
        federate(*SINGLE, *overrides)


def test_every_client_has_one_sample() -> None:
    one_each = ["clients.count=10", "clients.per_round=10", "data.subset=10", "partition=iid"]
    with pytest.raises(InputError, match=r"^local\.last_batch=auto: every client has one training"):
        federate(*one_each, *SMALL)


@pytest.mark.parametrize("own_validation", ["algorithm=fedfomo", "loss=cyclic_distillation"])
def test_samples_that_a_part_holds_out_are_in_no_batch(own_validation: str) -> None:
    words = [*EQUAL, *SMALL, own_validation, "local.last_batch=keep", "local.batch_size=16"]
    with pytest.raises(InputError, match="the last batch of client 0 would hold one"):
        federate(*words, "data.subset=63")  # 21 samples each, of which 17 train
    federate(*words, "data.subset=51")  # 17 samples each, of which 14 train
    with pytest.raises(InputError, match=r"^local\.last_batch=auto: every client has one training"):
        federate(*SMALL, own_validation, "data.subset=10", "partition=iid", *FIVE)
