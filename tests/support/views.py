"""The view of a federation that its measures get after a round."""

from fedexp.core.messages import Message
from fedexp.measures.after_round import AfterRound
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.federation import Federation
from fedexp.system.exchange import Exchange


def after_round(federation: Federation, round: int, message: Message | None = None) -> AfterRound:
    """The view after ``round``, the last one; ``message`` is by default the server's."""
    message = message or federation.server.broadcast(round)
    server, ranks = federation.server, federation.ranks
    return AfterRound(
        message, round, Exchange(message), (), server, ranks, Scoring(federation.engine)
    )
