"""The states of one client in a folder on its node's disk."""

from pathlib import Path

import torch

from fedexp.state.atomic import write_durably
from fedexp.state.client_state import ClientState, restored_state
from fedexp.state.files import dump, load

_NAME = "round_{:06d}.pt"


class NodeStates:
    """Stores a client's state after each of its latest rounds.

    Each request names the last round whose update the server received. The client goes on from its
    own state after that round. So a repeated round starts from the same state, and a round whose
    update got lost has no effect. An old state is deleted when no checkpoint of the server can need
    it any more.

    Args:
        folder: the folder for the states of one client in one run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, base: int, device: torch.device) -> ClientState | None:
        """The state after round ``base``, empty for round 0; None if it is missing."""
        if not base:
            return ClientState()
        path = self._folder / _NAME.format(base)
        return restored_state(load(path, device), path) if path.is_file() else None

    def save(self, round: int, state: ClientState, base: int, saved: int) -> None:
        """Write the state after ``round`` durably, and delete states that are not needed again.

        Args:
            round: the round that was just trained.
            state: the client's state after ``round``.
            base: the earlier round from whose state ``round`` started. States of all rounds after
                ``base``, except ``round``, belong to lost updates and are deleted.
            saved: the round of the server's oldest checkpoint. Of the states up to this round, only
                the newest is kept.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        write_durably(self._folder / _NAME.format(round), dump(vars(state)))
        rounds = self._rounds()
        oldest = max((each for each in rounds if each <= min(saved, base)), default=0)
        for each in rounds:
            if each != round and (each < oldest or each > base):
                (self._folder / _NAME.format(each)).unlink()

    def _rounds(self) -> list[int]:
        paths = self._folder.glob(_NAME.format(0).replace("000000", "*"))
        return [int(path.stem.removeprefix("round_")) for path in paths]
