"""A method called with other weights than its module's."""

import torch
from torch import Tensor, nn

from fedexp.core.other_weights import MethodOf


class Tied(nn.Module):
    """Two layers with one weight, a tensor with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_a_tensor_with_two_names_is_replaced_under_both() -> None:
    module, x, weight = Tied(), torch.randn(2, 3), torch.randn(3, 3, requires_grad=True)
    before = module.first.weight.clone()
    found = MethodOf(module, module.forward).with_weights({"first.weight": weight}, x)
    torch.testing.assert_close(found, x @ weight.T @ weight.T)
    found.sum().backward()
    assert weight.grad is not None
    assert module.first.weight.equal(before)
    assert module.second.weight is module.first.weight


def test_other_weights_are_the_modules_own() -> None:
    module, x = Tied(), torch.randn(2, 3)
    assert MethodOf(module, module.forward).with_weights({}, x).equal(module(x))
