import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedexp.tracking.statistics import best_round, headline_statistics, rounds_to, rounds_to_best_of
from fedexp.tracking.summary import config_hash, digest, summarize, write_summary

CONFIG = {
    "seed": 7,
    "rounds": 7,
    "tracking": {"progress": True},
    "local": {"epochs": 1},
    "measure": {"global": {"targets": [0.6, 0.9]}},
}
HEADLINES = {
    "global/accuracy": "higher",
    "global/loss": "lower",
    "personal/accuracy_local": "higher",
    "personal/std": "lower",
    "train/loss": "lower",
    "validation/accuracy": "higher",
}
TARGETS = [0.6, 0.9]


def summary_of(history: list[dict[str, float]]) -> dict[str, Any]:
    return summarize(history, HEADLINES, TARGETS, CONFIG, [], {}, {}, "cpu", 1, "serial", 1.0)


def test_statistics_by_hand() -> None:
    accuracies = [0.1, 0.2, 0.9, 0.4, 0.5, 0.6, 0.5]
    history = [{"global/accuracy": each, "train/loss": 1 - each} for each in accuracies]
    statistics = headline_statistics(history, HEADLINES)
    # The last five: 0.9 + 0.4 + 0.5 + 0.6 + 0.5 = 2.9.
    assert statistics["global/accuracy"] == pytest.approx(
        {"final": 0.5, "best": 0.9, "mean_last5": 0.58}
    )
    assert statistics["train/loss"] == pytest.approx(
        {"final": 0.5, "best": 0.1, "mean_last5": 0.42}
    )
    assert set(statistics) == {"global/accuracy", "train/loss"}


def test_only_rounds_that_measured_it_count() -> None:
    measured: list[dict[str, float]] = [{"personal/std": float(each)} for each in range(1, 8)]
    history = [row for each in measured for row in (each, {"time/eval_s": 1.0})]
    statistics = headline_statistics(history, HEADLINES)
    assert statistics == {"personal/std": {"final": 7.0, "best": 1.0, "mean_last5": 6.5}}  # 6 and 7


def test_an_estimate_comes_with_its_latest_standard_error() -> None:
    history = [
        {"personal/accuracy_local": 0.5, "personal/standard_error_local": 0.03},
        {"personal/accuracy_local": 0.7, "personal/standard_error_local": 0.02},
        {"global/accuracy": 0.6},
    ]
    statistics = headline_statistics(history, HEADLINES)
    assert statistics["personal/accuracy_local"]["standard_error"] == 0.02
    assert "standard_error" not in statistics["global/accuracy"]
    assert set(statistics) == {"personal/accuracy_local", "global/accuracy"}


def test_a_diverged_loss_is_not_hidden() -> None:
    history = [{"global/loss": 2.0}, {"global/loss": math.nan}]
    (values,) = headline_statistics(history, HEADLINES).values()
    assert values["best"] == 2.0
    assert math.isnan(values["final"])
    assert math.isnan(values["mean_last5"])


SELECTED = [
    {"validation/accuracy": 0.4, "global/accuracy": 0.9, "personal/std": 0.3},
    {"train/loss": 1.0},
    {"validation/accuracy": 0.6, "global/accuracy": 0.7, "train/loss": 0.5},
    {"validation/accuracy": 0.6, "global/accuracy": 0.8, "train/loss": 0.25},
]


def test_values_in_the_round_that_validation_chooses() -> None:
    assert best_round(SELECTED) == 3  # the first of two
    statistics = headline_statistics(SELECTED, HEADLINES)
    chosen = {name: each.get("at_best_validation") for name, each in statistics.items()}
    assert chosen == {
        "global/accuracy": 0.7,
        "personal/std": None,  # not measured then
        "train/loss": 0.5,
        "validation/accuracy": 0.6,
    }
    assert summary_of(SELECTED)["best_round"] == 3


def test_without_a_global_model_personal_models_choose_the_round() -> None:
    personal = [{"validation/personal_accuracy": each} for each in (0.2, 0.5, 0.1)]
    assert best_round(personal) == 2
    assert best_round([*SELECTED, {"validation/personal_accuracy": 1.0}]) == 3


def test_without_validation_no_round_is_chosen() -> None:
    history = [{"global/accuracy": 0.5}]
    assert best_round(history) is None
    assert best_round([]) is None
    assert "at_best_validation" not in headline_statistics(history, HEADLINES)["global/accuracy"]
    assert "best_round" not in summarize(
        history, HEADLINES, TARGETS, CONFIG, [], {}, {}, "cpu", 1, "serial", 1.0
    )


def test_rounds_to_a_target_by_hand() -> None:
    accuracies = [0.1, None, 0.59, 0.6, 0.5, 0.7]
    history = [{"time/eval_s": 1.0} | ({"global/accuracy": a} if a else {}) for a in accuracies]
    assert rounds_to([0.6, 0.05, 1, 0.65], history) == {
        "rounds_to/0.6": {"final": 4},  # reached exactly, and lost again
        "rounds_to/0.05": {"final": 1},
        "rounds_to/0.65": {"final": 6},
    }
    assert rounds_to([0.6], [{"global/accuracy": math.nan}, {"global/accuracy": 0.9}]) == {
        "rounds_to/0.6": {"final": 2}
    }
    assert rounds_to([], history) == rounds_to([0.6], []) == {}


