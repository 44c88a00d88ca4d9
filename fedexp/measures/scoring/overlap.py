"""A second thread that computes measures while the next round trains."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

import torch

from fedexp.core.messages import Message, Tensors, copied
from fedexp.engines.base import Engine
from fedexp.measures.scoring.scoring import Scoring
from fedexp.state.client_store import ClientStore

T = TypeVar("T")


class KeptModels:
    """The personal models at the end of a round; scoring reads them as from a ``ClientStore``."""

    def __init__(self, models: Mapping[int, Tensors]) -> None:
        self._models = models

    @property
    def clients_with_model(self) -> list[int]:
        """The numbers of the clients that have a model, in ascending order."""
        return sorted(self._models)

    def model(self, client: int) -> Tensors:
        """All weights of the client's personal model."""
        return self._models[client]


class Overlap:
    """A thread that computes the measures of finished rounds, one round after another.

    Args:
        engine: scores models; only the data are shared with the engine that trains.
        ram_bytes: largest total size of the personal models that wait to be scored.
    """

    def __init__(self, engine: Engine, ram_bytes: float) -> None:
        self._engine, self._ram_bytes = engine, ram_bytes
        self._scoring = Scoring(engine)
        weights = engine.resources.module.weights.values()  # read now: later, a stack may hold them
        self._model_bytes = sum(weight.nbytes for weight in weights)
        threads = partial(torch.set_num_threads, torch.get_num_threads())
        self._thread = ThreadPoolExecutor(1, "evaluation", initializer=threads)
        self._scoring.scorer.stack_size()  # not in the thread: this sets global warning filters

    def keeps_models(self, store: ClientStore) -> bool:
        """Whether the store's personal models can be scored later.

        The result is False if the models exceed ``ram_bytes``. It is also False if the models must
        be tuned before scoring, because tuning draws random numbers.
        """
        tuned = bool(self._engine.resources.personalization.tuning())
        return not tuned and self._model_bytes * len(store.clients_with_model) <= self._ram_bytes

    def submit(
        self,
        message: Message,
        store: ClientStore | None,
        measure: Callable[[Message, Scoring], T],
    ) -> "Future[T]":
        """Call ``measure`` in the thread, after all calls that were submitted earlier.

        Args:
            message: the global model of the round; ``measure`` gets a copy.
            store: the personal models, if ``measure`` uses them; later changes of the store have no
                effect.
            measure: the function to call; it gets the message and this thread's ``Scoring``.

        Returns:
            A future with the result of ``measure``.
        """
        models = {c: store.model(c) for c in store.clients_with_model} if store else {}
        kept = copied(message)

        def work() -> T:
            store = cast(ClientStore, KeptModels(models))
            self._engine.resources = replace(self._engine.resources, store=store)
            return measure(kept, self._scoring)

        return self._thread.submit(work)

    def wait(self) -> None:
        """Wait until all calls have ended."""
        self._thread.submit(lambda: None).result()
