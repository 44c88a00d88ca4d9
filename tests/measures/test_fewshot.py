import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.federations import compose, federate
from support.image_sets import write_all_of_cifar100
from support.torchvision_files import accept_any_checksum
from support.views import after_round

import fedexp
from fedexp.core.messages import Message
from fedexp.data.readers.fc100 import FC100
from fedexp.errors import InputError
from fedexp.measures.fewshot import FewShot, draw_episodes, episode_accuracies, fewshot_metrics
from fedexp.runtime.plan import plan

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [5, 6, 7, 12]))


def episodes(ways: int = 3, shots: int = 2, queries: int = 3, count: int = 120) -> FewShot:
    return FewShot(every=1, ways=ways, shots=shots, queries=queries, episodes=count)


def draw(settings: FewShot, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return draw_episodes(LABELS, 4, settings, np.random.default_rng(seed))


def test_an_episode_has_distinct_samples_of_distinct_classes() -> None:
    support, query = draw(episodes())
    assert support.shape == (120, 3, 2)
    assert query.shape == (120, 3, 3)
    for shots, asked in zip(support, query, strict=True):
        both = np.concatenate([shots, asked], axis=1)
        classes = LABELS[both]
        assert (classes == classes[:, :1]).all()
        assert len(set(classes[:, 0])) == 3
        assert len(set(both.ravel())) == both.size


def test_every_sample_is_drawn_equally_often_in_its_class() -> None:
    """Of 4 classes 3 are drawn, of n_c samples 5: expected 3/4 * 5/n_c of 4000 episodes."""
    support, query = draw(episodes(count=4000))
    found = np.bincount(np.concatenate([support, query], axis=2).ravel(), minlength=len(LABELS))
    expected = 4000 * 0.75 * 5 / np.bincount(LABELS)[LABELS]
    assert (np.abs(found - expected) < 5 * np.sqrt(expected)).all()


def test_another_key_gives_other_episodes() -> None:
    first, again, other = (draw(episodes(), seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("labels", "fewest"), [(LABELS, 5), (LABELS[LABELS > 0], 0)])
def test_a_class_needs_enough_samples(labels: np.ndarray, fewest: int) -> None:
    with pytest.raises(InputError, match=rf"shots=2 and queries=4: .* has {fewest} samples in all"):
        draw_episodes(labels, 4, episodes(queries=4), np.random.default_rng(0))


def nearest_mean_accuracy(z: np.ndarray, support: np.ndarray, query: np.ndarray) -> float:
    """One episode, sample by sample."""
    means = [np.mean([z[i] for i in samples], axis=0) for samples in support]
    right = asked = 0
    for own, samples in enumerate(query):
        for i in samples:
            distances = [math.sqrt(sum((z[i] - mean) ** 2)) for mean in means]
            right += distances.index(min(distances)) == own
            asked += 1
    return right / asked


def test_accuracies_are_those_of_a_plain_loop() -> None:
    z = np.random.default_rng(1).normal(size=(len(LABELS), 4)) + LABELS[:, None] * 0.7
    support, query = draw(episodes())
    expected = [nearest_mean_accuracy(z, s, q) for s, q in zip(support, query, strict=True)]
    found = episode_accuracies(*map(torch.from_numpy, (z, support, query)))
    assert found.tolist() == expected
    assert 0.4 < found.mean() < 0.9


def test_large_features_lose_no_digits() -> None:
    """Distances of 1 and 2 around features of length 1e4, in float32."""
    z = torch.tensor([[1e4, 0.0], [1e4, 3.0], [1e4, 1.0], [1e4, 2.0]])
    support, query = torch.tensor([[[0], [1]]]), torch.tensor([[[2], [3]]])
    assert episode_accuracies(z, support, query).tolist() == [1.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_model_that_diverged_classifies_nothing(value: float) -> None:
    z = torch.randn(len(LABELS), 4, generator=torch.Generator().manual_seed(0)) * value
    support, query = map(torch.from_numpy, draw(episodes(count=5)))
    assert episode_accuracies(z, support, query).tolist() == [0.0] * 5


def test_the_interval_is_196_standard_errors() -> None:
    """Of 0.2, 0.4 and 0.9: variance (0.09 + 0.01 + 0.16) / 2 = 0.13."""
    metrics = fewshot_metrics(torch.tensor([0.2, 0.4, 0.9], dtype=torch.float64))
    assert metrics["global/fewshot_accuracy"] == pytest.approx(0.5)
    assert metrics["global/fewshot_interval"] == pytest.approx(1.96 * math.sqrt(0.13 / 3))


SMALL = ["data=fc100", "objective=global/fewshot_accuracy", "measure.personal=null"]
SMALL += ["measure.fewshot.shots=2", "measure.fewshot.queries=2", "model=mlp"]
SMALL += ["measure.fewshot.episodes=60", "partition=iid", "clients.count=4", "rounds=2"]
SMALL += ["clients.per_round=2", "local.epochs=1", "data.subset=60"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    accept_any_checksum(monkeypatch)
    write_all_of_cifar100(tmp_path / "data")
    return tmp_path / "data"


def test_features_are_those_of_the_messages_model_in_eval_mode(root: Path) -> None:
    resnet = ["model=resnet10", "model.norm=batch", "model.stem=imagenet"]
    federation = federate(*SMALL, f"data.root={root}", *resnet)
    resources = federation.engine.resources
    few_shot = federation.measures["fewshot"]
    assert isinstance(few_shot, FewShot)
    weights = {name: value.clone() for name, value in resources.initial.items()}
    for name in weights:
        if name.endswith("running_mean"):
            weights[name] += 0.5
    found = few_shot(after_round(federation, 1, Message(1, weights))).metrics
    dataset = FC100(root, False, "test", None, None).load(root)
    module = resources.load_global(Message(1, weights)).eval()
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (dataset.mean, dataset.std))
    with torch.no_grad():
        z = module.backbone((dataset.test.inputs / 255 - mean) / std).double().numpy()
    assert few_shot._drawn is not None
    support, query = (each.numpy() for each in few_shot._drawn)
    assert support.shape == query.shape == (60, 5, 2)
    pairs = zip(support, query, strict=True)
    expected = np.mean([nearest_mean_accuracy(z, s, q) for s, q in pairs])
    assert found["global/fewshot_accuracy"] == pytest.approx(expected, abs=1e-3)
    untrained = after_round(federation, 2, Message(2, dict(resources.initial)))
    assert few_shot(untrained).metrics != found


def test_a_run_has_fewshot_metrics_alone(root: Path, tmp_path: Path) -> None:
    """Absent, never 0: accuracy over the test split. Every engine has the same episodes."""
    quiet = ["tracking.wandb.mode=disabled", "tracking.progress=false", f"data.root={root}"]
    serial, vectorized = (
        fedexp.run([f"hydra.run.dir={tmp_path / engine}", f"engine={engine}", *SMALL, *quiet])
        for engine in ("serial", "vectorized")
    )
    shown = serial.metrics["global/fewshot_accuracy"]
    assert len(shown) == 2
    assert 0 < shown.iloc[-1] < 1
    assert serial.objective("global/fewshot_accuracy") == shown.iloc[-1]
    assert vectorized.metrics["global/fewshot_accuracy"].iloc[-1] == pytest.approx(
        shown.iloc[-1], abs=0.02
    )
    assert "global/fewshot_interval" in serial.metrics
    assert not {"global/accuracy", "global/loss"} & set(serial.metrics)
    assert not any(name.startswith("personal/") for name in serial.metrics)
    assert "global/fewshot_accuracy" in serial.summary["metrics"]


def test_held_out_samples_of_the_base_classes_are_scored(root: Path) -> None:
    options = ["data.validation=0.5", "data.subset=null", "clients.count=1", "clients.per_round=1"]
    federation = federate(*SMALL, f"data.root={root}", *options)
    metrics = federation.run_round(2).metrics
    assert {"validation/accuracy", "global/fewshot_accuracy"} <= metrics.keys()
    assert not {"global/accuracy", "global/loss"} & metrics.keys()


def test_what_cannot_be_measured_is_refused_in_one_line(root: Path) -> None:
    fc100 = ["data=fc100", f"data.root={root}"]
    lacks = "needs a test split of the classes that clients train on, which fc100 lacks"
    with pytest.raises(InputError, match=rf"^measure\.personal: {lacks}"):
        plan(compose(*fc100))
    with pytest.raises(InputError, match=r"^objective=global/accuracy: is not measured"):
        plan(compose(*fc100, "measure.personal=null"))
    for name in ("membership", "features", "loss_surface"):
        with pytest.raises(InputError, match=rf"^measure\.{name}: {lacks}"):
            plan(compose(*SMALL, f"data.root={root}", f"+measure={name}"))
    with pytest.raises(InputError, match=r"^measure\.global\.targets=\[0\.5\]: "):
        plan(compose(*SMALL, f"data.root={root}", "measure.global.targets=[0.5]"))
    with pytest.raises(InputError, match=r"measure\.fewshot\.ways=21: fc100 has 20 unseen"):
        plan(compose(*SMALL, f"data.root={root}", "measure.fewshot.ways=21"))
    with pytest.raises(InputError, match=r"^objective=global/fewshot_accuracy: is not measured"):
        plan(compose("data=digits", "objective=global/fewshot_accuracy"))
    with pytest.raises(InputError, match=r"^objective=global/fewshot_accuracy: is not measured"):
        plan(compose(*SMALL, f"data.root={root}", "algorithm=local"))
