"""``AfterRound``: everything about a federation after a round that measures may read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from fedexp.core.client import ClientModule
from fedexp.core.messages import Message, Tensors
from fedexp.core.server import Server
from fedexp.core.token_rows import scored_rows
from fedexp.data.federated import FederatedData
from fedexp.distributed.ranks import Ranks
from fedexp.engines.resources import Resources
from fedexp.measures.round_results import Measured
from fedexp.measures.scoring.accuracies import per_class
from fedexp.measures.scoring.predictions import Predictions, Select
from fedexp.measures.scoring.scoring import Scoring
from fedexp.system.exchange import Exchange

T = TypeVar("T")


@dataclass(frozen=True)
class AfterRound:
    """The state of a federation after a round; measures may read it, but must not change it.

    Attributes:
        message: the round's number, the new global weights, and the parts' extras.
        rounds: T, the number of rounds of the run.
        exchange: the round's cohort, bytes and seconds, and the accepted updates without tensors.
        quarantined: clients whose update had NaN or infinite values and was therefore left out.
        server: the server after its step.
        ranks: the processes that share the run.
        scoring: loads and scores models; measures should call the methods below instead.
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
        """Whether this round is round T, the last planned round."""
        return self.round == self.rounds

    @property
    def tuned_from(self) -> Message:
        """The global model from which personal models are tuned, if the method tunes them.

        This is the best model that the measure ``best`` found; without such a model, it is the
        model in ``message``.
        """
        return self.found.best_model or self.message

    @property
    def data(self) -> FederatedData:
        """The data of all clients, and the test split."""
        return self.resources.data

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.data.seed

    @property
    def resources(self) -> Resources:
        """The resident module, parts and stored models, for measures that run models themselves."""
        return self.scoring.resources

    def once(self, key: object, compute: Callable[[], T]) -> T:
        """The result of ``compute``, shared by all measures that use the same ``key``."""
        if key not in self._shared:
            self._shared[key] = compute()
        return cast(T, self._shared[key])

    def global_model(self) -> ClientModule:
        """Load the global model into the resident module and return the module, in eval mode."""
        return self.resources.load_global(self.message).eval()

    def global_predictions(self) -> Predictions | None:
        """The global model's predictions on the test split, computed once.

        Only the first process gets predictions; the other processes get None. If the method has no
        global model, all processes get None.
        """
        return self._predictions("test")

    def predictions_with(self, weights: Tensors) -> Predictions | None:
        """The predictions on the test split if the global model had these shared ``weights``.

        The result is None whenever ``global_predictions`` is None.
        """
        if not self.ranks.is_first:
            return None
        return self.scoring.score_global(replace(self.message, weights=weights))

    def class_accuracies(self) -> Mapping[str, float]:
        """Class name -> accuracy of the global model on the test samples of this class.

        Classes without test samples are absent. If ``global_predictions`` is None, the result is
        empty.
        """
        return self.once("classes", self._class_accuracies)

    def validation_predictions(self) -> Predictions | None:
        """The global model's predictions on all clients' validation samples, computed once.

        None if there are no validation samples, or if ``global_predictions`` is None.
        """
        return self._predictions("validation") if len(self.data.validation) else None

    def personal_predictions(
        self, select: Select = lambda client: None, tune: bool = True
    ) -> Iterator[tuple[int, Predictions]]:
        """Yield (client, predictions of its personal model) for the clients of this process.

        The clients come in any order. Clients without a stored model are left out.

        Args:
            select: client -> the samples of the test split for its model; by default all samples.
            tune: whether the models are tuned before scoring, if the method tunes models.
        """
        return self.scoring.score_personal(self.tuned_from, tune, select)

    def personal_models(self) -> Iterator[tuple[int, Tensors]]:
        """Yield (client, weights of its stored personal model) for the clients of this process.

        The models are not tuned.
        """
        store = self.resources.store
        for client in store.clients_with_model:
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
