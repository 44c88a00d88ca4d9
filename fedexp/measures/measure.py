"""The contract of a measure, which adds metrics, tables or figures to the records of a run.

The measure ``forgetting`` of fedexp is a short example with metrics and a figure. To add your own
measure, you need no change in fedexp. Write a class that can be imported, and a YAML file, for
example ``conf/measure/drift.yaml``::

    drift:
      _target_: my_package.Drift
      every: 5

Then ``fedexp --config-dir conf +measure=drift measure.drift.every=2`` runs the measure.
``fedexp.testing.check_measure`` checks that a measure keeps the contract.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pydantic import PositiveInt

from fedexp.config.compatibility.declaration import UnreadWith
from fedexp.config.compatibility.traits import Need
from fedexp.core.description import Description
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.reducible import Contribution
from fedexp.engines.resources import Resources
from fedexp.measures.after_round import AfterRound as AfterRound
from fedexp.measures.round_results import Measured as Measured

Better = Literal["higher", "lower"]
"""Whether higher or lower values of a metric are better."""


@dataclass(frozen=True)
class Outline:
    """The facts about a run that are known before its data is read.

    Attributes:
        about: names and shape of the dataset.
        clients: N, the number of clients.
        rounds: T, the number of rounds.
        given: the properties in ``Need`` that the data and the method have.
        validates: whether clients hold out samples for validation.
        own_tasks: whether other clients' samples are another task for a client's model: images are
            changed differently at each client (``partition.shift``), or each client has a labelling
            of its own (``data=synthetic``).
        holds_out: whether some clients never train.
        simulates_time: whether clients have simulated devices.
        is_asynchronous: whether an update may arrive in a later round than the one in which its
            client starts.
    """

    about: Description
    clients: int
    rounds: int
    given: frozenset[Need]
    validates: bool
    own_tasks: bool = False
    holds_out: bool = False
    simulates_time: bool = False
    is_asynchronous: bool = False


class Measure:
    """Looks at a federation after each round and returns metrics, tables and figures.

    The constructor's arguments are the keys of the measure's YAML file. Annotate them with pydantic
    types (``PositiveInt``, ``Literal`` ...): the config is checked against these types before any
    data is read.

    Attributes:
        headlines: metric for comparing runs -> whether higher or lower values are better. A
            headline can be the ``objective`` of a sweep.
        directions: name or pattern (``cost/*``) of other metrics -> whether higher or lower values
            are better. For a metric without a direction, a table marks no best value.
        needs: properties that the data and the method must have, checked before data is read.
        unread_if: argument -> when nothing reads it; see ``fedexp.config.compatibility.unread``.
        reads: keys of other components that the measure uses; see ``fedexp.config.compatibility``.
        every: rounds between measurements, if ``due`` is not overridden.
        first: earliest round that is measured, but for the last round; as ``every``.
        remembers: the clients whose personal models the measure needs; None: no clients.
        idle: why the run has nothing for this measure, such as "without data.validation"; set by
            ``check``, empty if it measures. Keys of an idle measure have no effect.
        chosen: a global model to write to ``checkpoints/NAME.pt`` after the run, where NAME is the
            measure's name; None: no model. It is no result of a round, because a resumed run may
            end without a further one.
    """

    headlines: Mapping[str, Better] = MappingProxyType({})
    directions: Mapping[str, Better] = MappingProxyType({})
    needs: frozenset[Need] = frozenset()
    unread_if: Mapping[str, UnreadWith] = MappingProxyType({})
    reads: frozenset[str] = frozenset()
    every: int = 1
    first: int = 1
    remembers: Literal["all", "cohort"] | None = None
    idle: str = ""
    chosen: Message | None = None

    def check(self, outline: Outline) -> None:
        """Called before data is read. Override it to remove headlines that the run cannot measure.

        Raises:
            InputError: the value of a key does not fit the run.
        """

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Called once, before the first round; ``resources`` has the data and the parts."""

    def due(self, round: int, rounds: int) -> bool:
        """Whether to measure after this round; round 0 is before training.

        By default, it is due every ``every`` rounds from round ``first`` on and after the last
        round, number ``rounds``.
        """
        return every_nth(round, rounds, self.every) and (round >= self.first or round == rounds)

    def begin_round(self, message: Message) -> None:
        """Called before local training; the clients start from ``message``."""

    def observe(self, update: Update) -> None:
        """Called for each accepted update of this process, when it arrives."""

    def contribution(self) -> Contribution:
        """The observations of this process; they are summed or gathered over all processes."""
        return Contribution()

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this process's observations by the float64 sums and items of all processes."""

    @abstractmethod
    def __call__(self, after: AfterRound) -> Measured:
        """The results after a round in which the measure is due.

        Every process calls this method; the run keeps only the first process's results.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, the state that later rounds need; it is the same in every process."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""


class EveryNth(Measure):
    """A measure whose only argument is ``every``, the rounds between measurements."""

    def __init__(self, every: PositiveInt) -> None:
        self.every = every


def every_nth(round: int, rounds: int, every: int) -> bool:
    """Whether ``round`` is a multiple of ``every`` or the last of ``rounds`` rounds.

    For round 0, which is before training, the result is False.
    """
    return round > 0 and (round % every == 0 or round == rounds)
