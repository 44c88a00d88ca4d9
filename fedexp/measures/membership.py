"""Membership inference: can an attacker recognise the final global model's training samples?

The attacked samples are members and others. The members are drawn from the training samples of all
clients, even of clients that never trained. Equally many others of the same classes are drawn from
the test split. Guessing has an AUC of 0.5.
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

from fedexp.compatibility.traits import Need
from fedexp.core.client import ClientModule
from fedexp.core.randomness import key, numpy_generator
from fedexp.core.sockets import Regularizer
from fedexp.data.federated import ClientData, FederatedData
from fedexp.data.samples import Samples
from fedexp.data.split import apportion, class_counts, deal
from fedexp.engines.resources import Resources
from fedexp.engines.serial import Serial
from fedexp.faults.base import Faults
from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Better, Measure, Measured
from fedexp.state.client_store import ClientStore

_ENOUGH_SHADOWS = 64
"""From this number of shadows on, each sample has its own variance (Carlini et al., S&P 2022)."""

_TRAINED_WITH = ("head", "loss", "personalization")
"""The parts that take part in the local training of a shadow."""


class Membership(Measure):
    """Attacks the final global model by its loss (Yeom et al., CSF 2018), and optionally by LiRA.

    LiRA (Carlini et al., S&P 2022, Alg. 1) compares the confidences of models that were trained
    with and without a sample. Each of these shadow models is trained centrally on half of the
    attacked samples, like the only client of a first round. It starts from the federation's initial
    weights, which every client knows. It uses the clients' loss, personalization, optimizer and
    augmentation, and the extras of the last message, so that it trains the same layers as a client.
    It has no regularizer, because a regularizer pulls a client towards the server's model. The
    attacked model was trained by a federation on more data, so shadows only approximate it; the
    approximation improves with ``samples``.

    Args:
        attack: ``loss``, or ``lira`` for both attacks.
        samples: number of members; there are as many others.
        shadows: number of shadow models for LiRA, an even number.
        epochs: passes of a shadow over its half of the samples.
    """

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
        """After the last round."""
        return round == rounds

    def __call__(self, after: AfterRound) -> Measured:
        """``membership/*`` of the global model; the resident module's parts do not change."""
        if not after.ranks.is_first:
            return Measured()
        resources, data = after.resources, after.data
        indices = choose(data, self.samples, resources.local.batch_size)
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
        """[n] confidences of each shadow, one after another."""
        federation = after.resources
        resources = replace(
            federation,
            data=_population(federation.data, pool, inside),
            parts={name: federation.parts[name] for name in _TRAINED_WITH},
            store=ClientStore("off", inf),
            local=federation.local.model_copy(update={"epochs": self.epochs, "steps": None}),
            faults=Faults(),
        )
        engine = Serial(resources)
        start = replace(after.message, round=1, weights=resources.initial)
        for shadow in range(len(inside)):
            (update,) = engine.train([shadow], start)
            trained = replace(start, weights=update.weights)
            yield _confidences(resources.load_global(trained), pool, resources)


@torch.inference_mode()
def _confidences(module: ClientModule, pool: Samples, resources: Resources) -> np.ndarray:
    """[n] ``confidences`` of the module for the samples of the pool."""
    module.eval()
    logits = []
    for inputs, _ in pool.batches(resources.eval_batch_size):
        with resources.fabric.autocast():
            logits.append(module(inputs))
    return confidences(torch.cat(logits).cpu(), pool.labels.cpu()).numpy()


def confidences(logits: Tensor, labels: Tensor) -> Tensor:
    """Confidences phi = log(p / (1 - p)) of labels with probability p (Carlini et al., Eq. 3).

    phi is computed as the label's logit minus the logsumexp of the other logits, which stays
    precise for p near 1. The cross-entropy is log(1 + exp(-phi)).

    Args:
        logits: [n, C].
        labels: [n].

    Returns:
        [n] float64.
    """
    own = labels.unsqueeze(1)
    others = logits.double().scatter(1, own, -inf)
    return logits.double().gather(1, own).squeeze(1) - others.logsumexp(dim=1)


def likelihood_ratios(target: np.ndarray, shadows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The scores of LiRA, logarithms of likelihood ratios (Carlini et al., S&P 2022, Alg. 1).

    A sample's score is log N(phi; mu_in, s_in) - log N(phi; mu_out, s_out), with phi the attacked
    model's confidence. mu_in and s_in are the mean and standard deviation of the confidences of the
    shadows that were trained on the sample; mu_out and s_out are those of the other shadows. With
    fewer than 64 shadows all samples share s_in and s_out.

    Args:
        target: [n] confidences of the attacked model.
        shadows: [S, n] confidences of the shadows.
        inside: [S, n] bool: whether the shadow was trained on the sample. For each sample this is
            true of at least two shadows and false for at least two.

    Returns:
        [n] scores, large for members.
    """
    trained, untrained = (
        norm.logpdf(target, *_gaussian(shadows, where)) for where in (inside, ~inside)
    )
    return np.asarray(trained - untrained)


def attack_metrics(name: str, scores: np.ndarray, is_member: np.ndarray) -> dict[str, float]:
    """``membership/<name>_auc``, ``_tpr_at_1fpr`` and ``_accuracy`` of an attack.

    A threshold on the scores has a true-positive rate (TPR) and a false-positive rate (FPR).
    ``tpr_at_1fpr`` is the largest TPR with an FPR of at most 1 %. ``accuracy`` is the largest
    (TPR + 1 - FPR) / 2; guessing has 0.5. With equally many members and others it is the accuracy
    of the best threshold. If a score is not finite because the model has diverged, all metrics are
    NaN.

    Args:
        name: name of the attack.
        scores: [n], large for suspected members.
        is_member: [n] bool, with at least one of each kind.
    """
    from sklearn.metrics import auc, roc_curve  # slow to import; most runs have no attack

    area = found = accuracy = nan
    if np.isfinite(scores).all():
        fpr, tpr, _ = roc_curve(is_member, scores, drop_intermediate=False)
        area, found = auc(fpr, tpr), tpr[fpr <= 0.01].max()
        accuracy = ((tpr + 1 - fpr) / 2).max()
    values = {"auc": area, "tpr_at_1fpr": found, "accuracy": accuracy}
    return {f"membership/{name}_{key}": float(value) for key, value in values.items()}


def choose(data: FederatedData, samples: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the members in the training split, and of the others in the test split.

    There are ``samples`` members and ``samples`` others, or fewer if a split has fewer. Both have
    the same number of samples of each class, in proportion to the smaller of the two splits'
    numbers. If a shadow's last batch would hold one sample, too few for BatchNorm, one sample is
    left out.
    """
    held = np.sort(torch.cat([client.train_index for client in data.clients]).cpu().numpy())
    labels = data.train.labels.cpu().numpy()[held], data.test.labels.cpu().numpy()
    classes = data.description.num_classes
    available = np.minimum(*(np.bincount(side, minlength=classes) for side in labels))
    size = min(samples, int(available.sum()))
    if size > 1 and size % batch_size == 1:
        size -= 1
    generator = numpy_generator(data.seed, "membership")
    counts = apportion(size, available, generator)[None, :]
    members, others = (deal(side, counts, generator)[0] for side in labels)
    return held[members], others


def halves(size: int, shadows: int, seed: int) -> np.ndarray:
    """[shadows, size] bool: whether each shadow is trained on each sample.

    Each shadow gets a random half; every second shadow gets the complement of the previous half, so
    that each sample is in exactly half of the shadows.
    """
    inside = np.zeros((shadows, size), dtype=bool)
    for shadow in range(0, shadows, 2):
        order = numpy_generator(seed, "shadow_halves", shadow).permutation(size)
        inside[shadow, order[: size // 2]] = True
        inside[shadow + 1] = ~inside[shadow]
    return inside


def _gaussian(values: np.ndarray, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [n] and standard deviation, [n] or [], of the values [S, n] where ``where`` is true."""
    mean = values.mean(axis=0, where=where)
    squares = np.square(values - mean).sum(axis=0, where=where)
    freedom = where.sum(axis=0) - 1
    if len(values) < _ENOUGH_SHADOWS:
        squares, freedom = squares.sum(), freedom.sum()
    tiny = np.finfo(np.float64).eps  # identical shadows have variance 0, so no density
    return mean, np.sqrt(squares / freedom).clip(min=tiny)


def _pool(data: FederatedData, members: np.ndarray, others: np.ndarray) -> Samples:
    """The attacked samples, members first."""
    pool, device = copy(data.train), data.train.labels.device
    chosen, rest = (torch.from_numpy(index).to(device) for index in (members, others))
    pool.inputs = torch.cat([data.train.inputs[chosen], data.test.inputs[rest]])
    pool.labels = torch.cat([data.train.labels[chosen], data.test.labels[rest]])
    return pool


def _population(data: FederatedData, pool: Samples, inside: np.ndarray) -> FederatedData:
    """A population in which client k holds the half of the pool that shadow k is trained on."""
    population, device = copy(data), pool.labels.device
    population.train, population.seed = pool, key(data.seed, "shadows")
    indices = [np.flatnonzero(half) for half in inside]
    counts = class_counts(pool.labels.cpu().numpy(), indices, data.description.num_classes)
    population.class_counts = torch.from_numpy(counts)
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    population.clients = [
        ClientData(
            number,
            population.class_counts[number].to(device),
            torch.from_numpy(index).to(device),
            nothing,
            population,
        )
        for number, index in enumerate(indices)
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
