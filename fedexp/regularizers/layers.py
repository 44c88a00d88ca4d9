"""Groups parameters into layers, for penalties that treat each layer separately."""

from typing import Literal

from torch import Size

Grouping = Literal["tensor", "module", "weight"]


def layers_of(shapes: dict[str, Size], grouping: Grouping) -> dict[str, str]:
    """Parameter name -> name of its layer; parameters without a layer are left out.

    Args:
        shapes: parameter name -> shape.
        grouping: ``tensor``: each parameter is a layer; ``module``: all parameters of a module
            (weight and bias) are one layer; ``weight``: each kernel and matrix (two dimensions or
            more) is a layer, biases and normalization scales belong to no layer.
    """
    if grouping == "module":
        return {name: name.rpartition(".")[0] or name for name in shapes}
    return {name: name for name, shape in shapes.items() if grouping == "tensor" or len(shape) > 1}
