"""Small real tables, from the data that come with scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_wine

WARDS = ("north", "south", "west")


def breast_cancer() -> pd.DataFrame:
    """569 rows: 6 of its numbers, a category ``stage`` that depends on one of them, and wards."""
    data = load_breast_cancer(as_frame=True)
    table = data.frame.iloc[:, :6].copy()
    table["stage"] = pd.cut(table["mean radius"], 3, labels=["low", "middle", "high"]).astype(str)
    table["ward"] = np.random.default_rng(0).choice(WARDS, len(table), p=[0.5, 0.3, 0.2])
    table["diagnosis"] = np.array(["malignant", "benign"])[data.target]
    return table


def wine() -> pd.DataFrame:
    """178 rows of 13 numbers, three numbered classes, and a category ``colour``."""
    table = load_wine(as_frame=True).frame
    table["colour"] = np.where(table["hue"] > 1, "ruby", "brick")
    return table


def write_table(folder: Path, name: str = "cancer.csv") -> Path:
    """The table of breast cancer as a file."""
    path = folder / name
    breast_cancer().to_csv(path, index=False)
    return path


def tabular_options(path: Path) -> list[str]:
    """The overrides that read it, with wards as users."""
    return ["data=tabular", f"data.path={path}", "data.target=diagnosis", "data.user=ward"]


TABULAR: dict[str, Any] = {
    "target": "diagnosis",
    "user": None,
    "test_path": None,
    "test_fraction": 0.2,
    "split": "within",
    "split_seed": 0,
    "drop": [],
    "categorical": [],
    "missing": "refuse",
    "many_classes": False,
}
"""The arguments of ``Tabular`` in its YAML file, for that table."""
