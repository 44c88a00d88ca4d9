"""The state of one client."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from fedexp.core.messages import Tensors
from fedexp.core.part import Memory
from fedexp.errors import InputError


@dataclass
class ClientState:
    """The tensors that one client keeps between rounds.

    Attributes:
        memories: part -> the part's memory for this client; with ``local.keep_optimizer`` also the
            state of the client's optimizers.
        private: the weights that the client does not share; empty until the client has trained.
        separate_model: the weights of the separate personal model, if the method trains one after
            the shared model.
        personal_model: all weights of the personal model; empty if the model is not kept. If the
            method trains a separate model, the separate model is the personal model. Otherwise the
            personal model is the latest local model, in which the weights from
            ``Personalization.personal_weights`` replace the local ones.
    """

    memories: dict[str, Memory] = field(default_factory=dict)
    private: Tensors = field(default_factory=dict)
    separate_model: Tensors = field(default_factory=dict)
    personal_model: Tensors = field(default_factory=dict)

    def memory(self, part: str) -> Memory:
        """This client's memory for this part; changes to the returned dictionary are kept."""
        return self.memories.setdefault(part, {})

    def copy(self) -> "ClientState":
        """A new state object that holds the same tensors."""
        memories = {part: dict(memory) for part, memory in self.memories.items()}
        return ClientState(
            memories, dict(self.private), dict(self.separate_model), dict(self.personal_model)
        )

    @property
    def method_nbytes(self) -> int:
        """Bytes that the method needs at the client: memories, private weights, a separate model.

        ``personal_model`` does not count, because only evaluation uses it. A tensor that is stored
        under several names counts once.
        """
        groups = (*self.memories.values(), self.private, self.separate_model)
        tensors = (tensor for group in groups for tensor in group.values())
        sizes = {(t.data_ptr(), t.shape, t.dtype): t.numel() * t.element_size() for t in tensors}
        return sum(sizes.values())


def restored_state(saved: Any, path: Path) -> ClientState:
    """The state whose fields the file ``path`` holds. Raises InputError if it holds others."""
    names = {each.name for each in fields(ClientState)}
    if isinstance(saved, dict) and saved.keys() <= names:
        memories = saved.get("memories", {})
        others = [held for name, held in saved.items() if name != "memories"]
        if isinstance(memories, dict) and all(map(_is_memory, [*memories.values(), *others])):
            return ClientState(**saved)
    raise InputError(f"{path}: should hold a client's state: {', '.join(sorted(names))}")


def _is_memory(held: Any) -> bool:
    return isinstance(held, dict) and all(isinstance(each, Tensor) for each in held.values())
