from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.natural_users import LINES, write_play
from support.refusals import refused

from fedexp.core.token_rows import IGNORED
from fedexp.data.dataset import Dataset
from fedexp.data.readers.text import Text
from fedexp.errors import InputError

ARGUMENTS: dict[str, Any] = {
    "sequence_length": 8,
    "stride": 4,
    "targets": "next",
    "min_samples": 10,
    "split": "within",
    "test_fraction": 0.25,
    "split_seed": 0,
}


def reader(path: Path, **changes: Any) -> Text:
    return Text(path=path, **(ARGUMENTS | changes))


@pytest.fixture
def play(tmp_path: Path) -> Path:
    path = tmp_path / "play.txt"
    write_play(path)
    return path


def letters(dataset: Dataset, split: str, user: str) -> list[str]:
    """Each window of a user with its next character, spelt out."""
    alphabet = [{"space": " ", "newline": "\n"}.get(c, c) for c in dataset.description.classes]
    part = getattr(dataset, split)
    chosen = torch.from_numpy(part.users == user)
    rows = torch.cat([part.inputs[chosen], part.labels[chosen, None]], dim=1)
    return ["".join(alphabet[i] for i in row) for row in rows.tolist()]


def test_roles_say_what_is_after_their_line(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text(
        "A preface: nobody says it.\n\nANN:\nHe said:\nno, no.\n\nB C:\nyes yes yes.\n\nANN:\nno?\n"
    )
    dataset = reader(path, sequence_length=2, stride=1, min_samples=1).load(tmp_path)
    whole = letters(dataset, "train", "ANN")
    assert whole[0] == "He "
    joined = whole[0] + "".join(window[-1] for window in whole[1:])
    assert "He said:\nno, no.\nno?".startswith(joined)
    assert set(dataset.train.users) == {"ANN", "B C"}
    assert set(dataset.description.classes) == set("Hesaidno:,.?y") | {"space", "newline"}


@pytest.mark.parametrize("before", ["", "\n", " \t\n", "\n\n", "\ufeff\n"])
def test_the_first_role_may_follow_empty_lines(before: str, tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text(f"{before}ANN:\nno, no, no, no.\n\nBOB:\nyes, yes, yes.\n", encoding="utf-8")
    dataset = reader(path, sequence_length=2, stride=1, min_samples=1).load(tmp_path)
    assert set(dataset.train.users) == {"ANN", "BOB"}


def test_what_it_describes_is_what_it_loads(play: Path, tmp_path: Path) -> None:
    source = reader(play)
    dataset = source.load(tmp_path)
    assert dataset.description == source.describe()
    assert dataset.description.name == "play"
    assert dataset.description.input_shape == (8,)
    assert dataset.description.vocabulary == dataset.description.num_classes
    assert dataset.train.inputs.dtype == torch.int16
    assert dataset.train.overlap == 2


def test_within_a_role_no_character_is_in_both_parts(play: Path, tmp_path: Path) -> None:
    dataset = reader(play, stride=1).load(tmp_path)
    assert set(dataset.train.users) == set(dataset.test.users) == set(LINES)
    for role, line in LINES.items():
        text = "\n".join([line.strip()] * 8)
        cut = len(text) - len(text) // 4
        for split, part in (("train", text[:cut]), ("test", text[cut:])):
            expected = [part[i : i + 9] for i in range(len(part) - 8)]
            assert letters(dataset, split, role) == expected


def test_by_users_a_role_is_in_one_part(play: Path, tmp_path: Path) -> None:
    tested = set()
    for seed in range(8):
        dataset = reader(play, split="users", split_seed=seed).load(tmp_path)
        train, test = set(dataset.train.users), set(dataset.test.users)
        assert train | test == set(LINES)
        assert not train & test
        assert len(test) == 1
        tested |= test
    assert tested == set(LINES)


def test_short_roles_are_left_out(play: Path, tmp_path: Path) -> None:
    samples = {role: int((reader(play).load(tmp_path).train.users == role).sum()) for role in LINES}
    least = min(samples, key=lambda role: samples[role])
    dataset = reader(play, min_samples=samples[least] + 1).load(tmp_path)
    assert set(dataset.train.users) == set(LINES) - {least}
    assert set(dataset.test.users) == set(LINES) - {least}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_samples": 1000}, r"data\.min_samples=1000: no role has 1000 .* and a test seq"),
        ({"min_samples": 1000, "split": "users"}, r"data\.min_samples=1000: .* needs two roles"),
        ({"sequence_length": 200}, r"data\.min_samples=10: no role"),
    ],
)
def test_too_little_text_is_one_line(
    play: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with refused(f"^{message}"):
        reader(play, **changes).load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\x00", "is not text in UTF-8"),
        (b"no role speaks here", "has no speeches"),
        (b"ANN:\n\nBOB:\n\n", "has no speeches"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "play.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^data\.path={path}: {message}"):
        reader(path).describe()


def test_labels_are_the_next_characters(play: Path, tmp_path: Path) -> None:
    """With stride 1 the class of a window is the last token of the next one."""
    train = reader(play, stride=1).load(tmp_path).train
    own = np.flatnonzero(train.users == "ANN")
    assert torch.equal(train.labels[own[:-1]], train.inputs[own[1:], -1].long())


def test_each_character_has_the_next_one_as_its_target(play: Path, tmp_path: Path) -> None:
    source = reader(play, targets="each")
    found, simple = source.load(tmp_path), reader(play).load(tmp_path)
    assert source.describe() == found.description
    assert found.description.per_token
    for name in ("train", "test"):
        split, other = getattr(found, name), getattr(simple, name)
        assert torch.equal(split.inputs, other.inputs)
        assert torch.equal(split.labels, other.labels)
        assert split.targets is not None
        assert torch.equal(split.targets[:, -1], split.labels)
        known = split.targets[:, :-1] != IGNORED
        assert torch.equal(split.targets[:, :-1][known], split.inputs[:, 1:][known].long())
        for user in set(split.users):  # 8 for its first sequence, 4 for each other one
            own = split.targets[torch.from_numpy(split.users == user)]
            assert int((own != IGNORED).sum()) == 8 + 4 * (len(own) - 1)
    kept = found.train.take(np.array([3, 1]))
    assert kept.targets is not None
    assert found.train.targets is not None
    assert torch.equal(kept.targets, found.train.targets[[3, 1]])
