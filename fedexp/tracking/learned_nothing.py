"""The warning about a run that ended as planned and learned nothing."""

import math
from collections.abc import Mapping, Sequence

LEARNED_NOTHING = "this run learned nothing"
"""The first words of the warning."""

_LOSS_FACTOR = 2.0
_MARGIN = 0.02
_REFUSED = "clients/quarantined"


def learned_nothing(
    history: Sequence[Mapping[str, float]], num_classes: int, largest_share: float
) -> str | None:
    """One line if the model of a run is no better than a guess and far too sure of it, else None.

    The line is another one if every round refused updates and none was accepted. Otherwise the loss
    is above 2 ln C, twice the loss of a model that gives each of the C classes the same
    probability, or it is not finite; and the accuracy is at most 0.02 above chance. The last
    measured values count:

    * ``global/loss`` and ``global/accuracy``, with the share of the largest class in the test split
      as chance;
    * without a global model, ``train/loss`` and ``personal/accuracy_uniform``, in which every class
      weighs the same, so that chance is 1 / C.

    Without these metrics the result is None.

    Args:
        history: the metrics of every round, in order.
        num_classes: C.
        largest_share: the share of the largest class in the test split.
    """
    last = {name: value for row in history for name, value in row.items()}
    refused = [row[_REFUSED] for row in history if _REFUSED in row]
    if refused and all(refused) and "train/loss" not in last:
        return (
            f"{LEARNED_NOTHING}: no update was accepted, as none was finite; look for NaN in "
            "the loss and the data, or try a smaller optimizer.lr"
        )
    loss, accuracy, chance = "global/loss", "global/accuracy", largest_share
    if not {loss, accuracy} <= last.keys():
        loss, accuracy, chance = "train/loss", "personal/accuracy_uniform", 1 / num_classes
    if not {loss, accuracy} <= last.keys():
        return None
    guess = math.log(num_classes)
    if last[loss] <= _LOSS_FACTOR * guess or last[accuracy] > chance + _MARGIN:
        return None
    return (
        f"{LEARNED_NOTHING}: {loss} ends at {last[loss]:,.4g}, where guessing has "
        f"{guess:.3g}, and {accuracy} at {last[accuracy]:.3f}, where chance is {chance:.3f}; "
        "try a smaller optimizer.lr, or local.grad_clip"
    )
