"""A sampler that draws random cohorts."""

from typing import Literal

from fedexp.config.compatibility.traits import DRAWS_BY_SIZE, TAKES_STALE, UNIFORM_COHORTS
from fedexp.samplers.base import Sampler


class Random(Sampler):
    """Draws K different clients at random.

    Args:
        weighting: with ``uniform`` all clients have the same odds; with ``samples`` the odds are
            proportional to the number of samples n_k.
    """

    takes_only_merged = True
    takes_tokens = True

    def __init__(self, weighting: Literal["uniform", "samples"]) -> None:
        self.weighting = weighting
        odds = UNIFORM_COHORTS if weighting == "uniform" else DRAWS_BY_SIZE
        self.traits = frozenset({odds, TAKES_STALE})

    def select(self, round: int) -> list[int]:
        """Draw a cohort of K clients without replacement; seeded by the seed and the round."""
        odds = None if self.weighting == "uniform" else self.sizes / self.sizes.sum()
        draw = self.generator("sampler", round)
        cohort = draw.choice(self.eligible, self.cohort_size, replace=False, p=odds)
        return sorted(cohort.tolist())
