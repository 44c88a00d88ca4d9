import pytest
import torch

from fedexp.compression.bits import pack, unpack, width_for


@pytest.mark.parametrize(
    ("count", "width"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (256, 8), (257, 9)]
)
def test_the_width_of_numbers_below_a_count(count: int, width: int) -> None:
    assert width_for(count) == width


def test_numbers_by_hand() -> None:
    """5, 1, 7 in three bits each: 101 001 111, then seven zeros."""
    packed = pack(torch.tensor([5, 1, 7]), width=3)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == [0b10100111, 0b10000000]


def test_signs_are_one_bit_each() -> None:
    signs = torch.tensor([True, False, False, True, True, False, True, False, True])
    assert pack(signs, width=1).tolist() == [0b10011010, 0b10000000]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 12, 20])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 33])
def test_unpack_is_the_inverse(width: int, count: int) -> None:
    numbers = torch.randint(2**width, (count,), generator=torch.Generator().manual_seed(1))
    packed = pack(numbers, width)
    assert len(packed) == -(-count * width // 8)
    assert torch.equal(unpack(packed, width, count), numbers)
