"""The base of methods whose server has one model for each cluster of clients."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fedexp.aggregators.average import Average
from fedexp.config.compatibility.traits import NOT_THE_MEAN, OTHER_WEIGHTS
from fedexp.core.messages import PartUpdate, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.personalization.received import Received

Weighting = Literal["uniform", "samples"]
_WEIGHTS = "weights"


class ClusterModels(Received):
    """The server averages the models of each cluster separately.

    A client sends one model, as in FedAvg. The server stores the cohort's models until the end of
    the round. A client's personal model is the current model of its cluster. There is no global
    model.

    Args:
        weighting: with ``uniform`` all clients have the same weight in the average of their
            cluster. With ``samples`` a client's weight is its number of training samples.
    """

    has_global = False
    traits = frozenset({NOT_THE_MEAN})
    forbids: Mapping[str, str] = dict.fromkeys(
        (NOT_THE_MEAN, OTHER_WEIGHTS),
        "{other}: would not act on the clusters' models, which are means; with this "
        "personalization take another {other}; aggregator=sample_weighted and uniform fit",
    )

    def __init__(self, weighting: Weighting) -> None:
        super().__init__()
        self.weighting = weighting

    def clustered(self, name: str) -> bool:
        """Whether the weight differs between clusters. If false, it is the same in all clusters."""
        return True

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """The client's weights that belong to a cluster's model."""
        return prefixed(_WEIGHTS, {n: value for n, value in weights.items() if self.clustered(n)})

    def average(self, members: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """Average the models of a cluster's members to get the cluster's next model.

        Args:
            members: one or more updates, with the weights that ``extract`` selected.
            current: the cluster's current model.
        """
        models = [replace(update, weights=model_of(update)) for update in members]
        return Average(self.weighting).of(models, current)


def model_of(update: PartUpdate) -> Tensors:
    """The client's weights that ``extract`` selected."""
    return with_prefix(_WEIGHTS, update.extras)
