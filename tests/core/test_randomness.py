import torch

from fedexp.core.randomness import key, numpy_generator, seed_layers, torch_generator


def test_a_stream_depends_on_its_key_alone() -> None:
    first = torch.rand(3, generator=torch_generator(0, "batches", 1, 2))
    torch.rand(100)
    again = torch.rand(3, generator=torch_generator(0, "batches", 1, 2))
    assert torch.equal(first, again)
    assert numpy_generator(0, "a").random() == numpy_generator(0, "a").random()


def test_every_piece_of_the_key_matters() -> None:
    keys = [
        key(0, "batches", 1, 2),
        key(1, "batches", 1, 2),
        key(0, "augment", 1, 2),
        key(0, "batches", 2, 1),
        key(0, "batches", 12),
        key(0, "batches", 1),
    ]
    assert len(set(keys)) == len(keys)
    assert all(0 <= each < 2**63 for each in keys)


def test_keys_never_change_between_versions() -> None:
    """A changed key would silently change every published result."""
    assert key(0, "batches", 1, 2) == KEY


KEY = 4351805590977214935


def test_layers_draw_the_same_after_the_same_key() -> None:
    drops = []
    for _ in range(2):
        seed_layers(torch.device("cpu"), 0, "local", 1, 2)
        drops.append(torch.nn.functional.dropout(torch.ones(50)))
    assert torch.equal(*drops)
