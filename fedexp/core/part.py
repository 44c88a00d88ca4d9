"""The contract of a part: one object with a server half and a client half.

A method is a choice of parts, one for each socket (head, loss, regularizer, gradient,
personalization, sampler, aggregator). The server half merges and broadcasts; the client half adapts
the resident module. The halves exchange data only through messages and updates. Every hook is a
no-op by default: a part overrides the hooks that it needs.

Almost every method that sends something needs four hooks. In the order of a round they are
``broadcast`` (server), ``begin`` and ``report`` (client) and ``aggregate`` (server). Its attributes
that a checkpoint must keep are named in ``saved``. Each other hook serves a few methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Size, Tensor, nn
from torch.optim import Optimizer

from fedexp.config.compatibility.declaration import Declares
from fedexp.core.client_protocol import Batch, Client, Functional
from fedexp.core.description import Description
from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Memory = dict[str, Tensor]
"""One client's persistent tensors for one part: empty at first, kept between rounds.

Replace the tensors, but never change them in place: if the update of a turn is refused, the
client gets its old tensors back.
"""

TensorStore = MutableMapping[str, Tensors]
"""Name -> tensors; may hold more than fits into RAM."""


@dataclass(frozen=True)
class Clients:
    """The N clients of the population in numbers; the classes are counted on demand.

    Attributes:
        sizes: [N] training samples of each client.
        class_counts: [N, C] training samples of each class at each client, int64; None if they are
            not counted, as in a large population whose data are made on demand. Use ``classes_of``
            and ``all_class_counts`` instead: they count.
        count: clients [n] -> their class counts [n, C]. If None, ``class_counts`` has them.
        ask_all: () -> the class counts [N, C], by asking the clients. None: they cannot be asked.
        held_out: training samples of each client that is held out (``clients.held_out``).
        turn_seconds: clients [n] -> [n] float64, the simulated seconds that a turn with all local
            steps is expected to take, if the update is as large as the message's weights. None
            without simulated devices.
    """

    sizes: Tensor
    class_counts: Tensor | None = None
    count: Callable[[Tensor], Tensor] | None = None
    ask_all: Callable[[], Tensor] | None = None
    held_out: Sequence[int] = ()
    turn_seconds: Callable[[np.ndarray], np.ndarray] | None = None

    @classmethod
    def of(cls, class_counts: Tensor) -> Self:
        """The clients with these class counts [N, C]."""
        return cls(class_counts.sum(dim=1), class_counts)

    @cached_property
    def num_with_data(self) -> int:
        """The number of clients that have data. The others take no part."""
        return int((self.sizes > 0).sum())

    @cached_property
    def num_samples(self) -> int:
        """The number of training samples of all clients together."""
        return int(self.sizes.sum())

    def relative_size(self, num_samples: int) -> float:
        """A client's size ``num_samples`` divided by the mean size of the clients with data."""
        return num_samples * self.num_with_data / self.num_samples

    def classes_of(self, clients: Tensor) -> Tensor:
        """Class counts [n, C] of these clients [n]; counted now if necessary."""
        if self.class_counts is not None:
            return self.class_counts[clients]
        assert self.count is not None
        return self.count(clients)

    def all_class_counts(self, wanted: str) -> Tensor:
        """The class counts [N, C] of all clients; if they are unknown, the clients are asked.

        Args:
            wanted: the config key and value that needs the counts, for the error message.

        Raises:
            InputError: the clients are drawn on demand, so that their classes are not counted, or
                a client does not answer.
        """
        if self.class_counts is not None:
            return self.class_counts
        if self.ask_all is not None:
            return self.ask_all()
        raise InputError(
            f"{wanted}: needs the class counts of all clients, which are not counted in a "
            f"population of {len(self.sizes):,} that is drawn on demand"
        )


