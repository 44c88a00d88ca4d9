"""Whatever a config says: a tiny round is trained, or one line names what cannot work."""

import re
import signal
import tempfile
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal
from urllib.error import URLError

import hydra
import pytest
from hydra.errors import HydraException
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, ListConfig, OmegaConf
from pydantic import BaseModel
from support.image_sets import write_fed_isic, write_tiny_imagenet
from support.tables import write_table
from support.torchvision_files import WRITE, accept_any_checksum

import fedexp
from fedexp.cli.command import config_folder
from fedexp.cli.hydra_api import initialize
from fedexp.config import build, schema
from fedexp.errors import InputError

CONF = Path(config_folder())
GROUPS = {
    folder.name: sorted(
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")
    )
    for folder in sorted(CONF.iterdir())
    if folder.is_dir() and folder.name not in ("hydra", "measure")
}
GROUPS["compression@download"] = GROUPS["compression"]  # a second place for the same options
MEASURES = sorted(path.stem for path in (CONF / "measure").glob("*.yaml"))
OBJECTIVES = ["global/accuracy", "global/loss", "global/fewshot_accuracy", "train/loss"]
OBJECTIVES += ["personal/accuracy_local", "validation/accuracy", "membership/loss_auc"]

# Where a large value is honest work, which a test cannot wait for: the value it has here. Drawn
# values stay near it.
WORK = {
    "engine.devices": 1,  # each is a process
    "engine.compile": "false",
    "rounds": 1,
    "clients.count": 4,
    "clients.per_round": 2,
    "coordination.buffer": 1,
    "local.epochs": 1,
    "partition.max_tries": 3,
    "model.width": 4,
    "model.depth": 2,
    "model.feature_dim": 16,
    "model.projection_dim": 16,
    "model.hidden": [8],
    "model.layers": [1, 1, 1, 1],
    "model.config": "{hidden_size: 12, num_hidden_layers: 1, intermediate_size: 8}",
    "data.image_size": None,
    "head.features": 2,
    "head.match_steps": 1,
    "head.retrain_epochs": 1,
    "head.draws": 1,
    "loss.neighbors": 2,
    "loss.steps": 1,
    "loss.noise_dim": 4,
    "loss.hidden": 8,
    "regularizer.ipc": 1,
    "regularizer.outer_steps": 1,
    "regularizer.inner_steps": 1,
    "regularizer.project_steps": 1,
    "personalization.epochs": 1,
    "personalization.head_epochs": 1,
    "personalization.tuning_epochs": 1,
    "measure.membership.samples": 20,
    "measure.membership.shadows": 4,
    "measure.membership.epochs": 1,
    "measure.loss_surface.points": 2,
    "measure.loss_surface.samples": 20,
    "measure.fewshot.episodes": 2,
}
QUIET = {"tracking.wandb.mode": "disabled", "tracking.progress": "false"}
PRESETS = {"algorithm", "experiment", "method", "personalization", "protocol", "search"}
TINY_SETS = {"digits": "20", "spiral": "20", "tabular": "20"}  # the others are tiny already

FAIR = {
    bool: ["true", "false"],
    int: ["0", "1", "2", "3", "7"],
    float: ["0", "1", "3", "0.5", "0.99", "1e-30", "-1"],
    list: ["[]", "[0]", "[1]", "[1,2]", "[0.5,0.5,0.5]", "[2,1,1,2]"],
    type(None): ["0", "1", "2", "0.5", "16"],
}
LARGE = ["1000000000", "1e30"]
RANGES = ["0", "1e-30", "20", "[1,50]", "[3,1]", "1e30"]
FORMS = {
    "local.epochs": ["0.1", "0.5", "1.5", "[1,3]", "[2,2]", "[3,1]", "[0.5,1]"],
    **dict.fromkeys(("system.samples_per_second", "system.download", "system.latency"), RANGES),
    "system.deadline": ["0.1", "1", "3", "100"],
    "system.invite": ["2", "3", "4", "5"],
}
"""Key -> values of another form than its default."""
WRONG = ["null", "''", "abc", "'a b'", "{}", "${nope}", "'${'", "nan", "inf", "-1", "-0.5", "true"]
WRONG += ["[-1]", "[nan]", "[abc]", "[null]", "[[1]]", "1.5", "123456789012345678901234567890"]
UNKNOWN = [
    "nope=1",
    "+nope=1",
    "~seed",
    "seed",
    "rounds=[",
    "head=null",
    "+data.nope=1",
    "model.nope=1",
]
SECONDS = 200


class World(typing.NamedTuple):
    """Where runs find data, and may write; how each ended."""

    images: Path
    sets: Path
    folder: Path
    ends: list[str]


