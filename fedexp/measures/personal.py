"""Personal models: how well each client's own model serves that client."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from fedexp.measures.angles import mean_over_clients
from fedexp.measures.client_scores import PersonalMeasure
from fedexp.measures.measure import AfterRound, Better, Measured, Outline
from fedexp.measures.scoring.accuracies import personal_metrics, standard_errors
from fedexp.measures.scoring.accuracies import weighted_accuracy as weighted_accuracy


class Personal(PersonalMeasure):
    """Accuracies of the personal models: mean, standard deviation and worst decile over clients.

    If the method tunes personal models from the best global model, the personal models are scored
    after the last round only, with tuning and without (``personal/accuracy_*_untuned``).
    """

    directions: Mapping[str, Better] = MappingProxyType(
        {"personal/st*": "lower", "personal/*": "higher"}
    )

    def check(self, outline: Outline) -> None:
        """Set the headlines according to the kinds of accuracy."""
        super().check(outline)
        found: dict[str, Better] = {
            f"personal/accuracy_{kind}": "higher" for kind in self.kinds if kind != "angles"
        }
        if "local" in self.kinds:
            found |= {"personal/worst_decile": "higher", "personal/std": "lower"}
        if outline.validates:
            found["validation/personal_accuracy"] = "higher"
        self.headlines: Mapping[str, Better] = found

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics ``personal/*``, ``geometry/*`` and ``validation/personal_accuracy``."""
        metrics = self._metrics(after)
        if self.last_only and after.tuned_from is not after.message:
            untuned = self._metrics(after, tune=False)
            metrics |= {f"{name}_untuned": v for name, v in untuned.items() if "accuracy" in name}
        return Measured(metrics)

    def _metrics(self, after: AfterRound, tune: bool = True) -> dict[str, float]:
        found = self.scores(after, tune)
        metrics = personal_metrics([each.accuracies for each in found.values()])
        metrics |= mean_over_clients([each.others for each in found.values()])
        if self.samples.is_estimate and found:
            correct = torch.stack([each.correct for each in found.values()])
            counts = after.data.classes_of(torch.tensor(list(found)))
            metrics |= standard_errors(correct, self.samples, counts)
        return metrics
