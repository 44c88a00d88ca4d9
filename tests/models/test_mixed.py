"""``model=mixed``: groups of clients with backbones of their own, which exchange prototypes."""

from pathlib import Path

import pytest
import torch
from support.federations import compose, federate
from support.refusals import refused
from support.resumed_runs import check_resumes_to_the_bit
from torch import nn

from fedexp.core.prototypes import class_prototypes
from fedexp.errors import InputError
from fedexp.measures.scoring.scoring import Scoring
from fedexp.models.mixed import groups_of_clients
from fedexp.runtime.plan import plan

SMALL = ["clients.count=4", "clients.per_round=4", "local.epochs=1", "data.subset=120"]
MIXED = ["model=mixed", "model.groups.large.model.width=4", "model.groups.small.model.hidden=[8]"]
FEDPROTO = [*SMALL, *MIXED, "algorithm=fedproto", "measure.personal.every=1"]


def test_groups_take_turns_as_their_shares_say() -> None:
    assert groups_of_clients(6, (1, 1)) == [0, 1, 0, 1, 0, 1]
    thirds = groups_of_clients(9, (2, 1))
    assert [thirds[:3].count(0), thirds[:6].count(0), thirds.count(0)] == [2, 4, 6]
    assert groups_of_clients(3, (0.2,)) == [0, 0, 0]


def test_a_client_trains_its_own_backbone_and_sends_prototypes_only() -> None:
    federation = federate(*FEDPROTO)
    resources = federation.engine.resources
    record = federation.run_round(1)
    assert federation.server.weights == {}
    assert record.metrics["cost/upload_bytes"] == 4 * (10 * 64 * 4 + 10 * 8)  # counts are int64
    for client in range(4):
        model = federation.store.model(client)
        own, other = ("large", "small") if client % 2 else ("small", "large")
        assert model["backbone.group"] == client % 2
        for name, value in model.items():
            if name.startswith("backbone.groups."):
                kept = torch.equal(value, resources.initial[name])
                assert kept == name.startswith(f"backbone.groups.{other}."), (client, name)
        assert any(name.startswith(f"backbone.groups.{own}.") for name in model)


def test_the_server_averages_prototypes_of_different_backbones() -> None:
    """Those of each client's own trained backbone over its data, by an independent pass."""
    federation = federate(*FEDPROTO)
    federation.run_round(1)
    sums, total = torch.zeros(10, 64), torch.zeros(10)
    for client in range(4):
        module = federation.module.eval()
        module.load(federation.store.model(client))
        own = list(module.backbone.groups.values())[client % 2]  # type: ignore[union-attr,operator]
        (inputs, labels), *_ = federation.data.clients[client].batches(1000)
        with torch.no_grad():
            prototypes, counts = class_prototypes(own(inputs), labels, 10)
        sums += prototypes * counts[:, None]
        total += counts
    found = federation.server.broadcast(1).extras["loss"]["prototypes"]
    held = total > 0
    torch.testing.assert_close(found[held], (sums / total[:, None])[held], rtol=1e-4, atol=1e-5)


def test_each_client_is_evaluated_with_its_own_backbone() -> None:
    federation = federate(*SMALL, *MIXED, "personalization=local", "objective=train/loss")
    federation.run_round(1)
    test = federation.data.test
    found = dict(Scoring(federation.engine).score_personal(federation.server.broadcast(1)))
    inputs = torch.cat([x for x, _ in test.batches(1000)])
    assert {client % 2 for client in found} == {0, 1}  # both backbones
    for client, predictions in found.items():
        module = federation.module.eval()
        module.load(federation.store.model(client))
        own = list(module.backbone.groups.values())[client % 2]  # type: ignore[union-attr,operator]
        with torch.no_grad():
            right = module.head(own(inputs)).argmax(dim=1) == test.labels
        assert torch.equal(predictions.correct, right)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "method",
    [["algorithm=fedproto"], ["loss=rpcl_cpdr", "personalization=local", "objective=train/loss"]],
    ids=["fedproto", "fedsc"],
)
def test_resumes_to_the_bit(method: list[str], tmp_path: Path) -> None:
    check_resumes_to_the_bit(tmp_path, *MIXED, *method)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm=fedavg"], r"^model=mixed: clients have different backbones, .* or local$"),
        (["algorithm=fedper"], r"^model=mixed: clients have different backbones, "),
        (["algorithm=fedfomo"], r"^personalization=fedfomo: mixes the clients' models, so model "),
        (
            ["algorithm=fedproto", "model.groups.small.model.feature_dim=32"],
            r"^model\.groups: need features of the same width; small has 32, large has 64$",
        ),
        (
            ["algorithm=fedproto", "+model.groups.small.shore=1"],
            r"^model\.groups\.small\.shore: unknown key; there are model, share$",
        ),
        (
            ["algorithm=fedproto", "+model.groups.small.model.width=1"],
            r"^model\.groups\.small\.model\.width: unknown key",
        ),
        (["algorithm=fedproto", "model.groups.small.share=0"], r"^model\.groups\.small\.share=0: "),
    ],
)
def test_mistakes(overrides: list[str], message: str) -> None:
    with refused(message):
        plan(compose("model=mixed", *overrides))


def test_different_networks_cannot_be_stacked() -> None:
    with pytest.raises(InputError, match="engine=vectorized: this model has different networks"):
        federate(*FEDPROTO, "engine=vectorized")


def test_a_group_takes_any_model() -> None:
    other = "model@model.groups.large.model=simple_cnn"
    images = ["data=fashion_mnist", "algorithm=fedproto"]
    planned = plan(compose("model=mixed", other, *images))
    backbone = planned.backbone(input_shape=(1, 28, 28))
    assert isinstance(backbone.groups["small"][0], nn.Flatten)  # type: ignore[index,union-attr]
    assert isinstance(backbone.groups["large"][0][0], nn.Conv2d)  # type: ignore[index,union-attr]
    assert planned.feature_dim == 64


@pytest.mark.parametrize("group", ["small", "large"])
def test_a_batch_of_one_sample_is_avoided_if_any_group_has_batch_norm(group: str) -> None:
    groups = ["model@model.groups.large.model=mlp", "model.groups.small.model.feature_dim=64"]
    norm = [f"model.groups.{group}.model.batch_norm=true", "personalization=local"]
    uneven = ["data.subset=66", "partition=iid", "local.batch_size=16"]  # clients 0 and 1 have 17
    federation = federate(*SMALL, "model=mixed", *groups, *norm, *uneven)
    assert federation.engine.resources.last_batch.lengths(17, 16) == [17]
