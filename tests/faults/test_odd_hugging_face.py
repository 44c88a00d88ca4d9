"""Odd datasets of Hugging Face's library: each trains on a plain reading, or is refused."""

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from support.hugging_face_sets import offline
from support.odd_data import Outcomes, train_one_round

COUNT = 8
LABELS = [number % 2 for number in range(COUNT)]
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 4, 5, 3), dtype=np.uint8)
FLOATS = np.random.default_rng(1).standard_normal((COUNT, 3, 2))
NUMBERS = np.array([1.5 * number for number in range(COUNT)])
MLP = ("model=mlp", "model.hidden=[8]")
LSTM = ("model=char_lstm", "model.hidden=8", "model.embedding_dim=4")


class Odd(NamedTuple):
    """A dataset and its outcome.

    Attributes:
        columns: the columns; ``label`` is added unless it is one of them.
        expected: the inputs if it trains, otherwise a regular expression of the error line.
        kinds: column -> type in the library.
        keys: keys of ``data``.
        model: overrides of the model.
        tests: columns of the test split; None: those of the training split.
        change: changes the saved folder.
    """

    columns: Mapping[str, Any]
    expected: np.ndarray | str
    kinds: Callable[[Any], dict[str, Any]] = lambda library: {}
    keys: Mapping[str, Any] = MappingProxyType({})
    model: tuple[str, ...] = MLP
    tests: Mapping[str, Any] | None = None
    change: Callable[[Path], object] = lambda folder: None


def standardised(*columns: Any) -> np.ndarray:
    """Mean 0 and standard deviation 1, constants 0, by loops over columns of numbers."""
    found = []
    for column in columns:
        numbers = np.asarray(column, dtype=np.float64).reshape(COUNT, -1)
        for values in numbers.T:
            spread = np.std(values) if min(values) < max(values) else np.inf
            found.append((values - np.mean(values)) / spread)
    return np.stack(found, axis=1)


def image(number: int, mode: str = "RGB") -> Image.Image:
    found = Image.fromarray(PIXELS[number])
    return found.quantize(8) if mode == "P" else found.convert(mode)


def as_pixels(*images: Image.Image, mode: str = "RGB") -> np.ndarray:
    values = np.stack([np.array(each.convert(mode)) for each in images])
    return values[:, None] if mode == "L" else values.transpose(0, 3, 1, 2)


def of_mode(mode: str, grey: bool = False) -> Odd:
    """Images of a mode of Pillow."""
    images = [image(number, mode) for number in range(COUNT)]
    return Odd({"x": images}, as_pixels(*images, mode="L" if grey else "RGB"))


def numbers(values: Any, expected: np.ndarray | str | None = None) -> Odd:
    """A column of numbers or of lists of numbers."""
    repeated = (list(values) * COUNT)[:COUNT]
    return Odd({"x": repeated}, standardised(repeated) if expected is None else expected)


def tokens(*rows: Any, expected: Any, **keys: Any) -> Odd:
    repeated = (list(rows) * COUNT)[:COUNT]
    if not isinstance(expected, str):
        expected = np.array((list(expected) * COUNT)[:COUNT])
    return Odd({"x": repeated}, expected, keys=keys, model=LSTM)


def targets(*values: Any, expected: str | None = None) -> Odd:
    repeated = (list(values) * COUNT)[:COUNT]
    reading = standardised(NUMBERS) if expected is None else expected
    return Odd({"x": NUMBERS, "label": repeated}, reading)


def nested(values: np.ndarray, expected: np.ndarray) -> Odd:
    return Odd({"x": list(values)}, expected)


def column_of(kind: Callable[[Any], Any], odd: Odd) -> Odd:
    """The same dataset with a type for its input."""
    return odd._replace(kinds=lambda library: {"x": kind(library)})


GREY_16 = Image.fromarray(PIXELS[0, ..., 0].astype(np.uint16) * 257)
DAY = datetime.date(2020, 1, 5)
BROKEN = {"bytes": b"\x89PNG broken", "path": None}
UNREADABLE = "row 1: cannot be read as an image"

