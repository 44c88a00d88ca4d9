"""The other options that an option needs; without them it is refused."""

_PRESETS = {
    "loss=mixture": "fedem",
    "loss=inherited": "fedphp",
    "gradient=mixture": "apfl",
    "personalization=apfl": "apfl",
    "gradient=moreau": "pfedme",
    "personalization=pfedme": "pfedme",
    "personalization=fedetf": "fedetf",
    "loss=adaptive_mutual": "fedkd",
    "loss=gradient_alignment": "fediir",
    "loss=mutual": "fml",
    "personalization=second_model": "fml",
    "regularizer=multitask": "fedmtl",
}
"""Option -> the algorithm whose other options it needs."""

NEED_BATCH_NORM = [
    f"{group}={n}"
    for group in ("algorithm", "personalization")
    for n in ("fedap", "fedbn", "silobn")
]

ROBUST_COHORTS = {
    "aggregator=median": ["clients.per_round=3"],
    "aggregator=geometric_median": ["clients.per_round=3"],
    "aggregator=trimmed_mean": ["clients.per_round=3", "aggregator.trim=0.34"],
    "aggregator=krum": ["clients.count=8", "clients.per_round=5"],
    "aggregator=bulyan": ["clients.count=8", "clients.per_round=7", "aggregator.byzantine=0.15"],
}
"""Robust aggregator -> a cohort in which it tolerates one attacker."""

PARTNERS: dict[str, list[str]] = {
    "head=identity": ["model.feature_dim=10"],
    "aggregator=private": ["algorithm=fedavg"],  # the default method sends prototypes too
    "personalization=fedcp": ["algorithm=fedavg"],  # the default method's head has no weights
    "personalization=flute": ["algorithm=fedavg"],
    "personalization=pfedsim": ["algorithm=fedavg"],
    "regularizer=neural_collapse": ["algorithm=fedavg"],
    "sampler=oort": ["system=phones"],
    "personalization=pfl_da": ["algorithm=fedavg"],
    "+measure=backdoor": ["faults=byzantine", "faults.attack=backdoor"],
    **{option: [f"algorithm={name}"] for option, name in _PRESETS.items()},
    **{option: ["model.batch_norm=true"] for option in NEED_BATCH_NORM},
    **ROBUST_COHORTS,
}
"""Option -> overrides that it needs, on digits with an MLP."""
