"""``engine=auto``: stacks clients where a trial shows that it pays."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from fedexp.core.messages import Message, Update
from fedexp.distributed.ranks import Ranks
from fedexp.engines.base import Engine
from fedexp.engines.predictions import Predictions, Select
from fedexp.engines.resources import Resources
from fedexp.engines.serial import Serial
from fedexp.engines.threads import restored_threads
from fedexp.engines.trial import measure, train_once, trial_resources, typical_clients
from fedexp.engines.vectorized import Vectorized
from fedexp.errors import InputError

SERIAL, VECTORIZED = "serial", "vectorized"

_WORTH = 1.25
"""``vectorized`` is taken if ``serial`` needs so many times its time."""

_MOST_CLIENTS = 32
"""Clients of a trial; where so many in a stack gain nothing, more do not either."""


class Auto(Engine):
    """``serial`` or ``vectorized``: whichever ``choose`` finds to be faster, or ``use`` names.

    The weights of the two differ by rounding, so that another choice, on another machine, gives
    other bits; a run keeps its choice, and ``engine=<choice>`` repeats it.

    Attributes:
        chosen: the engine that is used.
    """

    captures_steps = True  # where it is serial
    chosen: str = SERIAL

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self._compiled = False
        self.use(SERIAL)

    def use(self, chosen: str) -> None:
        """Use the engine of this name from now on."""
        self.chosen = chosen
        self._engine: Engine = (
            Vectorized(self.resources, None)
            if chosen == VECTORIZED
            else self._serial(self.resources)
        )
        self._engine.scorer = self.scorer  # which may have measured already
        if self._compiled:
            self._engine.compile()

    def choose(self, ranks: Ranks, broadcast: Callable[[int], Message], cohort_size: int) -> str:
        """As ``Engine.choose``: use the faster engine."""
        clients = typical_clients(
            self.resources, min(cohort_size // ranks.size, _MOST_CLIENTS) or 1
        )
        tried = ranks.all_gather(self._try(clients, broadcast(1)))
        refusal = next((each for each in tried if isinstance(each, str)), None)
        if refusal is not None:
            self.use(SERIAL)
            return f"engine=auto: serial; {refusal}"
        measured = [each for each in tried if not isinstance(each, str)]
        serial, vectorized = (max(each[name] for each in measured) for name in (SERIAL, VECTORIZED))
        self.use(VECTORIZED if _WORTH * vectorized < serial else SERIAL)
        return (
            f"engine=auto: {self.chosen}; vectorized took {vectorized / serial:.2f} of serial's "
            f"time in a trial with {len(clients)} clients"
        )

    def compile(self) -> None:
        """Compile the engine that is used, once it is chosen."""
        self._compiled = True

    def on_trial(self, resources: Resources) -> Engine:
        """The engine that is used, with other resources."""
        return self._engine.on_trial(resources)

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Train the cohort with the engine that is used."""
        return self._engine.train(cohort, message)

    def evaluate_personal(
        self, message: Message, tune: bool = True, select: Select = lambda client: None
    ) -> Iterator[tuple[int, Predictions]]:
        """Score personal models with the engine that is used."""
        self._engine.resources = self.resources  # another store, where evaluation overlaps
        return self._engine.evaluate_personal(message, tune, select)

    def _serial(self, resources: Resources) -> Serial:
        """``engine=serial``, with captured steps if this engine has them."""
        serial = Serial(resources)
        serial.graphs = self.graphs
        return serial

    def _try(self, clients: Sequence[int], message: Message) -> dict[str, float] | str:
        """Engine -> seconds of a trial; or why there is none, as clients cannot be stacked."""
        for name, layer in self.resources.module.named_modules():
            if hasattr(layer, "prepare_for_vmap"):  # it would stay prepared under serial
                return f"{name} has to be changed to be stacked; try engine=vectorized"
        try:
            vectorized = Vectorized(self.resources, None)
        except InputError as error:
            return str(error)
        with restored_threads(), trial_resources(self.resources, clients) as resources:
            if resources.fabric.device.type == "cpu":
                torch.set_num_threads(1)  # the fairest: more may have to share their cores
            engines = {SERIAL: self._serial(resources), VECTORIZED: vectorized.on_trial(resources)}
            ways = {n: partial(train_once, each, clients, message) for n, each in engines.items()}
            try:
                ways[VECTORIZED]()
            except Exception as error:  # of a part that cannot be stacked
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                return f"vectorized failed in a trial ({reason})"
            return measure(ways)