TRAINED = {
    "floats": numbers(NUMBERS),
    "whole numbers": numbers(range(COUNT)),
    "booleans": numbers([True, False, False]),
    "numbers beyond 53 bits": numbers([2**60, 2**60 + 2**20, 5]),
    "a constant that is no sum of halves": numbers([0.1]),
    "very large numbers": numbers([1e100, -1e100, 3e99]),
    "half precision": column_of(lambda library: library.Value("float16"), numbers(NUMBERS)),
    "unsigned bytes": column_of(lambda library: library.Value("uint8"), numbers([0, 255, 7])),
    "lists of floats": numbers(FLOATS[:, 0].tolist()),
    "lists of a fixed length": column_of(
        lambda library: library.Sequence(library.Value("float32"), length=2),
        numbers(FLOATS[:, 0].astype(np.float32).tolist()),
    ),
    "lists of booleans": numbers([[True, False], [False, False], [True, True]]),
    "several columns": Odd(
        {"x": NUMBERS, "größe": FLOATS[:, 0].tolist()},
        standardised(NUMBERS, FLOATS[:, 0]),
        keys={"input": ["x", "größe"]},
    ),
    "not standardised": numbers(NUMBERS, NUMBERS[:, None])._replace(keys={"standardize": False}),
    "arrays of floats": nested(FLOATS, FLOATS),
    "arrays of whole numbers": nested(PIXELS[..., 0].astype(np.int64), PIXELS[..., 0]),
    "arrays of three sides": nested(PIXELS / 3, PIXELS / 3),
    "arrays of one element": nested(FLOATS[:, :1, :1], FLOATS[:, :1, :1]),
    "images as arrays, channels last": nested(PIXELS, PIXELS.transpose(0, 3, 1, 2)),
    "images as arrays, channels first": nested(
        PIXELS.transpose(0, 3, 1, 2), PIXELS.transpose(0, 3, 1, 2)
    ),
    "grey images as arrays": nested(PIXELS[..., 0], PIXELS[:, None, ..., 0]),
    "images as a typed array": column_of(
        lambda library: library.Array3D((4, 5, 3), "uint8"),
        nested(PIXELS, PIXELS.transpose(0, 3, 1, 2)),
    ),
    "floats as a typed array": column_of(
        lambda library: library.Array2D((3, 2), "float64"), nested(FLOATS, FLOATS)
    ),
    **{f"images of mode {mode}": of_mode(mode) for mode in ("RGB", "P", "RGBA", "CMYK")},
    **{f"images of mode {mode}": of_mode(mode, grey=True) for mode in ("L", "LA", "1")},
    "images of 16 bits": Odd({"x": [GREY_16] * COUNT}, PIXELS[[0] * COUNT][:, None, ..., 0]),
    "grey among colours": Odd(
        {"x": [image(0), *(image(number, "L") for number in range(1, COUNT))]},
        as_pixels(image(0), *(image(number, "L") for number in range(1, COUNT))),
    ),
    "tokens": tokens([1, 2, 3], [0, 0, 4], expected=[[1, 2, 3], [0, 0, 4]]),
    "one token": tokens([1], [0], expected=[[1], [0]]),
    "tokens cut and padded": tokens(
        [1], [3, 2, 1, 0], expected=[[4, 4, 1], [3, 2, 1]], sequence_length=3
    ),
    "the largest token": tokens([2**20 - 1, 0], [1, 1], expected=[[2**20 - 1, 0], [1, 1]]),
    "targets of text": targets("yes", "no"),
    "targets of unicode": targets("größe", "大", "", "é"),
    "targets of booleans": targets(True, False),
    "targets of whole floats": targets(1.0, 2.0),
    "negative targets": targets(-1, 1),
    "targets beyond 53 bits": targets(2**60, 2**60 + 1),
}

