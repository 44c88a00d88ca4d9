"""FedNova by hand, and in training against a plain loop."""

from typing import Any

import pytest
import torch
from support.federations import compose, federate, weights_after
from support.plain_loop import LR, SETTING, PlainLoop, assert_same
from torch import Tensor

from fedexp.aggregators.normalized import Normalized
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.distributed.wire import decode, encode
from fedexp.errors import InputError
from fedexp.runtime.plan import plan
from fedexp.testing import check_part


def start() -> Tensors:
    return {"w": torch.ones(2, dtype=torch.float64), "mean": torch.zeros(1), "n": torch.tensor(0)}


def update(client: int, samples: int, step: list[float], steps: int, norm: float) -> Update:
    weights = {"w": 1 + torch.tensor(step, dtype=torch.float64)}
    weights |= {"mean": torch.tensor([float(client)]), "n": torch.tensor(client)}
    reported = {"steps": torch.tensor(steps), "norm": torch.tensor(norm)}
    return Update(client, samples, weights, {"aggregator": reported})


def prepared(weighting: Any = "samples", effective: Any = "steps") -> Normalized:
    aggregator = Normalized(weighting, effective, 0)
    counts = torch.ones(3, 2, dtype=torch.int64)
    aggregator.setup(Setting(0, 2, 2, 2, 3, 3, Clients.of(counts), Model({"w": torch.Size([2])})))
    return aggregator


UPDATES = [(0, 3, [4.0, 0.0], 4, 8.0), (1, 1, [0.0, 6.0], 2, 3.0)]


@pytest.mark.parametrize(
    ("weighting", "effective", "expected"),
    [
        # p = (3/4, 1/4): directions (0.5, 0) and (0, 2), tau_eff = 3/4 * 4 + 1/4 * 2 = 3.5
        ("samples", "steps", [1 + 3.5 * 0.75 * 0.5, 1 + 3.5 * 0.25 * 2]),
        ("samples", "norms", [1 + 6.75 * 0.75 * 0.5, 1 + 6.75 * 0.25 * 2]),
        ("uniform", "steps", [1 + 3 * 0.5 * 0.5, 1 + 3 * 0.5 * 2]),
    ],
)
def test_a_round_by_hand(weighting: str, effective: str, expected: list[float]) -> None:
    aggregator = prepared(weighting, effective)
    for each in UPDATES:
        aggregator.add(update(*each), start())
    merged = aggregator.merge(start())
    assert merged["w"].tolist() == pytest.approx(expected)
    # buffers are averaged, integers are of the largest client
    assert merged["mean"].item() == pytest.approx(0.25 if weighting == "samples" else 0.5)
    assert merged["n"].item() == 0


def test_a_client_that_is_drawn_twice_counts_twice() -> None:
    twice, apart = prepared(), prepared()
    first, second = (update(*each) for each in UPDATES)
    twice.add(Update(0, 3, first.weights, first.extras, draws=2), start())
    for each in (first, first):
        apart.add(each, start())
    for aggregator in (twice, apart):
        aggregator.add(second, start())
    torch.testing.assert_close(twice.merge(start())["w"], apart.merge(start())["w"])


def test_two_processes_take_the_step_of_one() -> None:
    alone, *ranks = (prepared() for _ in range(3))
    for client, each in enumerate(UPDATES):
        for aggregator in (alone, ranks[client]):
            aggregator.add(update(*each), start())
    shares = [each.contribution() for each in ranks]
    items = decode(encode([each.items for each in shares]), torch.device("cpu"))
    sums = {name: shares[0].sums[name] + shares[1].sums[name] for name in shares[0].sums}
    ranks[0].set_reduced(sums, items)
    reduced, expected = ranks[0].merge(start()), alone.merge(start())
    assert all(torch.equal(value, expected[name]) for name, value in reduced.items())
    assert ranks[0].metrics() == alone.metrics() == {"aggregator/step_size": 3.5}


