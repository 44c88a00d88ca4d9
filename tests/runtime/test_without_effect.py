"""Keys without effect that follow from several components, and the line of a run."""

import logging
from pathlib import Path

import pytest
import torch
from support.federations import compose

import fedexp
from fedexp.config.schema import Wandb
from fedexp.runtime.plan import plan


@pytest.mark.parametrize(
    ("overrides", "keys", "why"),
    [
        (["algorithm=local", "compression=topk"], {"aggregator", "compression"}, r"(Local)"),
        (["algorithm=local"], {"aggregator"}, r"(Local)"),
        (["algorithm=fedproto"], {"aggregator"}, r"(PrototypesOnly)"),
        (
            ["data=synthetic", "algorithm=fedavg"],
            {"partition.take", "partition.split_users"},
            "because these data define the clients",
        ),
        (["data=synthetic", "algorithm=fedavg", "data.iid=true"], {"data.alpha"}, "data.iid=true"),
        *(
            (
                [f"personalization={name}", f"regularizer={each}"],
                {"regularizer"},
                "no weights are shared",
            )
            for name in ("local", "fedmd", "fedgh", "fedfomo", "prototypes_only")
            for each in ("control_variates", "curvature")
        ),
        *(
            (["algorithm=local", f"regularizer={each}"], {"regularizer"}, "no weights are shared")
            for each in ("dynamic", "drift_correction", "augmented_lagrangian", "trajectory")
        ),
        *(
            (["algorithm=local", f"gradient={each}"], {"gradient"}, "no weights are shared")
            for each in ("client_momentum", "lesam")
        ),
        *(
            (
                [f"personalization={each}", "regularizer=neural_collapse"],
                {"regularizer"},
                "trains no shared head",
            )
            for each in ("fedbabu", "fedcp")
        ),
        (["algorithm=ifca"], {"aggregator"}, "with personalization.common=[]"),
        (["clients.per_round=20"], {"sampler"}, "because clients.per_round=20 takes all clients"),
        (
            ["local.keep_optimizer=true", "optimizer.momentum=0"],
            {"local.keep_optimizer"},
            "because this optimizer has no state",
        ),
        (
            ["algorithm=pfedme"],
            {"optimizer.momentum", "optimizer.weight_decay", "local.keep_optimizer"},
            "because this personalization (PFedMe) trains by plain SGD",
        ),
        (["algorithm=pfedme"], {"local.grad_clip"}, "(PFedMe) does not clip"),
        (["rounds=5", "schedule=step"], {"schedule", "schedule.gamma"}, "is the same in all 5"),
        ([], {"engine.balance"}, "in a run of one process"),
        ([], {"engine.channels_last"}, "because this model has no two-dim"),
        (
            ["model=convnet", "engine=vectorized"],
            {"engine.channels_last"},
            "in training with engine=vectorized",
        ),
        ([], {"measure.held_out"}, "without clients.held_out"),
        ([], {"measure.clock"}, "without simulated devices (system)"),
        ([], {"measure.fewshot"}, "without test classes that no client has"),
        ([], {"measure.validation"}, "without data.validation"),
    ],
)
def test_keys_that_several_components_make_useless(
    overrides: list[str], keys: set[str], why: str
) -> None:
    unread = plan(compose(*overrides)).unread
    assert keys <= unread.keys()
    assert all(why in unread[key] for key in keys)


def test_plain_sgd_reads_the_learning_rate_and_other_phases_the_rest() -> None:
    def unread(*overrides: str) -> set[str]:
        return {key for key in plan(compose(*overrides)).unread if key.startswith("optimizer")}

    own = {"optimizer.momentum", "optimizer.nesterov", "optimizer.weight_decay"}
    assert unread("algorithm=pfedme") == own
    assert unread("algorithm=ditto", "personalization.optimizer=plain_sgd") == set()


def test_a_rule_for_initial_weights_that_no_layer_follows_is_useless(tmp_path: Path) -> None:
    """The rule is for convolutions; those of a backbone from a file keep the file's weights."""
    assert "model.init" in plan(compose("model=mlp", "model.init=kaiming_fan_out")).unread
    convnet = ["model=convnet", "model.init=kaiming_fan_out"]
    drawn = plan(compose(*convnet))
    assert "model.init" not in drawn.unread
    file = tmp_path / "backbone.pt"
    torch.save(drawn.backbone(input_shape=drawn.description.input_shape).state_dict(), file)
    given = plan(compose(*convnet, f"model.start_from={file}"))
    assert given.unread["model.init"] == "because no layer gets its initial weights by this rule"


def test_without_wandb_all_of_its_settings_are_useless() -> None:
    unread = plan(compose("tracking.wandb.mode=disabled")).unread
    read = {name for name in Wandb.model_fields if f"tracking.wandb.{name}" not in unread}
    assert read == {"mode", "id"}  # a resumed run may have another mode, and keeps its id


def test_what_is_used_is_not_declared() -> None:
    used = ["algorithm=fedper", "compression=topk", "rounds=30", "schedule=step"]
    used += ["model=convnet", "clients.held_out=0.2", "data.validation=0.1", "system=lognormal"]
    unread = plan(compose(*used, "local.keep_optimizer=true")).unread
    groups = {"aggregator", "compression", "sampler", "schedule", "measure", "local", "engine"}
    named = {key for key in unread if key.partition(".")[0] in groups}
    without_global = {f"measure.{n}" for n in ("angles", "fewshot", "global", "validation")}
    assert named == {"engine.balance", *without_global}
    assert "system.late" in unread


def test_a_key_that_another_measure_follows_has_an_effect() -> None:
    """Without a score on the test split, ``fewshot`` and ``validation`` still follow its rounds."""
    fc100 = ["data=fc100", "measure.personal=null", "objective=global/fewshot_accuracy"]
    unread = plan(compose(*fc100)).unread
    assert {"measure.angles", "measure.global.first", "measure.global.targets"} <= unread.keys()
    assert not {"measure.global", "measure.global.every"} & unread.keys()
    assert "measure.global.first" not in plan(compose(*fc100, "data.validation=0.1")).unread


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=local", "regularizer=proximal"],  # of private parameters, too
        ["algorithm=local", "gradient=sam_momentum"],
        ["algorithm=lg_fedavg", "regularizer=dynamic"],
        ["algorithm=fedper", "gradient=client_momentum"],
        ["algorithm=flute"],
    ],
    ids=str,
)
def test_parts_that_act_on_some_parameters_are_used(overrides: list[str]) -> None:
    assert not {"regularizer", "gradient"} & plan(compose(*overrides)).unread.keys()


def test_a_run_says_it_once_and_only_of_typed_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = ["rounds=1", "local.epochs=1", "data.subset=200", "measure.personal=null"]
    small += ["tracking.wandb.mode=disabled", f"hydra.run.dir={tmp_path}"]
    with caplog.at_level(logging.WARNING):
        fedexp.run(["algorithm=fedavg", *small, "model.lora.alpha=4"])
    assert [each for each in caplog.messages if "no effect" in each] == [
        "model.lora.alpha=4: has no effect with model.lora.rank=null"
    ]
