"""Oort by hand: scores, draws, the pacer, and the utility that a client sends."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.federations import compose, federate

from fedexp.core.messages import PartUpdate
from fedexp.core.randomness import numpy_generator
from fedexp.errors import InputError
from fedexp.runtime.plan import plan
from fedexp.samplers.oort import Oort, draw_above_cut, slow_penalty, statistical_scores
from fedexp.testing import check_part

SMALL = (
    *("clients.count=10", "clients.per_round=4", "data.subset=200", "local.epochs=1", "rounds=4"),
    *("partition=iid", "model.hidden=[8]", "model.feature_dim=8", "measure.personal.every=1000"),
    *("measure.prototypes.every=1000", "system=uniform", "sampler=oort"),
)


def oort(*overrides: str) -> Oort:
    sampler = federate(*SMALL, *overrides).sampler
    assert isinstance(sampler, Oort)
    return sampler


def update(client: int, utility: float) -> PartUpdate:
    return PartUpdate(client, 20, {}, {"utility": torch.tensor(utility)})


def test_scores_by_hand() -> None:
    utilities, last = np.array([10.0, 30.0, 20.0]), np.array([1, 2, 4])
    bonus = [math.sqrt(0.1 * math.log(5) / n) for n in (1, 2, 4)]
    expected = [0.0 + bonus[0], 1.0 + bonus[1], 0.5 + bonus[2]]
    assert statistical_scores(utilities, last, 5, 1.0) == pytest.approx(expected)
    assert statistical_scores(np.array([7.0, 7.0]), np.array([1, 1]), 1, 1.0).tolist() == [1, 1]


def test_a_single_large_utility_is_clipped() -> None:
    utilities = np.array([0.0, 1.0, 2.0, 3.0, 1000.0])
    found = statistical_scores(utilities, np.full(5, 4), 1, 0.75)  # ln 1 = 0: no bonus
    assert found == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])


def test_slow_clients_pay_and_fast_ones_gain_nothing() -> None:
    assert slow_penalty(np.array([1.0, 4.0, 8.0]), 4.0, 2.0).tolist() == [1, 1, 0.25]


def test_clients_just_below_the_cut_off_are_drawn_too() -> None:
    scores = np.array([1.0, 0.96, 0.9, 0.95, 0.1])
    drawn = [draw_above_cut(scores, 2, 0.95, numpy_generator(0, "x", n)) for n in range(300)]
    times = np.bincount(np.concatenate(drawn), minlength=5)
    assert (times[[0, 1, 3]] > 100).all()
    assert times[2] == times[4] == 0  # 0.95 * 0.96 = 0.912
    assert all(len(set(each.tolist())) == 2 for each in drawn)
    assert len(draw_above_cut(scores, 0, 0.95, numpy_generator(0, "x"))) == 0


def test_epsilon_falls_to_its_smallest_value() -> None:
    sampler = oort("sampler.exploration=0.8", "sampler.exploration_decay=0.5")
    assert [sampler.epsilon(round) for round in (1, 2, 3, 9)] == pytest.approx([0.8, 0.4, 0.2, 0.2])


def test_the_cohort_has_new_and_known_clients() -> None:
    sampler = oort("sampler.exploration=0.5", "sampler.exploration_decay=1")
    assert len(set(sampler.select(1))) == 4  # nobody is known
    sampler.aggregate([update(client, 5.0) for client in range(6)])
    for round in range(2, 30):
        chosen = sampler.select(round)
        assert sum(client < 6 for client in chosen) == 2
        assert chosen == sampler.select(round)
    sampler.aggregate([update(client, 5.0) for client in range(6, 9)])
    assert sum(client == 9 for client in sampler.select(30)) == 1  # one is left to explore
    sampler.aggregate([update(9, 5.0)])
    assert len(set(sampler.select(31))) == 4


def test_new_clients_are_drawn_by_speed() -> None:
    sampler = oort("clients.per_round=1", "sampler.exploration=1", "sampler.exploration_decay=1")
    sampler.seconds = np.array([1.0, 2.0, 4.0, *[1e9] * 7])
    times = np.bincount([sampler.select(round)[0] for round in range(1, 1001)], minlength=10)
    assert times[:3] / 1000 == pytest.approx(np.array([4, 2, 1]) / 7, abs=0.05)


def test_a_slow_client_with_a_large_loss_loses_to_a_fast_one() -> None:
    only_known = ("sampler.exploration=0", "sampler.exploration_min=0", "sampler.cut=1")
    sampler = oort(*only_known, "sampler.preferred=0.5")
    sampler.seconds = np.ones(10)
    sampler.select(1)
    sampler.aggregate([update(client, 10.0 + client) for client in range(10)])
    assert sampler.select(2) == [6, 7, 8, 9]
    sampler.seconds[9] = 100.0
    scores = sampler.scores(np.arange(10), 2)
    bonus = math.sqrt(0.1 * math.log(2))
    top = np.quantile(np.arange(10.0), 0.95)
    assert scores[8] == pytest.approx(8 / top + bonus)
    assert scores[9] == pytest.approx((1 + bonus) * (1 / 100) ** 2)
    assert sampler.select(2) == [5, 6, 7, 8]


def test_a_client_that_was_left_out_is_known_with_the_mean_utility() -> None:
    """Clients 3 (slow), 4 (refused) and 5 (utility not finite) have no utility of their own."""
    sampler = oort()
    for round in (1, 2):
        sampler.select(round)
    sampler.observe_seconds({0: 1.0, 1: 2.0, 2: 3.0, 3: 400.0, 4: 4.0, 5: 5.0})
    utilities = {0: 5.0, 1: 10.0, 2: 30.0, 5: math.inf}
    sampler.aggregate([update(client, utility) for client, utility in utilities.items()])
    assert sampler.utilities[:6].tolist() == [5, 10, 30, 15, 15, 15]
    assert sampler.last_rounds.tolist() == [2] * 6 + [0] * 4
    assert sampler.seconds[3] == 400
    assert np.isnan(sampler.utilities[6:]).all()  # not in the cohort, or dropped out
    assert sampler.sums == [45.0]  # the pacer counts utilities that clients sent
    assert sampler.times_chosen.tolist() == [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]


def test_a_round_that_is_not_merged_gives_new_clients_the_utility_0() -> None:
    sampler = oort()
    sampler.select(1)
    sampler.observe_seconds({1: 1.0})
    sampler.aggregate([update(1, 5.0)])
    sampler.select(2)
    sampler.observe_seconds({1: 2.0, 3: 400.0})
    assert sampler.utilities[[1, 3]].tolist() == [5, 0]
    assert sampler.last_rounds[[1, 3]].tolist() == [2, 2]


def test_clients_keep_their_utilities_if_the_aggregator_does_not_merge() -> None:
    federation = federate(*SMALL, "clients.per_round=10", "aggregator=krum")
    federation.run_round(1)
    sampler = federation.sampler
    assert isinstance(sampler, Oort)
    known = sampler.utilities.copy()
    assert (known > 0).all()
    federation.server.aggregator.merge = lambda current: current  # type: ignore[method-assign]
    federation.run_round(2)
    assert sampler.utilities.tolist() == known.tolist()
    assert set(sampler.last_rounds) == {2}


def test_the_pacer_allows_slower_clients_when_utility_falls() -> None:
    sampler = oort("sampler.window=2", "sampler.preferred=0.3", "sampler.pacer_step=0.4")
    quantiles = []
    for utility in (5.0, 5.0, 6.0, 6.0, 4.0, 4.0, 1.0, 1.0, 0.5, 0.5):
        sampler.aggregate([update(0, utility)])
        quantiles.append(sampler.quantile)
    assert quantiles == pytest.approx([0.3] * 5 + [0.7] * 2 + [1.0] * 3)
    assert sampler.preferred_seconds() == math.inf


def test_a_client_that_trained_often_is_left_out() -> None:
    sampler = oort("sampler.exploration=0", "sampler.exploration_min=0", "sampler.most_rounds=2")
    sampler.select(1)
    sampler.aggregate([update(client, 10.0 + client) for client in range(10)])
    sampler.aggregate([update(9, 19.0)])
    for round in range(3, 9):
        assert 9 not in sampler.select(round)


def test_the_limit_holds_if_fewer_than_a_cohort_are_below_it_but_enough_for_the_draw() -> None:
    """K = 10, of which 3 are drawn by score; 12 clients are at the limit, 8 below it, 100 new."""
    words = ("clients.count=120", "clients.per_round=10", "data.subset=null")
    sampler = oort(*words, "sampler.exploration=0.7", "sampler.most_rounds=2")
    sampler.select(1)
    for clients in (range(20), range(12)):
        sampler.aggregate([update(client, 10.0 + client) for client in clients])
    for round in range(3, 9):
        cohort = sampler.select(round)
        assert len(cohort) == 10
        assert min(cohort) >= 12


def test_the_utility_is_that_of_an_independent_loop() -> None:
    """n_k sqrt(mean loss^2) over the samples of all steps, from a plain SGD loop."""
    plain = ("optimizer.momentum=0", "optimizer.weight_decay=0", "local.batch_size=8")
    federation = federate(*SMALL, *plain, "local.epochs=2", "optimizer.lr=0.1")
    message = federation.server.broadcast(1)
    (sent,) = federation.engine.train([3], message)
    module: Any = federation.global_model(0)
    data = federation.data.clients[3]
    batches = data.local_batches(1, 8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    squares: list[torch.Tensor] = []
    for _ in range(2):
        for inputs, targets in batches:
            losses = F.cross_entropy(
                module.head(module.backbone(inputs)), targets, reduction="none"
            )
            squares.append(losses.detach().square())
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
    expected = data.num_samples * torch.cat(squares).mean().sqrt()
    assert sent.extras["sampler"]["utility"] == pytest.approx(expected.item(), rel=1e-5)


def test_only_the_utility_is_sent_besides_the_weights() -> None:
    federation = federate(*SMALL)
    message = federation.server.broadcast(1)
    (found,) = federation.engine.train([3], message)
    assert found.nbytes == message.nbytes + 4


def test_expected_seconds_are_the_seconds_of_the_first_round() -> None:
    federation = federate(*SMALL)
    sampler: Any = federation.sampler
    expected = sampler.seconds.copy()
    federation.run_round(1)
    time = federation.measures.exchange.time
    assert time is not None
    assert len(time.of_clients) == 4
    for client, seconds in time.of_clients.items():
        assert seconds == pytest.approx(expected[client], rel=1e-3)  # 4 bytes more
        assert sampler.seconds[client] == seconds


@pytest.mark.slow
def test_the_contract_of_a_part() -> None:
    check_part("sampler=oort", "system=uniform")


def test_without_devices_it_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="sampler=oort: needs the seconds of simulated devices"):
        plan(compose("sampler=oort"))


@pytest.mark.parametrize("local", ["local.epochs=2", "local.steps=3"])
@pytest.mark.parametrize("method", ["none", "fedrep"])
def test_expected_seconds_are_those_of_all_phases(method: str, local: str) -> None:
    federation = federate(*SMALL, f"personalization={method}", local, "local.batch_size=32")
    clients, devices = list(range(10)), federation.system.devices
    samples = [federation.engine.schedule.samples(client, 1) for client in clients]
    nbytes = [federation.server.broadcast(1).nbytes] * 10
    assert devices is not None
    assert isinstance(federation.sampler, Oort)
    expected = devices.seconds(clients, samples, nbytes, nbytes)
    assert federation.sampler.seconds == pytest.approx(expected)
