"""The simulated time of one round: a pure function of the turns and the devices."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedexp.errors import InputError
from fedexp.system.devices import Devices
from fedexp.system.turns import TurnRecord


@dataclass(frozen=True)
class RoundTime:
    """The simulated time of one round.

    Attributes:
        seconds: the length of the round.
        end: when the round ended, in seconds since the start of the run.
        idle_share: the share of the round in which a client was waiting, as a mean over the clients
            whose update arrived; None if no update arrived or the round took no time.
        of_clients: client -> seconds of its turn, for each client of the cohort that did not drop
            out. A late or surplus client has the seconds that its turn would have taken with an
            upload as large as the largest that arrived, or as ``expected_upload`` if none arrived.
    """

    seconds: float
    end: float
    idle_share: float | None
    of_clients: Mapping[int, float]


def round_time(
    turns: Sequence[TurnRecord],
    devices: Devices,
    deadline: float | None = None,
    start: float = 0.0,
    expected_upload: int = 0,
) -> RoundTime:
    """The time of a round with these turns.

    If the sampler asks clients, they answer in parallel; the slowest answer ends this first phase.
    Then the clients of the cohort train in parallel. The server waits for every update. It also
    waits for the notice of each client that drops out, which arrives two latencies and a download
    after the start. If a client is late, the server waits until the deadline, and it waits for no
    notice after the deadline. If clients are surplus, the server waits only for the updates that it
    takes. The time for computing an answer is not counted.

    Args:
        turns: all turns of the round, in any order.
        devices: the devices of all clients.
        deadline: seconds after the start of training at which the round ended at the latest.
        start: when the round started, in seconds since the start of the run.
        expected_upload: bytes of an update, as the server expected them before the training.

    Raises:
        InputError: the turns are of an asynchronous run.
    """
    if any(turn.outcome in ("started", "buffered") for turn in turns):
        raise InputError(
            "turns: rows with the outcome started or buffered are of an asynchronous run "
            "(coordination=buffered), whose times do not follow from the turns of one round"
        )
    pairs = list(zip(turns, devices.seconds_of(turns), strict=True))
    asked = {turn.client: seconds for turn, seconds in pairs if turn.outcome == "asked"}
    arrived = {turn.client: s for turn, s in pairs if turn.outcome in ("sent", "refused")}
    waited = [0.0, *arrived.values()]
    outcomes = {turn.outcome for turn in turns}
    if "surplus" not in outcomes:
        latest = math.inf if deadline is None else deadline
        waited += [min(seconds, latest) for turn, seconds in pairs if turn.outcome == "dropped"]
    if "late" in outcomes and deadline is not None:
        waited.append(deadline)
    length = max(asked.values(), default=0.0) + max(waited)
    idle = None
    if arrived and length > 0:
        busy = sum(seconds + asked.get(client, 0.0) for client, seconds in arrived.items())
        idle = 1 - busy / len(arrived) / length
    uploads = (turn.upload_bytes for turn in turns if turn.outcome != "asked")
    upload = max(uploads, default=0) or expected_upload
    left_out = [
        replace(turn, upload_bytes=upload) for turn in turns if turn.outcome in ("late", "surplus")
    ]
    unmerged = zip((turn.client for turn in left_out), devices.seconds_of(left_out), strict=True)
    return RoundTime(length, start + length, idle, arrived | dict(unmerged))
