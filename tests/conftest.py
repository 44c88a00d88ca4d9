"""Shared fixtures."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from lightning.fabric.utilities import registry
from PIL import Image
from sklearn import datasets
from support.command_line import PROCESSES, server_with_path
from support.quick_hydra import quick_hydra
from support.skips import pytest_sessionfinish, pytest_terminal_summary  # noqa: F401  pytest calls these

from fedexp.cli import installed
from fedexp.distributed import processes

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background job of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests press Ctrl-C
os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported: no test may download
gc.set_threshold(100_000)  # the collector else looks again and again through all modules


@pytest.hookimpl(tryfirst=True)  # before what is slow is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every 25th case of a test marked ``matrix`` always runs; the others are slow."""
    cases: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("matrix"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % 25:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1


@pytest.fixture(scope="session", autouse=True)
def what_stays_the_same_is_computed_once() -> Iterator[None]:
    points = cache(lambda path, group: entry_points(group=group))
    with quick_hydra(), server_with_path(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", cache(registry.entry_points))  # of each Fabric
        patch.setattr(installed, "entry_points", lambda group: points(tuple(sys.path), group))
        patch.setattr(datasets, "load_digits", cache(datasets.load_digits))
        yield


@pytest.fixture(autouse=True)
def private_folders(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing a test does may touch the user's caches or W&B account."""
    home = tmp_path_factory.getbasetemp() / "home"
    monkeypatch.setenv("FEDEXP_CACHE", str(home / "cache"))
    for name in [each for each in os.environ if each.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("FEDEXP_DATA", raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(home / "wandb"))


@pytest.fixture(autouse=True)
def ranks_have_imported_everything(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are forked like commands; ``tests/distributed`` starts them as a run does."""
    if "distributed" not in request.path.parts:
        monkeypatch.setattr(processes, "START_METHOD", PROCESSES.get_start_method())


@pytest.fixture
def cifar10_images() -> Path:
    """CIFAR-10 as train/<class>/* and test/<class>/*, where the environment says."""
    folder = os.environ.get("FEDEXP_CIFAR10_IMAGES")
    if folder is None:
        pytest.skip("FEDEXP_CIFAR10_IMAGES does not name the CIFAR-10 image folder")
    return Path(folder)


@pytest.fixture(scope="session")
def image_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny colour images: three classes, 8 + 2 images each, by six users."""
    root = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 2)):
        for name in ("cat", "dog", "eel"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"u{number % 6}_{number}.png")
    return root
