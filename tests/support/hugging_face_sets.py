"""Tiny datasets in the formats of Hugging Face's library, and a cache of its own for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

PEOPLE = ("ann", "bob", "cem")


@contextmanager
def offline(folder: Path) -> Iterator[Any]:
    """The library with its cache in ``folder`` and no network."""
    import datasets  # slow

    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH"):
            patch.setattr(datasets.config, name, folder / name.lower())
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        datasets.disable_progress_bars()
        yield datasets
        datasets.enable_progress_bars()


def rows(count: int, seed: int = 0) -> dict[str, list[Any]]:
    """Samples of two classes by three people: an image, numbers, vectors, tokens, a text."""
    draw = np.random.default_rng(seed)
    labels = [number % 2 for number in range(count)]
    pixels = [draw.integers(0, 100, (6, 5, 3), dtype=np.uint8) + 100 * label for label in labels]
    return {
        "image": [Image.fromarray(each.astype(np.uint8)) for each in pixels],
        "height": [float(number) for number in range(count)],
        "weight": list(range(count, 0, -1)),
        "vector": draw.standard_normal((count, 4)).astype(np.float32).tolist(),
        "tokens": draw.integers(0, 9, (count, 7)).tolist(),
        "ragged": [[1 + label] * (2 + number % 3) for number, label in enumerate(labels)],
        "pixels": [each.tolist() for each in pixels],
        "text": [f"sentence {number}" for number in range(count)],
        "label": labels,
        "word": [("cat", "dog")[label] for label in labels],
        "person": [PEOPLE[number // 2 % 3] for number in range(count)],
    }


def dataset(datasets: Any, count: int, seed: int = 0) -> Any:
    """Those rows as a ``datasets.Dataset``."""
    kinds = {
        "image": datasets.Image(),
        "height": datasets.Value("float32"),
        "weight": datasets.Value("int64"),
        "vector": datasets.Sequence(datasets.Value("float32")),
        "tokens": datasets.Sequence(datasets.Value("int32")),
        "ragged": datasets.Sequence(datasets.Value("int64")),
        "pixels": datasets.Array3D((6, 5, 3), "uint8"),
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        "word": datasets.Value("string"),
        "person": datasets.Value("string"),
    }
    return datasets.Dataset.from_dict(rows(count, seed), features=datasets.Features(kinds))


def write_saved(datasets: Any, folder: Path, train: int = 60, test: int = 24) -> None:
    """Both splits, as ``save_to_disk`` writes them."""
    splits = {"train": dataset(datasets, train), "test": dataset(datasets, test, seed=1)}
    datasets.DatasetDict(splits).save_to_disk(folder)
