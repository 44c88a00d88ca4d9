"""The cost of a round: bytes sent, seconds, and memory of the server."""

from types import MappingProxyType

from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured


class Cost(Measure):
    """Bytes, seconds and the server's memory.

    ``cost/download_bytes`` and ``cost/upload_bytes`` count all tensors that the server exchanges
    with clients; a client that answers the sampler and then trains downloads the message once.
    ``time/select_s``, ``time/probe_s`` (if the sampler asks clients), ``time/train_s`` and
    ``time/server_s`` add up to the time of the round without evaluation.
    ``cost/server_memory_bytes`` counts the tensors that the server keeps between rounds.
    """

    directions = MappingProxyType({"cost/*": "lower", "time/*": "lower"})

    def __call__(self, after: AfterRound) -> Measured:
        """``cost/*`` and ``time/*`` of the round."""
        exchange = after.exchange
        seconds = {f"time/{step}_s": value for step, value in exchange.seconds.items()}
        return Measured(
            {
                "cost/download_bytes": exchange.download_bytes,
                "cost/upload_bytes": exchange.upload_bytes,
                "cost/server_memory_bytes": after.server.state_nbytes,
                **seconds,
            }
        )
