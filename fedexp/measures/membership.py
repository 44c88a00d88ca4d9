"""Membership inference: can an attacker recognise the final global model's training samples?

The attacker gets members and non-members, and tries to tell which is which. The members are drawn
from the training samples of all clients, even of clients in no cohort, but not of held-out
clients. Equally many non-members of the same classes are drawn from the test split. Guessing has an
AUC (area under the ROC curve) of 0.5.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from math import inf, nan
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from scipy.stats import norm
from torch import Tensor

from fedexp.config.compatibility.traits import Need
from fedexp.core.client import ClientModule
from fedexp.core.randomness import key, numpy_generator
from fedexp.core.sockets import Regularizer
from fedexp.data.federated import ClientData, FederatedData
from fedexp.data.samples import Samples
from fedexp.data.server_samples import training_positions
from fedexp.data.split import apportion, class_counts, deal
from fedexp.engines.resources import Resources
from fedexp.engines.serial import Serial
from fedexp.faults.base import Faults
from fedexp.measures.measure import AfterRound, Better, Measure, Measured
from fedexp.state.client_store import ClientStore

_ENOUGH_SHADOWS = 64
"""Smallest number of shadow models for a separate variance of each sample (Carlini et al.)."""

_TRAINED_WITH = ("head", "loss", "personalization", "gradient")
"""The sockets whose parts a shadow model is trained with."""


class Membership(Measure):
    """Attacks the final global model by its loss (Yeom et al., CSF 2018), and optionally by LiRA.

    LiRA (Carlini et al., S&P 2022, Alg. 1) trains further models, the shadow models. It compares
    the confidences of the shadow models that were trained with a sample and of those that were
    trained without this sample. Each shadow model is trained on half of the attacked samples, as if
    it were the only client of a first round. It starts from the federation's initial weights, which
    every client knows. It is trained with the clients' loss, personalization, gradient, optimizer
    and augmentation, and with the extras of the last message, so that the same layers are trained
    as at a client. No regularizer is used, because a regularizer pulls a client towards the
    server's model. The trained weights are not compressed. The attacked model was trained on more
    data, so shadow models only approximate it; more ``samples`` improve the approximation.

    Args:
        attack: ``loss`` for the attack by the loss, or ``lira`` for both attacks.
        samples: number of members, and also of non-members.
        shadows: number of shadow models for LiRA, an even number.
        epochs: passes of a shadow model over its half of the samples.
    """

    unread_if = MappingProxyType(
        {"shadows": {"attack": ("loss",)}, "epochs": {"attack": ("loss",)}}
    )
    needs = frozenset({Need.GLOBAL_MODEL, Need.CLASS_LABELS, Need.TEST_CLASSES, Need.ALL_CLIENTS})
    directions: Mapping[str, Better] = MappingProxyType({"membership/*": "lower"})

    def __init__(
        self,
        attack: Literal["loss", "lira"],
        samples: PositiveInt,
        shadows: Annotated[int, Field(ge=4, le=10_000, multiple_of=2)],
        epochs: Annotated[int, Field(gt=0, le=10_000)],
    ) -> None:
        self.attack, self.samples, self.shadows, self.epochs = attack, samples, shadows, epochs
        names = ("loss", "lira") if attack == "lira" else ("loss",)
        self.headlines: Mapping[str, Better] = {
            f"membership/{name}_{kind}": "lower" for name in names for kind in ("auc", "accuracy")
        }

    def due(self, round: int, rounds: int) -> bool:
        """True after the last round."""
        return round == rounds

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics ``membership/*`` of the global model; attacks do not change the parts."""
        if not after.ranks.is_first:
            return Measured()
        resources, data = after.resources, after.data
        indices = choose(data, self.samples)
        pool = _pool(data, *indices)
        is_member = np.arange(len(pool)) < len(indices[0])
        target = _confidences(after.global_model(), pool, resources)
        metrics = attack_metrics("loss", -np.logaddexp(0, -target), is_member)
        if self.attack == "lira":
            inside = halves(len(pool), self.shadows, data.seed)
            with _without_regularizer(resources.module):
                shadows = np.stack(list(self._shadows(after, pool, inside)))
            scores = likelihood_ratios(target, shadows, inside)
            metrics |= attack_metrics("lira", scores, is_member)
        return Measured(metrics)

    def _shadows(
        self, after: AfterRound, pool: Samples, inside: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Train one shadow model after another; yield each one's confidences [n] in n samples."""
        federation = after.resources
        last = federation.last_batch
        resources = replace(
            federation,
            data=_population(federation.data, pool, inside),
            parts={name: federation.parts[name] for name in _TRAINED_WITH},
            store=ClientStore("off", inf),
            local=federation.local.model_copy(update={"epochs": self.epochs, "steps": None}),
            last_batch=replace(last, shortest=max(2, last.shortest)),  # for BatchNorm
            faults=Faults(),
            upload=None,
        )
        engine = Serial(resources)
        # All shadows get this message: the parts' ``message_to`` would take one for a client.
        start = replace(after.message, round=1, weights=resources.initial, readdress=None)
        for shadow in range(len(inside)):
            (update,) = engine.train([shadow], start)
            trained = replace(start, weights=update.weights)
            yield _confidences(resources.load_global(trained), pool, resources)


@torch.inference_mode()
def _confidences(module: ClientModule, pool: Samples, resources: Resources) -> np.ndarray:
    """The module's ``confidences`` [n] in the labels of the n attacked samples, the pool."""
    module.eval()
    logits = []
    for inputs, _ in pool.batches(resources.eval_batch_size):
        with resources.fabric.autocast():
            logits.append(module(inputs))
    return confidences(torch.cat(logits).cpu(), pool.labels.cpu()).numpy()


def confidences(logits: Tensor, labels: Tensor) -> Tensor:
    """Confidence phi = log(p / (1 - p)) in a label with probability p (Carlini et al., Eq. 3).

    To stay precise for p near 1, phi is computed as the label's logit minus the logsumexp of the
    other logits. The cross-entropy is log(1 + exp(-phi)).

    Args:
        logits: [n, C] logits of n samples for C classes.
        labels: [n] the right class of each sample.

    Returns:
        [n] phi of each sample, float64.
    """
    own = labels.unsqueeze(1)
    others = logits.double().scatter(1, own, -inf)
    return logits.double().gather(1, own).squeeze(1) - others.logsumexp(dim=1)


def likelihood_ratios(target: np.ndarray, shadows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The scores of LiRA, logarithms of likelihood ratios (Carlini et al., S&P 2022, Alg. 1).

    A sample's score is log N(phi; mu_in, s_in) - log N(phi; mu_out, s_out). N is the density of the
    normal distribution, and phi is the attacked model's confidence in the sample's label. mu_in and
    s_in are the mean and standard deviation of the confidences of the shadow models that were
    trained on the sample; mu_out and s_out belong to the other shadow models. With fewer than 64
    shadow models, s_in is the same for all samples, and so is s_out.

    Args:
        target: [n] confidences of the attacked model in n samples.
        shadows: [S, n] confidences of S shadow models.
        inside: [S, n] bool: whether each shadow model was trained on each sample. Each sample needs
            at least two shadow models that were trained on it and two that were not.

    Returns:
        [n] scores; a high score marks a suspected member.
    """
    trained, untrained = (
        norm.logpdf(target, *_gaussian(shadows, where)) for where in (inside, ~inside)
    )
    return np.asarray(trained - untrained)


def attack_metrics(name: str, scores: np.ndarray, is_member: np.ndarray) -> dict[str, float]:
    """``membership/<name>_auc``, ``_tpr_at_1fpr`` and ``_accuracy`` of an attack.

    The attack suspects the samples whose score is at least a threshold. Each threshold has a
    true-positive rate (TPR) and a false-positive rate (FPR). ``auc`` is the area under the curve of
    TPR over FPR; 0.5 is guessing. ``tpr_at_1fpr`` is the largest TPR with an FPR of at most 1 %.
    ``accuracy`` is the largest (TPR + 1 - FPR) / 2. With equally many members and non-members, it
    is the accuracy of the threshold that is the best for these samples, so guessing has a little
    more than 0.5: about 0.51 with 1000 members, 0.52 with 300. If a score is not finite because the
    model has diverged, all metrics are NaN.

    Args:
        name: name of the attack.
        scores: [n] score of each sample, high for suspected members.
        is_member: [n] bool: whether each sample is a member; there are members and non-members.
    """
    from sklearn.metrics import auc, roc_curve  # slow to import; most runs have no attack

    area = found = accuracy = nan
    if np.isfinite(scores).all():
        fpr, tpr, _ = roc_curve(is_member, scores, drop_intermediate=False)
        area, found = auc(fpr, tpr), tpr[fpr <= 0.01].max()
        accuracy = ((tpr + 1 - fpr) / 2).max()
    values = {"auc": area, "tpr_at_1fpr": found, "accuracy": accuracy}
    return {f"membership/{name}_{key}": float(value) for key, value in values.items()}


def choose(data: FederatedData, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the members in the training split, and of the non-members in the test split.

    Of each class, there are equally many members and non-members. Their number is proportional to
    the number of samples of the class in the split that has fewer of them. In all, there are
    ``samples`` members and ``samples`` non-members, or fewer if there are not enough samples.
    """
    held = training_positions(data)
    labels = data.train.labels.cpu().numpy()[held], data.test.labels.cpu().numpy()
    classes = data.description.num_classes
    available = np.minimum(*(np.bincount(side, minlength=classes) for side in labels))
    size = min(samples, int(available.sum()))
    generator = numpy_generator(data.seed, "membership")
    counts = apportion(size, available, generator)[None, :]
    members, others = (deal(side, counts, generator)[0] for side in labels)
    return held[members], others


def halves(size: int, shadows: int, seed: int) -> np.ndarray:
    """Choose which shadow model is trained on which of ``size`` samples: [shadows, size] bool.

    Each shadow model gets a random half of the samples. Every second shadow model gets the samples
    that the previous one did not get, so that exactly half of the shadow models train on a sample.
    """
    inside = np.zeros((shadows, size), dtype=bool)
    for shadow in range(0, shadows, 2):
        order = numpy_generator(seed, "shadow_halves", shadow).permutation(size)
        inside[shadow, order[: size // 2]] = True
        inside[shadow + 1] = ~inside[shadow]
    return inside


def _gaussian(values: np.ndarray, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each sample's ``values`` [S, n] where ``where`` is true.

    There are S shadow models and n samples. The mean is [n]. The standard deviation is [n], or one
    number for all samples if S is less than 64.
    """
    mean = values.mean(axis=0, where=where)
    squares = np.square(values - mean).sum(axis=0, where=where)
    freedom = where.sum(axis=0) - 1
    if len(values) < _ENOUGH_SHADOWS:
        squares, freedom = squares.sum(), freedom.sum()
    tiny = np.finfo(np.float64).eps  # equal values have variance 0, and so no density
    return mean, np.sqrt(squares / freedom).clip(min=tiny)


def _pool(data: FederatedData, members: np.ndarray, others: np.ndarray) -> Samples:
    """The attacked samples: first the members, then the others, which are the non-members."""
    pool, device = copy(data.train), data.train.labels.device
    chosen, rest = (torch.from_numpy(index).to(device) for index in (members, others))
    pool.inputs = torch.cat([data.train.inputs[chosen], data.test.inputs[rest]])
    pool.labels = torch.cat([data.train.labels[chosen], data.test.labels[rest]])
    return pool


def _population(data: FederatedData, pool: Samples, inside: np.ndarray) -> FederatedData:
    """A population in which client k holds the samples that shadow model k is trained on."""
    population, device = copy(data), pool.labels.device
    population.train, population.seed = pool, key(data.seed, "shadows")
    indices = [np.flatnonzero(half) for half in inside]
    counts = class_counts(pool.labels.cpu().numpy(), indices, data.description.num_classes)
    population.class_counts = torch.from_numpy(counts)
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    own = zip(population.class_counts.to(device), map(torch.from_numpy, indices), strict=True)
    population.clients = [
        ClientData(number, held, index.to(device), nothing, population)
        for number, (held, index) in enumerate(own)
    ]
    return population


@contextmanager
def _without_regularizer(module: ClientModule) -> Iterator[None]:
    """Remove the resident module's regularizer; restore it and the weights after the block."""
    weights = {name: weight.clone() for name, weight in module.weights.items()}
    regularizer, module.regularizer = module.regularizer, Regularizer()
    try:
        yield
    finally:
        module.regularizer = regularizer
        module.load(weights)