@dataclass(frozen=True)
class Model:
    """The names and shapes of the model that clients train.

    Attributes:
        parameters: name -> shape of every trained parameter.
        shared: names of the weights that are sent; the others are private to the client.
        input_shape: shape of one input.
        vocabulary: number of different tokens, if inputs are sequences of token ids; else 0.
        before_output: names of the head's layers in front of its output layer.
    """

    parameters: Mapping[str, Size]
    shared: frozenset[str] = frozenset()
    input_shape: tuple[int, ...] = ()
    vocabulary: int = 0
    before_output: tuple[str, ...] = ()

    @property
    def shared_parameters(self) -> dict[str, Size]:
        """The parameters that clients and server exchange: name -> shape."""
        return {name: s for name, s in self.parameters.items() if name in self.shared}


def _absent(*_: Any) -> Any:
    """Stands for a tool that needs data or a model, where there is none."""
    raise NotImplementedError("a setting without data has no such tool")


@dataclass(frozen=True)
class ServerTools:
    """What a server half may compute with, besides its own tensors.

    An exported model has a setting without these tools: there ``draw_model`` gives no weights, and
    functions that need data or a model raise NotImplementedError. So call those in later hooks, not
    in ``setup``.

    Attributes:
        global_model: (round, weights) -> the global model of that round as a function. A call of
            the function may replace some of ``weights``.
        head: round -> the head of that round's global model as a function (weights, features z
            [B, d]) -> logits [B, C]. A call of the function needs all head weights.
        make_store: name -> an empty mapping that may be the part's ``Part.store``, for many
            tensors. The mapping keeps tensors in RAM up to a limit and the rest on disk.
        draw_model: number -> the weights of another initial model, on the CPU: a new backbone, a
            new head, and the loss's initial parameters. Each number gives different random weights.
        draw_samples: (purpose, n, whether every class has the same number of samples) -> inputs and
            targets of n training samples; see ``fedexp.data.server_samples``.
        local_optimizer: (parameters, round) -> a fresh local optimizer of this round.
        secret_seed: seed of draws that protect privacy: of noise, and of cohorts for an aggregator
            with the trait ``HIDES_COHORTS``. None: ``Setting.seed``. A deployment draws it from the
            operating system, because the clients know ``Setting.seed``.
    """

    global_model: Callable[[int, Tensors], Functional] = _absent
    head: Callable[[int], Functional] = _absent
    make_store: Callable[[str], TensorStore] = lambda name: {}
    draw_model: Callable[[int], Tensors] = lambda number: {}
    draw_samples: Callable[[str, int, bool], Batch] = _absent
    local_optimizer: Callable[[Iterable[nn.Parameter], int], Optimizer] = _absent
    secret_seed: int | None = None


@dataclass(frozen=True)
class Setting:
    """The facts about the experiment that every part gets before the first round.

    Attributes:
        seed: seed of the run, for the generators of ``core.randomness``.
        rounds: T, the number of rounds. A part whose results depend on T has the trait
            ``READS_ROUNDS``, because a run may be resumed with another T.
        num_classes: C, the number of classes.
        feature_dim: d, the width of the backbone's features.
        num_clients: N, the size of the population.
        clients_per_round: K, the size of a cohort. With over-selection the sampler gets the larger
            number of invited clients instead.
        clients: sizes and class counts of the population.
        model: names and shapes of the model.
        server: tools of the server half.
        updates_per_step: the number of updates that a server step waits for; None: K.
    """

    seed: int
    rounds: int
    num_classes: int
    feature_dim: int
    num_clients: int
    clients_per_round: int
    clients: Clients
    model: Model
    server: ServerTools = ServerTools()
    updates_per_step: int | None = None

    @property
    def most_updates(self) -> int:
        """The largest possible number of updates in a server step."""
        return min(self.updates_per_step or self.clients_per_round, self.clients.num_with_data)


_SERVER_HALF = (
    "broadcast",
    "message_to",
    "extras_to",
    "aggregate",
    "extract",
    "correct",
    "server_state",
)

_OF_SAMPLERS = ("candidates", "answer", "observe", "observe_seconds", "select")

_TAKES_FROM_CLIENTS = ("setup", "report", "upload", "choose", *_SERVER_HALF, *_OF_SAMPLERS)
"""The hooks by which something of one client can reach the server or another client.

``setup`` is one of them, because the setting has the class counts of all clients.
"""


