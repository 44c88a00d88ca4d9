"""Runs on several kinds of data, with their raw test inputs as people have them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

import fedexp
from fedexp.config.schema import validate
from fedexp.data.readers.digits import TEST_FRACTION
from fedexp.data.train_test import by_class
from fedexp.runtime.plan import plan
from fedexp.state.run_folder import read
from support.natural_users import PLAY_OPTIONS, SMALL_LSTM, write_play
from support.short_runs import NO_PICTURES
from support.tables import breast_cancer

SMALL = [
    "rounds=2",
    "clients.count=4",
    "clients.per_round=3",
    "local.epochs=1",
    "tracking.wandb.mode=disabled",
    "tracking.progress=false",
    *NO_PICTURES,
]


@dataclass
class Trained:
    """A run's folder, the raw inputs of its test split, and their labels [n]."""

    folder: Path
    raw: Any
    labels: np.ndarray
    accuracy: float


def train(folder: Path, raw: Any, labels: np.ndarray, *overrides: str) -> Trained:
    result = fedexp.run([*SMALL, f"hydra.run.dir={folder / 'run'}", *overrides])
    measured = result.summary["metrics"].get("global/accuracy", {"final": float("nan")})
    return Trained(folder / "run", raw, labels, measured["final"])


def digits(folder: Path, *overrides: str) -> Trained:
    found = load_digits()
    _, test = by_class(found.target, TEST_FRACTION, 0)
    return train(folder, found.images[test], found.target[test], *overrides)


def table(folder: Path, *overrides: str) -> Trained:
    """Numbers and categories with gaps; the file of the training rows is deleted afterwards."""
    rows = breast_cancer()
    rows.loc[::7, "mean radius"] = np.nan
    rows.loc[::5, "stage"] = None
    rows["site"] = np.arange(len(rows)) % 3
    tested = np.arange(len(rows)) % 4 == 0
    rows[~tested].to_csv(folder / "train.csv", index=False)
    rows[tested].to_csv(folder / "test.csv", index=False)
    made = train(
        folder,
        pd.read_csv(folder / "test.csv")[::-1].drop(columns=["diagnosis"]).iloc[:, ::-1],
        (rows[tested]["diagnosis"] == "malignant").to_numpy()[::-1].astype(int),
        "data=tabular",
        f"data.path={folder / 'train.csv'}",
        f"data.test_path={folder / 'test.csv'}",
        "data.target=diagnosis",
        "data.missing=mean",
        "data.categorical=[site]",
        *overrides,
    )
    (folder / "train.csv").unlink()
    return made


def images(folder: Path, tree: Path, *overrides: str) -> Trained:
    """Image files, resized."""
    options = ["data=image_folder", f"data.root={tree}", "data.image_size=8", "partition=iid"]
    files = sorted((tree / "test").rglob("*.png"))
    names = sorted({path.parent.name for path in files})
    labels = np.array([names.index(path.parent.name) for path in files])
    return train(folder, files, labels, *options, *overrides)


def text(folder: Path, *overrides: str) -> Trained:
    """Windows of a play, spelt out by the alphabet that the classes name."""
    write_play(folder / "play.txt")
    options = ["data=text", f"data.path={folder / 'play.txt'}", *PLAY_OPTIONS, *SMALL_LSTM]
    made = train(folder, None, np.empty(0), "partition=natural", "clients.count=3", *options)
    run = read(made.folder)
    assert run is not None
    split = plan(validate(dict(run.config))).source.load(folder).test  # type: ignore[attr-defined]
    letters = np.array([{"newline": "\n", "space": " "}.get(c, c) for c in _classes(made.folder)])
    made.raw = ["".join(row) for row in letters[split.inputs.numpy()]]
    made.labels = split.labels.numpy()
    return made


def _classes(run: Path) -> list[str]:
    return list(fedexp.load(run).classes)
