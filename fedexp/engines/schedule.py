"""Which clients of a cohort train, and how much, if a deadline or over-selection is set."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedexp.core.messages import Message, count_bytes
from fedexp.core.part import trained_samples
from fedexp.data.federated import ClientData
from fedexp.engines.resources import Resources
from fedexp.faults.views import Straggler
from fedexp.system.turns import Outcome, TurnRecord


class Work(NamedTuple):
    """The work of one turn, known before it.

    Attributes:
        steps: gradient steps; see ``Update.steps``.
        samples: training samples in the batches of these steps.
    """

    steps: int
    samples: int


class Schedule:
    """Plans the turns of a round from the clients' devices.

    Before training, a client's steps and samples are known, so its simulated time is known except
    for the upload. If the client would miss the deadline even without an upload, it is not trained.
    Otherwise it trains, and it is late if its update turns out to be too large. Every late client
    keeps its state from the start of the round.

    Over-selection and partial work need the size of the upload before training. They assume the
    size of the last round's largest update, or before any update the size of the message's weights.

    Args:
        resources: the objects that every engine works with.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._round = 0
        self._shares: dict[int, float] = {}

    def data(self, round: int, data: ClientData) -> ClientData:
        """The client's data in this round; with partial work, a view of it with fewer steps."""
        if round != self._round or data.client not in self._shares:
            return data
        return _with_share(data, self._shares[data.client])

    def samples(self, client: int, round: int) -> int:
        """Training samples in the batches of the client's turn in a round; ignores a deadline."""
        return self._work(self._trained_data(client, round), round).samples

    def plan(
        self, clients: Sequence[int], message: Message, downloads: Mapping[int, int]
    ) -> tuple[list[int], list[TurnRecord]]:
        """Decide which clients of a cohort train in a round with a deadline or over-selection.

        Every process makes the same plan.

        Args:
            clients: the cohort without clients that drop out.
            message: the message of the round.
            downloads: client -> bytes that the client downloads before its training.

        Returns:
            The clients that train, in the given order, and a record for each client that does not
            train, because its turn is late or surplus.
        """
        system, round = self._resources.system, message.round
        upload = system.upload_bytes or count_bytes(message.weights)
        system.begin_turns(downloads, upload)
        self._round, self._shares = round, {}
        works = {client: self._work_in_time(client, round, upload) for client in clients}
        seconds = {c: system.planned_seconds(c, work.samples, upload) for c, work in works.items()}
        by_finish = sorted(works, key=lambda client: (seconds[client], client))
        surplus = set(by_finish[system.needed :]) if system.invited > system.needed else set()
        outcomes: dict[int, Outcome] = dict.fromkeys(surplus, "surplus")
        for client, work in works.items():
            if client not in surplus and system.is_late(client, work.samples, 0):
                outcomes[client] = "late"
        left_out = [
            TurnRecord(client, works[client].samples, works[client].steps, 0, 0, outcome)
            for client, outcome in outcomes.items()
        ]
        return [client for client in clients if client not in outcomes], left_out

    def _work_in_time(self, client: int, round: int, upload: int) -> Work:
        """The steps and samples of this client's turn.

        With partial work a client that would be late does only as much as the deadline allows, at
        least one step. This method then stores the client's share of the whole work in ``_shares``.
        """
        system, data = self._resources.system, self._trained_data(client, round)
        work = self._work(data, round)
        if not system.takes_partial or not system.is_late(client, work.samples, upload):
            return work
        whole, most = self._units(data, round)

        def limited(units: int) -> ClientData:
            return _with_share(data, (units + 0.5) / whole)

        def is_late(units: int) -> bool:
            return system.is_late(client, self._work(limited(units), round).samples, upload)

        in_time = 1 + bisect_left(range(2, most + 1), True, key=is_late)
        self._shares[client] = (in_time + 0.5) / whole
        return self._work(limited(in_time), round)

    def _trained_data(self, client: int, round: int) -> ClientData:
        """As many of the client's samples as it trains on, which may be others; with its faults."""
        data = self._resources.faults.data(round, self._resources.data.clients[client])
        count = trained_samples(self._resources.parts.values(), data.num_samples)
        return replace(data, train_index=data.train_index[:count])

    def _work(self, data: ClientData, round: int) -> Work:
        resources = self._resources
        batches = resources.local_batches(data, round)
        phases = resources.personalization.phases(resources.local_epochs(data, round))
        steps = [batches.steps_in(phase.epochs) for phase in phases]
        return Work(sum(steps), sum(map(batches.samples_in, steps)))

    def _units(self, data: ClientData, round: int) -> tuple[int, int]:
        """A slow client's work in units: (work without faults, work with the faults in ``data``).

        With ``local.steps`` a unit is a step of the round; otherwise it is a step of an epoch.
        """
        resources, local = self._resources, self._resources.local
        if local.steps is not None:
            return local.steps, data.steps(local.steps)
        whole = len(resources.last_batch.lengths(data.num_samples, local.batch_size))
        return whole, len(resources.local_batches(data, round))


def _with_share(data: ClientData, share: float) -> ClientData:
    """A view of ``data`` with this share of the client's steps without injected faults.

    A share above 1 counts as 1.
    """
    share = min(share, 1.0)
    if isinstance(data, Straggler):
        return replace(data, work=share)
    return Straggler(**vars(data), work=share)
