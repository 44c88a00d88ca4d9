"""Mean and standard deviation of each image channel."""

import numpy as np

from fedexp.data.cache import Images

Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, for inputs in [0, 1]."""


def normalisation(
    train: Images, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> Constants:
    """Return ``mean`` and ``std``; where one is None, measure it on ``train`` [n, C, H, W]."""
    if mean is not None and std is not None:
        return mean, std
    measured = channel_statistics(train)
    return mean or measured[0], std or measured[1]


def channel_statistics(images: Images) -> Constants:
    """Mean and standard deviation of each channel of uint8 images [n, C, H, W], scaled to [0, 1].

    A constant channel gets the standard deviation 1, so that images can be divided by it.
    """
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, len(images), 1000):  # the images may be larger than the memory
        for channel, count in enumerate(counts):
            count += np.bincount(images[start : start + 1000, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ values
    std = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