class Part(Declares):
    """A component of a method: its constructor gets hyper-parameters, ``setup`` gets the setting.

    Annotate the constructor's arguments with pydantic types (``NonNegativeFloat``, ``Literal``...):
    the config is checked against them before any data is read. ``Declares`` has the attributes in
    which a part says what it needs from other components and what it forbids.

    Attributes:
        summed: whether the server needs only the sum of the part's reports over the cohort. Then
            each report is added to the sum when it arrives, and memory does not grow with the
            cohort.
        takes_tokens: whether the part supports data in which each token has a target, instead of
            each sample. Batches then have a row for each token, and a client's class counts count
            its sequences.
        takes_only_merged: whether the hooks that this class defines take nothing from clients but
            the aggregator's result. ``aggregator=private`` refuses a part with other hooks that may
            take something from clients (``hooks_beside_merge``). A subclass that overrides such a
            hook must make this statement again.
        store: name -> tensors of the server half that never change after they are stored; None if
            there are none. Large data of many rounds belong here: all checkpoints share one file
            for each name, whereas every checkpoint has its own ``server_state``. A name must be
            valid in a file name.
        saved: names of the attributes that a checkpoint keeps: tensors, numbers, or lists and dicts
            of them. For other state override ``server_state`` and its inverse.
    """

    summed: ClassVar[bool] = False
    takes_tokens: ClassVar[bool] = False
    takes_only_merged: ClassVar[bool] = True  # this class's own hooks do nothing
    store: TensorStore | None = None
    saved: tuple[str, ...] = ()

    def setup(self, setting: Setting) -> None:
        """Create parameters and buffers; called once, before the first round."""

    # The hooks that almost every method needs, in the order of a round. ``extras`` of a message or
    # an update are the tensors that the other half of this part sent.

    def broadcast(self, round: int) -> Tensors:
        """Server: the tensors to send to all clients this round, besides the weights.

        Called before training and again for evaluation, so it must not change any state.
        """
        return {}

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Client: prepare the part for the local training of ``client`` on ``client.data``."""

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Client: the tensors to send to the server after local training, besides the weights."""
        return {}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Server: merge the tensors that the cohort's clients sent for this part.

        The updates are ordered by client number, so sums over them do not depend on the order of
        their arrival. Their extras are the tensors from ``extract`` and ``report``. If ``summed``
        is true, the tensors from ``report`` are left out, and ``correct`` gets their sums. The
        weights of an update are empty.
        """

    def server_state(self) -> dict[str, Any]:
        """Server: the state of the server half, for a checkpoint; by default the ``saved`` ones.

        It is not named ``state_dict``, because a head has that method from ``nn.Module``.
        """
        values = {name: getattr(self, name) for name in self.saved}
        return {n: v.clone() if isinstance(v, Tensor) else copy(v) for n, v in values.items()}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Restore a result of ``server_state``; its tensors are on the CPU.

        By default the tensors move to the device of the part's buffers. Without buffers they stay
        on the CPU.
        """
        buffers = self.buffers() if isinstance(self, nn.Module) else ()
        device = next((buffer.device for buffer in buffers), torch.device("cpu"))
        for name in self.saved:
            setattr(self, name, _copied(state[name], device))

    # Rarely needed hooks of the client half.

    def receive(self, message: PartMessage) -> None:
        """Set the part's state that is the same for all clients; also called before evaluation."""

    def measure(self, batch: Forward) -> Tensors:
        """Tensors to sum over the steps of local training; ``client.measured(self)`` has the sums.

        A pure function of one batch's forward pass, so that any engine can run it. Called without
        gradients, before the step. To sum over the last local epoch alone, multiply by
        ``batch.in_last_epoch``.
        """
        return {}

    def step_weights(self, parameters: Tensors, step: Tensor | int) -> Tensors:
        """The weights with which a training step computes its outputs, in place of the model's.

        A pure function of the arguments and of the part's parameters and buffers. The gradient goes
        through it to the trained parameters. Weights that the result does not name stay. Losses and
        their measurements see the outputs of these weights; penalties see the trained parameters.
        Outside of training steps, as in ``client.features()`` and in evaluation, the model has its
        own weights. This is a hook, because a head does not know the step and a personalization
        cannot change what the layers compute.

        Args:
            parameters: name -> parameter of the model that is trained.
            step: the client's step in this round, from 0; see ``Forward.step``.

        Returns:
            Name -> parameter or persistent buffer of the model, in its shape.
        """
        return {}

    def trained_samples(self, num_samples: int) -> int:
        """The number of its ``num_samples`` on which a client trains; by default all.

        A part that calls ``client.train_on`` with fewer samples overrides it. This is a hook,
        because the time of a turn on a simulated device must be known before the turn.
        """
        return num_samples

    def upload(self, client: Client, weights: Tensors, memory: Memory) -> Tensors:
        """The weights to send in place of the trained shared weights; called after ``report``.

        The client keeps the trained weights as its local model. Return new tensors for the weights
        that change, under the same names; do not change ``weights`` in place. This is a hook,
        because a report would be sent besides the weights, so it would double the bytes.
        """
        return weights

    # Rarely needed hooks of the server half.

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message to this client alone; by default the message to all.

        Called for each client that trains, answers the sampler or tunes a personal model. It must
        not change any state. The result's weights replace the global weights, so it needs all of
        their names: change some with ``message.weights | own``. Private weights among them replace
        the client's private weights. The result's extras replace the extras of ``broadcast``. A
        part that sends the global weights and extras of the client's own overrides ``extras_to``
        instead, since other parts may need clients that all start from the global weights.
        """
        return message

    def extras_to(self, client: int, message: PartMessage) -> Tensors:
        """The extras of the message to this client alone; by default ``message.extras``.

        Called after ``message_to``, with its result. It must not change any state.
        """
        return message.extras

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """Compute tensors for ``aggregate`` from one client's weights, before these are dropped.

        The result is merged into the extras of the update that ``aggregate`` gets.

        Args:
            weights: the client's weights after local training.
            current: the global weights w^t of this round. The client may have started from other
                weights.
        """
        return {}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The next global weights, given the aggregator's result.

        Args:
            current: the weights w^t of this round.
            merged: the aggregator's result, as the ``correct`` of earlier parts has changed it.
            sums: float64 sums of this part's reports over the cohort, if the part has ``summed``.
            clients: the number of updates, at least one.
        """
        return merged

    def metrics(self) -> dict[str, float]:
        """Metrics of the round that was just aggregated, for the log: name -> value."""
        return {}

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """Figures of the whole run, drawn after its last round.

        Args:
            memories: client -> the client's memory for this part, in the order of clients; empty
                memories are left out.
            about: the dataset's class names and input shape.
        """
        return {}


