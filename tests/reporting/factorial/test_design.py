"""The design of a factorial experiment: combinations, aliases and refused designs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedexp.errors import InputError
from fedexp.reporting.factorial.design import Design

HEAD = [{"head": "linear"}, {"head": "prototype"}]
LOSS = [{"loss": "cross_entropy"}, {"loss": "rpcl_cpdr"}]
SERVER = [{"aggregator": "uniform"}, {"aggregator": "momentum", "aggregator.lr": 0.3}]


def design(generators: dict[str, Any] | None = None, **factors: Any) -> Design:
    found = Design.read({"factors": factors, "generators": generators or {}})
    assert found is not None
    return found


def letters(count: int) -> dict[str, Any]:
    return {each: [{each: 0}, {each: 1}] for each in "abcdef"[:count]}


def test_all_combinations_of_two_factors() -> None:
    found = design(head=HEAD, server=SERVER)
    assert found.parts() == [
        {"head": "linear", "aggregator": "uniform"},
        {"head": "linear", "aggregator": "momentum", "aggregator.lr": "0.3"},
        {"head": "prototype", "aggregator": "uniform"},
        {"head": "prototype", "aggregator": "momentum", "aggregator.lr": "0.3"},
    ]
    assert found.column(("head", "server")) == (1, -1, -1, 1)
    assert found.resolution is None
    assert found.size() == "factorial: head, server; 4 of 4 combinations"
    assert found.keys == {"head", "aggregator", "aggregator.lr"}


def test_the_combination_of_a_run_is_read_from_its_overrides() -> None:
    found = design(head=HEAD, server=SERVER)
    typed = ["seed=1", "aggregator=momentum", "head=linear", "aggregator.lr=0.3"]
    assert found.signs_of(typed) == {"head": -1, "server": 1}
    assert found.signs_of(["head=linear"]) is None
    assert found.highs(typed) == 1


def test_a_typed_value_is_one_of_the_levels() -> None:
    found = design(head=HEAD, server=SERVER)
    found.check_typed({"head": ["linear"], "seed": ["7"], "aggregator.lr": ["0.3"]})
    with pytest.raises(InputError, match=r"^head=etf: is no level .* has linear, prototype;"):
        found.check_typed({"head": ["linear", "etf"]})


def test_half_of_five_factors_has_resolution_five() -> None:
    found = design({"e": ["a", "b", "c", "d"]}, **letters(5))
    assert len(found.combinations) == 16
    assert found.resolution == 5
    assert set(found.column(tuple("abcde"))) == {1}
    assert found.column(("a", "b")) == found.column(("c", "d", "e"))
    assert len(found.effects) == 15
    assert len({found.column(each) for each in found.effects}) == 15


@pytest.mark.parametrize(
    ("generators", "factors", "message"),
    [
        ({"d": ["a", "b", "c"]}, letters(4), r"b x c could not be told from a x d"),
        ({"c": ["a", "b"]}, letters(3), r"a x b could not be told from c"),
        ({"c": ["a", "z"]}, letters(3), r"generators\.c: should be factors without a gen"),
        ({"c": []}, letters(3), r"generators\.c: should be factors"),
        ({}, {"a": [{"a": 0}]}, r"factors\.a=.*: should be two levels"),
        ({}, {"a": [{}, {"a": 1}]}, r"factors\.a=.*: should be two levels"),
        ({}, {"a": [{"a": 0}, {"a": 0}]}, r"factors\.a: its levels should set different"),
        ({}, {**letters(1), "b": [{"b": 0}, {"a": 2}]}, r"factors: a and b set a to different"),
        ({}, {"a": [{"a": "0,1"}, {"a": 2}]}, r"factors\.a: a=0,1 should be one value"),
    ],
)
def test_a_wrong_design_is_refused(generators: Any, factors: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        design(generators, **factors)


def test_levels_of_two_factors_may_need_one_value_of_a_key() -> None:
    found = design(a=[{"a": 0}, {"a": 1, "c": 1}], b=[{"b": 0}, {"b": 1, "c": 1}])
    assert [found.signs_of([f"{k}={v}" for k, v in each.items()]) for each in found.parts()] == (
        found.combinations
    )


def test_the_design_of_a_sweep_is_in_its_file(tmp_path: Path) -> None:
    node = {"factors": {"head": HEAD, "loss": LOSS}, "generators": {}}
    saved = {"hydra": {"sweeper": {"factorial": node}}}
    (tmp_path / "multirun.yaml").write_text(yaml.safe_dump(saved))
    assert Design.of_sweep(tmp_path) == design(head=HEAD, loss=LOSS)


@pytest.mark.parametrize("content", ["", "{", "hydra: {sweeper: {params: {}}}"])
def test_other_sweeps_have_no_design(content: str, tmp_path: Path) -> None:
    assert Design.of_sweep(tmp_path) is None
    (tmp_path / "multirun.yaml").write_text(content)
    assert Design.of_sweep(tmp_path) is None
