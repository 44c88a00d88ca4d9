import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.federations import federate
from support.hugging_face_sets import PEOPLE, dataset, offline, rows, write_saved
from support.natural_users import SMALL_LSTM
from support.refusals import refused

from fedexp.data.dataset import Dataset
from fedexp.data.readers.hugging_face import HuggingFace
from fedexp.data.readers.hugging_face_columns import last_scored
from fedexp.errors import InputError

ARGUMENTS: dict[str, Any] = {
    "config": None,
    "revision": None,
    "input": "image",
    "target": "label",
    "user": None,
    "train": "train",
    "test": "test",
    "test_fraction": 0.25,
    "split": "within",
    "split_seed": 0,
    "standardize": True,
    "sequence_length": None,
    "image_size": None,
    "mean": None,
    "std": None,
}


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Any]:
    with offline(tmp_path / "hub") as datasets:
        yield datasets


@pytest.fixture
def saved(library: Any, tmp_path: Path) -> Path:
    write_saved(library, tmp_path / "saved")
    return tmp_path / "saved"


def read(name: Path | str, **changes: Any) -> Dataset:
    source = HuggingFace(name=str(name), **(ARGUMENTS | changes))
    loaded = source.load(Path(name).parent / "cache")
    assert loaded.description == source.describe()
    return loaded


def snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_images_become_pixels_with_measured_constants(saved: Path) -> None:
    before = snapshot(saved)
    loaded = read(saved)
    expected = np.stack([np.asarray(image) for image in rows(60)["image"]]).transpose(0, 3, 1, 2)
    assert loaded.train.inputs.dtype == torch.uint8
    assert np.array_equal(loaded.train.inputs.numpy(), expected)
    assert loaded.mean == pytest.approx(tuple(expected.mean((0, 2, 3)) / 255))
    assert loaded.train.labels.tolist() == rows(60)["label"]
    assert loaded.description.classes == ("cat", "dog")
    assert (len(loaded.train), len(loaded.test)) == (60, 24)
    assert read(saved, image_size=4).description.input_shape == (3, 4, 4)
    assert snapshot(saved) == before


