"""Scores of the personal models that clients keep on their nodes."""

from collections.abc import Iterator
from typing import cast

import torch

from fedexp.core.messages import Message
from fedexp.deployment.flower.engine import NodesEngine
from fedexp.deployment.flower.letters import ScoreRequest, Scores
from fedexp.measures.client_scores import score_clients
from fedexp.measures.scoring.accuracies import ClientScores
from fedexp.measures.scoring.scored_samples import ScoredSamples
from fedexp.measures.scoring.scoring import Scoring

_NONE = torch.zeros(0, dtype=torch.bool)
"""Which samples were classified correctly: the nodes do not tell."""


class NodesScoring(Scoring):
    """Asks the nodes for the scores of personal models; the models stay on the nodes.

    The nodes answer with accuracies and other metrics of their own test split.
    """

    def client_scores(
        self, message: Message, samples: ScoredSamples, tune: bool
    ) -> Iterator[tuple[int, ClientScores]]:
        """Yield (client, scores) for each client that keeps a model and has a node."""
        engine = cast(NodesEngine, self.engine)
        tunes = bool(tune and self.resources.personalization.tuning())
        requests = {
            client: ScoreRequest(
                **vars(engine.request(client, message, addressed=tunes)),
                tune=tune,
                kinds=list(samples.metrics),
                own=samples.own,
            )
            for client in engine.clients_with_model()
        }
        purpose = f"personal models after round {message.round}"
        left_out = "; its scores are left out"
        for client, found in engine.nodes.ask(requests, "evaluate", purpose, Scores, left_out):
            if found.scored:
                yield client, ClientScores(found.accuracies, found.others, _NONE)


def scores_at_node(scoring: Scoring, client: int, request: ScoreRequest) -> Scores:
    """The scores of this client's personal model."""
    data = scoring.resources.data
    if client not in scoring.resources.store.clients_with_model:
        return Scores(False, {}, {})
    samples = ScoredSamples(data, request.kinds, None, request.own)
    scored = scoring.score_personal(request.message, request.tune, samples, [client])
    ((_, found),) = score_clients(data.clients, samples, scored)
    return Scores(True, dict(found.accuracies), dict(found.others))
