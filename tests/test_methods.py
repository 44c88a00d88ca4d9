"""Methods on real data, and their combinations."""

from pathlib import Path
from statistics import mean

import pytest
from support.federations import federate

import fedexp
from fedexp.cli.command import config_folder
from fedexp.errors import InputError

CONF = Path(config_folder())
HEADS = sorted(path.stem for path in (CONF / "head").glob("*.yaml"))
LOSSES = sorted(path.stem for path in (CONF / "loss").glob("*.yaml"))
REFUSED = [(head, "generative") for head in ("retrained", "calibrated", "gaussian")]
REFUSED += [("gaussian", "cyclic_distillation")]
REFUSED += [(head, "inherited") for head in HEADS]
REFUSED += [(head, "mixture") for head in HEADS if head != "mixture"]
REFUSED += [(head, loss) for head in HEADS for loss in ("mutual", "adaptive_mutual")]
LINEAR = ("linear", "linear_nobias", "corrected")
REFUSED += [(head, "gradient_alignment") for head in HEADS if head not in LINEAR]
SMALL = ["clients.count=5", "clients.per_round=3", "local.epochs=1", "data.subset=300"]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("head", "loss"),
    [(head, loss) for head in HEADS for loss in LOSSES if (head, loss) not in REFUSED],
)
def test_every_head_with_every_loss(head: str, loss: str) -> None:
    """Two rounds, as some losses begin in the second."""
    federation = federate(*SMALL, f"head={head}", f"loss={loss}", "local.grad_clip=10")
    losses = [federation.run_round(round).metrics["train/loss"] for round in (1, 2)]
    assert all(0 < abs(loss) < 100 for loss in losses)  # contrasts may be negative
    assert all(value.isfinite().all() for value in federation.server.weights.values())


@pytest.mark.matrix
@pytest.mark.parametrize(("head", "loss"), REFUSED)
def test_a_head_and_a_loss_that_do_not_combine_are_refused(head: str, loss: str) -> None:
    with pytest.raises(InputError, match=f"loss={loss}"):
        federate(*SMALL, f"head={head}", f"loss={loss}")


@pytest.mark.slow
@pytest.mark.parametrize("head", ["prototype", "etf"])
def test_heads_of_one_paper_learn_with_the_loss_of_another(head: str) -> None:
    federation = federate(f"head={head}", "loss=rpcl_cpdr", "local.grad_clip=10")
    for round in range(1, 11):
        record = federation.run_round(round)
    assert record.metrics["global/accuracy"] > 0.8


def test_a_simplex_needs_room() -> None:
    with pytest.raises(
        InputError, match=r"head=etf: model\.feature_dim=5 is too small .* use at least 9"
    ):
        federate("head=etf", "model.feature_dim=5")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fednh", "fedgela", "fedsc"])
def test_a_method_keeps_up_with_fedavg_on_digits(algorithm: str, tmp_path: Path) -> None:
    """Mean over three seeds of the final global accuracy, at most 0.02 below FedAvg's."""

    def accuracy(name: str) -> float:
        runs = [
            fedexp.run(
                [
                    *[f"algorithm={name}", f"seed={seed}", "measure.personal=null"],
                    *["tracking.wandb.mode=disabled", "tracking.progress=false"],
                    f"hydra.run.dir={tmp_path / name / str(seed)}",
                ]
            )
            for seed in (0, 1, 2)
        ]
        return mean(run.objective("global/accuracy") for run in runs)

    assert accuracy(algorithm) >= accuracy("fedavg") - 0.02


LOOK_AHEAD = [
    "regularizer.outer_steps=2",
    "regularizer.inner_steps=2",
    "regularizer.ipc=2",
    "regularizer.image_lr=1",
]
ACROSS_SYSTEMS = [
    ["head=etf", "regularizer=trajectory", *LOOK_AHEAD],
    ["loss=rpcl_cpdr", "regularizer=control_variates", "sampler=hics", "optimizer.momentum=0"],
    *(
        [f"head={head}", "loss=rpcl_cpdr", "regularizer=trajectory", "sampler=hics", *LOOK_AHEAD]
        for head in ("prototype", "etf")
    ),
]


@pytest.mark.parametrize("overrides", ACROSS_SYSTEMS, ids=lambda each: " ".join(each[:4]))
def test_parts_of_several_papers_make_one_method(overrides: list[str]) -> None:
    """Each part does its share: three rounds, in the second of which the last of them begins."""
    federation = federate(*SMALL, "local.grad_clip=10", "+measure=step_cosine", *overrides)
    for round in (1, 2, 3):
        metrics = federation.run_round(round).metrics
        assert 0 < metrics["train/loss"] < 100
    assert all(value.isfinite().all() for value in federation.server.weights.values())
    if "regularizer=trajectory" in overrides:
        assert metrics["trajectory/diverged"] == 0
        assert "geometry/projected_step_cosine" in metrics
    else:
        assert "variate/head.linear.weight" in federation.server.broadcast(4).extras["regularizer"]
    if "sampler=hics" in overrides:
        assert federation.sampler.times_chosen.tolist().count(1) < 5  # past its warm-up
        assert federation.sampler.times_chosen.min() > 0
