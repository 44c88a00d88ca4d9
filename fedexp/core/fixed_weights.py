"""Fixed weights: no client trains them, so they are not sent and do not count as traffic.

A parameter is fixed if its ``requires_grad`` is False when the federation is built. ``model.train``
and ``model.lora`` set it to False; your own model may do so too. The buffers of a layer are fixed
if all parameters of the layer, or of a block around it, are fixed.
"""

from torch import nn


def fixed_parameters(network: nn.Module) -> frozenset[str]:
    """Names of the parameters that are not trained."""
    return frozenset(name for name, value in network.named_parameters() if not value.requires_grad)


def fixed_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Find the layers with fixed buffers, such as a BatchNorm's running statistics: name -> layer.

    These layers must stay in eval mode, so that training does not change the buffers.
    """
    layers: dict[str, nn.Module] = {}
    for path, block in network.named_modules():
        parameters = list(block.parameters())
        if not parameters or any(each.requires_grad for each in parameters):
            continue
        within = block.named_modules(prefix=path)
        layers |= {name: layer for name, layer in within if list(layer.buffers(recurse=False))}
    return layers


def fixed_buffers(network: nn.Module) -> frozenset[str]:
    """Names of the buffers of ``fixed_layers``."""
    return frozenset(
        f"{path}.{name}".lstrip(".")
        for path, layer in fixed_layers(network).items()
        for name, _ in layer.named_buffers(recurse=False)
    )