def test_what_has_no_effect_is_said(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(saved, sequence_length=3, revision="main")
    assert [each.message for each in caplog.records] == [
        f"data.revision: has no effect, as data.name={saved} is local",
        "data.sequence_length: has no effect, as data.input holds no tokens",
    ]


def test_decoded_images_are_kept_until_the_data_change(
    saved: Path, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read(saved)
    kept = list((saved.parent / "cache" / "images").iterdir())
    assert len(kept) == 2
    with monkeypatch.context() as patch:
        patch.delattr("fedexp.data.readers.hugging_face_columns.fitted")
        assert torch.equal(read(saved).train.inputs, first.train.inputs)
    changed = library.load_from_disk(str(saved))
    changed["train"] = changed["train"].select(range(59, -1, -1))
    changed.save_to_disk(saved.parent / "changed")
    assert torch.equal(read(saved.parent / "changed").train.inputs, first.train.inputs.flip(0))


def test_pixels_of_an_array_are_an_image_too(saved: Path) -> None:
    assert torch.equal(read(saved, input="pixels").train.inputs, read(saved).train.inputs)


@pytest.mark.parametrize("column", ["pixels", "tokens", "height"])
def test_only_encoded_images_are_resized(saved: Path, column: str) -> None:
    with pytest.raises(InputError, match=rf"^data\.image_size=4: the column {column} holds no"):
        read(saved, input=column, image_size=4)


def test_the_user_is_another_column_than_the_target(saved: Path) -> None:
    with pytest.raises(InputError, match=r"^data\.user=label: must be another column"):
        read(saved, user="label")


def test_several_columns_of_numbers_are_standardised_together(saved: Path) -> None:
    plain = read(saved, input=["height", "vector"], standardize=False)
    made = rows(60)
    columns = np.concatenate([np.array(made["height"])[:, None], np.array(made["vector"])], axis=1)
    assert np.allclose(plain.train.inputs.numpy(), columns)
    loaded = read(saved, input=["height", "vector"])
    other = rows(24, seed=1)
    tests = np.concatenate([np.array(other["height"])[:, None], np.array(other["vector"])], axis=1)
    expected = (tests - columns.mean(0)) / columns.std(0)
    assert loaded.test.inputs.dtype == torch.float32
    assert np.allclose(loaded.test.inputs.numpy(), expected, atol=1e-5)


def test_lists_of_integers_are_tokens(saved: Path) -> None:
    loaded = read(saved, input="tokens")
    assert loaded.train.inputs.tolist() == rows(60)["tokens"]
    assert loaded.description.vocabulary == 9
    assert loaded.description.input_shape == (7,)


def test_sequences_are_cut_and_padded_in_front(saved: Path) -> None:
    loaded = read(saved, input="ragged", sequence_length=3)
    # lengths 2, 3 and 4; tokens 1 and 2, so that 3 is for padding
    assert loaded.train.inputs[:3].tolist() == [[3, 1, 1], [2, 2, 2], [1, 1, 1]]
    assert loaded.description.vocabulary == 4
    with pytest.raises(
        InputError,
        match=r"the split train has sequences of 2 to 4 tokens; set data\.sequence_length=\.\.\.",
    ):
        read(saved, input="ragged")


@pytest.mark.parametrize("length", [2, 4])
def test_sequences_of_two_splits_have_one_length(library: Any, tmp_path: Path, length: int) -> None:
    lengths = {"train": 3, "test": length}
    parts = {
        name: library.Dataset.from_dict({"ids": [[1] * n, [2] * n], "label": [0, 1]})
        for name, n in lengths.items()
    }
    library.DatasetDict(parts).save_to_disk(tmp_path / "two")
    with pytest.raises(InputError, match=rf"^data\.input=ids: \(3,\) .* but \({length},\) "):
        read(tmp_path / "two", input="ids")
    inputs = read(tmp_path / "two", input="ids", sequence_length=4).test.inputs
    assert inputs[0].tolist() == [3] * (4 - length) + [1] * length


def test_targets_may_be_words_or_numbers(saved: Path) -> None:
    words, classes = read(saved, target="word"), read(saved)
    assert words.description.classes == classes.description.classes
    assert torch.equal(words.train.labels, classes.train.labels)
    numbers = read(saved, input="height", target="weight", test=None, split="users", user="person")
    assert numbers.description.classes == tuple(str(number) for number in range(1, 61))


FORMATS = ("csv", "json", "jsonl", "parquet")


@pytest.mark.parametrize("kind", FORMATS)
def test_local_files(library: Any, tmp_path: Path, kind: str) -> None:
    plain = dataset(library, 20).select_columns(["height", "word", "person"])
    path = tmp_path / f"data.{kind}"
    getattr(plain, f"to_{kind.removesuffix('l')}")(path)
    loaded = read(path, input="height", target="word", user="person", test=None)
    assert (len(loaded.train), len(loaded.test)) == (16, 4)  # of 8 two, of 6 and 6 one each
    assert set(np.asarray(loaded.test.users)) == set(PEOPLE)


def test_a_folder_of_files_and_one_of_images(library: Any, tmp_path: Path) -> None:
    plain = dataset(library, 20).select_columns(["height", "word"])
    (tmp_path / "files").mkdir()
    plain.to_parquet(tmp_path / "files" / "train.parquet")
    plain.select(range(5)).to_parquet(tmp_path / "files" / "test.parquet")
    loaded = read(tmp_path / "files", input="height", target="word")
    assert (len(loaded.train), len(loaded.test)) == (20, 5)
    for number, split in enumerate(("train", "train", "test")):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), 10 * number).save(folder / f"{number}.png")
    images = read(tmp_path / "images")
    assert images.description.input_shape == (1, 4, 4)
    assert images.description.classes == ("cat", "dog")
    assert len(images.train) == 4


