from dataclasses import replace

import pytest
import torch

from fedexp.core.description import Description
from fedexp.core.token_rows import IGNORED
from fedexp.data.dataset import Dataset, Split
from fedexp.errors import InputError

ABOUT = Description("toy", (1, 2, 2), ("a", "b", "c"))


def split(*labels: int) -> Split:
    return Split(torch.zeros(len(labels), 1, 2, 2), torch.tensor(labels, dtype=torch.int64))


def test_what_fits_is_taken() -> None:
    assert len(Dataset(ABOUT, split(0, 2), split(1)).train) == 2


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (split(), split(0), "the training split of toy is empty"),
        (split(0), split(), "the test split of toy is empty"),
        (split(0, 3), split(0), "the training split of toy has the label 3; labels are 0 to 2"),
        (split(0), split(-1, 0), "the test split of toy has the label -1; labels are 0 to 2"),
        (
            Split(torch.zeros(2, 1, 2, 2), torch.tensor([0])),
            split(0),
            "the training split of toy has 2 inputs and 1 labels",
        ),
        (
            split(0),
            Split(torch.zeros(1, 3, 2, 2), torch.tensor([0])),
            r"the test split of toy has inputs of \(3, 2, 2\) instead of \(1, 2, 2\)",
        ),
        (
            Split(torch.zeros(1, 1, 2, 2, dtype=torch.int64), torch.tensor([0])),
            split(0),
            "the training split of toy has inputs of torch.int64, but no vocabulary of tokens",
        ),
        (
            Split(torch.zeros(1, 1, 2, 2), torch.tensor([0]), overlap=1),
            split(0),
            "the training split of toy has overlapping samples, but no users",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(train: Split, test: Split, message: str) -> None:
    with pytest.raises(InputError, match=f"^data: {message}$"):
        Dataset(ABOUT, train, test)


TOKENS = Description("words", (3,), ("a", "b"), vocabulary=5)


def sentence(*tokens: int, kind: torch.dtype = torch.int16) -> Split:
    return Split(torch.tensor([tokens], dtype=kind), torch.tensor([0]))


@pytest.mark.parametrize("kind", [torch.int16, torch.int32, torch.int64])
def test_tokens_are_integers_of_any_size(kind: torch.dtype) -> None:
    assert len(Dataset(TOKENS, sentence(0, 4, 2, kind=kind), sentence(1, 1, 1)).train) == 1


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (sentence(0, 5, 2), "has the token 5; tokens are 0 to 4"),
        (sentence(0, -1, 2), "has the token -1; tokens are 0 to 4"),
        (sentence(0, 1, 2, kind=torch.uint8), "has inputs of torch.uint8 instead of token ids"),
        (sentence(0, 1, 2, kind=torch.float32), "has inputs of torch.float32 instead of token"),
    ],
)
def test_tokens_that_are_none_are_one_line(train: Split, message: str) -> None:
    with pytest.raises(InputError, match=f"^data: the training split of words {message}"):
        Dataset(TOKENS, train, sentence(0, 0, 0))


def test_tokens_are_not_normalised() -> None:
    with pytest.raises(InputError, match=r"^data\.mean and data\.std: are for images"):
        Dataset(TOKENS, sentence(0, 1, 2), sentence(0, 0, 0), mean=(0.5,), std=(1.0,))


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (torch.zeros(1, 3, dtype=torch.int64), r"\(3,\) torch\.int64"),  # classes of tokens
        (torch.zeros(1), r"\(\) torch\.float32"),  # a regression
        (torch.zeros(1, 2), r"\(2,\) torch\.float32"),  # probabilities
    ],
)
def test_labels_other_than_one_class_a_sample_are_one_line(labels: torch.Tensor, kind: str) -> None:
    tokens = torch.tensor([[0, 1, 2]], dtype=torch.int16)
    with pytest.raises(InputError, match=rf"words has labels of {kind} instead .* Split\.targets"):
        Dataset(TOKENS, Split(tokens, labels), sentence(0, 0, 0))


PER_TOKEN = replace(TOKENS, per_token=True)


def tagged(*targets: int, kind: torch.dtype = torch.int64) -> Split:
    """One sentence of three tokens."""
    tokens = torch.tensor([[0, 1, 2]], dtype=torch.int16)
    return Split(tokens, torch.tensor([0]), targets=torch.tensor([targets], dtype=kind))


def test_tokens_have_targets_or_are_ignored() -> None:
    found = Dataset(PER_TOKEN, tagged(0, IGNORED, 1), tagged(IGNORED, IGNORED, 0))
    assert found.train.targets is not None


@pytest.mark.parametrize(
    ("about", "train", "message"),
    [
        (PER_TOKEN, sentence(0, 1, 2), "has no targets of tokens"),
        (TOKENS, tagged(0, 0, 1), "has targets of tokens"),
        (PER_TOKEN, tagged(0, 1), r"has targets of \(1, 2\) torch.int64 .* token, \(1, 3\)"),
        (PER_TOKEN, tagged(0, 1, 1, kind=torch.int32), r"has targets of \(1, 3\) torch.int32"),
        (PER_TOKEN, tagged(0, 1, 5), "has the target 5; targets are 0 to 1"),
        (PER_TOKEN, tagged(0, -1, 1), "has the target -1; targets are 0 to 1"),
        (PER_TOKEN, tagged(*[IGNORED] * 3), "has sequences without a scored token"),
    ],
)
def test_targets_that_do_not_fit_are_one_line(
    about: Description, train: Split, message: str
) -> None:
    with pytest.raises(InputError, match=f"^data: the training split of words {message}"):
        Dataset(about, train, tagged(0, 0, 0))
