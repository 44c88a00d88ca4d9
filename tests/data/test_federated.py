import numpy as np
import pytest
import torch

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Split
from fedexp.data.federated import FederatedData

LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0])
IMAGES = torch.arange(7 * 2 * 2, dtype=torch.uint8).view(7, 1, 2, 2)


def federated(augment: str = "none", seed: int = 0, validation: bool = False) -> FederatedData:
    dataset = Dataset(
        Description("toy", (1, 2, 2), ("a", "b", "c")),
        Split(IMAGES, LABELS),
        Split(IMAGES[:3], LABELS[:3]),
        mean=(0.5,),
        std=(0.25,),
    )
    train = [np.array([0, 1, 3, 4, 6]), np.array([2, 5])]
    test = [np.array([0, 1]), np.array([2])]
    held = [np.array([1, 6]), np.array([5])] if validation else None
    if held:
        train = list(map(np.setdiff1d, train, held))
    return FederatedData(dataset, train, test, augment, seed, torch.device("cpu"), held)


def test_class_counts_and_sizes() -> None:
    data = federated()
    assert data.class_counts.tolist() == [[3, 2, 0], [0, 0, 2]]
    assert [client.num_samples for client in data.clients] == [5, 2]
    assert data.clients[1].class_counts.tolist() == [0, 0, 2]


def pixels(data: FederatedData, client: int, round: int, epochs: int = 2) -> torch.Tensor:
    batches = data.clients[client].local_batches(round, batch_size=2)
    return torch.cat([inputs for _ in range(epochs) for inputs, _ in batches])


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_batches_are_keyed_by_seed_round_and_client(augment: str) -> None:
    data = federated(augment)
    first = pixels(data, 0, 1)
    pixels(data, 1, 1)
    assert torch.equal(first, pixels(data, 0, 1))
    assert not torch.equal(first, pixels(data, 0, 2))
    assert not torch.equal(first, pixels(federated(augment, seed=1), 0, 1))
    half = len(first) // 2
    assert not torch.equal(first[:half], first[half:])  # epochs are shuffled anew


def test_a_subset_has_only_its_samples() -> None:
    own = federated().clients[0].subset(torch.tensor([4, 1]))
    assert own.train_index.tolist() == [6, 1]
    assert (own.num_samples, own.class_counts.tolist()) == (2, [1, 1, 0])


def test_what_a_client_reports_from_is_in_order_and_as_it_is() -> None:
    data = federated("flip")
    inputs, labels = next(data.clients[0].batches(batch_size=10))
    expected, _ = data.train.gather(torch.tensor([0, 1, 3, 4, 6]))
    assert torch.equal(inputs, expected)
    assert labels.tolist() == [0, 1, 0, 1, 0]


def test_inputs_at_positions_are_augmented_on_request() -> None:
    data, positions = federated("flip"), torch.tensor([4, 0, 2])
    client = data.clients[0]
    plain = client.inputs(positions)
    assert torch.equal(plain, data.train.gather(torch.tensor([6, 0, 3]))[0])
    draws = torch.Generator().manual_seed(0)
    mirrored = torch.rand(3, 1, 1, 1, generator=draws.clone_state()) < 0.5
    assert mirrored.any()
    assert not mirrored.all()
    expected = torch.where(mirrored, plain.flip(-1), plain)
    assert torch.equal(client.inputs(positions, augment=draws), expected)
    still = federated().clients[0].inputs(positions, augment=draws)
    assert torch.equal(still, plain)  # no augmentation is configured


def test_validation_holds_what_all_clients_hold_out_client_after_client() -> None:
    data = federated("flip", validation=True)
    assert data.validation.index.tolist() == [1, 6, 5]
    assert data.validation.labels.tolist() == [1, 0, 2]
    assert len(data.validation) == 3
    assert [client.validation_index.tolist() for client in data.clients] == [[1, 6], [5]]
    assert data.class_counts.tolist() == [[2, 1, 0], [0, 0, 1]]
    assert data.clients[0].num_samples == 3


def test_validation_batches_are_not_augmented() -> None:
    data = federated("flip", validation=True)
    batches = list(data.validation.batches(batch_size=2))
    assert [len(labels) for _, labels in batches] == [2, 1]
    expected, labels = data.train.gather(torch.tensor([1, 6, 5]))
    assert torch.equal(torch.cat([inputs for inputs, _ in batches]), expected)
    assert torch.equal(torch.cat([each for _, each in batches]), labels)
    ((inputs, _),) = data.validation.batches(2, torch.tensor([2]))
    assert torch.equal(inputs, expected[2:])


def test_without_validation_data_there_is_an_empty_subset() -> None:
    data = federated()
    assert len(data.validation) == 0
    assert list(map(len, (data.clients[0].validation_index, data.validation.labels))) == [0, 0]
