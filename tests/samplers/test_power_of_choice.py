import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.federations import compose, federate
from support.state_files import through_a_file

from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.runtime.plan import plan
from fedexp.samplers.power_of_choice import PowerOfChoice
from fedexp.samplers.random import Random

TINY = ["clients.count=6", "clients.per_round=2", "data.subset=200", "local.epochs=1"]


def setting(sizes: list[int], per_round: int, seed: int = 0) -> Setting:
    counts = torch.tensor(sizes).unsqueeze(1)
    return Setting(seed, 10, 1, 1, len(sizes), per_round, Clients.of(counts), Model({}))


def prepared(d: int | None, sizes: list[int], per_round: int, seed: int = 0) -> PowerOfChoice:
    sampler = PowerOfChoice(d)
    sampler.setup(setting(sizes, per_round, seed))
    return sampler


@pytest.mark.parametrize(
    ("losses", "cohort"),
    [
        ({0: 0.5, 2: 3.0, 3: 0.1, 5: 2.0}, [2, 5]),
        ({1: 2.0, 4: 2.0, 6: 2.0}, [1, 4]),  # ties: the lower number
        ({1: math.nan, 4: 0.1, 6: math.inf}, [4, 6]),
        ({1: math.nan, 4: 0.1, 6: math.nan}, [1, 4]),
    ],
)
def test_the_largest_losses_are_chosen(losses: dict[int, float], cohort: list[int]) -> None:
    sampler = prepared(4, [1] * 7, 2)
    sampler.observe({client: {"loss": torch.tensor(loss)} for client, loss in losses.items()})
    assert sampler.select(1) == cohort


def test_candidates_are_different_clients_with_data() -> None:
    sampler = prepared(4, [3, 0, 5, 1, 0, 2, 9], 2)
    for round in range(1, 50):
        candidates = sampler.candidates(round)
        assert len(candidates) == len(set(candidates)) == 4
        assert set(candidates) <= {0, 2, 3, 5, 6}


def test_candidates_depend_on_seed_and_round_alone() -> None:
    sizes = list(range(1, 41))
    first, again, other = (prepared(8, sizes, 5, seed) for seed in (0, 0, 1))
    first.candidates(1)
    assert first.candidates(7) == again.candidates(7)
    assert first.candidates(7) != first.candidates(8)
    assert first.candidates(7) != other.candidates(7)


def test_candidates_are_drawn_in_proportion_to_samples() -> None:
    sizes = np.array([1, 2, 3, 4])
    sampler = prepared(1, sizes.tolist(), 1)
    draws = Counter(sampler.candidates(round)[0] for round in range(4000))
    for client, share in enumerate(sizes / 10):
        spread = (4000 * share * (1 - share)) ** 0.5
        assert abs(draws[client] - 4000 * share) < 4 * spread


def test_with_k_candidates_it_is_the_weighted_sampler() -> None:
    sizes = list(range(1, 21))
    sampler, weighted = prepared(5, sizes, 5), Random("samples")
    weighted.setup(setting(sizes, 5))
    for round in range(1, 20):
        assert sampler.candidates(round) == weighted.select(round)


def test_number_of_candidates() -> None:
    assert len(prepared(None, [1] * 9, 3).candidates(1)) == 6
    assert prepared(None, [1, 0, 1, 1], 3).candidates(1) == [0, 2, 3]
    assert prepared(9, [1, 0, 1, 1], 3).candidates(1) == [0, 2, 3]
    with pytest.raises(InputError, match=r"sampler\.candidates=2: .* at least 3, .*system\.invite"):
        prepared(2, [1, 0, 1, 1], 3)


def test_ideal_all_clients_with_data_are_candidates() -> None:
    sampler = prepared(6, [2, 0, 1, 1, 0, 3], 2)
    assert sampler.candidates(1) == sampler.candidates(2) == [0, 2, 3, 5]
    planned = plan(compose("sampler=power_of_choice_ideal", "clients.count=37"))
    assert isinstance(planned.sockets.sampler, PowerOfChoice)
    assert planned.sockets.sampler.wanted == 37


def test_when_fewer_have_data_all_of_those_take_part() -> None:
    sampler = prepared(None, [0, 4, 0, 1], 3)
    sampler.observe({client: {"loss": torch.tensor(0.0)} for client in sampler.candidates(1)})
    assert sampler.select(1) == [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "etf"])
def test_two_rounds_probe_the_candidates_and_count_it(head: str) -> None:
    federation = federate("sampler=power_of_choice", "aggregator=uniform", f"head={head}", *TINY)
    sampler, data = federation.sampler, federation.data
    assert isinstance(sampler, PowerOfChoice)
    chosen: Counter[int] = Counter()
    for round in (1, 2):
        candidates = sampler.candidates(round)
        assert len(candidates) == 4
        model, losses = federation.global_model(round), {}
        for client in candidates:
            x, y = data.train.gather(data.clients[client].train_index)
            with torch.no_grad():
                losses[client] = F.cross_entropy(model(x), y).item()
        metrics = federation.run_round(round).metrics
        assert sampler.losses == pytest.approx(losses, rel=1e-5)
        cohort = sorted(losses, key=losses.__getitem__)[-2:]
        chosen.update(cohort)
        message = federation.server.broadcast(round).nbytes
        # the cohort is among the candidates, and nobody downloads twice
        assert metrics["cost/download_bytes"] == 4 * message
        assert metrics["cost/upload_bytes"] == 4 * 4 + 2 * message
        assert metrics["time/probe_s"] > 0
    assert sampler.times_chosen.tolist() == [chosen[client] for client in range(6)]

    other = federate("sampler=power_of_choice", f"head={head}", *TINY).sampler
    other.load_server_state(through_a_file(sampler.server_state()))
    assert torch.equal(other.times_chosen, sampler.times_chosen)
