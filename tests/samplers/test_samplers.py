from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from support.federations import compose, federate

from fedexp.cli.command import config_folder
from fedexp.core.part import Clients, Model, Setting
from fedexp.runtime.plan import plan
from fedexp.samplers.base import Sampler
from fedexp.samplers.random import Random
from fedexp.samplers.round_robin import RoundRobin


def prepared(sampler: Sampler, sizes: list[int], per_round: int, seed: int = 0) -> Sampler:
    counts = torch.tensor(sizes).unsqueeze(1)
    sampler.setup(Setting(seed, 10, 1, 1, len(sizes), per_round, Clients.of(counts), Model({})))
    return sampler


FILES = sorted(Path(config_folder(), "sampler").glob("*.yaml"))
SOME_EMPTY = ["partition.beta=0.03", "clients.count=8", "clients.per_round=3", "data.subset=80"]


@pytest.mark.matrix
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_sampler_runs_as_its_file_sets_it(file: Path) -> None:
    devices = "system=uniform"  # sampler=oort needs them
    federation = federate(f"sampler={file.stem}", "aggregator=uniform", *SOME_EMPTY, devices)
    sampler = federation.sampler
    assert 3 < len(sampler.eligible) < 8
    for round in (1, 2, 3):
        federation.run_round(round)
    assert set(sampler.times_chosen.nonzero().flatten().tolist()) <= set(sampler.eligible.tolist())
    # 3 a round; the last round of HiCS-FL's warm-up has the clients that are left
    assert 6 < sampler.times_chosen.sum() <= 9


SAMPLERS = [Random("uniform"), Random("samples"), RoundRobin()]
NAMES = ["random", "weighted", "round_robin"]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=NAMES)
def test_a_cohort_is_k_different_clients_with_data(sampler: Sampler) -> None:
    prepared(sampler, [3, 0, 5, 1, 0, 2, 9], 3)
    for round in range(1, 50):
        cohort = sampler.select(round)
        assert len(cohort) == len(set(cohort)) == 3
        assert set(cohort) <= {0, 2, 3, 5, 6}


@pytest.mark.parametrize("sampler", SAMPLERS, ids=NAMES)
def test_when_fewer_have_data_all_of_those_take_part(sampler: Sampler) -> None:
    assert prepared(sampler, [0, 4, 0, 1], 3).select(1) == [1, 3]


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_a_draw_depends_on_seed_and_round_alone(weighting: str) -> None:
    sizes = list(range(1, 41))
    first = prepared(Random(weighting), sizes, 5)  # type: ignore[arg-type]
    again = prepared(Random(weighting), sizes, 5)  # type: ignore[arg-type]
    other = prepared(Random(weighting), sizes, 5, seed=1)  # type: ignore[arg-type]
    assert first.select(7) == again.select(7)
    assert first.select(7) != first.select(8)
    assert first.select(7) != other.select(7)


def test_uniform_draws_are_equally_often_of_each_client() -> None:
    sampler = prepared(Random("uniform"), [1, 100, 1, 100], 1)
    draws = Counter(sampler.select(round)[0] for round in range(4000))
    # 1000 expected each, standard deviation sqrt(4000 * 1/4 * 3/4) = 27
    assert all(abs(draws[client] - 1000) < 4 * 27 for client in range(4))


def test_weighted_draws_are_in_proportion_to_samples() -> None:
    sizes = np.array([1, 2, 3, 4])
    sampler = prepared(Random("samples"), sizes.tolist(), 1)
    draws = Counter(sampler.select(round)[0] for round in range(4000))
    for client, share in enumerate(sizes / 10):
        spread = (4000 * share * (1 - share)) ** 0.5
        assert abs(draws[client] - 4000 * share) < 4 * spread


def test_round_robin_selects_all_in_turn_and_starts_over() -> None:
    sampler = prepared(RoundRobin(), [1] * 5, 2)
    assert [sampler.select(round) for round in (1, 2, 3, 4)] == [[0, 1], [2, 3], [0, 4], [1, 2]]


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["sampler=weighted"], True),
        (["sampler=clustered"], True),
        (["sampler=power_of_choice"], True),
        (["sampler=power_of_choice_ideal"], True),
        (["sampler=clustered", "aggregator=uniform"], False),
        (["sampler=random"], False),
    ],
)
def test_weighting_by_size_twice_is_warned_of(
    overrides: list[str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    federate(*overrides)
    assert ("use aggregator=uniform" in caplog.text) == warned


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["sampler=hics", "algorithm=fedamp"], True),
        (["sampler=clustered", "algorithm=ifca"], True),
        (["sampler=divfl", "algorithm=ifca"], True),
        (["sampler=hics", "algorithm=fedala"], True),
        (["sampler=clustered", "algorithm=fedas"], True),
        (["sampler=hics", "algorithm=fedadmm", "regularizer.start=local"], True),
        (["sampler=hics", "algorithm=fedadmm"], False),
        (["sampler=hics", "algorithm=fedfomo"], True),
        (["sampler=hics", "algorithm=fedcp"], True),  # it sends a mean of two heads
        (["sampler=hics", "algorithm=fedcp", "sampler.signal=class_counts"], False),
        (["sampler=divfl_hics", "algorithm=fedala"], True),
        (["sampler=divfl_hics", "algorithm=ifca"], False),  # its steps are from the received model
        (["sampler=divfl_released", "algorithm=ifca"], False),  # it compares gradients
        (["sampler=weighted", "algorithm=fedamp"], False),
        (["sampler=hics", "algorithm=fedavg"], False),
        (["sampler=hics", "algorithm=fedcurv"], False),  # clients get own extras, not own weights
        (["sampler=divfl", "algorithm=floco"], False),
    ],
)
def test_distances_that_are_not_the_clients_steps_are_warned_about(
    overrides: list[str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plan(compose(*overrides))
    assert ("this sampler compares clients by how far" in caplog.text) == warned
