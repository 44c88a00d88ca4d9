"""What a run can measure and draw, given its data and its method."""

from fedexp.config.schema import Config
from fedexp.core.description import Description
from fedexp.errors import InputError
from fedexp.tracking.headlines import HEADLINES


def check_objective(config: Config) -> None:
    """Raise InputError if ``objective`` is no headline metric, or one that is not measured."""
    if config.objective not in HEADLINES:
        raise InputError(f"objective={config.objective}: should be one of {', '.join(HEADLINES)}")
    if config.objective.startswith("validation/") and not config.data.validation:
        raise InputError(f"objective={config.objective}: is not measured with data.validation=0")
    attack = config.evaluation.membership.attack
    needed = {"membership/loss": ("loss", "lira"), "membership/lira": ("lira",)}
    if attack not in needed.get(config.objective.partition("_")[0], (attack,)):
        raise InputError(
            f"evaluation.membership.attack={attack}: objective={config.objective} is then not "
            "measured"
        )
    of_personal = config.objective.startswith(("personal/", "validation/personal_"))
    if of_personal and config.evaluation.personal == "off":
        raise InputError(
            f"evaluation.personal=off: objective={config.objective} is then not measured; take "
            "evaluation.personal=all or cohort, or another objective, such as train/loss"
        )
    kind = config.objective.removeprefix("personal/accuracy_")
    if config.objective in ("personal/std", "personal/worst_decile"):
        kind = "local"
    measured = config.evaluation.personal_metrics
    if config.objective.startswith("personal/") and kind not in measured:
        raise InputError(
            f"evaluation.personal_metrics=[{','.join(measured)}]: objective={config.objective} is "
            f"then not measured; should contain {kind}"
        )


def check_test_classes(config: Config, about: Description) -> None:
    """Raise InputError if the config measures what this test split's classes do not allow."""
    few_shot, measured = "global/fewshot_accuracy", config.evaluation
    if not about.unseen_classes:
        if config.objective == few_shot:
            raise InputError(
                f"objective={few_shot}: is measured where test classes differ from training "
                f"classes (data=fc100), not on {about.name}"
            )
        return
    if measured.fewshot.ways > len(about.unseen_classes):
        raise InputError(
            f"evaluation.fewshot.ways={measured.fewshot.ways}: {about.name} has "
            f"{len(about.unseen_classes)} unseen classes"
        )
    still_measured = (few_shot, "train/loss", "validation/accuracy", "validation/loss")
    changes = {
        f"objective={few_shot}": config.objective not in still_measured,
        "evaluation.personal=off": measured.personal != "off",
        "evaluation.targets=[]": bool(measured.targets),
        "evaluation.membership.attack=off": measured.membership.attack != "off",
        "tracking.feature_global=false": config.tracking.feature_global,
        "tracking.loss_surface.rounds=[]": bool(config.tracking.loss_surface.rounds),
    }
    if needed := [override for override, wrong in changes.items() if wrong]:
        raise InputError(
            f"data: {about.name}'s test classes differ from its training classes, so that no "
            f"accuracy over its test split exists; set {' '.join(needed)}"
        )


def check_without_global(config: Config) -> None:
    """Raise InputError if the config measures a global model, which the method does not have."""
    objective, targets = config.objective, config.evaluation.targets
    attack, surface = config.evaluation.membership.attack, config.tracking.loss_surface.rounds
    features = config.tracking.feature_global
    of_global = objective.startswith(("global/", "membership/")) or objective in (
        "validation/accuracy",
        "validation/loss",
    )
    others = "personal/*, validation/personal_accuracy or train/loss"
    for key, value, needs_global, allowed in (
        ("objective", objective, of_global, others),
        ("evaluation.targets", targets, bool(targets), "[]"),
        ("evaluation.membership.attack", attack, attack != "off", "off"),
        ("tracking.feature_global", features, features, "false"),
        ("tracking.loss_surface.rounds", surface, bool(surface), "[]"),
    ):
        if needs_global:
            raise InputError(
                f"{key}={value}: there is no global model with this personalization; "
                f"should be {allowed}"
            )
