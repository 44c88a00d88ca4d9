"""Clients that never train: how well the models of a federation serve newcomers."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import Need
from fedexp.core.part import Setting
from fedexp.core.token_rows import scored_rows
from fedexp.data.federated import ClientData
from fedexp.data.samples import Subset
from fedexp.engines.resources import Resources
from fedexp.measures.measure import AfterRound, Better, Measure, Measured, Outline
from fedexp.measures.scoring.accuracies import personal_accuracies, spread, spreads
from fedexp.measures.scoring.scored_samples import ScoredSamples

_AT_ONCE = 64
"""Number of clients whose accuracies are computed at once; limits the memory."""


class HeldOut(Measure):
    """``held_out/*``: accuracies at the clients that never train (``clients.held_out``).

    Yuan et al. (ICLR 2022) call these held-out clients unparticipating clients. The global model is
    scored on each held-out client's own samples, which no client trains on, and on the test samples
    of each of ``kinds``. If the method tunes a global model at each client, the tuned models are
    scored on these test samples, too. A held-out client has no memory, no private weights and no
    local model, so there are no tuned models if the method tunes the client's latest local model,
    or if the server learns a client's model from the client's updates.
    Models that are tuned from the best global model are scored after the last round only. Without
    held-out clients nothing is measured. A kind of accuracy that the data cannot measure is absent.
    With ``partition.shift``, only a client's own test images are used, as for personal models.

    Args:
        every: rounds between measurements; the last round is always measured.
        kinds: kinds of accuracy on the test split; see ``personal_accuracies``.
    """

    directions: Mapping[str, Better] = MappingProxyType(
        {"held_out/std*": "lower", "held_out/tuned_std*": "lower", "held_out/*": "higher"}
    )

    def __init__(
        self,
        every: PositiveInt,
        kinds: Annotated[list[Literal["uniform", "local", "test_split"]], Field(min_length=1)],
    ) -> None:
        self.every, self.kinds = every, kinds
        self._samples: ScoredSamples | None = None

    def check(self, outline: Outline) -> None:
        """Set the headlines, and note whether ``kinds`` can be measured on the test split.

        There are headlines if there are held-out clients and a global model. ``kinds`` need one
        class for each sample, and a test split of the classes that clients train on.
        """
        if outline.holds_out and Need.GLOBAL_MODEL in outline.given:
            self.headlines: Mapping[str, Better] = {
                "held_out/accuracy": "higher",
                "held_out/worst_decile": "higher",
                "held_out/std": "lower",
            }
        self.idle = "" if outline.holds_out else "without clients.held_out"
        self._has_kinds = {Need.CLASS_LABELS, Need.TEST_CLASSES} <= outline.given
        self._own_only = outline.own_tasks

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Choose the test samples on which models are scored."""
        if self._has_kinds and resources.data.held_out_clients:
            self._samples = ScoredSamples(resources.data, self.kinds, None, self._own_only)

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics ``held_out/*``; each process tunes models for a part of the clients."""
        clients = list(after.data.held_out_clients.values())
        if not clients:
            return Measured()
        metrics: dict[str, float] = {}
        if after.ranks.is_first and after.resources.personalization.has_global:
            metrics |= {f"held_out/{n}": float(v) for n, v in _on_own(after, clients).items()}
            # The labels of a test split of other classes cannot be scored.
            if self._samples and (predictions := after.global_predictions()):
                found = list(_on_test(predictions.correct, clients, self._samples))
                metrics |= spreads(found, "held_out/{}_{}")
        if self._samples and _tunes(after):
            own = clients[after.ranks.rank :: after.ranks.size]
            tuned = dict(after.ranks.gather_pairs(_tuned(after, own, self._samples)))
            metrics |= spreads(list(tuned.values()), "held_out/tuned_{}_{}")
        return Measured(metrics)


def _on_own(after: AfterRound, clients: Sequence[ClientData]) -> dict[str, float]:
    """Mean, deviation and worst tenth of the global model's accuracies on each client's samples.

    A client's validation samples choose nothing, because it is held out, so they are scored, too.
    If each token has a target, an accuracy is the share of tokens that are classified correctly.
    """
    train = after.data.train
    index = [torch.cat([each.train_index, each.validation_index]) for each in clients]
    found = after.scoring.score_global(after.message, Subset(train, torch.cat(index)))
    assert found is not None
    sizes = [len(scored_rows(train.targets[own])[0]) for own in index]
    flags = torch.split(found.correct.double(), sizes)
    return spread([own.mean().item() for own in flags if len(own)])


def _on_test(
    correct: Tensor, clients: Sequence[ClientData], samples: ScoredSamples
) -> Iterator[dict[str, float]]:
    """For each client, yield the ``personal_accuracies`` of the same model.

    ``correct`` [n] tells whether the model classifies each of the n test samples correctly.
    """
    for start in range(0, len(clients), _AT_ONCE):
        group = clients[start : start + _AT_ONCE]
        yield from personal_accuracies(correct.expand(len(group), -1), samples, group)


def _tuned(
    after: AfterRound, clients: Sequence[ClientData], samples: ScoredSamples
) -> Iterator[tuple[int, dict[str, float]]]:
    """Tune a model at each client, and yield (client, ``personal_accuracies`` of the model)."""
    data = {client.client: client for client in clients}
    scoring = after.scoring.of_newcomers(data)
    for client, found in scoring.score_personal(after.tuned_from, select=samples, of=list(data)):
        (accuracies,) = personal_accuracies(found.correct[None], samples, [data[client]])
        yield client, accuracies


def _tunes(after: AfterRound) -> bool:
    """Whether held-out clients tune a global model after this round."""
    personalization = after.resources.personalization
    starts = {"global": True, "best": after.is_last, "local": False}[personalization.tunes]
    return starts and personalization.serves_newcomers and bool(personalization.tuning())
