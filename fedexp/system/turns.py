"""The record of what one client's device did in one round."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["asked", "sent", "refused", "dropped", "late", "surplus", "started", "buffered"]


@dataclass(frozen=True)
class TurnRecord:
    """One row of ``turns.csv``, without the round.

    A client that answers the sampler and then trains has two rows. It downloads the message once,
    for its answer; its second row has 0 ``download_bytes``.

    Attributes:
        client: the client's number.
        samples: the number of training samples computed, summed over all ``steps``.
        steps: gradient steps of local training; see ``Update.steps``.
        download_bytes: bytes of the message.
        upload_bytes: bytes of the update or the answer; 0 if none arrived.
        outcome: ``asked``: the client answered the sampler. Each other outcome tells how the turn
            of a client of the cohort ended: ``sent``: its update was accepted; ``refused``: its
            update was not finite; ``dropped``: it dropped out after the download, before training;
            ``late``: it missed the deadline; ``surplus``: enough other clients were faster. The row
            of a ``late`` or ``surplus`` client has the samples and steps that the client was given.
            If updates may arrive in a later round, a turn has two rows. The row ``started`` has the
            download, in the round in which the turn starts. The row ``buffered`` or ``refused`` has
            the rest, in the round in which the server takes the update. The length of such a round
            does not follow from its rows.
    """

    client: int
    samples: int
    steps: int
    download_bytes: int
    upload_bytes: int
    outcome: Outcome
