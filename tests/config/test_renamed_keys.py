"""A key of an earlier version: one line that ends in its place now."""

import re
from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from fedexp.cli.command import config_folder
from fedexp.cli.hydra_api import initialize
from fedexp.cli.hydra_errors import one_line
from fedexp.config.renamed_keys import renamed
from fedexp.config.schema import validate
from fedexp.errors import InputError

NOW = {
    "evaluation.every=2": "is now measure.global.every",
    "evaluation.targets=[0.5]": "is now measure.global.targets",
    "evaluation.personal=off": "is now measure.personal.of; ~measure.personal switches it off",
    "evaluation.personal_every=2": "is now measure.personal.every",
    "evaluation.personal_metrics=[local]": "is now measure.personal.kinds",
    "evaluation.personal_samples=9": "is now measure.personal.samples",
    "evaluation.step_cosine=true": "is now +measure=step_cosine",
    "evaluation.fewshot.ways=2": "is now measure.fewshot.ways",
    "evaluation.fewshot.shots=2": "is now measure.fewshot.shots",
    "evaluation.fewshot.queries=2": "is now measure.fewshot.queries",
    "evaluation.fewshot.episodes=2": "is now measure.fewshot.episodes",
    "evaluation.membership.attack=loss": "measure.membership.attack, with +measure=membership",
    "evaluation.membership.samples=9": "measure.membership.samples, with +measure=membership",
    "evaluation.membership.shadows=2": "measure.membership.shadows, with +measure=membership",
    "evaluation.membership.epochs=1": "measure.membership.epochs, with +measure=membership",
    "tracking.heatmap_every=2": "is now measure.prototypes.every",
    "tracking.heatmap_zoom=[[a,b]]": "is now measure.prototypes.zoom",
    "tracking.feature_global=true": "is now +measure=features",
    "tracking.feature_clients=[0]": "is now measure.features.clients, with +measure=features",
    "tracking.feature_classes=[0]": "is now measure.features.classes, with +measure=features",
    "tracking.projection=pca": "is now measure.features.projection, with +measure=features",
    "tracking.loss_surface.rounds=[1]": "measure.loss_surface.rounds, with +measure=loss_surface",
    "tracking.loss_surface.plane=local": "measure.loss_surface.plane, with +measure=loss_surface",
    "tracking.loss_surface.points=3": "measure.loss_surface.points, with +measure=loss_surface",
    "tracking.loss_surface.samples=9": "measure.loss_surface.samples, with +measure=loss_surface",
}


def refusal(*overrides: str) -> str:
    """The error of this command line."""
    folder = config_folder()
    with (
        initialize(folder),
        pytest.raises(InputError) as caught,
        one_line(overrides),
    ):
        hydra.compose("config", list(overrides))
    return str(caught.value)


@pytest.mark.parametrize(("override", "now"), NOW.items())
def test_on_the_command_line(override: str, now: str) -> None:
    line = refusal(override)
    assert line.startswith(f"Could not override '{override.partition('=')[0]}'. It is now ")
    assert line.endswith(now)
    assert "\n" not in line


@pytest.mark.parametrize(
    ("override", "begins", "ends"),
    [
        (
            "engine.graph=on",
            "Could not override 'engine.graph'. It is gone; ",
            "use engine.compile=reduce-overhead",
        ),
        (
            "evaluation.overlap=true",
            "Could not override 'evaluation.overlap'. It is gone; ",
            "remove it, because it changed no result",
        ),
    ],
)
def test_what_is_gone_names_what_to_use(override: str, begins: str, ends: str) -> None:
    assert refusal(override) == begins + ends
    for instead in re.findall(r"engine[=.]\S+", ends):
        with initialize(config_folder()):
            cfg = hydra.compose("config", [instead])
        validate(OmegaConf.to_container(cfg, resolve=True))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def config() -> DictConfig:
    with initialize(config_folder()):
        return hydra.compose("config", ["algorithm=fedavg"])


@pytest.mark.parametrize("override", NOW)
def test_in_a_file_of_your_own(override: str, config: DictConfig) -> None:
    """Hydra merges it; the schema refuses it, or the whole group that it stands in."""
    merged = OmegaConf.merge(
        OmegaConf.to_container(config, resolve=True), OmegaConf.from_dotlist([override])
    )
    with pytest.raises(InputError) as caught:
        validate(OmegaConf.to_container(merged))  # type: ignore[arg-type]
    key = ".".join(override.partition("=")[0].split(".")[:2])
    assert str(caught.value) == f"{key}: unknown key; it {renamed(key)}"


@pytest.mark.parametrize("key", ["rounds", "evaluation", "tracking.progress"])
def test_other_keys_have_no_other_name(key: str) -> None:
    assert renamed(key) is None


def test_every_new_key_exists() -> None:
    names = [path.stem for path in Path(config_folder(), "measure").glob("*.yaml")]
    with initialize(config_folder()):
        cfg = hydra.compose("config", [f"+measure=[{','.join(names)}]"])
    for override in NOW:
        now = renamed(override.partition("=")[0])
        assert now
        for key in re.findall(r"(?<![~+])\bmeasure\.[\w.]+", now):
            assert OmegaConf.select(cfg, key, default="absent") != "absent", key
