"""Personalizations with every option of the other sockets: they run or are refused by name."""

from pathlib import Path

import pytest
from support.partner_options import ROBUST_COHORTS
from support.small_federations import BATCHNORM, PERSONAL, WITH_GLOBAL, personalized

from fedexp.cli.command import config_folder
from fedexp.errors import InputError

BRIEF = ["regularizer.outer_steps=1", "regularizer.inner_steps=1", "regularizer.ipc=1"]


def options(group: str) -> list[str]:
    return sorted(path.stem for path in Path(config_folder(), group).glob("*.yaml"))


WITHOUT_MATRIX = ["etf", "fixed_uniform", "gaussian", "identity", "prototype", "prototype_paper"]
LINEAR = ["linear", "linear_nobias", "corrected", "calibrated"]
OF_FEATURES = ["gaussian", "mixture", "prototype", "prototype_paper"]
"""Heads that are refused first where features change before the head."""
PRIVATE_HEAD = ["fedper", "fedrep", "fedpac", "fedas", "gpfl"]
WITHOUT_HEAD = ("fedbabu", "fedfomo", "fedgh", "fedmd", "local", "prototypes_only")
"""Personalizations that send no trained head."""
REFUSED = {
    **{
        (name, f"loss={loss}"): f"loss={loss}: needs a second model"
        for name in PERSONAL
        for loss in ("mutual", "adaptive_mutual")
    },
    **{
        (name, "head=corrected"): "head=corrected: the server corrects the classifier"
        for name in (*PRIVATE_HEAD, *WITHOUT_HEAD)
    },
    **{
        (name, "head=spread_out"): "head=spread_out: the server spreads the class vectors"
        for name in (*PRIVATE_HEAD, *WITHOUT_HEAD)
    },
    **{
        ("fedgh", f"head={name}"): "has nothing that the server could train"
        for name in ("etf", "gaussian", "identity", "fixed_uniform")
    },
    **{
        ("fedah", f"head={name}"): "trains nothing that could be mixed"
        for name in ("etf", "fixed_uniform", "gaussian", "identity")
    },
    **{
        ("fedcp", f"head={name}"): "personalization=fedcp needs a linear classifier"
        for name in options("head")
        if name not in ("linear", "linear_nobias", "corrected", *OF_FEATURES)
    },
    **{
        (name, f"head={head}"): f"head={head}: .* changes them before the head"
        for name in ("fedcp", "feddbe", "gpfl")
        for head in ("gaussian", "mixture")
    },
    **{
        (name, f"head={head}"): "head=prototype: .* changes them before the head"
        for name in ("fedcp", "feddbe", "gpfl")
        for head in ("prototype", "prototype_paper")
    },
    **{(name, "head=etf"): "head=etf: trains nothing" for name in PRIVATE_HEAD},
    **{
        (name, "head=gaussian"): "head=gaussian: trains nothing"
        for name in PRIVATE_HEAD
        if name != "gpfl"
    },
    **{(name, "head=identity"): "head=identity: trains nothing" for name in PRIVATE_HEAD},
    **{
        ("pfl_da", f"head={head}"): "the private head is linear|trains nothing"
        for head in options("head")
        if head not in LINEAR
    },
    **{(name, "head=fixed_uniform"): "head=prototype: trains nothing" for name in PRIVATE_HEAD},
    **{
        (name, "head=simplex"): "head=simplex: clients train the corners"
        for name in (*PRIVATE_HEAD, *WITHOUT_HEAD)
    },
    ("pfedsim", "head=corrected"): "personalization: would not act on the rows of the classifier",
    **{("pfedsim", f"head={head}"): "trains none|no trained weight" for head in WITHOUT_MATRIX},
    **{
        (name, "loss=mixture"): "loss=mixture: needs a mixture of models; use head=mixture"
        for name in PERSONAL
    },
    **{
        (name, "head=gaussian"): "head: computes its classifier from class means"
        for name in ("fedphp", "fedfomo")
    },
    **{(name, "loss=inherited"): "loss=inherited: learns from a private" for name in PERSONAL},
    **{
        (name, f"head={head}"): f"head={head}: .* sends clients other models"
        for name in ("apple", "fedamp", "pfedhn", "pfedla", "pfedsim")
        for head in ("corrected", "spread_out")
        if (name, head) != ("pfedsim", "corrected")
    },
    **{
        (name, f"head={head}"): "head: .* the global model, which this method lacks"
        for name in PERSONAL
        if name not in WITH_GLOBAL
        for head in ("retrained", "calibrated")
    },
    ("fedbabu", "head=calibrated"): "head=calibrated: the server has no classifier",
    ("fedrep", "loss=generative"): "loss=generative: the server needs the clients' heads",
    **{
        (name, "aggregator=fltrust"): "aggregator=fltrust: the server trains the whole model"
        for name in ("local", "fedper")
    },
    **{
        (name, "regularizer=multitask"): "regularizer=multitask: relates models that clients keep"
        for name in ("fedper", "fedrep")
    },
    **{
        ("local", f"sampler={name}"): "sampler: compares clients by .* no parameter is shared"
        for name in options("sampler")
        if name.startswith("divfl") or name in ("clustered", "clustered_hics")
    },
}


