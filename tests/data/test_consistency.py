"""Data that contradict themselves, as each reader gives them."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.federations import compose

from fedexp.core.description import Description
from fedexp.core.token_rows import IGNORED
from fedexp.data.consistency import check, copies
from fedexp.data.dataset import Dataset, Origin, Split
from fedexp.data.load import load_data
from fedexp.data.preparations.text import Characters
from fedexp.errors import InputError
from fedexp.runtime import early


def table(path: Path, labels: list[str], start: float) -> Path:
    rows = [f"{start + i},{i % 3},{label}" for i, label in enumerate(labels)]
    path.write_text("\n".join(["a,b,label", *rows, ""]))
    return path


def load(*overrides: str) -> None:
    config = compose(*overrides, "clients.count=2", "clients.per_round=1", "partition=iid")
    load_data(config, early.check(config).source, torch.device("cpu"))


def tables(folder: Path, train: list[str], test: list[str]) -> list[str]:
    paths = [table(folder / "train.csv", train, 0.25), table(folder / "test.csv", test, 0.5)]
    return [
        *("data=tabular", f"data.path={paths[0]}", f"data.test_path={paths[1]}"),
        *("data.target=label", "model=mlp"),
    ]


def test_a_class_of_the_test_table_alone_is_refused_with_its_row(tmp_path: Path) -> None:
    options = tables(tmp_path, ["no", "yes"] * 4, ["no", "yse", "yes"])
    with pytest.raises(InputError) as caught:
        load(*options)
    assert str(caught.value) == (
        f"data.target=label: {tmp_path}/test.csv, row 1 (counted from 0): the class 'yse' is not "
        f"in the training split (data.target=label: {tmp_path}/train.csv); correct it, or add "
        "samples of it to the training split"
    )


@pytest.mark.parametrize("twins", [(" yes", "yes "), ("yes", "yes "), ("a  b", "a b")])
def test_names_that_differ_in_spaces_are_refused(twins: tuple[str, str], tmp_path: Path) -> None:
    first, second = twins
    options = tables(tmp_path, ["no", first, "no", second] * 2, ["no", first])
    with pytest.raises(InputError) as caught:
        load(*options)
    line = str(caught.value)
    assert f"the classes {min(twins)!r} and {max(twins)!r} differ only in how they are" in line
    assert f"data.target=label: {tmp_path}/train.csv, row {1} (counted from 0)" in line
    assert f"data.target=label: {tmp_path}/train.csv, row {3} (counted from 0)" in line


def test_names_that_differ_in_case_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(*tables(tmp_path, ["no", "Yes", "yes"] * 3, ["no", "yes"]))
    (line,) = messages(caplog)
    assert line.startswith("the classes 'Yes' and 'yes' differ only in upper and lower case")


def test_a_folder_of_images_has_the_same_rule(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name in ("train/cat", "train/dog", "test/cat", "test/dgo"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(2):
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    with pytest.raises(InputError) as caught:
        load("data=image_folder", f"data.root={tmp_path}", "model=mlp")
    assert str(caught.value).startswith(
        f"{tmp_path}/test/dgo/0.png: the class 'dgo' is not in the training split ({tmp_path}/"
    )


def test_the_splits_of_hugging_face_have_the_same_rule(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    table(tmp_path / "train.csv", ["no", "yes"] * 4, 0.25)
    table(tmp_path / "test.csv", ["no", "yes", "maybe"], 0.5)
    options = [f"data.name={tmp_path}", "data.input=[a,b]", "data.target=label"]
    with pytest.raises(InputError) as caught:
        load("data=hf", *options, "data.train=train", "data.test=test", "model=mlp")
    assert str(caught.value).startswith(
        f"data.target=label: {tmp_path}, split test, row 2 (counted from 0): the class 'maybe' is"
    )


def split(labels: list[int], first: float = 0.0) -> Split:
    inputs = first + torch.arange(len(labels), dtype=torch.float32).unsqueeze(1)
    return Split(inputs, torch.tensor(labels))


def own(classes: tuple[str, ...], train: Split, test: Split) -> Dataset:
    return Dataset(Description("own", (1,), classes), train, test)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.levelno == logging.WARNING]


@pytest.mark.parametrize("names", [("1", "1.0"), ("01", "1"), ("1e3", "1000"), ("é", "e\u0301")])
def test_names_of_an_own_reader(names: tuple[str, str]) -> None:
    with pytest.raises(InputError, match=r"^data: the classes .*sample 1 of the training split"):
        check(own((*names, "b"), split([0, 1, 2]), split([0, 2], 9.0)))


def test_a_name_with_an_underscore_is_no_number() -> None:
    check(own(("1_2", "12"), split([0, 1]), split([0, 1], 9.0)))


def test_an_alphabet_may_have_both_cases(caplog: pytest.LogCaptureFixture) -> None:
    letters = tuple("abcdefABCDEF \n")
    check(own(letters, split([*range(14)]), split([0], 99.0)))
    assert messages(caplog) == []


def test_a_readers_alphabet_is_one_also_with_named_characters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alphabet = "abcdefABCDEF1\u0661 \u2003\n\t"  # two ones, two spaces
    about = Characters(alphabet, 2).describe("text")
    letters = torch.arange(18)
    train = Split(torch.stack([letters, letters], dim=1), letters)
    check(Dataset(about, train, Split(torch.tensor([[0, 1]]), torch.tensor([0]))))
    assert messages(caplog) == []


def test_what_a_draw_did_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    train, test = split([0, 1]), split([0, 2], 9.0)
    check(own(("a", "b", "c", "d"), train, test))
    assert messages(caplog) == [
        "2 of 4 classes have no training sample: 'c', 'd'; 1 test samples are of such classes, the "
        "first is sample 1 of the test split"
    ]
    places = [Origin(name, np.arange(2)) for name in ("one", "other")]
    with pytest.raises(InputError, match=r"^other, row 1 \(counted from 0\): the class 'c'"):
        check(
            own(
                ("a", "b", "c", "d"),
                replace(train, origin=places[0]),
                replace(test, origin=places[1]),
            )
        )


def test_all_scored_tokens_count_and_not_only_the_last_ones() -> None:
    def tagged(place: str, targets: list[list[int]]) -> Split:
        rows = torch.tensor(targets)
        origin = Origin(place, np.arange(len(rows)))
        return Split(rows.clip(min=0), rows[:, -1], targets=rows, origin=origin)

    about = Description("own", (2,), ("noun", "verb", "full stop"), vocabulary=3, per_token=True)
    train = tagged("one", [[0, 1], [IGNORED, 0]])
    check(Dataset(about, tagged("one", [[0, 2], [1, 2]]), tagged("other", [[2, 0], [0, 1]])))
    with pytest.raises(InputError, match=r"^other, row 1 .*: the class 'full stop' is not"):
        check(Dataset(about, train, tagged("other", [[IGNORED, 1], [2, 0]])))


def test_equal_samples_in_both_splits_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    train, test = split([0, 1, 1, 0]), split([0, 0, 0], 2.0)  # the inputs 0 to 3, and 2 to 4
    assert copies(train.inputs, test.inputs) == [(2, 0), (3, 1)]
    check(own(("a", "b"), train, test))
    assert messages(caplog) == [
        "2 of 3 test samples have the same inputs as a training sample (1 of them have another "
        "class); the first are sample 0 of the test split and sample 2 of the training split; a "
        "model may know them by heart"
    ]
