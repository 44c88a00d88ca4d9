from pathlib import Path

import numpy as np
import pytest
import torch

from fedexp.core.description import Description
from fedexp.regularizers.synthetic_images import synthetic_images


def about(shape: tuple[int, ...]) -> Description:
    return Description("toy", shape, ("cat", "dog"))


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 4), (16,)])
def test_the_figure_has_one_row_for_each_class(shape: tuple[int, ...], tmp_path: Path) -> None:
    images = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0))
    figure = synthetic_images(images, about(shape))
    assert figure is not None
    (axes,) = figure.axes
    height, width = shape[-2:] if len(shape) > 1 else (4, 4)
    drawn = np.asarray(axes.images[0].get_array())
    assert drawn.shape[:2] == (2 * height + 1, 3 * width + 2)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
    dog = drawn[height + 1 :, :width].astype(float)
    assert (dog.min(), dog.max()) == (0, 1)
    wanted = images[3].reshape(-1, height, width).double().numpy()
    stretched = (wanted - wanted.min()) / (wanted.max() - wanted.min())
    np.testing.assert_allclose(dog.reshape(height, width, -1), stretched.transpose(1, 2, 0))
    figure.savefig(tmp_path / "figure.png")


@pytest.mark.parametrize("shape", [(2,), (15,), (2, 4, 4)])
def test_inputs_that_are_not_images_have_no_figure(shape: tuple[int, ...]) -> None:
    assert synthetic_images(torch.zeros(6, *shape), about(shape)) is None
