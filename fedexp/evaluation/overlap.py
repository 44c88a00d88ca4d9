"""Evaluation in a thread of its own, while the next round trains."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

import torch

from fedexp.core.messages import Message, Tensors
from fedexp.engines.base import Engine
from fedexp.state.client_store import ClientStore

T = TypeVar("T")


class KeptModels:
    """The personal models at the end of a round: what evaluation uses of a ``ClientStore``."""

    def __init__(self, models: Mapping[int, Tensors]) -> None:
        self._models = models

    @property
    def clients_with_model(self) -> list[int]:
        """The clients, in order."""
        return sorted(self._models)

    def model(self, client: int) -> Tensors:
        """Every weight of the client's personal model."""
        return self._models[client]


class Overlap:
    """One thread, which evaluates one round after another with an engine of its own.

    Args:
        engine: as the one that trains, with a resident module and parts of its own; they share the
            data alone.
        ram_bytes: bound of the personal models that are kept for it.
        fewshot: the few-shot metrics of the global model in a message, by that engine's module.
    """

    def __init__(
        self,
        engine: Engine,
        ram_bytes: float,
        fewshot: Callable[[Message], dict[str, float]] | None = None,
    ) -> None:
        self.engine, self.fewshot, self._ram_bytes = engine, fewshot, ram_bytes
        weights = engine.resources.module.weights.values()  # here: a stack replaces them for a time
        self._model_bytes = sum(weight.nbytes for weight in weights)
        threads = partial(torch.set_num_threads, torch.get_num_threads())
        self._thread = ThreadPoolExecutor(1, "evaluation", initializer=threads)
        engine.scorer.stack_size()  # here: it sets filters of warnings, which all threads share

    def keeps_models(self, store: ClientStore) -> bool:
        """Whether the store's personal models can wait for their evaluation.

        Not if they are tuned before it, which draws random numbers, nor if they exceed the bound.
        """
        tuned = bool(self.engine.resources.personalization.tuning())
        return not tuned and self._model_bytes * len(store.clients_with_model) <= self._ram_bytes

    def submit(self, store: ClientStore | None, evaluate: Callable[[Engine], T]) -> "Future[T]":
        """Call ``evaluate`` with the engine after all that was submitted before.

        ``store`` has the personal models, if they are evaluated; later changes do not matter.
        """
        models = {c: store.model(c) for c in store.clients_with_model} if store else {}

        def work() -> T:
            kept = cast(ClientStore, KeptModels(models))
            self.engine.resources = replace(self.engine.resources, store=kept)
            return evaluate(self.engine)

        return self._thread.submit(work)

    def wait(self) -> None:
        """Wait until all that was submitted has ended."""
        self._thread.submit(lambda: None).result()
