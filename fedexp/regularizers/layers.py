"""What counts as one layer where a penalty treats each layer separately."""

from typing import Literal

from torch import Size

Grouping = Literal["tensor", "module", "weight"]


def layers_of(shapes: dict[str, Size], grouping: Grouping) -> dict[str, str]:
    """Parameter name -> name of its layer; parameters that belong to none are left out.

    Args:
        shapes: parameter name -> shape.
        grouping: ``tensor``: each parameter by itself; ``module``: all parameters of a module, as
            weight and bias; ``weight``: each kernel and matrix by itself (two dimensions or more),
            without biases and the scales of normalization.
    """
    if grouping == "module":
        return {name: name.rpartition(".")[0] or name for name in shapes}
    return {name: name for name, shape in shapes.items() if grouping == "tensor" or len(shape) > 1}
