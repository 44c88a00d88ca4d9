"""Compressed downloads: the server sends differences from the model that all clients have."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedexp.compression.compressor import Compressor
from fedexp.compression.differences import Differences
from fedexp.core.messages import Message, Tensors, Update, count_bytes
from fedexp.core.part import Memory, Part
from fedexp.core.server import Server

LOGGER = logging.getLogger(__name__)


class CompressingServer(Server):
    """A server that broadcasts compressed differences.

    In round t, clients train from a model h^t that all of them can compute. w^t are the server's
    weights and C is the compressor: h^1 = w^1, and h^t = h^(t-1) + C(w^t - h^(t-1)). A client's
    trained weights w_k count as w^t + (w_k - h^t). So the server's weights keep the part of w^t
    that clients do not have yet. This is error feedback: w^t - h^t is the memory. Without error
    feedback the server continues from h^t in place of w^t, unless the round is skipped.

    With FedAvg and error feedback this is the server's side of DoubleSqueeze (Tang et al., ICML
    2019): the server compresses the mean of the clients' steps plus its memory, and what is not
    sent is its next memory. This rule was compared with the released code of 1-bit Adam, a later
    method with the same first author, and not with the paper's text.

    A client downloads the encoded differences of all rounds since its last download. If h^t is
    smaller, or this is the client's first download, the client downloads h^t instead. A tensor that
    is not compressed is downloaded only in its newest version. If the sum h^(t-1) + C(...) is not
    finite, because a difference was too large for the compressor's numbers, h^t = w^t, and all
    clients download it whole.

    Args:
        weights: the initial shared weights.
        parts: socket -> part, including the aggregator.
        compressor: encodes one tensor.
        names: names of the trained parameters.
        seed: seed of the run.
        clients: N, the number of clients.
    """

    def __init__(
        self,
        weights: Tensors,
        parts: Mapping[str, Part],
        compressor: Compressor,
        names: Collection[str],
        seed: int,
        clients: int,
    ) -> None:
        super().__init__(weights, parts)
        self._feedback = compressor.error_feedback
        self._differences = Differences(
            compressor, names, seed, "compression/download", feedback=False
        )
        self._held: Tensors = {}  # h^t
        self._lag: Tensors = {}  # w^t - h^t of the compressed weights
        self._skipped = weights  # the weights after this round if no update is accepted
        self._memory: Memory = {}
        self._encoded_bytes = 0  # bytes of the encoded differences of all rounds
        # [N] encoded bytes of all rounds up to each client's last download; -1: no download yet
        self._downloaded = torch.full((clients,), -1, dtype=torch.int64)

    def send(self, round: int) -> Message:
        """The message with h^t, the model that clients can compute; call this once in a round."""
        message = self.broadcast(round)
        self._skipped = self.weights
        self._held = self._following(round) if self._held else self.weights
        if not self._feedback:
            self.weights = self._held
        compressed = [n for n in self._held if self._differences.compresses(n, self._held)]
        self._lag = {name: self.weights[name] - self._held[name] for name in compressed}
        sized = partial(self._with_size, self._bytes_for_each())
        return replace(message, weights=self._held, readdress=sized)

    def _with_size(self, bytes_for_each: Tensor, message: Message, client: int) -> Message:
        """The message to this client, with the number of bytes of its weights."""
        own = self._readdress(message, client)
        return replace(own, weights_nbytes=int(bytes_for_each[client]))

    def _following(self, round: int) -> Tensors:
        """h^t from h^(t-1) and w^t; w^t itself if the decoded differences are not finite."""
        encoded = self._differences.encode(self.weights, self._held, self._memory, round)
        self._encoded_bytes += count_bytes(*encoded.values()) - self._plain_bytes()
        held = self._differences.decode(encoded, self._held, round)
        if torch.stack([each.isfinite().all() for each in held.values()]).all():
            return held
        LOGGER.warning(
            "round %d: compression@download: a difference is too large to be encoded; all clients "
            "download the whole model",
            round,
        )
        self._memory, self._downloaded = {}, torch.full_like(self._downloaded, -1)
        return self.weights

    def sent_to(self, clients: Collection[int]) -> None:
        """Record that these clients have downloaded the message of the round."""
        self._downloaded = self._downloaded.clone()  # the message still uses the old tensor
        self._downloaded[list(clients)] = self._encoded_bytes

    def add(self, update: Update) -> None:
        """Aggregate one update, as if its client had started from the server's own weights w^t."""
        added = {name: update.weights[name] + lag for name, lag in self._lag.items()}
        super().add(replace(update, weights=update.weights | added))

    def step(self, accepts: Callable[[Tensors], bool] = lambda weights: True) -> int:
        """``Server.step``; in a skipped or refused round the weights stay w^t, not h^t."""
        count = super().step(accepts)
        if self.idle_rounds:
            self.weights = self._skipped
        return count

    def state_dict(self) -> dict[str, Any]:
        """The state of the server, and the state of the downloads."""
        download = {
            "held": self._held,
            "memory": self._memory,
            "encoded_bytes": self._encoded_bytes,
            "downloaded": self._downloaded,
        }
        return super().state_dict() | {"download": download}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        super().load_state_dict(state)
        saved, weights = state["download"], self.weights
        self._held = {name: value.to(weights[name].device) for name, value in saved["held"].items()}
        self._memory = {
            path: value.to(weights[path.rpartition("/")[0]].device)
            for path, value in saved["memory"].items()
        }
        self._encoded_bytes, self._downloaded = saved["encoded_bytes"], saved["downloaded"].cpu()

    def _plain_bytes(self) -> int:
        """Bytes of the weights that are sent uncompressed."""
        held, compresses = self._held, self._differences.compresses
        return count_bytes({n: w for n, w in held.items() if not compresses(n, held)})

    def _bytes_for_each(self) -> Tensor:
        """The bytes [N] that each of the N clients would now download for the weights."""
        whole = count_bytes(self._held)
        missed = self._encoded_bytes - self._downloaded + self._plain_bytes()
        return torch.where(self._downloaded < 0, whole, missed.clamp(max=whole))
