"""Groups parameters into layers, for penalties that treat each layer separately."""

from typing import Literal

from torch import Size

Grouping = Literal["tensor", "module", "weight"]


def layers_of(shapes: dict[str, Size], grouping: Grouping) -> dict[str, str]:
    """Map the name of each parameter to the name of its layer.

    Parameters that belong to no layer are not in the result.

    Args:
        shapes: parameter name -> shape.
        grouping: with ``tensor`` each parameter is a layer. With ``module`` all parameters of a
            module (weight and bias) are one layer. With ``weight`` each kernel and matrix (two
            dimensions or more) is a layer, and biases and normalization scales belong to no layer.
    """
    if grouping == "module":
        return {name: name.rpartition(".")[0] or name for name in shapes}
    return {name: name for name, shape in shapes.items() if grouping == "tensor" or len(shape) > 1}
