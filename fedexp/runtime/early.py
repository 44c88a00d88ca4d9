"""Checks a config as far as possible before Lightning is imported, so that mistakes show quickly.

The import of Lightning takes longer than PyTorch's import, and longer than these checks. So neither
this module nor its imports use Lightning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fedexp.compression.compressor import Compressor
from fedexp.config.build import build
from fedexp.config.schema import Config
from fedexp.core.description import Description
from fedexp.core.part import Part
from fedexp.core.sockets import Aggregator, LocalGradient, Loss, Personalization, Regularizer
from fedexp.data.dataset import Describer
from fedexp.engines.local_optimizer import LocalOptimizer
from fedexp.samplers.base import Sampler

WITHOUT_SHAPES: Mapping[str, type[Part]] = MappingProxyType(
    {
        "loss": Loss,
        "regularizer": Regularizer,
        "gradient": LocalGradient,
        "personalization": Personalization,
        "sampler": Sampler,
        "aggregator": Aggregator,
    }
)
"""Socket -> base class of its parts, for parts that are built before the data is described."""


@dataclass(frozen=True)
class Early:
    """The objects that the early checks build; they are for one run, which changes them.

    Attributes:
        source: reads the dataset, or draws its clients.
        description: shape and names of the dataset.
        parts: socket -> part, for the sockets whose parts need no shapes.
        compressors: the compressors of uploads and of downloads.
        optimizer: makes the local optimizer of a round.
    """

    source: Describer
    description: Description
    parts: Mapping[str, Any]
    compressors: tuple[Compressor, Compressor]
    optimizer: LocalOptimizer


def check(config: Config) -> Early:
    """Build the parts that need no shapes, and check the data's files.

    Raises:
        InputError: one line about the first mistake.
    """
    parts = {n: build(n, getattr(config, n), kind) for n, kind in WITHOUT_SHAPES.items()}
    upload: Compressor = build("compression", config.compression, Compressor)
    download: Compressor = build("download", config.download, Compressor)
    source: Describer = build("data", config.data.node, Describer)
    description = source.describe()
    # The optimizer is last: it makes PyTorch import its compiler, which takes seconds.
    optimizer = LocalOptimizer(
        config.optimizer.node, config.schedule, config.optimizer.round_decay, config.rounds
    )
    return Early(source, description, parts, (upload, download), optimizer)
