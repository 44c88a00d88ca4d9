import pytest
import torch

from fedexp.core.description import Description
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
    ],
)
def test_what_does_not_fit_is_one_line(train: Split, test: Split, message: str) -> None:
    with pytest.raises(InputError, match=f"^data: {message}$"):
        Dataset(ABOUT, train, test)
