import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.natural_users import (
    digits,
    sequences,
    spoken,
    write_femnist,
    write_json,
    write_shakespeare,
)
from support.refusals import refused

from fedexp.config.compatibility.traits import OVERLAPPING_SAMPLES
from fedexp.data.readers.leaf import CHARACTERS, Femnist, Leaf, Shakespeare
from fedexp.errors import InputError

OPTIONS: dict[str, Any] = {"test_fraction": 0.1, "split": "within", "split_seed": 0}


def femnist(root: Path, **changes: Any) -> Femnist:
    return Femnist(root=root, **(OPTIONS | {"mean": None, "std": None} | changes))


def shakespeare(root: Path, **changes: Any) -> Shakespeare:
    return Shakespeare(root=root, **(OPTIONS | changes))


def test_femnist_as_leaf_has_split_it(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    dataset = femnist(tmp_path).load(tmp_path / "cache")
    assert dataset.description.input_shape == (1, 28, 28)
    assert dataset.description.num_classes == 62
    assert dataset.train.inputs.dtype == torch.uint8
    assert dataset.train.inputs[:, 0, 5, 7].tolist() == [
        10 * user + sample for user in range(6) for sample in range(9)
    ]
    assert dataset.train.labels[9:12].tolist() == [(70 + sample) % 62 for sample in range(3)]
    assert dataset.train.users is not None
    assert dataset.test.users is not None
    assert dataset.train.users.tolist() == np.repeat(range(6), 9).tolist()
    assert dataset.test.users.tolist() == np.repeat(range(6), 3).tolist()
    assert dataset.mean == pytest.approx(((25 + 4) / 255,))
    assert femnist(tmp_path, mean=(0.0,), std=(1.0,)).load(tmp_path / "cache").mean == (0.0,)


def test_shakespeare_as_leaf_has_split_it(tmp_path: Path) -> None:
    write_shakespeare(tmp_path)
    dataset = shakespeare(tmp_path).load(tmp_path / "cache")
    assert dataset.description.num_classes == dataset.description.vocabulary == 80
    assert dataset.train.inputs.shape == (6 * 20, 80)
    assert dataset.train.overlap == 80
    assert OVERLAPPING_SAMPLES in Shakespeare.traits
    text = spoken(1, 100)
    spelt = "".join(CHARACTERS.alphabet[i] for i in dataset.train.inputs[20])
    assert spelt == text[:80]
    assert CHARACTERS.alphabet[int(dataset.train.labels[20])] == text[80]


def test_users_keep_their_numbers_in_both_splits(tmp_path: Path) -> None:
    write_json(tmp_path / "train" / "a.json", {"u": digits(0, 2), "v": digits(20, 3)})
    write_json(tmp_path / "train" / "b.json", {"v": digits(40, 1), "none": ([], [])})
    write_json(tmp_path / "test" / "a.json", {"w": digits(60, 1), "v": digits(80, 2)})
    dataset = femnist(tmp_path).load(tmp_path / "cache")
    assert np.asarray(dataset.train.users).tolist() == [0, 0, 1, 1, 1, 1]
    assert np.asarray(dataset.test.users).tolist() == [2, 1, 1]
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 20, 21, 22, 40]
    again = femnist(tmp_path).load(tmp_path / "cache")
    assert dataset.user_names == again.user_names == ("u", "v", "w")


def test_femnist_of_all_data_is_split_within_each_user(tmp_path: Path) -> None:
    made = {f"f{user}": digits(40 * user, size) for user, size in enumerate((20, 2, 1, 35))}
    write_json(tmp_path / "all_data" / "all_data_0.json", made)
    dataset = femnist(tmp_path).load(tmp_path / "cache")
    train, test = (np.asarray(split.users) for split in (dataset.train, dataset.test))
    assert np.bincount(train).tolist() == [18, 1, 31]  # floor(.9 n), at least 1
    assert np.bincount(test).tolist() == [2, 1, 4]  # the user with one sample is left out
    grey = torch.cat([dataset.train.inputs, dataset.test.inputs])[:, 0, 0, 0]
    expected = [*range(20), 40, 41, *range(120, 155)]
    assert sorted(grey.tolist()) == expected
    assert dataset.test.inputs[:2, 0, 0, 0].tolist() != [18, 19]  # a draw
    other = femnist(tmp_path, split_seed=1).load(tmp_path / "cache")
    assert not torch.equal(other.test.inputs, dataset.test.inputs)


def test_shakespeare_of_all_data_is_split_without_overlap(tmp_path: Path) -> None:
    texts = {"long": spoken(0, 400), "short": spoken(1, 120)}
    made = {user: sequences(text) for user, text in texts.items()}
    write_json(tmp_path / "all_data" / "all_data.json", made)
    dataset = shakespeare(tmp_path).load(tmp_path / "cache")
    windows = made["long"][0]  # 320 of them: 288 before the test part, of which 80 overlap with it
    assert (len(dataset.train), len(dataset.test)) == (208, 32)
    assert set(np.asarray(dataset.train.users)) == {0}
    train, test = (
        ["".join(CHARACTERS.alphabet[i] for i in row) for row in split.inputs]
        for split in (dataset.train, dataset.test)
    )
    assert train == windows[:208]
    assert test == windows[288:]
    assert 207 + 80 < 288  # the last next character in training is before the first test window