def try_two_rounds(personalization: str, *overrides: str) -> None:
    """They run, or are refused with a reason in ``REFUSED``."""
    every_round = ["measure.personal.every=1", "local.grad_clip=10"]
    for override in overrides:
        if reason := REFUSED.get((personalization, override)):
            with pytest.raises(InputError, match=reason):
                personalized(personalization, *overrides)
            return
    federation = personalized(personalization, *every_round, *overrides)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        assert 0 < abs(metrics["train/loss"]) < 200  # contrasts may be negative
        assert 0 <= metrics["personal/accuracy_local"] <= 1


@pytest.mark.matrix
@pytest.mark.parametrize("head", options("head"))
@pytest.mark.parametrize("personalization", PERSONAL)
def test_every_head(personalization: str, head: str) -> None:
    try_two_rounds(personalization, f"head={head}")


@pytest.mark.matrix
@pytest.mark.parametrize("sampler", options("sampler"))
@pytest.mark.parametrize("personalization", ["local", "fedper"])
def test_every_sampler_where_little_or_nothing_is_shared(
    personalization: str, sampler: str
) -> None:
    devices = "system=uniform"  # sampler=oort needs them
    try_two_rounds(personalization, f"sampler={sampler}", "+measure=step_cosine", devices)


@pytest.mark.matrix
@pytest.mark.parametrize("regularizer", options("regularizer"))
@pytest.mark.parametrize("personalization", ["local", "fedper", "fedrep"])
def test_every_regularizer_where_little_or_nothing_is_shared(
    personalization: str, regularizer: str
) -> None:
    brief = BRIEF if regularizer in ("trajectory", "proximal_synthetic") else []
    try_two_rounds(personalization, f"regularizer={regularizer}", *brief)


@pytest.mark.matrix
@pytest.mark.parametrize("aggregator", options("aggregator"))
@pytest.mark.parametrize("personalization", ["local", "fedper"])
def test_every_aggregator_where_little_or_nothing_is_shared(
    personalization: str, aggregator: str
) -> None:
    option = f"aggregator={aggregator}"
    try_two_rounds(personalization, option, *ROBUST_COHORTS.get(option, []))


@pytest.mark.matrix
@pytest.mark.parametrize("loss", options("loss"))
@pytest.mark.parametrize("personalization", ["finetune", "fedrod", "fedrep", "ditto"])
def test_every_loss(personalization: str, loss: str) -> None:
    try_two_rounds(personalization, f"loss={loss}")


MOON = ["loss=moon", "regularizer=proximal"]
VARIATES = ["regularizer=control_variates"]
INITIAL_HEAD = ["regularizer=proximal", "personalization.global_model=initial_head"]
WITH_OTHER_PARTS = {
    "apfl": [["gradient=mixture", *each] for each in (["algorithm=fednh"], MOON)],
    "apple": [
        ["loss=fedsr"],
        ["gradient=sam"],
        BATCHNORM,
        ["clients.count=1", "clients.per_round=1"],
    ],
    "fedala": [["algorithm=fednh"], VARIATES, ["loss=moon", "gradient=sam"]],
    "fedamp": [VARIATES, BATCHNORM],
    "fedas": [INITIAL_HEAD, ["loss=prototype_align", *BATCHNORM]],
    "fedcac": [["personalization.tau=0"], BATCHNORM],
    "fedcp": [MOON, ["loss=fedsr"]],
    "feddbe": [MOON, ["loss=fedsr"]],
    "fedfomo": [VARIATES, BATCHNORM],
    "fedgh": [["loss=ntd", "regularizer=proximal"]],
    "fedmd": [["loss=ntd", "regularizer=proximal"]],
    "fedpac": [INITIAL_HEAD, ["loss=focal", *BATCHNORM]],
    "fedphp": [["loss=inherited", *each] for each in (["head=prototype"], VARIATES, BATCHNORM)],
    "gpfl": [MOON],
    "knn_per": [["algorithm=fednh"], ["gradient=sam", *MOON]],
    "pfedsim": [["personalization.warmup=0", *each] for each in (VARIATES, BATCHNORM)],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("personalization", "others"),
    [(name, others) for name, each in WITH_OTHER_PARTS.items() for others in each],
    ids=lambda each: each if isinstance(each, str) else " ".join(each[:2]),
)
def test_other_parts(personalization: str, others: list[str]) -> None:
    """Three rounds, as some personalizations begin in the third."""
    federation = personalized(
        personalization, "measure.personal.every=1", "local.grad_clip=10", *others
    )
    for round in (1, 2, 3):
        metrics = federation.run_round(round).metrics
        assert 0 < metrics["train/loss"] < 100
        assert 0 <= metrics["personal/accuracy_local"] <= 1


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            ["sampler=hics", "sampler.signal=bias"],
            r"sampler\.signal=bias: this head does not have exactly one trained and shared bias",
        ),
        (
            ["regularizer=trajectory", "regularizer.side=server"],
            r"regularizer\.side=server: needs the whole model",
        ),
    ],
)
def test_weights_that_the_server_needs_cannot_be_private(overrides: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        personalized("fedper", *overrides)
