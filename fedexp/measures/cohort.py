"""The mean accuracy of the personal models of the clients whose updates a round accepted."""

from collections.abc import Mapping

import numpy as np

from fedexp.errors import InputError
from fedexp.measures.client_scores import PersonalMeasure
from fedexp.measures.measure import AfterRound, Better, Measured, Outline


class Cohort(PersonalMeasure):
    """``cohort/accuracy_<kind>``: mean personal accuracy of the clients that trained this round.

    FedNH's released code (Dai et al., AAAI 2023) logs this mean instead of the mean over all
    clients. The two means differ, because the cohort's models have just been trained, while other
    clients' models are from earlier rounds.
    """

    def check(self, outline: Outline) -> None:
        """Declare the mean of each kind of accuracy as a headline.

        Raises:
            InputError: only the models of the newest cohort are kept, although updates of earlier
                cohorts may arrive.
        """
        super().check(outline)
        if outline.is_asynchronous and self.remembers == "cohort":
            raise InputError(
                "measure.cohort.of=cohort: an update may come from a client of an earlier cohort, "
                "whose model is then not kept; should be all"
            )
        higher: Better = "higher"
        self.headlines: Mapping[str, Better] = {
            f"cohort/accuracy_{kind}": higher for kind in self.kinds if kind != "angles"
        }

    def __call__(self, after: AfterRound) -> Measured:
        """The mean of each kind of accuracy that at least one client of the cohort has."""
        scores = self.scores(after)
        trained = {each.client for each in after.exchange.receipts}
        of_cohort = [score.accuracies for client, score in scores.items() if client in trained]
        metrics: dict[str, float] = {}
        for kind in self.kinds:
            if found := [each[kind] for each in of_cohort if kind in each]:
                metrics[f"cohort/accuracy_{kind}"] = float(np.mean(found))
        return Measured(metrics)