def plain_fednova(
    loop: PlainLoop, rounds: int, momentum: float, mu: float, norms: bool
) -> tuple[Tensors, set[int]]:
    """Wang et al., with the formulas of the paper for ||a_i||_1."""
    x, counts = loop.start, set()
    for round, cohort in loop.cohorts(rounds):
        total = sum(loop.samples[k] for k in cohort)
        mean: dict[str, Tensor | float] = dict.fromkeys(x, 0.0)
        effective = 0.0
        for k in cohort:
            y = dict(x)
            velocity: dict[str, Tensor | float] = dict.fromkeys(x, 0.0)
            steps = loop.batches(round, k)
            for batch in steps:
                g = loop.gradient(y, batch)
                velocity = {n: momentum * velocity[n] + g[n] + mu * (y[n] - x[n]) for n in y}
                y = {n: y[n] - LR * velocity[n] for n in y}
            tau = len(steps)
            if mu:
                norm = (1 - (1 - LR * mu) ** tau) / (LR * mu)
            else:
                norm = (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
            p = loop.samples[k] / total
            mean = {n: mean[n] + p * (x[n] - y[n]) / (LR * norm) for n in x}
            effective += p * (norm if norms else tau)
            counts.add(tau)
        x = {n: x[n] - effective * LR * mean[n] for n in x}
    return x, counts


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
@pytest.mark.parametrize(
    ("momentum", "mu", "effective", "faults"),
    [
        (0.0, 0.0, "steps", ["faults=unreliable", "faults.drop=0", "faults.nan=0"]),
        (0.9, 0.0, "norms", []),
        (0.0, 1.5, "steps", []),
    ],
)
def test_training_equals_a_plain_loop(
    engine: str, momentum: float, mu: float, effective: str, faults: list[str]
) -> None:
    options = ["algorithm=fednova", f"aggregator.effective={effective}", *faults]
    options += ["faults.straggle=0.6"] if faults else []
    options += ["regularizer=proximal", f"regularizer.mu={mu}"] if mu else []
    options += [f"optimizer.momentum={momentum}", f"engine={engine}"]
    loop = PlainLoop(*options)
    expected, counts = plain_fednova(loop, 3, momentum, mu, effective == "norms")
    assert len(counts) > 2  # clients take different numbers of steps
    assert_same(weights_after(federate(*SETTING, *options), 3), expected)


def test_with_equal_steps_it_is_fedavg() -> None:
    words = [*SETTING, "local.batch_size=1000", "optimizer=sgd_plain"]
    fednova, fedavg = (federate(*words, f"algorithm={each}") for each in ("fednova", "fedavg"))
    assert_same(weights_after(fednova, 2), weights_after(fedavg, 2), 1e-6)


def test_each_update_has_two_numbers_more() -> None:
    found = {}
    for algorithm in ("fedavg", "fednova"):
        found[algorithm] = federate(*SETTING, f"algorithm={algorithm}").run_round(1).metrics
    plain, nova = found["fedavg"], found["fednova"]
    assert nova["cost/upload_bytes"] == plain["cost/upload_bytes"] + 3 * 16
    assert nova["cost/download_bytes"] == plain["cost/download_bytes"]
    assert nova["aggregator/step_size"] > 1


def test_kept_momentum_is_refused() -> None:
    with pytest.raises(InputError, match="aggregator=normalized divides steps"):
        federate("algorithm=fednova", "optimizer.momentum=0.9", "local.keep_optimizer=true")


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["aggregator=normalized"], 1),
        (["aggregator=normalized", "aggregator.effective=norms"], 0),
        (["aggregator=normalized", "optimizer=sgd_plain"], 0),
        (["aggregator=normalized", "optimizer=adam"], 0),
        (["algorithm=fednova"], 0),
    ],
    ids=str,
)
def test_momentum_that_shortens_the_servers_step_is_warned_of(
    overrides: list[str], warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    plan(compose(*overrides))
    assert caplog.text.count("the server's step is tau/||a||_1 of FedAvg's") == warned


@pytest.mark.slow
def test_it_combines_with_other_sockets() -> None:
    federation = federate(*SETTING, "algorithm=fednh", "aggregator=normalized", "gradient=sam")
    for round in (1, 2):
        assert federation.run_round(round).metrics["train/loss"] > 0


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=fednova", "regularizer=proximal", "optimizer=sgd")
