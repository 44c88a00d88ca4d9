"""With ``aggregator=private`` the server learns of clients only what the mechanism lets through."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import FEW_STEPS, MATCHING, compose, federate
from support.partner_options import PARTNERS
from support.twins import without_twins
from torch import Tensor

from fedexp.cli.command import config_folder
from fedexp.core.client_protocol import Client
from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import Personalization, Regularizer
from fedexp.data.federated import FederatedData
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan

PRIVATE = ["aggregator=private", "clients.count=4", "clients.per_round=4", "data.subset=240"]
CHEAP = ["local.epochs=1", "measure.personal=null", "objective=train/loss"]
ALLOWED = {
    "head": "adapted_linear cosine etf gaussian identity linear linear_nobias mixture "
    "projected_etf spread_out",
    "loss": "adaptive_mutual balanced_softmax cross_entropy decorrelated fedsr focal "
    "inherited label_smoothing logit_adjustment logit_calibration mixture mmd moon mutual ntd "
    "positive relaxed_contrastive restricted_softmax",
    "regularizer": "accelerated augmented_lagrangian dynamic neural_collapse none proximal "
    "proximal_synthetic",
    "gradient": "lesam meta mixture moreau plain sam",
    "personalization": "apfl ditto fedah fedala fedas fedbabu fedbn fedcp fedetf fedper "
    "fedphp fedrep fedrod finetune finetune_best flute gpfl knn_per lg_fedavg local none "
    "pfedme pfl_da received second_model silobn",
    "sampler": "random",
    "algorithm": "afl apfl ditto elastic fedacg fedadagrad fedadam fedadmm fedah fedala "
    "fedas fedavg fedavgm fedaws fedbabu fedbn fedcda fedcp feddecorr feddisco feddyn "
    "feddyn_paper fedem fedetf fedexp fedge fedgela fedgela_paper fedgela_released fedkd "
    "fedla fedlc fedlesam fednova fedntd fedper fedphp fedprox fedprox_synthetic fedrcl "
    "fedrep fedrod fedrs fedsam fedsr fedyogi flute fml gpfl knn_per lg_fedavg local moon "
    "per_fedavg pfedfda pfedme pfl_da silobn",
}
"""Group -> the options that take nothing from clients but the aggregator's result."""

OPTIONS = [
    f"{group}={path.stem}"
    for group in ALLOWED
    for path in sorted(Path(config_folder(), group).glob("*.yaml"))
]
EXPECTED = {f"{group}={name}" for group, names in ALLOWED.items() for name in names.split()}

REASONS = (
    "aggregator=private: .* may take more from clients than their merged weights"
    "|aggregator=private: epsilon is known only for uniformly drawn cohorts"
    "|aggregator: would not act on "
)

SENDS_BUFFERS = ["algorithm=fedgela_released", "algorithm=pfedfda", "head=gaussian"]


def overrides(option: str) -> list[str]:
    """The option with private averages, and the other options that it needs."""
    few = FEW_STEPS if option in MATCHING else []
    return [option, *PARTNERS.get(option, []), *PRIVATE, *CHEAP, *few]


WITHOUT_BUFFERS = {each: overrides(each) for each in sorted(EXPECTED - {*SENDS_BUFFERS})}


@pytest.mark.matrix
@pytest.mark.parametrize("option", OPTIONS)
def test_only_options_that_take_nothing_past_the_mechanism_are_allowed(option: str) -> None:
    config = compose(*overrides(option))
    if option in EXPECTED:
        plan(config)
        return
    with pytest.raises(InputError, match=f"^(?:{REASONS})") as error:
        plan(config)
    assert "\n" not in str(error.value)


def test_the_list_names_options_that_exist() -> None:
    assert set(OPTIONS) >= EXPECTED


def turned(data: FederatedData) -> None:
    """Change everything about the samples of client 1 but their number."""
    client = data.clients[1]
    data.train.inputs[client.train_index] = data.train.inputs[client.train_index].flip(-1)
    data.train.labels[client.train_index] = (client.labels + 3) % 10
    client.class_counts.copy_(client.class_counts.roll(3))


def without_noise(federation: Federation, clip: float) -> Federation:
    """Two rounds with this bound on a client's step, and without noise."""
    aggregator: Any = federation.server.aggregator
    aggregator.clip, aggregator.noise_multiplier = clip, 0.0
    for round in (1, 2):
        federation.run_round(round)
    return federation


def known(federation: Federation) -> list[Any]:
    """All that the server keeps, and its next message to another client."""
    server = federation.server
    message = server.broadcast(3).to_client(2)
    return list(
        _leaves([server.state_dict(), server.fixed_state(), message.weights, message.extras])
    )


