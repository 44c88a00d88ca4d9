"""Run folders as files, for tests of reports: nothing is trained."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "seed": 0,
    "rounds": 3,
    "clients": {"count": 20, "per_round": 10},
    "head": {"_target_": "fedexp.heads.linear.Linear", "rho": 0.9},
    "measure": {"global": {"every": 1, "targets": []}, "prototypes": {"every": 10}},
    "engine": {"device": "cpu"},
    "tracking": {"tensorboard": False},
    "paper": [],
}
HEADLINES = {
    "train/loss": "lower",
    "global/accuracy": "higher",
    "global/loss": "lower",
    "personal/accuracy_uniform": "higher",
    "personal/accuracy_local": "higher",
    "personal/accuracy_test_split": "higher",
    "personal/worst_decile": "higher",
    "personal/std": "lower",
    "validation/accuracy": "higher",
}


def write_run(
    folder: Path,
    overrides: Sequence[str] = (),
    history: Sequence[Mapping[str, float | None]] = ({"global/accuracy": 0.5},),
    paper: Sequence[Mapping[str, Any]] = (),
    finished: bool = True,
    choices: Mapping[str, str] | None = None,
    headlines: Mapping[str, str] = HEADLINES,
    **changes: Any,
) -> Path:
    """A run of ``len(history)`` rounds; overrides such as ``head.rho=0.1`` change its config,
    ``algorithm=fednh`` its choices.

    ``changes`` replace whole keys of the config.
    """
    folder.mkdir(parents=True)
    config = json.loads(json.dumps({**CONFIG, "rounds": len(history), **changes}))
    config["paper"] = [{"overrides": [], "spread": {}, **row} for row in paper]
    chosen = {"algorithm": "fedavg", **(choices or {})}
    for override in overrides:
        key, _, value = override.partition("=")
        try:
            parsed = json.loads(value)
        except ValueError:  # the name of an option
            chosen[key] = value
            continue
        *path, name = key.split(".")
        node = config
        for part in path:
            node = node.setdefault(part, {})
        node[name] = parsed
    identity = {"config": config, "wandb_id": "0", "headlines": dict(headlines)}
    (folder / "run.json").write_text(json.dumps(identity))
    lines = [json.dumps({"round": n, **row}) for n, row in enumerate(history, start=1)]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    hydra = folder / ".hydra"
    hydra.mkdir()
    (hydra / "overrides.yaml").write_text(json.dumps(list(overrides)))
    (hydra / "hydra.yaml").write_text(json.dumps({"hydra": {"runtime": {"choices": chosen}}}))
    if finished:
        summary = {
            "metrics": {},
            "overrides": list(overrides),
            "choices": chosen,
            "rounds": len(history),
            "wall_time_s": 1.0,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_methods(
    folder: Path,
    methods: Mapping[str, Sequence[Sequence[Mapping[str, float | None]]]],
    *typed: str,
    **more: Any,
) -> None:
    """Runs of several methods, one for each history of a method, with the seeds 0, 1, 2, ...

    ``typed`` are overrides of all runs; ``more`` are further arguments of ``write_run``.
    """
    for n, (name, histories) in enumerate(methods.items()):
        for seed, history in enumerate(histories):
            overrides = [*typed, f"algorithm={name}", f"seed={seed}"]
            write_run(folder / f"{n}_{seed}", overrides, history, **more)


def accuracies(*values: float) -> list[dict[str, float]]:
    """A history of the global accuracy."""
    return [{"global/accuracy": value} for value in values]
