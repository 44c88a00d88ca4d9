"""Fixed weights: what no client trains, so that it is neither sent nor counted.

A parameter is fixed if it has no ``requires_grad`` when the federation is built: ``model.train``
and ``model.lora`` clear it, and so may a model of your own. The buffers of a layer are fixed with
all parameters of the layer, or of a block around it.
"""

from torch import nn


def fixed_parameters(network: nn.Module) -> frozenset[str]:
    """Names of the parameters that are not trained."""
    return frozenset(name for name, value in network.named_parameters() if not value.requires_grad)


def fixed_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Name -> layer, of those whose buffers are fixed, such as a BatchNorm's running statistics.

    They must stay in eval mode, so that training does not change the buffers.
    """
    found: dict[str, nn.Module] = {}
    for path, block in network.named_modules():
        parameters = list(block.parameters())
        if not parameters or any(each.requires_grad for each in parameters):
            continue
        within = block.named_modules(prefix=path)
        found |= {name: each for name, each in within if list(each.buffers(recurse=False))}
    return found


def fixed_buffers(network: nn.Module) -> frozenset[str]:
    """Names of the buffers of ``fixed_layers``."""
    return frozenset(
        f"{path}.{name}".lstrip(".")
        for path, layer in fixed_layers(network).items()
        for name, _ in layer.named_buffers(recurse=False)
    )
