"""Keys of earlier versions and their replacements, for messages about unknown keys."""

_MOVED = {
    "evaluation.every": "measure.global.every",
    "evaluation.targets": "measure.global.targets",
    "evaluation.personal_every": "measure.personal.every",
    "evaluation.personal_metrics": "measure.personal.kinds",
    "evaluation.personal_samples": "measure.personal.samples",
    "evaluation.fewshot": "measure.fewshot",
    "evaluation.membership": "measure.membership",
    "tracking.heatmap_every": "measure.prototypes.every",
    "tracking.heatmap_zoom": "measure.prototypes.zoom",
    "tracking.feature_clients": "measure.features.clients",
    "tracking.feature_classes": "measure.features.classes",
    "tracking.projection": "measure.features.projection",
    "tracking.loss_surface": "measure.loss_surface",
}
"""Old key -> new key; an entry also renames all keys below the old key."""

_ADDED = ("features", "loss_surface", "membership")
"""Measures that are off by default; ``+measure=NAME`` adds their keys to the config."""

_OTHERS = {
    "evaluation.personal": "is now measure.personal.of; ~measure.personal switches it off",
    "evaluation.step_cosine": "is now +measure=step_cosine",
    "evaluation.overlap": "is gone; remove it, because it changed no result",
    "tracking.feature_global": "is now +measure=features",
    "engine.graph": "is gone; use engine.compile=reduce-overhead",
}
"""Old key or option -> its replacement in words."""


def renamed(key: str) -> str | None:
    """The end of the error line for an old key; None for any other key.

    ``renamed("evaluation.every")`` is ``is now measure.global.every``.
    """
    if key in _OTHERS:
        return _OTHERS[key]
    for old, new in _MOVED.items():
        if f"{key}.".startswith(f"{old}."):
            measure = new.split(".")[1]
            switch = f", with +measure={measure}" if measure in _ADDED else ""
            return f"is now {new}{key.removeprefix(old)}{switch}"
    return None
