"""``engine=auto``: which engine it takes, and that it then is that engine."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import compose, federate

import fedexp
from fedexp.distributed.ranks import Ranks
from fedexp.engines import auto as module
from fedexp.engines.auto import Auto
from fedexp.engines.base import Engine
from fedexp.engines.serial import Serial
from fedexp.engines.vectorized import Vectorized
from fedexp.tracking.summary import digest

SMALL = ["clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=300"]
QUIET = ["tracking.wandb.mode=disabled", "tracking.progress=false", "evaluation.personal=off"]


def engine(federation: Any) -> Auto:
    found = federation.engine
    assert isinstance(found, Auto)
    return found


@pytest.mark.parametrize(
    ("vectorized", "name"), [(0.3, "vectorized"), (0.9, "serial"), (3.0, "serial")]
)
def test_stacks_have_to_be_clearly_faster(
    vectorized: float, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "measure", lambda _: {"serial": 0.5, "vectorized": 0.5 * vectorized}
    )
    federation = federate(*SMALL, "engine=auto")
    why = engine(federation).choose(Ranks(), federation.server.broadcast, 3)
    assert why == (
        f"engine=auto: {name}; vectorized took {vectorized:.2f} of serial's time in a trial with "
        "3 clients"
    )
    chosen = federation.engine.on_trial(federation.engine.resources)
    assert type(chosen) is (Vectorized if name == "vectorized" else Serial)


@pytest.mark.parametrize("name", ["serial", "vectorized"])
def test_its_bits_are_those_of_the_engine_that_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = [*SMALL, "algorithm=scaffold"]
    named, chosen = federate(*method, f"engine={name}"), federate(*method, "engine=auto")
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    with monkeypatch.context() as patch:
        found = {"serial": 1.0, "vectorized": 0.1 if name == "vectorized" else 1.0}

        def measure(ways: Any) -> dict[str, float]:
            ways["serial"]()
            return found

        patch.setattr(module, "measure", measure)
        engine(chosen).choose(Ranks(), chosen.server.broadcast, 3)
    assert engine(chosen).chosen == name
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    for round in (1, 2):
        rows = [federation.run_round(round).metrics for federation in (named, chosen)]
        rows = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
        assert rows[0] == rows[1]
    assert digest(named.server.weights) == digest(chosen.server.weights)


def test_a_model_that_cannot_be_stacked_trains_serially(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise module.InputError("engine=vectorized: 0 is BatchNorm; use engine=serial")

    federation = federate(*SMALL, "engine=auto")
    monkeypatch.setattr(module, "Vectorized", refuse)
    why = engine(federation).choose(Ranks(), federation.server.broadcast, 3)
    assert why == "engine=auto: serial; engine=vectorized: 0 is BatchNorm; use engine=serial"


def test_a_part_that_cannot_be_stacked_trains_serially(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Engine, *_: Any) -> None:
        raise RuntimeError("vmap: not over .item()\nmore")

    federation = federate(*SMALL, "engine=auto")
    monkeypatch.setattr(Vectorized, "train", fail)
    why = engine(federation).choose(Ranks(), federation.server.broadcast, 3)
    assert why == (
        "engine=auto: serial; vectorized failed in a trial (RuntimeError: vmap: not over .item())"
    )
    assert engine(federation).chosen == "serial"


def test_a_layer_that_would_stay_changed_is_left_alone() -> None:
    federation = federate(*SMALL, "engine=auto")
    layer: Any = federation.engine.resources.module.backbone
    layer.prepare_for_vmap = lambda: pytest.fail("was changed")
    why = engine(federation).choose(Ranks(), federation.server.broadcast, 3)
    assert why.startswith("engine=auto: serial; backbone has to be changed to be stacked")


def test_ranks_take_the_same_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(Ranks):
        size = 2

        def all_gather(self, value: Any) -> list[Any]:
            return [value, {"serial": 1.0, "vectorized": 0.9}]

    monkeypatch.setattr(module, "measure", lambda _: {"serial": 1.0, "vectorized": 0.1})
    federation = federate(*SMALL, "engine=auto")
    why = engine(federation).choose(Two(), federation.server.broadcast, 3)
    assert why.startswith("engine=auto: serial; vectorized took 0.90")


def test_a_resumed_run_keeps_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = [*SMALL, *QUIET, "engine=auto", "engine.device=cpu"]
    monkeypatch.setattr(module, "measure", lambda _: {"serial": 1.0, "vectorized": 0.1})
    fedexp.run([*run, "rounds=1", f"hydra.run.dir={tmp_path / 'resumed'}"])
    summary = json.loads((tmp_path / "resumed" / "summary.json").read_text())
    assert summary["computed_with"]["engine"] == "vectorized"
    monkeypatch.setattr(module, "measure", lambda _: pytest.fail("a trial"))
    resumed = fedexp.run([*run, "rounds=2", f"resume={tmp_path / 'resumed'}"])
    assert resumed.summary["computed_with"]["engine"] == "vectorized"
    named = [*SMALL, *QUIET, "engine=vectorized", "engine.device=cpu", "rounds=2"]
    alone = fedexp.run([*named, f"hydra.run.dir={tmp_path / 'alone'}"])
    assert resumed.summary["weights_digest"] == alone.summary["weights_digest"]


def test_it_compiles_the_engine_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(Vectorized, "compile", lambda self: compiled.append("vectorized"))
    monkeypatch.setattr(Serial, "compile", lambda self: compiled.append("serial"))
    found = engine(federate(*SMALL, "engine=auto"))
    found.compile()
    assert not compiled
    found.use("vectorized")
    assert compiled == ["vectorized"]


def test_serial_captures_its_steps_if_this_engine_does() -> None:
    found = engine(federate(*SMALL, "engine=auto"))
    graphs: Any = object()
    found.graphs = graphs
    found.use("serial")
    assert found.on_trial(found.resources).graphs is graphs
    found.use("vectorized")
    assert found.on_trial(found.resources).graphs is None


def test_the_default_is_an_engine_by_name() -> None:
    assert compose().engine.node["_target_"] == "fedexp.engines.serial.Serial"


def test_how_many_models_are_scored_at_once_is_measured_once() -> None:
    """Evaluation beside training asks before it starts its thread, and before the choice."""
    chosen = engine(federate(*SMALL, "engine=auto"))
    chosen.use("vectorized")
    assert chosen.on_trial(chosen.resources).scorer is chosen.scorer
