"""Every preset on digits, for the rounds of the default experiment."""

from pathlib import Path

import pytest
import yaml
from support.federations import compose, federate

from fedexp.cli.command import config_folder

PRESETS = ["local", "fedper", "fedrep", "fedbabu", "fedrod", "ditto", "fedproto"]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_choice_of_parts(preset: str) -> None:
    content = yaml.safe_load(Path(config_folder(), "algorithm", f"{preset}.yaml").read_text())
    assert content.keys() == {"defaults"}


@pytest.mark.parametrize(
    "choice",
    [
        "personalization=finetune",
        *(f"algorithm={each}" for each in ("fedetf", "fedbabu", "fedrod")),
    ],
)
def test_a_search_over_settings_of_personal_models_compares_personal_models(choice: str) -> None:
    assert compose(choice).objective == "personal/accuracy_local"
    contest = compose("experiment=leaderboard/digits_dir1", choice)
    assert contest.objective == "validation/accuracy"  # an experiment's own


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", [*(f"algorithm={p}" for p in PRESETS), "personalization=finetune"]
)
def test_thirty_rounds_beat_chance_by_far(choice: str) -> None:
    federation = federate(choice, "rounds=30")
    clients = federation.data.clients
    chance = sum(1 / int((c.class_counts > 0).sum()) for c in clients) / len(clients)
    assert chance < 0.35  # of guessing among the classes that a client holds
    for round in range(1, 31):
        metrics = federation.run_round(round).metrics
    assert metrics["personal/accuracy_uniform"] > chance + 0.3
    assert metrics.get("global/accuracy", 1) > 0.8
