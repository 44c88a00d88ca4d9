"""Each compressor on one tensor: its code, its bytes, and how far the decoded tensor is away."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedexp.compression.compressor import Compressor
from fedexp.compression.half import Half
from fedexp.compression.power_sgd import PowerSGD
from fedexp.compression.qsgd import QSGD
from fedexp.compression.rand_k import RandK
from fedexp.compression.sign_sgd import SignSGD
from fedexp.compression.svd import SingularValues, number_of_values
from fedexp.compression.top_k import TopK
from fedexp.core.messages import Tensors, count_bytes
from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError

ALL: dict[str, Compressor] = {
    "none": Compressor(),
    "topk": TopK(share=0.1, error_feedback=True),
    "randk": RandK(share=0.1, unbiased=False, error_feedback=True),
    "unbiased randk": RandK(share=0.1, unbiased=True, error_feedback=False),
    "signsgd": SignSGD(error_feedback=True),
    "qsgd": QSGD(bits=4, bucket=None),
    "qsgd in buckets": QSGD(bits=3, bucket=64),
    "powersgd": PowerSGD(rank=2, warm_start=True, error_feedback=True),
    "svd": SingularValues(first=0.5, last=0.7, rounds=10),
    "fp16": Half("float16", error_feedback=False),
    "bf16": Half("bfloat16", error_feedback=False),
}
SHAPES = [(), (1,), (7,), (20, 30), (4, 3, 5, 5)]


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def code_of(compressor: Compressor, value: Tensor, number: int = 0) -> Tensors:
    return compressor.encode(value, {}, torch_generator(0, "test", number))


def decoded(compressor: Compressor, value: Tensor, number: int = 0) -> Tensor:
    """The tensor that the receiver gets."""
    code = code_of(compressor, value, number)
    return compressor.decode(code, torch.zeros_like(value), torch_generator(0, "test", number))


def error(compressor: Compressor, value: Tensor, number: int = 0) -> float:
    """||x - C(x)||^2 / ||x||^2"""
    lost = value - decoded(compressor, value, number)
    return (lost.double().square().sum() / value.double().square().sum()).item()


def nbytes(compressor: Compressor, *shape: int) -> int:
    return count_bytes(code_of(compressor, gaussian(*shape)))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_shape_and_type_are_kept_and_zeros_stay(name: str, shape: Sequence[int]) -> None:
    value = gaussian(*shape)
    result = decoded(ALL[name], value)
    assert (result.shape, result.dtype) == (value.shape, value.dtype)
    assert torch.equal(decoded(ALL[name], torch.zeros(shape)), torch.zeros(shape))


@pytest.mark.parametrize("name", ALL)
def test_the_same_draws_give_the_same_bits(name: str) -> None:
    value = gaussian(20, 30)
    assert torch.equal(decoded(ALL[name], value, 5), decoded(ALL[name], value, 5))


@pytest.mark.parametrize("name", [each for each in ALL if "rand" not in each])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("shape", [(9,), (20, 30)])
def test_one_entry_that_is_not_finite_arrives_so(name: str, bad: float, shape: list[int]) -> None:
    value = gaussian(*shape)
    value.view(-1)[3] = bad
    assert not decoded(ALL[name], value).isfinite().all()


# The codes by hand.


def test_top_k_by_hand() -> None:
    """The two largest of ten entries; 3 and 8 in four bits each are 0011 1000."""
    value = torch.tensor([0.1, 0.2, 0.0, -5.0, 0.3, 0.1, 0.0, -0.2, 4.0, 1.0]).view(2, 5)
    code = code_of(TopK(share=0.2, error_feedback=True), value)
    assert code["values"].tolist() == [-5.0, 4.0]
    assert code["indices"].tolist() == [0b00111000]
    expected = [[0, 0, 0, -5.0, 0], [0, 0, 0, 4.0, 0]]
    assert decoded(TopK(0.2, error_feedback=True), value).tolist() == expected


def test_sign_by_hand() -> None:
    value = torch.tensor([1.0, -2.0, 0.0, 5.0])
    code = code_of(SignSGD(error_feedback=True), value)
    assert code["signs"].tolist() == [0b10110000]
    assert code["magnitude"].tolist() == [2.0]
    assert decoded(SignSGD(error_feedback=True), value).tolist() == [2.0, -2.0, 2.0, 2.0]


def test_qsgd_by_hand() -> None:
    """Three levels of the norm 5; a level between two whole numbers is drawn."""
    compressor = QSGD(bits=3, bucket=None)
    code = code_of(compressor, torch.tensor([0.0, -5.0, 0.0, 0.0]))
    assert code["norms"].tolist() == [5.0]
    assert code["codes"].tolist() == [0b01100001, 0b10110000]  # 3, 0, 3, 3 in three bits each
    results = [decoded(compressor, torch.tensor([3.0, 4.0]), n).tolist() for n in range(200)]
    # 3 |x| / 5 is 1.8 and 2.4: levels 1 or 2, and 2 or 3.
    assert {round(first * 3 / 5, 5) for first, _ in results} == {1, 2}
    assert {round(second * 3 / 5, 5) for _, second in results} == {2, 3}


def test_qsgd_has_a_norm_for_each_bucket() -> None:
    code = code_of(QSGD(bits=4, bucket=2), torch.tensor([3.0, 4.0, 0.0, 0.0, -2.0]))
    assert code["norms"].tolist() == [5.0, 0.0, 2.0]


def test_power_sgd_by_hand() -> None:
    """Q is (1, 0, 0), so P is the first column, (3, 4, 0) / 5, and the new Q is M^T P."""
    matrix = torch.tensor([[3.0, 0.0, 1.0], [4.0, 2.0, 1.0], [0.0, 7.0, 1.0]])
    memory = {"q": torch.tensor([[1.0], [0.0], [0.0]])}
    compressor = PowerSGD(rank=1, warm_start=True, error_feedback=True)
    code = compressor.encode(matrix, memory, torch_generator(0, "unused"))
    p, q = torch.tensor([[0.6], [0.8], [0.0]]), torch.tensor([[5.0], [1.6], [1.4]])
    torch.testing.assert_close(code["p"] @ code["q"].T, p @ q.T)
    torch.testing.assert_close(code["p"].abs(), p)
    assert torch.equal(memory["q"], code["q"])


def test_power_sgd_sends_small_tensors_as_they_are() -> None:
    compressor = PowerSGD(rank=2, warm_start=True, error_feedback=True)
    for shape in ((), (50,), (3, 3), (2, 100)):
        assert set(code_of(compressor, gaussian(*shape))) == {"value"}
    assert set(code_of(compressor, gaussian(8, 4, 3, 3))) == {"p", "q"}


def test_power_sgd_finds_a_matrix_of_its_rank() -> None:
    matrix = gaussian(20, 2) @ gaussian(2, 30, seed=1)
    compressor = PowerSGD(rank=2, warm_start=True, error_feedback=True)
    torch.testing.assert_close(decoded(compressor, matrix), matrix, rtol=0, atol=1e-4)


def test_a_warm_start_comes_closer_to_the_best_matrix() -> None:
    matrix, memory = gaussian(20, 30), {}
    compressor = PowerSGD(rank=2, warm_start=True, error_feedback=True)
    errors = []
    for _ in range(30):
        code = compressor.encode(matrix, memory, torch_generator(0, "test"))
        lost = matrix - compressor.decode(code, matrix, torch_generator(0, "test"))
        errors.append(lost.square().sum().item())
    best = torch.linalg.svdvals(matrix)[2:].square().sum().item()
    assert all(later <= earlier + 1e-3 for earlier, later in pairwise(errors))
    assert errors[-1] == pytest.approx(best, rel=0.01)
    assert errors[0] > 1.05 * best


def test_the_number_of_singular_values_by_hand() -> None:
    """The squares are 16, 4, 4 and 1, so the shares of the first ones are .64, .8, .96 and 1."""
    singular = torch.tensor([4.0, 2.0, 2.0, 1.0])
    shares = (0, 0.63, 0.64, 0.79, 0.8, 0.95, 0.96, 0.99)
    assert [number_of_values(singular, each) for each in shares] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert number_of_values(torch.zeros(4), 0.5) == 0


def test_singular_values_are_the_best_matrix_of_their_rank() -> None:
    matrix = gaussian(20, 3) @ gaussian(3, 30, seed=1)
    squares = torch.linalg.svdvals(matrix).square()
    shares = (squares.cumsum(dim=0) / squares.sum()).tolist()
    for k in (1, 2, 3):
        just_below = shares[k - 1] - 1e-4
        compressor = SingularValues(just_below, just_below, 1)
        code = code_of(compressor, matrix)
        assert code["p"].shape == (20, k)
        assert code["q"].shape == (30, k)
        assert error(compressor, matrix) == pytest.approx(1 - shares[k - 1], abs=1e-5)


def test_the_share_of_singular_values_grows_with_the_rounds() -> None:
    compressor = SingularValues(first=0.95, last=0.98, rounds=30)
    assert compressor.in_round(10).share == pytest.approx(0.96)
    assert compressor.in_round(30).share == pytest.approx(0.98)
    assert compressor.in_round(100).share == pytest.approx(0.98)


def test_singular_values_send_small_tensors_as_they_are() -> None:
    compressor = SingularValues(0.95, 0.98, 10)
    for shape in ((), (50,), (3, 3), (20, 30)):  # a random matrix has many large ones
        assert set(code_of(compressor, gaussian(*shape))) == {"value"}


def test_half_precision_by_hand() -> None:
    value = torch.tensor([1 + 2**-10, 1 + 2**-12, 70000.0])
    assert decoded(Half("float16", False), value).tolist() == [1 + 2**-10, 1.0, torch.inf]
    assert decoded(Half("bfloat16", False), value).tolist() == [1.0, 1.0, 70144.0]


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("none", (20, 30), 2400),
        ("topk", (20, 30), 60 * 4 + 75),  # 60 values; 60 indices of ten bits
        ("randk", (20, 30), 60 * 4),  # the places are drawn again
        ("signsgd", (20, 30), 75 + 4),
        ("qsgd", (20, 30), 300 + 4),
        ("qsgd in buckets", (20, 30), 225 + 10 * 4),
        ("powersgd", (20, 30), 4 * 2 * (20 + 30)),
        ("fp16", (20, 30), 1200),
        ("bf16", (20, 30), 1200),
    ],
)
def test_bytes_by_hand(name: str, shape: tuple[int, ...], expected: int) -> None:
    assert nbytes(ALL[name], *shape) == expected


# How much is lost.


def test_top_k_keeps_at_least_its_share() -> None:
    for seed in range(20):
        assert error(TopK(0.1, error_feedback=True), gaussian(20, 30, seed=seed)) <= 0.9
    ones = torch.ones(20, 30)  # the bound is reached
    assert error(TopK(0.1, error_feedback=True), ones) == pytest.approx(0.9)


def test_the_scaled_sign_loses_what_the_formula_says() -> None:
    for seed in range(20):
        value = gaussian(300, seed=seed).double()
        expected = 1 - value.abs().sum() ** 2 / (300 * value.square().sum())
        assert error(SignSGD(error_feedback=True), value) == pytest.approx(expected.item())


def test_power_sgd_is_a_projection() -> None:
    for seed in range(20):
        assert error(ALL["powersgd"], gaussian(20, 30, seed=seed), seed) <= 1


def test_rand_k_loses_the_rest_on_average() -> None:
    value = gaussian(200)
    errors = [error(ALL["randk"], value, number) for number in range(500)]
    assert sum(errors) / 500 == pytest.approx(0.9, abs=0.02)
    errors = [error(ALL["unbiased randk"], value, number) for number in range(500)]
    assert sum(errors) / 500 == pytest.approx(9, rel=0.1)


@pytest.mark.parametrize("name", ["unbiased randk", "qsgd", "qsgd in buckets"])
def test_the_mean_over_draws_is_the_tensor(name: str) -> None:
    """Each entry's mean of 4000 draws is within five standard errors."""
    value = gaussian(100)
    results = torch.stack([decoded(ALL[name], value, number) for number in range(4000)]).double()
    error_of_mean = results.std(dim=0) / 4000**0.5
    assert ((results.mean(dim=0) - value).abs() <= 5 * error_of_mean + 1e-6).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_qsgd_loses_no_more_than_the_papers_bound(bits: int) -> None:
    value, levels = gaussian(256), 2 ** (bits - 1) - 1
    compressor = QSGD(bits=bits, bucket=None)
    errors = [error(compressor, value, number) for number in range(100)]
    assert sum(errors) / 100 <= min(256 / levels**2, 16 / levels)


def test_error_feedback_of_unbiased_values_is_refused() -> None:
    with pytest.raises(InputError, match=r"^error_feedback=true: the errors"):
        RandK(share=0.1, unbiased=True, error_feedback=True)
    RandK(share=0.1, unbiased=False, error_feedback=True)