def test_characters_outside_the_alphabet_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_shakespeare(tmp_path)
    write_json(tmp_path / "train" / "z.json", {"odd": (["é" + "a" * 79], ["b"])})
    dataset = shakespeare(tmp_path).load(tmp_path / "cache")
    assert dataset.train.inputs[-1, :2].tolist() == [79, CHARACTERS.alphabet.index("a")]
    assert "1 characters are not in LEAF's alphabet" in caplog.text


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_femnist(tmp_path)
    first = femnist(tmp_path).load(tmp_path / "cache")
    calls = []
    decode = Femnist.decode
    monkeypatch.setattr(Femnist, "decode", lambda self, x, y: calls.append(1) or decode(self, x, y))
    again = femnist(tmp_path).load(tmp_path / "cache")
    assert not calls
    assert torch.equal(again.train.inputs, first.train.inputs)
    (kept,) = (tmp_path / "cache" / "leaf").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert torch.equal(femnist(tmp_path).load(tmp_path / "cache").test.labels, first.test.labels)
    assert len(calls) == 12
    write_json(tmp_path / "train" / "z.json", {"new": digits(0, 1)})
    assert len(femnist(tmp_path).load(tmp_path / "cache").train) == len(first.train) + 1


READERS: dict[str, Callable[[Path], Leaf]] = {"femnist": femnist, "shakespeare": shakespeare}


@pytest.mark.parametrize("name", READERS)
def test_absent_files_are_one_line_that_says_what_to_do(name: str, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(InputError) as caught:
        READERS[name](tmp_path).describe()
    message = str(caught.value)
    assert message.startswith(f"data.root={tmp_path}: holds neither train/*.json")
    assert "preprocess.sh" in message
    assert f"data/{name}/data" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("femnist", "{", "Expecting"),
        ("femnist", "[]", "list indices"),
        ("femnist", {"user_data": {}}, "it has no 'users'"),
        ("femnist", {"users": ["a"], "user_data": {}}, "it has no 'a'"),
        ("femnist", {"a": ([[0.5] * 784], [1, 2])}, "user a has 1 x and 2 y"),
        ("femnist", {"a": ([[0.5] * 783], [1])}, "user a: an x of FEMNIST is 784 numbers"),
        (
            "femnist",
            {"a": ([[1.5] * 784], [1])},
            "user a: an x of FEMNIST is 784 numbers from 0 to 1",
        ),
        ("femnist", {"a": ([[float("nan")] * 784], [1])}, "user a: an x of FEMNIST is 784"),
        ("femnist", {"a": ([[0.5] * 784], [1e30])}, r"user a: a y of FEMNIST .* not 1e\+30"),
        ("femnist", {"a": ([[0.5] * 784], [2**70])}, f"user a: a y of FEMNIST .* not {2**70}"),
        ("femnist", {"a": ([[0.5] * 784], [1.5])}, "user a: a y of FEMNIST .* not 1.5"),
        ("femnist", {"a": ([[0.5] * 784], [None])}, "user a: a y of FEMNIST .* not None"),
        ("femnist", {"a": ([[0.5] * 784], [[1]])}, r"user a: a y of FEMNIST .* not \[1\]"),
        ("femnist", {"users": ["a", "a"], "user_data": {}}, "it lists a user twice"),
        ("femnist", "[" * 100_000, "maximum recursion depth exceeded"),
        ("shakespeare", {"a": (["a" * 79], ["b"])}, "user a: an x of Shakespeare is a text of 80"),
        ("shakespeare", {"a": (["a" * 80], ["bc"])}, "user a: a y of Shakespeare is one character"),
        ("shakespeare", {"a": ([[0.5] * 784], [1])}, "user a: an x of Shakespeare is a text of 80"),
    ],
)
def test_a_file_that_is_not_leaf_s_is_one_line(
    name: str, content: Any, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "all_data" / "all_data.json"
    if isinstance(content, dict) and "user_data" not in content:
        write_json(path, content)
    else:
        path.parent.mkdir()
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with refused(f"{path} is not a LEAF file: {message}"):
        READERS[name](tmp_path).load(tmp_path / "cache")


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    write_json(tmp_path / "train" / "z.json", {"odd": ([[0.5] * 784], [62])})
    with pytest.raises(InputError, match=r"z\.json .*: user odd: a y of .* not 62$"):
        femnist(tmp_path).load(tmp_path / "cache")


def test_users_too_small_to_split_are_one_line(tmp_path: Path) -> None:
    write_json(tmp_path / "all_data" / "all_data.json", {"a": digits(0, 1)})
    with pytest.raises(InputError, match=r"^data\.root=.*: no user has training and test"):
        femnist(tmp_path).load(tmp_path / "cache")


def test_users_of_all_data_may_be_in_one_part_only(tmp_path: Path) -> None:
    made = {f"f{user}": digits(40 * user, 5) for user in range(6)}
    write_json(tmp_path / "all_data" / "all_data_0.json", made)
    tested = set()
    for seed in range(8):
        options = {"split": "users", "test_fraction": 0.4, "split_seed": seed}
        dataset = femnist(tmp_path, **options).load(tmp_path / "cache")
        train, test = (set(np.asarray(split.users)) for split in (dataset.train, dataset.test))
        assert (len(train), len(test), len(train | test)) == (4, 2, 6)
        assert (len(dataset.train), len(dataset.test)) == (20, 10)
        tested |= set((dataset.test.inputs.flatten(1)[:, 0] // 40).tolist())  # the grey of a user
    assert len(tested) > 3


def test_given_parts_must_fit_users_that_are_asked_to_be_in_one(tmp_path: Path) -> None:
    write_femnist(tmp_path / "both")
    with pytest.raises(InputError, match=r"^data\.split=users: 6 users, such as f0, are both in"):
        femnist(tmp_path / "both", split="users").load(tmp_path / "cache")
    write_json(tmp_path / "apart" / "train" / "a.json", {"u": digits(0, 2)})
    write_json(tmp_path / "apart" / "test" / "a.json", {"v": digits(9, 2)})
    assert len(femnist(tmp_path / "apart", split="users").load(tmp_path / "cache").test) == 2
