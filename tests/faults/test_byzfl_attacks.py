"""The attacks of colluding clients give the numbers of the library byzfl."""

import byzfl
import torch

from fedexp.faults.collusion import inner_product, little_is_enough

STEPS = torch.randn(8, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_inner_product_manipulation() -> None:
    found = inner_product(STEPS, 10, 2, factor=0.5)
    expected = byzfl.InnerProductManipulation(0.5)(STEPS.numpy())
    torch.testing.assert_close(found, torch.as_tensor(expected))


def test_sign_flipping_is_the_inner_product_attack() -> None:
    """In byzfl all attackers send the honest mean turned round; ``sign_flip`` is each one's own."""
    expected = byzfl.SignFlipping()(STEPS.numpy())
    torch.testing.assert_close(inner_product(STEPS, 10, 2), torch.as_tensor(expected))


def test_a_little_is_enough_up_to_sign_and_degrees_of_freedom() -> None:
    """Byzfl adds deviations and divides by n - 1; the authors' code subtracts, and divides by n."""
    found = little_is_enough(STEPS, 10, 2, given=1.5)
    expected = byzfl.ALittleIsEnough(-1.5 * (7 / 8) ** 0.5)(STEPS.numpy())
    torch.testing.assert_close(found, torch.as_tensor(expected))