def test_one_split_is_divided_by_class_or_by_users(saved: Path) -> None:
    by_class = read(saved, input="height", test=None, standardize=False)
    found = torch.cat([by_class.train.inputs, by_class.test.inputs]).flatten().tolist()
    assert sorted(found) == [float(number) for number in range(60)]
    assert np.bincount(by_class.test.labels.numpy()).tolist() in ([7, 8], [8, 7])
    apart = read(saved, input="height", test=None, user="person", split="users")
    train, test = set(np.asarray(apart.train.users)), set(np.asarray(apart.test.users))
    assert (train | test, train & test) == (set(PEOPLE), set())
    with pytest.raises(InputError, match=r"^data\.split=users: 3 users, such as ann, are both"):
        read(saved, input="height", user="person", split="users")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "lable"}, r"^data\.target=lable: the split train of .* \(did you mean label"),
        ({"input": "img"}, r"^data\.input=img: .* has no such column"),
        ({"user": "whose"}, r"^data\.user=whose: .* has no such column"),
        ({"input": "text"}, r"^data\.input=text: holds string; .* convert text to token ids"),
        ({"input": ["image", "height"]}, r"^data\.input=.*: several columns must all hold numbers"),
        ({"input": "label"}, r"^data\.input=\['label'\]: must be columns other than the target"),
        ({"input": []}, r"^data\.input=\[\]: must be columns"),
        ({"target": "height"}, None),
        ({"target": "vector"}, r"^data\.target=vector: holds lists or images; .* one class per s"),
        ({"target": "image", "input": "height"}, r"^data\.target=image: holds lists or images"),
        ({"train": "trian"}, r"^data\.train=trian: .* has no such split; use train, test$"),
        ({"test": "dev"}, r"^data\.test=dev: .* has no such split; use train, test, or null"),
        ({"test": "train"}, r"^data\.test=train: is the training split"),
        ({"split": "users"}, r"^data\.split=users: needs data\.user"),
        ({"input": "height", "mean": (0.5,)}, r"^data\.mean and data\.std: are for images"),
        ({"mean": (0.5,)}, r"^data\.mean=\[0\.5\]: must have 3 numbers"),
    ],
)
def test_what_does_not_fit_is_one_line(
    saved: Path, changes: dict[str, Any], message: str | None
) -> None:
    if message is None:
        assert read(saved, **changes).description.num_classes == 60  # 0.0, 1.0, ... are whole
        return
    with refused(message):
        read(saved, **changes)


