"""The server's network: a step by hand, and its state."""

import torch
from torch import nn

from fedexp.personalization.server_network import ServerNetwork


def linear() -> nn.Linear:
    """y = W x, with W = [[1, 0], [0, 1]]."""
    network = nn.Linear(2, 2, bias=False)
    network.weight = nn.Parameter(torch.eye(2))
    return network


X = torch.tensor([3.0, 4.0])
CHANGES = torch.tensor([1.0, -2.0])
"""The gradient of W is the outer product of the changes with x: [[3, 4], [-6, -8]]."""


def test_a_step_is_the_vector_jacobian_product() -> None:
    network = linear()
    ServerNetwork(network, lr=0.1).descend([network(X)], [CHANGES])
    assert torch.allclose(network.weight, torch.tensor([[0.7, -0.4], [0.6, 1.8]]))


def test_a_long_gradient_is_clipped() -> None:
    """The gradient's norm is 5 * sqrt(5)."""
    network = linear()
    ServerNetwork(network, lr=1.0, clip=5.0).descend([network(X)], [CHANGES])
    step = torch.eye(2) - network.weight
    torch.testing.assert_close(step, torch.outer(CHANGES, X) / 5**0.5, atol=1e-5, rtol=0)


def test_momentum_and_weight_decay() -> None:
    """Both gradients include 0.5 W; the second step adds 0.9 times the first gradient."""
    network = linear()
    server = ServerNetwork(network, lr=0.1, momentum=0.9, weight_decay=0.5)
    w, speed = torch.eye(2), torch.zeros(2, 2)
    for _ in range(2):
        server.descend([network(X)], [CHANGES])
        speed = 0.9 * speed + torch.outer(CHANGES, X) + 0.5 * w
        w = w - 0.1 * speed
        torch.testing.assert_close(network.weight.detach(), w)


def test_the_state_is_a_copy_and_goes_on_with_the_same_bits() -> None:
    one, other = (ServerNetwork(linear(), lr=0.1, momentum=0.9) for _ in range(2))
    one.descend([one.network(X)], [CHANGES])
    state = one.state_dict()
    one.descend([one.network(X)], [CHANGES])
    other.load_state_dict(state)
    other.descend([other.network(X)], [CHANGES])
    assert torch.equal(*(each.network.state_dict()["weight"] for each in (one, other)))
