"""What clients keep for themselves between rounds."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

from fedexp.messages import Tensors
from fedexp.parts import Memory

Remember = Literal["all", "cohort", "off"]


class ClientStore:
    """The clients' own drawers: each part's memory, private weights, latest local model.

    Args:
        remember: whose latest local model is kept for personal evaluation: everybody's who ever
            trained (N models at most), only this round's cohort's, or nobody's.
    """

    def __init__(self, remember: Remember) -> None:
        self._remember = remember
        self._memories: dict[int, dict[str, Memory]] = defaultdict(lambda: defaultdict(dict))
        self._private: dict[int, Tensors] = {}
        self._models: dict[int, Tensors] = {}

    def begin_round(self) -> None:
        """A new cohort comes in."""
        if self._remember == "cohort":
            self._models.clear()

    def memory(self, client: int, part: str) -> Memory:
        """This client's persistent tensors for this part; changes to the dictionary are kept."""
        return self._memories[client][part]

    def memories(self, part: str) -> Mapping[int, Memory]:
        """Client -> its memory of this part, of every client that has one."""
        return {
            client: drawer[part] for client, drawer in self._memories.items() if drawer.get(part)
        }

    def private(self, client: int) -> Tensors | None:
        """The weights that this client never shares, once it has trained."""
        return self._private.get(client)

    def model(self, client: int) -> Tensors:
        """The client's latest local model, every weight of it."""
        return self._models[client]

    @property
    def remembered(self) -> list[int]:
        """The clients whose latest local model is known, in order."""
        return sorted(self._models)

    def keep(self, client: int, model: Tensors, private: Tensors) -> None:
        """Take in the trained model and what of it is private; neither may change afterwards."""
        if private:
            self._private[client] = private
        if self._remember != "off":
            self._models[client] = model
