"""An tensor_index against PyTorch's own walks."""

import torch
from torch import nn
from torch.func import functional_call

from fedexp.core.tensor_index import TensorIndex


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2))
        self.register_buffer("mean", torch.rand(3))
        self.register_buffer("scratch", torch.rand(4), persistent=False)

    def forward(self) -> dict[str, torch.Tensor]:
        return dict(self.tensor_index.everything())  # type: ignore[operator]


def module() -> nn.Module:
    inner = Inner()
    whole = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(inner), nn.Linear(2, 1))
    whole.register_buffer("top", torch.rand(1))
    return whole


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    pairs = zip(found.values(), expected.values(), strict=True)
    return list(found) == list(expected) and all(a.data_ptr() == b.data_ptr() for a, b in pairs)


def test_it_finds_what_pytorch_finds_in_the_same_order() -> None:
    whole = module()
    tensor_index = TensorIndex(whole)
    assert same(tensor_index.weights(), whole.state_dict())
    assert same(dict(tensor_index.parameters()), dict(whole.named_parameters()))
    everything = dict(whole.named_parameters()) | dict(whole.named_buffers())
    assert same(dict(tensor_index.everything()), everything)
    assert not any(weight.requires_grad for weight in tensor_index.weights().values())


def test_it_follows_tensors_that_are_replaced() -> None:
    whole = module()
    tensor_index = TensorIndex(whole)
    whole[1][0].mean = torch.rand(5)  # type: ignore[index]
    whole[1][0].weight = nn.Parameter(torch.rand(6))  # type: ignore[index]
    assert same(tensor_index.weights(), whole.state_dict())
    assert same(dict(tensor_index.parameters()), dict(whole.named_parameters()))


def test_it_sees_what_a_functional_call_puts_in() -> None:
    inner = Inner()
    inner.tensor_index = TensorIndex(inner)  # type: ignore[assignment]
    weight = torch.rand(2)
    assert functional_call(inner, {"weight": weight}, ())["weight"] is weight


def test_a_tensor_with_two_names_has_its_first_one() -> None:
    whole = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    whole[1].weight = whole[0].weight
    tied = TensorIndex(whole)
    assert list(tied.weights()) == ["0.weight", "0.bias", "1.bias"]
    assert tied.weights().keys() == dict(tied.parameters()).keys()
    fixed = TensorIndex(whole, ["0.weight"])
    assert list(fixed.weights()) == ["0.bias", "1.bias"]
    assert list(dict(fixed.fixed())) == ["0.weight"]