def _copied(value: Any, device: torch.device) -> Any:
    """A copy of a value, in which all tensors are on ``device``."""
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, list):
        return [_copied(each, device) for each in value]
    if isinstance(value, dict):
        return {key: _copied(each, device) for key, each in value.items()}
    return value


def trained_samples(parts: Iterable[Part], num_samples: int) -> int:
    """The number of its ``num_samples`` on which a client trains with all these parts."""
    for part in parts:
        num_samples = part.trained_samples(num_samples)
    return num_samples


def has_server_half(part: Part) -> bool:
    """Whether the part overrides a hook of the server half, or keeps a state there."""
    overrides = (getattr(type(part), hook) is not getattr(Part, hook) for hook in _SERVER_HALF)
    return bool(part.saved) or any(overrides)


def hooks_beside_merge(part: Part) -> list[str]:
    """The part's hooks that may take more from clients than the aggregator's result.

    A hook is left out if the class that defines it has ``takes_only_merged``.
    """
    return [hook for hook in _TAKES_FROM_CLIENTS if not _takes_only_merged(type(part), hook)]


def _takes_only_merged(kind: type[Part], hook: str) -> bool:
    """Whether the class that defines the hook of ``kind`` states ``takes_only_merged`` itself."""
    owner = next((each for each in kind.__mro__ if hook in vars(each)), Part)
    return bool(vars(owner).get("takes_only_merged", False))
