"""Tiny datasets with natural users: LEAF's JSON files and a play."""

import json
from pathlib import Path
from typing import Any

import numpy as np

LINES = {
    "ANN": "the cat sat on the mat and the dog ate the hat. ",
    "BOB": "a man, a plan, a canal: panama! ",
    "Third Man": "who goes there in the night? ",
}
PLAY_OPTIONS = ["data.sequence_length=8", "data.stride=4", "data.min_samples=10"]
SMALL_LSTM = ["model=char_lstm", "model.hidden=8", "model.embedding_dim=4"]


def write_play(path: Path, repeats: int = 8) -> None:
    """Roles that speak in turn, each ``repeats`` times its own line."""
    speeches = [f"{role}:\n{line}\n" for _ in range(repeats) for role, line in LINES.items()]
    path.write_text("\n".join(speeches))


def write_json(path: Path, samples: dict[str, tuple[list[Any], list[Any]]]) -> None:
    """A file as LEAF writes it: user -> x and y."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(samples),
        "num_samples": [len(y) for _, y in samples.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in samples.items()},
    }
    path.write_text(json.dumps(content))


def digits(user: int, count: int) -> tuple[list[Any], list[Any]]:
    """Images of one grey value each, (user + sample) / 255, and three classes that take turns."""
    x = [[(user + sample) / 255] * 784 for sample in range(count)]
    return x, [(7 * user + sample % 3) % 62 for sample in range(count)]


def sequences(text: str) -> tuple[list[str], list[str]]:
    """All sequences of 80 characters, as LEAF cuts them."""
    starts = range(len(text) - 80)
    return [text[i : i + 80] for i in starts], [text[i + 80] for i in starts]


def spoken(user: int, length: int) -> str:
    """Random letters of its own for each user."""
    return "".join(np.random.default_rng(user).choice(list("abc xyz\n"), length))


def write_femnist(root: Path, users: int = 6) -> None:
    """Split by LEAF: in two files, 9 training and 3 test samples a user."""
    for split, count, start in (("train", 9, 0), ("test", 3, 100)):
        made = {f"f{user}": digits(start + 10 * user, count) for user in range(users)}
        names = list(made)
        for number, half in enumerate((names[: users // 2], names[users // 2 :])):
            path = root / split / f"all_data_{number}_{split}_9.json"
            write_json(path, {name: made[name] for name in half})


def write_shakespeare(root: Path, users: int = 6) -> None:
    """Split by LEAF: each user says other things in the two splits."""
    for split, length, start in (("train", 100, 0), ("test", 86, 50)):
        made = {f"PLAY_{user}": sequences(spoken(start + user, length)) for user in range(users)}
        write_json(root / split / f"all_data_{split}_9.json", made)