def _leaves(state: Any) -> Iterator[Any]:
    if isinstance(state, Mapping):
        for key in sorted(state, key=str):
            yield key
            yield from _leaves(state[key])
    elif isinstance(state, list | tuple):
        for each in state:
            yield from _leaves(each)
    else:
        yield state.tolist() if isinstance(state, Tensor) else state


def knows_the_same(*options: str, clip: float = 0.0) -> bool:
    """Whether the server knows the same after a client's data were changed."""
    original = known(without_noise(federate(*options), clip))
    return original == known(without_noise(federate(*options, change=turned), clip))


@pytest.mark.parametrize("option", SENDS_BUFFERS)
def test_models_that_send_buffers_are_refused(option: str) -> None:
    with pytest.raises(InputError, match="has buffers"):
        federate(*overrides(option))


@pytest.mark.matrix
@pytest.mark.parametrize("option", without_twins(WITHOUT_BUFFERS))
def test_without_steps_the_server_knows_nothing_of_a_clients_data(option: str) -> None:
    """The bound is 0, so that no step of a client arrives; noise would hide what else arrives."""
    assert knows_the_same(*overrides(option))


def test_with_steps_it_would_know() -> None:
    assert not knows_the_same("algorithm=fedavg", *PRIVATE, *CHEAP, clip=1.0)


class Collector(Regularizer):
    """Claims what is not so: it keeps one client's weights."""

    takes_only_merged = True

    def setup(self, setting: Setting) -> None:
        self.kept: Tensors = {}

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        return {"norm": torch.stack([value.float().norm() for value in weights.values()]).sum()}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        self.kept = dict(updates[1].extras)

    def server_state(self) -> dict[str, Any]:
        return dict(self.kept)


def test_a_false_statement_is_found() -> None:
    assert not knows_the_same(
        "regularizer=none", f"regularizer._target_={__name__}.Collector", *PRIVATE, *CHEAP
    )


class OwnPersonalization(Personalization):
    """Takes the weights past the mechanism, as CFL does."""

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        return weights

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        return merged


class Addressed(Regularizer):
    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        return message


class Uploading(Regularizer):
    def upload(self, client: Client, weights: Tensors, memory: Memory) -> Tensors:
        return weights


class Choosing(Personalization):
    def choose(self, client: Client, message: PartMessage) -> Tensors:
        return {}


class Counting(Regularizer):
    def setup(self, setting: Setting) -> None:
        self.counts = setting.clients.class_counts


class InheritedStatement(Collector):
    """The statement of its base class is not about this hook."""

    def broadcast(self, round: int) -> Tensors:
        return self.kept


@pytest.mark.parametrize(
    ("part", "hooks"),
    [
        (OwnPersonalization, "extract, correct"),
        (Addressed, "message_to"),
        (Uploading, "upload"),
        (Choosing, "choose"),
        (Counting, "setup"),
        (InheritedStatement, "broadcast"),
    ],
)
def test_own_parts_are_refused_by_default(part: type, hooks: str) -> None:
    socket = "personalization" if issubclass(part, Personalization) else "regularizer"
    own = [f"{socket}=none", f"{socket}._target_={__name__}.{part.__name__}"]
    expected = rf"^aggregator=private: {socket} \({part.__name__}: {hooks}\) may take more from"
    with pytest.raises(InputError, match=expected):
        plan(compose(*own, *PRIVATE))
    plan(compose(*own, *PRIVATE, "aggregator=uniform"))


class OnlyForward(Regularizer):
    """Has no hook through which a client could tell something."""

    def forward(self, parameters: Any) -> Tensor | float:
        return 0.0


def test_own_parts_without_such_hooks_are_allowed() -> None:
    plan(compose("regularizer=none", f"regularizer._target_={__name__}.OnlyForward", *PRIVATE))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["personalization=cfl", "measure.angles=null"], "would not act on the clusters' models"),
        (["gradient=client_momentum"], r"gradient \(ClientMomentum: .*report"),
        (["gradient=sam_momentum"], r"gradient \(SharpnessAwareMomentum: .*report"),
        (["algorithm=fedgela", "head.phi_normalization=population"], "head may take more"),
        (["faults=byzantine", "faults.attack=min_max"], "faults may take more"),
    ],
    ids=lambda each: each[0],
)
def test_it_is_one_line(options: list[str], expected: str) -> None:
    with pytest.raises(InputError, match=expected) as error:
        plan(compose(*options, *PRIVATE, *CHEAP))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["feddyn", "fedadmm", "fedacg"])
def test_methods_that_expect_the_mean_warn(name: str, caplog: pytest.LogCaptureFixture) -> None:
    plan(compose(f"algorithm={name}", *PRIVATE))
    assert "the server expects the merged weights to be the mean of the cohort's" in caplog.text