def curve(*values: float | None) -> list[dict[str, float]]:
    return [{"train/loss": 1.0} if each is None else {"global/accuracy": each} for each in values]


def test_rounds_to_the_best_of_a_baseline_by_hand() -> None:
    baseline = curve(0.2, math.nan, 0.7, None, 0.6)
    assert rounds_to_best_of(baseline, curve(0.5, None, 0.69, 0.7, 0.9)) == 4
    assert rounds_to_best_of(baseline, curve(0.1, 0.69)) is None
    assert rounds_to_best_of(baseline, baseline) == 3
    assert rounds_to_best_of(curve(None, math.nan), baseline) is None


def test_the_peak_of_what_is_stored_is_in_the_summary() -> None:
    names = ("cost/client_memory_bytes", "cost/server_memory_bytes")
    history = [dict.fromkeys(names, value) for value in (3.0, 7.0, 5.0)]
    peak = summary_of(history)["peak"]
    assert peak == dict.fromkeys(names, 7.0)


def test_bytes_that_no_round_counted_are_absent() -> None:
    assert summary_of([{"train/loss": 1.0}])["total"] == {}
    history = [{"cost/upload_bytes": 3.0}, {"train/loss": 1.0}, {"cost/upload_bytes": 4.0}]
    assert summary_of(history)["total"] == {"cost/upload_bytes": 7}


def test_targets_are_in_the_summary() -> None:
    history = [{"global/accuracy": 0.2}, {"global/accuracy": 0.8}]
    metrics = summary_of(history)["metrics"]
    assert list(metrics) == ["global/accuracy", "rounds_to/0.6"]
    assert json.dumps(metrics["rounds_to/0.6"]) == '{"final": 2}'


def test_the_rest_of_the_summary() -> None:
    history = [{"cost/download_bytes": 10.0, "cost/upload_bytes": 3.0}] * 4
    weights = {"w": torch.ones(2)}
    summary = summarize(
        *[history, HEADLINES, TARGETS, CONFIG, ["rounds=7"], {"algorithm": "fedavg"}, weights],
        *["cpu", 2, "vectorized", 1.5],
    )
    versions = summary.pop("versions")
    assert summary == {
        "metrics": {},
        "total": {"cost/download_bytes": 40, "cost/upload_bytes": 12},
        "peak": {},
        "rounds": 4,
        "seed": 7,
        "overrides": ["rounds=7"],
        "choices": {"algorithm": "fedavg"},
        "config_hash": config_hash(CONFIG),
        "weights_digest": digest({"w": torch.ones(2)}),
        "device": "cpu",
        "threads": 2,
        "engine": "vectorized",
        "wall_time_s": 1.5,
        "warnings": [],
    }
    assert set(versions) == {"python", "fedexp", "torch", "lightning", "hydra-core", "numpy"}
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_hash_ignores_order_records_and_time_limits_and_nothing_else() -> None:
    silent = {**dict(reversed(CONFIG.items())), "tracking": {"progress": False}}
    assert config_hash(silent) == config_hash(CONFIG)
    assert config_hash({**CONFIG, "limits": {"minutes": 5}}) == config_hash(CONFIG)
    assert config_hash({**CONFIG, "seed": 8}) != config_hash(CONFIG)


WEIGHTS = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "n": torch.tensor(5)}


@pytest.mark.parametrize(
    "same",
    [
        dict(reversed(WEIGHTS.items())),
        {**WEIGHTS, "a": torch.tensor([[1.0, 3.0], [2.0, 4.0]]).t()},
        {**WEIGHTS, "a": WEIGHTS["a"].clone().requires_grad_()},
    ],
    ids=["order", "strides", "gradient"],
)
def test_digest_of_equal_weights_is_equal(same: dict[str, torch.Tensor]) -> None:
    assert digest(same) == digest(WEIGHTS)


@pytest.mark.parametrize(
    "other",
    [
        {**WEIGHTS, "a": torch.nextafter(WEIGHTS["a"], torch.tensor(9.0))},
        {**WEIGHTS, "a": WEIGHTS["a"].flatten()},
        {**WEIGHTS, "n": torch.tensor(5, dtype=torch.int32)},
        {"b": WEIGHTS["a"], "n": WEIGHTS["n"]},
        {"a": WEIGHTS["a"]},
    ],
    ids=["one bit", "shape", "type", "name", "missing"],
)
def test_digest_of_different_weights_differs(other: dict[str, torch.Tensor]) -> None:
    assert digest(other) != digest(WEIGHTS)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64])
def test_digest_takes_any_type_and_no_elements(dtype: torch.dtype) -> None:
    digests = {digest({"w": torch.zeros(shape, dtype=dtype)}) for shape in ((), (0,), (3, 0), (2,))}
    assert len(digests) == 4


def test_written_whole_and_as_valid_json(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("an older one")
    write_summary(tmp_path, {"metrics": {"global/loss": {"final": math.nan, "best": 0.5}}})

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text, parse_constant=refuse) == {
        "metrics": {"global/loss": {"final": None, "best": 0.5}}
    }
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
