"""FedExP's server step size by hand, over processes, and in short runs."""

from pathlib import Path

import pytest
import torch
from support.federations import federate

import fedexp
from fedexp.aggregators.average import Average
from fedexp.aggregators.server_extrapolation import ServerExtrapolation
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.distributed.wire import decode, encode
from fedexp.testing import check_part

# One class a client: their steps disagree, and the server takes long ones.
DIFFERENT = ["partition=shards", "partition.classes_per_client=1", "clients.per_round=4"]


def start() -> Tensors:
    return {"w": torch.ones(3, dtype=torch.float64), "mean": torch.zeros(1), "n": torch.tensor(0)}


def update(client: int, samples: int, step: list[float]) -> Update:
    weights = {"w": 1 + torch.tensor(step, dtype=torch.float64)}
    weights |= {"mean": torch.tensor([float(client)]), "n": torch.tensor(client)}
    return Update(client, samples, weights)


def prepared(weighting: str, epsilon: float) -> ServerExtrapolation:
    aggregator = ServerExtrapolation(weighting, epsilon)
    counts = torch.ones(3, 2, dtype=torch.int64)
    aggregator.setup(Setting(0, 2, 2, 2, 3, 3, Clients.of(counts), Model({"w": torch.Size([3])})))
    return aggregator


UNIT_STEPS = [[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]]


def test_the_step_of_three_different_clients() -> None:
    aggregator = prepared("uniform", 0.375)
    for client, step in enumerate(UNIT_STEPS):
        aggregator.add(update(client, 1, step), start())
    merged = aggregator.merge(start())
    # sum ||D_i||^2 = 27, D = (1, 1, 1), M = 3: eta_g = 27 / (2 * 3 * (3 + 0.375)) = 4/3
    assert aggregator.metrics() == {"aggregator/step_size": pytest.approx(4 / 3)}
    assert merged["w"].tolist() == pytest.approx([1 + 4 / 3] * 3)
    assert merged["mean"].item() == 1  # a buffer is averaged, not extrapolated


def test_a_step_weighted_by_samples() -> None:
    aggregator = prepared("samples", 0.5)
    for client, (samples, step) in enumerate(zip((2, 1, 1), UNIT_STEPS, strict=True)):
        aggregator.add(update(client, samples, step), start())
    merged = aggregator.merge(start())
    # p = (1/2, 1/4, 1/4), sum p_i ||D_i||^2 = 9, D = (1.5, 0.75, 0.75), ||D||^2 = 3.375
    eta = 9 / (2 * (3.375 + 0.5))
    assert merged["w"].tolist() == pytest.approx([1 + eta * 1.5, 1 + eta * 0.75, 1 + eta * 0.75])


def test_a_client_that_is_drawn_twice_counts_twice() -> None:
    twice, apart = prepared("uniform", 0.5), prepared("uniform", 0.5)
    drawn = update(0, 1, [3, 0, 0])
    twice.add(Update(0, 1, drawn.weights, draws=2), start())
    for _ in range(2):
        apart.add(drawn, start())
    for aggregator in (twice, apart):
        aggregator.add(update(1, 1, [-3, 1, 0]), start())
    assert torch.equal(twice.merge(start())["w"], apart.merge(start())["w"])


def test_equal_steps_are_fedavg_to_the_bit() -> None:
    aggregator, average = prepared("samples", 0.001), Average("samples")
    for client in range(3):
        for each in (aggregator, average):
            each.add(update(client, client + 1, [0.1, 0.2, 0.3]), start())
    assert torch.equal(aggregator.merge(start())["w"], average.merge(start())["w"])
    assert aggregator.metrics() == {"aggregator/step_size": 1}


def test_epsilon_bounds_the_step_of_opposed_clients() -> None:
    aggregator = prepared("uniform", 0.25)
    for client, step in enumerate(([1.0, 0.0, 0.0], [-1.0, 0.0, 0.0])):
        aggregator.add(update(client, 1, step), start())
    assert torch.equal(aggregator.merge(start())["w"], start()["w"])
    assert aggregator.metrics() == {"aggregator/step_size": 2}  # 1 / (2 * 0.25)


def test_two_processes_take_the_step_of_one() -> None:
    alone, *ranks = (prepared("samples", 0.1) for _ in range(3))
    for client, step in enumerate(UNIT_STEPS):
        for each in (alone, ranks[client % 2]):
            each.add(update(client, client + 1, step), start())
    shares = [each.contribution() for each in ranks]
    items = decode(encode([each.items for each in shares]), torch.device("cpu"))
    sums = {name: shares[0].sums[name] + shares[1].sums[name] for name in shares[0].sums}
    ranks[0].set_reduced(sums, items)
    reduced, expected = ranks[0].merge(start()), alone.merge(start())
    assert {n: v.tolist() for n, v in reduced.items()} == {
        n: v.tolist() for n, v in expected.items()
    }
    assert ranks[0].metrics() == alone.metrics()


def test_a_round_without_updates_changes_nothing() -> None:
    current = start()
    assert prepared("samples", 0.1).merge(current) is current


def test_a_run_takes_long_steps_and_sends_no_more_than_fedavg() -> None:
    found = {}
    for algorithm in ("fedavg", "fedexp"):
        federation = federate(f"algorithm={algorithm}", *DIFFERENT, "data.subset=300")
        found[algorithm] = [federation.run_round(round).metrics for round in (1, 2, 3)]
    assert all(each["aggregator/step_size"] > 1 for each in found["fedexp"])
    for cost in ("cost/upload_bytes", "cost/download_bytes"):
        assert [m[cost] for m in found["fedexp"]] == [m[cost] for m in found["fedavg"]]


@pytest.mark.slow
def test_the_contract() -> None:
    """Engines agree, a resumed run and one whose halves are apart are the same to the bit."""
    check_part("algorithm=fedexp", "clients.per_round=4", "partition.beta=0.05")


@pytest.mark.slow
def test_runs_of_one_and_two_processes_agree(tmp_path: Path) -> None:
    options = [
        "algorithm=fedexp",
        *DIFFERENT,
        "rounds=3",
        "data.subset=300",
        "measure.personal=null",
    ]
    quiet = ["tracking.wandb.mode=disabled", "tracking.progress=false"]
    one, two = (
        fedexp.run([*options, *quiet, f"engine.devices={n}", f"hydra.run.dir={tmp_path / str(n)}"])
        for n in (1, 2)
    )
    sizes = [each.metrics["aggregator/step_size"].tolist() for each in (one, two)]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-5)
    for name, value in one.model.weights.items():
        torch.testing.assert_close(value, two.model.weights[name], rtol=1e-5, atol=1e-6)
