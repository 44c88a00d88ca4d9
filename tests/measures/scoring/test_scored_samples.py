"""Which test samples personal models are scored on, and that scores do not depend on it."""

from collections.abc import Mapping

import pytest
import torch
from support.federations import federate

from fedexp.errors import InputError
from fedexp.measures.scoring.scored_samples import ScoredSamples

SMALL = ["clients.count=5", "clients.per_round=5", "local.epochs=1", "data.subset=200"]
SMALL += ["rounds=1", "partition.beta=0.2", "model.hidden=[16]", "model.feature_dim=8"]
HELD = "measure.personal.kinds=[uniform,local,test_split]"


def measured(*overrides: str) -> Mapping[str, float]:
    """The metrics of a small run of one round."""
    return federate(*SMALL, *overrides).run_round(1).metrics


def test_a_model_is_scored_on_what_its_metrics_need() -> None:
    data = federate(*SMALL).data
    client = data.clients[0]
    labels, held = data.test.labels, client.class_counts > 0
    assert 0 < held.sum() < 10

    def index(*metrics: str) -> list[int]:
        selection = ScoredSamples(data, metrics, None)(client)
        assert selection is not None
        return sorted(selection.index.tolist())

    of_held_classes = held[labels].nonzero().squeeze(1).tolist()
    assert index("uniform") == index("local", "test_split") == of_held_classes
    assert index("test_split") == sorted(client.test_index.tolist())
    assert ScoredSamples(data, ["whole"], None)(client) is None
    assert ScoredSamples(data, ["local", "angles"], None)(client) is None


def test_the_share_is_stratified_and_the_same_for_all_clients() -> None:
    data = federate(*SMALL).data
    scored = ScoredSamples(data, ["whole", "test_split"], 60)
    drawn = torch.bincount(data.test.labels[scored.share], minlength=10)
    exact = 60 * scored.totals / scored.totals.sum()
    assert drawn.sum() == 60
    assert ((drawn - exact).abs() < 1).all()
    assert torch.equal(scored.share, ScoredSamples(data, ["local"], 60).share)
    for client in data.clients:
        selection = scored(client)
        assert selection is not None
        own = set(client.test_index.tolist()) - set(scored.share.tolist())
        assert selection.index[:60].tolist() == scored.share.tolist()
        assert set(selection.index[60:].tolist()) == own
        assert selection.averaged == 0
    assert ScoredSamples(data, ["angles"], 60)(data.clients[0]).averaged == 60  # type: ignore[union-attr]


def test_every_class_has_two_samples_at_least() -> None:
    data = federate(*SMALL).data
    scored = ScoredSamples(data, ["whole"], 20)
    assert torch.bincount(data.test.labels[scored.share]).tolist() == [2] * 10


@pytest.mark.parametrize("size", [19, 361])
def test_a_wrong_size_is_one_line(size: int) -> None:
    with pytest.raises(InputError, match=rf"measure\.personal\.samples={size}: .* 20 .* 360"):
        federate(*SMALL, f"measure.personal.samples={size}")


def test_a_wrong_size_names_the_key_of_its_measure() -> None:
    with pytest.raises(InputError, match=r"^measure\.fairness\.samples=5: should be between 20"):
        federate(*SMALL, "+measure=fairness", "measure.fairness.samples=5")


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fedbabu"])
def test_fewer_samples_give_the_same_accuracies(method: str, engine: str) -> None:
    shared = [f"algorithm={method}", f"engine={engine}"]
    found = [measured(*shared, *each) for each in ([], [HELD])]
    names = {name for name in found[0] if name.startswith("personal/") and "whole" not in name}
    assert len(names) >= 7
    for name in names:
        assert found[1][name] == pytest.approx(found[0][name], abs=0.01), name
    assert not any("whole" in name or name.endswith("angle_missing") for name in found[1])


def test_a_share_as_large_as_the_test_split_is_exact() -> None:
    whole = measured()
    share = measured("measure.personal.samples=360")
    for kind in ("uniform", "local", "whole"):
        assert share[f"personal/accuracy_{kind}"] == whole[f"personal/accuracy_{kind}"]
        assert share[f"personal/standard_error_{kind}"] == 0
    assert share["geometry/feature_angle_missing"] == pytest.approx(
        whole["geometry/feature_angle_missing"]
    )


def test_a_smaller_share_is_within_its_standard_error() -> None:
    whole = measured()
    share = measured("measure.personal.samples=120")
    for kind in ("uniform", "local", "whole"):
        error = share[f"personal/standard_error_{kind}"]
        assert 0 < error < 0.1
        difference = share[f"personal/accuracy_{kind}"] - whole[f"personal/accuracy_{kind}"]
        assert abs(difference) < 4 * error
    assert share["personal/accuracy_test_split"] == whole["personal/accuracy_test_split"]
    assert "personal/standard_error_test_split" not in share


def test_an_objective_that_is_not_measured_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^objective=personal/std: is not measured"):
        federate(*SMALL, "measure.personal.kinds=[uniform]", "objective=personal/std")
