"""Sources of HiCS-FL's signal: the update of the output layer's bias, or a substitute for it."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.contract import Client, Forward, Setting, Tensors
from fedexp.errors import InputError

SignalName = Literal["auto", "bias", "virtual_bias", "weight_rowmean", "class_counts", "labels"]


class Signal:
    """A client's signal: C numbers that describe its local training.

    A subclass computes the numbers either at the server, from the sent weights, or at the client,
    which then sends them. This base class computes no signal.

    Attributes:
        counts_labels: whether the signal is the client's class counts. If so, the label entropy is
            exact.
    """

    counts_labels: ClassVar[bool] = False

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """Server: compute ``signal`` [C] from the sent weights.

        The result is {} if the client computes the signal.
        """
        return {}

    def measure(self, batch: Forward) -> Tensors:
        """Client: compute tensors from one batch; the tensors are summed over the local steps."""
        return {}

    def report(self, client: Client, measured: Tensors) -> Tensors:
        """Client: compute and send ``signal`` [C]; {} if the server computes it.

        Args:
            client: the client.
            measured: the tensors that ``measure`` returned, summed over the steps.
        """
        return {}


class WeightUpdate(Signal):
    """The update (local minus global) of a bias [C], or the row means [C] of a matrix's update."""

    def __init__(self, name: str) -> None:
        self.name = name

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """The bias's update, or the row means of a matrix's update: one number per class."""
        step = _step(weights, current, self.name)
        return {"signal": step if step.dim() == 1 else step.mean(dim=1)}


class VirtualBias(Signal):
    """The update that plain SGD would give a bias, even if the head has no bias."""

    def measure(self, batch: Forward) -> Tensors:
        """Compute ``residual`` [C]: minus the cross-entropy's gradient with respect to a bias."""
        shares = torch.softmax(batch.logits.float(), dim=1)
        return {"residual": batch.mean(F.one_hot(batch.targets, shares.shape[1]) - shares)}

    def report(self, client: Client, measured: Tensors) -> Tensors:
        """Send the learning rate times the sum of the steps' residuals (see ``measure``)."""
        return {"signal": client.learning_rate * measured["residual"]}


class ClassCounts(Signal):
    """The client's class counts, for heads without a trained bias.

    With class counts the server knows every label distribution exactly, while the update of a bias
    gives only an estimate. FedNH's and FedSC's clients send their class counts anyway.
    """

    counts_labels = True

    def report(self, client: Client, measured: Tensors) -> Tensors:
        """Send the number of samples of each class on which the client trains."""
        return {"signal": client.data.class_counts.float()}


class Labels(Signal):
    """An oracle: the server knows the class counts of all clients without any message."""

    counts_labels = True


def find_signal(name: SignalName, setting: Setting) -> Signal:
    """Find the object that computes the signal ``name`` for the head of this run.

    ``auto`` means the update of a trained and shared bias, or the class counts if the head has no
    such bias, or several. If the head uses scaled cosines or a fixed classifier, entropies from
    ``virtual_bias`` and ``weight_rowmean`` do not order clients by their true label entropies.

    Raises:
        InputError: the head has no weight from which the signal can be computed, or several.
    """
    if name == "labels":
        return Labels()
    biases, matrices = _biases(setting), _matrices(setting)
    if name == "class_counts" or (name == "auto" and len(biases) != 1):
        return ClassCounts()
    if name == "virtual_bias":
        return VirtualBias()
    wanted, found = ("weight matrix", matrices) if name == "weight_rowmean" else ("bias", biases)
    if len(found) != 1:
        raise InputError(
            f"sampler.signal={name}: this head does not have exactly one trained and shared "
            f"{wanted} with one row for each class; use auto, class_counts or virtual_bias"
        )
    return WeightUpdate(found[0])


def head_weights(setting: Setting) -> list[str]:
    """Names of the head's trained and shared weight matrices [C, d] and biases [C].

    Raises:
        InputError: the head has no trained and shared weight matrix.
    """
    if not _matrices(setting):
        raise InputError(
            "sampler.angle_on=head: this head has no trained and shared weight matrix with one row "
            "for each class; use sampler.angle_on=signal"
        )
    return _matrices(setting) + _biases(setting)


def flat_update(weights: Tensors, current: Tensors, names: list[str]) -> Tensor:
    """Join the updates (local minus global) of the weights ``names`` into one float32 vector."""
    return torch.cat([_step(weights, current, name).flatten() for name in names])


def _step(weights: Tensors, current: Tensors, name: str) -> Tensor:
    return (weights[name] - current[name]).float()


def _biases(setting: Setting) -> list[str]:
    shape = (setting.num_classes,)
    return [
        name
        for name in _of_output_layer(setting)
        if name.endswith("bias")
        and tuple(setting.model.parameters[name]) == shape
        and name.removesuffix("bias") + "weight" in _matrices(setting)
    ]


def _matrices(setting: Setting) -> list[str]:
    shapes = setting.model.parameters
    return [
        name
        for name in _of_output_layer(setting)
        if len(shapes[name]) == 2 and shapes[name][0] == setting.num_classes
    ]


def _of_output_layer(setting: Setting) -> list[str]:
    """The head's trained and shared parameters, without the layers in front of the output layer."""
    before = tuple(f"head.{layer}." for layer in setting.model.before_output)
    names = setting.model.shared_parameters
    return [name for name in names if name.startswith("head.") and not name.startswith(before)]
