import logging
from pathlib import Path

import pytest
from support.federations import compose
from support.natural_users import PLAY_OPTIONS, SMALL_LSTM, write_play

from fedexp.errors import InputError
from fedexp.runtime.plan import plan

KEPT = ["local.keep_optimizer=true", "optimizer.momentum=0.9"]
PLAIN_PHASE = ["algorithm=fedrod", "personalization.second_phase=plain_sgd"]
SILOBN = ["personalization=silobn", "model.batch_norm=true"]
REFUSED = {
    (*PLAIN_PHASE, "gradient=client_momentum"): r"^personalization: one phase .* without momentum",
    (*PLAIN_PHASE, "regularizer=drift_correction"): r"^personalization: one phase .* without",
    (*PLAIN_PHASE, "aggregator=normalized"): r"^personalization: one phase .* without momentum",
    ("algorithm=pfedsim", "regularizer=dynamic"): r"^regularizer: would move the global weights",
    ("personalization=ifca", "head=spread_out"): r"^head: would not act on the clusters' models",
    ("algorithm=scaffold", *KEPT): r"^local\.keep_optimizer=true: control variates .* diverge",
    ("algorithm=feddc", *KEPT): r"^local\.keep_optimizer=true: control variates .* diverge",
    (
        "algorithm=fedptr",
        "head=retrained",
    ): r"^regularizer: .* with this head .* different classifier",
    ("algorithm=fedprox_synthetic", "head=retrained"): r"^regularizer: .* with this head",
    ("loss=generative", "head=retrained"): r"^loss=generative: .* with this head",
    ("algorithm=fedgh", "head=retrained"): r"^head: .* global model, which this method lacks",
    ("loss=generative", "head=gaussian"): r"^loss=generative: .* this head computes its classifier",
    ("aggregator=fltrust", "head=gaussian"): r"^aggregator=fltrust: .* this head computes its",
    (
        "head=gaussian",
        "regularizer=trajectory",
        "regularizer.side=server",
    ): r"^regularizer\.side=server: .* this head computes its classifier",
    ("aggregator=fltrust", *SILOBN): r"^aggregator=fltrust: .* no running statistics",
    (
        "regularizer=trajectory",
        "regularizer.side=server",
        *SILOBN,
    ): r"^regularizer\.side=server: .* the running statistics stay with the clients",
    **{
        (
            f"personalization={each}",
            "regularizer=trajectory",
            "regularizer.side=server",
        ): r"^regularizer\.side=server: .* this personalization may start clients from other models"
        for each in ("ifca", "fedamp")
    },
    ("personalization=fedamp", "head=spread_out"): r"^head=spread_out: .* clients other models",
    ("personalization=pfedsim", "head=spread_out"): r"^head=spread_out: .* clients other models",
    ("personalization=pfedhn", "head=corrected"): r"^head=corrected: .* clients other models",
    ("personalization=ifca", "head=gaussian"): r"^head: computes its classifier from class means",
    ("personalization=fedfomo", "head=gaussian"): r"^head: computes its classifier from class",
    **{
        (f"algorithm={each}", "head=gaussian"): r"^head=gaussian: .* features of the shared model"
        for each in ("apfl", "pfedme", "fml")
    },
    **{
        (
            "personalization=feddbe",
            f"head={each}",
        ): rf"^head={each}: .* changes them before the head"
        for each in ("gaussian", "mixture")
    },
    **{
        (f"algorithm={each}", "head=prototype"): r"^head=prototype: .* changes them before the head"
        for each in ("feddbe", "gpfl")
    },
    ("algorithm=gpfl", "head=mixture"): r"^head=mixture: .* changes them before the head",
    ("loss=cyclic_distillation", "head=gaussian"): r"^loss=cyclic_distillation: .* this head",
    ("regularizer=proximal_synthetic", "loss=logit_calibration"): r"this loss leaves out",
    ("regularizer=proximal_synthetic", "loss=balanced_softmax"): r"this loss leaves out",
    (
        "regularizer=proximal_synthetic",
        "head=etf",
        "head.missing=exclude",
    ): r"this head leaves out",
    ("algorithm=fml", "gradient=mixture"): r"^gradient=mixture: .* use personalization=apfl",
    ("algorithm=fml", "gradient=moreau"): r"^gradient=moreau: .* use personalization=pfedme",
    ("algorithm=apfl", "loss=mutual"): r"^loss=mutual: .* use personalization=second_model",
    ("algorithm=pfedme", "loss=mutual"): r"^loss=mutual: .* use personalization=second_model",
    ("algorithm=pfedme", "loss=adaptive_mutual"): r"^loss=adaptive_mutual: .* use",
    **{
        ("algorithm=feddyn", f"gradient={each}"): r"^regularizer\.clip_quadratic=false: .* gradient"
        for each in ("sam", "lesam", "meta", "client_momentum", "sam_momentum")
    },
    (
        *("algorithm=feddyn", "personalization=apfl", "gradient=mixture"),
    ): r"^regularizer\.clip_quadratic=false: .* use regularizer\.clip_quadratic=true",
    ("loss=generative", "head=etf", "head.feature_norm=batchnorm"): r"statistics of this head",
    (
        "loss=generative",
        "head=etf",
        "head.feature_norm=batchnorm_affine",
    ): r"statistics of this head",
    **{
        (
            *("algorithm=fedavg", "loss=generative"),
            f"personalization={each}",
        ): r"^loss=generative: .* this personalization changes the features before"
        for each in ("feddbe", "fedcp", "gpfl")
    },
    ("loss=generative", "personalization=apple"): r"^loss: compares with .* is the core model",
    **{
        (f"algorithm={method}", f"aggregator={each}"): r"^aggregator: .* models that clients get"
        for method in ("fedamp", "apple", "pfedla", "pfedhn")
        for each in ("krum", "disco")
    },
    **{
        (f"algorithm={method}", f"aggregator={each}"): rf"^aggregator: would not act on the {what}"
        for method, what in {"fedgc": "rows", "ifca": "clusters'", "cfl": "clusters'"}.items()
        for each in ("disco", "agnostic")
    },
}
STARTS = ("local", "global", "reset")
ACCEPTED = [
    [*PLAIN_PHASE, "gradient=client_momentum", "optimizer.momentum=0"],
    [*PLAIN_PHASE, "regularizer=control_variates", "regularizer.estimate=gradient"],
    ["algorithm=pfedme", "regularizer=control_variates"],
    ["algorithm=feddyn", "gradient=sam", "regularizer.clip_quadratic=true"],
    ["algorithm=feddyn", "gradient=sam", "regularizer.alpha=0"],
    *([f"algorithm={each}", "gradient=sam"] for each in ("feddyn_paper", "feddc", "fedadmm")),
    ["algorithm=scaffold", "local.keep_optimizer=true"],
    ["algorithm=scaffold", "regularizer.estimate=gradient", *KEPT],
    ["algorithm=feddc", "regularizer.estimate=gradient", *KEPT],
    ["algorithm=fedprox", *KEPT],
    ["regularizer=proximal_synthetic", "loss=restricted_softmax"],
    ["regularizer=proximal_synthetic", "head=etf", "head.missing=zero_logit"],
    ["regularizer=proximal_synthetic", "head=etf", "head.missing=exclude", "head.adapt=false"],
    ["loss=generative", "head=etf", "head.feature_norm=l2"],
    ["algorithm=feddbe", "head=prototype", "head.rho=1"],
    ["head=gaussian", "regularizer=trajectory", "regularizer.side=client"],
    ["regularizer=trajectory", "regularizer.side=client", *SILOBN],
    ["personalization=fedamp", "regularizer=trajectory", "regularizer.side=client"],
    ["personalization=fedala", "regularizer=trajectory", "regularizer.side=server"],
]


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_parts_that_break_each_other_are_refused_in_one_line(overrides: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=REFUSED[overrides]) as error:
        plan(compose(*overrides))
    assert "\n" not in str(error.value)
    assert "{" not in str(error.value)


