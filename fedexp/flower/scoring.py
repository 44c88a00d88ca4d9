"""Scores of the personal models that clients keep on their nodes."""

from collections.abc import Iterator
from typing import cast

import torch
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedexp.core.messages import Message
from fedexp.flower.engine import NodesEngine
from fedexp.flower.refused import RefusedError
from fedexp.flower.reply import check_reply
from fedexp.flower.request import HEAD, pack_request
from fedexp.measures.client_scores import score_clients
from fedexp.measures.scoring.accuracies import ClientScores
from fedexp.measures.scoring.scored_samples import ScoredSamples
from fedexp.measures.scoring.scoring import Scoring


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
            client: pack_request(
                engine.request(client, message, addressed=tunes),
                tune=tune,
                kinds=list(samples.metrics),
                own=samples.own,
            )
            for client in engine.clients_with_model(message.round)
        }
        purpose = f"personal models after round {message.round}"
        for client, content in engine.nodes.ask(requests, "evaluate", purpose):
            try:
                yield from ((client, each) for each in read_scores(content, engine.app))
            except RefusedError as error:
                engine.nodes.warn(purpose, client, f"{error}; its scores are left out")


def scores_at_node(
    scoring: Scoring, client: int, message: Message, content: RecordDict
) -> list[ClientScores]:
    """The scores of this client's personal model, a list of one; empty if it keeps no model."""
    head, resources = content.config_records[HEAD], scoring.resources
    if client not in resources.store.clients_with_model:
        return []
    samples = ScoredSamples(resources.data, head["kinds"], None, bool(head["own"]))
    scored = scoring.score_personal(message, bool(head["tune"]), samples, [client])
    return [scores for _, scores in score_clients(resources.data.clients, samples, scored)]


def pack_scores(app: str, found: list[ClientScores]) -> RecordDict:
    """Pack the scores of a client's personal model into records; ``found`` may be empty."""
    records = RecordDict({HEAD: ConfigRecord({"app": app, "scored": bool(found)})})
    for scores in found:
        records["accuracies"] = MetricRecord(dict(scores.accuracies))
        records["others"] = MetricRecord(dict(scores.others))
    return records


def read_scores(content: RecordDict, app: str) -> list[ClientScores]:
    """Inverse of ``pack_scores``, but with empty ``correct``.

    Raises RefusedError if the node refused the request, runs another app or sent no scores.
    """
    check_reply(content, app)
    if not content.config_records[HEAD].get("scored"):
        return []
    accuracies, others = (content.metric_records.get(n) for n in ("accuracies", "others"))
    if accuracies is None or others is None:
        raise RefusedError("sent no scores")
    return [ClientScores(dict(accuracies), dict(others), torch.zeros(0, dtype=torch.bool))]
