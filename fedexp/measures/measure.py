"""The contract of a measure: a metric, table or figure in one Python and one YAML file.

The bundled measure ``forgetting`` is a short example with a metric and a figure. To add your own
measure, change nothing here: write a class that can be imported, and a file ``measure/drift.yaml``
in a folder that ``--config-dir`` names::

    drift:
      _target_: my_package.Drift
      every: 5

Then ``fedexp --config-dir conf +measure=drift measure.drift.every=2`` runs it.
``fedexp.testing.check_measure`` checks the contract.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from fedexp.compatibility.traits import Need
from fedexp.core.description import Description
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.reducible import Contribution
from fedexp.engines.resources import Resources
from fedexp.measures.after_round import AfterRound
from fedexp.measures.measured import Measured as Measured

Better = Literal["higher", "lower"]
"""Which values of a metric are better."""


@dataclass(frozen=True)
class Outline:
    """The facts about a run that are known before its data is read.

    Attributes:
        about: names and shape of the dataset.
        clients: N.
        rounds: T.
        given: the needs that the data and the method meet.
        validates: whether clients hold out samples for validation.
        shifts: whether clients see the images in different ways (``partition.shift``).
        holds_out: whether some clients never train.
        simulates_time: whether clients have simulated devices.
    """

    about: Description
    clients: int
    rounds: int
    given: frozenset[Need]
    validates: bool
    shifts: bool = False
    holds_out: bool = False
    simulates_time: bool = False


class Measure:
    """Looks at a federation round by round. The constructor gets the keys of its YAML.

    Annotate the constructor's arguments with pydantic types (``PositiveInt``, ``Literal`` ...): the
    config is checked against them before any data is read.

    Attributes:
        headlines: metric for comparing runs -> whether higher or lower values are better. A
            headline can be the ``objective`` of a sweep.
        directions: like ``headlines``, for the other metrics, by name or pattern (``cost/*``). A
            table never marks the best value of a metric without a direction.
        needs: required properties of data and method, checked before data is read.
        every: rounds between measurements, for the default of ``due``.
        remembers: the clients whose personal models the measure needs; None: no client.
        chosen: a global model to write to ``checkpoints/NAME.pt`` after the run, NAME being the
            measure's name; None: no model.
        overlaps: whether the measure may be computed while the next round trains
            (``evaluation.overlap=true``). If so, it may use only its own results of earlier rounds
            and the values that ``AfterRound`` computes from the round's message and personal
            models.
    """

    headlines: Mapping[str, Better] = MappingProxyType({})
    directions: Mapping[str, Better] = MappingProxyType({})
    needs: frozenset[Need] = frozenset()
    every: int = 1
    remembers: Literal["all", "cohort"] | None = None
    chosen: Message | None = None
    overlaps: ClassVar[bool] = False

    def check(self, outline: Outline) -> None:
        """Called before data is read; remove headlines here that this run cannot measure.

        Raises:
            InputError: the value of a key does not fit the run.
        """

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Called once, before the first round; ``resources`` has the data and the parts."""

    def due(self, round: int, rounds: int) -> bool:
        """Whether to measure after ``round`` of ``rounds``; round 0 is before training.

        By default every ``every`` rounds and after the last round.
        """
        return every_nth(round, rounds, self.every)

    def begin_round(self, message: Message) -> None:
        """Called before local training; the clients start from ``message``."""

    def observe(self, update: Update) -> None:
        """Called for each accepted update of this process, when it arrives."""

    def contribution(self) -> Contribution:
        """Observations of this process, to be summed or gathered over all processes."""
        return Contribution()

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace observations by the float64 sums and items of all processes' contributions."""

    def __call__(self, after: AfterRound) -> Measured:
        """The results after a round in which the measure is due.

        Every process calls this method; the run keeps only the first process's results.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The state that later rounds need, for a checkpoint; the same in every process."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""


def every_nth(round: int, rounds: int, every: int) -> bool:
    """Whether to measure after ``round``: after multiples of ``every`` and after the last round.

    False for round 0, which is before training.
    """
    return round > 0 and (round % every == 0 or round == rounds)