@pytest.mark.parametrize("name", ["here.csv", "/nowhere/set"])
def test_a_mistyped_path_is_not_asked_for_on_the_hub(
    library: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without a network the library tries for half a minute."""
    monkeypatch.setattr(library, "load_dataset", None)
    with pytest.raises(InputError, match=rf"^data\.name={name}: no such folder or file$"):
        read(name, input="height")


def test_fractions_are_no_classes_and_hidden_labels_are_said(library: Any, tmp_path: Path) -> None:
    made = {"x": [0.0, 1.0, 2.0, 3.0], "y": [0.5, 1.5, 0.5, 1.5], "hidden": [0, 1, -1, -1]}
    found = library.Dataset.from_dict(made).cast_column(
        "hidden", library.ClassLabel(names=["a", "b"])
    )
    found.save_to_disk(tmp_path / "some")
    with pytest.raises(
        InputError, match=r"^data\.target=y: the split train holds numbers such as 0\.5 in row 0"
    ):
        read(tmp_path / "some", input="x", target="y", test=None)
    with pytest.raises(
        InputError,
        match=r"^data\.target=hidden: the split train has no class in 2 rows, first in row 2",
    ):
        read(tmp_path / "some", input="x", target="hidden", test=None)


def test_images_of_several_sizes_are_one_line(library: Any, tmp_path: Path) -> None:
    images = [Image.new("RGB", (4, 4)), Image.new("RGB", (5, 4))] * 4
    made = {"image": images, "label": [0, 0, 1, 1] * 2}
    library.Dataset.from_dict(made).save_to_disk(tmp_path / "some")
    with pytest.raises(InputError, match=r"row 1: is 5x4, others are 4x4; set data\.image_size"):
        read(tmp_path / "some", test=None)
    assert len(read(tmp_path / "some", test=None, image_size=4).train) == 6


def test_what_is_nowhere_is_one_line(library: Any, tmp_path: Path) -> None:
    for name in ("nobody/nothing", str(tmp_path / "absent")):
        with refused(rf"^data\.name={name}: no such folder"):
            read(name)
    (tmp_path / "data.txt").write_text("a")
    with pytest.raises(InputError, match=r"^data\.name=.*data\.txt: should end in \.csv"):
        read(tmp_path / "data.txt")
    (tmp_path / "bad.json").write_text("{")
    with refused(r"^data\.name=.*bad\.json: cannot be read"):
        read(tmp_path / "bad.json")


def test_without_the_library_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        InputError, match=r"^data=hf: needs datasets, .* pip install 'fedexp\[hf\]'"
    ):
        HuggingFace(name=str(tmp_path), **ARGUMENTS).describe()


def test_the_library_prints_nothing(
    library: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    library.enable_progress_bars()
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"x": number, "y": number % 2}) + "\n" for number in range(20))
    )
    read(tmp_path / "data.jsonl", input="x", target="y", test=None)
    assert capfd.readouterr() == ("", "")
    assert not library.are_progress_bars_disabled()  # as it was


def saved_columns(library: Any, folder: Path, features: dict[str, Any], **columns: Any) -> Path:
    """Save the columns with the classes 0 and 1 in turn as ``label``."""
    count = len(next(iter(columns.values())))
    columns["label"] = [number % 2 for number in range(count)]
    kinds = library.Features(library.Dataset.from_dict(columns).features | features)
    library.Dataset.from_dict(columns, kinds).save_to_disk(folder / "some")
    return folder / "some"


ARRAY = np.arange(10 * 4 * 5 * 3, dtype=np.uint8).reshape(10, 4, 5, 3)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (ARRAY, ARRAY.transpose(0, 3, 1, 2)),
        (ARRAY.transpose(0, 3, 1, 2), ARRAY.transpose(0, 3, 1, 2)),
        (ARRAY[..., 0], ARRAY[:, None, :, :, 0]),
        (ARRAY / 7, ARRAY / 7),
        (ARRAY[..., 0].astype(np.int64), ARRAY[..., 0]),
        ((ARRAY[..., 0] > 99), ARRAY[..., 0] > 99),
    ],
)
def test_saved_arrays_are_images_or_arrays(
    library: Any, tmp_path: Path, values: np.ndarray, expected: np.ndarray
) -> None:
    """The library saves arrays as nested lists."""
    loaded = read(saved_columns(library, tmp_path, {}, x=list(values)), input="x", test=None)
    found = torch.cat([loaded.train.inputs, loaded.test.inputs]).numpy()
    assert found.dtype == (np.uint8 if values.dtype == np.uint8 else np.float32)
    assert found.shape == expected.shape
    rows_of = [sorted(each.reshape(10, -1).tolist()) for each in (found, expected)]
    assert np.allclose(*rows_of)


@pytest.mark.parametrize(
    ("values", "array_of", "message"),
    [
        ([1.0, None, 2.0, 3.0], None, "has a missing value in row 1"),
        ([1.0, np.nan, 2.0, 3.0], None, "holds nan in row 1; use finite"),
        ([[1.0, 2.0], [3.0], [1.0, 2.0], [1.0, 2.0]], None, "has a list of 1 values in row 1, but"),
        ([[1.0, 2.0]] * 3 + [[1.0, None]], None, "has a missing value in row 3"),
        ([[1.0, 2.0]] * 2 + [None, [1.0, 2.0]], None, "has a missing value in row 2"),
        ([[[1.0], [2.0]]] * 3 + [[[1.0]]], None, "has a list of 1 values in row 3, but of 2 in"),
        ([[[1.0], [2.0]]] * 3 + [[[1.0], []]], None, "has a list of 0 values in row 3, but of 1"),
        ([[[1.0]], [[np.inf]]] * 2, None, "holds inf in row 1; use finite"),
        ([[[1.0]], [[1e300]]] * 2, None, "holds a number that is too large in row 1"),
        ([[[1]], [[None]]] * 2, "float32", "has a missing value in row 1"),
        ([[[1]], None] * 2, "uint8", "has a missing value in row 1"),
        ([[[1]], [[np.nan]]] * 2, "float32", "holds nan in row 1"),
        ([[1, 2], [None, 3]] * 2, None, "has a list with a missing value in row 1"),
        ([[1, 2], None] * 2, None, "has a missing value in row 1"),
        ([[1, 2], []] * 2, None, "has an empty sequence in row 1"),
        ([[1, 2], [3, -1]] * 2, None, "holds the token -1 in row 1; token ids are 0 to 1,048,575"),
        ([[1, 2], [3, 2**33]] * 2, None, "holds the token 8589934592 in row 1; token ids"),
        ([1e308, -1e308] * 2, None, "number 0 of a row: numbers up to 1e.308 are too large"),
    ],
)
def test_an_input_that_is_no_number_is_named_by_its_row(
    library: Any, tmp_path: Path, values: list[Any], array_of: str | None, message: str
) -> None:
    kinds = {} if array_of is None else {"x": library.Array2D((1, 1), array_of)}
    path = saved_columns(library, tmp_path, kinds, x=values * 3)
    with refused(rf"^data\.input=x: .*{message}"):
        read(path, input="x", test=None)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([0.0, np.inf], "holds numbers such as inf in row 1 "),
        ([0.0, 2.0**53 + 2], r"holds numbers such as 9\.0072e.15 in row 1 .* up to 2\^53"),
        ([0, None], r"has no value in 4 of 8 rows, first in row 1 \(counted from 0\)"),
    ],
)
def test_a_target_that_is_no_class_is_named_by_its_row(
    library: Any, tmp_path: Path, targets: list[Any], message: str
) -> None:
    path = saved_columns(library, tmp_path, {}, x=[0.5] * 8, y=targets * 4)
    with pytest.raises(InputError, match=rf"^data\.target=y: the split train {message}"):
        read(path, input="x", target="y", test=None)


def test_large_whole_numbers_are_classes_of_their_own(library: Any, tmp_path: Path) -> None:
    path = saved_columns(library, tmp_path, {}, x=[0.5] * 8, y=[2**60, 2**60 + 1] * 4)
    found = read(path, input="x", target="y", test=None)
    assert found.description.classes == (str(2**60), str(2**60 + 1))
    assert found.train.labels.bincount().tolist() == [3, 3]


def test_a_colour_image_after_a_grey_one_keeps_its_colours(library: Any, tmp_path: Path) -> None:
    images = [Image.new("L", (4, 4)), Image.new("RGB", (4, 4), (9, 0, 0))] * 4
    grey_first = saved_columns(library, tmp_path / "grey", {}, x=images)
    with pytest.raises(InputError, match=r"row 1: is in colour, but row 0 is grey; use images of"):
        read(grey_first, input="x", test=None)
    colour_first = saved_columns(library, tmp_path / "colour", {}, x=images[::-1])
    assert read(colour_first, input="x", test=None).description.input_shape == (3, 4, 4)


def test_an_absent_image_is_named_by_its_row(library: Any, tmp_path: Path) -> None:
    images = [Image.new("L", (4, 4)), None] * 4
    path = saved_columns(library, tmp_path, {"x": library.Image()}, x=images)
    with pytest.raises(InputError, match=r"train, row 1: cannot be read as an image"):
        read(path, input="x", test=None)


def write_tagged(folder: Path, tags: list[list[int]], tokens: list[list[int]]) -> Path:
    rows = [{"x": x, "y": y} for x, y in zip(tokens, tags, strict=True)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "data.jsonl"


def test_a_list_of_classes_has_one_for_each_token(library: Any, tmp_path: Path) -> None:
    tags, tokens = [[0, -100, 2], [1, 1], [0, 2, 1, -100]], [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    path = write_tagged(tmp_path, tags * 8, tokens * 8)
    loaded = read(path, input="x", target="y", test=None, sequence_length=3)
    about, train = loaded.description, loaded.train
    assert about.per_token
    assert (about.classes, about.vocabulary) == (("0", "1", "2"), 10)  # 9 is for padding
    assert train.targets is not None
    expected = {(1, 2, 3): [0, -100, 2], (9, 4, 5): [-100, 1, 1], (6, 7, 8): [0, 2, 1]}
    for row, targets, label in zip(train.inputs, train.targets, train.labels, strict=True):
        assert targets.tolist() == expected[tuple(row.tolist())]
        assert label == targets[-1]


def test_classes_of_tokens_in_another_order_are_refused(library: Any, tmp_path: Path) -> None:
    def split(*names: str) -> Any:
        tags = library.Sequence(library.ClassLabel(names=[*names]))
        columns = {"x": library.Sequence(library.Value("int64")), "y": tags}
        rows = {"x": [[1, 2, 3]] * 4, "y": [[0, 1, 0]] * 4}
        return library.Dataset.from_dict(rows, library.Features(columns))

    for number, names in enumerate((("O", "PER"), ("PER", "O"))):
        splits = library.DatasetDict(train=split("O", "PER"), test=split(*names))
        splits.save_to_disk(tmp_path / str(number))
    assert read(tmp_path / "0", input="x", target="y").description.classes == ("O", "PER")
    with pytest.raises(InputError, match=r"^data\.target=y: has other classes in the split test "):
        read(tmp_path / "1", input="x", target="y")


def test_the_last_token_that_is_scored_is_a_sample_s_class() -> None:
    targets = np.array([[3, -100, -100], [1, 2, -100], [0, -100, 4]])
    assert last_scored(targets).tolist() == [3, 2, 4]


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([0, 1], "has 2 classes for 3 tokens in row 0"),
        (
            [0, -1, 1],
            "should hold in row 0 classes of 0 to 1,048,575, or -100 for tokens that are not",
        ),
        ([-100, -100, -100], "should hold in row 0 .* at least one token must be scored"),
    ],
)
def test_classes_of_tokens_that_cannot_be_are_one_line(
    library: Any, tmp_path: Path, tags: list[int], message: str
) -> None:
    path = write_tagged(tmp_path, [tags] * 8, [[1, 2, 3]] * 8)
    with pytest.raises(InputError, match=rf"^data\.target=y: the split train {message}"):
        read(path, input="x", target="y", test=None)


def test_tagging_trains(library: Any, tmp_path: Path) -> None:
    path = write_tagged(tmp_path, [[0, 1, 1, 0], [1, 1, 0, -100]] * 20, [[1, 2, 3, 4]] * 40)
    options = ["data=hf", f"data.name={path}", "data.input=x", "data.target=y", "data.test=null"]
    others = ["algorithm=fedavg", "partition=iid", "measure.personal=null", *SMALL_LSTM]
    federation = federate(*options, *SIZES, *others)
    assert 0 < federation.run_round(1).metrics["global/accuracy"] <= 1


def test_sequences_are_not_split_by_the_class_of_their_last_token(
    library: Any, tmp_path: Path
) -> None:
    """The last token has another class in each of the 40 sequences."""
    path = write_tagged(tmp_path, [[0, label] for label in range(40)], [[1, 2]] * 40)
    options = ["data=hf", f"data.name={path}", "data.input=x", "data.target=y", "data.test=null"]
    splits = ["data.subset=20", "data.validation=0.5", "partition.test_split=classes"]
    others = ["algorithm=fedavg", "partition=iid", "measure.personal=null", *SMALL_LSTM]
    sizes = ["clients.count=2", "clients.per_round=2"]
    data = federate(*options, *splits, *sizes, *others).data
    assert [len(client.train_index) for client in data.clients] == [5, 5]
    assert [len(client.validation_index) for client in data.clients] == [5, 5]
    assert [len(client.test_index) for client in data.clients] == [4, 4]


SIZES = ["clients.count=3", "clients.per_round=2", "local.epochs=1"]


@pytest.mark.parametrize(
    "model",
    [
        ["data.input=image", "model=mlp"],
        ["data.input=[height,weight]", "model=mlp"],
        ["data.input=tokens", *SMALL_LSTM],
    ],
)
def test_clients_are_the_users(saved: Path, model: list[str]) -> None:
    options = ["data=hf", f"data.name={saved}", "data.target=label", "data.user=person"]
    federation = federate(*options, *SIZES, "partition=natural", *model)
    data = federation.data
    assert [client.num_samples for client in data.clients] == [20, 20, 20]
    assert 0 <= federation.run_round(1).metrics["global/accuracy"] <= 1
