"""Typed options without effect: the tables of all options, and the lines that a run logs."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.federations import compose

from fedexp.cli.command import config_folder
from fedexp.config.build import locate
from fedexp.config.compatibility.declaration import Declaration, UnreadWith
from fedexp.config.compatibility.unread import SETTINGS, unread_keys, warn_of_unread
from fedexp.config.keys import selected
from fedexp.runtime.plan import plan

LOGGER = logging.getLogger(__name__)
Row = tuple[str, dict[str, Any], str, str, UnreadWith]
"""Key of a node, the node, and one argument with another key on which it depends."""


def nodes() -> Iterator[tuple[str, dict[str, Any]]]:
    """The nodes with a ``_target_`` in all options, with their keys."""
    for path in sorted(Path(config_folder()).glob("*/*.yaml")):
        content: Any = OmegaConf.to_container(OmegaConf.load(path))
        group = path.parent.name
        if not isinstance(content, dict) or group in ("hydra", "experiment", "search"):
            continue
        prefix = "measure." if group == "measure" else ""
        below = {prefix + name: value for name, value in content.items()}
        for key, node in {group: content, **below}.items():
            if isinstance(node, dict) and node.get("_target_", "???") != "???":
                yield key, node


def rows() -> list[Row]:
    """The rows of the tables of all options."""
    found: list[Row] = []
    for key, node in nodes():
        for name, conditions in getattr(locate(key, node["_target_"]), "unread_if", {}).items():
            found += [(key, node, name, other, conditions) for other in conditions]
    return found


def put(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The nested dictionaries with another value of a key."""
    name, _, rest = key.partition(".")
    return values | {name: put(values.get(name) or {}, rest, value) if rest else value}


