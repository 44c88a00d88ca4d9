"""The cost of a round: bytes sent, seconds, and memory of the server."""

from types import MappingProxyType

from fedexp.measures.measure import AfterRound, Measure, Measured


class Cost(Measure):
    """The bytes that a round sends, its seconds, and the memory of the server.

    ``cost/download_bytes`` and ``cost/upload_bytes`` count all tensors that the server exchanges
    with clients. If a client answers the sampler and then trains, it downloads the message only
    once. The sum of four metrics is the round's time, evaluation not counted: ``time/select_s`` for
    the choice of the cohort, ``time/probe_s`` for answers to the sampler (if it asks clients),
    ``time/train_s`` for local training, and ``time/server_s`` for the rest.
    ``cost/server_memory_bytes`` counts the tensors that the server keeps between rounds.
    """

    directions = MappingProxyType({"cost/*": "lower", "time/*": "lower"})

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics ``cost/*`` and ``time/*`` of the round."""
        exchange = after.exchange
        seconds = {f"time/{step}_s": value for step, value in exchange.seconds.items()}
        costs = {
            "cost/download_bytes": exchange.download_bytes,
            "cost/upload_bytes": exchange.upload_bytes,
            "cost/server_memory_bytes": after.server.state_nbytes,
        }
        return Measured(costs | seconds)
