"""The view of a federation after a round, from which measures compute their results."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from fedexp.core.client import ClientModule
from fedexp.core.messages import Message, Tensors
from fedexp.core.server import Server
from fedexp.core.token_rows import scored_rows
from fedexp.data.federated import FederatedData
from fedexp.distributed.ranks import Ranks
from fedexp.engines.resources import Resources
from fedexp.measures.exchange import Exchange
from fedexp.measures.measured import Measured
from fedexp.measures.scoring.accuracies import per_class
from fedexp.measures.scoring.predictions import Predictions, Select
from fedexp.measures.scoring.scoring import Scoring

T = TypeVar("T")


@dataclass(frozen=True)
class AfterRound:
    """A federation after a round; measures read it and change nothing.

    Attributes:
        message: the round's number, the new global weights, and the parts' extras.
        rounds: T.
        exchange: the round's cohort, traffic and seconds, and the accepted updates without tensors.
        quarantined: clients whose update was not finite and was left out.
        server: the server after its step. A measure that ``overlaps`` must not use it.
        ranks: the processes.
        scoring: loads and scores models; measures should use the methods below instead.
        found: the results of the measures that the config lists before this one.
    """

    message: Message
    rounds: int
    exchange: Exchange
    quarantined: Sequence[int]
    server: Server
    ranks: Ranks
    scoring: Scoring
    found: Measured = field(default_factory=Measured)
    _shared: dict[object, Any] = field(default_factory=dict)

    @property
    def round(self) -> int:
        """The number of the round, from 1; 0 before training."""
        return self.message.round

    @property
    def is_last(self) -> bool:
        """Whether it is the last round."""
        return self.round == self.rounds

    @property
    def tuned_from(self) -> Message:
        """The global model from which personal models are tuned, if the method tunes them.

        It is the model in ``message``, unless the measure ``best`` found a better model.
        """
        return self.found.best_model or self.message

    @property
    def data(self) -> FederatedData:
        """The population's data."""
        return self.resources.data

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.data.seed

    @property
    def resources(self) -> Resources:
        """The resident module, parts and kept models, for measures that run models themselves."""
        return self.scoring.resources

    def once(self, key: object, compute: Callable[[], T]) -> T:
        """The result of ``compute``, shared by all measures that use the same ``key``."""
        if key not in self._shared:
            self._shared[key] = compute()
        return cast(T, self._shared[key])

    def global_model(self) -> ClientModule:
        """The resident module as the global model, in eval mode."""
        return self.scoring.load_global(self.message)

    def global_predictions(self) -> Predictions | None:
        """The global model's predictions on the test split, computed once.

        None in all processes except the first, and if the method has no global model.
        """
        return self._predictions("test")

    def predictions_with(self, weights: Tensors) -> Predictions | None:
        """The global model's predictions on the test split with other shared ``weights``.

        None if ``global_predictions`` is None.
        """
        if not self.ranks.is_first:
            return None
        return self.scoring.score_global(replace(self.message, weights=weights))

    def class_accuracies(self) -> Mapping[str, float]:
        """Class name -> accuracy of the global model; empty without predictions.

        Classes without test samples are absent.
        """
        return self.once("classes", self._class_accuracies)

    def validation_predictions(self) -> Predictions | None:
        """The global model's predictions on all validation samples of clients, computed once.

        None if there are no such samples, or if ``global_predictions`` is None.
        """
        return self._predictions("validation") if len(self.data.validation) else None

    def personal_predictions(
        self, select: Select = lambda client: None, tune: bool = True
    ) -> Iterator[tuple[int, Predictions]]:
        """(client, predictions) of the personal models of this process's clients, in any order.

        Args:
            select: client -> the samples of the test split for its model; by default all samples.
            tune: whether models are tuned first, if the method tunes.
        """
        return self.scoring.score_personal(self.tuned_from, tune, select)

    def personal_models(
        self, clients: Collection[int] | None = None
    ) -> Iterator[tuple[int, Tensors]]:
        """(client, weights) of the kept personal models of this process's clients, untuned.

        ``clients`` restricts the result to these clients.
        """
        store = self.resources.store
        for client in store.clients_with_model:
            if clients is None or client in clients:
                yield client, store.model(client)

    def _class_accuracies(self) -> dict[str, float]:
        predictions, classes = self.global_predictions(), self.data.description.classes
        if predictions is None:
            return {}
        (labels,) = scored_rows(self.data.test.targets.cpu())
        correct, total = per_class(predictions.correct, labels, len(classes))
        found = zip(classes, correct.tolist(), total.tolist(), strict=True)
        return {name: hits / of for name, hits, of in found if of}

    def _predictions(self, split: str) -> Predictions | None:
        if not self.ranks.is_first:
            return None
        samples = self.data.validation if split == "validation" else None
        return self.once(split, lambda: self.scoring.score_global(self.message, samples))
