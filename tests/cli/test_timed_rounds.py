"""The time that a sweep is said to take before it begins."""

import pytest
from support.composed import compose

from fedexp.cli.timed_rounds import _Timed, announce_seconds
from fedexp.errors import InputError


@pytest.mark.parametrize(
    ("overrides", "rare"),
    [
        ([], 4),  # personal accuracy after rounds 10, 20, 30 and 40, global accuracy after all
        (["rounds=35"], 4),  # after round 35, too
        (["measure.global.first=36"], 5),  # rounds 36 to 40
        (["measure.global.every=20", "measure.global.first=21"], 4),
        (["measure.personal=null", "measure.held_out=null", "measure.prototypes=null"], 1),
    ],
)
def test_a_rare_measure_counts_in_its_rounds_alone(overrides: list[str], rare: int) -> None:
    timed = _Timed(start=100, training=10, scoring=2, last_scoring=5)
    cfg = compose(["rounds=40", *overrides])
    assert timed.of_job(cfg) == 100 + cfg.rounds * (10 + 2) + rare * (5 - 2)


@pytest.mark.slow
def test_timed_rounds_name_each_row_and_one_that_cannot_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["algorithm=fedavg", "clients.count=4", "clients.per_round=2", "data.subset=200"]
    rows = {"full method": [[*small, "loss=moon", "rounds=1000"]], "without loss": [[*small]]}
    announce_seconds(rows, compose)
    said = capsys.readouterr().err
    assert said.startswith("fedexp: about ")
    assert " if the jobs run one after another; seconds of a round" in said
    assert "full method " in said
    assert "without loss " in said
    late = ["+measure=loss_surface", "measure.loss_surface.rounds=[10]", "rounds=20"]
    announce_seconds({"full method": [[*small, *late]]}, compose)
    assert capsys.readouterr().err.startswith("fedexp: not timed; 4 rounds are too few (measure.")
    rows["without head"] = [[*small, "clients.per_round=9"]]
    with pytest.raises(InputError, match=r"^without head: clients\.per_round=9"):
        announce_seconds(rows, compose)
