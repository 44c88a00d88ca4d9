"""The contract of a part: both halves of one idea in one object.

A method is a choice of parts, one for each socket (head, loss, regularizer, personalization,
sampler, aggregator). Every hook is a no-op by default, so that a part writes only what its idea
needs. One object has both halves: the server half merges and broadcasts, the client half adapts
the resident module. They exchange data only through messages and updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Size, Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.description import Description
from fedexp.core.forward import Forward
from fedexp.core.messages import Message, Tensors, Update
from fedexp.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Memory = dict[str, Tensor]
"""One client's own persistent tensors for one part; empty at first, kept between rounds.

Tensors in it are replaced and never written into: a turn whose update is not finite is undone.
"""

Functional = Callable[[Tensors, Tensor], Tensor]
"""A model as a pure function: (weights, inputs [B, ...]) -> logits [B, C]."""


TensorStore = MutableMapping[str, Tensors]
"""Name -> tensors, for more of them than fit into RAM."""


@dataclass(frozen=True)
class Setting:
    """What every part may know about the experiment before the first round.

    Attributes:
        seed: seed of the run, for keyed generators.
        rounds: number of rounds T.
        num_classes: C.
        feature_dim: d, the width of the backbone's features.
        num_clients: N, the size of the population.
        clients_per_round: K, the size of a cohort.
        class_counts: [N, C] training samples of each class at each client, int64; None where they
            are not counted, in a large population whose clients are drawn when they are asked for.
            Use ``client_sizes``, ``classes_of`` and ``all_class_counts``.
        parameter_shapes: name -> shape of every parameter of the model that is trained.
        shared: names of the weights that are sent; the others are private to the client.
        input_shape: shape of one input.
        vocabulary: number of different tokens, if inputs are sequences of token ids; else 0.
        functional: (round, weights) -> the global model of that round, for a server half that runs
            it. It may be called with other weights; those not given are taken from ``weights``.
        make_store: name -> an empty mapping for many tensors that a server half keeps. It holds
            them on the CPU up to a bound, and the rest on disk.
        head: round -> the head of that round's global model as a function (weights, features z
            [B, d]) -> logits [B, C], for a server half that runs it with every head weight.
        sizes: [N] training samples of each client; None: the sums of ``class_counts``.
        count_classes: clients [n] -> their class counts [n, C]; None: rows of ``class_counts``.
    """

    seed: int
    rounds: int
    num_classes: int
    feature_dim: int
    num_clients: int
    clients_per_round: int
    class_counts: Tensor | None
    parameter_shapes: dict[str, Size]
    shared: frozenset[str] = frozenset()
    input_shape: tuple[int, ...] = ()
    functional: Callable[[int, Tensors], Functional] | None = None
    make_store: Callable[[str], TensorStore] = lambda name: {}
    vocabulary: int = 0
    head: Callable[[int], Functional] | None = None
    sizes: Tensor | None = None
    count_classes: Callable[[Tensor], Tensor] | None = None

    @property
    def client_sizes(self) -> Tensor:
        """[N] training samples of each client."""
        return self.all_class_counts("").sum(dim=1) if self.sizes is None else self.sizes

    def classes_of(self, clients: Tensor) -> Tensor:
        """[n, C] class counts of these clients [n], which are counted now if they are not yet."""
        if self.class_counts is not None:
            return self.class_counts[clients]
        assert self.count_classes is not None
        return self.count_classes(clients)

    def all_class_counts(self, wanted: str) -> Tensor:
        """``class_counts``, for what needs those of all clients.

        Raises:
            InputError: they are not counted; ``wanted`` is the key and value that needs them.
        """
        if self.class_counts is None:
            raise InputError(
                f"{wanted}: needs the class counts of all clients, which are not counted in a "
                f"population of {self.num_clients:,} that is drawn on demand"
            )
        return self.class_counts


class Part:
    """A component of a method. Its constructor gets hyper-parameters, ``setup`` the setting.

    Annotate the constructor's arguments with pydantic types (``NonNegativeFloat``, ``Literal``...):
    the config is checked against them before any data is read.

    Attributes:
        summed: whether the server needs only the sum of its reports over the cohort. Then they are
            added up as they arrive, so that a cohort of any size needs the memory of one.
        takes_tokens: whether it works where each token of a sequence has a target. Then batches
            have a row for each token, and a client's class counts are those of its sequences.
        measures_last_epoch: whether ``measure`` is for the steps of the last local epoch alone.
        traits: properties that other parts may need or forbid; see ``core.compatibility``.
        needs: trait -> the error if no other part has it.
        forbids: trait -> the error if another part has it.
        discourages: trait -> the warning if another part has it.
    """

    summed: ClassVar[bool] = False
    takes_tokens: ClassVar[bool] = False
    measures_last_epoch: bool = False
    traits: frozenset[str] = frozenset()
    needs: Mapping[str, str] = MappingProxyType({})
    forbids: Mapping[str, str] = MappingProxyType({})
    discourages: Mapping[str, str] = MappingProxyType({})

    def setup(self, setting: Setting) -> None:
        """Called once, before the first round; the place to create parameters and buffers."""

    # Server half.

    def broadcast(self, round: int) -> Tensors:
        """What clients need from this part this round, besides the weights.

        Called before training and again for evaluation, so it must change nothing.
        """
        return {}

    def extract(self, update: Update, current: Tensors) -> Tensors:
        """What to keep of one whole update before its weights are aggregated and dropped.

        ``current`` are the weights w^t that the client started from. The result is merged into this
        part's extras in the update that ``aggregate`` gets.
        """
        return {}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Merge the cohort's reports; updates come without weights and ``summed`` reports."""

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The next global weights, given the aggregator's result.

        Args:
            current: the weights w^t of this round.
            merged: the aggregator's result.
            sums: float64 sums over the cohort of this part's reports, if they are ``summed``.
            clients: the number of updates, at least one.
        """
        return merged

    def metrics(self) -> dict[str, float]:
        """Metrics of the round just aggregated, for the log: name -> value."""
        return {}

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """Figures of the whole run, drawn after its last round.

        Args:
            memories: client -> its memory of this part, of every client that has one.
            about: the dataset's names of classes and shape of inputs.
        """
        return {}

    def server_state(self) -> dict[str, Any]:
        """The state of the server half, for a checkpoint.

        Not called ``state_dict``: a head is also an ``nn.Module``, whose ``state_dict`` are its
        weights.
        """
        return {}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``; the tensors are on the CPU, whatever device they were on."""

    def fixed_state(self) -> Mapping[str, Tensors]:
        """Tensors of the server half that never change, name -> tensors, for a checkpoint.

        A name, which is part of a file's name, stands for the same tensors in the whole run:
        checkpoints share its file instead of each writing one. For much that is kept over many
        rounds.
        """
        return {}

    def load_fixed_state(self, state: Mapping[str, Tensors]) -> None:
        """Inverse of ``fixed_state``; tensors are read from their file, to the CPU, when accessed.

        Called after ``load_server_state``.
        """

    # Client half.

    def receive(self, message: Message) -> None:
        """Read from the message what is the same for all clients; also called for evaluation."""

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """Adapt to this client before its local training. ``client.data`` is its data."""

    def measure(self, batch: Forward) -> Tensors:
        """Tensors to sum over the steps of local training; ``client.measured`` has the sums.

        With ``measures_last_epoch`` the sums are over the last epoch of the last phase.
        A pure function of one batch's forward pass, so that any engine can run it. Called without
        gradients, before the step.
        """
        return {}

    def report(self, client: Client, memory: Memory) -> Tensors:
        """What the server needs from this client after local training, besides its weights."""
        return {}
