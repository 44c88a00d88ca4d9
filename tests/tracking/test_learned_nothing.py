import math
from typing import Any

import pytest

from fedexp.tracking.learned_nothing import learned_nothing

LN10 = math.log(10)


def said(**last: Any) -> str | None:
    row = {name.replace("_", "/", 1): value for name, value in last.items()}
    return learned_nothing([{"global/loss": 2.0, "global/accuracy": 0.5}, row], 10, 0.12)


@pytest.mark.parametrize(
    ("loss", "accuracy", "warns"),
    [
        (2325.0, 0.1, True),
        (math.nan, 0.1, True),
        (math.inf, 0.139, True),
        (2325.0, 0.141, False),  # more than 0.02 above the largest class
        (2 * LN10 + 0.01, 0.1, True),
        (2 * LN10, 0.1, False),
        (0.3, 0.9, False),
    ],
)
def test_the_rule(loss: float, accuracy: float, warns: bool) -> None:
    assert (said(global_loss=loss, global_accuracy=accuracy) is not None) == warns


def test_the_line() -> None:
    assert said(global_loss=2325.4, global_accuracy=0.1) == (
        "this run learned nothing: global/loss ends at 2,325, where guessing has 2.3, and "
        "global/accuracy at 0.100, where chance is 0.120; try a smaller optimizer.lr, or "
        "local.grad_clip"
    )


def test_without_an_accepted_update_the_line_says_so() -> None:
    row = {"clients/quarantined": 10, "global/loss": 2.3, "global/accuracy": 0.1}
    line = learned_nothing([row, row], 10, 0.1) or ""
    assert line.startswith("this run learned nothing: no update was accepted, as none was finite")
    assert learned_nothing([row, row | {"train/loss": 2.3}], 10, 0.1) is None
    assert learned_nothing([row, row | {"clients/quarantined": 0}], 10, 0.1) is None


def test_the_last_measured_values_count() -> None:
    history = [{"global/loss": 99.0, "global/accuracy": 0.1}, {"train/loss": 0.1}]
    assert learned_nothing(history, 10, 0.1) is not None


def test_personal_models_without_a_global_one() -> None:
    row = {"train/loss": 99.0, "personal/accuracy_uniform": 0.11}
    assert (learned_nothing([row], 10, 0.5) or "").startswith(
        "this run learned nothing: train/loss ends at 99, where guessing has 2.3, and "
        "personal/accuracy_uniform at 0.110"
    )
    assert learned_nothing([row | {"personal/accuracy_uniform": 0.2}], 10, 0.5) is None


@pytest.mark.parametrize("history", [[], [{"train/loss": 99.0}], [{"global/accuracy": 0.1}]])
def test_without_the_metrics_nothing_is_said(history: list[dict[str, float]]) -> None:
    assert learned_nothing(history, 10, 0.1) is None