@pytest.fixture
def world(image_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Every dataset is at hand, and tiny; no network. In the end some config has trained."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setenv("FEDEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    accept_any_checksum(monkeypatch)
    (tmp_path / "sets").mkdir()
    for write in (*WRITE.values(), write_tiny_imagenet, write_fed_isic):
        write(tmp_path / "sets")
    write_table(tmp_path / "sets")
    (tmp_path / "trace.csv").write_text("client,from,to\n0,5,20\n2,10,30\n")
    found = World(image_tree, tmp_path / "sets", tmp_path, [])
    yield found
    assert "trained" in found.ends


def literals(annotation: Any) -> Iterator[str]:
    """The words that an annotation allows, at any depth."""
    if typing.get_origin(annotation) is Literal:
        yield from (str(word) for word in typing.get_args(annotation))
    else:
        for inner in typing.get_args(annotation):
            yield from literals(inner)


def allowed_words(config: DictConfig, key: str) -> list[str]:
    """What the schema lists for this key; nothing if it lists nothing."""
    model: type[BaseModel] = schema.Config
    node: Any = config
    names = key.split(".")
    if names[0] == "measure" and len(names) > 2:  # each has its own schema
        model, node, names = BaseModel, config.measure[names[1]], names[2:]
    for name in names:
        if name not in model.model_fields and "_target_" in node:
            model = build._arguments(build.locate(key, node["_target_"]), ("resources",))
        if name not in model.model_fields:
            return []
        annotation, node = model.model_fields[name].annotation, node._get_node(name)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return [word for word in literals(annotation) if word != "online"]


def leaves(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every key that has a value of its own; an empty mapping and a list are values."""
    for name in node:
        value = node._get_node(name)
        if isinstance(value, DictConfig) and len(value):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def compose(overrides: list[str]) -> DictConfig:
    with initialize(str(CONF)):
        return hydra.compose("config", overrides)


@st.composite
def configs(draw: st.DrawFn, world: World) -> list[str]:
    """Overrides: some options and measures, small sizes, some keys with any value."""
    chosen = draw(st.lists(st.sampled_from(sorted(GROUPS)), max_size=4, unique=True))
    options = [f"{group}={draw(st.sampled_from(GROUPS[group]))}" for group in chosen]
    if "coordination=buffered" in options and "system" not in chosen:
        options.append("system=uniform")  # it needs simulated time
    if added := draw(st.lists(st.sampled_from(MEASURES), max_size=3, unique=True)):
        options.append(f"+measure=[{','.join(added)}]")
    absent = draw(st.lists(st.sampled_from(MEASURES), max_size=2, unique=True))
    options += [f"++measure.{name}=null" for name in absent]
    try:
        config = compose(options)
    except (HydraException, ValueError):  # two presets that say different things
        return options
    keys = list(leaves(config))
    sizes: dict[str, Any] = {key: value for key, value in WORK.items() if key in keys} | QUIET
    name = OmegaConf.select(config, "data._target_").rpartition(".")[2].lower()
    sizes["data.subset"] = TINY_SETS.get(name, "null")
    if "data.root" in keys:
        sizes["data.root"] = world.images if name == "imagefolder" else world.sets
        if name == "fedisic":
            sizes |= {"data.root": world.sets / "fed_isic2019", "data.short_side": 8}
    if name == "tabular":
        sizes |= {"data.path": world.sets / "cancer.csv", "data.target": "diagnosis"}
    if "trace.Trace" in OmegaConf.select(config, "availability._target_"):
        sizes["availability.file"] = world.folder / "trace.csv"
    if name in ("fedisic", "tinyimagenet"):
        sizes["data.image_size"] = 8
    values = [key for key in keys if not key.endswith("_target_")]
    for key in values:
        if key.startswith("measure.") and key.endswith(".every"):
            sizes[key] = draw(st.sampled_from([1, 2, 10]))
    for key in draw(st.lists(st.sampled_from(values), max_size=4, unique=True)):
        sizes[key] = draw(st.sampled_from(fair_values(config, key)))
    for key in draw(st.just([]) | st.lists(st.sampled_from(keys), max_size=1)):
        sizes[key] = draw(st.sampled_from(WRONG))
    unknown = draw(st.just([]) | st.just([]) | st.lists(st.sampled_from(UNKNOWN), max_size=1))
    return [*options, *(f"{key}={_text(value)}" for key, value in sizes.items()), *unknown]


def fair_values(config: DictConfig, key: str) -> list[str]:
    """Values that look like the one that this key has; not all of them are allowed."""
    value = OmegaConf.select(config, key, throw_on_missing=False)
    words = OBJECTIVES if key == "objective" else allowed_words(config, key)
    kind = list if isinstance(value, ListConfig) else type(value)
    large = LARGE if kind in (int, float, type(None)) and key not in WORK else []
    return words or FAIR.get(kind, ["some"]) + large + FORMS.get(key, [])


def _text(value: Any) -> str:
    return "null" if value is None else str(value).replace(", ", ",")


@contextmanager
def no_hang() -> Iterator[None]:
    """Far more time than any of these runs takes."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def names(overrides: list[str]) -> set[str]:
    """Keys and groups that the overrides mention; a preset stands for all that it may choose.

    A measure that is on by default, and the objective, may need other data or another method.
    """
    keys = {each.partition("=")[0].lstrip("+~") for each in overrides}
    groups = {key.partition(".")[0] for key in keys}
    return keys | groups | {"measure", "objective"} | (set(GROUPS) if groups & PRESETS else set())


def attempt(overrides: list[str], world: World) -> None:
    """Run it: it trains, or is refused in one line that names what was typed."""
    with tempfile.TemporaryDirectory(dir=world.folder) as folder, no_hang():
        try:
            result = fedexp.run([f"hydra.run.dir={folder}/run", *overrides])
        except InputError as error:
            line = str(error)
            assert "\n" not in line
            named = "|".join(map(re.escape, names(overrides)))
            assert re.search(rf"\b({named})\b", line), line
            world.ends.append(line)
            return
        assert len(result.metrics) == result.summary["rounds"] > 0
        world.ends.append("trained")


def reproducible(examples: int) -> settings:
    """So many examples, the same every time; one that fails is not shrunk, which would be long."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@reproducible(8)
@given(st.data())
def test_a_config_trains_or_says_why_it_cannot(world: World, data: st.DataObject) -> None:
    attempt(data.draw(configs(world)), world)


@pytest.mark.slow
@reproducible(400)
@given(st.data())
def test_many_configs_train_or_say_why_they_cannot(world: World, data: st.DataObject) -> None:
    attempt(data.draw(configs(world)), world)
