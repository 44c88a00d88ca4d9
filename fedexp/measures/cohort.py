"""Personal accuracies of a round's cohort alone."""

from collections.abc import Mapping

import numpy as np

from fedexp.measures.after_round import AfterRound
from fedexp.measures.client_scores import PersonalMeasure, client_scores
from fedexp.measures.measure import Better, Measured, Outline


class Cohort(PersonalMeasure):
    """``cohort/accuracy_<kind>``: mean personal accuracy of the clients that the round trained.

    FedNH's released code (Dai et al., AAAI 2023) logs this mean in place of the mean over all
    clients. The means differ, because the cohort's models come from this round.
    """

    overlaps = True

    def check(self, outline: Outline) -> None:
        """Set the headlines."""
        super().check(outline)
        higher: Better = "higher"
        self.headlines: Mapping[str, Better] = {
            f"cohort/accuracy_{kind}": higher for kind in self.kinds if kind != "angles"
        }

    def __call__(self, after: AfterRound) -> Measured:
        """The mean of each kind of accuracy; absent if no client of the cohort has this kind."""
        scores = client_scores(after, self.samples)
        trained = {each.client for each in after.exchange.receipts}
        of_cohort = [score.accuracies for client, score in scores.items() if client in trained]
        metrics: dict[str, float] = {}
        for kind in self.kinds:
            if found := [each[kind] for each in of_cohort if kind in each]:
                metrics[f"cohort/accuracy_{kind}"] = float(np.mean(found))
        return Measured(metrics)
