"""Injected faults, drawn from the seed."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal, get_args

import numpy as np
import torch
from pydantic import Field, PositiveFloat

from fedexp.config.compatibility.declaration import UnreadWith
from fedexp.config.compatibility.traits import CHOOSES_START, SEVERAL_PROCESSES, TAKES_MORE, Need
from fedexp.contract import Message, Setting, Tensors, Update
from fedexp.core.randomness import numpy_generator
from fedexp.data.federated import ClientData
from fedexp.errors import InputError
from fedexp.faults.backdoor import Backdoor
from fedexp.faults.base import Faults
from fedexp.faults.collusion import Direction, Knowledge, collude, joint_step, most_deviations
from fedexp.faults.trigger import Trigger
from fedexp.faults.views import LabelFlip, Straggler
from fedexp.rounding import rounded_down

Probability = Annotated[float, Field(ge=0, le=1)]
Attack = Literal[
    "sign_flip", "scale", "label_flip", "backdoor", "little_is_enough", "inner_product", "min_max"
]
_NEEDS = {
    "label_flip": (Need.CLASS_LABELS,),
    "backdoor": (Need.CLASS_LABELS, Need.IMAGES, Need.ALL_CLIENTS),
}
_BY_SPREAD = ("little_is_enough", "min_max")
_NO_ATTACKERS = {"byzantine": (0,)}


def _only_in(*attacks: str) -> UnreadWith:
    """The condition of an argument that only these attacks read."""
    return {
        **_NO_ATTACKERS,
        "attack": tuple(each for each in get_args(Attack) if each not in attacks),
    }


class Injected(Faults):
    """Drop-outs, stragglers, broken updates, and Byzantine clients.

    Drop-outs, stragglers and broken updates are drawn anew in every round, independently for each
    client of the cohort. The Byzantine clients are drawn before the first round, from the clients
    with data. They attack in every round in which they take part.

    An attack changes only the parameters in the update. Buffers and the reports of parts do not
    change. If a sampler probes a Byzantine client, the answer is honest, except that a client that
    trains for its answer trains on the data of the attack.

    * ``sign_flip`` and ``scale`` change the client's step: its trained minus its received weights.
    * ``label_flip`` changes only the training data: labels and class counts.
    * ``backdoor`` trains on some images with a trigger and its target class
      (``fedexp.faults.backdoor``). With ``factor`` above 1 it also scales the step, which is model
      replacement (Bagdasaryan et al., AISTATS 2020). In the released code the attacker attacks only
      in chosen rounds, has a learning rate and a number of epochs of its own, and scales buffers,
      too.
    * In ``little_is_enough``, ``inner_product`` and ``min_max`` all attackers of a cohort send the
      same step, computed from the steps that they know (``fedexp.faults.collusion``). These updates
      stay in memory until the cohort is complete.

    Args:
        drop: probability that a chosen client drops out before it trains.
        straggle: probability that a client is a straggler, which takes fewer steps.
        work: the share of the steps in each epoch, or of ``local.steps``, that a straggler takes.
            The number of steps is rounded down, but is at least one.
        nan: probability that a client's whole update becomes NaN.
        byzantine: the share of Byzantine clients among the clients with data. Their number is
            rounded down; a share above 0 that is rounded down to 0 is an error.
        attack: the attack of the Byzantine clients. w^t are the weights that client k received, and
            w_k are its trained weights. ``sign_flip`` sends w^t - factor (w_k - w^t). ``scale``
            sends w^t + factor (w_k - w^t). ``label_flip`` trains on labels C - 1 - y instead of y.
            ``backdoor`` trains on images with a trigger and sends w^t + factor (w_k - w^t). The
            other attacks are explained above.
        factor: norm of the sent step divided by the norm of the trained step. With
            ``inner_product``: norm of the sent step divided by the norm of the mean of the known
            steps.
        knows: the updates that colluding clients know before they send theirs. With ``honest`` they
            know the honest updates of the cohort. With ``own`` they know the colluding clients'
            updates before the attack.
        deviations: z of ``little_is_enough``. If None, ``most_deviations`` computes z in every
            round; with few attackers it is 0, and the attackers send the mean of the known steps.
        direction: the direction p of ``min_max``.
        poisoned: the share of a Byzantine client's images that ``backdoor`` poisons.
        trigger: the trigger of ``backdoor``.
    """

    unread_if = {
        "work": {"straggle": (0,)},
        "attack": _NO_ATTACKERS,
        "factor": _only_in("sign_flip", "scale", "backdoor", "inner_product"),
        "knows": _only_in("little_is_enough", "inner_product", "min_max"),
        "deviations": _only_in("little_is_enough"),
        "direction": _only_in("min_max"),
        "poisoned": _only_in("backdoor"),
        "trigger": _only_in("backdoor"),
    }

    def __init__(
        self,
        drop: Probability,
        straggle: Probability,
        work: Annotated[float, Field(gt=0, lt=1)],
        nan: Probability,
        byzantine: Probability,
        attack: Attack,
        factor: PositiveFloat,
        knows: Knowledge,
        deviations: PositiveFloat | None,
        direction: Direction,
        poisoned: Probability,
        trigger: Trigger,
    ) -> None:
        self.drop, self.straggle, self.work, self.nan = drop, straggle, work, nan
        self.byzantine, self.attack, self.factor = byzantine, attack, factor
        self.knows: Knowledge = knows
        if byzantine and attack == "scale" and factor == 1:
            raise InputError(
                "faults.factor=1: faults.attack=scale multiplies steps by 1, so nobody attacks; "
                "use another number, such as 10"
            )
        self.deviations = deviations
        self._joint_step = joint_step(attack, factor, deviations, direction) if byzantine else None
        self._flip = LabelFlip()
        if self._joint_step:
            self.traits = frozenset({TAKES_MORE})  # the attackers send what they saw of others
            self.forbids = {
                CHOOSES_START: f"faults.attack={attack}: the attackers compute steps from the sent "
                "weights, but with this {other} a client chooses where it starts; use sign_flip",
                SEVERAL_PROCESSES: f"faults.attack={attack}: the attackers know all updates of a "
                "cohort, but {other} divides it among processes; use one process or sign_flip",
            }
        self._backdoor = Backdoor(trigger, poisoned)
        if byzantine and attack in _NEEDS:
            advice = "use sign_flip or scale"
            self.needs = {n: f"faults.attack={attack}: needs {n}; {advice}" for n in _NEEDS[attack]}

    def setup(self, setting: Setting) -> None:
        """Draw the Byzantine clients.

        Raises:
            InputError: the trigger does not fit the images, there are no attackers, or their attack
                changes nothing.
        """
        self.seed = setting.seed
        if self.attack == "backdoor":
            self._backdoor.trigger.check(setting.model.input_shape, setting.num_classes)
        self.parameters = setting.model.parameters.keys()
        eligible = np.flatnonzero(setting.clients.sizes.numpy())
        count = rounded_down(self.byzantine, len(eligible))
        generator = numpy_generator(self.seed, "byzantine")
        self.byzantine_clients = frozenset(
            generator.choice(eligible, count, replace=False).tolist()
        )
        if self.byzantine:
            self._check_effect(setting)

    def drops_out(self, round: int, client: int) -> bool:
        """True with probability ``drop``."""
        return self._occurs("drop", round, client)

    def data(self, round: int, data: ClientData) -> ClientData:
        """The client's data after its faults: poisoned data, fewer steps, or both."""
        if data.client in self.byzantine_clients:
            if self.attack == "label_flip":
                data = self._flip(data)
            if self.attack == "backdoor":
                data = self._backdoor(data, self.seed)
        if self._occurs("straggle", round, data.client):
            data = Straggler(**vars(data), work=self.work)
        return data

    def corrupt(self, update: Update, message: Message) -> Update:
        """The update after its faults: all NaN if broken; a Byzantine client's step is scaled.

        Only the attacks ``sign_flip``, ``scale`` and ``backdoor`` scale the step.
        """
        if self._occurs("nan", message.round, update.client):
            extras = {name: _all_nan(report) for name, report in update.extras.items()}
            return replace(update, weights=_all_nan(update.weights), extras=extras)
        signs = {"scale": 1, "backdoor": 1, "sign_flip": -1}
        factor = self.factor * signs.get(self.attack, 0)
        if factor in (0, 1) or update.client not in self.byzantine_clients:
            return update
        return update.with_step(message.weights, message.weights, factor, self.parameters)

    def collude(self, updates: Iterable[Update], message: Message) -> Iterator[Update]:
        """The updates of the cohort, after the joint attack of colluding clients if there is one.

        The updates of these clients come last.
        """
        if self._joint_step is None:
            return iter(updates)
        attackers, parameters = self.byzantine_clients, self.parameters
        return collude(updates, message, attackers, parameters, self._joint_step, self.knows)

    def metrics(self, round: int, cohort: Sequence[int]) -> dict[str, float]:
        """The number of clients with each fault.

        Stragglers, NaN updates and Byzantine clients are counted among the clients that do not drop
        out.
        """
        clients = set(cohort)
        present = {client for client in clients if not self.drops_out(round, client)}
        return {
            "faults/dropped": len(clients) - len(present),
            "faults/straggled": sum(self._occurs("straggle", round, client) for client in present),
            "faults/nan": sum(self._occurs("nan", round, client) for client in present),
            "faults/byzantine": len(present & self.byzantine_clients),
        }

    def _check_effect(self, setting: Setting) -> None:
        """Raise InputError if there are no attackers, or if their attack changes nothing."""
        sizes = setting.clients.sizes
        clients = int((sizes > 0).sum())
        if not self.byzantine_clients:
            raise InputError(
                f"faults.byzantine={self.byzantine:g}: is rounded down to 0 of {clients} clients "
                f"with data; use {_upwards(1 / clients):g} for one attacker, or 0 for none"
            )
        if self.attack not in _NEEDS and not setting.model.shared_parameters:
            raise InputError(
                f"faults.attack={self.attack}: changes the weights that attackers send, but the "
                "clients of this method send none; use label_flip"
            )
        if self.knows == "own" and self.attack in _BY_SPREAD:
            self._check_spread(setting.most_updates)
        largest = int(sizes[list(self.byzantine_clients)].max())
        if self.attack == "backdoor" and not self._backdoor.poisoned_images(largest):
            raise InputError(
                f"faults.poisoned={self._backdoor.share:g}: is rounded down to 0 of the images of "
                f"every attacker, at most {largest}; use at least {_upwards(1 / largest):g}"
            )
        if self.attack == "little_is_enough" and self.deviations is None:
            self._check_deviations(setting.most_updates)

    def _check_spread(self, updates: int) -> None:
        """Raise InputError if a cohort has only one attacker, whose own steps have no spread."""
        if min(len(self.byzantine_clients), updates) == 1:
            raise InputError(
                f"faults.knows=own: faults.attack={self.attack} moves away from the mean by the "
                "spread of the known steps; a single attacker in a cohort knows one step, and "
                "sends it unchanged; use honest, or more attackers"
            )

    def _check_deviations(self, updates: int) -> None:
        """Raise InputError if z is 0 for every possible number of attackers in a cohort."""
        most = min(len(self.byzantine_clients), updates)
        if not any(most_deviations(updates, attackers) for attackers in range(1, most + 1)):
            raise InputError(
                f"faults.deviations=null: up to {most} attackers among {updates} updates get z = 0 "
                "and send the mean of the steps that they know; use a number, such as 1.5"
            )

    def _occurs(self, fault: str, round: int, client: int) -> bool:
        """Whether the client has this fault in the round; its probability is ``self.<fault>``."""
        generator = numpy_generator(self.seed, f"faults/{fault}", round, client)
        return bool(generator.random() < getattr(self, fault))


def _all_nan(tensors: Tensors) -> Tensors:
    return {
        name: torch.full_like(value, torch.nan) if value.is_floating_point() else value
        for name, value in tensors.items()
    }


def _upwards(share: float) -> float:
    """The share with two digits, rounded upwards."""
    digits: float = 10 ** (2 - math.ceil(math.log10(share)))
    return math.ceil(share * digits - 1e-6) / digits
