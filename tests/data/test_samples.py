import pytest
import torch

from fedexp.data.dataset import Split
from fedexp.data.samples import Samples, Subset

LABELS = torch.tensor([0, 1, 2, 0])
IMAGES = torch.arange(4 * 2 * 2, dtype=torch.uint8).view(4, 1, 2, 2)


def images(keep_normalised: bool = False) -> Samples:
    split = Split(IMAGES, LABELS)
    return Samples(split, (0.5,), (0.25,), torch.device("cpu"), keep_normalised)


def test_images_become_normalised_floats() -> None:
    inputs, labels = images().gather(torch.tensor([3, 1]))
    expected = (IMAGES[[3, 1]].double() / 255 - 0.5) / 0.25
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.double(), expected, atol=1e-6, rtol=0)
    assert labels.tolist() == [0, 1]


def test_tokens_reach_the_model_as_int64() -> None:
    tokens = torch.tensor([[0, 1], [2, 3], [1, 1]], dtype=torch.int16)
    samples = Samples(Split(tokens, LABELS[:3]), (), (), torch.device("cpu"))
    inputs, labels = next(samples.batches(2, torch.tensor([0, 2])))
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == [[0, 1], [1, 1]]
    assert labels.tolist() == [0, 2]
    assert samples.inputs.dtype == torch.int16  # as small as it came


def test_batches_cover_the_split_in_order() -> None:
    batches = list(images().batches(batch_size=3))
    assert [len(labels) for _, labels in batches] == [3, 1]
    assert torch.cat([labels for _, labels in batches]).tolist() == LABELS.tolist()


@pytest.mark.parametrize("limit", [0, 2**20])
def test_batches_are_those_of_gather_whether_images_are_kept_or_not(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedexp.data.samples.KEEP_BELOW", limit)
    samples = images(keep_normalised=True)
    expected, _ = samples.gather(torch.arange(4))
    for _ in range(2):
        for inputs, labels in samples.batches(2):
            assert torch.equal(inputs, expected[: len(inputs)])
            assert len(labels) == len(inputs)
            inputs.zero_()  # a batch is a copy
            break
    ((inputs, labels),) = samples.batches(2, torch.tensor([2, 0]))
    assert torch.equal(inputs, expected[[2, 0]])
    assert labels.tolist() == [2, 0]


def test_a_subset_has_the_samples_at_its_positions() -> None:
    samples = images()
    subset = Subset(samples, torch.tensor([3, 1, 2]))
    expected, _ = samples.gather(subset.index)
    assert len(subset) == 3
    assert subset.labels.tolist() == [0, 1, 2]
    assert torch.equal(torch.cat([inputs for inputs, _ in subset.batches(2)]), expected)
    ((inputs, labels),) = subset.batches(2, torch.tensor([2, 0]))  # positions in the subset
    assert torch.equal(inputs, expected[[2, 0]])
    assert labels.tolist() == [2, 0]
