"""Power-of-choice (Cho et al., AISTATS 2022): cohorts on which the global model's loss is large."""

from collections.abc import Mapping
from math import isnan

import torch
from pydantic import PositiveInt

from fedexp.config.compatibility.traits import DRAWS_BY_SIZE
from fedexp.contract import Client, Setting, Tensors
from fedexp.core.training_loss import training_loss
from fedexp.errors import InputError
from fedexp.samplers.base import Sampler


class PowerOfChoice(Sampler):
    """Draws d candidates at random and chooses the K candidates with the largest loss.

    The odds of client k to become a candidate are proportional to its number n_k of samples. The
    loss is the mean cross-entropy of the global model over all training data of a candidate, in
    eval mode. This is the paper's strategy $pi_(pow-d)$. With $d = N$ the cohort always has the
    largest losses of all clients. Among candidates with equal losses, the client with the lowest
    number is chosen (in the paper a random client). A client whose loss is NaN comes last. The
    paper averages the cohort uniformly (``aggregator=uniform``).

    Args:
        candidates: d, at least K. None means d = 2 K. With ``system.invite`` K is the number of
            invited clients. If fewer than d clients can be chosen, all of them are candidates.
    """

    takes_tokens = True
    traits = frozenset({DRAWS_BY_SIZE})

    def __init__(self, candidates: PositiveInt | None) -> None:
        self.wanted = candidates
        self.losses: dict[int, float] = {}

    def setup(self, setting: Setting) -> None:
        """Find d, the number of candidates. Raises InputError if d is below the cohort size K."""
        super().setup(setting)
        cohort = setting.clients_per_round
        wanted = 2 * cohort if self.wanted is None else self.wanted
        if wanted < cohort:
            raise InputError(
                f"sampler.candidates={wanted}: must be at least {cohort}, the number of clients "
                "that are chosen in a round (clients.per_round, or system.invite if it is set)"
            )
        self.most_asked = wanted

    def candidates(self, round: int) -> list[int]:
        """Draw the d candidates without replacement. The draw depends on the seed and the round."""
        odds = self.sizes / self.sizes.sum()
        generator = self.generator("sampler", round)
        asked = min(self.most_asked, len(self.eligible))
        drawn = generator.choice(self.eligible, asked, replace=False, p=odds)
        return sorted(drawn.tolist())

    def answer(self, client: Client) -> Tensors:
        """Compute the global model's ``loss`` on the client's data, a float32 scalar."""
        return {"loss": training_loss(client)}

    def observe(self, answers: Mapping[int, Tensors]) -> None:
        """Store the candidates' losses until the choice."""
        losses = [answer["loss"] for answer in answers.values()]
        values = torch.stack(losses).tolist() if losses else []
        self.losses = dict(zip(answers, values, strict=True))

    def select(self, round: int) -> list[int]:
        """Choose the candidates with the largest loss, as many as the cohort size K."""

        def rank(client: int) -> tuple[bool, float, int]:
            loss = self.losses[client]
            return isnan(loss), -loss, client

        return sorted(sorted(self.losses, key=rank)[: self.cohort_size])