REFUSED = {
    "no rows": Odd({"x": [], "label": []}, "cannot be read|has no rows"),
    "one class": targets("yes", expected="has rows of one class only, yes"),
    "a null": numbers([1.0, None], "data.input=x: the split train has a missing value in row 1"),
    "only nulls": numbers([None], "data.input=x: holds null"),
    "not a number": numbers([1.0, np.nan], "the split train holds nan in row 1"),
    "infinity": numbers([1.0, -np.inf], "the split train holds -inf in row 1"),
    "squares that overflow": numbers([1e200, 0.0], "numbers up to 1e.200 are too large"),
    "numbers beyond 32 bits": numbers([1e50, 0.0], "too large in row 0")._replace(
        keys={"standardize": False}
    ),
    "a list cut short": numbers([[1.0, 2.0], [1.0]], "has a list of 1 values in row 1, but of 2"),
    "a null in a list": numbers([[1.0, 2.0], [1.0, None]], "has a missing value in row 1"),
    "no list": numbers([[1.0, 2.0], None], "has a missing value in row 1"),
    "empty lists": numbers([[], []], "holds null"),
    "ragged arrays": numbers([[[1.0], [2.0]], [[1.0]]], "has a list of 1 values in row 1, but of"),
    "ragged sides": numbers([[[1.0], [2.0]], [[1.0], []]], "has a list of 0 values in row 1, but"),
    "a null in an array": column_of(
        lambda library: library.Array2D((1, 1), "float32"),
        numbers([[[1.0]], [[None]]], "has a missing value in row 1"),
    ),
    "no array": column_of(
        lambda library: library.Array2D((1, 1), "float32"),
        numbers([[[1.0]], None], "has a missing value in row 1"),
    ),
    "an array with an infinite number": numbers([[[1.0]], [[np.inf]]], "holds inf in row 1"),
    "an image of two channels": nested(PIXELS[..., :2], "x")._replace(
        expected=r"has images of \(4, 5, 2\); should have"
    ),
    "text": numbers(["a", "b"], "holds string; .* convert text to token ids first"),
    "dates": column_of(
        lambda library: library.Value("date32"), numbers([DAY], "holds date32; inputs are")
    ),
    "groups of columns": numbers([{"a": 1}], "holds dict; inputs are"),
    "lists of text": numbers([["a"], ["b"]], "holds string; inputs are"),
    "a broken image": column_of(
        lambda library: library.Image(), numbers([image(0), BROKEN], UNREADABLE)
    ),
    "no image": column_of(lambda library: library.Image(), numbers([image(0), None], UNREADABLE)),
    "no first image": column_of(
        lambda library: library.Image(), numbers([None, image(0)], "row 0: cannot be read as an")
    ),
    "a colour among greys": numbers([image(0, "L"), image(1)], "row 1: is in colour, but row 0 is"),
    "images of several sizes": numbers(
        [image(0), image(1).resize((9, 9))], "row 1: is 9x9, others are 5x4"
    ),
    "images of 32 bits": Odd({"x": [Image.new("I", (4, 4))] * COUNT}, "pixels of 32 bits"),
    "a negative token": tokens([1, 2], [1, -2], expected="holds the token -2 in row 1"),
    "a huge token": tokens([1, 2], [1, 2**40], expected="holds the token 1099511627776 in row 1"),
    "a null token": tokens([1, 2], [1, None], expected="a list with a missing value in row 1"),
    "no tokens": tokens([1, 2], None, expected="has a missing value in row 1"),
    "an empty sequence": tokens([1, 2], [], expected="has an empty sequence in row 1"),
    "sequences of several lengths": tokens([1, 2], [1], expected="has sequences of 1 to 2 tokens"),
    "a null target": targets("yes", None, expected="has no value in 4 of 8 rows, first in row 1"),
    "a fraction as a target": targets(0.5, 1.0, expected="holds numbers such as 0.5 in row 0"),
    "an infinite target": targets(0.0, np.inf, expected="holds numbers such as inf in row 1"),
    "a target beyond 53 bits": targets(0.0, 1e17, expected="holds numbers such as 1e.17 in row 1"),
    "lists as targets": targets([1], [2], expected="should hold one class per sample"),
    "another target": Odd(
        {"x": NUMBERS}, "target=lable: .* [(]did you mean label", keys={"target": "lable"}
    ),
    "another kind in the test split": Odd(
        {"x": NUMBERS}, "holds numbers and tokens in the splits", tests={"x": [[1, 2]] * COUNT}
    ),
    "another shape in the test split": Odd(
        {"x": FLOATS.tolist()},
        r"\(3, 2\) float32 in the split train, but \(3, 1\) float32 in test",
        tests={"x": FLOATS[..., :1].tolist()},
    ),
    "a file cut short": Odd(
        {"x": NUMBERS}, "cannot be read", change=lambda folder: cut(folder, "*.arrow")
    ),
    "a list of splits cut short": Odd(
        {"x": NUMBERS}, "cannot be read", change=lambda folder: cut(folder, "dataset_dict.json")
    ),
    "a missing file": Odd(
        {"x": NUMBERS}, "cannot be read", change=lambda folder: cut(folder, "*.arrow", remove=True)
    ),
}


