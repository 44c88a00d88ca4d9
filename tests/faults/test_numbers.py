"""Every number of every partition and dataset: a value out of range is one line or harmless."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from support.hugging_face_sets import dataset, offline
from support.image_sets import write_all_of_cifar100, write_fed_isic, write_tiny_imagenet
from support.natural_users import write_femnist, write_play, write_shakespeare
from support.tables import write_table
from support.torchvision_files import WRITE, accept_any_checksum

from fedexp.cli.command import config_folder
from fedexp.config.build import build
from fedexp.data.configured_partition import partition_indices
from fedexp.data.dataset import Describer, Source, Split
from fedexp.data.drawn import DrawnSource
from fedexp.errors import InputError

VALUES = (0, -1, 0.5, 5e-324, 1e308, -1e308, 2**31, 2**63, 10**30, math.nan, math.inf, -math.inf)
"""Zero, negative, tiny, huge and no numbers."""

OPTIONAL = {
    "mean": [0.5],
    "std": [0.5],
    "image_size": 8,
    "sequence_length": 3,
    "size_max": 100,
    "draw_seed": 0,
}
"""Numbers that are null by default."""


def yaml_node(group: str, name: str) -> dict[str, Any]:
    text = (Path(config_folder()) / group / f"{name}.yaml").read_text()
    node: dict[str, Any] = yaml.safe_load(text)
    return {key: value for key, value in node.items() if key != "defaults"}


def numeric_keys(node: dict[str, Any]) -> list[str]:
    """The keys whose value is a number or a list of numbers."""

    def is_numeric(key: str, value: Any) -> bool:
        each = value[0] if isinstance(value, list) and value else value
        return key in OPTIONAL or (isinstance(each, int | float) and not isinstance(each, bool))

    return [key for key, value in node.items() if is_numeric(key, value)]


def changed(node: dict[str, Any], key: str, value: float) -> dict[str, Any]:
    """The node with ``value`` for a key; in a list in place of the last number."""
    old = node[key] if node[key] is not None else OPTIONAL[key]
    return node | {key: [*old[:-1], value] if isinstance(old, list) else value}


def refused(call: Callable[[], object]) -> bool:
    """Whether the call raises an InputError, which must be one line."""
    try:
        call()
    except InputError as error:
        message = str(error)
    else:
        return False
    assert "\n" not in message
    assert len(message) < 1000
    return True


PARTITIONS = ("dirichlet", "dirichlet_fednh", "dirichlet_recut", "legacy_dirichlet", "multi_alpha")
PARTITIONS += ("per_client_alpha", "shards")


@pytest.mark.parametrize(
    ("name", "key"),
    [(name, key) for name in PARTITIONS for key in numeric_keys(yaml_node("partition", name))],
)
def test_a_partition_is_complete_or_refused(name: str, key: str) -> None:
    labels = np.repeat(np.arange(10), 60)
    node = yaml_node("partition", name) | ({"min_size": 1} if name == "legacy_dirichlet" else {})
    assert not refused(lambda: partition_indices(node, labels, None, 10, 0, None, None))
    for value in VALUES:
        clients: list[np.ndarray] = []

        def divide(value: float = value, clients: list[np.ndarray] = clients) -> None:
            found = changed(node, key, value)
            clients += partition_indices(found, labels, None, 10, 0, None, None)

        if not refused(divide):
            assert np.array_equal(np.sort(np.concatenate(clients)), np.arange(600)), value


def write_images(root: Path) -> None:
    for number in range(12):
        path = root / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number,) * 3).save(path)


DATA: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "spiral": (lambda root: None, {}),
    "synthetic": (lambda root: None, {}),
    "cifar10": (WRITE["cifar10"], {}),
    "fc100": (write_all_of_cifar100, {}),
    "fed_isic": (write_fed_isic, {"root": "fed_isic2019", "image_size": 8, "short_side": 8}),
    "tiny_imagenet": (write_tiny_imagenet, {"image_size": 8}),
    "image_folder": (write_images, {}),
    "femnist": (write_femnist, {}),
    "shakespeare": (write_shakespeare, {}),
    "text": (
        lambda root: write_play(root / "play.txt"),
        {"path": "play.txt", "sequence_length": 8, "min_samples": 10, "stride": 4},
    ),
    "tabular": (write_table, {"path": "cancer.csv", "target": "diagnosis"}),
}
"""Name -> function that writes the files, and options; the values of path and root are below it."""


def check_dataset(node: dict[str, Any], folder: Path) -> None:
    """Load the dataset; its inputs and constants are finite."""
    source = build("data", node, Describer)
    if isinstance(source, DrawnSource):
        split = source.draw(0, int(source.totals(10)[0]))
        assert split.inputs.isfinite().all()
        return
    assert isinstance(source, Source)
    found = source.load(folder / "cache")
    for each in (found.train, found.test):
        assert isinstance(each, Split)
        assert each.inputs.isfinite().all()
    if found.mean:
        mean, std = (np.array(each, dtype=np.float32) for each in (found.mean, found.std))
        assert np.isfinite(mean / std).all()


def check_all_values(node: dict[str, Any], folder: Path) -> None:
    """Without a change the dataset loads; with any value of any number it is refused or finite."""
    check_dataset(node, folder)
    for key in numeric_keys(node):
        for value in VALUES:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                refused(lambda: check_dataset(changed(node, key, value), folder))  # noqa: B023


@pytest.mark.parametrize("name", DATA)
def test_a_dataset_is_finite_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_any_checksum(monkeypatch)
    write, options = DATA[name]
    write(tmp_path)
    node = yaml_node("data", name) | options
    for key in {"root", "path"} & node.keys():
        place = "" if "${" in str(node[key]) or node[key] == "???" else node[key]
        node[key] = str(tmp_path / place)
    check_all_values({**node, **({"download": False} if "download" in node else {})}, tmp_path)


@pytest.mark.parametrize("column", ["image", "tokens", "vector"])
def test_a_hugging_face_dataset_is_finite_or_refused(column: str, tmp_path: Path) -> None:
    with offline(tmp_path / "cache") as library:
        dataset(library, 24).save_to_disk(tmp_path / "some")
        node = yaml_node("data", "hf")
        node |= {"name": str(tmp_path / "some"), "input": column, "target": "label", "test": None}
        check_all_values(node, tmp_path)
