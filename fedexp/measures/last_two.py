"""Accuracy and loss of the mean of the last two global models."""

from collections.abc import Mapping
from types import MappingProxyType

from fedexp.config.compatibility.traits import Need
from fedexp.core.messages import Message, Tensors
from fedexp.measures.measure import AfterRound, Better, EveryNth, Measured


class LastTwo(EveryNth):
    """``global/accuracy_last_two`` and ``global/loss_last_two`` on the test split.

    The scored model is the mean of the global weights before and after the round; its integer
    buffers come from the model after the round. After round 1 the model of round 1 is scored alone,
    without the initial weights, as in FedExP's released code (Jhunjhunwala et al., ICLR 2023,
    Section 6). The mean is never sent to clients. With compressed downloads, the weights before the
    round are those that the clients received.

    Args:
        every: rounds between measurements; the last round is always measured.
    """

    headlines: Mapping[str, Better] = MappingProxyType({"global/accuracy_last_two": "higher"})
    directions: Mapping[str, Better] = MappingProxyType({"global/loss_last_two": "lower"})
    needs = frozenset({Need.GLOBAL_MODEL, Need.TEST_CLASSES})

    def begin_round(self, message: Message) -> None:
        """Store the global weights before the round."""
        self._before = message

    def __call__(self, after: AfterRound) -> Measured:
        """Accuracy and loss of the mean of the two models."""
        newest = after.message.weights
        mean = newest if self._before.round == 1 else mean_of(self._before.weights, newest)
        found = after.predictions_with(mean)
        return Measured(found.metrics("global/{}_last_two") if found else {})


def mean_of(before: Tensors, newest: Tensors) -> Tensors:
    """The mean of two models' weights; integer tensors come from ``newest``."""
    return {
        name: (before[name].double() + value).div(2).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in newest.items()
    }
