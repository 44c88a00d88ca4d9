"""Whatever reads data with users: no sample, and no user who is set apart, is on two sides."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.federations import compose
from support.hugging_face_sets import offline
from support.natural_users import sequences, write_json
from torch import Tensor

from fedexp.config.build import build
from fedexp.config.schema import Config
from fedexp.data.dataset import Source
from fedexp.data.load import load_data
from fedexp.data.readers.leaf import CHARACTERS

USERS, SAMPLES = 6, 20
CLIENTS = 3

Atoms = Callable[[Tensor], set[object]]
"""What the samples of a split [n, ...] are made of: each atom is somewhere in the data once."""


def write_all_femnist(folder: Path) -> None:
    """Every image has a first pixel for its user and a second one for its number."""
    made = {
        f"writer {user}": (
            [[user / 255, number / 255, *[0.0] * 782] for number in range(SAMPLES)],
            [number % 4 for number in range(SAMPLES)],
        )
        for user in range(USERS)
    }
    write_json(folder / "femnist" / "all_data" / "all_data.json", made)


def write_all_shakespeare(folder: Path) -> None:
    """Every four characters are in the texts once."""
    letters = np.random.default_rng(1).choice(list(CHARACTERS.alphabet), (USERS, 700))
    texts = ["".join(row) for row in letters]
    found = [text[i : i + 4] for text in texts for i in range(len(text) - 3)]
    assert len(set(found)) == len(found)
    made = {f"role {user}": sequences(text) for user, text in enumerate(texts)}
    write_json(folder / "shakespeare" / "all_data" / "all_data.json", made)


def write_text(folder: Path) -> None:
    """Every character is in the text once."""
    speech = iter(chr(0x4E00 + number) for number in range(USERS * 200))
    roles = [f"R{user}:\n" + "".join(next(speech) for _ in range(200)) for user in range(USERS)]
    (folder / "play.txt").write_text("\n\n".join(roles))


def write_images(folder: Path) -> None:
    for user in range(USERS):
        for number in range(SAMPLES):
            path = folder / "images" / "ab"[number % 2] / f"u{user}_{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.array([[user, number]], dtype=np.uint8)).save(path)


def table() -> pd.DataFrame:
    """One number that is different in every row."""
    count = USERS * SAMPLES
    rows = {"number": np.arange(count), "user": np.arange(count) % USERS}
    return pd.DataFrame(rows | {"label": np.arange(count) // USERS % 3})


def rows_of(inputs: Tensor) -> set[object]:
    """The first numbers of each sample."""
    return {tuple(row) for row in inputs.flatten(1)[:, :2].tolist()}


def letters_of(inputs: Tensor) -> set[object]:
    return set(inputs.unique().tolist())


def fours_of(inputs: Tensor) -> set[object]:
    """Every four characters that follow each other, as one number."""
    ids = inputs.long()
    return set(
        (80**3 * ids[:, :-3] + 6400 * ids[:, 1:-2] + 80 * ids[:, 2:-1] + ids[:, 3:])
        .unique()
        .tolist()
    )


TEXT = ["data=text", "data.sequence_length=6", "data.stride=2", "data.min_samples=1"]
LSTM = ["model=char_lstm", "model.hidden=4"]
READERS: dict[str, tuple[list[str], Atoms]] = {
    "femnist": (["data=femnist", "data.root={}/femnist", "model=simple_cnn"], rows_of),
    "shakespeare": (["data=shakespeare", "data.root={}/shakespeare", *LSTM], fours_of),
    "text": ([*TEXT, "data.path={}/play.txt", *LSTM], letters_of),
    "image_folder": (
        [
            "data=image_folder",
            "data.root={}/images",
            "data.channels=1",
            r"data.user_pattern='(u\d)'",
        ],
        rows_of,
    ),
    "tabular": (
        ["data=tabular", "data.path={}/table.csv", "data.target=label", "data.user=user"],
        rows_of,
    ),
    "hf": (
        [
            *["data=hf", "data.name={}/table.csv", "data.input=number", "data.target=label"],
            *["data.user=user", "data.test=null"],
        ],
        rows_of,
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("leaks")
    for write in (write_all_femnist, write_all_shakespeare, write_text, write_images):
        write(found)
    table().to_csv(found / "table.csv", index=False)
    return found


@pytest.fixture(params=list(product(READERS, ("within", "users"))), ids=" ".join)
def reader(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Config, Atoms]]:
    """The config that reads one of them, split as asked for."""
    monkeypatch.setenv("FEDEXP_CACHE", str(folder / "cache"))
    name, split = request.param
    overrides, atoms = READERS[name]
    config = compose(
        *(each.replace("{}", str(folder)) for each in overrides),
        *["partition=natural", f"clients.count={CLIENTS}", "clients.per_round=1"],
        *[f"data.split={split}", "engine.device=cpu"],
        f"partition.test_split={'users' if split == 'within' else 'classes'}",
    )
    with offline(folder / "hub") if name == "hf" else nullcontext():
        yield config, atoms


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    split_seed=st.integers(0, 10**6),
    fraction=st.sampled_from([0.1, 0.3, 0.5]),
    validation=st.sampled_from([0.0, 0.2]),
)
def test_training_validation_and_test_share_nothing(
    reader: tuple[Config, Atoms], seed: int, split_seed: int, fraction: float, validation: float
) -> None:
    config, atoms = reader
    drawn = {"split_seed": split_seed, "test_fraction": fraction, "validation": validation}
    chosen = {"seed": seed, "data": config.data.model_copy(update=drawn)}
    config = config.model_copy(update=chosen)
    source: Source = build("data", config.data.node, Source)
    whole, data = source.load(config.data.cache), load_data(config, source, torch.device("cpu"))
    train_users, test_users = (set(np.asarray(s.users)) for s in (whole.train, whole.test))
    assert len(train_users | test_users) == USERS
    if config.data.node["split"] == "users":
        assert not train_users & test_users
    else:
        assert test_users <= train_users
    assert not atoms(whole.train.inputs) & atoms(whole.test.inputs)
    sides = [data.test.inputs]
    for client in data.clients:
        sides += [data.train.inputs[client.train_index], data.train.inputs[client.validation_index]]
        assert len(set(np.asarray(whole.train.users)[client.train_index.numpy()])) == 1
        assert bool(len(client.validation_index)) == bool(validation)
    found = [atoms(side) for side in sides if len(side)]
    assert len(found) == 1 + CLIENTS * (2 if validation else 1)
    assert len(set().union(*found)) == sum(map(len, found))
