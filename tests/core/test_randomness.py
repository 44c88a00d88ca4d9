import numpy as np
import pytest
import torch

from fedexp.core.randomness import (
    key,
    normal,
    numpy_generator,
    seed_layers,
    torch_generator,
    uniform,
)


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


def splitmix64(state: int) -> int:
    """The published generator's next value, in Python's integers."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def test_uniform_numbers_are_those_of_splitmix64() -> None:
    name = key(3, "test")
    found = uniform(torch.tensor(name), 5, 4)
    # Its finalizer without the increment makes the start of the stream from key + step.
    start = splitmix64((name + 5 - 0x9E3779B97F4A7C15) % 2**64)
    states = [(start + place * 0x9E3779B97F4A7C15) % 2**64 for place in range(4)]
    assert found.tolist() == [(splitmix64(state) >> 40) / 2**24 for state in states]


def test_uniform_numbers_look_uniform_and_independent() -> None:
    values = torch.stack([uniform(torch.tensor(key(0, "test")), step, 1000) for step in range(100)])
    assert values.min() >= 0
    assert values.max() < 1
    counts = values.flatten().mul(100).long().bincount(minlength=100)
    chi_square = ((counts - 1000.0) ** 2 / 1000).sum().item()
    assert 60 < chi_square < 150  # 99 degrees of freedom
    for shifted in (values.roll(1, 0), values.roll(1, 1)):  # the next step, the next number
        pair = torch.stack([values.flatten(), shifted.flatten()])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 0.015


def test_uniform_numbers_stacked_are_those_one_by_one() -> None:
    keys, steps = torch.tensor([key(0, "test", k) for k in range(3)]), torch.tensor([0, 7, 2])
    stacked = torch.func.vmap(lambda k, step: uniform(k, step, 5, 2))(keys, steps)
    for row, name, step in zip(stacked, keys, steps.tolist(), strict=True):
        assert torch.equal(row, uniform(name, step, 5, 2))
        assert torch.equal(row[:3], uniform(name, step, 3, 2))  # more rows change no row


@pytest.mark.slow
def test_uniform_numbers_of_compiled_code_are_the_same() -> None:
    name, step = torch.tensor(key(3, "test", 1)), torch.tensor(5)
    compiled = torch.compile(lambda name, step: uniform(name, step, 7, 3))
    assert torch.equal(compiled(name, step), uniform(name, step, 7, 3))


def test_normal_numbers_look_normal_and_follow_from_uniform_ones() -> None:
    found = normal(torch.tensor(3), 1, 20_000, 2)
    u, v = uniform(torch.tensor(3), 1, 20_000, 2, 2).unbind(dim=-1)
    expected = np.sqrt(-2 * np.log(1 - u.numpy())) * np.cos(2 * np.pi * v.numpy())
    assert np.allclose(found.numpy(), expected, atol=1e-5)
    assert found.mean().item() == pytest.approx(0, abs=0.02)
    assert found.std().item() == pytest.approx(1, abs=0.02)
    assert (found.abs() < 1.96).float().mean().item() == pytest.approx(0.95, abs=0.005)
