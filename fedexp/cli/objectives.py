"""The objective of a search or of a contest, by which settings are chosen."""

from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedexp.errors import InputError


def check_validated(objective: str) -> None:
    """Raise InputError if settings would be chosen by the test split."""
    if not objective.startswith("validation/"):
        kind = "personal_accuracy" if objective.startswith("personal/") else "accuracy"
        raise InputError(
            f"objective={objective}: settings are chosen on validation data, not on the test "
            f"split; set objective=validation/{kind} data.validation=0.1"
        )


def is_lower_better(config: DictConfig) -> bool:
    """Whether lower values of the config's objective are better."""
    from fedexp.measures.configured import build_measures  # slow to import
    from fedexp.measures.panel import headlines

    nodes: Any = OmegaConf.to_container(config.measure, resolve=True)
    return headlines(build_measures(nodes)).get(config.objective) == "lower"


def check_of_contest(configs: Iterable[DictConfig]) -> None:
    """Raise InputError if a job's objective is of the test split, or lower values are better."""
    for objective, config in {str(each.objective): each for each in configs}.items():
        check_validated(objective)
        if is_lower_better(config):
            raise InputError(
                f"objective={objective}: a contest chooses the highest value, but lower ones are "
                "better here; take validation/accuracy"
            )
