"""The other options that an option needs; without them it is refused."""

_PRESETS = {
    "loss=mixture": "fedem",
    "gradient=mixture": "apfl",
    "personalization=apfl": "apfl",
    "gradient=moreau": "pfedme",
    "personalization=pfedme": "pfedme",
    "personalization=fedetf": "fedetf",
}
"""Option -> the algorithm whose other options it needs."""

NEED_BATCH_NORM = [
    f"{group}={n}" for group in ("algorithm", "personalization") for n in ("fedbn", "silobn")
]

PARTNERS: dict[str, list[str]] = {
    "head=identity": ["model.feature_dim=10"],
    "aggregator=private": ["algorithm=fedavg"],  # the default method sends prototypes too
    "sampler=oort": ["system=phones"],
    "+measure=backdoor": ["faults=byzantine", "faults.attack=backdoor"],
    **{option: [f"algorithm={name}"] for option, name in _PRESETS.items()},
    **{option: ["model.batch_norm=true"] for option in NEED_BATCH_NORM},
}
"""Option -> overrides that it needs, on digits with an MLP."""