@pytest.mark.parametrize("overrides", ACCEPTED, ids=" ".join)
def test_what_differs_in_one_option_is_accepted(overrides: list[str]) -> None:
    plan(compose(*overrides))


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (["algorithm=feddyn", "aggregator=median"], "its mean drift is wrong"),
        (["algorithm=feddyn", "aggregator=momentum"], "its mean drift is wrong"),
        (["algorithm=feddyn", "aggregator=norm_clipped"], "its mean drift is wrong"),
        (["algorithm=feddc", "aggregator=krum"], "its mean drift is wrong"),
        (
            ["algorithm=feddc", "regularizer.drifts=cohort", "aggregator=median"],
            "not the same mean",
        ),
        (["algorithm=feddc", "regularizer.drifts=cohort", "sampler=clustered"], "this sampler the"),
        *(
            ([f"algorithm={each}", "aggregator=krum", *options], "acts in the warm-up alone")
            for each, options in {"pfedsim": [], "fedap": ["model.batch_norm=true"]}.items()
        ),
        (["algorithm=fedcac", "aggregator=krum"], "not act on the critical parameters"),
        (["algorithm=feddyn", "head=corrected"], "with this head its mean drift is wrong"),
        (
            ["algorithm=fedala", "regularizer=dynamic"],
            "start clients from other weights; the server's mean",
        ),
        (
            ["algorithm=fedala", "regularizer=drift_correction"],
            "start clients from other weights; the server's mean",
        ),
        (["algorithm=fedcp", "regularizer=dynamic"], "these are not the trained ones"),
        (["algorithm=fedcp", "regularizer=drift_correction"], "these are not the trained ones"),
        (
            ["algorithm=fedcp", "regularizer=augmented_lagrangian"],
            "is then not the mean of all z_k",
        ),
        (["algorithm=fedadmm", "personalization=fedala"], "from other weights; the sum"),
        (["algorithm=fedcm", "personalization=fedala"], "from other weights; the momentum"),
        (["algorithm=fedcm", "regularizer=accelerated"], "this regularizer may start clients"),
        (["algorithm=fedcm", "head=spread_out"], "with this head the momentum has another length"),
        (["algorithm=fedcm", "personalization=pfedsim"], "with this personalization the momentum"),
        (["algorithm=fedcm", "head=calibrated", "head.every=2"], "with this head the momentum"),
        *(
            ([f"aggregator={each}", "algorithm=fedala"], "measures each client's step from the")
            for each in ("normalized", "q_fair", "server_extrapolation", "norm_clipped")
        ),
        (["aggregator=centered_clipping", "personalization=fedah"], "measures each client's step"),
        (["aggregator=fltrust", "algorithm=fedacg"], "measures each client's step from the global"),
        (["sampler=weighted", "aggregator=normalized"], "use aggregator=uniform"),
        (["algorithm=fedacg", "personalization=fedamp"], "FedACG: clients start from the"),
        (["algorithm=feddyn", "sampler=clustered"], "draws twice"),
        (["algorithm=fedadmm", "sampler=clustered"], "each time that sampler draws it"),
        (["algorithm=fedcm", "optimizer=adam"], "the server expects steps of SGD"),
        *(
            ([*options, "aggregator=uniform"], "use optimizer=sgd_plain")
            for options in (
                ["gradient=client_momentum"],
                ["gradient=sam_momentum"],
                ["regularizer=drift_correction"],
                ["algorithm=feddc", "regularizer.drifts=cohort", "optimizer.momentum=0.9"],
            )
        ),
        *(
            (["compression=topk", f"algorithm={each}"], "may send weights that a client kept")
            for each in ("metafed", "fedala", "fedah", "fedcp")
        ),
        (["compression=signsgd", "algorithm=ifca"], "may choose another model"),
        (["compression@download=topk", "algorithm=fedala"], "which do not lack it"),
        *(
            (["algorithm=floco", other], "head=simplex: the server finds a client's subregion")
            for other in (
                *("personalization=ifca", "personalization=fedamp", "personalization=cfl"),
                *("personalization=fedala", "regularizer=accelerated"),
            )
        ),
        *(
            (["personalization=ifca", each], "this personalization may send the client other")
            for each in (
                "regularizer=trajectory",
                "regularizer=proximal_synthetic",
                "gradient=lesam",
            )
        ),
        (["sampler=hics"], "use aggregator=uniform"),
        (["sampler=clustered"], "use aggregator=uniform"),
    ],
    ids=str,
)
def test_discouraged_combinations_are_warned_of(
    overrides: list[str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        plan(compose(*overrides))
    assert warning in caplog.text


@pytest.mark.parametrize("method", ["algorithm=fedfomo", "algorithm=metafed"])
@pytest.mark.parametrize("stride", [8, 9])
def test_own_validation_samples_that_overlap_are_warned_of(
    stride: int, method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_play(tmp_path / "play.txt")
    words = ["data=text", f"data.path={tmp_path / 'play.txt'}", *PLAY_OPTIONS, *SMALL_LSTM]
    words += [method, "partition=natural", "clients.count=3", "clients.per_round=2"]
    with caplog.at_level(logging.WARNING):
        plan(compose(*words, f"data.stride={stride}"))
    assert ("share content with its training samples" in caplog.text) == (stride == 8)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=feddyn"],
        ["algorithm=fedadmm"],
        *([f"algorithm={each}"] for each in ("fedcm", "mofedsam", "feddc")),
        ["gradient=client_momentum", "aggregator=uniform", "optimizer.momentum=0"],
        ["algorithm=feddyn", "aggregator=sample_weighted"],
        ["algorithm=feddc", "regularizer.drifts=cohort"],
        ["algorithm=feddc", "regularizer.drifts=cohort", "personalization=fedala"],
        ["sampler=hics", "aggregator=uniform"],
        ["aggregator=median"],
        ["algorithm=fednova", "sampler=random"],
        ["algorithm=fedacg"],
        ["regularizer=trajectory"],
        ["gradient=lesam"],
        ["personalization=fedala", "gradient=lesam"],
        ["algorithm=fedcp", "head=corrected"],
        [
            "algorithm=fedcp",
            "gradient=client_momentum",
            "optimizer=sgd_plain",
        ],  # the head is frozen
        ["algorithm=floco", "personalization=ditto"],
        ["algorithm=fedala", "compression=topk", "compression.error_feedback=false"],
        ["algorithm=ifca", "compression=qsgd"],
        ["algorithm=fedala", "compression@download=topk", "download.error_feedback=false"],
        *(["algorithm=fedadmm", "compression=topk", f"regularizer.start={s}"] for s in STARTS),
        *([f"algorithm={each}", "aggregator=uniform"] for each in ("fedamp", "pfedsim", "fedcac")),
        ["algorithm=feddyn", "aggregator=disco"],
        ["algorithm=fedamp", "compression=topk"],  # a client starts from its own message
    ],
    ids=str,
)
def test_combinations_that_fit_are_not_warned_of(
    overrides: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        plan(compose(*overrides))
    assert caplog.text == ""