def lines(caplog: pytest.LogCaptureFixture, unread: dict[str, str], *typed: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_of_unread(unread, typed, LOGGER)
    return list(caplog.messages)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return compose().model_dump()


def test_every_row_of_every_option_is_said_when_typed_and_not_otherwise(
    plain: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    tables = rows()
    assert {"aggregator", "faults", "model", "measure.membership"} <= {key for key, *_ in tables}
    for key, node, name, other, conditions in tables:
        assert name in node, f"{key}.{name} is in no YAML file"
        place = other if "." in other else f"{key}.{other}"
        changed = put(plain, key, (selected(plain, key) or {}) | node)
        assert place.rpartition(".")[2] in selected(changed, place.rpartition(".")[0]), place
        cases = conditions[other]
        for value in [7] if callable(cases) else cases:
            unread = unread_keys(put(changed, place, value))
            found = lines(caplog, unread, f"{key}.{name}=1", "rounds=3")
            assert len(found) == 1, (key, name, other)
            assert found[0].startswith(f"{key}.{name}=1: has no effect with ")
            assert lines(caplog, unread, "rounds=3") == []


def test_every_setting_is_said_when_typed_and_not_otherwise(
    plain: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for key, conditions in SETTINGS.items():
        for other, cases in conditions.items():
            for value in [7] if callable(cases) else cases:
                unread = unread_keys(put(plain, other, value))
                found = lines(caplog, unread, f"{key}=1")
                assert len(found) == 1
                assert found[0].startswith(f"{key}=1: has no effect with {other}=")


def test_an_option_of_a_term_that_is_switched_off_has_no_effect() -> None:
    words = ["aggregator=cross_round", "aggregator.memory=1", "personalization=fedfomo"]
    words += ["personalization.epsilon=0", "regularizer=drift_correction", "regularizer.alpha=0"]
    found = unread_keys(compose(*words).model_dump())
    for name in ("batches", "smoothness"):
        assert found[f"aggregator.{name}"] == "with aggregator.memory=1"
    assert found["personalization.epsilon_decay"] == "with personalization.epsilon=0"
    names = [key for key in found if key.startswith("regularizer.")]
    assert len(names) == 5


@pytest.mark.parametrize(
    ("words", "key", "used"),
    [
        (["algorithm=qfedavg", "aggregator.q=0"], "aggregator.lipschitz", "aggregator.q=1"),
        *(
            (["algorithm=feddisco", "aggregator.a=0"], f"aggregator.{name}", "aggregator.a=1")
            for name in ("distance", "target", "relative")
        ),
        (["algorithm=fedrcl", "loss.beta=0"], "loss.threshold", "loss.beta=1"),
        (["loss=restricted_softmax", "loss.alpha=1"], "loss.scaling", "loss.alpha=0.5"),
        (["loss=rpcl_cpdr", "loss.neighbors=0"], "loss.metric", "loss.neighbors=1"),
        (["loss=decorrelated", "loss.beta=0"], "loss.form", "loss.beta=1"),
        (["algorithm=ditto"], "personalization.clip_pull", "local.grad_clip=10"),
        (["algorithm=fedptr_s"], "regularizer.init", "regularizer.side=client"),
        (["algorithm=fedcurv", "regularizer.lam=0"], "regularizer.batch_size", "rounds=3"),
        (["algorithm=fedcac", "personalization.tau=0"], "personalization.beta", "rounds=3"),
        *(
            (
                ["algorithm=fedetf", "personalization.cycles=0"],
                f"personalization.{name}",
                "rounds=3",
            )
            for name in ("classifier_epochs", "projection_epochs")
        ),
        *(
            (
                ["algorithm=apple", f"personalization.{other}=0"],
                f"personalization.{name}",
                "rounds=3",
            )
            for other, names in {
                "rate": ("mu", "penalty_decay", "penalty_rounds"),
                "penalty_rounds": ("mu", "penalty_decay"),
            }.items()
            for name in names
        ),
    ],
)
def test_an_option_of_a_term_with_the_factor_0_has_no_effect(
    words: list[str], key: str, used: str
) -> None:
    assert key in plan(compose(*words)).unread
    assert key not in plan(compose(words[0], used)).unread


@pytest.mark.parametrize(
    ("personalization", "has_effect"),
    [("none", False), ("received", False), ("ditto", True), ("finetune", True)],
)
def test_an_option_of_a_loss_for_personal_models(personalization: str, has_effect: bool) -> None:
    words = [f"personalization={personalization}", "loss=logit_adjustment"]
    assert ("loss.personal" in plan(compose(*words)).unread) != has_effect


def test_the_line_names_what_was_typed(caplog: pytest.LogCaptureFixture) -> None:
    unread = {"download": "because of A", "faults.trigger": "with B", "sampler": "in C"}
    typed = ["compression@download=topk", "+faults.trigger.size=2", "~sampler", "sampler_x=1"]
    assert lines(caplog, unread, *typed) == [
        "compression@download=topk: has no effect because of A",
        "faults.trigger.size=2: has no effect with B",
    ]


def test_what_another_component_reads_has_an_effect(plain: dict[str, Any]) -> None:
    values = put(plain, "local.steps", 3)
    assert unread_keys(values)["local.epochs"] == "with local.steps=3"
    assert "local.epochs" not in unread_keys(
        values, [Declaration("personalization", reads=frozenset({"local.epochs"}))]
    )
    trigger = unread_keys({"faults": {"size": 1}}, [Declaration("x", unread={"faults.size": "y"})])
    assert trigger["faults.size"] == "y"
    group = Declaration("x", unread={"a": "why"}, reads=frozenset({"a.b.c"}))
    found = unread_keys({"a": {"b": {"c": 1, "d": 2}, "e": 3}}, [group])
    assert {key for key, why in found.items() if why == "why"} == {"a.b.d", "a.e"}


def test_weights_of_a_backbone_are_unread_if_it_starts_from_a_file() -> None:
    large = "model@model.groups.large.model=torchvision"
    values = compose("model=mixed", large, "model.start_from=a.pt").model_dump()
    assert unread_keys(values)["model.groups.large.model.weights"] == "with model.start_from=a.pt"
    # The weights of Hugging Face's models also decide the sizes of their layers.
    assert "model.weights" not in unread_keys(
        compose("model=hf", "model.start_from=a.pt").model_dump()
    )


class Own:
    """A component of a user."""

    unread_if = {"width": {"mode": ("narrow",)}}


def test_a_component_of_a_user_declares_the_same_way() -> None:
    node = {"_target_": f"{__name__}.Own", "mode": "narrow", "width": 3}
    assert unread_keys({"loss": {"base": node}})["loss.base.width"] == "with loss.base.mode=narrow"
    assert "loss.base.width" not in unread_keys({"loss": {"base": node | {"mode": "wide"}}})