def cut(folder: Path, name: str, remove: bool = False) -> None:
    """Cut files to half their bytes, or remove them."""
    for path in folder.rglob(name):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        if remove:
            path.unlink()


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Any]:
    with offline(tmp_path / "library") as found:
        yield found


def save(library: Any, folder: Path, odd: Odd) -> None:
    splits = {}
    for split, columns in (("train", odd.columns), ("test", odd.tests or odd.columns)):
        whole = {"label": LABELS} | columns
        kinds = odd.kinds(library)
        features = None
        if kinds:
            others = {name: whole[name] for name in whole.keys() - kinds.keys()}
            features = library.Features(library.Dataset.from_dict(others).features | kinds)
        splits[split] = library.Dataset.from_dict(whole, features)
    library.DatasetDict(splits).save_to_disk(folder)
    odd.change(folder)


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*TRAINED, *REFUSED])
def test_an_odd_dataset_trains_or_is_refused(
    name: str, tmp_path: Path, library: Any, outcomes: Outcomes
) -> None:
    odd = (TRAINED | REFUSED)[name]
    save(library, tmp_path / "odd", odd)
    options = ("data=hf", "data.name=?", "data.input=x", "data.target=label", *odd.model)
    keys = {"name": str(tmp_path / "odd")} | dict(odd.keys)
    data = outcomes.of(
        lambda: train_one_round(*options, cache=tmp_path / "cache", **keys),
        odd.expected if isinstance(odd.expected, str) else None,
    )
    if data is None:
        return
    assert not isinstance(odd.expected, str)
    labels = [str(each).removesuffix(".0") for each in ({"label": LABELS} | odd.columns)["label"]]
    for split in (data.train, data.test):
        np.testing.assert_allclose(split.inputs.numpy(), odd.expected, atol=1e-5, rtol=1e-5)
        assert [data.description.classes[label] for label in split.labels] == labels


FILES = {
    "a CSV file with a byte order mark": ("x.csv", "\ufeffx,label\n" + "1,a\n2,b\n" * 4, None),
    "a CSV file with a question mark": ("x.csv", "x,label\n" + "1,a\n?,b\n" * 4, "holds .*string"),
    "a CSV file with a gap": ("x.csv", "x,label\n" + "1,a\n,b\n" * 4, "missing value in row 1"),
    "a CSV file with a long row": ("x.csv", "x,label\n1,a\n2,b,3\n", "cannot be read"),
    "an empty CSV file": ("x.csv", "", "cannot be read"),
    "names only": ("x.csv", "x,label\n", "cannot be read|has no rows"),
    "lines of JSON": ("x.jsonl", '{"x": 1, "label": "a"}\n{"x": 2, "label": "b"}\n' * 4, None),
    "JSON of mixed types": (
        "x.jsonl",
        '{"x": 1, "label": "a"}\n{"x": "a", "label": "b"}\n',
        "cannot be read|holds",
    ),
    "JSON without an end": ("x.json", json.dumps([{"x": 1}])[:-3], "cannot be read"),
    "JSON with infinity": ("x.jsonl", '{"x": 1, "label": "a"}\n{"x": Infinity}\n', "cannot|holds"),
    "Parquet that is text": ("x.parquet", "x,label\n1,a\n", "cannot be read"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", FILES)
def test_an_odd_file_trains_or_is_refused(
    name: str, tmp_path: Path, library: Any, outcomes: Outcomes
) -> None:
    path, content, refused = FILES[name]
    (tmp_path / path).write_text(content, encoding="utf-8")
    options = (
        "data=hf",
        "data.name=?",
        "data.input=x",
        "data.target=label",
        "data.test=null",
        *MLP,
    )
    keys = {"name": str(tmp_path / path), "cache": tmp_path / "cache"}
    data = outcomes.of(lambda: train_one_round(*options, **keys), refused)
    if data is not None:
        assert sorted(data.train.inputs.flatten().tolist()) == [-1] * 3 + [1] * 3
        assert data.description.classes == ("a", "b")
